"""Rules: for each, a document just inside its threshold and one just outside."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep import UserError
from dataprep.batch import make_batch
from dataprep.clean import Clean
from dataprep.ledger import TaskLedger

GOPHER: Any = ["gopher_quality"]
DEFAULT: Any = ["garbled", "punctuation_only"]


def fate(text: str, language: str = "en", **clean: Any) -> tuple[str, float, float] | None:
    """(rule, value, threshold) of the removal; None: it stays."""
    batch = make_batch(0, [0], pa.array([text], pa.large_string()))
    ledger = TaskLedger("x")
    kept = list(Clean(**clean)(iter([batch]), ledger, language))
    removed = [r for b in ledger.removed for r in b.to_pylist()]
    assert len(kept) + len(removed) == 1
    if not removed:
        return None
    assert removed[0]["stage"] == "clean"
    return removed[0]["rule"], removed[0]["value"], removed[0]["threshold"]


def cycle(words: str, n: int) -> str:
    return " ".join(itertools.islice(itertools.cycle(words.split()), n))


PROSE = "the house and the garden were full of people"


@pytest.mark.parametrize(
    ("rule", "inside", "outside", "value", "threshold"),
    [
        ("min_words", cycle(PROSE, 50), cycle(PROSE, 49), 49, 50),
        ("max_words", cycle(PROSE, 100_000), cycle(PROSE, 100_001), 100_001, 100_000),
        ("min_mean_word_length", cycle("the and", 50), "to " + cycle("and the", 49), 149 / 50, 3),
        (
            "max_mean_word_length",
            cycle("the seventeenletterss and seventeenletterss", 60),
            cycle("the seventeenletterss and seventeenletters", 60) + " seventeenletterss" * 9,
            (15 * (3 + 17 + 3 + 16) + 9 * 17) / 69,
            10,
        ),
        ("hash_ratio", "#" * 5 + cycle(PROSE, 50), "#" * 6 + cycle(PROSE, 50), 0.12, 0.1),
        (
            "ellipsis_ratio",
            "the... " * 5 + cycle(PROSE, 45),
            "the... " * 5 + "and… " + cycle(PROSE, 44),
            0.12,
            0.1,
        ),
        (
            "bullet_lines",
            "\n".join(["-" + cycle(PROSE, 6)] * 9 + [cycle(PROSE, 6)]),
            "\n".join(["-" + cycle(PROSE, 6)] * 10),
            1,
            0.9,
        ),
        (
            "ellipsis_lines",
            "\n".join([cycle(PROSE, 6) + "..."] * 3 + [cycle(PROSE, 6)] * 7),
            "\n".join([cycle(PROSE, 6) + "…"] * 4 + [cycle(PROSE, 11)] * 6),
            0.4,
            0.3,
        ),
        (
            "alphabetic_words",
            cycle(PROSE, 40) + " 12345" * 10,
            cycle(PROSE, 39) + " 12345" * 11,
            0.78,
            0.8,
        ),
        ("stop_words", cycle("the house of", 50), cycle("the house blue", 50), 1, 2),
    ],
)
def test_gopher_quality(
    rule: str, inside: str, outside: str, value: float, threshold: float
) -> None:
    assert fate(inside, rules=GOPHER) is None
    name, measured, limit = fate(outside, rules=GOPHER) or ("", 0, 0)
    assert name == f"gopher_quality.{rule}"
    assert measured == pytest.approx(value)
    assert limit == threshold


CHINESE = (
    "今天早上我去公园散步看见许多老人在湖边打太极拳孩子们在草地上奔跑"
    "阳光照在水面上闪闪发光让人觉得非常舒服和愉快心情也变好了"
)
GERMAN = (
    "Gestern ging ich mit meinem Bruder durch den alten Wald, weil wir dort Pilze suchen wollten. "
    "Nach einer Stunde kam ein starker Regen, und wir liefen schnell zu einer kleinen Hütte, in "
    "der ein alter Mann wohnte. Er gab uns heißen Tee und erzählte lange Geschichten über seine "
    "Jugend, bis der Regen aufhörte und wir nach Hause gehen konnten."
)
KEYWORDS = (
    "cheap flights best hotel booking discount travel insurance online car rental vacation "
    "packages last minute deals luxury resort reviews airport parking credit card rewards "
    "holiday offers family beach cruise tickets "
)


def test_chinese_of_sixty_characters_passes() -> None:
    text = CHINESE[:60]
    assert len(text) == 60
    for language in ("auto", "zh"):
        assert fate(text, language, rules=GOPHER) is None
    assert (fate(CHINESE[:49], rules=GOPHER) or "")[0] == "gopher_quality.min_words"


@pytest.mark.parametrize(
    "text",
    [
        "မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှတွင် တည်ရှိသည်။ " * 6,
        "ប្រទេសកម្ពុជាស្ថិតនៅអាស៊ីអាគ្នេយ៍។ " * 6,
        "ประเทศไทยตั้งอยู่ในเอเชียตะวันออกเฉียงใต้ " * 6,
        "今日はとても天気が良いので、友達と一緒に海へ行きました。" * 4,
        "우리는 어제 친구들과 함께 바닷가에서 즐거운 시간을 보냈습니다. " * 8,
    ],
)
def test_scripts_without_spaces_and_korean_pass(text: str) -> None:
    assert fate(text, "auto", rules=GOPHER) is None


def test_stop_words_are_asked_of_english_only() -> None:
    assert fate(GERMAN, "auto", rules=GOPHER) is None
    assert fate(GERMAN, "de", rules=GOPHER) is None
    assert fate(KEYWORDS * 3, "auto", rules=GOPHER) == ("gopher_quality.stop_words", 0, 2)
    assert fate(KEYWORDS * 3, "de", rules=GOPHER) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufffd123456789", None),
        ("\ufffd12345678", ("garbled", 1 / 9, 0.1)),
        ("\ue000\x01ab", ("garbled", 0.5, 0.1)),
        ("\U000f0000a", ("garbled", 0.5, 0.1)),
        ("a\tb\r\n", None),
        ("?!… —", ("punctuation_only", 0, 1)),
        ("😀😀", ("punctuation_only", 0, 1)),
        ("?٣!", None),
        ("½", None),
        ("字", None),
        ("", ("empty", 0, 1)),
        ("\n\n", ("empty", 0, 1)),
        (" \u3000\n \t", ("empty", 0, 1)),
    ],
)
def test_basic_rules(text: str, expected: tuple[str, float, float] | None) -> None:
    assert fate(text, fix_unicode=False, rules=DEFAULT) == expected


def test_min_chars_counts_characters_not_bytes() -> None:
    assert fate("中文五个字", min_chars=5) is None
    assert fate("中文四个", min_chars=5) == ("too_short", 4, 5)
    assert fate("", min_chars=5) == ("empty", 0, 1)
    assert fate("a", min_chars=0) is None


def test_rules_are_applied_in_order_and_only_when_asked() -> None:
    assert fate("!!\ufffd", rules=DEFAULT) == ("garbled", pytest.approx(1 / 3), 0.1)
    assert fate("!!\ufffd", rules=DEFAULT[::-1]) == ("punctuation_only", 0, 1)
    assert fate("!!\ufffd", rules=[]) is None


def test_documents_of_no_words_divide_by_nothing() -> None:
    for text in ("", "\n\n", "\x01", "...", "#"):
        with np.errstate(all="raise"):
            fate(text, fix_unicode=False, whitespace=False, rules=[*DEFAULT, *GOPHER])


def test_mistaken_configs_are_refused() -> None:
    with pytest.raises(UserError, match="clean.min_chars is -1"):
        Clean(min_chars=-1)
    unknown: Any = ["gopher"]
    with pytest.raises(UserError, match="no rule 'gopher'; known: garbled, punctuation_only, goph"):
        Clean(rules=unknown)
