"""Runs of the real command that are killed, or whose workers are, at moments nobody chose."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import yaml

from dataprep.corpus import BuildConfig, Write, build
from dataprep.engine import Engine
from dataprep.readers import Input
from pipelines.cli import main
from tests.conftest import document, write_jsonl
from tests.corpus.test_determinism import tree

Make = Callable[..., BuildConfig]
SEED = 11
PASSES = ("a", "decide", "b", "c")  # folders of receipts, in the order of the run


@pytest.fixture
def many_tasks(config_for: Make, tmp_path: Path) -> BuildConfig:
    """8 files of a source each, which share documents: 8 tasks in A and in B, 7 in C."""
    inputs = []
    for i in range(8):
        texts = [document(20 * i + j, 2 + j % 9) for j in range(30)]  # 10 are the next file's too
        path = write_jsonl(tmp_path / "many" / f"{i}.jsonl", texts)
        inputs.append(Input(str(path), source=f"source {i}"))
    return config_for(inputs=inputs, write=Write(shards=6))


def test_four_workers(many_tasks: BuildConfig, config_for: Make) -> None:
    four = Engine(workers=4, quiet=True)
    expected = tree(build(many_tasks).out_dir)
    fields = {"inputs": many_tasks.inputs, "write": many_tasks.write}
    assert tree(build(config_for("four", engine=four, **fields)).out_dir) == expected
    assert len([name for name in expected if name.endswith(".mindrecord")]) == 7


@dataclass(frozen=True)
class Command:
    """`mindprep build` of a config on two workers, in a process group of its own."""

    config: BuildConfig
    file: Path

    @classmethod
    def of(cls, config: BuildConfig) -> "Command":
        """Writes the config beside the output folder."""
        file = config.out.with_name("config.yaml")
        engine = {"workers": 2, "quiet": True}
        file.write_text(yaml.safe_dump({**asdict(config), "engine": engine}))
        return cls(config, file)

    def start(self) -> "subprocess.Popen[bytes]":
        """Its errors go to a file: a pipe would make us wait for workers that outlive it."""
        command = [sys.executable, "-m", "pipelines.build_corpus", "--config", str(self.file)]
        with self.errors.open("w") as errors:
            return subprocess.Popen(
                command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=errors
            )

    @property
    def errors(self) -> Path:
        """What the last run has said on stderr."""
        return self.config.out.with_name("errors.txt")

    def undisturbed(self) -> tuple[dict[str, str], dict[str, int]]:
        """Output tree and tasks of each pass of a run on one worker, which leaves nothing."""
        assert main(["build", "--config", str(self.file), "--engine.workers=1"]) == 0
        found = tree(self.config.out), self.receipts()
        self.clear()
        return found

    def receipts(self) -> dict[str, int]:
        """Tasks of each pass that are done."""
        return {name: len(list((self.config.work / name).rglob("receipt.json"))) for name in PASSES}

    def clear(self) -> None:
        """Makes the next run a first one."""
        for folder in (self.config.out, self.config.work, self.config.building):
            shutil.rmtree(folder, ignore_errors=True)

    def names(self) -> set[str]:
        """All files that lie in the folders of the run."""
        folders = (self.config.work, self.config.building, self.config.out)
        return {
            f"{at}/{name}" for top in folders for at, _, names in os.walk(top) for name in names
        }


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_killed_at_random_moments(many_tasks: BuildConfig, kills: int) -> None:
    """SIGKILL, resumed each time; where a run was faster, another begins from nothing.

    A moment is a random number of new files and up to 20 ms more: so moments lie all over a run on
    any machine. In half of the cases the workers are left to notice that their parent is gone.
    """
    command, rng = Command.of(many_tasks), random.Random(SEED)
    expected, tasks = command.undisturbed()
    fell: Counter[str] = Counter()
    code = -signal.SIGKILL
    while (wanted := fell.total() < kills or not {"a", "b", "c"} <= fell.keys()) or code:
        moment = (rng.randrange(1, 40), rng.uniform(0, 0.02)) if wanted else (sys.maxsize, 0)
        code = _run(command, *moment, workers_too=rng.random() < 0.5)
        if code == -signal.SIGKILL:
            done = command.receipts()
            fell[next((name for name in PASSES if done[name] < tasks[name]), "publish")] += 1
            assert not many_tasks.out.exists() or tree(many_tasks.out) == expected
        else:
            assert (code, command.errors.read_text()) == (0, "")
            assert tree(many_tasks.out) == expected
            assert not many_tasks.building.exists()
            command.clear()
    print(f"kills by pass: {dict(fell)}")


def _run(command: Command, files: int, seconds: float, workers_too: bool) -> int:
    """Exit code of a run that is killed so long after so many new files, unless it was faster."""
    before = command.names()
    seen = set(before)
    with command.start() as run:
        while len(seen) - len(before) < files and run.poll() is None:
            seen |= command.names()
            time.sleep(0.005)
        time.sleep(seconds)
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL) if workers_too else run.kill()
    return run.returncode


@pytest.fixture
def heavy(config_for: Make, corpus: Path, tmp_path: Path) -> Command:
    """40 MB, of few texts, beside the corpus: reading it takes long enough to be caught at it."""
    texts = [document(i, 30) for i in range(20)]
    path = write_jsonl(tmp_path / "heavy.jsonl", texts * 1000)
    inputs = [Input(str(path), source="heavy"), Input(str(corpus / "*.jsonl"), source="web")]
    return Command.of(config_for(inputs=inputs))


def _kill_readers(run: "subprocess.Popen[bytes]", path: Path, times: int) -> int:
    """SIGKILL, as the kernel sends it for memory, to workers that have `path` open; how many."""
    killed: set[int] = set()
    while len(killed) < times and run.poll() is None:
        for entry in Path("/proc").glob("[0-9]*"):
            pid = int(entry.name)
            with suppress(OSError):  # it has ended, or is another user's
                ours = pid not in killed | {run.pid} and os.getsid(pid) == run.pid
                if ours and str(path) in (os.readlink(fd) for fd in (entry / "fd").iterdir()):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(0.001)
    return len(killed)


def test_a_worker_killed_once_costs_nothing(heavy: Command, tmp_path: Path) -> None:
    expected, _ = heavy.undisturbed()
    with heavy.start() as run:
        assert _kill_readers(run, tmp_path / "heavy.jsonl", 1) == 1
    assert (run.returncode, heavy.errors.read_text()) == (0, "")
    assert tree(heavy.config.out) == expected


def test_an_input_that_kills_its_worker_twice_is_named(heavy: Command, tmp_path: Path) -> None:
    path = tmp_path / "heavy.jsonl"
    with heavy.start() as run:
        assert _kill_readers(run, path, 3) == 2
    told = heavy.errors.read_text()
    assert run.returncode == 2, told
    assert told.startswith("error: a worker process died twice (was killed by the kernel")
    assert told.count("\n") == 1 and f"on one task: read {path} from 0. If memory ran out" in told
    assert not heavy.config.out.exists()
    # With more memory, the run goes on from there.
    assert main(["build", "--config", str(heavy.file)]) == 0
    after = tree(heavy.config.out)
    heavy.clear()
    assert after == heavy.undisturbed()[0]
