"""Where the rows of a page lie: each begins with its length, so from one follows the next."""

import numpy as np
from numba import njit

from dataprep.mindrecord.encode import PREFIX, Int64
from dataprep.mindrecord.lanes import load_long


def row_ends(address: int, size: int, rows: int, more: bool = False) -> Int64:
    """int64 [rows]: one past the last byte of every row, counted from `address`.

    The page's rows begin at `address` and must fill `size` bytes, unless `more` may follow; the
    caller keeps the memory mapped. Raises ValueError, naming the first row (from 0) whose length
    cannot be.
    """
    ends = np.zeros(rows, np.int64)
    good = _walk(address, size, ends)
    if good < rows:
        at = ends[good - 1] if good else 0
        raise ValueError(f"the length of its row {good} (byte {at:,} of the page) is damaged")
    if not more and rows and ends[-1] != size:
        raise ValueError(f"its {rows:,} rows end at byte {ends[-1]:,} of {size:,}")
    return ends


@njit(nogil=True, cache=True)
def _walk(address: int, size: int, ends: Int64) -> int:
    """Fills `ends`; the number of rows that lie in `size` bytes."""
    at = np.int64(0)
    for i in range(len(ends)):
        if size - at < PREFIX:
            return i
        length = load_long(address + at)
        if length < 0 or length > size - at - PREFIX:
            return i
        at += PREFIX + length
        ends[i] = at
    return len(ends)
