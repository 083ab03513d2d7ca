"""One table of character classes, shared by every kernel that looks at text.

Built from Python's `unicodedata`: the Unicode version is Python's, named in the manifest.
"""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt
from numba import njit

LETTER = 1  # category L*
NUMBER = 2  # category N*
MARK = 4  # category M*: belongs to the character before it
UNIT = 8  # scripts without spaces: each character counts as a word of its own
SPACE = 16  # str.isspace()
BAD = 32  # controls other than white space, U+FFFD, private use, surrogates, noncharacters
ASTRAL_END = 0x40000  # code points above: no letters; the private-use planes start at 0xF0000

# Han: blocks taken whole, because an unassigned code point in them can only become an ideograph,
# and because radicals (category So) stand for the ideographs in text extracted from PDF.
_IDEOGRAPHS = (
    (0x2E80, 0x2FE0),  # CJK radicals supplement, Kangxi radicals
    (0x3400, 0x4DC0),  # extension A
    (0x4E00, 0xA000),  # unified ideographs
    (0xF900, 0xFB00),  # compatibility ideographs
    (0x20000, 0x40000),  # planes 2 and 3: extensions B and later
)
# The other scripts without spaces: their letters and digits are units, their marks are marks.
_UNSPACED = (
    (0x0E00, 0x0E80),  # Thai
    (0x0E80, 0x0F00),  # Lao
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3005, 0x303C),  # iteration marks, closing mark, zero, Hangzhou numerals
    (0x3040, 0x3100),  # Hiragana, Katakana
    (0x31F0, 0x3200),  # Katakana phonetic extensions
    (0xA9E0, 0xAA00),  # Myanmar extended B
    (0xAA60, 0xAA80),  # Myanmar extended A
    (0xFF66, 0xFFA0),  # halfwidth Katakana
    (0x116D0, 0x11700),  # Myanmar extended C
    (0x1AFF0, 0x1B170),  # Kana extended B, supplement, extended A, small kana
)
# Halfwidth voiced and semi-voiced marks: category Lm, yet they modify the kana before them.
_KANA_MARKS = (0xFF9E, 0xFFA0)


@functools.cache
def classes() -> npt.NDArray[np.uint8]:
    """uint8[0x40000], read-only: the class bits of each code point below ASTRAL_END."""
    table = np.zeros(ASTRAL_END, np.uint8)
    bits = {"L": LETTER, "N": NUMBER, "M": MARK}
    for code in range(0x20000):
        char = chr(code)
        category = unicodedata.category(char)
        table[code] = bits.get(category[0], 0)
        if char.isspace():
            table[code] |= SPACE
        elif category in ("Cc", "Co", "Cs") or code == 0xFFFD:
            table[code] |= BAD
    for start, stop in _UNSPACED:
        block = table[start:stop]
        block[(block & (LETTER | NUMBER)) != 0] |= UNIT
    for start, stop in _IDEOGRAPHS:
        table[start:stop] = LETTER | UNIT
    table[slice(*_KANA_MARKS)] = MARK
    for plane in range(0, ASTRAL_END, 0x10000):
        table[plane + 0xFFFE : plane + 0x10000] = BAD  # noncharacters
    table[0xFDD0:0xFDF0] = BAD  # noncharacters too
    table.flags.writeable = False
    return table


@njit(nogil=True, cache=True, inline="always")
def decode_at(data: npt.NDArray[np.uint8], i: int) -> tuple[int, int]:
    """(code point, bytes) of the character at data[i] of valid UTF-8."""
    b = int(data[i])
    if b < 0x80:
        return b, 1
    if b < 0xE0:
        return (b & 0x1F) << 6 | (data[i + 1] & 0x3F), 2
    if b < 0xF0:
        return (b & 0x0F) << 12 | (data[i + 1] & 0x3F) << 6 | (data[i + 2] & 0x3F), 3
    low = (data[i + 2] & 0x3F) << 6 | (data[i + 3] & 0x3F)
    return (b & 0x07) << 18 | (data[i + 1] & 0x3F) << 12 | low, 4
