"""Cleaning: repair text, then remove what fails a rule, each under its name."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from dataprep.batch import make_batch, text_buffers
from dataprep.chars import classes
from dataprep.clean import rules
from dataprep.clean.counters import Counts, count, pack_stop_words
from dataprep.clean.rules import Check, Mask
from dataprep.clean.unicode import fix_unicode
from dataprep.clean.whitespace import tidy_whitespace
from dataprep.errors import UserError
from dataprep.ledger import TaskLedger

__all__ = ["Clean"]

Rule = Literal["garbled", "punctuation_only", "gopher_quality"]
_LANGUAGE_CHARS = 1000  # enough to tell a language; the identifier costs about 100 us per KB


@dataclass(frozen=True)
class Clean:
    """How to clean. Empty documents always go; everything else is asked for by name."""

    fix_unicode: bool = True
    """Repair mojibake, drop control characters, unify line ends, normalise to NFC."""
    whitespace: bool = True
    """Trim line ends and document edges, at most one blank line in a row; indentation stays."""
    min_chars: int = 1
    """Remove documents with fewer characters."""
    rules: list[Rule] = field(default_factory=lambda: ["garbled", "punctuation_only"])
    """Rules to apply, in order: garbled, punctuation_only, gopher_quality."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_chars < 2**31:
            raise UserError(f"clean.min_chars is {self.min_chars}; it must be in 0..2**31 - 1")
        for rule in self.rules:
            if rule not in get_args(Rule):
                raise UserError(
                    f"clean.rules: no rule {rule!r}; known: {', '.join(get_args(Rule))}"
                )

    def __call__(
        self, batches: Iterator[pa.RecordBatch], ledger: TaskLedger, language: str = "auto"
    ) -> Iterator[pa.RecordBatch]:
        """Batches in, cleaned batches out; removed documents go to the ledger.

        `language` is the batches' ISO 639-1 code, or auto.
        """
        for batch in batches:
            text = batch.column("text")
            if self.fix_unicode:
                text, changed = fix_unicode(text)
                ledger.count("notes.clean.unicode_fixed", changed)
            if self.whitespace:
                text = tidy_whitespace(text)
            keep = self._apply(batch, text, ledger, language)
            if keep.any():
                mask = pa.array(keep)
                rows = batch.column("row").filter(mask)
                split = batch.column("split")[0].as_py()
                yield make_batch(split, rows, text.filter(mask))

    def _apply(
        self, batch: pa.RecordBatch, text: pa.Array, ledger: TaskLedger, language: str
    ) -> Mask:
        """bool[d]: which documents pass all rules."""
        counts = count(*text_buffers(text), classes(), pack_stop_words(rules.STOP_WORDS))
        splits, rows = np.asarray(batch.column("split")), np.asarray(batch.column("row"))
        keep = np.ones(len(text), bool)

        def english(suspects: Mask) -> Mask:
            return _english(text, suspects & keep, language)

        for check in self._checks(counts, english):
            out = check.fails & keep
            keep[out] = False
            ledger.remove(
                splits[out], rows[out], "clean", check.rule, check.value[out], check.threshold
            )
        return keep

    def _checks(self, counts: Counts, english: Callable[[Mask], Mask]) -> Iterator[Check]:
        yield from rules.basic(counts, self.min_chars)
        for rule in self.rules:
            if rule == "garbled":
                yield from rules.garbled(counts)
            elif rule == "punctuation_only":
                yield from rules.punctuation_only(counts)
            else:
                yield from rules.gopher_quality(counts, english)


def _english(text: pa.Array, suspects: Mask, language: str) -> Mask:
    """bool[d]: which suspects are in English; only they are asked, as asking is slow."""
    if language != "auto":
        return suspects & (language == "en")
    out = np.zeros(len(text), bool)
    for i in np.flatnonzero(suspects):
        out[i] = _identifier().classify(text[i].as_py()[:_LANGUAGE_CHARS])[0] == "en"
    return out


@functools.cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_pickled_model(MODEL_FILE)  # ships inside the package
