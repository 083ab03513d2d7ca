"""Which rows, and which documents in them, a step was made of: for a step that went wrong.

    rows out/train/train-00000-of-00002.mindrecord row 6, … row 2 and 24 more; documents in them:
    web.jsonl row 17, zh.jsonl row 3 and 90 more

Rows come from the loader's order; documents, as file and row of the input, from audit/rows of the
shards. This is called when a step has failed, so an audit that cannot be read is told, not raised.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.errors import printable
from training.data import Loader
from training.folders import Split
from training.order import Int64

NAMED = 8  # of rows, and of documents; of those behind, the number
LONGEST = 200  # characters of a name
COLUMNS = ["row", "start", "file", "source_row"]


def describe(loader: Loader, epoch: int, positions: Int64) -> str:
    """One line that names the rows at ascending positions of an epoch, and their documents."""
    folders, rows = loader.mix.rows_at(epoch, positions)
    documents: list[list[str]] = [[] for _ in positions]
    unread: list[str] = []
    for f, split in enumerate(loader.splits):
        ours = np.flatnonzero(folders == f)
        shards = np.searchsorted(split.starts, rows[ours], "right") - 1
        for shard in np.unique(shards).tolist():
            some = ours[shards == shard]
            try:
                found = _documents(split, shard, rows[some] - split.starts[shard])
            except _UNREADABLE as e:
                unread.append(f"{_audit(split, shard)} ({e})")
                continue
            for i, names in zip(some.tolist(), found):
                documents[i] = names
    named = [loader.splits[f].named(row) for f, row in zip(folders.tolist(), rows.tolist())]
    told = f"rows {listed(named)}"
    distinct = list(dict.fromkeys(name for names in documents for name in names))
    if distinct:
        told += f"; documents in them: {listed(distinct)}"
    if unread:
        told += f"; documents are not known where the audit cannot be read: {listed(unread)}"
    return told


def listed(names: Sequence[str]) -> str:
    """The first few, fit for a terminal, and how many more there are."""
    shown = [printable(name) for name in names[:NAMED]]
    shown = [name if len(name) <= LONGEST else f"…{name[-LONGEST:]}" for name in shown]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


_UNREADABLE = (OSError, ValueError, KeyError, pa.ArrowException)


def _documents(split: Split, shard: int, rows: Int64) -> list[list[str]]:
    """`FILE row I` of the documents of each of these rows of a shard, in their order.

    Raises one of _UNREADABLE when the audit does not say it.
    """
    asked = pc.field("row").isin(np.unique(rows).tolist())
    pieces = pq.read_table(_audit(split, shard), columns=COLUMNS, filters=asked)
    of: dict[int, list[str]] = {}
    for piece in pieces.sort_by("start").to_pylist():
        of.setdefault(piece["row"], []).append(f"{piece['file']} row {piece['source_row']}")
    missing = [row for row in rows.tolist() if row not in of]
    if missing:
        raise ValueError(f"it has nothing on row {missing[0]}")
    return [of[row] for row in rows.tolist()]


def _audit(split: Split, shard: int) -> Path:
    """Where the documents of a shard's rows are written down."""
    name = Path(split.manifest.splits[split.name][shard].path).stem
    return split.out_dir / "audit" / "rows" / f"{name}.parquet"
