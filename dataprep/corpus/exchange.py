"""The exchange: documents go from the tasks that read them to the tasks that write shards.

    map     gather ─ sort by shard ─► one spill file a task, and its index: where each shard's
                                      batches stand
    reduce  a shard's ranges of every spill, as they arrive ─► ordered by (order, file, row)

What a document carries is its payload, a list of values: int32 for tokens, uint8 for text. A spill
is an uncompressed Arrow stream of batches of one shard each. Its index makes a shard's part of it
one read, of a mapped file as of a remote one.

Memory: SPILL_BYTES of payload in a map task, about three times over; in a reduce task what its
caller keeps, and what is asked for ahead where spills are remote.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from dataprep.corpus.arrow import unreadable
from dataprep.corpus.plan import Ints
from dataprep.corpus.ranges import Range, Slice, read_ranges
from dataprep.files import unfinished

SPILL_BYTES = 32 << 20  # of payload, held before it is sorted by shard and written
SPILL_COPIES = 1 << 20  # copies of documents, likewise

Values = npt.NDArray[Any]
Keep = Callable[[npt.NDArray[np.int32], Ints], npt.NDArray[np.bool_]]
"""(file, row) -> which of these documents are wanted."""


class Copies(NamedTuple):
    """Where documents go. Arrays of one length, an entry for each copy of a document."""

    document: Ints
    """Which of the documents given."""
    shard: Ints
    order: npt.NDArray[np.uint64]
    """Place in the shard."""
    file: Ints
    row: Ints


Address = Callable[[pa.Table, Ints], Copies]
"""(columns of some documents, length int64[d] of each payload) -> where they go."""


class Portion(NamedTuple):
    """Documents as they arrive: document i is values[start[i]:start[i] + length[i]]."""

    order: npt.NDArray[np.uint64]
    file: npt.NDArray[np.int32]
    row: Ints
    start: Ints
    length: Ints
    values: Values

    def only(self, wanted: npt.NDArray[np.bool_]) -> "Portion":
        """Some of them."""
        order, file, row, start, length, values = self
        return Portion(
            order[wanted], file[wanted], row[wanted], start[wanted], length[wanted], values
        )


@dataclass(frozen=True)
class Documents:
    """Documents of a shard by (order, file, row), without their payloads; arrays [d]."""

    file: npt.NDArray[np.int32]
    row: Ints
    length: Ints
    """Values of each payload."""
    arrival: Ints
    """Each document's number in order of arrival."""

    @property
    def offsets(self) -> Ints:
        """int64[d + 1]: of payloads that stand one after another, in order of arrival."""
        length = np.empty_like(self.length)
        length[self.arrival] = self.length
        return np.concatenate([[0], np.cumsum(length)])


