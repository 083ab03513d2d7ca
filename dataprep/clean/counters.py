"""One pass over a batch counts all that the quality rules need.

A word is a run of non-space characters; in scripts without spaces (Han, Kana, Thai, ...) each
character, with the marks on it, is a word of its own, a "unit", and ends the run before it:

    "GPU显卡 is fast"  ->  words: GPU 显 卡 is fast   (5, of which 2 units)
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from dataprep.batch import Bytes, Offsets
from dataprep.chars import ASTRAL_END, BAD, LETTER, MARK, NUMBER, SPACE, UNIT, decode_at

Counts = npt.NDArray[np.int64]

CHARS = 0  # code points
BADS = 1  # code points of class BAD
ALNUM = 2  # letters and digits, units included
UNITS = 3  # characters that are words of their own
RUNS = 4  # words of the other kind
RUN_CHARS = 5  # their code points
ALPHA_RUNS = 6  # those with at least one letter
HASHES = 7  # "#"
ELLIPSES = 8  # "..." or U+2026
LINES = 9  # lines that are not blank
BULLETS = 10  # lines whose first character is a bullet
ELLIPSIS_LINES = 11  # lines that end in an ellipsis
STOP_WORDS = 12  # bit i: stop word i occurs
WIDTH = 13

BULLET_CHARS = "-*•‣▶◀◦■□▪▫–·●○"
_BULLETS = np.array([ord(c) for c in BULLET_CHARS], np.int64)
_ELLIPSIS, _DOT, _HASH, _LF = 0x2026, ord("."), ord("#"), 10


def pack_stop_words(words: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """ASCII words of at most 8 letters as big-endian integers, as the kernel compares them."""
    return np.array([int.from_bytes(w.encode("ascii"), "big") for w in words], np.uint64)


@njit(nogil=True, cache=True)
def count(
    data: Bytes, offsets: Offsets, classes: npt.NDArray[np.uint8], stop: npt.NDArray[np.uint64]
) -> Counts:
    """int64[d, WIDTH] counters of each document; columns as named above."""
    out = np.zeros((len(offsets) - 1, WIDTH), np.int64)
    for d in range(len(offsets) - 1):
        _count_one(data, offsets[d], offsets[d + 1], classes, stop, out[d])
    return out


@njit(nogil=True, cache=True)
def _count_one(
    data: Bytes,
    i: int,
    end: int,
    classes: npt.NDArray[np.uint8],
    stop: npt.NDArray[np.uint64],
    c: Counts,
) -> None:
    run_chars = 0  # code points of the word we are in; 0: between words
    run_alpha = False
    key, key_bytes = np.uint64(0), 0  # its ASCII letters, lower-cased, without punctuation around
    after_unit = False  # marks belong to the unit before them
    dots = 0  # full stops in a row
    line_chars = 0  # non-space characters of this line so far
    line_ellipsis = False  # the last non-space characters were an ellipsis
    while i < end:
        code, size = decode_at(data, i)
        i += size
        k = classes[code] if code < ASTRAL_END else np.uint8(BAD if code >= 0xF0000 else 0)
        c[CHARS] += 1
        if k & BAD:
            c[BADS] += 1
        if k & (LETTER | NUMBER):
            c[ALNUM] += 1
        if run_chars and k & (SPACE | UNIT):
            _end_run(c, run_chars, run_alpha, key, key_bytes, stop)
            run_chars, run_alpha, key, key_bytes = 0, False, np.uint64(0), 0
        if after_unit and k & MARK:
            continue
        after_unit = (k & UNIT) != 0
        if k & SPACE:
            dots = 0
            if code == _LF:
                c[LINES] += line_chars > 0
                c[ELLIPSIS_LINES] += line_ellipsis
                line_chars, line_ellipsis = 0, False
            continue
        if line_chars == 0:
            for bullet in _BULLETS:
                c[BULLETS] += code == bullet
        line_chars += 1
        dots = dots + 1 if code == _DOT else 0
        c[ELLIPSES] += dots == 3 or code == _ELLIPSIS
        line_ellipsis = dots >= 3 or code == _ELLIPSIS
        c[HASHES] += code == _HASH
        if k & UNIT:
            c[UNITS] += 1
            continue
        run_chars += 1
        if k & LETTER:
            run_alpha = True
            key = key << np.uint64(8) | np.uint64((code | 0x20) & 0xFF)
            key_bytes += 1 if code < 0x80 else 9  # not ASCII: no stop word
    if run_chars:
        _end_run(c, run_chars, run_alpha, key, key_bytes, stop)
    c[LINES] += line_chars > 0
    c[ELLIPSIS_LINES] += line_ellipsis


@njit(nogil=True, cache=True, inline="always")
def _end_run(
    c: Counts,
    chars: int,
    alpha: bool,
    key: np.uint64,
    key_bytes: int,
    stop: npt.NDArray[np.uint64],
) -> None:
    c[RUNS] += 1
    c[RUN_CHARS] += chars
    c[ALPHA_RUNS] += alpha
    if key_bytes <= 8:
        for s in range(len(stop)):
            if stop[s] == key:
                c[STOP_WORDS] |= np.int64(1) << s
