"""Pass B: cleaned -> drop what was decided against -> tokenize -> spill by output shard.

    spill.arrow    record batches, each of one output shard: order, file, row, tokens
    removed.arrow  documents without a token

The result names, for each shard, the batches that belong to it, so that pass C reads its slice of
every spill and nothing else.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.corpus import decide, pass_a
from dataprep.corpus.arrow import read_batches, read_columns, write_arrow
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.plan import Identity, Ints
from dataprep.engine import Task
from dataprep.files import fingerprint
from dataprep.ledger import REMOVED, TaskLedger
from dataprep.tokens import Tokenize

SPILL, REMOVED_FILE = "spill.arrow", "removed.arrow"
# Tokens held before they are sorted by shard and written: 32 MB of int32.
SPILL_TOKENS = 8 << 20

SPILLED = pa.schema(
    [
        ("order", pa.uint64()),
        ("file", pa.int32()),
        ("row", pa.int64()),
        ("tokens", pa.large_list(pa.int32())),
    ]
)

Slices = dict[int, list[list[int]]]  # shard -> [[batch, documents, tokens], ...]


@dataclass(frozen=True)
class TokenizeAndSpill:
    """Work of pass B for one task of pass A."""

    cleaned: Path
    decisions: Path
    source: str
    identity: Identity
    tokenize: Tokenize
    borders: list[int]
    """First place of each train shard but the first; the eval shard comes after the last."""

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        ledger = TaskLedger(self.source)
        slices: Slices = {}
        batches = self._by_shard(self.tokenize(self._kept(), ledger), slices, ledger)
        spill = write_arrow(folder / SPILL, SPILLED, batches)
        removed = write_arrow(folder / REMOVED_FILE, REMOVED, ledger.removed)
        return {"ledger": ledger.ledger.to_json(), "slices": slices}, [spill, removed]

    def _kept(self) -> Iterator[pa.RecordBatch]:
        """Documents that stay, with their side, place and number of copies."""
        decisions = read_columns(self.decisions, ["fate", "order", "copies"]).combine_chunks()
        start = 0
        for batch in read_batches(self.cleaned):
            for name in decisions.column_names:
                column = decisions[name].chunk(0).slice(start, batch.num_rows)
                batch = batch.append_column(name, column)
            start += batch.num_rows
            kept = batch.filter(pc.greater(batch.column("copies"), 0))
            if kept.num_rows:
                yield kept

    def _by_shard(
        self, batches: Iterator[pa.RecordBatch], slices: Slices, ledger: TaskLedger
    ) -> Iterator[pa.RecordBatch]:
        """Tokenized batches in, spill batches of one shard each out; fills `slices`."""
        written = 0
        borders = np.array(self.borders, np.uint64)
        for table in _gather(batches):
            order, doc = decide.repeat(np.asarray(table["order"]), np.asarray(table["copies"]))
            files, rows = self.identity(np.asarray(table["split"]), np.asarray(table["row"]))
            files, rows = files[doc], rows[doc]
            held_out = np.asarray(table["fate"])[doc] == decide.EVAL
            shard = np.searchsorted(borders, order, "right")
            shard[held_out] = len(borders) + 1
            tokens = table["tokens"].combine_chunks()
            repeated = -len(tokens.values)
            for s, picks in _runs(shard, np.lexsort((rows, files, order, shard))):
                chosen = tokens.take(pa.array(doc[picks]))
                slices.setdefault(s, []).append([written, len(picks), len(chosen.values)])
                written += 1
                repeated += len(chosen.values)
                columns = [order[picks], files[picks].astype(np.int32), rows[picks]]
                arrays = [*(pa.array(column) for column in columns), chosen]
                yield pa.RecordBatch.from_arrays(arrays, schema=SPILLED)
            ledger.count("tokens.repeated", repeated)


def _gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches as tables of about SPILL_TOKENS tokens: what is sorted at a time."""
    held: list[pa.RecordBatch] = []
    tokens = 0
    for batch in batches:
        held.append(batch)
        tokens += len(batch.column("tokens").values)
        if tokens >= SPILL_TOKENS:
            yield pa.Table.from_batches(held)
            held, tokens = [], 0
    if tokens:
        yield pa.Table.from_batches(held)


def _runs(key: Ints, by_key: Ints) -> Iterator[tuple[int, Ints]]:
    """(value, indices) of each run of equal values in a sorted order."""
    values = key[by_key]
    borders = np.flatnonzero(np.diff(values)) + 1
    for picks in np.split(by_key, borders):
        yield int(key[picks[0]]), picks


def tasks(
    config: BuildConfig, sha256: str, done: list[Task], judged: Task, decided: dict[str, Any]
) -> list[Task]:
    """One task for each task of pass A.

    `sha256`: of the tokenizer's file; `judged`, `decided`: the task between and its result.
    """
    assert isinstance(judged.work, decide.Decide)
    identity = judged.work.identity
    out = []
    for i, before in enumerate(done):
        work = before.work
        assert isinstance(work, pass_a.ReadAndClean)
        indices = np.array(work.indices)
        out.append(
            Task(
                name=f"tokenize what is left of: {before.name}",
                folder=config.work / "b" / f"{i:05d}",
                depends_on={
                    "pass A": before.fingerprint,
                    "decisions": decided["sha256"][i],
                    "shards": fingerprint(decided["borders"]),
                    "files": identity.files[indices].tolist(),
                    "row bases": identity.bases[indices].tolist(),
                    "tokenizer": {**asdict(config.tokenizer), "sha256": sha256},
                },
                work=TokenizeAndSpill(
                    cleaned=before.folder / pass_a.CLEANED,
                    decisions=judged.folder / f"{i:05d}.arrow",
                    source=work.splits[0].file.source,
                    identity=identity,
                    tokenize=config.tokenizer,
                    borders=decided["borders"],
                ),
                size=before.size,
            )
        )
    return out
