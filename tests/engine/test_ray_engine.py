"""The ray engine: what the local one does, on nodes that may die."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dataprep import UserError
from dataprep.corpus import BuildConfig, build
from dataprep.engine import Engine, LocalEngine, RayEngine, Task, Work
from dataprep.engine.ray_engine import LOCAL, NOWHERE, _serve
from tests.corpus.test_determinism import tree
from tests.engine.test_engine import Die, DieOnce, Fail, runs, tasks

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).resolve().parents[2]
STORE = 100 << 20  # bytes of shared memory a node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs and two nodes with one each, all on this machine's loopback."""
    # A cluster that is not ray.init's reports even that it does not report.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": NOWHERE}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**LOCAL, **quiet, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/engine"}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        pytest.importorskip("ray", reason="ray is not installed: pip install 'mindprep[ray]'")
        from ray.cluster_utils import Cluster

        # A dead node is noticed after 2 seconds, not 30.
        system = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": system}
        found = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": STORE})
        try:
            for _ in range(2):
                found.add_node(num_cpus=1, object_store_memory=STORE)
            yield found
        finally:
            import ray

            ray.shutdown()
            found.shutdown()


@pytest.fixture
def ray_engine(cluster: Any) -> Callable[..., RayEngine]:
    def make(retries: int = 1) -> RayEngine:
        return RayEngine(cluster.address, 1, memory_mib=64, retries=retries, quiet=True)

    return make


def receipts(folder: Path) -> list[dict[str, Any]]:
    """Of all tasks, without what tells one run from another."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/receipt.json"))]
    for receipt in found:
        del receipt["result"]["worker"]
        receipt["outputs"] = {Path(k).name: size for k, size in receipt["outputs"].items()}
    return found


def test_results_and_receipts_are_the_local_ones(
    tmp_path: Path, ray_engine: Callable[..., RayEngine]
) -> None:
    there, here = tmp_path / "ray", tmp_path / "local"
    done: list[int] = []
    with ray_engine() as engine, LocalEngine(1, quiet=True) as local:
        results = engine.map("square", tasks(there), done.append)
        assert [r["square"] for r in results] == [0, 1, 4, 9, 16]
        assert os.getpid() not in {r["worker"] for r in results}
        assert done == [0, 1, 2, 3, 4, 5]
        local.map("square", tasks(here))
        assert receipts(there) == receipts(here) and len(receipts(here)) == 5
        # Each takes the other's work for done.
        assert local.map("square", tasks(there)) == results
        assert [r["square"] for r in engine.map("square", tasks(here))] == [0, 1, 4, 9, 16]
    assert runs(there) == runs(here) == [1] * 5


def test_few_in_flight_and_large_ones_first(
    tmp_path: Path, ray_engine: Callable[..., RayEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    all_tasks = [replace(task, size=i) for i, task in enumerate(tasks(tmp_path, 20))]
    with ray_engine() as engine:
        from dataprep.engine import ray_engine as module

        submit = module._submit

        def watched(remote: Any, task: Task) -> Any:
            given.append((task.size, len(engine._running)))
            return submit(remote, task)

        monkeypatch.setattr(module, "_submit", watched)
        engine.map("square", all_tasks)
    assert [size for size, _ in given] == list(range(20))[::-1]
    assert max(running for _, running in given) == 3  # and one more: 2 for each of 2 CPUs


def test_failures_pass_through(tmp_path: Path, ray_engine: Callable[..., RayEngine]) -> None:
    for expected, kind, told in ((True, UserError, "^bad file$"), (False, RuntimeError, "x")):
        bad = Task("bad", tmp_path / "bad", {}, Fail(expected))
        with pytest.raises(kind, match=told) as error, ray_engine() as engine:
            engine.map("square", [*tasks(tmp_path), bad])
    assert "while doing: bad" in "".join(error.value.__notes__)


def test_a_worker_that_always_dies_ends_the_run(
    tmp_path: Path, ray_engine: Callable[..., RayEngine], capfd: pytest.CaptureFixture[str]
) -> None:
    dead = [Task("read deadly.jsonl", tmp_path / "d", {}, Die()), *tasks(tmp_path)]
    died = pytest.raises(UserError, match="lost 2 times on one task: read deadly.jsonl .*Crashed")
    with died, ray_engine() as engine:
        engine.map("deadly", dead)
    assert capfd.readouterr().out == ""


def test_a_worker_that_dies_once_costs_one_retry(
    tmp_path: Path, ray_engine: Callable[..., RayEngine]
) -> None:
    once = Task("read unlucky.jsonl", tmp_path / "d", {}, DieOnce(tmp_path / "died"))
    with ray_engine() as engine:
        results = engine.map("unlucky", [once, *tasks(tmp_path)])
    assert results[0]["survived"] is True
    assert [r["square"] for r in results[1:]] == [0, 1, 4, 9, 16]


@dataclass(frozen=True)
class Sleep:
    """Tells its process, and stays."""

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        (folder / "pid").write_text(str(os.getpid()))
        time.sleep(100)
        raise AssertionError


def test_an_interrupted_run_leaves_no_task_behind(
    tmp_path: Path, ray_engine: Callable[..., RayEngine]
) -> None:
    def interrupt(done: int) -> None:
        if done:
            wait_for((tmp_path / "s/pid").exists)
            raise KeyboardInterrupt

    sleeper = Task("sleep", tmp_path / "s", {}, Sleep(), size=9)
    with pytest.raises(KeyboardInterrupt), ray_engine() as engine:
        engine.map("interrupted", [sleeper, *tasks(tmp_path)], interrupt)
    pid = (tmp_path / "s/pid").read_text()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass(frozen=True)
class Doomed:
    """Work that, on the first node to take any of it, is done but for its receipt: then it hangs,
    and the node is killed."""

    work: Work
    marker: Path

    def __call__(self, folder: Path) -> tuple[dict[str, Any], list[Path]]:
        import ray

        done = self.work(folder)
        with contextlib.suppress(FileExistsError), self.marker.open("x") as f:
            f.write(ray.get_runtime_context().get_node_id())
            f.close()
            time.sleep(100)
        return done


@pytest.mark.parametrize(
    "doomed", ["", "A read, clean, sign", pytest.param("C pack, write", marks=pytest.mark.soak)]
)
def test_a_build_is_the_local_build(
    config_for: Callable[..., BuildConfig],
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    doomed: str,
) -> None:
    """Undisturbed, and with a node killed while it is at work on a task of the named pass."""
    expected = tree(build(config_for("expected")).out_dir)
    real, marker, killed = RayEngine.map, tmp_path / "marker", tmp_path / "killed"

    def kill() -> None:
        wait_for(lambda: marker.exists() and bool(marker.read_text()))
        (node,) = (n for n in cluster.worker_nodes if n.node_id == marker.read_text())
        cluster.remove_node(node, allow_graceful=False)
        killed.touch()

    def deadly(
        self: RayEngine, label: str, todo: Sequence[Task], on_done: Any
    ) -> list[dict[str, Any]]:
        if label != doomed:
            return real(self, label, todo, on_done)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            doomed_tasks = [replace(task, work=Doomed(task.work, marker)) for task in todo]
            return real(self, label, doomed_tasks, on_done)
        finally:
            killer.join()

    monkeypatch.setattr(RayEngine, "map", deadly)
    engine = Engine("ray", address=cluster.address, memory_mib=64, quiet=True)
    try:
        result = build(config_for("ray", engine=engine))
        assert tree(result.out_dir) == expected
        assert killed.exists() == bool(doomed)
    finally:
        if killed.exists():
            cluster.add_node(num_cpus=1, object_store_memory=STORE)  # for the next test


CODE = """
import sys
from pathlib import Path
from dataprep.engine import Engine
from tests.engine.test_engine import DieOnce, Task, tasks
folder = Path(sys.argv[1])
once = Task("unlucky", folder / "d", {}, DieOnce(folder / "died"))
with Engine("ray", workers=2).start() as engine:
    results = engine.map("squares", [once, *tasks(folder)])
    assert [r["square"] for r in results[1:]] == [0, 1, 4, 9, 16]
    import ray
    assert ray.cluster_resources()["CPU"] == 2
    print({node["NodeManagerAddress"] for node in ray.nodes()})
