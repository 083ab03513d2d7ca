"""Pass C: one output shard <- its slice of every spill -> order -> pack -> MindRecord.

OUT.building/train/train-00000-of-00004.mindrecord (+ .db)
OUT.building/audit/rows/train-00000-of-00004.parquet    which documents stand in which row
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.corpus import output
from dataprep.corpus.arrow import read_array
from dataprep.corpus.cap import Cut
from dataprep.corpus.config import Target
from dataprep.corpus.exchange import Documents
from dataprep.corpus.parts import Part, open_shard
from dataprep.corpus.pass_b import INDEX, SPILL
from dataprep.corpus.plan import Ints
from dataprep.corpus.ranges import Range, Slice
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.files import atomic_path, fingerprint, sha256_file
from dataprep.ledger import Ledger
from dataprep.manifest import Shard
from dataprep.mindrecord import Layout, ShardWriter, fit_layout
from dataprep.pack import Pack, Pieces, make_rows
from dataprep.storage import AT_ONCE, Place, staged

BLOCK_ROWS = 256  # rows made and written at a time
MIB = 1 << 20

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
class PackAndWrite:
    """Work of pass C: one shard. Memory: its tokens up to a budget, and nothing else of the
    corpus."""

    split: str
    number: int
    of: int
    spills: list[Place]
    """That hold some of it."""
    index: Ints
    """int64[n, 5], in the order of the spills: which of them, and the rest of a Range."""
    cut: Cut | None
    """Which of their documents stay; None: all."""
    tokens: int
    """Of those documents."""
    budget: int
    """Bytes of tokens held in memory."""
    pack: Pack
    columns: dict[str, int]
    """What is stored of a row: name -> length."""
    pad_id: int
    layout: Layout
    files: list[str]
    building: Place

    @property
    def name(self) -> str:
        """Base name without ending, as MindFormers finds and sorts it."""
        return f"{self.split}-{self.number:05d}-of-{self.of:05d}"

    @property
    def slices(self) -> list[Slice]:
        """What each spill holds of the shard."""
        out = [Slice(spill, []) for spill in self.spills]
        for spill, *rest in self.index.tolist():
            out[spill].ranges.append(Range(self.number, *rest))
        return out

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        shards = self.building / self.split
        trained = 0
        with (
            open_shard(
                self.slices, self.cut, self.tokens, self.budget, self.pack.place, folder
            ) as found,
            staged(shards) as local,
            ShardWriter(local / f"{self.name}.mindrecord", self.columns, self.layout) as writer,
        ):
            for part in found.parts:
                trained += self._write(part, writer)
        pieces = found.pieces
        audit, audit_sha256 = self._audit(found.documents, pieces)
        placed = int(pieces.length.sum())
        slots = pieces.rows * self.pack.seq_length
        ledger = Ledger()
        ledger.count("", "tokens.placed", placed)
        ledger.count("", "slots.total", slots)
        ledger.count("", "slots.padding", slots - placed)
        ledger.count("", "targets.trained", trained)
        ledger.count("", "targets.masked.document_end", len(found.documents.row))
        ledger.count("", "targets.masked.padding", slots - placed)
        shard = Shard(
            path=f"{self.split}/{self.name}.mindrecord",
            rows=pieces.rows,
            tokens=placed,
            bytes=writer.bytes,
            sha256=writer.sha256,
            index_sha256=writer.index_sha256,
            audit_sha256=audit_sha256,
        )
        result = {"ledger": ledger.to_json(), "split": self.split, "shard": asdict(shard)}
        files = [shards / f"{self.name}.mindrecord", shards / f"{self.name}.mindrecord.db"]
        return result, [*files, audit]

    def _write(self, part: Part, writer: ShardWriter) -> int:
        """Makes and writes rows; returns the number of their targets."""
        trained = 0
        for first in range(0, part.pieces.rows, BLOCK_ROWS):
            rows = make_rows(
                part.pieces,
                first,
                min(first + BLOCK_ROWS, part.pieces.rows),
                part.tokens,
                part.offsets,
                self.pack.seq_length,
                self.pad_id,
                self.pack.ends,
            )
            trained += rows.trained
            writer.write(rows.columns(self.columns))
        return trained

    def _audit(self, documents: Documents, pieces: Pieces) -> tuple[Place, str]:
        """Writes which documents stand in which row; its place and SHA-256."""
        path = self.building / output.ROWS / f"{self.name}.parquet"
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
            sha256 = sha256_file(tmp)
        return path, sha256


def file_column(file: npt.NDArray[np.integer[Any]], names: Sequence[str]) -> pa.Array:
    """Dictionary array of file names; `file` are indices into `names`. Only used names are kept."""
    used, codes = np.unique(file, return_inverse=True)
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32)), pa.array([names[i] for i in used], pa.string())
    )


def tasks(
    config: Target,
    files: Sequence[str],
    shards: Mapping[str, int],
    done: Sequence[Task],
    capped: dict[str, Any] | None,
    pad_id: int,
) -> list[Task]:
    """One task for each output shard.

    `files`: names of the inputs; `shards`: of each split; `done`: the tasks that spilled (SPILL and
    INDEX in their folders); `capped`: what max_tokens has cut of the first split, train.
    Raises UserError when a shard would be empty.
    """
    names = [(split, i, of) for split, of in shards.items() for i in range(of)]
    found = _indices(done, len(names))
    sizes = np.array([index[:, 3:].sum(0) for _, index in found])  # documents and tokens
    cut = None
    if capped and capped["dropped"]:
        cut = Cut(**capped["cut"])
        sizes[: shards["train"]] = capped["shards"]
    _check(config, names, sizes, found)
    layout = fit_layout(config.columns, max(config.pack.max_rows(int(t), int(d)) for d, t in sizes))
    write = config.content()["write"]
    spills = [task.folder / SPILL for task in done]
    prints = [task.fingerprint for task in done]
    names_of_files = list(files)  # one for all tasks
    out = []
    for (split, number, of), (owners, index), (_, tokens) in zip(names, found, sizes):
        ours = cut if split == "train" else None
        out.append(
            Task(
                name=f"write {split} shard {number} of {of}",
                folder=config.work / "c" / f"{split}-{number:05d}",
                depends_on={
                    "pass B": fingerprint([[prints[i] for i in owners], index.tolist()]),
                    "max_tokens": fingerprint(asdict(ours)) if ours else None,
                    "shard": [split, number, of],
                    "pack": asdict(config.pack),
                    "write": write,
                    "layout": asdict(layout),
                    "tokenizer": {"pad_id": pad_id},
                    "out_dir": str(config.out),
                },
                work=PackAndWrite(
                    split=split,
                    number=number,
                    of=of,
                    spills=[spills[i] for i in owners],
                    index=index,
                    cut=ours,
                    tokens=int(tokens),
                    budget=config.write.buffer_mib * MIB,
                    pack=config.pack,
                    columns=config.columns,
                    pad_id=pad_id,
                    layout=layout,
                    files=names_of_files,
                    building=config.building,
                ),
                size=int(tokens) * 4,
            )
        )
    return out


def _indices(done: Sequence[Task], shards: int) -> list[tuple[list[int], Ints]]:
    """(tasks of pass B that spilled some of it, their ranges as in PackAndWrite) of each shard.

    Arrays, not objects: there is a range for each task and shard.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        parts = list(pool.map(lambda task: read_array(task.folder / INDEX), done))
    every = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    del parts
    by_shard = np.argsort(every[:, 0], kind="stable")
    borders = np.searchsorted(every[by_shard, 0], np.arange(shards + 1))
    out = []
    for first, stop in zip(borders, borders[1:]):
        ours = by_shard[first:stop]
        owners, which = np.unique(owner[ours], return_inverse=True)
        index = every[ours]
        index[:, 0] = which
        out.append((owners.tolist(), index))
    return out


def _check(
    config: Target,
    names: Sequence[tuple[str, int, int]],
    sizes: Ints,
    found: Sequence[tuple[list[int], Ints]],
) -> None:
    """Raises UserError for the first shard without documents."""
    for (split, number, _), (parts, _), (documents, _) in zip(names, found, sizes):
        if documents:
            continue
        empty = f"shard {number} of {split} would be empty"
        shards = config.write.shards
        if parts:
            raise UserError(
                f"{empty}: max_tokens leaves none of its documents; raise max_tokens, or use "
                f"fewer write.shards than {shards}"
            )
        raise UserError(
            f"{empty}: its documents have no tokens; use fewer write.shards than {shards}, or "
            "another seed"
        )
