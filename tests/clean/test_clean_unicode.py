"""Unicode repair: what changes, what must not, and that the fast path is the slow path."""

import json
import random
import re
import unicodedata
from pathlib import Path

import ftfy
import ftfy.badness
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.batch import text_buffers
from dataprep.clean import unicode as u
from dataprep.clean.unicode import fix_unicode


def array(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def fixed(text: str) -> str:
    return str(fix_unicode(array([text]))[0][0].as_py())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("schÃ¶n", "schön"),
        ("âœ” No problems", "✔ No problems"),
        ("doesnâ€™t", "doesn’t"),
        ("l’humanitÃ©", "l’humanité"),
        ("Ã la mode", "à la mode"),
        ("one line.\nÃ la mode", "one line.\nà la mode"),
        ("é is fine\nÃ la mode", "é is fine\nà la mode"),
        ("ç\u009a\u0084", "的"),
        ("a\u0085b", "a…b"),  # a lone C1 control is Windows-1252, as browsers read it
    ],
)
def test_mojibake_is_repaired(before: str, after: str) -> None:
    assert fixed(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\r\nb\rc\u2028d\u2029e", "a\nb\nc\nd\ne"),
        ("page\x0cpage\x0bcell", "page\npage cell"),
        ("schÃ¶n\x0bda\x0c", "schön da\n"),
        ("nul\0 bell\x07 del\x7f sub\x1a", "nul bell del sub"),
        ("\ufeffbom\ufeff", "bom"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("tab\tstays", "tab\tstays"),
        ("e\u0301 Å", "é Å"),
        ("\u1112\u1161\u11ab", "한"),
        ("か\u3099", "が"),
        ("A\u0303\u00a9", "é"),  # mojibake that only NFC uncovers
        ("Ã\0©", "é"),  # ... that only the removal of a control uncovers
    ],
)
def test_controls_line_ends_and_nfc(before: str, after: str) -> None:
    assert fixed(before) == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain ASCII, &amp; <b>HTML</b>",
        "全角标点，。！？：；（）“引号”‘单’《书名》…—",
        "ＡＢＣ１２３　ｶﾀｶﾅ",
        "“curly” ‘quotes’ — dash – ﬁne ﬂow",
        "Ünïcödé façade, œuvre, Å, Ø, ß, ©, ®, €5, £6, 1½",
        "Привет, мир! Ελληνικά. עברית العربية हिन्दी ไทย 한국어",
        "👩‍👩‍👧 🇨🇳 \u200bzero\u200d width\u00ad",
        "\U00020bb7野家 㐂 葛\U000e0100",
        "├── box ─ drawing │",
        "(っ˘ω˘ς ) ಠ_ಠ ¯\\_(ツ)_/¯",
        "undecodable \ufffd stays",
    ],
)
def test_sound_text_is_not_touched(text: str) -> None:
    texts = array([text, "x"])
    after, changed = fix_unicode(texts)
    assert after is texts
    assert changed == 0


def test_only_the_changed_are_replaced() -> None:
    texts = array(["skipped", "a", "schÃ¶n", "b\r\n", "中"]).slice(1)
    after, changed = fix_unicode(texts)
    assert after.to_pylist() == ["a", "schön", "b\n", "中"]
    assert after.type == pa.large_string()
    assert changed == 2


def test_no_documents() -> None:
    assert len(fix_unicode(array([]))[0]) == 0


# The fast path.

CATEGORIES = {name: u._members(body) for name, body in ftfy.badness.MOJIBAKE_CATEGORIES.items()}
MOJIBAKE = sorted({c for chars in CATEGORIES.values() for c in chars} | set(u._NAMED))
COMPANY = list("aZq0 .,!?\t\n")


def is_bad(text: str) -> bool:
    """As ftfy asks: each line by itself."""
    *lines, last = text.split("\n")
    return any(ftfy.badness.is_bad(line) for line in [*(line + "\n" for line in lines), last])


def sentences(pool: list[str], longest: int, n: int) -> list[str]:
    rnd = random.Random(17)
    return ["".join(rnd.choices(pool, k=rnd.randint(1, longest))) for _ in range(n)]


