"""Runs the loaders' measurements, each in a process of its own, and keeps what they found."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT
from benchmarks.loader_data import PRESETS, made
from benchmarks.peers.loader_timing import checksum

TURNS = ("raw", "dataset", "loader", "ready", "stored")
LABELS = {
    "raw": "MindDataset",
    "dataset": "mindprep, MindDataset, columns as stored",
    "loader": "mindprep, MindDataset",
    "ready": "mindprep, direct",
    "stored": "mindprep, direct, columns as stored",
    "gather": "NumPy gather",
    "memcpy": "memcpy",
}
PEERS: dict[str, dict[str, tuple[int, ...]]] = {  # script: variants and their workers
    "megatron": {"plain": (0,), "dataloader": (0, 1, 2)},
    "torch": {"rows": (0, 1, 2), "batches": (0, 1, 2)},
    "hf": {"numpy": (0,), "torch": (0, 1, 2)},
    "litdata": {"tokens": (0, 1, 2)},
    "streaming": {"dataloader": (0, 1, 2)},
}
PEERS_FROM = 2048  # S at which the direct reader is compared with the peers
FASTEST, ROUNDS = 2, 3  # of the peers, measured again beside it, so often

Setting = tuple[bool, int]  # shuffled, workers


@dataclass(frozen=True)
class Line:
    """One loader at one S."""

    name: str
    rates: dict[Setting, float]
    """Tokens a second."""
    first_ms: dict[Setting, float]
    """In the order measured: the first of them in a new process."""
    rss_mib: float
    yields: str
    """dtype of a batch."""
    peer: tuple[str, ...] = ()
    """The command that measures it, up to its settings; empty: no peer."""

    @property
    def shuffled(self) -> float:
        """Best rate over workers."""
        return max(rate for (shuffle, _), rate in self.rates.items() if shuffle)

    @property
    def workers(self) -> int:
        """Those of the best shuffled rate."""
        return max((rate, n) for (shuffle, n), rate in self.rates.items() if shuffle)[1]


@dataclass(frozen=True)
class Turns:
    """MindDataset and ours on one preset, by turns."""

    preset: str
    rates: dict[Setting, dict[str, list[float]]]

    def ratio(self, setting: Setting, mine: str) -> float:
        """Median over the rounds of mine / MindDataset."""
        ours, raw = self.rates[setting][mine], self.rates[setting]["raw"]
        return statistics.median(a / b for a, b in zip(ours, raw, strict=True))


@dataclass(frozen=True)
class Duel:
    """The direct reader of one column of ids and a peer, shuffled, one after the other."""

    peer: str
    rates: list[tuple[float, float]]
    """(ours, theirs) in tokens a second, one a round."""

    @property
    def ratio(self) -> float:
        """Median over the rounds of ours / theirs."""
        return statistics.median(ours / theirs for ours, theirs in self.rates)


@dataclass(frozen=True)
class Size:
    """All that is known at one S."""

    seq_length: int
    lines: list[Line] = field(default_factory=list)
    turns: list[Turns] = field(default_factory=list)
    duels: list[Duel] = field(default_factory=list)


def measure(seq_length: int, peers: str | None, seconds: float, rounds: int) -> Size:
    """Everything at one S; `peers` is their interpreter, None to leave them out."""
    workers = range(1, min(2, os.cpu_count() or 1) + 1)
    size = Size(seq_length)
    folder = made(seq_length)
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    wanted = (len(rows), checksum(rows))
    for preset in PRESETS:
        found = ours("turns", seq_length, preset, seconds, rounds, *settings(workers))
        turns = {(r["shuffle"], r["workers"]): r["tokens_per_second"] for r in found["results"]}
        size.turns.append(Turns(preset, turns))
        for variant in TURNS:
            fresh = ours("fresh", seq_length, preset, variant, 0.02, *settings(workers))
            line = line_of(f"{LABELS[variant]} ({preset})", fresh, wanted)
            medians = {s: statistics.median(rates[variant]) for s, rates in turns.items()}
            size.lines.append(replace(line, rates=medians))
    for variant in ("gather", "memcpy"):
        fresh = ours("fresh", seq_length, "array", variant, seconds, *settings((0,)))
        size.lines.append(line_of(LABELS[variant], fresh, wanted))
    if peers is not None:
        size.lines.extend(peer_lines(peers, folder, seconds, wanted))
        if seq_length >= PEERS_FROM:
            size.duels.extend(duels(size, seconds))
    return size


def peer_lines(python: str, folder: Path, seconds: float, wanted: tuple[int, int]) -> list[Line]:
    """All peers; each one's own format is made once, from the same rows."""
    lines = []
    for script, variants in PEERS.items():
        program = (python, str(ROOT / "benchmarks" / "peers" / f"loader_{script}.py"))
        rows, own = folder / "rows.npy", folder / script
        if not own.is_dir():
            tmp = own.with_name(f"{script}.tmp")
            shutil.rmtree(tmp, ignore_errors=True)
            call([*program, "prepare", str(rows), str(tmp)])
            tmp.rename(own)
        for variant, workers in variants.items():
            command = (*program, "measure", str(rows), str(own), variant, str(seconds))
            found = call([*command, *settings(workers)])
            line = line_of(f"{found['tool']}, {variant}", found, wanted)
            lines.append(replace(line, peer=command))
    return lines


def duels(size: Size, seconds: float) -> list[Duel]:
    """The fastest peers again, each time after the direct reader."""
    peers = sorted((x for x in size.lines if x.peer), key=lambda x: -x.shuffled)[:FASTEST]
    mine = next(x for x in size.lines if x.name == f"{LABELS['stored']} (legacy)")
    rates: dict[str, list[tuple[float, float]]] = {line.name: [] for line in peers}
    for _ in range(ROUNDS):
        setting = f"shuffled:{mine.workers}"
        first = rate(ours("fresh", size.seq_length, "legacy", "stored", seconds, setting))
        for line in peers:
            second = rate(call([*line.peer, f"shuffled:{line.workers}"]))
            rates[line.name].append((first, second))
    return [Duel(name, pairs) for name, pairs in rates.items()]


def rate(found: dict[str, Any]) -> float:
    """Tokens a second of the one setting measured."""
    (result,) = found["results"]
    return result["tokens_per_second"]


def ours(*arguments: object) -> dict[str, Any]:
    """What loader_measure.py found."""
    return call([sys.executable, "-m", "benchmarks.loader_measure", *map(str, arguments)])


def call(command: Sequence[str]) -> dict[str, Any]:
    """The JSON object a program prints as its last line, {} when it prints none."""
    print("  " + " ".join(command[1:]), file=sys.stderr, flush=True)
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{run.stderr[-3000:]}")
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def settings(workers: Sequence[int]) -> list[str]:
    """Settings as arguments, the most workers first: its memory and checksum are taken."""
    return [f"{order}:{n}" for order in ("shuffled", "ordered") for n in sorted(workers)[::-1]]


def line_of(name: str, found: dict[str, Any], wanted: tuple[int, int]) -> Line:
    """A line of the table. Raises RuntimeError unless each of the rows came once."""
    if (found["rows"], found["checksum"]) != wanted:
        raise RuntimeError(f"{name} gave {found['rows']} rows, other than the {wanted[0]} it has")
    results = {(r["shuffle"], r["workers"]): r for r in found["results"]}
    return Line(
        name,
        {setting: r["tokens_per_second"] for setting, r in results.items()},
        {setting: r["first_batch_ms"] for setting, r in results.items()},
        found["peak_rss_mib"],
        found["dtype"],
    )
