"""The SQLite index beside a data file: where every row lies.

    INDEXES     one row a row: its number, then page and byte range of its raw and its blob part
    SHARD_NAME  one row: the data file's base name

MindSpore finds the data by that name, which is why a renamed shard cannot be read.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from dataprep.mindrecord.encode import Int64

COLUMNS = (
    "ROW_ID",
    "PAGE_ID_RAW",
    "PAGE_OFFSET_RAW",
    "PAGE_OFFSET_RAW_END",
    "ROW_GROUP_ID",
    "PAGE_ID_BLOB",
    "PAGE_OFFSET_BLOB",
    "PAGE_OFFSET_BLOB_END",
)
BLOCK = 1 << 10  # rows turned into Python integers at a time


def index_path(path: Path) -> Path:
    """The index of a data file."""
    return path.with_name(path.name + ".db")


def encode_index(
    name: str,
    locations: Int64,
    fields: Mapping[str, tuple[str, Sequence[int | float | str]]] | None = None,
) -> bytes:
    """The index of the data file called `name`; `locations` is int64 [rows, 8] as in COLUMNS.

    `fields`: what FileWriter's index repeats of the rows, as field -> (SQL type, value a row); our
    files have none. It is built in memory: there SQLite keeps no journal and leaves its change
    counter and version number zero, so equal rows give equal bytes on every machine.
    """
    fields = fields or {}
    columns = [f"{column} INT NOT NULL" for column in COLUMNS]
    for k, (field, (kind, _)) in enumerate(fields.items()):
        columns += [f"INC_{k} INT", f'"{field}_0" {kind}']
    keys = ["ROW_ID", *(f"INC_{k}" for k in range(len(fields)))]
    zeros = [0] * len(locations)
    repeated = [part for _, values in fields.values() for part in (zeros, values)]
    db = sqlite3.connect(":memory:")
    try:
        db.execute("PRAGMA page_size = 4096")
        db.execute(f"CREATE TABLE INDEXES({', '.join(columns)}, PRIMARY KEY({','.join(keys)}))")
        db.execute("CREATE TABLE SHARD_NAME(NAME TEXT NOT NULL)")
        db.execute("INSERT INTO SHARD_NAME VALUES(?)", (name,))
        insert = f"INSERT INTO INDEXES VALUES({', '.join('?' * len(columns))})"
        for first in range(0, len(locations), BLOCK):
            block = slice(first, first + BLOCK)
            rows = locations[block].T.tolist() + [values[block] for values in repeated]
            db.executemany(insert, zip(*rows))
        db.commit()
        return db.serialize()
    finally:
        db.close()


def read_index(path: Path) -> tuple[str, Int64]:
    """The data file's base name and int64 [rows, 6]: page id, first byte in it, one past the last;
    of every row's raw part, then of its blob part.

    Raises ValueError with the cause when the index is missing or damaged.
    """
    query = (
        "SELECT ROW_ID, PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END, "
        "PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END FROM INDEXES ORDER BY ROW_ID"
    )
    # Tables: what a view makes has no bounds.
    tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
    if not path.is_file():
        raise ValueError("it does not exist")
    # "immutable" spares locks, which a read-only folder refuses.
    uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            if db.execute(tables, ("INDEXES", "SHARD_NAME")).fetchone() != (2,):
                raise ValueError("it lacks the tables INDEXES and SHARD_NAME")
            ((name,),) = db.execute("SELECT NAME FROM SHARD_NAME").fetchall()
            records = np.fromiter(db.execute(query), "i8, i8, i8, i8, i8, i8, i8")
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as e:
        raise ValueError(str(e)) from e
    rows = records.view(np.int64).reshape(-1, 7)
    if not np.array_equal(rows[:, 0], np.arange(len(rows))):
        raise ValueError("its row numbers have gaps")
    return str(name), rows[:, 1:]
