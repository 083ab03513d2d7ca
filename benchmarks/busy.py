"""How busy the workers of a build are: one large JSONL file, cut into splits, on two of them.

    python -m benchmarks.busy [--mb 1000] [--workers 2]

Five times a second, from /proc: the processor seconds (user and system, of all threads) that each
worker has used. Its share of a pass is what it used of the wall time between the lines that end the
pass before and this one; pass A begins when the first worker does. No worker can have all: 1000 MB
are 7.45 splits of 128 MiB, so that one of two is done with A and B after 86% of the time.

The corpus and the tokenizer are kept in benchmarks/.cache; what a build writes is removed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import CACHE, Skip, machine, table, watched_build
from benchmarks.memory import corpus, tokenizer, tree

EVERY = 0.2  # seconds between samples
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """Processor seconds of each worker at one moment, by process id."""

    time: float
    used: dict[int, float]


@dataclass(frozen=True)
class Pass:
    """One pass of a build and each worker's share of it."""

    name: str
    seconds: float
    busy: list[float]


def workers(root: int) -> dict[int, float]:
    """Processor seconds of the workers that live now; the resource tracker is none."""
    used = {}
    for pid in tree(root)[1:]:
        try:
            spawned = b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
            # The name, in parentheses, may hold anything; utime is the 12th after it.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        if spawned:
            used[pid] = (int(fields[11]) + int(fields[12])) / TICK
    return used


def watch(run: "subprocess.Popen[str]", ends: list[tuple[float, str]]) -> list[Sample]:
    """Samples until the build ends."""
    samples: list[Sample] = []
    while run.poll() is None:
        samples.append(Sample(time.monotonic(), workers(run.pid)))
        time.sleep(EVERY)
    return samples


def passes(samples: list[Sample], ends: list[tuple[float, str]]) -> list[Pass]:
    """Shares of each pass."""
    last = ends[-1][0]
    worked = [sample for sample in samples if sample.used and sample.time <= last]
    pids = sorted({pid for sample in worked for pid in sample.used})
    start, found = worked[0].time, []
    for end, name in ends:
        own = [sample for sample in worked if start <= sample.time <= end] or worked[-1:]
        first, final = own[0], own[-1]
        wall = max(final.time - first.time, EVERY)
        used = [final.used.get(pid, 0) - first.used.get(pid, 0) for pid in pids]
        found.append(Pass(name, end - start, [seconds / wall for seconds in used]))
        start = end
    return found


def measure(megabytes: int, count: int) -> list[Pass]:
    """Builds a corpus of one file of this size."""
    inputs = corpus(megabytes, 1)
    work = Path(tempfile.mkdtemp(prefix="busy-", dir=CACHE))
    config = {
        "inputs": [{"path": str(inputs / "*.jsonl"), "source": "made"}],
        "tokenizer": {"path": str(tokenizer())},
        "out_dir": str(work / "out"),
        "engine": {"workers": count},
    }
    try:
        return passes(*watched_build(config, work, watch))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    """Prints the share of its time that each worker was busy, by pass."""
    parser = argparse.ArgumentParser(description="How busy the workers of a build are.")
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.workers < 2:
        parser.error("--workers: one worker is the command itself; ask for 2 or more")
    if not Path("/proc/self/stat").is_file():
        raise Skip("processor time of processes is read from /proc/*/stat, which is Linux")
    CACHE.mkdir(parents=True, exist_ok=True)
    found = measure(args.mb, args.workers)
    print(f"one JSONL file of {args.mb:,} MB, {args.workers} workers; {machine()}\n")
    head = ("pass", "seconds", *(f"worker {i + 1} busy" for i in range(args.workers)))
    rows = [(p.name, f"{p.seconds:.1f}", *(f"{share:.0%}" for share in p.busy)) for p in found]
    print(table(head, rows))


if __name__ == "__main__":
    try:
        main()
    except Skip as e:
        print(f"skipped: {e}")
        sys.exit(0)