def test_classes_expand_as_regular_expressions_do() -> None:
    for name, body in ftfy.badness.MOJIBAKE_CATEGORIES.items():
        matched = [c for c in map(chr, range(0x10000)) if re.match(f"[{body}]", c)]
        assert sorted(set(CATEGORIES[name])) == matched, name


def test_text_without_suspects_is_never_bad() -> None:
    harmless = sorted(set(MOJIBAKE) - set(u._suspects()))
    assert len(harmless) > 100
    for text in sentences([*harmless, *COMPANY * 5], 8, 40_000):
        assert not is_bad(text), text


def test_the_detector_misses_nothing() -> None:
    """Whatever ftfy finds bad, in any company, and whatever it would change."""
    found = 0
    for text in sentences([*MOJIBAKE, *COMPANY * 20], 14, 30_000):
        if is_bad(text):
            assert u._looks_bad(text), ascii(text)
            found += 1
    assert 10_000 < found < 29_000
    for text in sentences([*MOJIBAKE, *COMPANY * 20], 14, 1000):
        if ftfy.fix_text(text, u._FIX) != text:
            assert u._looks_bad(text), ascii(text)


def test_the_detector_misses_nothing_far_apart() -> None:
    for text in sentences(MOJIBAKE, 3, 3000):
        line = f"{'x' * 20} {text} {'y' * 20}"
        assert u._looks_bad(line) == is_bad(line), ascii(line)


SCRAPS = st.sampled_from([*MOJIBAKE, *COMPANY, *"\0\x0b\x1b\r\x85\u2028\ufeff", "\x1b[0m"])
COMBINING = st.sampled_from(
    [*"\u0301\u0303\u0327\u3099\u1161\u11a8\u0338", "\U000110ba", "中", "각"]
)
DIRTY = st.lists(SCRAPS | COMBINING | st.characters(codec="utf-8"), max_size=12).map("".join)


def flags_of(text: str) -> int:
    return int(u._scan(*text_buffers(array([text])), u._flags())[0])


@settings(deadline=None, max_examples=400)
@given(DIRTY)
def test_flags_skip_only_what_would_change_nothing(text: str) -> None:
    flags = flags_of(text)
    if not flags & u.MARK:
        assert unicodedata.is_normalized("NFC", text)
    if not flags & u.MOJIBAKE:
        assert not is_bad(text)
    if not flags & u.CONTROL:
        assert u._fix_once(text, u.CONTROL) == text
    assert u._fix(text, flags) == u._fix(text, u.ALL)


@settings(deadline=None, max_examples=400)
@given(DIRTY)
def test_a_second_repair_changes_nothing(text: str) -> None:
    once = fixed(text)
    assert fixed(once) == once
    assert unicodedata.is_normalized("NFC", once)


def test_every_character_of_the_basic_plane_by_itself() -> None:
    chars = [chr(c) for c in range(0x10000) if not 0xD800 <= c <= 0xDFFF]
    flags = u._scan(*text_buffers(array(chars)), u._flags())
    for char, flag in zip(chars, flags):
        assert flag & u.MARK or unicodedata.is_normalized("NFC", "a" + char + "a")
        assert bool(flag & u.CONTROL) == (u._fix_once(char, u.CONTROL) != char)


@settings(deadline=None)
@given(st.lists(DIRTY, max_size=6))
def test_the_scan_is_the_or_of_its_characters(texts: list[str]) -> None:
    table = u._flags()
    expected = [
        int(np.bitwise_or.reduce([table[ord(c)] if c < "\U00010000" else u.MARK for c in t] or [0]))
        for t in texts
    ]
    assert u._scan(*text_buffers(array(["", *texts]).slice(1)), table).tolist() == expected


@pytest.mark.parametrize("name", ["in-the-wild", "negative", "language-names", "synthetic"])
def test_cases_of_ftfy(name: str, real_data: Path) -> None:
    """Its own test cases, by the encoding alone: quotes and widths stay as they are."""
    cases = json.loads((real_data / "dirty" / "ftfy" / f"{name}.json").read_text())
    assert len(cases) >= 20
    for case in cases:
        expected = case.get("fixed-encoding", case["fixed"])
        assert fixed(case["original"]) == expected.replace("\x1a", ""), case["label"]
