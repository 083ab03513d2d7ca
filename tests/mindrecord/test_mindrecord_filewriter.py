"""Files of MindSpore's FileWriter: read as its FileReader reads them, their index made again."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from mindspore.mindrecord import FileReader, FileWriter

from dataprep.errors import UserError
from dataprep.mindrecord import Field, IndexableSource, ShardReader, rebuild_index
from dataprep.mindrecord.fields import row_values
from dataprep.mindrecord.index import index_path

Row = dict[str, Any]
WIDE = [0, -1, 127, 128, -129, 32_768, 2**31 - 1, -(2**31), 2**31, -(2**63), 2**63 - 1]


def full_row(i: int) -> Row:
    """A value of every kind, edges of the widths among them."""
    return {
        "id": i - 3,
        "big": 10**15 * (i - 5),
        "f": i / 8,
        "d": i / 3,
        "text": f"名 '{i}\" \\\n" + "long " * (i % 7),
        "ids": np.arange(i, i + 5, dtype=np.int32) * 40_000,
        "any": np.arange(i % 9 + 1, dtype=np.int32) - 4,
        "wide": np.roll(np.array(WIDE, np.int64), i),
        "square": (np.arange(6).reshape(2, 3) * 100 * i).astype(np.int32),
        "pairs": np.full((i % 3 + 1, 2), i / 7, np.float32),
        "double": np.array([i / 7, -1e300]),
        "blob": bytes(range(i % 11 + 1)),
    }


SCHEMA: dict[str, Any] = {
    "id": {"type": "int32"},
    "big": {"type": "int64"},
    "f": {"type": "float32"},
    "d": {"type": "float64"},
    "text": {"type": "string"},
    "ids": {"type": "int32", "shape": [5]},
    "any": {"type": "int32", "shape": [-1]},
    "wide": {"type": "int64", "shape": [11]},
    "square": {"type": "int32", "shape": [2, 3]},
    "pairs": {"type": "float32", "shape": [-1, 2]},
    "double": {"type": "float64", "shape": [2]},
    "blob": {"type": "bytes"},
}
CASES: dict[str, tuple[Sequence[str], Sequence[str], int, int]] = {
    # fields, index fields, shards, rows
    "all": (list(SCHEMA), ["id"], 1, 20),
    "all, without a named index": (list(SCHEMA), [], 1, 20),
    "several shards": (list(SCHEMA), ["id", "text"], 4, 50),
    "several pages": (list(SCHEMA), ["d"], 1, 900),
    "scalars only": (["id", "big", "f", "d", "text"], ["text", "f"], 1, 30),
    "one array": (["wide"], [], 1, 30),
    "one array of any length": (["any"], [], 3, 30),
    "bytes": (["blob"], [], 1, 12),
    "columns": (["ids"], [], 2, 5_000),
    "columns and text": (["ids", "text"], [], 2, 2_000),
}


def write(path: Path, names: Sequence[str], index: Sequence[str], shards: int, rows: int) -> None:
    writer = FileWriter(str(path), shard_num=shards)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    writer.add_schema({name: SCHEMA[name] for name in names}, "a test")
    if index:
        writer.add_index(list(index))
    for start in range(0, rows, 700):
        block = [full_row(i) for i in range(start, min(start + 700, rows))]
        writer.write_raw_data([{name: row[name] for name in names} for row in block])
    writer.commit()


def shards_of(path: Path, shards: int) -> list[Path]:
    return [path.with_name(f"{path.name}{i}") for i in range(shards)] if shards > 1 else [path]


def mindspore_rows(path: Path) -> list[Row]:
    reader = FileReader([str(path)])
    rows = list(reader.get_next())
    reader.close()
    return rows


def assert_same(got: Row, want: Row) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, np.ndarray):
            assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
            np.testing.assert_array_equal(got[name], value)
        elif SCHEMA[name]["type"] == "float32":  # of which FileReader gives the shortest digits
            assert np.float32(got[name]) == np.float32(value)
        else:
            assert got[name] == value
            assert isinstance(got[name], str | bytes | int | float)


@pytest.mark.parametrize("case", CASES)
def test_every_row_is_what_mindspore_reads(tmp_path: Path, case: str) -> None:
    names, index, shards, count = CASES[case]
    write(tmp_path / "data set", names, index, shards, count)
    total = 0
    for path in shards_of(tmp_path / "data set", shards):
        want = mindspore_rows(path)
        with ShardReader(path) as reader:
            assert len(reader) == len(want)
            assert list(reader.schema) == sorted(names)
            for i in range(len(want)):
                assert_same(reader.row(i), want[i])
            block = reader.read(0, len(want))
            assert list(block) == list(reader.columns) == [n for n in names if n == "ids"]
            for name, values in block.items():
                np.testing.assert_array_equal(values, np.stack([row[name] for row in want]))
        total += len(want)
    assert total == count


@pytest.mark.parametrize("case", CASES)
def test_mindspore_reads_the_same_rows_by_an_index_made_again(tmp_path: Path, case: str) -> None:
    names, index, shards, count = CASES[case]
    write(tmp_path / "x", names, index, shards, count)
    for path in shards_of(tmp_path / "x", shards):
        want, table = mindspore_rows(path), index_rows(index_path(path))
        index_path(path).write_bytes(rebuild_index(path))
        assert index_rows(index_path(path)) == table
        got = mindspore_rows(path)
        assert len(got) == len(want)
        for i in range(len(want)):
            assert_same(got[i], want[i])


def index_rows(path: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        cursor = db.execute("SELECT * FROM INDEXES ORDER BY ROW_ID")
        return [column[0] for column in cursor.description], cursor.fetchall()


def test_the_schema_by_eye(tmp_path: Path) -> None:
    write(tmp_path / "x", ["id", "pairs", "blob", "ids"], [], 1, 3)
    with ShardReader(tmp_path / "x") as reader:
        assert reader.schema == {
            "blob": Field("bytes"),
            "id": Field("int32"),
            "ids": Field("int32", (5,)),
            "pairs": Field("float32", (-1, 2)),
        }
        assert reader.columns == {"ids": 5}
        row = reader.row(2)
    assert row["id"] == -1 and row["blob"] == b"\0\1\2"
    assert row["ids"].tolist() == [80_000, 120_000, 160_000, 200_000, 240_000]


def test_a_source_takes_the_columns_and_skips_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "x", list(SCHEMA), ["id"], 2, 40)
    paths = shards_of(tmp_path / "x", 2)
    want = [row["ids"] for path in paths for row in mindspore_rows(path)]
    with IndexableSource(paths) as source:
        assert source.columns == {"ids": 5}
        np.testing.assert_array_equal(source.read(np.arange(40))["ids"], np.stack(want))


def test_empty_arrays_are_empty_where_mindspore_reads_garbage(tmp_path: Path) -> None:
    """In a row of several arrays: FileWriter stores them well, MindDataset reads some number."""
    writer = FileWriter(str(tmp_path / "x"), shard_num=1)
    kinds = {"a": "int32", "b": "int64", "c": "float32"}
    writer.add_schema({n: {"type": t, "shape": [-1]} for n, t in kinds.items()}, "a test")
    rows = [{n: np.ones(int(n == full), t) for n, t in kinds.items()} for full in "abc"]
    writer.write_raw_data(rows)
    writer.commit()
    with ShardReader(tmp_path / "x") as reader:
        for i, want in enumerate(rows):
            got = reader.row(i)
            assert {n: (v.dtype, v.tolist()) for n, v in got.items()} == {
                n: (v.dtype, v.tolist()) for n, v in want.items()
            }


def test_a_number_that_does_not_fit_its_type_is_an_error(tmp_path: Path) -> None:
    """FileWriter takes it, and MindDataset fails on it or reads something else."""
    writer = FileWriter(str(tmp_path / "x"), shard_num=1)
    writer.add_schema({"id": {"type": "int32"}}, "a test")
    writer.write_raw_data([{"id": 1}, {"id": 2**40}])
    writer.commit()
    with ShardReader(tmp_path / "x") as reader:
        assert reader.row(0) == {"id": 1}
        with pytest.raises(UserError, match="x is damaged: row 1: field 'id': '1099511627776' is"):
            reader.row(1)


INT, TEXT, PAIR = Field("int32"), Field("string"), Field("int32", (2,))


@pytest.mark.parametrize(
    ("schema", "raw", "blob", "message"),
    [
        ({"i": INT}, {"i": "1"}, b"", "'1' is no int32"),
        ({"i": INT}, {"i": True}, b"", "'True' is no int32"),
        ({"i": INT}, {"i": -(2**31) - 1}, b"", "is no int32"),
        ({"i": Field("int64")}, {"i": 2**63}, b"", "is no int64"),
        ({"f": Field("float32")}, {"f": None}, b"", "'None' is no float32"),
        ({"s": TEXT}, {"s": b"x"}, b"", "is no string"),
        ({"s": TEXT}, {"t": "x"}, b"", r"are not \['s'\]"),
        ({"s": TEXT}, ["s"], b"", r"are not \['s'\]"),
        ({"s": TEXT}, b"", b"", "are not msgpack"),
        ({"s": TEXT}, b"\x81\xa1s\xa1\xff", b"", "are not msgpack"),
        ({"s": TEXT}, b"\x81\xa1s\xa1x\x00", b"", "are not msgpack"),
        ({"s": TEXT}, b"\x81" * 5_000, b"", "are not msgpack"),
        ({"p": PAIR}, {}, b"", "field 'p': 0 bytes are too few for 0 elements"),
        ({"p": PAIR}, {}, b"\xff\xff\xff\xff\0", "5 bytes are too few for 4,294,967,295"),
        ({"p": PAIR}, {}, b"\0\0\0\2\0\1\2\3", "codes do not match"),
        ({"p": PAIR}, {}, b"\0\0\0\2\xff" + bytes(16), "codes do not match"),
        ({"p": PAIR}, {}, b"\0\0\0\3\0\1\2\3", "cannot reshape"),
        ({"p": Field("float64", (-1,))}, {}, bytes(12), "12 bytes are no float64 array"),
        ({"p": Field("int32", (-1, 2))}, {}, b"\0\0\0\3\0\1\2\3", "cannot reshape"),
        ({"p": PAIR, "q": Field("bytes")}, {}, bytes(7), r"arrays are not \['p', 'q'\]"),
        ({"p": PAIR, "q": Field("bytes")}, {}, b"\xff" * 16, r"arrays are not \['p', 'q'\]"),
        ({"q": Field("bytes"), "r": Field("bytes")}, {}, bytes(17), "arrays are not"),
    ],
)
def test_damaged_fields_are_named(
    schema: dict[str, Field], raw: Any, blob: bytes, message: str
) -> None:
    packed = raw if isinstance(raw, bytes) else msgpack.packb(raw)
    with pytest.raises(ValueError, match=message):
        row_values(schema, packed, blob)
