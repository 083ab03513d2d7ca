"""The SQLite index beside a data file: where every row lies.

    INDEXES     one row a row: its number, then page and byte range of its raw and its blob part
    SHARD_NAME  one row: the data file's base name

MindSpore finds the data by that name, which is why a renamed shard cannot be read.
"""

import sqlite3
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


def encode_index(name: str, locations: Int64) -> bytes:
    """The index of the data file called `name`; `locations` is int64 [rows, 8] as in COLUMNS.

    It is built in memory: there SQLite keeps no journal and leaves its change counter and version
    number zero, so equal rows give equal bytes on every machine.
    """
    columns = ", ".join(f"{column} INT NOT NULL" for column in COLUMNS)
    db = sqlite3.connect(":memory:")
    try:
        db.execute("PRAGMA page_size = 4096")
        db.execute(f"CREATE TABLE INDEXES({columns}, PRIMARY KEY(ROW_ID))")
        db.execute("CREATE TABLE SHARD_NAME(NAME TEXT NOT NULL)")
        db.execute("INSERT INTO SHARD_NAME VALUES(?)", (name,))
        insert = f"INSERT INTO INDEXES VALUES({', '.join('?' * len(COLUMNS))})"
        for first in range(0, len(locations), BLOCK):
            db.executemany(insert, locations[first : first + BLOCK].tolist())
        db.commit()
        return db.serialize()
    finally:
        db.close()


def read_index(path: Path) -> tuple[str, Int64]:
    """The data file's base name and int64 [rows, 3]: page id, first byte in it, one past the last.

    Raises ValueError with the cause when the index is missing or damaged.
    """
    query = (
        "SELECT ROW_ID, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END FROM INDEXES "
        "ORDER BY ROW_ID"
    )
    if not path.is_file():
        raise ValueError("it does not exist")
    # "immutable" spares locks, which a read-only folder refuses.
    db = sqlite3.connect(path.resolve().as_uri() + "?mode=ro&immutable=1", uri=True)
    try:
        ((name,),) = db.execute("SELECT NAME FROM SHARD_NAME").fetchall()
        records = np.fromiter(db.execute(query), "i8, i8, i8, i8")
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as e:
        raise ValueError(str(e)) from e
    finally:
        db.close()
    rows = records.view(np.int64).reshape(-1, 4)
    if not np.array_equal(rows[:, 0], np.arange(len(rows))):
        raise ValueError("its row numbers have gaps")
    return str(name), rows[:, 1:]
