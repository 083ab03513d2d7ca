"""Pieces and tokens become the columns of training rows.

    documents [1,2] and [3,4,5,6,7], S = 6, isolated; the 7 stands in another row

    tokens          1    2    3    4    5    6    7     S + 1: the last is a target only
    labels          2 -100    4    5    6    7          the token after, in the same document
    loss_mask       1    0    1    1    1    1          label is not -100
    position_ids    0    1    0    1    2    3          counted within the document's piece
    actual_seq_len  2 6 6 6 ...                         ends of the pieces, then S
    segments        2 5 0 0 ...                         lengths of the pieces among the S + 1 tokens

A document cut at a row's end has its next token as the last label there, so every token but a
document's first is a target exactly once. Where none goes on, the last token is the pad id.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.pack.place import Ints, Pieces

Int32 = npt.NDArray[np.int32]
IGNORE = -100


@dataclass(frozen=True)
class Rows:
    """n rows, all that may be stored of them. Arrays int32."""

    tokens: Int32
    """[n, S + 1]"""
    labels: Int32
    """[n, S], shifted once."""
    position_ids: Int32
    """[n, S]"""
    actual_seq_len: Int32
    """[n, K], K = 0 when documents are not isolated."""
    segments: Int32
    """[n, max(K, 1)]; not isolated: all used slots are one."""

    @property
    def trained(self) -> int:
        """Number of targets."""
        return int(np.count_nonzero(self.labels != IGNORE))

    def columns(self, wanted: Mapping[str, int]) -> dict[str, Int32]:
        """The columns to store, name -> length as in `pack.columns.column_lengths`."""
        seq_length = self.labels.shape[1]
        out = {}
        for name, length in wanted.items():
            if name == "input_ids":
                out[name] = self.tokens[:, :length]
            elif name == "labels" and length > seq_length:
                first = np.full((len(self.labels), 1), IGNORE, np.int32)
                out[name] = np.concatenate([first, self.labels], axis=1)
            elif name == "loss_mask":
                out[name] = (self.labels != IGNORE).astype(np.int32)
            else:
                out[name] = getattr(self, name)
        return out


def make_rows(
    pieces: Pieces,
    first: int,
    stop: int,
    tokens: Int32,
    offsets: Ints,
    seq_length: int,
    pad_id: int,
    ends: int,
) -> Rows:
    """Rows first..stop-1 (n).

    tokens: int32, all documents flat; offsets: int64[d+1]. ends = 0: documents are not isolated,
    and positions run through the row.
    """
    n = stop - first
    rows = Rows(
        tokens=np.full((n, seq_length + 1), pad_id, np.int32),
        labels=np.full((n, seq_length), IGNORE, np.int32),
        position_ids=np.zeros((n, seq_length), np.int32),
        actual_seq_len=np.full((n, ends), seq_length, np.int32),
        segments=np.zeros((n, max(ends, 1)), np.int32),
    )
    lo, hi = np.searchsorted(pieces.row, [first, stop])
    _fill(
        pieces.row[lo:hi] - first,
        pieces.start[lo:hi],
        pieces.document[lo:hi],
        pieces.token_start[lo:hi],
        pieces.length[lo:hi],
        tokens,
        offsets,
        rows.tokens,
        rows.labels,
        rows.position_ids,
        rows.actual_seq_len,
        rows.segments,
    )
    return rows


@njit(nogil=True, cache=True)
def _fill(
    row: Ints,
    start: Ints,
    document: Ints,
    token_start: Ints,
    length: Ints,
    tokens: Int32,
    offsets: Ints,
    ids: Int32,
    labels: Int32,
    positions: Int32,
    ends: Int32,
    segments: Int32,
) -> None:
    isolated = ends.shape[1] > 0
    seq_length = labels.shape[1]
    nth = 0  # of the piece in its row
    for p in range(len(row)):
        nth = nth + 1 if p > 0 and row[p] == row[p - 1] else 0
        r, s = row[p], start[p]
        t = offsets[document[p]] + token_start[p]
        rest = offsets[document[p] + 1] - t  # tokens of the document from here on
        for j in range(length[p]):
            ids[r, s + j] = tokens[t + j]
            if j + 1 < rest:
                labels[r, s + j] = tokens[t + j + 1]
            positions[r, s + j] = j if isolated else s + j
        stop = s + length[p]
        segments[r, nth if isolated else 0] += length[p]
        if stop == seq_length and length[p] < rest:  # it goes on in another row
            ids[r, stop] = tokens[t + length[p]]
            segments[r, nth if isolated else 0] += 1
        if isolated and stop < seq_length:
            ends[r, nth] = stop
