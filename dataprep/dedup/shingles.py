"""Hashes of token n-grams: from UTF-8 bytes to the set that near-duplicates are measured on.

The definition, all modulo 2**64 (`tests/dedup/test_shingles.py` is the same in plain Python):

    token    its lower-cased UTF-8 bytes as little-endian 64-bit words w1..wk, the last one filled
             with zeros (no token holds a zero byte); hash = mix64(s ^ wk),
             s = fold64(...fold64(0, w1)..., w(k-1))
    shingle  n tokens t1..tn; hash = mix64(n*Q**n + t1*Q**(n-1) + ... + tn)
             (a polynomial, so that it rolls: Karp, Rabin 1987)

A document of fewer than `ngram` tokens, but at least one, has one shingle: all its tokens. As the
number of tokens is in the hash, it is never an n-gram of another length.
"""

import numpy as np
from numba import njit

from dataprep.batch import Bytes, Offsets
from dataprep.dedup.hashing import I64, U64, fold64, frozen, mix64
from dataprep.dedup.words import (
    IDEOGRAPHS_END,
    MARK,
    SELECTORS,
    SELECTORS_END,
    SEPARATOR,
    SINGLE,
    TABLE_SIZE,
    WORD,
    word_table,
)

Q = np.uint64(0xD6E8FEB86659FD93)

_ZERO, _ONE, _S7, _S56 = (np.uint64(v) for v in (0, 1, 7, 56))
_HIGH = np.uint64(0x8080808080808080)
_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES = np.uint64(0x0101010101010101)
_CASE = np.uint64(0x2020202020202020)
_S2 = np.uint64(2)
# Added to a 7-bit byte, each turns the byte's high bit into the answer that its name asks for.
_GE_A, _GT_Z, _GE_0, _GT_9 = (np.uint64((0x80 - v) * int(_ONES)) for v in (0x61, 0x7B, 0x30, 0x3A))


