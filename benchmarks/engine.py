"""What the engine itself costs: a pipeline that does nothing but move the documents.

    python -m benchmarks.engine [--mb 1000] [--workers 2]

    ours       read JSONL -> spill by output shard -> reduce: a shard's documents, in order
    datatrove  read JSONL -> write JSONL; it has no shuffle

The corpus is one JSONL file, in the page cache after a first pass over it. Ours goes through the
readers, the exchange and the local engine that builds use, receipts included; the text is the
payload. Every document and byte that goes in is counted as it comes out.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import CACHE, ROOT, Skip, machine, peer_python, table
from benchmarks.memory import corpus
from dataprep.batch import text_buffers
from dataprep.corpus.decide import mix
from dataprep.corpus.exchange import Copies, Exchange, lists, sort
from dataprep.corpus.ranges import Range, Slice
from dataprep.engine import LocalEngine, Task
from dataprep.files import atomic_path
from dataprep.ledger import TaskLedger
from dataprep.readers import Input, Read, Split, expand, plan_splits

TEXT = Exchange("text", pa.uint8())
SHARDS = (4, 64, 1024)
LEAST = 150  # MB/s


@dataclass(frozen=True)
class Spill:
    """Map: one split to a spill file."""

    split: Split
    number: int
    shards: int

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        ledger = TaskLedger("null")

        def payloads() -> Any:
            for batch in Read()(self.split, self.number, ledger):
                data, offsets = text_buffers(batch.column("text"))
                flat = pa.array(data[offsets[0] : offsets[-1]])
                text = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), flat)
                yield batch.set_column(2, "text", text)

        def address(batch: pa.Table, length: np.ndarray) -> Copies:
            split = np.asarray(batch["split"]).astype(np.int64)
            row = np.asarray(batch["row"])
            order = mix(17, split, row)
            shard = (order % np.uint64(self.shards)).astype(np.int64)
            return Copies(np.arange(len(row)), shard, order, split, row)

        with atomic_path(folder / "spill", durable=False) as tmp:
            index = sort(tmp, TEXT.spill(tmp, payloads(), address))
        return {"index": index, "removed": len(ledger.removed)}, [folder / "spill"]


@dataclass(frozen=True)
class Reduce:
    """Reduce: a shard's part of every spill, put in order."""

    slices: list[Slice]

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        size = sum(one.values for part in self.slices for one in part.ranges)
        flat = np.empty(size, np.uint8)
        documents = TEXT.documents(self.slices, into=flat)
        start = documents.offsets[documents.arrival]
        text = lists(flat, start, documents.length)
        return {"documents": len(documents.row), "bytes": len(text.values)}, []


def ours(files: str, work: Path, shards: int, engine: LocalEngine) -> tuple[float, float, int, int]:
    """(seconds of map, of reduce, documents, bytes of text)."""
    start = time.perf_counter()
    splits = plan_splits(expand([Input(files)]), 64 << 20)
    maps = [
        Task(f"map {i}", work / f"map{i}", {}, Spill(split, i, shards), split.size)
        for i, split in enumerate(splits)
    ]
    spilled = engine.map("map", maps)
    middle = time.perf_counter()
    found: dict[int, dict[int, list[Range]]] = defaultdict(dict)
    for i, result in enumerate(spilled):
        for one in map(Range._make, result["index"]):
            found[one.shard].setdefault(i, []).append(one)
    reduces = [
        Task(
            f"reduce {s}",
            work / f"reduce{s}",
            {},
            Reduce([Slice(maps[i].folder / "spill", own) for i, own in parts.items()]),
        )
        for s, parts in sorted(found.items())
    ]
    done = engine.map("reduce", reduces)
    end = time.perf_counter()
    documents, size = (sum(r[key] for r in done) for key in ("documents", "bytes"))
    return middle - start, end - middle, documents, size


def peer(file: Path, work: Path, workers: int) -> float:
    """Seconds of datatrove."""
    command = [peer_python("datatrove"), str(ROOT / "benchmarks/peers/datatrove_engine.py")]
    command += [str(file), str(work / "datatrove"), str(workers)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise Skip(f"datatrove failed: {run.stderr.strip()[-300:]}")
    return float(json.loads(run.stdout.strip().splitlines()[-1])["seconds"])


def texts(file: Path) -> tuple[int, int]:
    """(documents, bytes of text) of a file, counted by the standard library."""
    sizes = [len(json.loads(line)["text"].encode()) for line in file.open("rb")]
    return len(sizes), sum(sizes)


def main() -> int:
    """Prints MB/s of input for some numbers of shards; fails when it loses or is too slow."""
    parser = argparse.ArgumentParser(description="A pipeline that only moves the documents.")
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    (file,) = corpus(args.mb, 1).glob("*.jsonl")
    expected = texts(file)  # which fills the page cache too
    megabytes = file.stat().st_size / 1e6
    rows: list[tuple[object, ...]] = []
    rates = []
    work = Path(tempfile.mkdtemp(prefix="engine-", dir=CACHE))
    try:
        with LocalEngine(args.workers, quiet=True) as engine:
            ours(head(file, work), work / "warm", 4, engine)  # starts the workers, compiles
            for shards in SHARDS:
                first, then, *counted = ours(str(file), work / str(shards), shards, engine)
                if tuple(counted) != expected:
                    raise AssertionError(f"{expected} went in, {counted} came out")
                rates.append(megabytes / (first + then))
                rows.append((f"{shards} shards", first, then, rates[-1]))
                shutil.rmtree(work / str(shards))
        try:
            seconds = peer(halves(file, work), work, args.workers)
            rows.append(("datatrove, no shuffle", seconds, "-", megabytes / seconds))
        except Skip as e:
            rows.append((f"datatrove: {e}", "-", "-", "-"))
            seconds = 0.0
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(
        f"{megabytes:,.0f} MB of JSONL, {expected[0]:,} documents, {args.workers} workers, one ",
        end="",
    )
    print(f"run each; {machine()}\n")
    print(table(("", "map s", "reduce s", "MB/s"), rows))
    print(f"\nmindprep at {SHARDS[0]} shards: {rates[0]:.0f} MB/s (to reach: {LEAST})", end="")
    print(f", {rates[0] * seconds / megabytes:.1f} x datatrove" if seconds else "")
    return int(rates[0] < LEAST)


def head(file: Path, work: Path) -> str:
    """Its first lines in some small files, one for each worker at least."""
    with file.open("rb") as f:
        lines = b"".join(f.readlines(1 << 20))
    for i in range(8):
        (work / f"head{i}.jsonl").write_bytes(lines)
    return str(work / "head*.jsonl")


def halves(file: Path, work: Path) -> Path:
    """A folder with the same lines in two files: datatrove does not split one."""
    folder = work / "halves"
    folder.mkdir()
    with file.open("rb") as f:
        for name, size in (("0.jsonl", file.stat().st_size // 2), ("1.jsonl", -1)):
            with (folder / name).open("wb") as half:
                half.writelines(f.readlines(size))
    return folder


if __name__ == "__main__":
    sys.exit(main())
