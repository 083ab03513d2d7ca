"""Quality rules: each is a measured value and the range in which a document stays.

    Check(rule, value[d], threshold, fails[d])

The first failing check of a document, in order, is the reason for its removal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataprep.clean import counters as n
from dataprep.clean.counters import Counts

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher",
# appendix A1.1: "at least two of the following English words".
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


@dataclass(frozen=True)
class Check:
    """One rule on a batch: document i fails where fails[i]."""

    rule: str
    value: Values
    threshold: float
    fails: Mask


def _ratio(part: Counts, whole: Counts) -> Values:
    return part / np.maximum(whole, 1)


def _below(rule: str, value: Values, threshold: float, where: Mask | bool = True) -> Check:
    return Check(rule, value, threshold, (value < threshold) & where)


def _above(rule: str, value: Values, threshold: float, where: Mask | bool = True) -> Check:
    return Check(rule, value, threshold, (value > threshold) & where)


def basic(c: Counts, min_chars: int) -> Iterator[Check]:
    """What no corpus wants: nothing at all, and less than the caller asks for."""
    chars = c[:, n.CHARS].astype(np.float64)
    yield _below("empty", chars, 1)
    yield _below("too_short", chars, min_chars)


def garbled(c: Counts) -> Iterator[Check]:
    """Decoding gone wrong: over a tenth of the characters are U+FFFD, controls or private use."""
    yield _above("garbled", _ratio(c[:, n.BADS], c[:, n.CHARS]), 0.1)


def punctuation_only(c: Counts) -> Iterator[Check]:
    """No letter and no digit of any script."""
    yield _below("punctuation_only", c[:, n.ALNUM].astype(np.float64), 1)


def gopher_quality(c: Counts, english: Callable[[Mask], Mask]) -> Iterator[Check]:
    """The quality filter of MassiveText (Rae et al. 2021, A1.1), for any script.

    Letters are asked of words between spaces only, and where those are the larger part. Word
    lengths and stop words are those of English, and asked of documents in English only (a sound
    Malayalam or Korean text fails the lengths): `english` gets a mask of suspects and answers
    which of them are.
    """
    words = c[:, n.RUNS] + c[:, n.UNITS]
    spaced = c[:, n.RUNS] > c[:, n.UNITS]
    yield _below("gopher_quality.min_words", words.astype(np.float64), 50)
    yield _above("gopher_quality.max_words", words.astype(np.float64), 100_000)
    mean_length = _ratio(c[:, n.RUN_CHARS], c[:, n.RUNS])
    short, long = english(spaced & (mean_length < 3)), english(spaced & (mean_length > 10))
    yield _below("gopher_quality.min_mean_word_length", mean_length, 3, short)
    yield _above("gopher_quality.max_mean_word_length", mean_length, 10, long)
    yield _above("gopher_quality.hash_ratio", _ratio(c[:, n.HASHES], words), 0.1)
    yield _above("gopher_quality.ellipsis_ratio", _ratio(c[:, n.ELLIPSES], words), 0.1)
    lines = c[:, n.LINES]
    yield _above("gopher_quality.bullet_lines", _ratio(c[:, n.BULLETS], lines), 0.9)
    yield _above("gopher_quality.ellipsis_lines", _ratio(c[:, n.ELLIPSIS_LINES], lines), 0.3)
    alpha = _ratio(c[:, n.ALPHA_RUNS], c[:, n.RUNS])
    yield _below("gopher_quality.alphabetic_words", alpha, 0.8, spaced)
    hits = np.array([int(bits).bit_count() for bits in c[:, n.STOP_WORDS]], np.float64)
    yield _below("gopher_quality.stop_words", hits, 2, english(spaced & (hits < 2)))
