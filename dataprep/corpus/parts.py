"""A shard's rows, in parts that fit into the memory they may use.

    within the budget   all documents are one part, as they arrived
    beyond it           keys ─ place ─ rows, cut into parts
                        documents ─ cut into pieces ─ the exchange, a part as its shard ─► its rows

So a shard larger than its budget is spilled again: read twice (its keys, then all of it), written
once. About 170 bytes a document stay in memory, and the tokens of one part.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.corpus.exchange import TOKENS, Copies, Documents, Keep, cuts, lists
from dataprep.corpus.plan import Ints
from dataprep.corpus.ranges import Range, Slice, fetch
from dataprep.files import unfinished, write_error
from dataprep.pack import Pieces
from dataprep.storage import Place, Remote, scratch_folder

STEP = 4 << 20  # bytes of pieces cut at a time


@dataclass(frozen=True)
class Part:
    """Consecutive rows, and the tokens they are made of."""

    pieces: Pieces
    """`row` from 0; `document`: which of `offsets`."""
    tokens: npt.NDArray[np.int32]
    offsets: Ints
    """int64[d + 1]: document i, or the part of it that is needed, is offsets[i]:offsets[i + 1]."""


@dataclass(frozen=True)
class Shard:
    """Documents of a shard, where their tokens go, and its rows, part by part, once."""

    documents: Documents
    pieces: Pieces
    parts: Iterator[Part]


@contextlib.contextmanager
def open_shard(
    slices: list[Slice],
    keep: Keep | None,
    tokens: int,
    budget: int,
    place: Callable[[Ints], Pieces],
    folder: Place,
) -> Iterator[Shard]:
    """The shard made of `slices`, of which `keep` wants documents with so many `tokens`.

    `budget`: bytes of tokens in memory; a row is the least. `folder`: of the task; temporary files
    lie there, on the work disk, or in TMPDIR where it is remote.
    """
    if tokens * 4 <= budget:
        flat = np.empty(tokens, np.int32)
        documents = TOKENS.documents(slices, keep, flat)
        pieces = place(documents.length)
        own = replace(pieces, document=documents.arrival[pieces.document])
        yield Shard(documents, pieces, iter([Part(own, flat, documents.offsets)]))
        return
    with _temporary(folder) as path:
        try:
            with _temporary(folder) as copy:
                if any(isinstance(part.spill, Remote) for part in slices):
                    slices = fetch(slices, copy)
                documents = TOKENS.documents(slices, keep)
                pieces = place(documents.length)
                length = pieces.length + _goes_on(documents, pieces)
                rows = cuts(np.bincount(pieces.row, length * 4).astype(np.int64), budget)
                index = _spill_again(path, slices, keep, documents, pieces, length, rows)
        except OSError as e:
            raise write_error(path, e) from e
        yield Shard(documents, pieces, _parts(path, index, pieces, rows))


def _goes_on(documents: Documents, pieces: Pieces) -> Ints:
    """int64[p]: 1 for pieces that do not end their document: their last label is the next token."""
    end = pieces.token_start + pieces.length
    return (end < documents.length[pieces.document]).astype(np.int64)


def _spill_again(
    path: Path,
    slices: Sequence[Slice],
    keep: Keep | None,
    documents: Documents,
    pieces: Pieces,
    length: Ints,
    rows: Sequence[tuple[int, int]],
) -> list[Range]:
    """Writes all pieces, of `length` tokens each, by the part of `rows` that they belong to."""
    arrival = documents.arrival[pieces.document]
    by_arrival = np.argsort(arrival, kind="stable")
    first = np.searchsorted(arrival[by_arrival], np.arange(len(documents.row) + 1))
    part = np.searchsorted([stop for _, stop in rows], pieces.row, "right")

    def batches() -> Iterator[pa.RecordBatch]:
        seen = 0
        for portion in TOKENS.portions(slices, keep):
            ours = by_arrival[first[seen] : first[seen + len(portion.row)]]
            for a, b in cuts(length[ours] * 4, STEP):
                mine = ours[a:b]
                start = portion.start[arrival[mine] - seen] + pieces.token_start[mine]
                columns = [pa.array(mine), lists(portion.values, start, length[mine])]
                yield pa.RecordBatch.from_arrays(columns, names=["piece", TOKENS.column])
            seen += len(portion.row)

    def address(table: pa.Table, _: Ints) -> Copies:
        piece = np.asarray(table["piece"])
        none = np.zeros(len(piece), np.int64)
        return Copies(np.arange(len(piece)), part[piece], piece.astype(np.uint64), none, none)

    return TOKENS.spill(path, batches(), address)


def _parts(
    path: Path, index: Sequence[Range], pieces: Pieces, rows: Sequence[tuple[int, int]]
) -> Iterator[Part]:
    ranges: list[list[Range]] = [[] for _ in rows]
    for one in index:
        ranges[one.shard].append(one)
    sizes = [sum(one.values for one in own) for own in ranges]
    buffer = np.empty(max(sizes), np.int32)  # one for all: a part is used before the next is made
    for own, size, (first, stop) in zip(ranges, sizes, rows):
        tokens = buffer[:size]
        found = TOKENS.documents([Slice(path, own)], into=tokens)
        lo, hi = np.searchsorted(pieces.row, [first, stop])
        yield Part(
            Pieces(
                row=pieces.row[lo:hi] - first,
                start=pieces.start[lo:hi],
                document=found.arrival,  # a piece is all of a document that is here
                token_start=np.zeros(hi - lo, np.int64),
                length=pieces.length[lo:hi],
            ),
            tokens,
            found.offsets,
        )


@contextlib.contextmanager
def _temporary(folder: Place) -> Iterator[Path]:
    """A name for a file of this task alone, removed at the end, or before the next attempt."""
    if isinstance(folder, Remote):
        with scratch_folder() as local:
            yield local / "tokens"
        return
    path = unfinished(folder / "tokens")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
