"""Character classes and counters, against their definitions in Python."""

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.batch import text_buffers
from dataprep.chars import BAD, LETTER, MARK, NUMBER, SPACE, UNIT, classes
from dataprep.clean import counters as n
from dataprep.clean.rules import STOP_WORDS

# Scripts without spaces, by the names of their characters, where the module goes by blocks.
UNSPACED: tuple[str, ...] = (
    "THAI ",
    "LAO ",
    "KHMER ",
    "MYANMAR ",
    "HIRAGANA",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
)
UNSPACED += ("HENTAIGANA", "HANGZHOU", "VERTICAL IDEOGRAPHIC", "VERTICAL KANA")
UNSPACED += ("IDEOGRAPHIC ITERATION", "IDEOGRAPHIC CLOSING", "IDEOGRAPHIC NUMBER")


def kind(char: str) -> int:
    """Class bits by the properties of the character."""
    code, category = ord(char), unicodedata.category(char)
    noncharacter = code % 0x10000 >= 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    # Blocks of ideographs are taken whole: radicals, and those that this Unicode version lacks.
    blocks = ((0x2E80, 0x2FE0), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00))
    if any(a <= code < b for a, b in (*blocks, (0x20000, 0x40000))) and not noncharacter:
        return LETTER | UNIT
    if char in "\uff9e\uff9f":  # voiced marks of halfwidth kana, letters by category
        return MARK
    bits = {"L": LETTER, "N": NUMBER, "M": MARK}.get(category[0], 0)
    if code >= 0x40000:
        return BAD if code >= 0xF0000 else 0
    if bits & (LETTER | NUMBER) and unicodedata.name(char, "").startswith(UNSPACED):
        bits |= UNIT
    if char.isspace():
        bits |= SPACE
    elif category in ("Cc", "Co", "Cs") or char == "\ufffd" or noncharacter:
        bits |= BAD
    return bits


def test_classes_of_all_characters() -> None:
    table = classes()
    assert [hex(c) for c in range(len(table)) if table[c] != kind(chr(c))] == []


def runs_and_units(text: str) -> tuple[list[str], list[str]]:
    def letter(char: str) -> str:
        bits = kind(char)
        return "s" if bits & SPACE else "u" if bits & UNIT else "m" if bits & MARK else "o"

    shape = "".join(map(letter, text))
    words = [(m.group(), text[m.start() : m.end()]) for m in re.finditer("um*|[mo]+", shape)]
    return [w for s, w in words if s[0] != "u"], [w for s, w in words if s[0] == "u"]


def reference(text: str) -> dict[int, int]:
    runs, units = runs_and_units(text)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    letters = [[c for c in run if kind(c) & LETTER] for run in runs]
    words = {"".join(w).lower() for w in letters if all(c.isascii() for c in w)}
    return {
        n.CHARS: len(text),
        n.BADS: sum(kind(c) & BAD > 0 for c in text),
        n.ALNUM: sum(kind(c) & (LETTER | NUMBER) > 0 for c in text),
        n.UNITS: len(units),
        n.RUNS: len(runs),
        n.RUN_CHARS: sum(map(len, runs)),
        n.ALPHA_RUNS: sum(len(w) > 0 for w in letters),
        n.HASHES: text.count("#"),
        n.ELLIPSES: len(re.findall(r"\.{3,}|…", text)),
        n.LINES: len(lines),
        n.BULLETS: sum(line[0] in n.BULLET_CHARS for line in lines),
        n.ELLIPSIS_LINES: sum(line.endswith(("...", "…")) for line in lines),
        n.STOP_WORDS: sum(1 << i for i, word in enumerate(STOP_WORDS) if word in words),
    }


