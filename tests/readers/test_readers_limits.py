"""Limits: too long a document is removed with its size; too many bad records stop the run."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.ledger import TaskLedger
from dataprep.readers import Input, Read, blocks, expand, plan_splits
from dataprep.readers.splits import MIB

Reads = Callable[..., Any]


def blocks_of(path: Path, limit: int) -> list[tuple[bytes, int]]:
    split = plan_splits(expand([Input(str(path))]))[0]
    found = blocks.record_blocks(split, limit, lambda why: pytest.fail(why))
    return [(block.data, block.overlong) for block in found]


def test_a_long_record_is_told_by_its_size_and_its_neighbours_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\n12345\n123456\nb\n1234567\n1234567890")
    assert blocks_of(path, 5) == [
        (b"a\n12345\n", 6),
        (b"b\n", 7),
        (b"", 10),
        (b"", 0),
    ]


@settings(deadline=None, max_examples=150)
@given(
    lines=st.lists(st.integers(0, 12).map(lambda n: b"x" * n), min_size=1, max_size=12),
    ended=st.booleans(),
    limit=st.integers(1, 12),
    block_bytes=st.integers(1, 30),
)
def test_no_border_of_blocks_changes_what_is_too_long(
    lines: list[bytes],
    ended: bool,
    limit: int,
    block_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("long") / "x.txt"
    path.write_bytes(b"\n".join(lines) + b"\n" * ended)
    if not ended and not lines[-1]:
        lines = lines[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        found = blocks_of(path, limit)
    kept = b"".join(data if data.endswith(b"\n") else data + b"\n" for data, _ in found if data)
    assert kept.split(b"\n")[:-1] == [x for x in lines if len(x) <= limit]
    assert [n for _, n in found if n] == [len(x) for x in lines if len(x) > limit]


@pytest.mark.parametrize("format_", ["text", "jsonl"])
def test_too_long_lines_keep_their_place(format_: str, tmp_path: Path, reads: Reads) -> None:
    texts = ["a", "b" * MIB, "c" * (MIB + 1), "d", "e" * (6 * MIB), "f"]
    if format_ == "jsonl":
        frame = len(json.dumps({"text": ""}))
        texts = [t[: len(t) - frame] if len(t) > frame else t for t in texts]
        lines = [json.dumps({"text": t}) for t in texts]
    else:
        lines = texts
    path = tmp_path / "x"
    path.write_text("\n".join(lines))
    result = reads(path, read=Read(max_document_mib=1), format=format_)
    assert result.documents == [(i, texts[i]) for i in (0, 1, 3, 5)]
    assert result.removed == {
        2: ("too_long", MIB + 1, MIB),
        4: ("too_long", 6 * MIB, MIB),
    }
    assert result.records == [6]
    with pytest.raises(UserError, match=r"line 3: 1,048,577 bytes, over max_document_mib"):
        reads(path, read=Read(strict=True, max_document_mib=1), format=format_)


def test_a_long_line_takes_bounded_memory(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.txt"
    with path.open("wb") as f:
        f.write(b"before\n")
        for _ in range(64):
            f.write(b"x" * MIB)
        f.write(b"\nafter\n")
    tracemalloc.start()
    try:
        result = reads(path, read=Read(max_document_mib=1))
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    finally:
        tracemalloc.stop()
    assert result.texts == ["before", "after"]
    assert result.removed == {1: ("too_long", 64 * MIB, MIB)}


def test_a_file_over_the_limit_is_removed_and_stops_nothing(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"line\n" * (MIB // 5) + b"!" * (MIB % 5))
    assert len(reads(path, read=Read(max_document_mib=1), document="file").texts[0]) == MIB
    path.write_bytes(b"line\n" * (MIB // 5) + b"!" * (MIB % 5 + 1))
    result = reads(path, read=Read(max_document_mib=1), document="file")
    assert result.texts == [] and result.records == [1]
    assert result.removed == {0: ("too_long", MIB + 1, MIB)}
    with pytest.raises(UserError, match=r"x\.txt, 1,048,577 bytes, over max_document_mib"):
        reads(path, read=Read(strict=True, max_document_mib=1), document="file")


def write_jsonl(tmp_path: Path, good: int, bad: int) -> Path:
    path = tmp_path / "x.jsonl"
    lines = ['{"text": "good"}'] * good
    lines[1:1] = ['{"txt": "bad", "id": 7}'] * bad
    path.write_text("\n".join(lines))
    return path


def test_too_many_bad_records_stop_with_file_line_cause_and_cure(
    tmp_path: Path, reads: Reads
) -> None:
    with pytest.raises(UserError) as e:
        reads(write_jsonl(tmp_path, 89, 10))
    assert str(e.value) == (
        f"{tmp_path}/x.jsonl: 10 of 99 records are bad, more than read.max_bad_fraction = 0.1; "
        "the first, line 2: no text under key 'text'; its keys are: 'txt', 'id'; "
        "check format and text_key, or raise the limit"
    )


@pytest.mark.parametrize(("good", "bad"), [(90, 10), (9, 9), (1, 9), (0, 0)])
def test_a_few_bad_records_go_on(good: int, bad: int, tmp_path: Path, reads: Reads) -> None:
    result = reads(write_jsonl(tmp_path, good, bad))
    assert (len(result.texts), len(result.removed)) == (good, bad)


def test_nothing_but_bad_records_stops(tmp_path: Path, reads: Reads) -> None:
    with pytest.raises(UserError, match="1 of 1 records are bad"):
        reads(write_jsonl(tmp_path, 0, 1))
    assert reads(write_jsonl(tmp_path, 0, 1), read=Read(max_bad_fraction=1)).texts == []


def test_a_bad_record_alone_in_a_later_split_stops_nothing(tmp_path: Path, reads: Reads) -> None:
    """The last split of a file often holds its last record alone, cut off by a full disk."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "good"}\n{"text": "cu')
    assert reads(path, 17).documents == [(0, "good")]
    with pytest.raises(UserError, match=r"x\.jsonl \(from byte 17\), line 1: .*read\.strict"):
        reads(path, 17, Read(strict=True))