def shingle(data: Bytes, offsets: Offsets, ngram: int) -> tuple[U64, I64]:
    """Shingle hashes of every document, in the order of the text, repeats included.

    data uint8[n], offsets int64[d+1]: flat valid UTF-8 as in `dataprep.batch`.
    Returns uint64[total] and int64[d+1]; a document without any token has no shingles.
    Raises ValueError when `ngram` is below 1.
    """
    if ngram < 1:
        raise ValueError(f"ngram is {ngram}; a shingle needs at least 1 token")
    docs = len(offsets) - 1
    # A token takes two bytes at least: one of its own and a separator, or three of its own.
    hashes = np.empty(int(offsets[-1] - offsets[0]) // 2 + docs + 1, np.uint64)
    out_offsets = np.zeros(docs + 1, np.int64)
    total = _shingle(frozen(data), frozen(offsets), ngram, word_table(), hashes, out_offsets)
    hashes.resize(total, refcheck=False)  # gives the unused tail back without a copy
    return hashes, out_offsets


@njit(nogil=True, cache=True)
def _shingle(
    data: Bytes, offsets: Offsets, ngram: int, table: np.ndarray, out: U64, out_offsets: I64
) -> int:
    """Fills `out` and `out_offsets`, returns the number of shingles."""
    end = 0
    for d in range(offsets.shape[0] - 1):
        tokens = _hash_tokens(data, offsets[d], offsets[d + 1], table, out[end:])
        end += _roll(out[end : end + tokens], ngram)
        out_offsets[d + 1] = end
    return end


@njit(nogil=True, cache=True)
def _roll(tokens: U64, ngram: int) -> int:
    """Replaces a document's token hashes by its shingle hashes, returns their number."""
    count = tokens.shape[0]
    if count == 0:
        return 0
    n = min(count, ngram)
    top = _ONE  # Q**(n-1), the factor of the token that leaves
    value = np.uint64(n)
    for i in range(n):
        value = value * Q + tokens[i]
        top = top * Q if i else top
    length = np.uint64(n) * top * Q  # the constant term is no token's and stays
    value -= length
    for i in range(count - n):
        first = tokens[i]
        tokens[i] = mix64(value + length)
        value = (value - first * top) * Q + tokens[i + n]
    tokens[count - n] = mix64(value + length)
    return count - n + 1


@njit(nogil=True, cache=True)
def _hash_tokens(data: Bytes, start: int, stop: int, table: np.ndarray, out: U64) -> int:
    """Writes the token hashes of data[start:stop] to `out`, returns their number.

    A step takes up to eight ASCII letters and digits at once, or one code point. The open token is
    (kind, state, word, fill): what began it, the folded words, the bytes not yet folded, how many.
    `out` needs room for one hash more than there are tokens.
    """
    count = 0
    kind = SEPARATOR
    state = word = _ZERO
    fill = 0
    pos = start
    while pos < stop:
        if data[pos] < 0x80 and pos + 8 <= stop:
            packed, size = _ascii_word(_load64(data, pos))
            if kind == SEPARATOR and size < 8 and data[pos + size] < 0x80:
                # Most steps: a whole word and its separator, or a separator alone (then the hash
                # is overwritten by the next one), without a branch between the two.
                out[count] = mix64(packed)
                count += size > 0
                pos += size + 1
                continue
            this = WORD if size > 0 else SEPARATOR
            pos += max(size, 1)
        else:
            code, size = _decode(data, pos)
            pos += size
            code, this = _classify(code, table)
            packed, size = _encode(code)
        if kind != SEPARATOR and not (this == MARK or this == WORD == kind):
            out[count] = mix64(state ^ word)
            count += 1
            kind = SEPARATOR
            state = word = _ZERO
            fill = 0
        if this != SEPARATOR:
            state, word, fill = _push(state, word, fill, packed, size)
            kind = max(kind, WORD) if this == MARK else this
    if kind != SEPARATOR:
        out[count] = mix64(state ^ word)
        count += 1
    return count


@njit(nogil=True, cache=True)
def _load64(data: Bytes, pos: int) -> np.uint64:
    """Eight bytes as a little-endian number.

    Written so that LLVM makes a single load of it where the CPU is little-endian: with unsigned
    indices, which need no test for negative ones, and without a loop.
    """
    p = np.uint64(pos)
    return (
        np.uint64(data[p])
        | np.uint64(data[p + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[p + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[p + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[p + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[p + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[p + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[p + np.uint64(7)]) << np.uint64(56)
    )


@njit(nogil=True, cache=True)
def _ascii_word(x: np.uint64) -> tuple[np.uint64, np.int64 | int]:
    """The ASCII letters and digits that `x` begins with: (lower-cased, other bytes 0), how many."""
    seven = x & _LOW7
    folded = seven | _CASE
    letter = (folded + _GE_A) & ~(folded + _GT_Z) & _HIGH & ~x
    digit = (seven + _GE_0) & ~(seven + _GT_9) & _HIGH & ~x
    other = (letter | digit) ^ _HIGH
    lowered = x | (letter >> _S2)
    if other == _ZERO:
        return lowered, 8
    below = ((other & (~other + _ONE)) >> _S7) - _ONE  # all bits under the first other byte
    return lowered & below, np.int64(((below & _ONES) * _ONES) >> _S56)


@njit(nogil=True, cache=True)
def _push(
    state: np.uint64, word: np.uint64, fill: int, packed: np.uint64, size: int
) -> tuple[np.uint64, np.uint64, int]:
    """Appends `size` (1..8) bytes to the open token; a full word is folded when more comes."""
    if fill == 0:
        return state, packed, size
    if fill == 8:
        return fold64(state, word), packed, size
    word |= packed << np.uint64(8 * fill)
    if fill + size <= 8:
        return state, word, fill + size
    return fold64(state, word), packed >> np.uint64(8 * (8 - fill)), fill + size - 8


@njit(nogil=True, cache=True)
def _decode(data: Bytes, pos: int) -> tuple[np.int64, int]:
    """The code point at `pos` of valid UTF-8, and its length in bytes."""
    lead = np.int64(data[pos])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | np.int64(data[pos + 1]) & 0x3F, 2
    tail = (np.int64(data[pos + 1]) & 0x3F) << 6 | np.int64(data[pos + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | tail, 3
    return (lead & 0x07) << 18 | tail << 6 | np.int64(data[pos + 3]) & 0x3F, 4


@njit(nogil=True, cache=True)
def _classify(code: np.int64, table: np.ndarray) -> tuple[np.int64, np.int64 | int]:
    """(lower-cased code point, class) of a code point."""
    if code < TABLE_SIZE:
        entry = np.int64(table[code])
        return entry >> 2, entry & 3
    if code < IDEOGRAPHS_END:
        return code, SINGLE
    if SELECTORS <= code < SELECTORS_END:
        return code, MARK
    return code, SEPARATOR


@njit(nogil=True, cache=True)
def _encode(code: int) -> tuple[np.uint64, int]:
    """UTF-8 of a code point as a little-endian number, and its length in bytes."""
    if code < 0x80:
        return np.uint64(code), 1
    tail = 0x80 | code & 0x3F
    if code < 0x800:
        return np.uint64(0xC0 | code >> 6 | tail << 8), 2
    middle = 0x80 | code >> 6 & 0x3F
    if code < 0x10000:
        return np.uint64(0xE0 | code >> 12 | middle << 8 | tail << 16), 3
    upper = 0x80 | code >> 12 & 0x3F
    return np.uint64(0xF0 | code >> 18 | upper << 8 | middle << 16 | tail << 24), 4
