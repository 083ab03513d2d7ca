"""Pieces and tokens become the columns of training rows.

    documents [1,2] and [3,4,5], S = 6, isolated

    input_ids       1    2    3    4    5  pad
    labels          2 -100    4    5 -100 -100     the token after, in the same document
    loss_mask       1    0    1    1    0    0     label is not -100
    position_ids    0    1    0    1    2    0     counted within the document's piece
    actual_seq_len  2 5 6 6 ...                    ends of the pieces, then S

A document cut at a row's end has its next token as the last label there, so every token but a
document's first is a target exactly once.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.pack.place import Ints, Pieces

Int32 = npt.NDArray[np.int32]
IGNORE = -100


def make_rows(
    pieces: Pieces,
    first: int,
    stop: int,
    tokens: Int32,
    offsets: Ints,
    seq_length: int,
    pad_id: int,
    ends: int,
) -> dict[str, Int32]:
    """Columns of rows first..stop-1: int32[n, S] each, and int32[n, ends] `actual_seq_len`.

    tokens: int32, all documents flat; offsets: int64[d+1]. ends = 0: documents are not isolated,
    positions run through the row and there is no `actual_seq_len`.
    """
    n = stop - first
    ids = np.full((n, seq_length), pad_id, np.int32)
    labels = np.full((n, seq_length), IGNORE, np.int32)
    positions = np.zeros((n, seq_length), np.int32)
    lengths = np.full((n, ends), seq_length, np.int32)
    lo, hi = np.searchsorted(pieces.row, [first, stop])
    _fill(
        pieces.row[lo:hi] - first,
        pieces.start[lo:hi],
        pieces.document[lo:hi],
        pieces.token_start[lo:hi],
        pieces.length[lo:hi],
        tokens,
        offsets,
        ids,
        labels,
        positions,
        lengths,
    )
    columns = {
        "input_ids": ids,
        "labels": labels,
        "loss_mask": (labels != IGNORE).astype(np.int32),
        "position_ids": positions,
    }
    if ends:
        columns["actual_seq_len"] = lengths
    return columns


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
    lengths: Int32,
) -> None:
    isolated = lengths.shape[1] > 0
    seq_length = ids.shape[1]
    nth = 0  # of the piece in its row
    for p in range(len(row)):
        nth = nth + 1 if p > 0 and row[p] == row[p - 1] else 0
        r, s = row[p], start[p]
        t = offsets[document[p]] + token_start[p]
        end = offsets[document[p] + 1]
        for j in range(length[p]):
            ids[r, s + j] = tokens[t + j]
            if t + j + 1 < end:
                labels[r, s + j] = tokens[t + j + 1]
            positions[r, s + j] = j if isolated else s + j
        if isolated and s + length[p] < seq_length:
            lengths[r, nth] = s + length[p]
