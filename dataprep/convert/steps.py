"""The passes of an import before the build's last one.

    look     part -> length of each document           lengths.npy, begins.npy
    place    all lengths -> which documents make a shard, and which a task
    spill    documents of a part -> the exchange       spill.arrow, index.npy, removed.arrow

A document's place is a seeded hash of its name (data set, row), as in the build; or its number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.convert.inputs import DataSet, Part
from dataprep.convert.source import Found, Ids, Lists
from dataprep.corpus import exchange, pass_b
from dataprep.corpus.arrow import read_array, write_array, write_arrow
from dataprep.corpus.decide import Places, mix
from dataprep.corpus.exchange import TOKENS, Copies, cuts
from dataprep.corpus.plan import Ints
from dataprep.corpus.ranges import Range
from dataprep.engine import Task
from dataprep.errors import UserError
from dataprep.files import atomic_path, fingerprint
from dataprep.ledger import REMOVED, TaskLedger
from dataprep.storage import Place

LENGTHS, BEGINS = "lengths.npy", "begins.npy"
STAGE = "import"  # of removed documents
EMPTY, MISSING = "empty", "missing"


@dataclass(frozen=True)
class Look:
    """Work of the first pass: one part."""

    part: Part

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        found: Found = self.part.source.look()
        self.part.check_unchanged()
        outputs = [
            write_array(folder / LENGTHS, found.lengths),
            write_array(folder / BEGINS, found.begins),
        ]
        return {"documents": len(found.lengths), "notes": found.notes}, outputs


@dataclass(frozen=True)
class Lay:
    """Work of the global step; one process, about 50 bytes a document."""

    folders: list[Place]
    """Of the first pass."""
    data_sets: list[int]
    """Of each part."""
    shards: int
    seed: int | None
    """None: in the order of the inputs."""
    task_bytes: int
    """Of the ids that a task of the next pass reads, unless one document has more."""

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        parts = [read_array(before / LENGTHS) for before in self.folders]
        first = first_rows([len(part) for part in parts], self.data_sets)
        length = np.concatenate([np.zeros(0, np.int64), *parts])
        kept = np.flatnonzero(length)
        shards = int(min(self.shards, max(1, len(kept))))
        if self.seed is None:
            borders = _even(kept, length[kept], shards).astype(np.uint64)
        else:
            sets = np.repeat(self.data_sets, [len(part) for part in parts])
            rows = np.concatenate([at + np.arange(len(part)) for at, part in zip(first, parts)])
            place = mix(self.seed, sets[kept], rows[kept])
            borders = Places(place, np.ones(len(kept), np.int32)).borders(shards)
        result = {
            "kept": len(kept),
            "shards": shards,
            "borders": [int(border) for border in borders],
            "ranges": [
                [number, *ours]
                for number, (before, part) in enumerate(zip(self.folders, parts))
                for ours in self._ranges(part, read_array(before / BEGINS))
            ],
        }
        return result, []

    def _ranges(self, length: Ints, begins: Ints) -> Iterator[tuple[int, int, int]]:
        """(first document, the one after the last, ids) of each task of one part."""
        if not len(length):
            return
        ids = np.add.reduceat(length, begins)
        stops = np.append(begins[1:], len(length))
        # A document costs something even when it is empty.
        for a, b in cuts(ids * 4 + 8 * (stops - begins), self.task_bytes):
            yield int(begins[a]), int(stops[b - 1]), int(ids[a:b].sum())


def first_rows(documents: Sequence[int], data_sets: Sequence[int]) -> list[int]:
    """Row of its data set at which each part begins; `documents`: of each part."""
    out: list[int] = []
    for i, data_set in enumerate(data_sets):
        goes_on = i > 0 and data_sets[i - 1] == data_set
        out.append(out[-1] + documents[i - 1] if goes_on else 0)
    return out


def _even(number: Ints, length: Ints, shards: int) -> Ints:
    """int64[shards - 1]: number of the first document of each shard but the first.

    Shards of about equal numbers of ids, none without a document.
    `number`: of the documents that have ids, ascending; `length`: of each.
    """
    n, part = len(number), np.arange(1, shards)
    ends = np.cumsum(length)
    at = np.searchsorted(ends, part * (int(ends[-1]) // shards) if n else part, "right")
    at = np.maximum.accumulate(np.maximum(at, 1) - part) + part  # each has one
    return number[np.minimum(at, n - shards + part)]  # and leaves one for each that follows


@dataclass(frozen=True)
class Spill:
    """Work of the second pass: documents of one part."""

    part: Part
    source: str
    first: int
    stop: int
    data_set: int
    row: int
    """Of the part's first document in its data set."""
    number: int
    """Of the part's first document among all."""
    seed: int | None
    borders: list[int]
    vocab_size: int

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        ledger = TaskLedger(self.source)
        borders = np.array(self.borders, np.uint64)

        def address(table: pa.Table, length: Ints) -> Copies:
            document = np.asarray(table["document"])
            row, sets = self.row + document, np.full(len(document), self.data_set)
            if self.seed is None:
                place = (self.number + document).astype(np.uint64)
            else:
                place = mix(self.seed, sets, row)
            shard = np.searchsorted(borders, place, "right")
            return Copies(np.arange(len(row)), shard, place, sets, row)

        with atomic_path(folder / pass_b.SPILL, durable=False) as tmp:
            index = exchange.sort(tmp, TOKENS.spill(tmp, self._batches(ledger), address))
        self.part.check_unchanged()
        ranges = np.array(index, np.int64).reshape(-1, len(Range._fields))
        outputs = [
            folder / pass_b.SPILL,
            write_array(folder / pass_b.INDEX, ranges),
            write_arrow(folder / pass_b.REMOVED_FILE, REMOVED, ledger.removed),
        ]
        return {"ledger": ledger.ledger.to_json()}, outputs

    def _batches(self, ledger: TaskLedger) -> Iterator[pa.RecordBatch]:
        """Documents that have ids, as columns document and tokens."""
        for lists in self.part.source.read(self.first, self.stop):
            document = lists.first + np.arange(len(lists.offsets) - 1)
            length = np.diff(lists.offsets)
            ledger.count("documents.read", len(length))
            empty = length == 0
            if lists.missing is not None:
                self._remove(ledger, document[lists.missing], MISSING)
                empty &= ~lists.missing
            self._remove(ledger, document[empty], EMPTY)
            self._check(lists)
            kept = length > 0
            ledger.count("documents.kept", int(kept.sum()))
            ledger.count("tokens.tokenized", len(lists.ids))
            offsets = np.concatenate([[0], np.cumsum(length[kept])])
            tokens = pa.array(lists.ids.astype(np.int32, copy=False))
            columns = [
                pa.array(document[kept]),
                pa.LargeListArray.from_arrays(pa.array(offsets), tokens),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["document", TOKENS.column])

    def _remove(self, ledger: TaskLedger, documents: Ints, rule: str) -> None:
        ledger.remove(self.data_set, self.row + documents, STAGE, rule)

    def _check(self, lists: Lists) -> None:
        """Raises UserError for an id that is not of the vocabulary."""
        ids = lists.ids
        if not len(ids) or (ids.min() >= 0 and ids.max() < self.vocab_size):
            return
        at = int(np.argmax(_outside(ids, self.vocab_size)))
        nth = int(np.searchsorted(lists.offsets, at, "right")) - 1
        raise UserError(
            f"{self.part.files[0].path}: document {lists.first + nth} has the id {ids[at]} (its "
            f"token {at - int(lists.offsets[nth])}), and the vocabulary has ids "
            f"0..{self.vocab_size - 1}; give the tokenizer that made the ids, or its vocab_size"
        )


