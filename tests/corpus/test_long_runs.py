"""Long runs: the plan, the status, the diary, the lock, inputs that change."""

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep import UserError
from dataprep.clean import Clean
from dataprep.corpus import BuildConfig, build
from dataprep.corpus.lock import exclusive
from dataprep.corpus.status import dry_run, status
from dataprep.dedup.config import Dedup
from dataprep.pack import Pack
from dataprep.readers import Input, Read
from tests.conftest import document, write_jsonl

Make = Callable[..., BuildConfig]


def plan(config: BuildConfig) -> str:
    return "\n".join(dry_run(config))


def test_a_dry_run_before_the_first_run(config_for: Make) -> None:
    config = config_for()
    told = plan(config)
    assert told.startswith(
        "3 files, 0.1 MB, 3 splits\nA read, clean, sign: 2 tasks, 0 done, 2 to do"
    )
    assert "a.jsonl from 0 and 1 more (" in told and "bytes): new" in told
    assert told.endswith("C pack, write: follows from A read, clean, sign")
    assert not config.work.exists() and not config.building.exists()


def test_a_dry_run_says_what_changed(config_for: Make, corpus: Path) -> None:
    config = config_for()
    config = replace(config, work_dir=str(config.out) + ".shared")
    build(config)
    shutil.rmtree(config.out)
    assert "B tokenize: 2 tasks, 2 done, 0 to do\nC pack, write: 4 tasks, 0 done" in plan(config)
    assert "missing or cut short: " in plan(config)
    told = plan(replace(config, clean=Clean(min_chars=7, whitespace=False)))
    assert "2 to do" in told and "changed: clean.min_chars, clean.whitespace" in told
    told = plan(replace(config, dedup=Dedup(threshold=0.79)))
    assert "A read, clean, sign: 2 tasks, 2 done" in told
    assert "dedup: 1 tasks, 0 done" in told and "changed: dedup.threshold" in told
    assert "changed: pack.max_documents, pack.seq_length" in plan(
        replace(config, pack=Pack(seq_length=32))
    )
    with (corpus / "c.txt").open("a") as f:
        f.write("more\n")
    told = plan(config)
    assert "A read, clean, sign: 2 tasks, 1 done, 1 to do" in told
    assert f"changed: inputs.{corpus}/c.txt from 0" in told


def test_status_of_a_run(config_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for()
    with pytest.raises(UserError, match="no run has left a trace"):
        list(status(config.out))
    monkeypatch.setattr("dataprep.corpus.passes.Passes.write_audit", _stop)
    with pytest.raises(UserError, match="stopped here"):
        build(config)
    told = "\n".join(status(config.out))
    assert "last run: failed at " in told and "UserError: stopped here" in told
    assert "  C pack, write: 4 of 4 tasks done" in told
    monkeypatch.undo()
    build(config)
    told = "\n".join(status(config.out))
    assert f"{config.out}: complete, " in told and "last run: finished at " in told
    events = [json.loads(line) for line in (config.work / "runs.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["started", "failed", "started", "finished"]
    assert events[0]["config"]["seed"] == 17 and events[0]["mindprep"]
    assert set(events[3]["seconds"]) == {
        "A read, clean, sign",
        "dedup",
        "B tokenize",
        "C pack, write",
        "publish",
    }


def _stop(self: object) -> None:
    raise UserError("stopped here")


def _hold(folder: Path, held: Path) -> None:
    with exclusive(folder):
        held.touch()
        time.sleep(60)


@pytest.mark.parametrize("which", ["work", "building"])
def test_a_second_run_refuses(config_for: Make, tmp_path: Path, which: str) -> None:
    config = config_for()
    folder: Path = getattr(config, which)
    folder.mkdir(parents=True)
    other = multiprocessing.get_context("spawn").Process(
        target=_hold, args=(folder, tmp_path / "held")
    )
    other.start()
    try:
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        with pytest.raises(UserError, match=f"another run is at work in {folder}"):
            build(config)
    finally:
        other.kill()
        other.join()
    assert build(config).out_dir.exists()  # the kernel let go of the dead process's lock
    assert not (config.out / ".lock").exists()


@pytest.mark.parametrize("change", ["append", "touch", "delete"])
def test_an_input_that_changes_during_the_run(
    config_for: Make, corpus: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = corpus / "c.txt"
    real = Read.__call__

    def disturbed(self: Read, split: object, index: int, ledger: object) -> object:
        yield from real(self, split, index, ledger)  # type: ignore[arg-type]
        if change == "delete":
            path.unlink()
        elif change == "append":
            path.write_text(path.read_text() + "more\n")
        else:
            path.touch()

    monkeypatch.setattr(Read, "__call__", disturbed)
    config = config_for(inputs=[Input(str(path))])
    with pytest.raises(UserError, match=r"c\.txt (changed during the run|vanished while)"):
        build(config)
    assert not config.out.exists()


def test_thousands_of_tiny_files(tmp_path: Path, config_for: Make) -> None:
    """No task a file, no open file left behind."""
    for i in range(3000):
        write_jsonl(tmp_path / "tiny" / f"{i:05d}.jsonl", [document(i, 1)])
    config = config_for(inputs=[Input(str(tmp_path / "tiny/*.jsonl"))])
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    result = build(config)
    assert result.ledger.total("documents.read") == 3000
    assert len(list((config.work / "a").iterdir())) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 3  # memory maps in caches
