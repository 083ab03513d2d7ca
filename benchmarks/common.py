"""What the benchmarks share: the machine's description, tables, timing, peers, inputs."""

import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import yaml

T = TypeVar("T")

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


def watched_build(
    config: dict[str, object],
    work: Path,
    watch: Callable[["subprocess.Popen[str]", list[tuple[float, str]]], T],
) -> tuple[T, list[tuple[float, str]]]:
    """Runs the build command; (what `watch` returns, (time, name) of the end of each pass).

    `watch` gets the process and the list of ends, which grows as they come, and returns when the
    process has ended. Raises RuntimeError when the build fails.
    """
    (work / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-m", "pipelines.build_corpus", "--config"]
    process = subprocess.Popen(
        [*command, str(work / "config.yaml")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its workers can be ended with it
    )
    ends: list[tuple[float, str]] = []
    said: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            print(f"  {line}", end="", file=sys.stderr, flush=True)
            name, done, _ = line.partition(": done in ")
            if done:
                ends.append((time.monotonic(), name))

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        found = watch(process, ends)
    finally:
        if process.poll() is None:  # this benchmark was stopped
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        listener.join()
    if process.returncode:
        raise RuntimeError(f"the build ended with {process.returncode}: {''.join(said[-5:])}")
    return found, ends
