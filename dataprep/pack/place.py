"""Where each token goes: documents are laid into rows of S slots, before any token is touched.

A piece is a run of one document's tokens in one row:

    S = 4, documents of 5, 2, 3, 1 tokens

    concat    row 0  0 0 0 0      best_fit  row 0  0 0 0 0     a full row of document 0
              row 1  0 1 1 2                row 1  2 2 2 0     and its rest where it fits best
              row 2  2 2 3 .                row 2  1 1 3 .

Every token is placed exactly once. A document longer than S is cut into full rows and a rest.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """All pieces of a shard, sorted by (row, start); arrays int64[p]."""

    row: Ints
    start: Ints
    """First slot in the row."""
    document: Ints
    token_start: Ints
    """First token in the document."""
    length: Ints

    @property
    def rows(self) -> int:
        """Number of rows used."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def place_concat(lengths: Ints, seq_length: int, max_documents: int) -> Pieces:
    """Documents one after another; only the last row, or one with max_documents, is padded.

    lengths: int64[d], each >= 1.
    """
    # A document touches at most length / S + 2 rows, and a full row ends no document early.
    n = int((lengths // seq_length + 2).sum())
    out = np.empty((n, 5), np.int64)
    return _pieces(out[: _concat(lengths, seq_length, max_documents, out)])


@njit(nogil=True, cache=True)
def _concat(lengths: Ints, seq_length: int, max_documents: int, out: Ints) -> int:
    n = row = slot = documents = 0
    for d in range(len(lengths)):
        token = 0
        while token < lengths[d]:
            if slot == seq_length or documents == max_documents:
                row, slot, documents = row + 1, 0, 0
            size = min(lengths[d] - token, seq_length - slot)
            out[n] = (row, slot, d, token, size)
            n, slot, token, documents = n + 1, slot + size, token + size, documents + 1
    return n


def place_best_fit(lengths: Ints, seq_length: int, max_documents: int) -> Pieces:
    """Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").

    No document is cut that fits into a row. Rows are ordered by the document that opened them, so
    that the order of rows is as mixed as the order of documents.
    """
    full = lengths // seq_length
    rest = lengths - full * seq_length
    # Full rows: document d contributes full[d] of them.
    documents = np.repeat(np.arange(len(lengths)), full)
    chunk = np.arange(len(documents)) - np.repeat(np.cumsum(full) - full, full)
    # Rests, longest first; equal ones in document order.
    items = np.flatnonzero(rest)
    items = items[np.argsort(-rest[items], kind="stable")]
    every = np.empty((len(documents) + len(items), 5), np.int64)
    rows, rests = every[: len(documents)], every[len(documents) :]
    _fill(rows, np.arange(len(rows)), 0, documents, chunk * seq_length, seq_length)
    bins, starts = _best_fit(rest[items], seq_length, max_documents)
    _fill(rests, bins + len(rows), starts, items, full[items] * seq_length, rest[items])
    del documents, chunk, items, bins, starts
    # Number the rows by their opener (the piece at slot 0): its document, then its place in it.
    openers = every[every[:, 1] == 0]
    order = np.lexsort((openers[:, 3], openers[:, 2]))
    number = np.empty(len(openers), np.int64)
    number[openers[order, 0]] = np.arange(len(openers))
    every[:, 0] = number[every[:, 0]]
    del openers, order, number
    return _pieces(every, np.lexsort((every[:, 1], every[:, 0])))


def _fill(table: Ints, *columns: Ints | int) -> None:
    for i, column in enumerate(columns):
        table[:, i] = column


def _pieces(table: Ints, order: Ints | slice = slice(None)) -> Pieces:
    return Pieces(*(np.ascontiguousarray(table[order, i]) for i in range(5)))


@njit(nogil=True, cache=True)
def _best_fit(sizes: Ints, capacity: int, max_items: int) -> tuple[Ints, Ints]:
    """(bin, start) of each item; sizes descending, each in 1..capacity - 1.

    Bins wait in a stack for each amount of free space; a binary tree over the amounts holds how
    many wait below each node, which finds the smallest sufficient amount in O(log capacity).
    """
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    waiting = np.zeros(2 * leaves, np.int64)
    top = np.full(capacity + 1, -1, np.int64)
    below = np.empty(len(sizes), np.int64)
    held = np.zeros(len(sizes), np.int64)
    bins, starts = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    n = 0
    for i in range(len(sizes)):
        free = _smallest_at_least(waiting, leaves, sizes[i])
        if free < 0:
            b, free, n = n, capacity, n + 1
        else:
            b = top[free]
            top[free] = below[b]
            _add(waiting, leaves + free, -1)
        bins[i], starts[i] = b, capacity - free
        held[b] += 1
        free -= sizes[i]
        if free > 0 and held[b] < max_items:
            below[b] = top[free]
            top[free] = b
            _add(waiting, leaves + free, 1)
    return bins, starts


@njit(nogil=True, cache=True, inline="always")
def _add(waiting: Ints, node: int, n: int) -> None:
    while node >= 1:
        waiting[node] += n
        node //= 2


@njit(nogil=True, cache=True, inline="always")
def _smallest_at_least(waiting: Ints, leaves: int, size: int) -> int:
    """Smallest amount >= size at which a bin waits, or -1."""
    node = leaves + size
    if waiting[node]:
        return size
    while node > 1:  # climb until a right sibling has something
        if node % 2 == 0 and waiting[node + 1]:
            node += 1
            while node < leaves:  # then down to its leftmost
                node = 2 * node if waiting[2 * node] else 2 * node + 1
            return node - leaves
        node //= 2
    return -1
