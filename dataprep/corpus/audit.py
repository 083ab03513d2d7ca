"""audit/removed/*.parquet: every removed document, by which rule, and for duplicates of what."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.corpus import cap, decide, pass_a, pass_b
from dataprep.corpus.arrow import read_array, read_columns
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.pass_c import file_column
from dataprep.corpus.plan import Identity, Ints, Plan
from dataprep.engine import Task
from dataprep.files import atomic_path
from dataprep.ledger import REMOVED
from dataprep.storage import Place, find, remove_many

SCHEMA = pa.schema(
    [
        ("file", pa.dictionary(pa.int32(), pa.string())),
        ("row", pa.int64()),
        ("source", pa.string()),
        ("stage", pa.string()),
        ("rule", pa.string()),
        ("value", pa.float64()),
        ("threshold", pa.float64()),
        ("duplicate_of", pa.string()),  # FILE:ROW of one that dedup kept
        ("similarity", pa.float64()),
    ]
)


def write_removed(
    folder: Place,
    config: BuildConfig,
    plan: Plan,
    decided: Task,
    starts: Sequence[int],
    read: Sequence[Task],
    tokenized: Sequence[Task],
    capped: dict[str, Any] | None,
) -> None:
    """Writes one file for each task of pass A that removed something, and at least one.

    `starts`: number in the run of each task's first document, and the total; `capped`: what
    max_tokens has cut.
    """
    work = decided.work
    assert isinstance(work, decide.Decide)
    files = [file.path for file in plan.files]
    owners = _Owners(work.identity, read, starts, files)
    limits = np.array([np.nan if f.max_tokens is None else f.max_tokens for f in plan.files])
    cut = cap.Cut(**capped["cut"]) if capped and capped["dropped"] else None

    def removed(i: int, before: Task, after: Task) -> pa.Table:
        ours = read_columns(before.folder / pass_a.REMOVED_FILE, REMOVED.names)
        late = read_columns(after.folder / pass_b.REMOVED_FILE, REMOVED.names)
        parts = [
            by_rule(pa.concat_tables([ours, late]), work.identity, work.sources[i], files),
            _decided(decided.folder, i, owners, work, config.dedup.threshold),
        ]
        if cut:
            train = read_array(after.folder / pass_b.TRAIN)
            parts.append(_cut(train, cut, limits, config.max_tokens, work.sources[i], files))
        return pa.concat_tables(parts)

    write_tables(folder, (removed(i, *pair) for i, pair in enumerate(zip(read, tokenized))))


def write_tables(folder: Place, tables: Iterable[pa.Table]) -> None:
    """Writes a file for each table that has rows, and at least one; nothing else stays in `folder`.

    `tables`: of SCHEMA, at least one, each made when the one before is written.
    """
    remove_many(find(folder))  # of an earlier attempt, whose tasks may have been others
    written, empty = 0, None
    for i, table in enumerate(tables):
        if table.num_rows:
            _write(folder, i, table)
            written += 1
        else:
            empty = table
    if not written:
        assert empty is not None
        _write(folder, i, empty)


def _write(folder: Place, number: int, table: pa.Table) -> None:
    with atomic_path(folder / f"part-{number:05d}.parquet") as tmp:
        pq.write_table(table.unify_dictionaries(), tmp, compression="zstd")


def by_rule(removed: pa.Table, identity: Identity, source: str, files: Sequence[str]) -> pa.Table:
    """What stages have removed (columns of ledger.REMOVED), as SCHEMA."""
    file, row = identity(np.asarray(removed["split"]), np.asarray(removed["row"]))
    n = removed.num_rows
    columns = [
        file_column(file, files),
        pa.array(row),
        pa.repeat(source, n),
        *(removed[name] for name in ("stage", "rule", "value", "threshold")),
        pa.nulls(n, pa.string()),
        pa.nulls(n, pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _decided(
    folder: Place, number: int, owners: "_Owners", work: decide.Decide, threshold: float
) -> pa.Table:
    """Duplicates, with what they repeat, and documents left out by their source's weight."""
    names = ["fate", "weight", "duplicate_of", "similarity"]
    found = read_columns(folder / f"{number:05d}.arrow", names)
    every = np.asarray(found["fate"])
    out = np.flatnonzero(every >= decide.EXACT)
    fate = every[out]
    file, row = owners.of(owners.starts[number] + out)
    kept = np.asarray(found["duplicate_of"])[out]
    similarity = pa.array(np.asarray(found["similarity"])[out], from_pandas=True)  # NaN: none
    weight = np.asarray(found["weight"])[out]
    thinned = fate == decide.THINNED
    rules = [decide.RULES[int(value)] for value in fate]
    limits = {decide.EXACT: 1.0, decide.NEAR: threshold, decide.THINNED: np.nan}
    columns = [
        file_column(file, owners.files),
        pa.array(row),
        pa.repeat(work.sources[number], len(out)),
        pa.array([stage for stage, _ in rules], pa.string()),
        pa.array([rule for _, rule in rules], pa.string()),
        pa.array(np.where(thinned, weight, np.asarray(found["similarity"])[out])),
        pa.array([limits[int(value)] for value in fate], pa.float64()),
        pa.array(owners.names(kept), pa.string()),
        similarity,
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _cut(
    train: Ints,
    cut: cap.Cut,
    limits: npt.NDArray[np.float64],
    limit: int | None,
    source: str,
    files: Sequence[str],
) -> pa.Table:
    """Documents beyond a limit on tokens, with their tokens; `limits`: of each file's entry."""
    file, row, tokens, copies = train[:, ~cut(train[0], train[1])]
    n = len(file)
    whole = np.nan if limit is None else limit
    stage, rule = cap.RULE
    columns = [
        file_column(file, files),
        pa.array(row),
        pa.repeat(source, n),
        pa.repeat(stage, n),
        pa.repeat(rule, n),
        pa.array((tokens * copies).astype(np.float64)),
        pa.array(np.where(cut.by_entry(file, row), whole, limits[file])),
        pa.nulls(n, pa.string()),
        pa.nulls(n, pa.float64()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


class _Owners:
    """(file, row) of documents by their number in the run."""

    def __init__(
        self, identity: Identity, read: Sequence[Task], starts: Sequence[int], files: Sequence[str]
    ) -> None:
        self.starts, self.files = starts, files
        folders = [task.folder for task in read]
        _, self._file, self._row = decide.document_ids(folders, identity)

    def of(self, documents: Ints) -> tuple[Ints, Ints]:
        return self._file[documents], self._row[documents]

    def names(self, documents: Ints) -> list[str | None]:
        """FILE:ROW of each; None for -1."""
        pairs: list[Any] = list(zip(*(part.tolist() for part in self.of(documents))))
        named = [f"{self.files[f]}:{r}" for f, r in pairs]
        return [name if d >= 0 else None for name, d in zip(named, documents.tolist())]
