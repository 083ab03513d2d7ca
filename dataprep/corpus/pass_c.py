"""Pass C: one output shard <- its slice of every spill -> order -> pack -> MindRecord.

OUT.building/train/train-00000-of-00004.mindrecord (+ .db)
OUT.building/audit/rows/train-00000-of-00004.parquet    which documents stand in which row
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from dataprep.corpus.arrow import open_arrow
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.pass_b import SPILL
from dataprep.corpus.plan import Plan
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.files import atomic_path, fingerprint
from dataprep.ledger import Ledger
from dataprep.manifest import Shard
from dataprep.mindrecord import Layout, ShardWriter, fit_layout
from dataprep.pack import Pack, Pieces, make_rows

BLOCK_ROWS = 256  # rows made and written at a time

ROWS = pa.schema(
    [
        ("shard", pa.string()),
        ("row", pa.int64()),
        ("start", pa.int32()),  # first slot in the row
        ("length", pa.int32()),
        ("file", pa.dictionary(pa.int32(), pa.string())),
        ("source_row", pa.int64()),
        ("token_start", pa.int64()),  # first token in the document
    ]
)


@dataclass(frozen=True)
class Slice:
    """The batches of one spill file that belong to one shard."""

    spill: Path
    batches: list[int]


@dataclass(frozen=True)
class Documents:
    """A shard's documents in their final order."""

    file: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    """All tokens, flat."""
    offsets: npt.NDArray[np.int64]
    """int64[d + 1]: document i is tokens[offsets[i]:offsets[i + 1]]."""


@njit(nogil=True, cache=True)
def _scatter(
    values: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    target: npt.NDArray[np.int64],
    out: npt.NDArray[np.int32],
) -> None:
    """Copies list i of a batch to out[target[i]:]."""
    for i in range(len(target)):
        start, n = offsets[i], offsets[i + 1] - offsets[i]
        out[target[i] : target[i] + n] = values[start : start + n]


@dataclass(frozen=True)
class PackAndWrite:
    """Work of pass C: one shard. Holds its tokens in memory, and nothing else of the corpus."""

    split: str
    number: int
    of: int
    slices: list[Slice]
    pack: Pack
    pad_id: int
    layout: Layout
    files: list[str]
    building: Path

    @property
    def name(self) -> str:
        """Base name without ending, as MindFormers finds and sorts it."""
        return f"{self.split}-{self.number:05d}-of-{self.of:05d}"

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        documents = self._read()
        flat, offsets = documents.tokens, documents.offsets
        pieces = self.pack.place(np.diff(offsets))
        columns = self.pack.columns()
        path = self.building / self.split / f"{self.name}.mindrecord"
        path.parent.mkdir(parents=True, exist_ok=True)
        trained = 0
        with ShardWriter(path, columns, self.layout) as writer:
            for first in range(0, pieces.rows, BLOCK_ROWS):
                stop = min(first + BLOCK_ROWS, pieces.rows)
                rows = make_rows(
                    pieces,
                    first,
                    stop,
                    flat,
                    offsets,
                    self.pack.seq_length,
                    self.pad_id,
                    self.pack.ends,
                )
                trained += int(rows["loss_mask"].sum())
                writer.write(rows)
        audit = self._audit(documents, pieces)
        placed = int(pieces.length.sum())
        slots = pieces.rows * self.pack.seq_length
        ledger = Ledger()
        ledger.count("", "tokens.placed", placed)
        ledger.count("", "slots.total", slots)
        ledger.count("", "slots.padding", slots - placed)
        ledger.count("", "targets.trained", trained)
        ledger.count("", "targets.masked.document_end", len(offsets) - 1)
        ledger.count("", "targets.masked.padding", slots - placed)
        shard = Shard(
            path=f"{self.split}/{path.name}",
            rows=pieces.rows,
            tokens=placed,
            bytes=writer.bytes,
            sha256=writer.sha256,
            index_sha256=writer.index_sha256,
        )
        index = path.with_name(path.name + ".db")
        result = {"ledger": ledger.to_json(), "split": self.split, "shard": asdict(shard)}
        return result, [path, index, audit]

    def _read(self) -> "Documents":
        """This shard's documents, sorted by (order, file, row).

        Tokens go from the mapped spills straight to their final place: memory is one shard's.
        """
        keys = [
            (b["order"], b["file"], b["row"], np.diff(np.asarray(b["tokens"].offsets)))
            for b in self._batches()
        ]
        order, file, row, length = (np.concatenate(column) for column in zip(*keys))
        by_place = np.lexsort((row, file, order))
        offsets = np.concatenate([[0], np.cumsum(length[by_place])]).astype(np.int64)
        target = np.empty(len(by_place), np.int64)  # where each document's tokens begin
        target[by_place] = offsets[:-1]
        tokens = np.empty(int(offsets[-1]), np.int32)
        first = 0
        for batch in self._batches():
            lists = batch["tokens"]
            place = target[first : first + len(lists)]
            _scatter(np.asarray(lists.values), np.asarray(lists.offsets), place, tokens)
            first += len(lists)
        return Documents(file[by_place], row[by_place], tokens, offsets)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """This shard's batches; one spill file is open at a time: there may be thousands."""
        for part in self.slices:
            reader = open_arrow(part.spill)
            for i in part.batches:
                yield reader.get_batch(i)

    def _audit(self, documents: "Documents", pieces: Pieces) -> Path:
        path = self.building / "audit" / "rows" / f"{self.name}.parquet"
        file = documents.file[pieces.document]
        columns = [
            pa.repeat(self.name, len(pieces.row)),
            pa.array(pieces.row),
            pa.array(pieces.start.astype(np.int32)),
            pa.array(pieces.length.astype(np.int32)),
            file_column(file, self.files),
            pa.array(documents.row[pieces.document]),
            pa.array(pieces.token_start),
        ]
        with atomic_path(path) as tmp:
            pq.write_table(pa.Table.from_arrays(columns, schema=ROWS), tmp, compression="zstd")
        return path


