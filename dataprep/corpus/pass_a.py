"""Pass A: split -> read -> clean -> sign.

cleaned.arrow  documents that passed (split, row, text)
ids.npy        int64[2, d]    split and row of each
hashes.npy     uint64[d, 2]   hash of each cleaned text
keys.npy       uint64[b, d]   band keys of its MinHash signature
shingled.npy   bool[d]        it has shingles at all; without, it is nobody's near-duplicate
removed.arrow  what was removed, and why
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep import dedup
from dataprep.batch import DOCUMENTS, text_buffers
from dataprep.clean import Clean
from dataprep.corpus.arrow import Spool, write_arrow
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.plan import Plan
from dataprep.dedup.config import Dedup
from dataprep.engine import Task
from dataprep.ledger import REMOVED, TaskLedger
from dataprep.readers import Read, Split, check_unchanged
from dataprep.storage import Place

CLEANED, IDS, HASHES, KEYS, SHINGLED, REMOVED_FILE = (
    "cleaned.arrow",
    "ids.npy",
    "hashes.npy",
    "keys.npy",
    "shingled.npy",
    "removed.arrow",
)


@dataclass(frozen=True)
class ReadAndClean:
    """Work of pass A: a few splits of one source."""

    splits: list[Split]
    indices: list[int]
    read: Read
    clean: Clean
    dedup: Dedup

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        ledger = TaskLedger(self.splits[0].file.source)
        with _Signer(self.dedup, folder) as signer:
            cleaned = write_arrow(folder / CLEANED, DOCUMENTS, signer(self._documents(ledger)))
            signed = signer.save(folder)
        removed = write_arrow(folder / REMOVED_FILE, REMOVED, ledger.removed)
        result = {
            "documents": signer.documents,
            "records": ledger.records,
            "ledger": ledger.ledger.to_json(),
            "warnings": ledger.warnings,
        }
        return result, [cleaned, removed, *signed]

    def _documents(self, ledger: TaskLedger) -> Iterator[pa.RecordBatch]:
        for split, index in zip(self.splits, self.indices):
            batches = self.read(split, index, ledger)
            yield from self.clean(batches, ledger, split.file.language)
            check_unchanged(split.file)


class _Signer(ExitStack):
    """Passes batches through and keeps, on disk, what dedup needs to know of each document."""

    def __init__(self, config: Dedup, folder: Place) -> None:
        super().__init__()
        self._config = config
        self._bands, self._rows = config.bands() if config.method == "minhash" else (0, 0)
        self._a, self._b = dedup.permutations(config.num_perm)
        self._ids = self.enter_context(Spool(folder, np.int64, 2))
        self._hashes = self.enter_context(Spool(folder, np.uint64, None, (2,)))
        self._keys = self.enter_context(Spool(folder, np.uint64, self._bands))
        self._shingled = self.enter_context(Spool(folder, bool, None))
        self.documents = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            data, offsets = text_buffers(batch.column("text"))
            self._ids.add(np.stack([np.asarray(batch["split"]), np.asarray(batch["row"])]))
            if self._config.method != "none":
                self._hashes.add(dedup.text_hashes(data, offsets))
            if self._bands:
                shingles, starts = dedup.shingle(data, offsets, self._config.ngram)
                signatures = dedup.signatures(shingles, starts, self._a, self._b)
                self._keys.add(dedup.band_keys(signatures, self._bands, self._rows))
                self._shingled.add(np.diff(starts) >= self._config.min_shingles)
            self.documents += batch.num_rows
            yield batch

    def save(self, folder: Place) -> list[Place]:
        """Writes the arrays; returns their paths."""
        return [
            self._ids.save(folder / IDS),
            self._hashes.save(folder / HASHES),
            self._keys.save(folder / KEYS),
            self._shingled.save(folder / SHINGLED),
        ]


def tasks(config: BuildConfig, plan: Plan) -> list[Task]:
    """The tasks of pass A, in input order."""
    out = []
    for number, indices in enumerate(plan.groups):
        splits = [plan.splits[i] for i in indices]
        more = f" and {len(splits) - 1} more" if len(splits) > 1 else ""
        out.append(
            Task(
                name=f"read {splits[0].file.path} from {splits[0].start}{more}",
                folder=config.work / "a" / f"{number:05d}",
                depends_on={
                    "inputs": {f"{s.file.path} from {s.start}": _reading(s) for s in splits},
                    "splits": indices,
                    "read": asdict(config.read),
                    "clean": asdict(config.clean),
                    "dedup": _signing(config.dedup),
                },
                work=ReadAndClean(splits, indices, config.read, config.clean, config.dedup),
                size=sum(split.size for split in splits),
            )
        )
    return out


def _reading(split: Split) -> dict[str, Any]:
    """What reading a split depends on: not what acts later."""
    told = asdict(split)
    for key in ("weight", "max_tokens", "entry"):
        del told["file"][key]
    return told


def _signing(config: Dedup) -> dict[str, Any]:
    """The part of the dedup config that pass A depends on: not the threshold itself."""
    bands = config.bands() if config.method == "minhash" else None
    return {
        "method": config.method,
        "ngram": config.ngram,
        "num_perm": config.num_perm,
        "bands": bands,
    }
