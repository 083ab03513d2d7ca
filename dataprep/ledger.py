"""The ledger: every document, token, slot and target is accounted for, or the build fails.

Counts are flat dotted names per source, so that adding two ledgers is adding numbers:

    documents.read                     = documents.kept + sum(documents.removed.<stage>.<rule>)
    tokens.tokenized + tokens.repeated = tokens.placed + sum(tokens.dropped.<reason>)
    slots.total                        = tokens.placed + slots.padding
    slots.total                        = targets.trained + sum(targets.masked.<reason>)

Names under `notes.` (bad bytes replaced, blank lines skipped, ...) inform and need not balance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# (left, right): exact names, or prefixes that end in a dot and stand for all names below them.
BALANCES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("documents.read",), ("documents.kept", "documents.removed.")),
    (("tokens.tokenized", "tokens.repeated"), ("tokens.placed", "tokens.dropped.")),
    (("slots.total",), ("tokens.placed", "slots.padding")),
    (("slots.total",), ("targets.trained", "targets.masked.")),
)

REMOVED = pa.schema(
    [
        ("split", pa.int32()),
        ("row", pa.int64()),
        ("stage", pa.string()),
        ("rule", pa.string()),
        ("value", pa.float64()),
        ("threshold", pa.float64()),
    ]
)


class Ledger:
    """Counts by (source, name). Ledgers of tasks add up to the ledger of the run."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, source: str, name: str, n: int = 1) -> None:
        """Adds `n` to one count; a zero leaves no entry."""
        if n:
            self.counts[source, name] += int(n)

    def move(self, source: str, before: str, after: str, n: int) -> None:
        """Counts n under another name than the ledger of an earlier task did."""
        self.count(source, before, -n)
        self.count(source, after, n)

    def total(self, name: str) -> int:
        """Sum over all sources of one name, or of all names below a prefix ending in a dot."""
        if name.endswith("."):
            return sum(n for (_, key), n in self.counts.items() if key.startswith(name))
        return sum(n for (_, key), n in self.counts.items() if key == name)

    def below(self, prefix: str) -> dict[str, int]:
        """{rest of the name: sum over sources} for the names below a prefix, largest first."""
        found: Counter[str] = Counter()
        for (_, key), n in self.counts.items():
            if key.startswith(prefix):
                found[key.removeprefix(prefix)] += n
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def sources(self) -> list[str]:
        """Names of the sources counted, sorted."""
        return sorted({source for source, _ in self.counts})

    def add(self, others: Iterable["Ledger"]) -> "Ledger":
        """Adds other ledgers to this one and returns it."""
        for other in others:
            self.counts.update(other.counts)
        return self

    def imbalances(self) -> list[str]:
        """One line for each rule of BALANCES that does not hold; empty when it balances."""
        found = []
        for left, right in BALANCES:
            a, b = (sum(self.total(name) for name in side) for side in (left, right))
            if a != b:
                found.append(f"{' + '.join(left)} = {a:,} but {' + '.join(right)} = {b:,}")
        return found

    def to_json(self) -> dict[str, dict[str, int]]:
        """{source: {name: count}}, sorted, for receipts and the manifest."""
        out: dict[str, dict[str, int]] = {}
        for (source, name), n in sorted(self.counts.items()):
            if n:  # all of a count may have moved
                out.setdefault(source, {})[name] = n
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Any]]) -> "Ledger":
        """The inverse of `to_json`."""
        ledger = cls()
        for source, names in value.items():
            for name, n in names.items():
                ledger.count(source, name, int(n))
        return ledger


class TaskLedger:
    """What a stage reports to while a task runs: counts for one source, and every removed document.

    Removed documents are kept as Arrow tables (REMOVED) for the audit; values are NaN where a rule
    measures nothing.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.ledger = Ledger()
        self.removed: list[pa.RecordBatch] = []
        self.records: dict[int, int] = {}  # split index -> records read: later rows of its file
        self.warnings: list[str] = []  # what a person should see, such as a damaged file

    def count(self, name: str, n: int = 1) -> None:
        """Adds to a count of this task's source."""
        self.ledger.count(self.source, name, n)

    def remove(
        self,
        splits: npt.ArrayLike,
        rows: npt.ArrayLike,
        stage: str,
        rule: str,
        value: npt.ArrayLike = np.nan,
        threshold: float = np.nan,
    ) -> None:
        """Counts documents as removed and records why.

        `splits` and `value` broadcast against `rows` (int64[n]): one removal for each row.
        """
        row = np.atleast_1d(np.asarray(rows, np.int64))
        if not len(row):
            return
        self.count(f"documents.removed.{stage}.{rule}", len(row))
        columns = [
            pa.array(np.broadcast_to(np.asarray(splits, np.int32), row.shape)),
            pa.array(row),
            pa.array([stage]).take(pa.array(np.zeros(len(row), np.int32))),
            pa.array([rule]).take(pa.array(np.zeros(len(row), np.int32))),
            pa.array(np.broadcast_to(np.asarray(value, np.float64), row.shape)),
            pa.array(np.full(len(row), threshold, np.float64)),
        ]
        self.removed.append(pa.RecordBatch.from_arrays(columns, schema=REMOVED))