def _outside(ids: Ids, vocab_size: int) -> npt.NDArray[np.bool_]:
    return (ids < 0) | (ids >= vocab_size)


def look_tasks(data_sets: Sequence[DataSet], work: Place) -> list[Task]:
    """One for each part of each data set."""
    parts = [part for data in data_sets for part in data.parts]
    return [
        Task(
            name=f"look at {part.files[0].path}",
            folder=work / "look" / f"{i:05d}",
            depends_on={"files": [list(file) for file in part.files], "source": repr(part.source)},
            work=Look(part),
            size=sum(file.size for file in part.files),
        )
        for i, part in enumerate(parts)
    ]


def place_task(
    looks: Sequence[Task],
    data_sets: Sequence[DataSet],
    work: Place,
    shards: int,
    seed: int | None,
    task_bytes: int,
) -> Task:
    """The one task of this step."""
    owners = [i for i, data in enumerate(data_sets) for _ in data.parts]
    return Task(
        name="find each document's place",
        folder=work / "place",
        depends_on={
            "lengths": fingerprint([task.fingerprint for task in looks]),
            "inputs": owners,
            "write": {"shards": shards},
            "seed": seed,
            "engine": {"split": task_bytes},
        },
        work=Lay([task.folder for task in looks], owners, shards, seed, task_bytes),
    )


def spill_tasks(
    looks: Sequence[Task],
    documents: Sequence[int],
    data_sets: Sequence[DataSet],
    work: Place,
    placed: dict[str, Any],
    seed: int | None,
    vocab_size: int,
) -> list[Task]:
    """One for each range of documents that the step between has found (`placed`, its result).

    `documents`: of each part.
    """
    owners = [i for i, data in enumerate(data_sets) for _ in data.parts]
    rows = first_rows(documents, owners)
    numbers = np.cumsum([0, *documents]).tolist()
    borders = fingerprint(placed["borders"])
    out = []
    for i, (part, first, stop, ids) in enumerate(placed["ranges"]):
        look, owner = looks[part].work, owners[part]
        assert isinstance(look, Look)
        source = data_sets[owner].source
        out.append(
            Task(
                name=f"read documents {first}..{stop - 1} of {look.part.files[0].path}",
                folder=work / "b" / f"{i:05d}",
                depends_on={
                    "look": looks[part].fingerprint,
                    "documents": [first, stop],
                    "place": [owner, rows[part], numbers[part] if seed is None else seed],
                    "source": source,
                    "shards": borders,
                    "tokenizer": {"vocab_size": vocab_size},
                },
                work=Spill(
                    part=look.part,
                    source=source,
                    first=first,
                    stop=stop,
                    data_set=owner,
                    row=rows[part],
                    number=numbers[part],
                    seed=seed,
                    borders=placed["borders"],
                    vocab_size=vocab_size,
                ),
                size=ids * 4,
            )
        )
    return out
