"""Several output folders read as one, each by its weight.

`weight` is the passes over a folder in one epoch of the mix, as in the build: 2.0 twice, 0.5 a half
of it, the other half in the next epoch. Folder f with N_f rows gives c_f = weight x N_f rows
(rounded, at least 1) to each epoch, and an epoch of the mix has N = sum of c_f rows. Every folder
is an endless stream of its own epochs, each in its own order; epoch e of the mix takes rows
e x c_f … (e + 1) x c_f - 1 of it, so that no row is lost or repeated between a folder's passes.

Within an epoch the folders alternate as evenly as they can: row k of folder f is due at the share
(2k + 1) / 2c_f of the epoch, and rows come in the order in which they are due, folders listed
earlier first. For c = 4 and 2:

    due       1/8  1/4  3/8  5/8  3/4  7/8
    folder     0    1    0    0    1    0
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.errors import UserError
from training.order import Int64, order

Int32 = npt.NDArray[np.int32]
MOST = 10**9  # rows of a folder in an epoch of a mix
BOUND = 2**63 - 1  # of the products of rows that `alternate` compares


@dataclass(frozen=True)
class Mix:
    """The order of a mix; one folder of weight 1 is that folder's own order."""

    folder_rows: tuple[int, ...]
    """N_f."""
    counts: tuple[int, ...]
    """c_f."""
    seed: int | None
    """None: each folder in its stored order."""

    @property
    def rows(self) -> int:
        """Rows of an epoch of the mix (N)."""
        return sum(self.counts)

    def places(self, positions: Int64) -> tuple[Int32, Int64]:
        """(folder, which of its c_f rows) at ascending positions of any epoch."""
        if len(self.counts) == 1:
            return np.zeros(len(positions), np.int32), positions
        return alternate(np.array(self.counts, np.int64), positions)

    def folder_order(self, folder: int, epoch: int, nth: Int64) -> Int64:
        """Row numbers in a folder of its rows `nth` of an epoch of the mix."""
        rows = self.folder_rows[folder]
        passes, position = np.divmod(epoch * self.counts[folder] + nth, rows)
        out = np.empty(len(nth), np.int64)
        for number in np.unique(passes).tolist():
            some = passes == number
            out[some] = order(position[some], rows, self.seed, number, folder)
        return out

    def rows_at(self, epoch: int, positions: Int64) -> tuple[Int32, Int64]:
        """(folder, row number in it) at ascending positions of an epoch."""
        folders, nth = self.places(positions)
        rows = np.empty(len(positions), np.int64)
        for folder in range(len(self.counts)):
            ours = folders == folder
            rows[ours] = self.folder_order(folder, epoch, nth[ours])
        return folders, rows


def mix_of(folder_rows: Sequence[int], weights: Sequence[float], seed: int | None) -> Mix:
    """The mix of folders with these numbers of rows."""
    counts = tuple(max(1, int(w * n + 0.5)) for w, n in zip(weights, folder_rows, strict=True))
    if len(counts) > 1 and max(counts) > MOST:
        raise UserError(
            f"data.weight: a folder gives {max(counts):,} rows to an epoch of the mix; give "
            f"weights by which it is at most {MOST:,}"
        )
    if len(counts) > 1 and (2 * max(counts) + 1) * sum(counts) > BOUND:
        raise UserError(
            f"data.weight: {len(counts)} folders give {sum(counts):,} rows to an epoch of the mix, "
            f"and one of them {max(counts):,}; give smaller weights"
        )
    return Mix(tuple(folder_rows), counts, seed)


@njit(nogil=True, cache=True)
def alternate(counts: Int64, positions: Int64) -> tuple[Int32, Int64]:
    """(folder, which of its rows in this epoch) at ascending positions of an epoch of the mix.

    counts: c_f, each at most MOST. Nothing before the first position is walked through.
    """
    folders = len(counts)
    total = np.sum(counts)
    out = np.empty(len(positions), np.int32)
    nth = np.empty(len(positions), np.int64)
    if len(positions) == 0:
        return out, nth
    # floor(x c_f + 1/2) rows of f are due until the share x, so at most x N + F / 2 of all: until
    # (first position - F) / N no more than come before the first position.
    before = max(np.int64(0), positions[0] - folders)
    taken = np.empty(folders, np.int64)
    for f in range(folders):
        taken[f] = (2 * before * counts[f] + total) // (2 * total)
    at = np.sum(taken)
    for i in range(len(positions)):
        best = 0
        while at <= positions[i]:
            best = -1
            for f in range(folders):
                if taken[f] < counts[f] and (
                    best < 0
                    or (2 * taken[f] + 1) * counts[best] < (2 * taken[best] + 1) * counts[f]
                ):
                    best = f
            taken[best] += 1
            at += 1
        out[i], nth[i] = best, taken[best] - 1
    return out, nth