"""


def test_a_cluster_of_its_own(tmp_path: Path, cluster: Any) -> None:
    """Without an address: on the loopback, nothing of Ray's on stdout, a lost worker on stderr."""
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    env["HOME"] = str(tmp_path)  # where Ray keeps a token
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert "{'127.0.0.1'}" in run.stderr and "squares: done in" in run.stderr


def test_a_node_that_is_not_like_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyarrow.set_cpu_count", lambda n: None)  # this process keeps its own
    (task,) = tasks(tmp_path, 1)
    answer = _serve(pickle.dumps(task), task.fingerprint)
    assert isinstance(answer, UserError)
    assert f"does not see {task.folder}" in str(answer) and "all nodes share" in str(answer)
    task.folder.mkdir()
    answer = _serve(pickle.dumps(task), "another")
    assert isinstance(answer, UserError) and "another mindprep" in str(answer)
    answer = _serve(pickle.dumps(task), task.fingerprint)
    assert isinstance(answer, dict) and answer["square"] == 0


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'mindprep\[ray\]'"), Engine("ray").start():
        pass
    monkeypatch.undo()
    pytest.importorskip("ray")
    nobody = Engine("ray", address="127.0.0.2:1")
    with pytest.raises(UserError, match="cluster at 127.0.0.2:1: .*refused"), nobody.start():
        pass
    for fields in ({"memory_mib": 0}, {"retries": -1}):
        with pytest.raises(UserError, match=f"engine.{next(iter(fields))} is "):
            Engine("ray", **fields)
