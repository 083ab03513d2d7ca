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

# Han, Kana (halfwidth too), Thai, Lao, Khmer, Myanmar: blocks of the Unicode standard.
_UNIT_BLOCKS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x19E0, 0x19FF),  # Khmer symbols
    (0x2E80, 0x2FDF),  # CJK radicals
    (0x3005, 0x303B),  # ideographic iteration marks, closing mark, zero, Hangzhou numerals
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana phonetic extensions
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xA9E0, 0xA9FF),  # Myanmar extended B
    (0xAA60, 0xAA7F),  # Myanmar extended A
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF66, 0xFF9F),  # halfwidth Katakana
    (0x1AFF0, 0x1B16F),  # Kana extensions
    (0x20000, 0x3FFFF),  # CJK extensions B and later
)


@functools.cache
def classes() -> npt.NDArray[np.uint8]:
    """uint8[0x40000]: the class bits of each code point below ASTRAL_END."""
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
    table[0x20000:] = LETTER  # planes 2 and 3 hold ideographs only
    for plane in range(0, ASTRAL_END, 0x10000):
        table[plane + 0xFFFE : plane + 0x10000] = BAD  # noncharacters
    table[0xFDD0:0xFDF0] = BAD  # noncharacters too
    for first, last in _UNIT_BLOCKS:
        block = table[first : last + 1]
        block[(block & (LETTER | NUMBER)) != 0] |= UNIT
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
