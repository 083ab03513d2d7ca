"""Invariant 1: the same bytes for any workers, splits and order of inputs, killed or not."""

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep.corpus import BuildConfig, build
from dataprep.corpus.config import Write
from dataprep.engine import Engine
from dataprep.pack import Pack

Make = Callable[..., BuildConfig]


def tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def expected(config_for: Make) -> dict[str, str]:
    """The whole output folder of one undisturbed run with one worker."""
    return tree(build(config_for("expected")).out_dir)


def test_two_workers(config_for: Make, expected: dict[str, str]) -> None:
    result = build(config_for("two", engine=Engine(workers=2, quiet=True)))
    assert tree(result.out_dir) == expected
    assert len([name for name in expected if name.endswith(".mindrecord")]) == 4


def test_order_of_inputs(config_for: Make, expected: dict[str, str]) -> None:
    config = config_for("order")
    assert tree(build(replace(config, inputs=config.inputs[::-1])).out_dir) == expected


def test_borders_of_splits(
    config_for: Make, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 1 KB give the same shards, rows and reasons (audit files are one a task)."""
    monkeypatch.setattr("dataprep.corpus.plan.plan_splits", _tiny_splits)
    monkeypatch.setattr("dataprep.readers.splits.GROUP_BYTES", 0)
    result = build(config_for("splits"))
    got = tree(result.out_dir)
    assert len([name for name in got if name.startswith("audit/removed")]) > 3
    by_task = ("audit/removed", "SHA256SUMS")
    assert {k: v for k, v in got.items() if not k.startswith(by_task)} == {
        k: v for k, v in expected.items() if not k.startswith(by_task)
    }


def _tiny_splits(files: Any, split_bytes: int) -> Any:
    from dataprep.readers import plan_splits

    return plan_splits(files, 1000)


def test_another_seed_is_another_order(config_for: Make, expected: dict[str, str]) -> None:
    got = tree(build(config_for("seed", seed=18)).out_dir)
    assert (
        got["train/train-00000-of-00003.mindrecord"]
        != (expected["train/train-00000-of-00003.mindrecord"])
    )


def _killed_build(config: BuildConfig, nth: int) -> None:
    """Builds, and dies with SIGKILL just before the nth file gets its final name."""
    replaced, real = 0, os.replace

    def deadly(a: Any, b: Any) -> None:
        nonlocal replaced
        if replaced == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        replaced += 1
        real(a, b)

    os.replace = deadly  # type: ignore[assignment]
    build(config)


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_killed_before_any_rename(config_for: Make, expected: dict[str, str], step: int) -> None:
    """SIGKILL before the nth rename, for n all over the run; resumed, the bytes are the same."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dataprep.corpus"])
    killed, nth = 0, 0
    while True:
        config = config_for(f"killed{nth}")
        child = context.Process(target=_killed_build, args=(config, nth))
        child.start()
        child.join(120)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        killed += 1
        # Nothing half-written under a final name: the output folder is there whole or not at all.
        assert not config.out.exists() or tree(config.out) == expected
        assert tree(build(config).out_dir) == expected
        nth += step
    assert tree(config.out) == expected
    # Renames spread over the passes: 12 in A, 3 in dedup, 8 in B, 16 in C.
    assert killed >= 32 / step


@pytest.mark.parametrize(
    "passed", ["b", *(pytest.param(name, marks=pytest.mark.soak) for name in "ac")]
)
def test_two_workers_killed_in_each_pass(
    config_for: Make, expected: dict[str, str], tmp_path: Path, passed: str
) -> None:
    """The whole process group gets SIGKILL when the first receipt of a pass appears."""
    config = config_for("killed")
    command = [sys.executable, "-m", "pipelines.build_corpus", "--config", str(tmp_path / "c.yaml")]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(_as_yaml(config, workers=2)))
    run = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((config.work / passed).glob("*/receipt.json")) and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    got = {
        k: v for k, v in tree(config.out).items() if k not in ("report.html", "mindformers.yaml")
    }
    sums = "SHA256SUMS"  # of the two files above too, which the library alone does not write
    assert {**got, sums: ""} == {**expected, sums: ""}


def _as_yaml(config: BuildConfig, workers: int) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(config), "engine": {"workers": workers}}


def test_a_changed_stage_redoes_what_depends_on_it(config_for: Make) -> None:
    first = config_for("one", work_dir=None)
    first = replace(first, work_dir=str(first.out) + ".shared")
    build(first)
    before = {p: p.stat().st_mtime_ns for p in first.work.rglob("receipt.json")}
    build(replace(first, out_dir=first.out_dir + "2", pack=Pack(seq_length=32, max_documents=16)))
    redone = {p.parent.parent.name for p, t in before.items() if p.stat().st_mtime_ns != t}
    assert redone == {"c"}


def test_a_changed_input_redoes_its_split(config_for: Make, corpus: Path) -> None:
    config = config_for("one")
    config = replace(config, work_dir=str(config.out) + ".shared")
    build(config)
    before = {p: p.stat().st_mtime_ns for p in (config.work / "a").rglob("receipt.json")}
    with (corpus / "c.txt").open("a") as f:
        f.write("One more line that was not there before.\n")
    result = build(replace(config, overwrite=True))
    redone = [p.parent.name for p, t in before.items() if p.stat().st_mtime_ns != t]
    assert redone == ["00001"]  # c.txt; a.jsonl and b.jsonl are one task
    assert result.ledger.total("documents.read") == 151


def test_the_same_run_again_does_nothing(config_for: Make) -> None:
    config = config_for("same")
    first = build(config)
    again = build(config)
    assert not again.seconds and again.manifest == first.manifest


def test_more_shards_than_documents(config_for: Make) -> None:
    result = build(config_for("many", write=Write(shards=500)))
    assert len(result.manifest.splits["train"]) == result.ledger.total("documents.kept") - (
        _eval_documents(result.out_dir)
    )
    assert any("not 500" in note for note in result.manifest.notes)


def _eval_documents(out: Path) -> int:
    import pyarrow.parquet as pq

    table = pq.read_table(out / "audit/rows/eval-00000-of-00001.parquet")
    return len(set(zip(table["file"].to_pylist(), table["source_row"].to_pylist())))
