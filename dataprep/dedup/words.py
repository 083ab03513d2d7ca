"""What a token is, as one table of code points.

    separator   ends a token, belongs to none        punctuation, symbols, spaces, controls
    word        runs of these are one token          letters and digits (categories L*, N*)
    single      a token by itself                    scripts written without spaces, listed below
    mark        belongs to the token before it       combining marks (M*); one without a token
                                                     before it begins a word

So "Tōkyō2 東京は" has the tokens "tōkyō2", "東", "京", "は". Splitting such scripts by character is
what makes n-grams of them comparable at all: a Chinese clause taken as one "word" changes whole
when one of its characters does.

The table covers the planes 0 and 1; above them are only ideographs (planes 2 and 3, taken whole, so
that extensions newer than this Python count too) and the variation selectors U+E0100..U+E01EF,
which are marks. Categories and lower case are those of `unicodedata`, so two Python versions may
disagree about letters that were added to Unicode between them (`unicodedata.unidata_version`).
"""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

SEPARATOR, WORD, SINGLE, MARK = 0, 1, 2, 3

TABLE_SIZE = 0x20000
IDEOGRAPHS_END = 0x40000  # planes 2 and 3: U+20000..U+3FFFF
SELECTORS, SELECTORS_END = 0xE0100, 0xE01F0

# Han: blocks taken whole, because an unassigned code point in them can only become an ideograph,
# and because radicals (category So) stand for the ideographs in text extracted from PDF.
_IDEOGRAPHS = (
    (0x2E80, 0x2FE0),  # CJK radicals supplement, Kangxi radicals
    (0x3400, 0x4DC0),  # extension A
    (0x4E00, 0xA000),  # unified ideographs
    (0xF900, 0xFB00),  # compatibility ideographs
)
# The other scripts without spaces: their letters and digits are single, their marks are marks.
_UNSPACED = (
    (0x0E00, 0x0E80),  # Thai
    (0x0E80, 0x0F00),  # Lao
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x1800),  # Khmer
    (0x3005, 0x3008),  # ideographic iteration mark, closing mark, zero
    (0x3021, 0x302A),  # Hangzhou numerals
    (0x3038, 0x303C),  # Hangzhou numerals, vertical iteration mark
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
def word_table() -> npt.NDArray[np.uint32]:
    """uint32[0x20000], read-only: lower-cased code point * 4 + class; 0 for a separator.

    Lower case is one code point for one; U+0130, whose lower case has two, stays as it is.
    """
    code_points = range(TABLE_SIZE)
    major = np.array([ord(unicodedata.category(chr(c))[0]) for c in code_points], np.uint8)
    kind = np.zeros(TABLE_SIZE, np.uint32)
    kind[(major == ord("L")) | (major == ord("N"))] = WORD
    kind[major == ord("M")] = MARK
    for start, stop in _UNSPACED:
        block = kind[start:stop]
        block[block == WORD] = SINGLE
    for start, stop in _IDEOGRAPHS:
        kind[start:stop] = SINGLE
    kind[slice(*_KANA_MARKS)] = MARK

    lower = np.arange(TABLE_SIZE, dtype=np.uint32)
    for c in np.flatnonzero(kind != SEPARATOR).tolist():  # Roman numerals have cases, too
        low = chr(c).lower()
        if len(low) == 1:
            lower[c] = ord(low)
    table = np.where(kind == SEPARATOR, np.uint32(0), lower * np.uint32(4) + kind)
    table.flags.writeable = False
    return table
