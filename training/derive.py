"""From stored columns to the batch that a trainer wants, equal for every preset.

    input_ids labels loss_mask position_ids segments      int32 [B, S] each

`labels` is the next token of the same document, else -100; `loss_mask` is 1 where there is a
label; `position_ids` count within a document; `segments` says which run of its row a slot belongs
to (padding after the last document is one more run). With S = 6, documents [1,2] and [3,4,5]:

    input_ids     1    2    3    4    5    0
    labels        2 -100    4    5 -100 -100
    loss_mask     1    0    1    1    0    0
    position_ids  0    1    0    1    2    0
    segments      0    0    1    1    1    2

Where documents are not isolated, positions number the used slots of the row and segments are 0.

Rows are stored in one of two forms: S tokens with their labels, positions and ends of documents
(`mindformers` and lists of columns), or S + 1 tokens, from which with the lengths of the documents'
runs all else follows. `compact` stores these lengths; for `legacy`, and for what a list of columns
lacks, they come from the audit (runs.py). A compiled kernel makes one pass over a batch and checks
every id on the way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.errors import UserError
from dataprep.manifest import Manifest

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Batch = dict[str, Int32]
RunLengths = tuple[Int32, Int64, Int64]
"""(pool, starts, stops): the run lengths of row i are pool[starts[i]:stops[i]]."""
COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids", "segments")
ENDS = "actual_seq_len"
IGNORE = -100


def needed_columns(manifest: Manifest) -> list[str]:
    """The stored columns that a batch is made of, in their order.

    Raises UserError when batches cannot be made of what is stored.
    """
    stored = manifest.columns
    if stored.get("input_ids") == manifest.seq_length + 1:
        return list(stored)
    if "labels" not in stored:
        raise UserError(
            f"write.columns was {list(stored)}: without labels the last slot of a row has no "
            "target; build it with labels among them, or with write.columns: legacy or compact"
        )
    return [name for name in stored if name != "loss_mask"]  # 1 where there is a label


def needs_audit(manifest: Manifest) -> bool:
    """Whether the borders of documents must come from audit/rows."""
    stored = manifest.columns
    if stored["input_ids"] == manifest.seq_length + 1:
        return "segments" not in stored
    return "position_ids" not in stored or (manifest.isolate_documents and ENDS not in stored)


@dataclass(frozen=True)
class Derive:
    """Turns rows of one folder, as they are stored, into a batch."""

    manifest: Manifest
    vocab_size: int
    """All ids and labels must be below."""
    runs: Callable[[Int64], RunLengths] | None
    """Run lengths of rows from the audit; None unless `needs_audit`."""
    named: Callable[[int], str]
    """How an error names a row of the folder."""

    def __call__(self, stored: Batch, rows: Int64) -> Batch:
        """A block of any number n of rows.

        stored: the `needed_columns`, int32 [n, length] in C order; rows: int64[n], their numbers.
        Columns that are stored as they should be are passed on without a copy. Raises UserError,
        naming the row, for an id outside the vocabulary or runs that do not fit their row.
        """
        size, isolated = self.manifest.seq_length, self.manifest.isolate_documents
        shape = (len(rows), size)
        ids = stored["input_ids"]
        if ids.shape[1] == size + 1:
            lengths = self.runs(rows) if self.runs else _dense(stored["segments"])
            # One block for all: the allocator keeps and hands out such a size without new pages.
            batch = dict(zip(COLUMNS, np.empty((len(COLUMNS), *shape), np.int32)))
            given = stored.get("labels", _NONE), stored.get("loss_mask", _NONE)
            bad = whole(ids, *given, *lengths, isolated, self.vocab_size, *batch.values())
        else:
            mask, segments = np.empty(shape, np.int32), np.empty(shape, np.int32)
            ends = stored.get(ENDS, _NONE)
            bad = shifted(ids, stored["labels"], ends, self.vocab_size, mask, segments)
            positions = stored.get("position_ids")
            if self.runs and bad < 0:
                positions = np.empty(shape, np.int32)
                bad = fill(*self.runs(rows), isolated, positions, segments)
            columns = (ids, stored["labels"], mask, positions, segments)
            batch = dict(zip(COLUMNS, columns, strict=True))
        if bad >= 0:
            raise self._error(stored, bad, int(rows[bad]))
        return batch

    def _error(self, stored: Batch, i: int, row: int) -> UserError:
        for name in ("input_ids", "labels"):
            ids = stored.get(name, _NONE)[i : i + 1]
            wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
            if name == "labels":
                wrong = wrong[wrong != IGNORE]
            if wrong.size:
                return UserError(
                    f"{name} has the id {wrong[0]} in {self.named(row)}, outside the vocabulary of "
                    f"{self.vocab_size}; raise model.vocab_size, or build the data again if it is "
                    "below 0"
                )
        return UserError(
            f"the lengths of the documents in {self.named(row)} do not fit the row; run verify on "
            "its folder"
        )


_NONE = np.zeros((0, 0), np.int32)


def _dense(segments: Int32) -> RunLengths:
    """Rows of a stored `segments` column as run lengths; zeros behind the last are empty runs."""
    stops = np.arange(1, len(segments) + 1) * segments.shape[1]
    return segments.reshape(-1), stops - segments.shape[1], stops


@njit(nogil=True, cache=True)
def whole(
    ids: Int32,
    labels: Int32,
    mask: Int32,
    pool: Int32,
    starts: Int64,
    stops: Int64,
    isolated: bool,
    vocab_size: int,
    out_ids: Int32,
    out_labels: Int32,
    out_mask: Int32,
    positions: Int32,
    segments: Int32,
) -> int:
    """S + 1 stored tokens a row; the first bad row, or -1.

    labels int32 [B, S+1], not shifted, or [0, 0]; mask int32 [B, S] or [0, 0]. Where neither is
    given, every token but the first of its run is a target.
    """
    rows, size = out_ids.shape
    for i in range(rows):
        for j in range(size):  # numba copies a slice three times as slowly
            out_ids[i, j] = ids[i, j]
        target = out_labels[i]
        if len(labels):
            for j in range(size):
                target[j] = labels[i, j + 1]
        elif len(mask):
            for j in range(size):
                target[j] = ids[i, j + 1] if mask[i, j] else IGNORE
        else:
            for j in range(size):
                target[j] = ids[i, j + 1]
            end = 0
            for k in range(starts[i], stops[i]):
                end += pool[k]
                if 0 < end <= size:
                    target[end - 1] = IGNORE
            target[max(end, 0) :] = IGNORE
        bad = _outside(ids[i], vocab_size)
        if len(labels):
            bad |= _outside_labels(target, vocab_size)
        for j in range(size):
            out_mask[i, j] = target[j] != IGNORE
        if bad:
            return i
    return fill(pool, starts, stops, isolated, positions, segments)


@njit(nogil=True, cache=True)
def shifted(
    ids: Int32, labels: Int32, ends: Int32, vocab_size: int, out_mask: Int32, segments: Int32
) -> int:
    """S stored tokens and labels a row; the first bad row, or -1.

    ends: cumulative ends of documents, int32 [B, K], or [0, 0] for segments of 0.
    """
    rows, size = ids.shape
    for i in range(rows):
        if _outside(ids[i], vocab_size) or _outside_labels(labels[i], vocab_size):
            return i
        for j in range(size):
            out_mask[i, j] = labels[i, j] != IGNORE
        done = 0
        for k in range(ends.shape[1] if len(ends) else 0):
            if not done <= ends[i, k] <= size:
                return i
            segments[i, done : ends[i, k]] = k
            done = ends[i, k]
            if done == size:
                break
        segments[i, done:] = ends.shape[1]
    return -1


@njit(nogil=True, cache=True)
def fill(
    pool: Int32, starts: Int64, stops: Int64, isolated: bool, positions: Int32, segments: Int32
) -> int:
    """Positions and segments of rows from their run lengths; the first bad row, or -1."""
    rows, size = positions.shape
    for i in range(rows):
        done = 0
        run = 0
        for k in range(starts[i], stops[i]):
            if not 0 <= pool[k] <= size + 1 - done:
                return i
            if pool[k] == 0:
                continue
            end = min(done + pool[k], size)
            first = done if isolated else 0
            for j in range(done, end):
                positions[i, j] = j - first
            segments[i, done:end] = run if isolated else 0
            run += 1
            done += pool[k]
        done = min(done, size)
        positions[i, done:] = 0
        segments[i, done:] = run if isolated else 0
    return -1


@njit(nogil=True, cache=True)
def _outside(ids: Int32, vocab_size: int) -> bool:
    bad: Any = False
    for j in range(len(ids)):
        bad |= np.uint32(ids[j]) >= np.uint32(vocab_size)
    return bad


@njit(nogil=True, cache=True)
def _outside_labels(labels: Int32, vocab_size: int) -> bool:
    bad: Any = False
    for j in range(len(labels)):
        bad |= (np.uint32(labels[j]) >= np.uint32(vocab_size)) & (labels[j] != IGNORE)
    return bad