def file_column(file: npt.NDArray[np.integer[Any]], names: Sequence[str]) -> pa.Array:
    """Dictionary array of file names; `file` are indices into `names`. Only used names are kept."""
    used, codes = np.unique(file, return_inverse=True)
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)), pa.array([names[i] for i in used], pa.string())
    )


def tasks(
    config: BuildConfig,
    plan: Plan,
    decided: dict[str, Any],
    done: list[Task],
    spilled: Sequence[dict[str, Any]],
    pad_id: int,
) -> list[Task]:
    """One task for each output shard. `done`, `spilled`: the tasks of pass B and their results.

    Raises UserError when a shard would be empty.
    """
    counts = {"train": decided["shards"], "eval": decided["eval_shards"]}
    names = [(split, i, of) for split, of in counts.items() for i in range(of)]
    # JSON keys are strings: receipts and fresh results are read alike.
    slices = [{int(s): found for s, found in result["slices"].items()} for result in spilled]
    layout = _layout(config.pack, slices, len(names))
    out = []
    for s, (split, number, of) in enumerate(names):
        parts = [
            (i, [batch for batch, _, _ in found[s]]) for i, found in enumerate(slices) if s in found
        ]
        if not parts:
            raise UserError(
                f"shard {number} of {split} would be empty: its documents have no tokens; "
                f"use fewer write.shards than {config.write.shards}, or another seed"
            )
        out.append(
            Task(
                name=f"write {split} shard {number} of {of}",
                folder=config.work / "c" / f"{split}-{number:05d}",
                depends_on={
                    "pass B": fingerprint([[done[i].fingerprint, b] for i, b in parts]),
                    "shard": [split, number, of],
                    "pack": asdict(config.pack),
                    "write": asdict(config.write),
                    "layout": asdict(layout),
                    "tokenizer": {"pad_id": pad_id},
                    "out_dir": str(config.out),
                },
                work=PackAndWrite(
                    split=split,
                    number=number,
                    of=of,
                    slices=[Slice(done[i].folder / SPILL, batches) for i, batches in parts],
                    pack=config.pack,
                    pad_id=pad_id,
                    layout=layout,
                    files=[file.path for file in plan.files],
                    building=config.building,
                ),
                size=sum(n for found in slices for _, _, n in found.get(s, [])) * 4,
            )
        )
    return out


def _layout(pack: Pack, slices: list[dict[int, list[list[int]]]], shards: int) -> Layout:
    """One layout for all shards (MindDataset demands it), fit for the largest."""
    most = 1
    for s in range(shards):
        found = [part for by_shard in slices for part in by_shard.get(s, [])]
        most = max(most, pack.max_rows(sum(p[2] for p in found), sum(p[1] for p in found)))
    return fit_layout(pack.columns(), most)
