"""Peak memory of a whole build, all processes together, on a made corpus of a chosen size.

    python -m benchmarks.memory [--mb 2000 4000] [--workers 2] [--shards 64] [--buffer_mib 512]

Every 50 ms, from /proc, over the command and all its descendants:

    anonymous  memory that only they can free       sum of RssAnon
    PSS        that, and pages of files they map     sum of Pss: a shared page counts once

Pages of mapped files are the kernel's cache, dropped when memory is short: the peak that must fit
into a machine lies between the two. The bound is asked of the larger. Corpora and the tokenizer
are kept in benchmarks/.cache; what a build writes is removed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import CACHE, Skip, machine, table, watched_build
from benchmarks.make_corpus import TRUTH, make
from dataprep import dedup
from dataprep.batch import text_buffers
from dataprep.dedup.config import Dedup
from dataprep.tokens.train import TrainTokenizer

BOUND_MIB = 3 * 1024  # for two workers, whatever the size of the corpus
EVERY = 0.05  # seconds between samples
FILES, SEED = 16, 1
SAMPLE_MB, VOCABULARY = 8, 8000
MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """Memory of a process tree at one moment, bytes; `pss` is 0 where it was not read."""

    time: float
    anonymous: int
    pss: int


@dataclass(frozen=True)
class Pass:
    """One pass of a build, or what follows the last."""

    name: str
    seconds: float
    anonymous: int
    pss: int


def corpus(megabytes: int, files: int = FILES) -> Path:
    """Folder of a made corpus, from the cache when it is there."""
    folder = CACHE / f"corpus-{megabytes}-{files}-{SEED}"
    if not (folder / TRUTH).is_file():
        make(folder, megabytes, files, SEED)
    return folder


def tokenizer() -> Path:
    """A SentencePiece model trained on the first documents of every corpus here."""
    path = CACHE / f"made-{SAMPLE_MB}-{VOCABULARY}-{SEED}.model"
    if not path.is_file():
        with (corpus(SAMPLE_MB, 1) / "part-000.jsonl").open(encoding="utf-8") as lines:
            texts = (json.loads(line)["text"] for line in lines)
            TrainTokenizer(vocab_size=VOCABULARY, max_mib=SAMPLE_MB)(texts, path)
    return path


def tree(root: int) -> list[int]:
    """Ids of a process and its descendants that live now."""
    children = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as f:
                    # The name, in parentheses, may hold anything; the parent is the second after.
                    parent = int(f.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # it has ended
            children[parent].append(int(entry))
    found = [root]
    for pid in found:
        found.extend(children[pid])
    return found


def resident(pids: Iterable[int]) -> tuple[int, int]:
    """(all, anonymous) resident bytes, summed; shared pages count in each process."""
    every = anonymous = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as f:
                _, size, shared, *_ = map(int, f.read().split())
        except (OSError, ValueError):
            continue
        every += size * page
        anonymous += (size - shared) * page
    return every, anonymous


def proportional(pids: Iterable[int]) -> tuple[int, int]:
    """(PSS, anonymous) bytes, summed."""
    total = {b"Pss:": 0, b"Anonymous:": 0}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as f:
                for line in f:
                    name, number, *_ = line.split()
                    if name in total:
                        total[name] += int(number) * 1024
        except (OSError, ValueError):
            continue
    return total[b"Pss:"], total[b"Anonymous:"]


def watch(process: subprocess.Popen[str], ends: list[tuple[float, str]]) -> list[Sample]:
    """Samples until the process ends; `ends` grows with (time, pass) as another thread reads it.

    PSS is read only where RSS reaches a new high of its pass, by a MiB at least: reading it stops
    a process for milliseconds.
    """
    samples: list[Sample] = []
    high, done = 0, 0
    while process.poll() is None:
        now = time.monotonic()
        if len(ends) > done:
            high, done = 0, len(ends)
        pids = tree(process.pid)
        every, anonymous = resident(pids)
        pss = 0
        if every >= high + MIB:
            high = every
            pss, anonymous = proportional(pids)
        samples.append(Sample(now, anonymous, pss))
        time.sleep(max(0.0, now + EVERY - time.monotonic()))
    return samples


def passes(start: float, samples: list[Sample], ends: list[tuple[float, str]]) -> list[Pass]:
    """Samples by pass: a pass owns those up to the line that says it is done."""
    last = samples[-1].time if samples else start
    out, left = [], samples
    for end, name in [*ends, (last, "audit, report, publish")]:
        own = [s for s in left if s.time <= end]
        left = left[len(own) :]
        peaks = (max((s.anonymous for s in own), default=0), max((s.pss for s in own), default=0))
        out.append(Pass(name, end - start, *peaks))
        start = end
    return out


def build(inputs: Path, work: Path, workers: int, write: dict[str, int]) -> list[Pass]:
    """Runs the build command and watches it. Raises Skip where /proc cannot tell."""
    if not Path("/proc/self/smaps_rollup").is_file():
        raise Skip("memory of processes is read from /proc/*/smaps_rollup, which is Linux")
    config = {
        "inputs": [{"path": str(inputs / "*.jsonl"), "source": "made"}],
        "tokenizer": {"path": str(tokenizer())},
        "out_dir": str(work / "out"),
        "write": write,
        "engine": {"workers": workers},
    }
    start = time.monotonic()
    samples, ends = watched_build(config, work, watch)
    return passes(start, samples, ends)


@dataclass(frozen=True)
class Recall:
    """Planted near-duplicates at or above the threshold, those of them that were removed, and how
    many others were planted (too different to count)."""

    similar: int
    found: int
    others: int


def recall(inputs: Path, out: Path) -> Recall:
    """Compares what was planted with what was removed."""
    pairs = [line.split("\t") for line in (inputs / TRUTH).read_text("ascii").splitlines()[1:]]
    near = [(copy, original) for kind, copy, original in pairs if kind == "near"]
    removed = removed_as_copies(out)
    open_ = [(copy, original) for copy, original in near if copy not in removed]
    texts = documents(inputs, {place for pair in open_ for place in pair})
    rules = Dedup()

    def shingles(place: str) -> dedup.hashing.U64:
        data, offsets = text_buffers(pa.array([texts[place]], pa.large_string()))
        return dedup.unique_sorted(dedup.shingle(data, offsets, rules.ngram)[0])

    missed = sum(dedup.jaccard(*map(shingles, pair)) >= rules.threshold for pair in open_)
    found = len(near) - len(open_)
    return Recall(found + missed, found, len(open_) - missed)


def removed_as_copies(out: Path) -> set[str]:
    """FILE:ROW, by base name, of documents removed as duplicates of either kind."""
    found: set[str] = set()
    for path in sorted((out / "audit" / "removed").glob("*.parquet")):
        rows = pq.read_table(path, columns=["file", "row", "stage"])
        rows = rows.filter(pc.equal(rows["stage"], "dedup"))
        names = (Path(name).name for name in rows["file"].to_pylist())
        found.update(f"{name}:{row}" for name, row in zip(names, rows["row"].to_pylist()))
    return found


def documents(inputs: Path, places: set[str]) -> dict[str, str]:
    """Texts of documents by FILE:ROW."""
    return {place: json.loads(line)["text"] for place, line in _lines(inputs) if place in places}


def _lines(inputs: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(inputs.glob("*.jsonl")):
        with path.open("rb") as lines:
            for row, line in enumerate(lines):
                yield f"{path.name}:{row}", line


def report(megabytes: int, workers: int, write: dict[str, int]) -> str:
    """Builds a corpus of one size; its tables."""
    inputs = corpus(megabytes)
    size = sum(path.stat().st_size for path in inputs.glob("*.jsonl")) / 1e6
    work = Path(tempfile.mkdtemp(prefix="memory-", dir=CACHE))
    try:
        found = build(inputs, work, workers, write)
        truth = recall(inputs, work / "out")
        inputs_read = json.loads((work / "out" / "manifest.json").read_text("utf-8"))["inputs"]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    seconds = sum(p.seconds for p in found)
    top = max(found, key=lambda p: p.pss)
    held = "held" if top.pss <= BOUND_MIB * MIB else "BROKEN"
    head = ("corpus MB", "documents", "seconds", "MB/s", "peak MiB", "in", "bound MiB", "")
    read = sum(file["rows"] for file in inputs_read)
    rate, peak = f"{size / seconds:.2f}", f"{top.pss / MIB:,.0f}"
    row = (f"{size:,.0f}", f"{read:,}", f"{seconds:.0f}", rate, peak, top.name, BOUND_MIB, held)
    rows = [
        (p.name, f"{p.seconds:.1f}", f"{p.anonymous / MIB:,.0f}", f"{p.pss / MIB:,.0f}")
        for p in found
    ]
    return "\n".join(
        [
            table(head, [row]),
            "",
            table(("pass", "seconds", "anonymous MiB", "PSS MiB"), rows),
            "",
            f"near-duplicates planted at Jaccard >= {Dedup().threshold}: {truth.similar:,}, found: "
            f"{truth.found:,} ({truth.found / max(truth.similar, 1):.3%}); planted below: "
            f"{truth.others:,}",
        ]
    )


def main() -> None:
    """Prints peak memory and time of each pass, for each size."""
    parser = argparse.ArgumentParser(description="Peak memory of a build, by pass.")
    parser.add_argument("--mb", type=int, nargs="+", default=[2000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--buffer_mib", type=int, default=512, help="tokens of a shard in memory")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"{args.workers} workers; {machine()}")
    for megabytes in args.mb:
        write = {"shards": args.shards, "buffer_mib": args.buffer_mib}
        print(f"\n{report(megabytes, args.workers, write)}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Skip as e:
        print(f"skipped: {e}")
        sys.exit(0)
