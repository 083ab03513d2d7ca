"""ShardReader: every row back, and every defect named."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.errors import UserError
from dataprep.mindrecord import IndexableSource, Layout, ShardReader, ShardWriter, rebuild_index
from dataprep.mindrecord.index import index_path

Damage = Callable[[Path], object]


@pytest.fixture
def shard(tmp_path: Path, write: Callable[..., ShardWriter]) -> Path:
    """Two rows: ids [[5, 70000, -1], [6, 7, 8]], mask [[1], [0]]."""
    path = tmp_path / "out" / "train-0.mindrecord"
    ids, mask = np.array([[5, 70_000, -1], [6, 7, 8]], np.int32), np.array([[1], [0]], np.int32)
    write(path, {"mask": mask, "ids": ids})
    return path


def test_rows_by_eye(shard: Path) -> None:
    with ShardReader(shard) as reader:
        assert len(reader) == 2
        assert list(reader.columns.items()) == [("ids", 3), ("mask", 1)]
        block = reader.read(0, 2)
        row = reader.row(1)
        empty = reader.read(1, 1)
        for bounds in ((-1, 1), (1, 0), (0, 3)):
            with pytest.raises(IndexError):
                reader.read(*bounds)
    assert block["ids"].tolist() == [[5, 70_000, -1], [6, 7, 8]]
    assert block["mask"].tolist() == [[1], [0]]
    assert {c: v.tolist() for c, v in row.items()} == {"ids": [6, 7, 8], "mask": [0]}
    assert {c: v.shape for c, v in empty.items()} == {"ids": (0, 3), "mask": (0, 1)}
    assert all(v.dtype == np.int32 and v.flags.writeable for v in block.values())


def test_any_range_of_a_shard_of_many_pages(
    tmp_path: Path, write: Callable[..., ShardWriter], random_rows: Callable[..., Any]
) -> None:
    rows = random_rows({"ids": 31, "mask": 6}, 3_000)
    write(tmp_path / "a.mindrecord", rows)
    with ShardReader(tmp_path / "a.mindrecord") as reader:
        for start, stop in ((0, 3_000), (0, 1), (200, 700), (2_999, 3_000)):
            for name, values in reader.read(start, stop).items():
                np.testing.assert_array_equal(values, rows[name][start:stop])


def test_a_moved_shard_is_read(shard: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(shard.parent, tmp_path / "a?b #1%20")) / shard.name
    with ShardReader(moved) as reader:
        assert reader.row(0)["ids"].tolist() == [5, 70_000, -1]


def overwrite(at: int, new: bytes) -> Damage:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(new)

    return damage


def header(old: bytes, new: bytes) -> Damage:
    assert len(old) == len(new)
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


def index(statement: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(f"{path}.db")) as db:
            db.execute(statement)
            db.commit()

    return damage


def cut(size: int) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (Path.unlink, "cannot read .*train-0.mindrecord: No such file"),
    "empty": (cut(0), "is damaged: it is not a MindRecord file, or is cut short"),
    "no header": (cut(100), "is damaged: it is not a MindRecord file, or is cut short"),
    "last byte lost": (cut(16_384 + 32_768 + 25), "has 49,177 bytes where its header tells of"),
    "text": (lambda p: p.write_text("some text, not a shard"), "is not a MindRecord file"),
    "not JSON": (overwrite(8, b"["), "is damaged: Expecting"),
    "not UTF-8": (overwrite(10, b"\xff"), "is damaged: 'utf-8' codec"),
    "key lost": (header(b"schema", b"schemo"), "lacks or garbles a key"),
    "other version": (header(b'"3.0"', b'"9.0"'), "version '9.0'; this reader knows 3.0"),
    "other type": (header(b"int32", b"uint9"), "field 'ids' is of the unknown kind"),
    "other rank": (header(b"[3]", b"[ ]"), "field 'ids' is of the unknown kind"),
    "other blobs": (header(b'["ids","', b'["idz","'), "blob fields are ..idz"),
    "hostile name": (header(b'"mask":{', b'"m;\'k":{'), "holds more than letters"),
    "no shape": (header(b'"shape":[3]', b'"shapf":[3]'), r"blob fields are .*, not \['mask'\]"),
    "rows lost": (header(b'"start_row_id":0', b'"start_row_id":1'), "not tell where row 0 is"),
    "too many rows": (header(b'"end_row_id":2,', b'"end_row_id":9,'), "belong to the 9 rows"),
    "page too small": (header(b'"page_size":32768', b'"page_size":    2'), "its page 0 has 79"),
    "page lost": (header(b'"page_id":1', b'"page_id":7'), "page 7 has 26 bytes"),
    "page twice": (header(b'"page_id":1', b'"page_id":0'), "two of its pages are one"),
    "type of page": (header(b'"page_type_id":0', b'"page_type_id":9'), "names a row group that"),
    "page too full": (header(b'"page_size":32768', b'"page_size":00010'), "is damaged: Expecting"),
    "page size 0": (header(b'"page_size":32768', b'"page_size":    0'), "pages have 0 bytes"),
    "no index": (lambda p: Path(f"{p}.db").unlink(), "index .*db is missing or damaged: it does"),
    "index cut": (lambda p: Path(f"{p}.db").write_bytes(b""), "lacks the tables"),
    "index not SQLite": (lambda p: Path(f"{p}.db").write_text("x" * 5_000), "not a database"),
    "index row lost": (index("DELETE FROM INDEXES WHERE ROW_ID = 1"), "belong to the 2 rows"),
    "index row gap": (index("UPDATE INDEXES SET ROW_ID = 9 WHERE ROW_ID = 1"), "have gaps"),
    "index of views": (
        lambda p: (
            index("ALTER TABLE INDEXES RENAME TO T")(p),
            index("CREATE VIEW INDEXES AS SELECT * FROM T")(p),
        ),
        "lacks the tables INDEXES and SHARD_NAME",
    ),
    "index of NULL": (index("DELETE FROM SHARD_NAME"), "missing or damaged"),
    "index page": (index("UPDATE INDEXES SET PAGE_ID_BLOB = 7"), "does not belong"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_shard_does_not_open(shard: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(shard)
    with pytest.raises(UserError, match=message):
        ShardReader(shard)


@pytest.mark.parametrize(
    "damage",
    [
        overwrite(16_384, b"\x09"),  # the row's length
        overwrite(16_384 + 15, b"\x09"),  # the field's
        overwrite(16_384 + 19, b"\x09"),  # the number of elements
        overwrite(16_384 + 20, b"\xff"),  # the width codes
        index("UPDATE INDEXES SET PAGE_OFFSET_BLOB_END = 99999999"),
        index("UPDATE INDEXES SET PAGE_OFFSET_BLOB = -99999999"),
    ],
)
def test_a_damaged_row_is_named(shard: Path, damage: Damage) -> None:
    damage(shard)
    with ShardReader(shard) as reader, pytest.raises(UserError, match="train-0.*row 0"):
        reader.read(0, 2)


def test_a_renamed_shard_says_its_name(shard: Path) -> None:
    other = shard.with_name("other.mindrecord")
    shard.rename(other)
    with pytest.raises(UserError, match="inside it is called train-0.mindrecord.*rename it back"):
        ShardReader(other)
    other.rename(shard)
    index("UPDATE SHARD_NAME SET NAME = 'other'")(shard)
    with pytest.raises(UserError, match="train-0.mindrecord.db was renamed.*called other"):
        ShardReader(shard)


def test_a_hostile_header_reserves_no_memory(shard: Path) -> None:
    data = shard.read_bytes()
    for old, new in (
        (b'"end_row_id":2,"page_id":0', b'"end_row_id":999999999999999,"page_id":0'),
        (b'{"shape":[3]', b'{"shape":[999999999999999]'),
        (b'"page_size":32768', b'"page_size":999999999999999'),
        (b'"header_size":16384', b'"header_size":-16384'),
        (b'"header_size":16384', b'"header_size":1e999'),
    ):
        text = data[8:16_384].rstrip(b"\0").replace(old, new, 1)
        assert new in text
        shard.write_bytes(
            len(text).to_bytes(8, "little") + text.ljust(16_376, b"\0") + data[16_384:]
        )
        for work in (ShardReader, rebuild_index, lambda path: IndexableSource([path])):
            with pytest.raises(UserError, match="train-0.mindrecord is damaged: (its|a row of)"):
                work(shard)


def test_a_page_with_another_number_of_rows_than_the_header_says(shard: Path) -> None:
    for rows in (1, 3):  # there are two
        changed = shard.with_name(f"{rows}.mindrecord")
        data = shard.read_bytes().replace(b'"end_row_id":2', b'"end_row_id":%d' % rows)
        changed.write_bytes(data)
        with IndexableSource([changed]) as source:
            assert len(source) == rows
            with pytest.raises(UserError, match=f"{rows}.mindrecord is damaged: in the page"):
                source.read([0])
        with pytest.raises(UserError, match=f"{rows}.mindrecord is damaged: page 0, from byte 0"):
            rebuild_index(changed)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damage_anywhere_is_an_error_or_other_values(
    whole: tuple[Path, bytes, bytes], data: st.DataObject
) -> None:
    """Never a crash, and never arrays of another shape or number."""
    path, content, index_content = whole
    used = st.one_of(  # the header, the rows, the raw rows; zeros between them tell nothing
        st.integers(0, 700), st.integers(16_384, 17_400), st.integers(49_152, len(content) - 1)
    )
    broken, broken_index = bytearray(content), bytearray(index_content)
    for _ in range(data.draw(st.integers(1, 2))):
        if data.draw(st.integers(0, 3)):
            broken[data.draw(used)] = data.draw(st.integers(0, 255))
        else:
            at = data.draw(st.integers(0, len(index_content) - 1))
            broken_index[at] = data.draw(st.integers(0, 255))
    path.write_bytes(broken)
    index_path(path).write_bytes(broken_index)
    with contextlib.suppress(UserError), ShardReader(path) as reader:
        for name, values in reader.read(0, len(reader)).items():
            assert values.shape == (4, {"ids": 41, "mask": 6}[name])
        assert set(map(len, map(reader.row, range(len(reader))))) == {2}
    with contextlib.suppress(UserError), IndexableSource([path]) as source:
        for name, values in source.read(np.arange(len(source))).items():
            assert values.shape == (4, {"ids": 41, "mask": 6}[name])
    with contextlib.suppress(UserError):
        rebuild_index(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    """Four rows of mixed widths: the path, the bytes of the data file, those of its index."""
    path = tmp_path_factory.mktemp("whole") / "train-0.mindrecord"
    ids = np.arange(4 * 41, dtype=np.int32).reshape(4, 41) ** 2 * 9
    with ShardWriter(path, {"ids": 41, "mask": 6}, Layout(1 << 14, 1 << 15)) as writer:
        writer.write({"ids": ids, "mask": ids[:, :6] % 2})
    return path, path.read_bytes(), index_path(path).read_bytes()
