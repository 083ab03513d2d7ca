"""Splits: each record is in exactly one, whatever the borders of splits and blocks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.readers import Input, Split, blocks, expand, group_splits, plan_splits
from dataprep.readers.splits import MIB

Reads = Callable[..., Any]

FILES = {
    "lf": b"a\nbb\nccc\n",
    "no_final_newline": b"a\nbb\nccc",
    "crlf": b"a\r\nbb\r\nccc\r\n",
    "bom": b"\xef\xbb\xbfa\nbb\n",
    "empty_lines": b"\n\na\n\n\nbb\n\n",
    "only_newlines": b"\n\n\n",
    "two_byte": "é\nü\n\u00a0\n".encode(),
    "line_ends_inside": "a\u2028b\nc\u2029d\ne\u0085f\ng\rh\ni\x0bj\x0ck\n".encode(),
    "empty": b"",
    "bom_alone": b"\xef\xbb\xbf",
}


def lines_of(data: bytes) -> list[str]:
    """The definition: LF and CRLF end a line, nothing else does."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode()
    lines = text.removesuffix("\n").split("\n") if text else []
    # The last line of a file may lack its LF, then a CR is part of it.
    ended = len(lines) if text.endswith("\n") else len(lines) - 1
    return [x.removesuffix("\r") if i < ended else x for i, x in enumerate(lines)]


@pytest.mark.parametrize("name", FILES)
def test_every_border_of_a_text_file(name: str, tmp_path: Path, reads: Reads) -> None:
    data = FILES[name]
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    for split_bytes in range(1, len(data) + 2):
        result = reads(path, split_bytes)
        assert result.documents == list(enumerate(lines_of(data)))
        assert sum(result.records) == len(lines_of(data))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_every_border_of_a_jsonl_file(end: bytes, tmp_path: Path, reads: Reads) -> None:
    texts = ["one", "", "zwei\u2028\u2029\u0085\r", "三", "\U0001f600"]
    lines = [json.dumps({"id": i, "text": t}, ensure_ascii=False) for i, t in enumerate(texts)]
    lines[2:2] = ["", "not json", "  "]  # rows 2, 3 and 4
    path = tmp_path / "x.jsonl"
    data = b"\xef\xbb\xbf" + end.join(line.encode() for line in lines)
    path.write_bytes(data)
    rows = [0, 1, 5, 6, 7]
    for split_bytes in range(1, len(data) + 2):
        result = reads(path, split_bytes)
        assert result.documents == list(zip(rows, texts))
        assert {row: rule for row, (rule, *_) in result.removed.items()} == {3: "invalid_json"}
        assert result.counts["notes.read.blank_lines"] == 2
        assert sum(result.records) == 8


@settings(deadline=None, max_examples=60)
@given(
    data=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"bcd", "中".encode()])),
    split_bytes=st.integers(1, 12),
    block_bytes=st.integers(1, 12),
)
def test_any_borders_of_splits_and_blocks(
    reads: Reads,
    tmp_path_factory: pytest.TempPathFactory,
    data: list[bytes],
    split_bytes: int,
    block_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("splits") / "x.txt"
    path.write_bytes(b"".join(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        assert reads(path, split_bytes).documents == list(enumerate(lines_of(b"".join(data))))


def splits_of(tmp_path: Path, sizes: dict[str, int], **entry: Any) -> list[Split]:
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"a" * size)
    return plan_splits(expand([Input(str(tmp_path / "*"), **entry)]), 10)


def test_byte_ranges_cover_the_file(tmp_path: Path) -> None:
    splits = splits_of(tmp_path, {"a.txt": 25, "b.txt": 0, "c.txt": 10})
    ranges = [(Path(s.file.path).name, s.start, s.stop, s.size) for s in splits]
    assert ranges == [
        ("a.txt", 0, 10, 10),
        ("a.txt", 10, 20, 10),
        ("a.txt", 20, 25, 5),
        ("b.txt", 0, 0, 0),
        ("c.txt", 0, 10, 10),
    ]


def test_a_file_that_is_one_document_is_one_split(tmp_path: Path) -> None:
    splits = splits_of(tmp_path, {"a.txt": 25}, document="file")
    assert [(s.start, s.stop) for s in splits] == [(0, 25)]


def test_neighbours_of_one_source_share_a_task(tmp_path: Path) -> None:
    def split(path: str, source: str, size: int) -> Split:
        (tmp_path / path).write_bytes(b"")
        file = expand([Input(str(tmp_path / path), source)])[0]
        return Split(file, 0, size, size)

    small, large = MIB, 5 * MIB
    splits = [
        split("a.txt", "x", small),
        split("b.txt", "x", small),
        split("c.txt", "y", small),
        split("d.txt", "y", large),
        split("e.txt", "y", small),
        split("f.txt", "y", 3 * small),
        split("g.txt", "y", 1),
    ]
    assert group_splits(splits) == [[0, 1], [2], [3], [4, 5], [6]]
    assert group_splits([]) == []
