"""Parquet: row groups, nulls, string types, and files that are not what they should be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep import UserError

Reads = Callable[..., Any]

TEXTS = ["a", "", "中文", "b" * 5000, "\U0001f600"]


@pytest.mark.parametrize("row_group_size", [1, 2, 3, 5])
@pytest.mark.parametrize("split_bytes", [1, 1 << 27])
def test_every_border_of_row_groups(
    row_group_size: int, split_bytes: int, tmp_path: Path, reads: Reads
) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"id": range(5), "text": TEXTS})
    pq.write_table(table, path, row_group_size=row_group_size)
    result = reads(path, split_bytes)
    assert result.documents == list(enumerate(TEXTS))
    assert len(result.records) == (1 if split_bytes > 1 else -(-5 // row_group_size))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
    ids=str,
)
def test_kinds_of_string(kind: pa.DataType, tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": pa.array([*TEXTS, None, "a"]).cast(kind)}), path)
    result = reads(path)
    assert result.documents == [*enumerate(TEXTS), (6, "a")]
    assert {row: rule for row, (rule, *_) in result.removed.items()} == {5: "missing_text"}


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
def test_codecs(compression: str, tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, compression=compression)
    assert reads(path).texts == TEXTS


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path: Path, reads: Reads) -> None:
    raw = pa.array([b"good", b"caf\xe9", None], pa.binary())
    text = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": text}), path)
    result = reads(path)
    assert result.texts == ["good", "caf\ufffd"]
    assert result.counts["notes.read.documents_with_bad_bytes"] == 1


def test_names_with_dots_and_other_columns(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [{"b": 1}], "a.text": ["x"], "正文": ["y"]}), path)
    assert reads(path, text_key="a.text").texts == ["x"]
    assert reads(path, text_key="正文").texts == ["y"]


@pytest.mark.parametrize(
    "table", [pa.table({"text": pa.array([], pa.string())}), pa.table({"text": [""]})]
)
def test_little_or_nothing(table: pa.Table, tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    assert reads(path).texts == table["text"].to_pylist()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"a": ["x"], "b": ["y"]}), "has no column 'text'; .* one of: 'a', 'b'"),
        (pa.table({"text": [1]}), "column 'text' of .* has type int64, not string"),
        (pa.table({"text": [b"x"]}), "has type binary, not string"),
        (pa.table({"text": [["x"]]}), "has type list<.*>, not string"),
        (pa.table([["x"], ["y"]], names=["text", "text"]), "has several columns 'text'"),
    ],
)
def test_columns_that_do_not_serve(
    table: pa.Table, message: str, tmp_path: Path, reads: Reads
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table, path)
    with pytest.raises(UserError, match=message):
        reads(path)


def test_damaged_files(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["some text"] * 5000}), path, compression="snappy")
    good = path.read_bytes()
    broken = bytearray(good)
    broken[4:400] = bytes(396)
    for data in (b"", b"PAR1", b"not parquet", good[:-1], good[100:], bytes(broken)):
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"x\.parquet is not a readable Parquet file"):
            reads(path)


def test_a_misnamed_file_is_told(tmp_path: Path, reads: Reads) -> None:
    (tmp_path / "x.parquet").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match="not a readable Parquet file"):
        reads(tmp_path / "x.parquet")
    assert reads(tmp_path / "x.parquet", format="jsonl").texts == ["a"]
