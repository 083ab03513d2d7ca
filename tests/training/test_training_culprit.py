"""What a step was made of: rows and documents, by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.config import Folder
from training.culprit import LONGEST, describe, listed
from training.data import Loader


def audit(folder: Path, shard: int = 0) -> Path:
    return sorted((folder / "audit" / "rows").iterdir())[shard]


def rewrite(path: Path, file: str) -> None:
    """Names every source file `file`."""
    table = pq.read_table(path)
    at = table.column_names.index("file")
    pq.write_table(table.set_column(at, "file", pa.array([file] * len(table))), path)


def test_names_by_eye(packed: Callable[..., Path]) -> None:
    """Document d is row d // 2 of file d % 2; shard s has documents s, s + 2, s + 4 in turn."""
    folder = packed([[1] * 3, [2] * 8, [3] * 5, [4] * 4, [5] * 6, [6] * 4])
    first, second = (f"{folder}/train/train-0000{i}-of-00002.mindrecord" for i in (0, 1))
    loader = Loader(folder, batch_size=2, reader="direct")
    assert describe(loader, 0, np.array([0, 1])) == (
        f"rows {first} row 0, {first} row 1; documents in them: 0.jsonl row 0, 0.jsonl row 1, "
        "0.jsonl row 2"
    )
    assert describe(loader, 5, np.array([1, 2])) == (
        f"rows {first} row 1, {second} row 0; documents in them: 0.jsonl row 2, 1.jsonl row 0"
    )


def test_every_position_of_a_shuffled_mix(numbered: Callable[..., Path]) -> None:
    """Row i of a folder is [first + i] * 4, so the batch itself says which rows it has."""
    folders = [numbered(7, name="a"), numbered(5, first=7, name="b", vocab_size=12)]
    numbered(7, name="a", vocab_size=12)
    mix = [Folder(str(folders[0])), Folder(str(folders[1]), 2.0)]
    loader = Loader(mix, batch_size=4, seed=3, reader="direct")
    for _ in range(3 * loader.rows // 4):
        now = loader.epoch
        ids = next(loader)["input_ids"][:, 0].tolist()
        told = describe(loader, now.number, now.position + np.arange(4))
        rows = told.removeprefix("rows ").partition(";")[0].split(", ")
        expected = []
        for i in ids:
            folder, row, half = (folders[0], i, 4) if i < 7 else (folders[1], i - 7, 3)
            name = f"train-0000{row // half}-of-00002.mindrecord row {row % half}"
            expected.append(f"{folder}/train/{name}")
        assert rows == expected
        assert 1 <= told.count(".jsonl row") <= 4


def test_the_rest_is_counted(packed: Callable[..., Path]) -> None:
    folder = packed([[i + 1] * 4 for i in range(60)], seq_length=8, shards=1)
    loader = Loader(folder, batch_size=20, reader="direct")
    rows, documents = describe(loader, 0, np.arange(20)).split("; documents in them: ")
    assert rows.endswith("row 7 and 12 more") and rows.count(" row ") == 8
    assert documents.endswith("1.jsonl row 3 and 32 more") and documents.count(" row ") == 8


def test_names_that_are_hostile(packed: Callable[..., Path]) -> None:
    folder = packed([[1] * 8], shards=1)
    loader = Loader(folder, batch_size=1, reader="direct")
    rewrite(audit(folder), "a\x1b[31m\n" + "x" * 5000)
    told = describe(loader, 0, np.array([0]))
    assert told.isprintable() and len(told) < LONGEST + len(str(folder)) + 200
    assert told.endswith("x row 0")
    rewrite(audit(folder), "\x1b]0;\u202ename")
    assert describe(loader, 0, np.array([0])).endswith(": \\x1b]0;\\u202ename row 0")


def test_without_an_audit_the_rows_are_told(packed: Callable[..., Path]) -> None:
    folder = packed([[1] * 8, [2] * 8, [3] * 8, [4] * 8])
    loader = Loader(folder, batch_size=4, reader="direct")
    audit(folder, 1).unlink()
    told = describe(loader, 0, np.arange(4))
    assert "train-00001-of-00002.mindrecord row 1; documents in them: 0.jsonl row 0, " in told
    assert "0.jsonl row 1; documents are not known where the audit cannot be read: " in told
    assert f"{folder}/audit/rows/train-00001-of-00002.parquet" in told


@pytest.mark.parametrize("damage", ["cut", "other", "rows", "columns"])
def test_an_audit_that_is_damaged_is_told(packed: Callable[..., Path], damage: str) -> None:
    folder = packed([[1] * 8], shards=1)
    loader = Loader(folder, batch_size=1, reader="direct")
    path = audit(folder)
    table = pq.read_table(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "other":
        path.write_bytes(b"no parquet\n")
    else:
        kept = table.slice(0, 0) if damage == "rows" else table.drop_columns(["file"])
        pq.write_table(kept, path)
    told = describe(loader, 0, np.array([0]))
    assert "row 0; documents are not known where the audit cannot be read: " in told
    assert told.isprintable() and "documents in them" not in told


def test_listed() -> None:
    assert listed([]) == ""
    assert listed(list("abcdefgh")) == "a, b, c, d, e, f, g, h"
    assert listed([*"abcdefgh", *"ij"] * 600) == "a, b, c, d, e, f, g, h and 5,992 more"
    assert listed(["x" * 201]) == "…" + "x" * 200
