"""verify of one MindRecord file: ours, FileWriter's, renamed, without an index, damaged."""

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.errors import UserError
from dataprep.mindrecord import ShardWriter, fit_layout
from dataprep.verify import verify_file
from pipelines.cli import main

os.environ.setdefault("GLOG_v", "3")
ROWS = 300


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A file of two int32 columns, several pages."""
    rng = np.random.default_rng(1)
    columns = {"input_ids": 65, "segments": 8}
    path = tmp_path / "ours.mindrecord"
    with ShardWriter(path, columns, fit_layout(columns, ROWS)) as writer:
        writer.write(
            {c: rng.integers(0, 70_000, (ROWS, n)).astype(np.int32) for c, n in columns.items()}
        )
    return path


FIELDS: dict[str, dict[str, Any]] = {
    "ids": {"type": "int32", "shape": [-1]},
    "matrix": {"type": "float32", "shape": [2, 3]},
    "number": {"type": "int64"},
    "score": {"type": "float32"},
    "text": {"type": "string"},
    "raw": {"type": "bytes"},
}


def by_file_writer(path: Path, shards: int = 1) -> None:
    """Fields of all kinds, an index of two of them."""
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path), shards)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    writer.add_schema(FIELDS, "of all kinds")
    writer.add_index(["number", "text"])
    rows = [
        {
            "ids": np.arange(i + 1, dtype=np.int32) * 1000,
            "matrix": np.full((2, 3), 0.1 * i, np.float32),
            "number": i * 2**33,
            "score": 0.1 * i,
            "text": f"第{i}行",
            "raw": b"\0" * i + b"x",
        }
        for i in range(40)
    ]
    writer.write_raw_data(rows)
    writer.commit()


@pytest.mark.parametrize("fast", [True, False])
def test_ours(ours: Path, fast: bool) -> None:
    verdict = verify_file(ours, fast=fast)
    assert (verdict.defects, verdict.rows, verdict.bytes) == ([], ROWS, ours.stat().st_size)
    assert "no manifest says what the rows should hold" in verdict.notes[-1]


@pytest.mark.parametrize("fast", [True, False])
def test_of_file_writer(tmp_path: Path, fast: bool) -> None:
    by_file_writer(tmp_path / "one.mindrecord")
    by_file_writer(tmp_path / "three", 3)
    found = [p for p in sorted(tmp_path.iterdir()) if not p.name.endswith(".db")]
    verdicts = [verify_file(path, fast=fast) for path in found]
    assert [v.defects for v in verdicts] == [[]] * 4
    assert verdicts[0].rows == 40 == sum(v.rows for v in verdicts[1:])


@pytest.mark.parametrize("kind", ["ours", "FileWriter"])
def test_a_renamed_file(
    ours: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ours
    if kind == "FileWriter":
        path = tmp_path / "theirs.mindrecord"
        by_file_writer(path)
    new = tmp_path / "new name.mindrecord"
    data = path.read_bytes()
    path.rename(new)
    path.with_name(path.name + ".db").rename(tmp_path / f"{new.name}.db")
    assert main(["verify", str(new)]) == 1
    told = capsys.readouterr().out
    assert "new name.mindrecord.db is of a file of another name" in told
    assert "--repair cures it" in told and "DB file does not match" in told
    assert main(["verify", str(new), "--repair"]) == 0
    told = capsys.readouterr().out
    assert "repaired: " in told and f"inside it is called {path.name}" in told
    assert new.read_bytes() == data  # the data file is never written
    assert verify_file(new).defects == []


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("damage", ["missing", "no database", "empty", "of other rows", "a cell"])
def test_an_index_that_is_wrong(ours: Path, damage: str, fast: bool) -> None:
    index = ours.with_name(ours.name + ".db")
    before = index.read_bytes()
    if damage == "missing":
        index.unlink()
    elif damage == "no database":
        index.write_bytes(b"x" * 9999)
    elif damage == "empty":
        index.write_bytes(b"")
    else:
        db = sqlite3.connect(index)
        change = "DELETE FROM INDEXES WHERE ROW_ID = 299"
        if damage == "a cell":
            change = "UPDATE INDEXES SET PAGE_OFFSET_BLOB = PAGE_OFFSET_BLOB + 1 WHERE ROW_ID = 7"
        db.execute(change)
        db.commit()
        db.close()
    (found,) = verify_file(ours, fast=fast).defects
    assert str(index) in found and "--repair cures it" in found
    verdict = verify_file(ours, fast=fast, repair=True)
    assert (verdict.defects, len(verdict.repaired), verdict.rows) == ([], 1, ROWS)
    assert index.read_bytes() == before


def test_a_damaged_data_file(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MindSpore is not asked: it may crash. No index is made for such a file."""
    good = ours.read_bytes()
    index = ours.with_name(ours.name + ".db")
    index.unlink()
    for damaged in (good[:-1], good[:20], b"", b"x" * 100, good[:30] + b"\0" + good[31:]):
        ours.write_bytes(damaged)
        assert main(["verify", str(ours), "--repair"]) == 1
        told = capsys.readouterr().out
        assert told.count("DEFECT: ") == 1 and "Traceback" not in told
        assert not index.exists()


@pytest.mark.parametrize("where", ["start", "end"])
def test_a_row_that_no_reader_takes(ours: Path, where: str) -> None:
    """Lengths of rows, and of the arrays in them."""
    data = bytearray(ours.read_bytes())
    page = 1 << 14
    data[page if where == "start" else page + 8] ^= 0x40
    ours.write_bytes(data)
    (found,) = verify_file(ours).defects
    assert "damaged" in found


def test_refusals(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="name the data file, ours.mindrecord$"):
        verify_file(ours.with_name("ours.mindrecord.db"))
    with pytest.raises(UserError, match="there is no file"):
        verify_file(tmp_path / "absent.mindrecord")
    assert main(["verify", str(tmp_path / "absent.mindrecord")]) == 2
    assert "does not exist; name an output folder" in capsys.readouterr().err


def test_a_path_with_chinese_characters_and_spaces(ours: Path, tmp_path: Path) -> None:
    folder = tmp_path / "数据 集"
    folder.mkdir()
    for end in ("", ".db"):
        shutil.move(f"{ours}{end}", folder)
    assert verify_file(folder / ours.name).defects == []
