"""White space: trailing blanks of lines, runs of blank lines, blank edges of the document.

    "\n\n  def f():  \n\n\n\n    pass \n"  ->  "  def f():\n\n    pass"

Indentation stays: it means something in code and lists.
"""

import numpy as np
import pyarrow as pa
from numba import njit

from dataprep.batch import Bytes, Offsets, text_array, text_buffers

_LF, _SPACE, _TAB = 10, 32, 9


@njit(nogil=True, cache=True, inline="always")
def _trimmed_end(data: Bytes, start: int, end: int) -> int:
    """End of data[start:end] without trailing spaces, tabs, U+00A0 and U+3000."""
    while end > start:
        last = data[end - 1]
        if last in (_SPACE, _TAB):
            end -= 1
        elif last == 0xA0 and end - 2 >= start and data[end - 2] == 0xC2:
            end -= 2
        elif last == 0x80 and end - 3 >= start and data[end - 2] == 0x80 and data[end - 3] == 0xE3:
            end -= 3
        else:
            break
    return end


@njit(nogil=True, cache=True)
def _tidy(data: Bytes, offsets: Offsets, out: Bytes, out_offsets: Offsets) -> None:
    w = 0
    for d in range(len(offsets) - 1):
        begin = w
        blanks = 0
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            stop = i
            while stop < end and data[stop] != _LF:
                stop += 1
            trimmed = _trimmed_end(data, i, stop)
            if trimmed == i:
                blanks += 1
            else:
                if w > begin:
                    out[w] = _LF
                    w += 1
                    if blanks > 0:
                        out[w] = _LF
                        w += 1
                for k in range(i, trimmed):
                    out[w] = data[k]
                    w += 1
                blanks = 0
            i = stop + 1
        out_offsets[d + 1] = w


def tidy_whitespace(text: pa.Array) -> pa.Array:
    """A large_string array with the rules above applied; never longer than before."""
    data, offsets = text_buffers(text)
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    _tidy(data, offsets, out, out_offsets)
    return text_array(out[: out_offsets[-1]], out_offsets)
