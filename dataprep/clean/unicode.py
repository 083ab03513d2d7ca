"""Unicode repair: mojibake, control characters, line ends, NFC. Most text needs none of it.

A byte-wise kernel finds the documents that could need repair; only those meet Python:

    no flag                   -> untouched, no copy
    MARK (may not be NFC)     -> normalised (a C function, which checks first)
    MOJIBAKE (accents, boxes) -> ftfy's detector around them, its repair if it says so
    CONTROL                   -> ftfy's control-character and line-break steps

Steps of ftfy that stay off: width and quote folding and ligatures, which rewrite Chinese and
typographic punctuation, and HTML unescaping, which rewrites code.
"""

import functools
import re
import unicodedata

import ftfy
import ftfy.badness
import ftfy.chardata
import ftfy.fixes
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from dataprep.batch import Bytes, Offsets, text_buffers
from dataprep.chars import decode_at

MARK, MOJIBAKE, CONTROL = 1, 2, 4
ALL = MARK | MOJIBAKE | CONTROL

# Encoding repair alone: controls and NFC are steps of our own, the same for all documents.
_FIX = ftfy.TextFixerConfig(
    unescape_html=False,
    remove_terminal_escapes=False,
    fix_latin_ligatures=False,
    fix_character_width=False,
    uncurl_quotes=False,
    fix_line_breaks=False,
    remove_control_chars=False,
    normalization=None,
)
# Categories that no pattern of ftfy's detector matches by themselves: each match also holds a
# character of another category. (`common`: dashes, ellipsis, apostrophe, no-break space.)
_HARMLESS = (
    "common",
    "start_punctuation",
    "end_punctuation",
    "kaomoji",
    "lower_common",
    "upper_common",
)
_REACH = 6  # characters: as long as any pattern of the detector beside its suspicious one
# Letters that patterns of the detector name outside of the categories.
_NAMED = "ŒœÂÃÎÐØÙ×√≈ÄЂВГРСΒΓΞΟ‚âó€°"
_ALONE = "\x80-\x9fŒœÂÃ"  # what it may match without another character beyond ASCII beside


@functools.cache
def _flags() -> npt.NDArray[np.uint8]:
    """uint8[65536]: flag bits of each code point of the basic plane."""
    table = np.zeros(0x10000, np.uint8)
    table[_not_surely_nfc()] = MARK
    for char in _suspects():
        table[ord(char)] |= MOJIBAKE
    for code in (*ftfy.chardata.CONTROL_CHARS, *map(ord, "\r\x0b\x0c\x1b\x85\u2028\u2029")):
        table[code] |= CONTROL
    return table


def _not_surely_nfc() -> list[int]:
    """Code points of the basic plane without which a text is in NFC (Unicode annex 15, 9.1).

    They change by themselves, are reordered, or may join the character before them.
    """
    found = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]  # Hangul vowels and final consonants
    for code in range(0x80, 0x10000):
        char = chr(code)
        parts = unicodedata.decomposition(char).split()
        if unicodedata.combining(char) or parts and not unicodedata.is_normalized("NFC", char):
            found.append(code)
        elif len(parts) == 2 and parts[0][0] != "<":
            found.append(int(parts[1], 16))
    return found


def _suspects() -> list[str]:
    """Characters of which every match of ftfy's detector holds at least one."""
    found = set(_NAMED)
    for name, chars in ftfy.badness.MOJIBAKE_CATEGORIES.items():
        if name not in _HARMLESS:
            found.update(_members(chars))
    return sorted(found)


def _members(pattern: str) -> list[str]:
    """The characters of a regular-expression class body: literals and a-b ranges."""
    out: list[str] = []
    i = 0
    while i < len(pattern):
        if i + 2 < len(pattern) and pattern[i + 1] == "-":
            out.extend(map(chr, range(ord(pattern[i]), ord(pattern[i + 2]) + 1)))
            i += 3
        else:
            out.append(pattern[i])
            i += 1
    return out


@njit(nogil=True, cache=True)
def _scan(data: Bytes, offsets: Offsets, flags: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """uint8[d]: the OR of the flags of each document's characters."""
    out = np.zeros(len(offsets) - 1, np.uint8)
    for d in range(len(out)):
        i, end, found = offsets[d], offsets[d + 1], np.uint8(0)
        while i < end:
            if data[i] < 0x80:
                found |= flags[data[i]]
                i += 1
            else:
                code, size = decode_at(data, i)
                found |= flags[code] if code < 0x10000 else np.uint8(MARK)
                i += size
        out[d] = found
    return out


def fix_unicode(text: pa.Array) -> tuple[pa.Array, int]:
    """Repairs a large_string array; returns it and the number of documents changed.

    Idempotent. ASCII text without controls is never touched.
    """
    flags = _scan(*text_buffers(text), _flags())
    changed: dict[int, str] = {}
    for i in np.flatnonzero(flags):
        before = text[i].as_py()
        after = _fix(before, int(flags[i]))
        if after != before:
            changed[int(i)] = after
    if not changed:
        return text, 0
    mask = np.zeros(len(text), bool)
    mask[list(changed)] = True
    return text_replace(text, mask, [changed[i] for i in sorted(changed)]), len(changed)


def _fix(text: str, flags: int) -> str:
    """Repairs until nothing changes: a repair may uncover the need for another."""
    fixed = _fix_once(text, flags)
    while fixed != text:
        text, fixed = fixed, _fix_once(fixed, ALL)
    return fixed


def _fix_once(text: str, flags: int) -> str:
    if flags & MOJIBAKE and _looks_bad(text):
        text = ftfy.fix_text(text, _FIX)
    if flags & CONTROL:
        text = ftfy.fixes.remove_terminal_escapes(text)
        text = ftfy.fixes.fix_line_breaks(text).replace("\x0b", " ").replace("\x0c", "\n")
        text = ftfy.fixes.remove_control_chars(text)
    return unicodedata.normalize("NFC", text) if flags & MARK else text


def _looks_bad(text: str) -> bool:
    """ftfy's mojibake detector on the surroundings of suspicious characters only.

    The detector reads 4-18 MB/s; its patterns span at most seven characters and each holds a
    suspicious one, so that far from them there is nothing to find. (It may only see too much, a
    match across a line end, and ftfy then decides on the whole text.)
    """
    suspicious, is_bad = _detectors()
    start = stop = 0
    for found in suspicious.finditer(text):
        at = found.start()
        if at - _REACH > stop:
            if stop and is_bad.search(text, start, stop):
                return True
            start = max(at - _REACH, 0)
        stop = found.end() + _REACH
    return bool(stop) and is_bad.search(text, start, stop) is not None


@functools.cache
def _detectors() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Suspicious characters in suspicious company, and ftfy's pattern, line by line."""
    chars = "".join(map(re.escape, _suspects()))
    beyond = r"[^\x00-\x7f]"  # ASCII
    suspicious = f"[{chars}](?:(?<=[{_ALONE}])|(?={beyond})|(?<={beyond}.))"
    bad = ftfy.badness.BADNESS_RE
    return re.compile(suspicious), re.compile(bad.pattern, bad.flags | re.MULTILINE)


def text_replace(text: pa.Array, mask: npt.NDArray[np.bool_], values: list[str]) -> pa.Array:
    """`text` with its masked entries replaced by `values`, in order."""
    picks = np.arange(len(text))
    picks[mask] = len(text) + np.arange(len(values))
    return pa.concat_arrays([text, pa.array(values, pa.large_string())]).take(pa.array(picks))