def kernel(texts: list[str]) -> list[dict[int, int]]:
    # A slice, so that neither bytes nor offsets begin at 0.
    data, offsets = text_buffers(pa.array(["the first", *texts], pa.large_string()).slice(1))
    counts = n.count(data, offsets, classes(), n.pack_stop_words(STOP_WORDS))
    assert counts.shape == (len(texts), n.WIDTH) and counts.dtype == np.int64
    return [dict(enumerate(row.tolist())) for row in counts]


@pytest.mark.parametrize(
    ("text", "runs", "units"),
    [
        ("", [], []),
        (" \n\u3000\t", [], []),
        ("GPU显卡 is fast", ["GPU", "is", "fast"], ["显", "卡"]),
        ("don't stop, 3.5!", ["don't", "stop,", "3.5!"], []),
        ("你好，世界。", ["，", "。"], ["你", "好", "世", "界"]),
        ("한국어 텍스트", ["한국어", "텍스트"], []),
        ("が\u3099ａ", ["ａ"], ["が\u3099"]),
        ("ที่นี่", [], ["ที่", "นี่"]),
        ("မြန်မာ", [], ["မြ", "န်", "မာ"]),
        ("ខ្មែរ", [], ["ខ្", "មែ", "រ"]),
        ("葛\U000e0100城\ufe00", ["\U000e0100"], ["葛", "城\ufe00"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"], []),
        (" \u0301a", ["\u0301a"], []),
    ],
)
def test_words(text: str, runs: list[str], units: list[str]) -> None:
    assert runs_and_units(text) == (runs, units)
    counts = kernel([text])[0]
    assert (counts[n.RUNS], counts[n.UNITS]) == (len(runs), len(units))
    assert counts[n.RUN_CHARS] == sum(map(len, runs))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The BE to.", ["the", "be", "to"]),
        ('(the) "of" and, th-at', ["the", "of", "and", "that"]),
        ("then theé éthe tobe themselves", []),
        ("the在of", ["the", "of"]),
        ("havehavehavehavehave", []),
        ("t'o w1ith", ["to", "with"]),
    ],
)
def test_stop_words(text: str, words: list[str]) -> None:
    bits = kernel([text])[0][n.STOP_WORDS]
    assert [w for i, w in enumerate(STOP_WORDS) if bits >> i & 1] == sorted(
        words, key=STOP_WORDS.index
    )


@pytest.mark.parametrize(
    ("text", "ellipses", "lines", "bullets", "ellipsis_lines"),
    [
        ("a... b…\n\n  c....\n...", 4, 3, 0, 3),
        ("a.. . . .", 0, 1, 0, 0),
        ("a......b", 1, 1, 0, 0),
        ("wait... \u3000\nno...!\n等……", 4, 3, 0, 2),
        ("- a\n * b\n•c\nd - e\n-\n\n", 0, 5, 4, 0),
    ],
)
def test_lines(text: str, ellipses: int, lines: int, bullets: int, ellipsis_lines: int) -> None:
    counts = kernel([text])[0]
    found = [counts[i] for i in (n.ELLIPSES, n.LINES, n.BULLETS, n.ELLIPSIS_LINES)]
    assert found == [ellipses, lines, bullets, ellipsis_lines]


PIECES = [
    "the ",
    "of",
    "that",
    "\n",
    " ",
    "\u3000",
    "...",
    ".",
    "…",
    "#",
    "- ",
    "•",
    "中",
    "ก",
    "\u0e31",
]
PIECES += ["မ", "\u102d", "カ", "\uff9e", "\u0301", "é", "7", "\ufffd", "\x00", "\ue000", "\ufdd0"]
PIECES += ["\U0001f600", "\U00020000", "\U000e0100", "\U000f0000", "\x85", "\u2028", "한", "\u200b"]
TEXT = st.lists(st.sampled_from(PIECES) | st.characters(codec="utf-8"), max_size=20).map("".join)


@settings(deadline=None, max_examples=400)
@given(st.lists(TEXT, max_size=5))
def test_the_kernel_is_its_definition(texts: list[str]) -> None:
    assert kernel(texts) == [reference(t) for t in texts]
