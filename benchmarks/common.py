"""What the benchmarks share: the machine's description, tables, timing, peers, inputs."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REAL_DATA = ROOT.parent / "shared" / "data"
CACHE = ROOT / "benchmarks" / ".cache"


class Skip(Exception):
    """A benchmark cannot run here; the text says why."""


def machine() -> str:
    """Processor, cores, memory, versions: what figures depend on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux: the generic name stands
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers with three significant digits."""
    cells = [[f"{c:.3g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(row, widths)) for row in [list(head), *cells]]
    rule = " | ".join("-" * w for w in widths)
    return "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])


def median_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """Median wall time of `runs` calls after one that is not counted."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peer_python(name: str) -> str:
    """The interpreter of a peer's own environment, made if it is absent.

    Raises Skip when it cannot be made.
    """
    setup = ROOT / "benchmarks" / "peers" / "setup.sh"
    env = {**os.environ, "PYTHON": sys.executable}
    run = subprocess.run(
        ["bash", str(setup), name], env=env, capture_output=True, text=True, check=False
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Skip(f"the environment of {name} cannot be made: {last}")
    return run.stdout.strip().splitlines()[-1]


def real(name: str) -> Path:
    """A file of the folder of real text. Raises Skip when it is absent."""
    path = REAL_DATA / name
    if not path.is_file():
        raise Skip(f"{name} of the folder of real text is not on this machine")
    return path
