"""Rows of int32 arrays to MindRecord blob rows and back: the hot loops.

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

Columns go through the kernels one at a time, as int32 [rows, length] in C order.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

PREFIX = 8  # bytes of a length prefix, of a row or of a field


def field_bytes(length: int) -> int:
    """Most bytes a field of `length` elements can take: all of them four bytes wide."""
    return 4 + (length + 3) // 4 + 4 * length


def row_sizes(columns: Sequence[Int32]) -> Int64:
    """Exact encoded bytes of every row, its prefix included; columns in alphabetical order."""
    sizes = np.full(len(columns[0]), PREFIX, np.int64)
    for values in columns:
        _add_field_sizes(values, sizes)
    return sizes + (PREFIX * len(columns) if len(columns) > 1 else 0)


def encode_rows(columns: Sequence[Int32], sizes: Int64, out: UInt8) -> Int64:
    """Encodes rows one after another from out[0]; columns in alphabetical order.

    `sizes` is `row_sizes(columns)`, and `out` must hold their sum.
    Returns int64 [rows + 1]: row i is out[offsets[i]:offsets[i + 1]].
    """
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > len(out):
        raise ValueError(f"{offsets[-1]} bytes of rows do not fit a buffer of {len(out)}")
    prefixes = np.ascontiguousarray(sizes - PREFIX).astype("<u8").view(np.uint8)
    out[offsets[:-1, None] + np.arange(PREFIX)] = prefixes.reshape(-1, PREFIX)
    at = offsets[:-1] + PREFIX
    for values in columns:
        _encode_field(values, len(columns) > 1, out, at)
    return offsets


def decode_rows(data: UInt8, starts: Int64, stops: Int64, lengths: Sequence[int]) -> list[Int32]:
    """The inverse: row i is data[starts[i]:stops[i]]; `lengths` are the columns', alphabetically.

    Returns one int32 [rows, length] per column. Raises ValueError, naming the first row (counted
    from 0 in this call), when the bytes of a row do not decode to exactly these columns.
    """
    columns = [np.empty((len(starts), length), np.int32) for length in lengths]
    at = starts + PREFIX
    bad = _bad_prefix(data, starts, stops)
    for values in columns:
        if bad < 0:
            bad = _decode_field(data, len(columns) > 1, at, stops, values)
    if bad < 0 and not np.array_equal(at, stops):
        bad = int(np.argmax(at != stops))
    if bad >= 0:
        raise ValueError(f"row {bad} does not hold arrays of lengths {list(lengths)}")
    return columns


@njit(nogil=True, cache=True)
def _add_field_sizes(values: Int32, sizes: Int64) -> None:
    """Adds the encoded bytes of a column's field to sizes[row]."""
    rows, length = values.shape
    for i in range(rows):
        width = np.int32(0)
        for j in range(length):
            v = values[i, j]
            width += np.int32(1) + (v != np.int8(v)) + np.int32(2) * (v != np.int16(v))
        sizes[i] += 4 + (length + 3) // 4 + width


@njit(nogil=True, cache=True)
def _encode_field(values: Int32, prefixed: bool, out: UInt8, at: Int64) -> None:
    """Writes a column's field of row i at out[at[i]] and moves at[i] behind it.

    Every element is stored as four bytes and the next one overwrites what it does not need, which
    spares a hard-to-predict branch; only the last three must not touch what follows the field.
    """
    rows, length = values.shape
    one = np.uint64(1)
    for i in range(rows):
        start = np.uint64(at[i])
        code_at = start + np.uint64(12 if prefixed else 4)
        p = code_at + np.uint64((length + 3) // 4)
        for k in range(4):
            out[code_at - np.uint64(k + 1)] = length >> (8 * k)
        packed = np.int64(0)
        for j in range(length):
            v = values[i, j]
            code = np.int64(v != np.int8(v)) + np.int64(v != np.int16(v))
            packed = packed << 2 | code
            if j & 3 == 3:
                out[code_at] = packed
                code_at += one
                packed = np.int64(0)
            width = one << np.uint64(code)
            if j < length - 3:
                out[p] = v
                out[p + one] = v >> 8
                out[p + np.uint64(2)] = v >> 16
                out[p + np.uint64(3)] = v >> 24
            else:
                for k in range(width):
                    out[p + np.uint64(k)] = v >> (8 * k)
            p += width
        if length & 3:
            out[code_at] = packed << 2 * (4 - (length & 3))
        if prefixed:
            size = p - start - np.uint64(8)
            for k in range(8):
                out[start + np.uint64(7 - k)] = size >> np.uint64(8 * k)
        at[i] = p


@njit(nogil=True, cache=True)
def _bad_prefix(data: UInt8, starts: Int64, stops: Int64) -> int:
    """The first row whose length prefix contradicts its place; -1 when there is none."""
    for i in range(len(starts)):
        if starts[i] < 0 or stops[i] > len(data) or stops[i] - starts[i] < 8:
            return i
        size = np.uint64(0)
        for k in range(8):
            size |= np.uint64(data[starts[i] + k]) << np.uint64(8 * k)
        if size != np.uint64(stops[i] - starts[i] - 8):
            return i
    return -1


@njit(nogil=True, cache=True)
def _decode_field(data: UInt8, prefixed: bool, at: Int64, stops: Int64, values: Int32) -> int:
    """Reads a column's field of row i at data[at[i]] and moves at[i] behind it.

    Returns the first row that is damaged, or -1. Never reads at or past stops[i].
    """
    rows, length = values.shape
    n_codes = (length + 3) // 4
    for i in range(rows):
        p, stop = at[i], stops[i]
        if p + (12 if prefixed else 4) + n_codes > stop:
            return i
        size = np.uint64(0)
        if prefixed:
            for k in range(8):
                size = size << np.uint64(8) | np.uint64(data[p + k])
            p += 8
        body = p
        count = np.int64(0)
        for k in range(4):
            count = count << 8 | np.int64(data[p + k])
        if count != length:
            return i
        code_at = p + 4
        p = code_at + n_codes
        for j in range(length):
            code = data[code_at + (j >> 2)] >> (6 - 2 * (j & 3)) & 3
            width = 1 << code
            if code == 3 or p + width > stop:
                return i
            v = np.uint32(0)
            for k in range(width):
                v |= np.uint32(data[p + k]) << np.uint32(8 * k)
            shift = np.int32(32 - 8 * width)
            values[i, j] = np.int32(v << np.uint32(shift)) >> shift
            p += width
        if prefixed and size != np.uint64(p - body):
            return i
        at[i] = p
    return -1
