"""How a loader is timed, the same for all: imported by the peers' scripts and by ours.

A loader is a function `open(shuffle, workers)` that yields epochs, each an iterator of integer
batches [b, S]; a loader whose epochs flow into one another yields one endless epoch. NumPy only.

    open ─ first batch ─── rest of the first epoch, summed ─── epochs, timed ──────────────────▸
       first_batch_ms      (also reads all into the page cache)  (all but SKIP batches of each)

The first batch's time includes the making of the loader (files opened, workers started), not the
imports. The rate leaves out the first batches of every epoch: what was read ahead while nobody
asked, and the start of an epoch, which is rare in real epochs and frequent in these small ones.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

BATCH = 8
SKIP = 48
SEED = 17

Batches = Iterator[np.ndarray]
Open = Callable[[bool, int], Iterable[Batches]]


def checksum(rows: np.ndarray) -> int:
    """A sum over rows [n, S] that depends on every token and its place, not on the rows' order.

    The sums of two data sets are equal when they hold the same rows, each as often.
    """
    places = np.arange(1, rows.shape[1] + 1, dtype=np.uint64)
    places *= np.uint64(0x9E3779B97F4A7C15)
    places ^= places >> np.uint64(29)
    places |= np.uint64(1)
    mixed = rows.astype(np.uint64) @ places  # wraps, as all below
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(27))).sum(dtype=np.uint64))


class Seen:
    """Rows that came: how many, their checksum, and what a batch is."""

    def __init__(self) -> None:
        self.rows = self.sum = 0
        self.shape: tuple[int, ...] = ()
        self.dtype = ""

    def add(self, batch: np.ndarray) -> None:
        """Counts the rows of a batch."""
        array = np.asarray(batch)
        self.rows += len(array)
        self.sum = (self.sum + checksum(array)) % 2**64
        if not self.dtype:
            self.shape, self.dtype = array.shape, str(array.dtype)


def rows_per_second(epochs: Iterable[Batches], seconds: float) -> float:
    """Rows a second in the better half of `seconds` of steady state.

    Halves, because on a busy machine a loader may stall once, for longer than is measured.
    """
    rows, spent, halves = 0, 0.0, []
    for batches in epochs:
        for _ in itertools.islice(batches, SKIP):
            pass
        start = now = time.perf_counter()
        for batch in batches:
            rows += len(batch)
            now = time.perf_counter()
            if spent + now - start >= seconds / 2:
                halves.append(rows / (spent + now - start))
                rows, spent, start = 0, 0.0, now
                if len(halves) == 2:
                    return max(halves)
        spent += now - start
    raise RuntimeError("the loader ended before its time was measured")


def peak_rss_mib() -> float:
    """Most memory this process has had resident, plus that of each live child, in MiB.

    Pages that children share with it count in each, as a process monitor shows them.
    """
    pids = [os.getpid()]
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
    peaks = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        peaks += sum(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return peaks / 1024


def measure(
    open_loader: Open, settings: Sequence[tuple[bool, int]], rows: int, seconds: float
) -> dict[str, object]:
    """All settings (shuffle, workers), one after another.

    In the first, a whole epoch of `rows` rows is read before it is timed: its checksum and the
    memory are of this one.
    """
    results, seen, rss = [], Seen(), 0.0
    for shuffle, workers in settings:
        start = time.perf_counter()
        epochs = iter(open_loader(shuffle, workers))
        batches = iter(next(epochs))
        batch = next(batches)
        first = time.perf_counter() - start
        if not seen.rows:
            seen.add(batch)
            while seen.rows < rows:
                if (more := next(batches, None)) is None:
                    raise RuntimeError(f"the first epoch has {seen.rows} rows of {rows}")
                seen.add(more)
            rss = peak_rss_mib()
        rate = rows_per_second(itertools.chain([batches], epochs), seconds)
        results.append(
            {
                "shuffle": shuffle,
                "workers": workers,
                "first_batch_ms": round(first * 1e3, 2),
                "rows_per_second": round(rate, 1),
                "tokens_per_second": round(rate * seen.shape[1], 1),
            }
        )
        del epochs, batches, batch  # ends its workers
    return {
        "rows": seen.rows,
        "checksum": seen.sum,
        "shape": list(seen.shape),
        "dtype": seen.dtype,
        "peak_rss_mib": round(rss, 1),
        "results": results,
    }


def settings_of(words: Sequence[str]) -> list[tuple[bool, int]]:
    """["shuffled:2", "ordered:0"] -> [(True, 2), (False, 0)]."""
    pairs = (word.split(":") for word in words)
    return [({"shuffled": True, "ordered": False}[name], int(workers)) for name, workers in pairs]


def peer_main(
    tool: str,
    version: str,
    prepare: Callable[[np.ndarray, Path], None],
    variants: dict[str, Callable[[Path, int], Open]],
) -> None:
    """The command of a peer's script.

        PEER script.py prepare ROWS.npy FOLDER
        PEER script.py measure ROWS.npy FOLDER VARIANT SECONDS shuffled:2 shuffled:1 ...

    `prepare` writes its own format of int32 rows [n, S] into an empty folder, in a process of its
    own, so that its memory is not counted. A variant gets that folder and S. Prints one JSON line.
    """
    parser = argparse.ArgumentParser(description=f"{tool} as a loader of rows of tokens")
    parser.add_argument("action", choices=("prepare", "measure"))
    parser.add_argument("rows", type=Path, help="int32 [n, S], n a multiple of 8")
    parser.add_argument("folder", type=Path, help="of the peer's own format")
    parser.add_argument("variant", nargs="?", choices=sorted(variants))
    parser.add_argument("seconds", nargs="?", type=float)
    parser.add_argument("settings", nargs="*", help="shuffled:2, ordered:0, ... (workers)")
    args = parser.parse_args()
    rows = np.load(args.rows, mmap_mode="r")
    if args.action == "prepare":
        args.folder.mkdir(parents=True)
        prepare(rows, args.folder)
        return
    n, length = rows.shape
    del rows
    open_loader = variants[args.variant](args.folder, length)
    told = measure(open_loader, settings_of(args.settings), n, args.seconds)
    print(json.dumps({"tool": tool, "variant": args.variant, "version": version, **told}))
