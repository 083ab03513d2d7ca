"""Between B and C, where `max_tokens` is set: which train documents stay.

Whole documents, with all their copies, stay in the order of a seeded draw, as long as the sum of
their tokens is within the limit. First each entry of the inputs has its own limit. What that
leaves has the one of the whole, by a draw of its own: it takes the same share of every entry,
and what an entry's limit has left is even in that draw too.

    a document stays    draw < files[its file]  and  other draw < every
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.corpus import decide, pass_b
from dataprep.corpus.arrow import read_array
from dataprep.corpus.config import BuildConfig
from dataprep.corpus.plan import Ints, Plan
from dataprep.engine import Task
from dataprep.files import fingerprint
from dataprep.ledger import Ledger
from dataprep.storage import Place

RULE = "mix", "max_tokens"
ALL = 1 << 63  # above every draw
_ENTRY, _WHOLE = 3, 4  # draws; those of decide.py are 0 to 2

Draws = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """What stays of the train documents. Picklable, JSON-able, small."""

    seed: int
    files: list[int]
    """Of each file: its documents stay whose draw is below."""
    every: int
    """Of all that is left."""

    def __call__(self, file: npt.NDArray[np.integer[Any]], row: Ints) -> Bools:
        """bool[n]: which of these documents stay."""
        whole = _draw(self.seed + _WHOLE, file, row) < np.uint64(self.every)
        return whole & self.by_entry(file, row)

    def by_entry(self, file: npt.NDArray[np.integer[Any]], row: Ints) -> Bools:
        """bool[n]: which of them the limit of their own entry lets stay."""
        return _draw(self.seed + _ENTRY, file, row) < self._files[file]

    @cached_property
    def _files(self) -> Draws:
        return np.array(self.files, np.uint64)  # there may be many, asked for again and again


def _draw(seed: int, file: npt.NDArray[np.integer[Any]], row: Ints) -> Draws:
    """uint64[n], below ALL."""
    return decide.mix(seed, file.astype(np.int64), row) >> np.uint64(1)


def first_over(draw: Draws, size: Ints, limit: int) -> int:
    """The first draw with which the sum of sizes exceeds the limit; ALL if none does."""
    by_draw = np.argsort(draw, kind="stable")
    over = np.cumsum(size[by_draw]) > limit
    return int(draw[by_draw[np.argmax(over)]]) if over.any() else ALL


@dataclass(frozen=True)
class Cap:
    """Work of the global step; one process, about 110 bytes a train document."""

    folders: list[Place]
    """Of the tasks of pass B."""
    sources: list[str]
    """Of each of those tasks."""
    entries: list[int]
    """Of each file: which of `limits` it shares, or -1."""
    limits: list[int]
    limit: int | None
    """Of all."""
    borders: list[int]
    seed: int

    def __call__(self, folder: Place) -> tuple[dict[str, Any], list[Place]]:
        found = [read_array(before / pass_b.TRAIN) for before in self.folders]
        file, row, tokens, copies = np.concatenate([np.zeros((4, 0), np.int64), *found], axis=1)
        starts = np.cumsum([0, *(part.shape[1] for part in found)])
        del found
        cut = self._cut(file, row, tokens * copies)
        stays = cut(file, row)
        ledger = Ledger()
        for source, first, stop in zip(self.sources, starts, starts[1:]):
            gone = slice(first, stop)
            out = ~stays[gone]
            n, size = int(out.sum()), int((tokens[gone] * copies[gone])[out].sum())
            ledger.move(source, "documents.kept", "documents.removed." + ".".join(RULE), n)
            ledger.count(source, f"tokens.dropped.{RULE[1]}", size)
        result = {
            "ledger": ledger.to_json(),
            "cut": asdict(cut),
            "dropped": int(len(stays) - stays.sum()),
            "shards": self._shards(file[stays], row[stays], tokens[stays], copies[stays]),
        }
        return result, []

    def _cut(self, file: Ints, row: Ints, size: Ints) -> Cut:
        draw = _draw(self.seed + _ENTRY, file, row)
        files = np.full(len(self.entries), ALL, np.uint64)
        entries = np.array(self.entries)
        entry = entries[file]
        for number, picks in _runs(entry, np.argsort(entry, kind="stable")):
            if number >= 0:
                found = first_over(draw[picks], size[picks], self.limits[number])
                files[entries == number] = found
        every = ALL
        if self.limit is not None:
            left = draw < files[file]
            other = _draw(self.seed + _WHOLE, file[left], row[left])
            every = first_over(other, size[left], self.limit)
        return Cut(self.seed, files.tolist(), every)

    def _shards(self, file: Ints, row: Ints, tokens: Ints, copies: Ints) -> list[list[int]]:
        """[documents, tokens] of each train shard."""
        places = decide.Places(decide.mix(self.seed, file, row), copies.astype(np.int32))
        borders = np.array(self.borders, np.uint64)
        sums = np.zeros((2, len(borders) + 1))
        for place, document in places:
            shard = np.searchsorted(borders, place, "right")
            sums[0] += np.bincount(shard, minlength=sums.shape[1])
            sums[1] += np.bincount(shard, tokens[document], sums.shape[1])
        return [[int(d), int(t)] for d, t in sums.T]


def _runs(key: Ints, by_key: Ints) -> Iterator[tuple[int, Ints]]:
    """(value, indices) of each run of equal values in a sorted order."""
    borders = np.flatnonzero(np.diff(key[by_key])) + 1
    for picks in np.split(by_key, borders):
        if len(picks):
            yield int(key[picks[0]]), picks


def wanted(config: BuildConfig) -> bool:
    """Whether there is any limit."""
    limits = [config.max_tokens, *(entry.max_tokens for entry in config.inputs)]
    return any(limit is not None for limit in limits)


def task(config: BuildConfig, plan: Plan, done: Sequence[Task], decided: dict[str, Any]) -> Task:
    """The one task of this step. `done`: the tasks of pass B; `decided`: who stays, and where."""
    limits = {f.entry: f.max_tokens for f in plan.files if f.max_tokens is not None}
    numbers = {entry: i for i, entry in enumerate(limits)}
    entries = [numbers.get(file.entry, -1) for file in plan.files]
    works = [before.work for before in done]
    return Task(
        name="find what max_tokens leaves",
        folder=config.work / "cap",
        depends_on={
            "pass B": fingerprint([before.fingerprint for before in done]),
            "max_tokens": config.max_tokens,
            "inputs": {"max_tokens": limits, "files": fingerprint(entries)},
            "shards": fingerprint(decided["borders"]),
            "seed": config.seed,
        },
        work=Cap(
            folders=[before.folder for before in done],
            sources=[work.source for work in works if isinstance(work, pass_b.TokenizeAndSpill)],
            entries=entries,
            limits=list(limits.values()),
            limit=config.max_tokens,
            borders=decided["borders"],
            seed=config.seed,
        ),
    )