@dataclass(frozen=True)
class Exchange:
    """The exchange of documents with one kind of payload."""

    column: str
    """Name of the payload's column."""
    kind: pa.DataType
    """Of its values."""

    @property
    def schema(self) -> pa.Schema:
        """Of a spill."""
        keys = [("order", pa.uint64()), ("file", pa.int32()), ("row", pa.int64())]
        return pa.schema([*keys, (self.column, pa.large_list(self.kind))])

    def spill(
        self,
        path: Path,
        batches: Iterable[pa.RecordBatch],
        address: Address,
        copies: Callable[[pa.RecordBatch], int] = lambda batch: batch.num_rows,
    ) -> list[Range]:
        """Writes documents to a local file, by shard within about SPILL_BYTES; returns its index.

        `batches`: with a column of payloads, and whatever `address` wants to know; `copies`: how
        many entries `address` will give for one of them.
        """
        index = []
        with path.open("wb") as sink:
            sink.write(self.schema.serialize())
            for table in self._gather(batches, copies):
                values, offsets = _parts(table[self.column].combine_chunks())
                length = np.diff(offsets)
                sent = address(table, length)
                by_place = np.lexsort((sent.row, sent.file, sent.order, sent.shard))
                size = length[sent.document[by_place]]
                # Cut: of a document in a thousand copies all may be here.
                for first, stop in cuts(size * values.itemsize, SPILL_BYTES):
                    picks = by_place[first:stop]
                    arrays = [
                        pa.array(sent.order[picks]),
                        pa.array(sent.file[picks].astype(np.int32)),
                        pa.array(sent.row[picks]),
                        lists(values, offsets[sent.document[picks]], size[first:stop]),
                    ]
                    batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                    for shard, at, n, total in _by_shard(sent.shard[picks], size[first:stop]):
                        data = batch.slice(at, n).serialize()
                        index.append(Range(shard, sink.tell(), data.size, n, total))
                        sink.write(data)
        return index

    def _gather(
        self, batches: Iterable[pa.RecordBatch], copies: Callable[[pa.RecordBatch], int]
    ) -> Iterator[pa.Table]:
        """Batches as tables of about SPILL_BYTES or SPILL_COPIES: what is sorted at a time."""
        held: list[pa.RecordBatch] = []
        size = entries = 0
        for batch in batches:
            values, offsets = _parts(batch.column(self.column))
            size += int(offsets[-1] - offsets[0]) * values.itemsize
            entries += copies(batch)
            held.append(batch)
            if size >= SPILL_BYTES or entries >= SPILL_COPIES:
                yield pa.Table.from_batches(held)
                held, size, entries = [], 0, 0
        if held:
            yield pa.Table.from_batches(held)

    def portions(self, slices: Iterable[Slice], keep: Keep | None = None) -> Iterator[Portion]:
        """Wanted documents of one shard, in order of arrival, which is always the same.

        Views of a mapped file, unless it is remote. Raises UserError when a spill is damaged.
        """
        schema = self.schema
        for spill, data in read_ranges(slices):
            source = pa.BufferReader(data)
            while source.tell() < source.size():
                try:
                    batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
                except (OSError, EOFError, pa.ArrowException) as e:
                    raise unreadable(spill, e) from e
                order, file, row = (np.asarray(batch.column(i)) for i in range(3))
                values, offsets = _parts(batch.column(3))
                found = Portion(order, file, row, offsets[:-1], np.diff(offsets), values)
                yield found if keep is None else found.only(keep(file, row))

    def documents(
        self, slices: Iterable[Slice], keep: Keep | None = None, into: Values | None = None
    ) -> Documents:
        """All wanted documents of one shard.

        `into`: gets their payloads, in order of arrival; must have their size.
        """
        keys, filled = [], 0
        for portion in self.portions(slices, keep):
            # Copies: views would keep all files mapped.
            keys.append([np.array(a) for a in (*portion[:3], portion.length)])
            if into is not None:
                n = int(portion.length.sum())
                copy_lists(portion.values, portion.start, portion.length, into[filled : filled + n])
                filled += n
        order, file, row, length = (np.concatenate(column) for column in zip(*keys))
        arrival = np.lexsort((row, file, order))
        return Documents(file[arrival], row[arrival], length[arrival], arrival)


TOKENS = Exchange("tokens", pa.int32())


def sort(path: Path, index: Sequence[Range]) -> list[Range]:
    """Puts the batches of each shard together in a spill; returns its new index.

    A shard then has one range in it, or several of up to SPILL_BYTES.
    """
    by_shard = sorted(index)
    if by_shard == list(index):
        return by_shard  # all was sorted at once
    out: list[Range] = []
    tmp = unfinished(path)
    try:
        with path.open("rb") as source, tmp.open("wb") as sink:
            sink.write(source.read(index[0].position))
            for one in by_shard:
                last = out[-1] if out else None
                if last and last.shard == one.shard and last.size + one.size <= SPILL_BYTES:
                    sums = (a + b for a, b in zip(last[2:], one[2:]))
                    out[-1] = Range(last.shard, last.position, *sums)
                else:
                    out.append(one._replace(position=sink.tell()))
                source.seek(one.position)
                sink.write(source.read(one.size))
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)
    return out


def _by_shard(shard: Ints, size: Ints) -> list[list[int]]:
    """[shard, first, documents, values] of each run of equal shards."""
    first = np.flatnonzero(np.diff(shard, prepend=-1))
    count = np.diff(first, append=len(shard))
    return np.stack([shard[first], first, count, np.add.reduceat(size, first)], 1).tolist()


def cuts(sizes: Ints, limit: int) -> list[tuple[int, int]]:
    """(first, stop) of consecutive parts, each within the limit, or of one item that is not."""
    ends = np.cumsum(sizes)
    out, first, before = [], 0, 0
    while first < len(sizes):
        stop = max(first + 1, int(np.searchsorted(ends, before + limit, "right")))
        out.append((first, stop))
        first, before = stop, int(ends[stop - 1])
    return out


def lists(values: Values, start: Ints, length: Ints) -> pa.LargeListArray:
    """Lists of the values from start[i] on, length[i] of them, copied."""
    offsets = np.concatenate([[0], np.cumsum(length)])
    flat = np.empty(int(offsets[-1]), values.dtype)
    copy_lists(values, start, length, flat)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))


def _parts(array: pa.LargeListArray) -> tuple[Values, Ints]:
    """(values, offsets int64[d + 1]), without a copy; offsets may start above 0."""
    return np.asarray(array.values), np.asarray(array.offsets)


@njit(nogil=True, cache=True)
def copy_lists(values: Values, start: Ints, length: Ints, out: Values) -> None:
    """Copies the values from start[i] on, length[i] of them, one list after another."""
    at = 0
    for i in range(len(start)):
        out[at : at + length[i]] = values[start[i] : start[i] + length[i]]
        at += length[i]