def test_bad_rows_of_parquet_count_too(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"] * 50 + [None] * 50}), path, row_group_size=25)
    with pytest.raises(UserError, match=r"50 of 100 records are bad.*row 51: the text is null"):
        reads(path)
    with pytest.raises(UserError, match=r"x\.parquet, row 51: the text is null \(read.strict"):
        reads(path, read=Read(strict=True))
    assert len(reads(path, read=Read(max_bad_fraction=0.5)).texts) == 50


def test_long_parquet_rows(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a", "b" * MIB, None, "c" * (MIB + 1), "d"]}), path)
    result = reads(path, read=Read(max_document_mib=1))
    assert [row for row, _ in result.documents] == [0, 1, 4]
    assert result.removed[3] == ("too_long", MIB + 1, MIB)
    assert result.removed[2][0] == "missing_text"


def test_batches_of_parquet_are_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    noise = np.random.default_rng(0).integers(97, 123, 40 * MIB, np.uint8).tobytes().decode()
    pq.write_table(pa.table({"text": [noise[i : i + MIB] for i in range(0, 40 * MIB, MIB)]}), path)
    split = plan_splits(expand([Input(str(path))]))[0]
    sizes = [b.column("text").nbytes for b in Read()(split, 0, TaskLedger("x"))]
    assert sum(sizes) >= 40 * MIB and max(sizes) <= 17 * MIB


@pytest.mark.parametrize(
    "bad", [{"max_bad_fraction": 1.1}, {"max_bad_fraction": -0.1}, {"max_document_mib": 0}]
)
def test_impossible_limits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"read.{next(iter(bad))} is"):
        Read(**bad)
