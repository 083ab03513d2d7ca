"""Pass B: cleaned -> drop what was decided against -> tokenize -> spill by output shard.

    spill.arrow    tokens, by output shard (exchange.py)
    index.npy      int64[n, 5]   its index: the Ranges of each shard
    train.npy      int64[4, d]   file, row, tokens and copies of each train document
    removed.arrow  documents without a token

By the index, pass C reads its slice of every spill and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.corpus import decide, exchange, pass_a
from dataprep.corpus.arrow import read_batches, read_columns, write_array, write_arrow
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.exchange import TOKENS, Copies
from dataprep.corpus.plan import Identity, Ints
from dataprep.corpus.ranges import Range
from dataprep.engine import Task
from dataprep.files import atomic_path, fingerprint
from dataprep.ledger import REMOVED, TaskLedger
from dataprep.manifest import TokenizerInfo
from dataprep.storage import Place
from dataprep.tokens import Tokenize

SPILL, INDEX, TRAIN, REMOVED_FILE = "spill.arrow", "index.npy", "train.npy", "removed.arrow"


@dataclass(frozen=True)
class TokenizeAndSpill:
    """Work of pass B for one task of pass A."""

    cleaned: Place
    decisions: Place
    source: str
    identity: Identity
    tokenize: Tokenize
    borders: list[int]
    """First place of each train shard but the first; the eval shard comes after the last."""

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        ledger = TaskLedger(self.source)
        borders = np.array(self.borders, np.uint64)
        train = [np.zeros((4, 0), np.int64)]

        def address(table: pa.Table, length: Ints) -> Copies:
            order, copies = np.asarray(table["order"]), np.asarray(table["copies"])
            file, row = self.identity(np.asarray(table["split"]), np.asarray(table["row"]))
            held_out = np.asarray(table["fate"]) == decide.EVAL
            train.append(np.stack([file, row, length, copies])[:, ~held_out])
            place, doc = decide.repeat(order, copies)
            ledger.count("tokens.repeated", length[doc].sum() - length.sum())
            shard = np.searchsorted(borders, place, "right")
            shard[held_out[doc]] = len(borders) + 1
            return Copies(doc, shard, place, file[doc], row[doc])

        with atomic_path(folder / SPILL, durable=False) as tmp:
            batches = self.tokenize(self._kept(), ledger)
            index = TOKENS.spill(tmp, batches, address, lambda b: pc.sum(b["copies"]).as_py())
            index = exchange.sort(tmp, index)
        outputs = [
            folder / SPILL,
            write_array(folder / INDEX, np.array(index, np.int64).reshape(-1, len(Range._fields))),
            write_array(folder / TRAIN, np.concatenate(train, axis=1)),
            write_arrow(folder / REMOVED_FILE, REMOVED, ledger.removed),
        ]
        return {"ledger": ledger.ledger.to_json(), "ranges": len(index)}, outputs

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


def tasks(
    config: BuildConfig,
    info: TokenizerInfo,
    done: list[Task],
    judged: Task,
    decided: dict[str, Any],
) -> list[Task]:
    """One task for each task of pass A. `judged`, `decided`: the task between and its result."""
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
                    "tokenizer": {
                        "sha256": info.sha256,
                        "bos_id": info.bos_id if config.tokenizer.add_bos else None,
                        "eos_id": info.eos_id if config.tokenizer.add_eos else None,
                    },
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
