"""One MindRecord file outside of an output folder, ours or FileWriter's.

There is no manifest, so nothing says what the rows should be; what can be proved is that the file
is whole: header, pages and lengths agree, the index is the one that follows from the data, and two
readers, MindSpore's and ours, give the same rows. MindSpore is asked last, as it may crash on a
data file that does not match its index.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.errors import UserError
from dataprep.files import atomic_path
from dataprep.mindrecord import ShardReader, rebuild_index
from dataprep.mindrecord.index import index_path
from dataprep.mindrecord.reader import read_shard_header
from dataprep.verify.files import REPAIR
from dataprep.verify.rows import Unreadable, by_mindspore, by_ours, mindspore_version
from dataprep.verify.verdict import Progress, Steps, Verdict

Row = dict[str, Any]


def verify_file(
    path: Path, *, fast: bool = False, repair: bool = False, progress: Progress | None = None
) -> Verdict:
    """Checks one data file and its index; `fast`: without MindSpore.

    repair: a missing or wrong index is made again, under the file's present name.
    Raises UserError when there is no such file, it is an index, MindSpore, the judge, is not
    installed, or the index cannot be written.
    """
    start = time.monotonic()
    if path.name.endswith(".db"):
        raise UserError(f"{path} is an index; name the data file, {path.name[:-3]}")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    verdict = Verdict(shards=1, reader="mindprep's own reader")
    if fast:
        verdict.notes.append("--fast: MindSpore's reader was not asked")
    else:
        verdict.reader = f"MindSpore {mindspore_version()} and mindprep's own"
    verdict.notes.append("no manifest says what the rows should hold: only the file was checked")
    steps = Steps(path.stat().st_size, progress)
    steps.begin(path.stat().st_size)
    try:
        if _check_index(path, repair, verdict):
            steps.hashed(1.0)
            _check_rows(path, fast, verdict, steps)
    except (UserError, Unreadable) as e:
        verdict.defects.append(str(e) if isinstance(e, UserError) else f"{path} {e}")
    steps.end()
    verdict.unread = int(bool(verdict.defects))
    verdict.seconds = time.monotonic() - start
    return verdict


def _check_index(path: Path, repair: bool, verdict: Verdict) -> bool:
    """True if the index is right, or was made so. Raises UserError when the data file is wrong."""
    header = read_shard_header(path)
    index = index_path(path)
    content = rebuild_index(path)
    wrong = _difference(index, content)
    if wrong and repair:
        with atomic_path(index) as tmp:
            tmp.write_bytes(content)
        verdict.repaired.append(f"{index}: made again from its data file ({wrong})")
    elif wrong:
        verdict.defects.append(
            f"{index} {wrong}; MindSpore would say that the DB file does not match; {REPAIR}"
        )
        return False
    if header.name != path.name:
        verdict.notes.append(
            f"{path} was renamed, inside it is called {header.name}: give it to MindDataset in a "
            "list, as one string MindSpore looks for that name"
        )
    return True


def _difference(index: Path, content: bytes) -> str:
    """How an index differs from the one that its data file asks for, or "".

    FileWriter's has other bytes than ours, so what they say is compared.
    """
    if not index.is_file():
        return "is missing"
    try:
        if index.read_bytes() == content:
            return ""
        uri = index.resolve().as_uri() + "?mode=ro&immutable=1"
        with (
            closing(sqlite3.connect(uri, uri=True)) as have,
            closing(sqlite3.connect(":memory:")) as want,
        ):
            want.deserialize(content)
            for query, what in (
                ("SELECT * FROM SHARD_NAME", "is of a file of another name"),
                ("SELECT * FROM INDEXES ORDER BY ROW_ID", "does not describe its data file"),
            ):
                a, b = have.execute(query), want.execute(query)
                if [c[0] for c in a.description] != [c[0] for c in b.description]:
                    return what
                if any(_numbers(x) != _numbers(y) for x, y in zip_longest(a, b)):
                    return what
    except (sqlite3.Error, OSError, OverflowError, UnicodeDecodeError) as e:
        return f"is damaged ({e})"
    return ""


def _numbers(row: tuple[Any, ...] | None) -> list[Any]:
    """A row of an index; FileWriter puts a float of a float32 field there in more ways than one."""
    return [float(np.float32(v)) if isinstance(v, float) else v for v in row or ()]


def _check_rows(path: Path, fast: bool, verdict: Verdict, steps: Steps) -> None:
    """Reads every row, by ours and, unless `fast`, by MindSpore. Raises UserError or Unreadable."""
    with ShardReader(path) as reader:
        rows = len(reader)
        plain = bool(reader.columns) and reader.schema.keys() == reader.columns.keys()
        columns = dict(reader.columns)
        ours: Iterator[Row] = (
            by_ours(path, columns) if plain else (reader.row(i) for i in range(rows))
        )
        theirs: Iterator[Row] | None = None
        if not fast:
            theirs = by_mindspore(path, columns) if plain else _rows_by_mindspore(path)
        for one in ours:
            n = len(next(iter(one.values()))) if plain else 1
            other = next(theirs, None) if theirs else one
            if other is None:
                verdict.defects.append(f"{path}: MindSpore ends before row {verdict.rows:,}")
                return
            for name in sorted({*one, *other}):
                if not _equal(one.get(name), other.get(name)):
                    verdict.defects.append(
                        f"{path}: MindSpore and mindprep read {name} differently, in rows from "
                        f"{verdict.rows:,} on"
                    )
                    return
            verdict.rows += n
            steps.read(verdict.rows / rows)
        if theirs and next(theirs, None) is not None:
            verdict.defects.append(f"{path}: MindSpore reads more than the {rows:,} rows there are")
    verdict.bytes = path.stat().st_size


def _rows_by_mindspore(path: Path) -> Iterator[Row]:
    """Rows of any fields, one by one. Raises Unreadable."""
    import mindspore.dataset as ds

    try:
        data = ds.MindDataset([str(path)], shuffle=False, num_parallel_workers=1)
        yield from data.create_dict_iterator(num_epochs=1, output_numpy=True)
    except (RuntimeError, ValueError, OSError) as e:
        raise Unreadable(f"cannot be read by MindSpore: {' '.join(str(e).split())[:300]}") from e


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two readers mean the same: MindSpore gives numbers, text and bytes as arrays."""
    if ours is None or theirs is None:
        return False
    if isinstance(ours, bytes):
        return ours == np.asarray(theirs).tobytes()
    if isinstance(ours, str):
        return ours == str(theirs)
    theirs = np.asarray(theirs)
    if isinstance(ours, int):
        return theirs.shape == () and ours == theirs
    ours = np.asarray(ours, theirs.dtype if isinstance(ours, float) else None)  # float32: rounded
    return (
        ours.dtype == theirs.dtype
        and ours.shape == theirs.shape
        and ours.tobytes() == theirs.tobytes()  # so that NaN equals NaN
    )
