"""Rows of int32 arrays to MindRecord blob rows; `decode` is the way back.

One blob row on disk (LE little-endian, BE big-endian):

    uint64 LE  bytes that follow
    field      one column:       the field alone
               several columns:  for each, in alphabetical order, uint64 BE length + field

and one field, an array of n integers, each stored in the fewest bytes that hold it:

    uint32 BE  n
    codes      ceil(n / 4) bytes: 2 bits an element, the first in the high bits;
               0, 1, 2 = int8, int16, int32; unused bits are 0
    elements   n signed integers, LE, of 1, 2 or 4 bytes

    [1, -100, 40000, 300]  ->  00 00 00 04 | 09 | 01 | 9c | 40 9c 00 00 | 2c 01
    (09 is 00 00 10 01 in bits: int8, int8, int32, int16)
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.mindrecord.lanes import (
    ALL_INT8,
    ALL_INT16,
    ALL_INT32,
    BLOCK,
    GATHER,
    QUAD_SIZES,
    code_word,
    load_int,
    narrow8,
    narrow16,
    narrow32,
    narrow_quad,
    store_big_int,
    store_big_long,
    store_byte,
    store_long,
)

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

PREFIX = 8  # bytes of a length prefix, of a row or of a field


def most_bytes(lengths: Sequence[int]) -> int:
    """Most bytes a row of arrays of these lengths can take: all elements four bytes wide."""
    fields = sum(4 + (length + 3) // 4 + 4 * length for length in lengths)
    return PREFIX + fields + (PREFIX * len(lengths) if len(lengths) > 1 else 0)


def encode_rows(columns: Sequence[Int32], out: UInt8) -> Int64:
    """Encodes rows one after another from out[0].

    `columns`: int32 [rows, length] each, in C order, in alphabetical order of their names. `out`
    must have room for rows of the most bytes they can take; what is beyond the rows is scratch.
    Returns int64 [rows + 1]: row i is out[offsets[i]:offsets[i + 1]].
    """
    offsets = np.empty(len(columns[0]) + 1, np.int64)
    shapes = [(values.dtype, values.shape[0], values.flags.c_contiguous) for values in columns]
    if shapes != [(np.int32, len(columns[0]), True)] * len(columns):
        raise ValueError(f"columns are {shapes}, not int32 arrays of equal rows in C order")
    lengths = [values.shape[1] for values in columns]
    if len(columns[0]) * most_bytes(lengths) > len(out):
        raise ValueError(f"{len(columns[0])} rows may not fit a buffer of {len(out)} bytes")
    addresses = np.array([values.ctypes.data for values in columns])
    _encode(addresses, np.array(lengths), out.ctypes.data, offsets)
    return offsets


@njit(nogil=True, cache=True)
def _encode(columns: Int64, lengths: Int64, out: int, offsets: Int64) -> None:
    """Encodes the rows of the int32 [rows, lengths[c]] at columns[c] to `out`, fills offsets."""
    p = out
    for i in range(len(offsets) - 1):
        row = p
        offsets[i] = row - out
        p += PREFIX
        for c in range(len(lengths)):
            start = p + (PREFIX if len(lengths) > 1 else 0)
            store_big_int(lengths[c], start)
            p = _encode_field(columns[c] + 4 * lengths[c] * i, lengths[c], start + 4)
            if len(lengths) > 1:
                store_big_long(p - start, start - PREFIX)
        store_long(p - row - PREFIX, row)
    offsets[-1] = p - out


@njit(nogil=True, cache=True)
def _encode_field(values: int, length: int, codes: int) -> int:
    """Writes width codes at `codes` and elements behind them; where the field ends.

    A block of one width is one narrowing copy; a quad of mixed widths one shuffle. Both write more
    than they need, never more than their elements can take, and what follows overwrites the rest.
    """
    p = codes + (length + 3) // 4
    done = 0
    while done + BLOCK <= length:
        word = code_word(values)
        store_long(word, codes)
        if word == ALL_INT16:
            narrow16(values, p)
            p += 2 * BLOCK
        elif word == ALL_INT8:
            narrow8(values, p)
            p += BLOCK
        elif word == ALL_INT32:
            narrow32(values, p)
            p += 4 * BLOCK
        else:
            for quad in range(BLOCK // 4):
                code = word >> 8 * quad & 255
                narrow_quad(values + 16 * quad, p, GATHER.ctypes.data + 16 * code)
                p += QUAD_SIZES[code]
        codes += BLOCK // 4
        values += 4 * BLOCK
        done += BLOCK
    packed = 0
    while done < length:
        value = load_int(values)
        code = int(value != np.int8(value)) + int(value != np.int16(value))
        packed |= code << (6 - 2 * (done & 3))
        if done & 3 == 3 or done == length - 1:
            store_byte(packed, codes)
            codes += 1
            packed = 0
        for k in range(1 << code):
            store_byte(value >> 8 * k, p + k)
        p += 1 << code
        values += 4
        done += 1
    return p
