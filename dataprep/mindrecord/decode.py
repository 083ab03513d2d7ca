"""MindRecord blob rows back to int32 arrays; `encode` has the format.

The speed: a block of 32 elements of one width (most blocks are) is one widening copy, and a quad of
mixed widths one shuffle, of a table by its code byte. Both read ahead of what they know, so they
run while that lies inside the row; the last bytes go one by one.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit

from dataprep.mindrecord.encode import PREFIX, Int32, Int64
from dataprep.mindrecord.lanes import (
    ALL_INT8,
    ALL_INT16,
    ALL_INT32,
    BLOCK,
    QUAD_SIZES,
    SHIFTS,
    SPREAD,
    load_big_int,
    load_big_long,
    load_byte,
    load_long,
    prefetch,
    store_int,
    widen8,
    widen16,
    widen32,
    widen_quad,
)

SKIP = -1  # the length of a field that is not wanted
MOST = 4 * BLOCK  # bytes that a block of mixed widths can take


class DamagedRow(ValueError):
    """The bytes of a row are not what they should be."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
        """The first such row, counted from 0 in the call."""


def decode_rows(starts: Int64, stops: Int64, columns: Sequence[Int32 | None]) -> None:
    """Row i, of the bytes at addresses starts[i] to stops[i] - 1, to row i of every column.

    `columns`: int32 [rows, length] each, in C order, in alphabetical order of their names; None
    skips a field of any kind. The caller keeps the memory mapped; what it holds may be anything.
    Raises DamagedRow when the bytes of a row are not exactly arrays of these lengths.
    """
    rows, lengths, targets = len(starts), [], []
    for values in columns:
        if values is None:
            lengths.append(SKIP)
            targets.append(0)
            continue
        if values.dtype != np.int32 or len(values) != rows or not values.flags.c_contiguous:
            raise ValueError(f"{rows} rows do not go into {values.dtype} {values.shape}")
        lengths.append(values.shape[1])
        targets.append(values.ctypes.data)
    bad = _decode(starts, stops, np.array(targets), np.array(lengths))
    if bad >= 0:
        wanted = [length for length in lengths if length != SKIP]
        raise DamagedRow(bad, f"it does not hold arrays of lengths {wanted}")


@njit(nogil=True, cache=True)
def _decode(starts: Int64, stops: Int64, columns: Int64, lengths: Int64) -> int:
    """Decodes rows to the int32 [rows, lengths[c]] at columns[c].

    Returns the first row that is damaged, or -1. Never reads at or past stops[i].
    """
    several = len(lengths) > 1
    for i in range(len(starts)):
        p, stop = starts[i], stops[i]
        # Rows come in any order, which no processor foresees: ask for the next one's bytes as this
        # one's go by.
        ahead = starts[i + 1] - p if i + 1 < len(starts) else 0
        if stop - p < PREFIX or load_long(p) != stop - p - PREFIX:
            return i
        p += PREFIX
        for c in range(len(lengths)):
            length, size = lengths[c], stop - p
            if several:
                if size < PREFIX:
                    return i
                size = load_big_long(p)
                p += PREFIX
                if size < 0 or size > stop - p:
                    return i
            end = p + size
            if length != SKIP:
                codes = p + 4
                if codes + (length + 3) // 4 > end or load_big_int(p) != length:
                    return i
                if _decode_field(codes, stop, columns[c] + 4 * length * i, length, ahead) != end:
                    return i
            p = end
        if p != stop:
            return i
    return -1


@njit(nogil=True, cache=True)
def _decode_field(codes: int, stop: int, out: int, length: int, ahead: int) -> int:
    """Decodes the field whose width codes begin at `codes`; where it ends, behind `stop` if bad."""
    p = codes + (length + 3) // 4
    for line in range(codes, p, 64):
        prefetch(line + ahead)
    done = 0
    while done + BLOCK <= length:
        word = load_long(codes + done // 4)
        if word == ALL_INT16 and p + 2 * BLOCK <= stop:
            widen16(p, out)
            prefetch(p + ahead)
            p += 2 * BLOCK
        elif word == ALL_INT8 and p + BLOCK <= stop:
            widen8(p, out)
            prefetch(p + ahead)
            p += BLOCK
        elif p + MOST > stop or word & word >> 1 & ALL_INT16:  # code 3 has both its bits set
            break
        elif word == ALL_INT32:
            widen32(p, out)
            prefetch(p + ahead)
            prefetch(p + ahead + 64)
            p += MOST
        else:
            prefetch(p + ahead)
            prefetch(p + ahead + 64)
            for quad in range(BLOCK // 4):
                code = word >> 8 * quad & 255
                spread, shifts = SPREAD.ctypes.data + 16 * code, SHIFTS.ctypes.data + 16 * code
                widen_quad(p, out + 16 * quad, spread, shifts)
                p += QUAD_SIZES[code]
        out += MOST
        done += BLOCK
    while done + 4 <= length and p + 16 <= stop:
        code = load_byte(codes + done // 4)
        if code & code >> 1 & 0x55:
            break
        widen_quad(p, out, SPREAD.ctypes.data + 16 * code, SHIFTS.ctypes.data + 16 * code)
        p += QUAD_SIZES[code]
        out += 16
        done += 4
    while done < length:
        code = load_byte(codes + done // 4) >> (6 - 2 * (done & 3)) & 3
        width = 1 << code
        if code == 3 or p + width > stop:
            return stop + 1
        value = np.int64(0)
        for k in range(width):
            value |= load_byte(p + k) << 8 * k
        shift = 64 - 8 * width
        store_int(value << shift >> shift, out)
        p += width
        out += 4
        done += 1
    return p
