"""Reading a file as a build does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataprep.ledger import TaskLedger
from dataprep.readers import Input, Read, expand, plan_splits


@dataclass
class Result:
    """What reading gave: documents by their row in the file, and the account of the others."""

    documents: list[tuple[int, str]]
    removed: dict[int, tuple[str, float, float]]  # row -> rule, value, threshold
    counts: dict[str, int]
    warnings: list[str]
    records: list[int]  # of each split

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.documents]


def read_file(
    path: Path, split_bytes: int = 1 << 27, read: Read | None = None, **entry: Any
) -> Result:
    """All splits of one file, rows counted from the file's beginning."""
    splits = plan_splits(expand([Input(str(path), **entry)]), split_bytes)
    ledger = TaskLedger("x")
    batches = [b for i, s in enumerate(splits) for b in (read or Read())(s, i, ledger)]
    records = [ledger.records[i] for i in range(len(splits))]
    base = [sum(records[:i]) for i in range(len(splits))]

    def numbered(rows: Iterable[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
        return [(base[r["split"]] + r["row"], r) for r in rows]

    removed = {
        row: (r["rule"], r["value"], r["threshold"])
        for batch in ledger.removed
        for row, r in numbered(batch.to_pylist())
        if r["stage"] == "read"
    }
    documents = [(row, r["text"]) for b in batches for row, r in numbered(b.to_pylist())]
    counts = {name: n for (_, name), n in ledger.ledger.counts.items()}
    assert counts.get("documents.read", 0) == len(documents) + len(removed)
    assert {row for row, _ in documents}.isdisjoint(removed)
    return Result(documents, removed, counts, ledger.warnings, records)


@pytest.fixture(scope="session")
def reads() -> Callable[..., Result]:
    """reads(path, split_bytes, Read(...), text_key=..., ...)"""
    return read_file


@pytest.fixture
def dirty(real_data: Path) -> Path:
    """The folder of real and synthetic dirty files."""
    return real_data / "dirty"
