"""The index made again from the data file: the very bytes, or the place of the damage."""

import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.mindrecord import FileWriter

from dataprep.errors import UserError
from dataprep.mindrecord import Layout, ShardReader, ShardWriter, fit_layout, rebuild_index
from dataprep.mindrecord.index import index_path
from dataprep.verify import verify_file


@pytest.mark.parametrize(
    ("columns", "rows", "layout"),
    [
        ({"a": 1}, 1, Layout(1 << 14, 1 << 15)),
        ({"ids": 4097}, 3, Layout(1 << 14, 1 << 15)),  # one page
        ({"ids": 2049}, 40, Layout(1 << 14, 1 << 15)),  # several blob pages
        ({"ids": 3}, 12_000, Layout(1 << 14, 1 << 15)),  # several raw pages, groups that move
        ({"b": 13, "a": 31}, 9_000, fit_layout({"b": 13, "a": 31}, 9_000)),
    ],
)
def test_the_index_of_our_files_comes_back_to_the_byte(
    tmp_path: Path,
    write: Callable[..., ShardWriter],
    random_rows: Callable[..., Any],
    columns: dict[str, int],
    rows: int,
    layout: Layout,
) -> None:
    path = tmp_path / "train-0.mindrecord"
    write(path, random_rows(columns, rows), layout)
    before = index_path(path).read_bytes()
    index_path(path).unlink()
    assert rebuild_index(path) == before


@pytest.fixture
def shard(tmp_path: Path, write: Callable[..., ShardWriter]) -> Path:
    """300 rows of 100 elements, of 237 bytes each: 138 fill a page, three pages."""
    path = tmp_path / "train-0.mindrecord"
    ids = np.arange(300, dtype=np.int32)[:, None] + np.full(100, 1_000, np.int32)
    write(path, {"ids": ids})
    return path


def test_a_renamed_shard_needs_no_more_than_an_index_of_its_new_name(shard: Path) -> None:
    """MindSpore judges, by a list of files; the header may keep the earlier name."""
    other = shard.with_name("新 name.mindrecord")
    shard.rename(other)
    index_path(shard).unlink()
    index_path(other).write_bytes(rebuild_index(other))
    loader = ds.MindDataset([str(other)], shuffle=False)
    read = [row[0] for row in loader.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    with ShardReader(other) as reader:
        np.testing.assert_array_equal(np.stack(read), reader.read(0, 300)["ids"])


def test_another_name_can_be_written_into_it(shard: Path) -> None:
    copy = shard.with_name("copy.mindrecord")
    shutil.copy(shard, copy)
    assert rebuild_index(copy, "train-0.mindrecord") == index_path(shard).read_bytes()
    assert rebuild_index(copy) != index_path(shard).read_bytes()


PAGE, ROW = 1 << 14, 237  # the first page, and the bytes of a row


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (PAGE, struct.pack("<Q", 10**9), "page 0, .*length of its row 0 .byte 0 of the page"),
        (PAGE + 5 * ROW, struct.pack("<q", -1), "page 0, .*row 5 .byte 1,185 of the page"),
        (
            PAGE + 137 * ROW,
            struct.pack("<Q", 228),
            "page 0, .*its 138 rows end at byte 32,705 of 32,706",
        ),
        (PAGE + (1 << 15), b"\xff" * 8, "page 1, from byte 0 on: the length of its row 0"),
        (0, struct.pack("<Q", 5), "Unterminated"),
    ],
)
def test_damage_is_named_with_its_place(shard: Path, at: int, new: bytes, message: str) -> None:
    with shard.open("r+b") as file:
        file.seek(at)
        file.write(new)
    with pytest.raises(UserError, match=f"train-0.mindrecord is damaged: .*{message}"):
        rebuild_index(shard)


def test_headers_that_lie_about_groups(shard: Path) -> None:
    data = shard.read_bytes()
    for old, new, message in (
        (
            b'"row_group_ids":[{"id":0,"offset":0},{',
            b'"row_group_ids":[{"id":9,"offset":0},{',
            "page 1 names a row group that cannot be",
        ),
        (b'{"id":1,"offset":1794}', b'{"id":1,"offset":9794}', "page 1 has no byte 9,794"),
    ):
        assert old in data
        shard.write_bytes(data.replace(old, new))
        with pytest.raises(UserError, match=f"is damaged: .*{message}"):
            rebuild_index(shard)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*x: No such file"):
        rebuild_index(tmp_path / "x")


def test_floats_that_no_float32_is(tmp_path: Path) -> None:
    """FileWriter puts a float of a float32 field into the index as it came, or rounded: it is the
    same number to that field."""
    path = tmp_path / "x.mindrecord"
    writer = FileWriter(str(path), 1)
    writer.add_schema({"x": {"type": "float32"}, "y": {"type": "float32"}}, "numbers")
    writer.add_index(["x", "y"])
    writer.write_raw_data([{"x": i / 3, "y": np.float32(i / 10)} for i in range(50)])
    writer.commit()
    query = "SELECT * FROM INDEXES ORDER BY ROW_ID"
    with closing(sqlite3.connect(index_path(path))) as db:
        theirs = np.array(db.execute(query).fetchall())
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(rebuild_index(path))
        ours = np.array(db.execute(query).fetchall())
    np.testing.assert_array_equal(ours[:, :8], theirs[:, :8])
    np.testing.assert_array_equal(ours[:, 8:].astype("f4"), theirs[:, 8:].astype("f4"))
    assert verify_file(path).defects == []
