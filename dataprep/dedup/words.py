"""What a token is, as one table of code points.

    separator   ends a token, belongs to none        punctuation, symbols, spaces, controls
    word        runs of these are one token          letters and digits (categories L*, N*)
    single      a token by itself                    scripts without spaces (chars.UNIT)
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

import numpy as np
import numpy.typing as npt

from dataprep.chars import LETTER, NUMBER, UNIT, classes
from dataprep.chars import MARK as MARK_BIT

SEPARATOR, WORD, SINGLE, MARK = 0, 1, 2, 3

TABLE_SIZE = 0x20000
IDEOGRAPHS_END = 0x40000  # planes 2 and 3: U+20000..U+3FFFF
SELECTORS, SELECTORS_END = 0xE0100, 0xE01F0


@functools.cache
def word_table() -> npt.NDArray[np.uint32]:
    """uint32[0x20000], read-only: lower-cased code point * 4 + class; 0 for a separator.

    Lower case is one code point for one; U+0130, whose lower case has two, stays as it is.
    """
    bits = classes()[:TABLE_SIZE]
    kind = np.zeros(TABLE_SIZE, np.uint32)
    kind[(bits & (LETTER | NUMBER)) != 0] = WORD
    kind[(bits & UNIT) != 0] = SINGLE
    kind[(bits & MARK_BIT) != 0] = MARK

    lower = np.arange(TABLE_SIZE, dtype=np.uint32)
    for c in np.flatnonzero(kind != SEPARATOR).tolist():  # Roman numerals have cases, too
        low = chr(c).lower()
        if len(low) == 1:
            lower[c] = ord(low)
    table = np.where(kind == SEPARATOR, np.uint32(0), lower * np.uint32(4) + kind)
    table.flags.writeable = False
    return table
