"""The plan of a run over many files, which reads their heads and sizes and nothing else.

    python -m benchmarks.plan [--files 50000]

Files are sparse: 200 KB each by their length, of which none is on disk. They are removed after.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import CACHE, ROOT, machine, table
from benchmarks.memory import tokenizer
from dataprep.corpus import BuildConfig
from dataprep.corpus.plan import Plan, make_plan
from dataprep.readers import Input
from dataprep.tokens import Tokenize

BOUND = 10.0  # seconds for 50,000 files
SIZE, A_FOLDER = 200_000, 1000  # bytes of a file, files of a folder


def make(folder: Path, files: int) -> str:
    """Writes the files; the pattern that matches them."""
    for i in range(files):
        path = folder / f"{i // A_FOLDER:03d}" / f"{i:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as f:
            f.truncate(SIZE)
    return str(folder / "*" / "*.jsonl")


def bytes_read() -> int:
    """Bytes that this process has asked of files so far; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/io").read_text("ascii").split()[1])
    except OSError:
        return 0


def planned(pattern: str) -> tuple[Plan, float, int]:
    """(plan, its seconds, bytes it read)."""
    config = BuildConfig([Input(pattern)], Tokenize(str(tokenizer())), str(CACHE / "never-made"))
    start, read = time.perf_counter(), bytes_read()
    plan = make_plan(config)
    return plan, time.perf_counter() - start, bytes_read() - read


def dry_run(pattern: str, folder: Path) -> float:
    """Seconds of the command, from its start to its end."""
    config = folder / "config.yaml"
    config.write_text(f"inputs: [{{path: '{pattern}'}}]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pipelines.build_corpus", "--config", str(config)]
    command += ["--tokenizer.path", str(tokenizer()), "--out_dir", str(folder / "out")]
    start = time.perf_counter()
    subprocess.run([*command, "--dry_run", "true"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Prints the seconds of a plan, alone and as a command."""
    parser = argparse.ArgumentParser(description="The plan of a run over many files.")
    parser.add_argument("--files", type=int, default=50_000)
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    tokenizer()  # made, if it is absent, before anything is timed
    folder = Path(tempfile.mkdtemp(prefix="plan-", dir=CACHE))
    try:
        pattern = make(folder, args.files)
        plan, alone, read = planned(pattern)
        command = dry_run(pattern, folder)
    finally:
        shutil.rmtree(folder)
    size = sum(file.size for file in plan.files)
    print(f"{size / 1e9:.1f} GB by length, {read / len(plan.files):,.0f} bytes read a file")
    print(f"{machine()}\n")
    counts = [f"{len(x):,}" for x in (plan.files, plan.splits, plan.groups)]
    rows = [
        (name, *counts, f"{seconds:.2f}", f"{BOUND:.0f}", "held" if seconds <= BOUND else "BROKEN")
        for name, seconds in (("make_plan", alone), ("mindprep build --dry_run true", command))
    ]
    print(table(("", "files", "splits", "tasks", "seconds", "bound", ""), rows))


if __name__ == "__main__":
    main()
