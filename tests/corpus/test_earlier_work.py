"""What an earlier run has left: used when it is right, never when it is not."""

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataprep import UserError
from dataprep.corpus import BuildConfig, arrow, build, decide
from dataprep.corpus.status import dry_run
from dataprep.engine import Engine
from dataprep.verify import verify
from tests.corpus.test_determinism import tree

Make = Callable[..., BuildConfig]


def test_an_edit_of_equal_size_is_another_run(config_for: Make, corpus: Path) -> None:
    config = config_for()
    first = build(config).manifest.fingerprint
    path = corpus / "c.txt"
    path.write_text(path.read_text().replace("corpus", "c0rpus", 1))
    with pytest.raises(UserError, match="holds another run"):
        build(config)
    assert build(replace(config, overwrite=True)).manifest.fingerprint != first


@pytest.mark.parametrize(
    "lost",
    [
        "train",
        "train/train-00001-of-00003.mindrecord",
        "eval/eval-00000-of-00001.mindrecord.db",
        "audit/rows/train-00000-of-00003.parquet",
        "audit/removed",
    ],
)
def test_a_damaged_output_is_not_called_finished(config_for: Make, lost: str) -> None:
    config = config_for()
    expected = tree(build(config).out_dir)
    path = config.out / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match="is damaged: .* is missing or cut short"):
        build(config)
    assert tree(build(replace(config, overwrite=True)).out_dir) == expected


def _stop(self: object) -> None:
    raise UserError("stopped here")


def test_two_runs_in_turn_do_not_mix(config_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two configs, one out_dir, work folders of their own; each is stopped before it publishes."""
    a = replace(config_for(), work_dir=str(config_for().out) + ".wa")
    b = replace(a, work_dir=str(a.out) + ".wb", tokenizer=replace(a.tokenizer, pad_token="<s>"))
    with monkeypatch.context() as patch:
        patch.setattr("dataprep.corpus.passes.Passes.write_audit", _stop)
        for config in (a, b):
            with pytest.raises(UserError, match="stopped here"):
                build(config)
    assert verify(build(a).out_dir).defects == []


def test_foreign_files_where_the_output_grows(config_for: Make) -> None:
    config = config_for()
    config.building.mkdir()
    (config.building / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds files that no run has made"):
        build(config)
    assert (config.building / "mine.txt").read_text() == "mine"


def test_a_folder_in_the_way_of_the_last_rename(config_for: Make) -> None:
    config = config_for()
    aside = config.out.with_name(config.out.name + ".replaced")
    aside.mkdir()
    (aside / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way and not an output folder"):
        build(config)
    assert (aside / "mine.txt").read_text() == "mine"


def test_a_kill_between_the_two_renames_loses_nothing(config_for: Make) -> None:
    config = config_for()
    expected = tree(build(config).out_dir)
    os.replace(config.out, config.out.with_name(config.out.name + ".replaced"))
    assert not build(config).seconds  # it is back, and complete
    assert tree(config.out) == expected


def test_an_output_folder_behind_a_link(config_for: Make, tmp_path: Path) -> None:
    """A link to a larger disk stays a link."""
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big" / "out")
    config = replace(config_for(), out_dir=str(tmp_path / "link"))
    build(config)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "big/out/manifest.json").is_file()
    build(replace(config, seed=3, overwrite=True))
    assert sorted(p.name for p in (tmp_path / "big").iterdir()) == ["out", "out.work"]


def test_a_tokenizer_inside_of_the_output(config_for: Make) -> None:
    config = config_for()
    build(config)
    inside = config.out / "tok.model"
    shutil.copy(config.tokenizer.path, inside)
    tokenizer = replace(config.tokenizer, path=str(inside))
    with pytest.raises(UserError, match="tok.model lies inside of out_dir"):
        build(replace(config, tokenizer=tokenizer, overwrite=True))
    assert inside.is_file()


@pytest.mark.parametrize("name", ["hashes.npy", "keys.npy", "shingled.npy", "cleaned.arrow"])
def test_a_damaged_work_file_is_told(config_for: Make, name: str) -> None:
    config = replace(config_for(), work_dir=str(config_for().out) + ".shared")
    build(config)
    path = config.work / "a/00000" / name
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match=f"cannot read .*{name}"):
        build(replace(config, seed=3, out_dir=config.out_dir + "2"))


def test_few_open_files_for_many_tasks(
    config_for: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """2000 compressed files are 2000 tasks; only a few files are open at a time."""
    monkeypatch.setattr("dataprep.readers.splits.GROUP_BYTES", 0)
    folder = tmp_path / "many"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(120):
        words = " ".join(f"w{j}" for j in rng.integers(0, 9999, 30))
        (folder / f"{i:03d}.txt").write_text(words + "\n")
    most = 0
    real = arrow._header

    def watched(f: io.BufferedReader) -> object:
        nonlocal most
        most = max(most, len(list(Path("/proc/self/fd").iterdir())))
        return real(f)

    monkeypatch.setattr(arrow, "_header", watched)
    before = len(list(Path("/proc/self/fd").iterdir()))
    from dataprep.readers import Input

    build(config_for(inputs=[Input(str(folder / "*.txt"))]))
    assert 0 < most - before < 60  # some threads, each with a file; not one a task


def test_tasks_of_another_size_leave_no_second_audit(config_for: Make) -> None:
    """A run that was stopped after its audit, and ended with other splits."""
    config = config_for()
    small = replace(config, engine=Engine(quiet=True, split_mib=1))

    def stop(*_: object) -> None:
        (config.building / "audit/removed/part-00099.parquet").write_bytes(
            next((config.building / "audit/removed").glob("*.parquet")).read_bytes()
        )
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(small, finish=[stop])
    assert not verify(build(config).out_dir).defects


def test_a_finished_output_has_no_plan(config_for: Make) -> None:
    config = config_for()
    build(config)
    assert list(dry_run(config))[1:] == [f"{config.out} is complete: nothing is left to do"]
    told = list(dry_run(replace(config, seed=18)))
    assert "a run would end at once" in told[1] and "holds another run" in told[1]
    assert any(line.startswith("B tokenize: ") for line in told)


def test_a_padding_token_redoes_no_tokenizing(config_for: Make) -> None:
    config = config_for()
    build(config)
    other = replace(config, tokenizer=replace(config.tokenizer, pad_token="</s>"), overwrite=True)
    told = "\n".join(dry_run(other))
    assert "B tokenize: 2 tasks, 2 done, 0 to do" in told
    assert "C pack, write: 4 tasks, 0 done, 4 to do" in told


def test_a_copied_work_folder_stands_for_itself(config_for: Make, tmp_path: Path) -> None:
    config = config_for(work_dir=str(tmp_path / "w1"))
    build(config)
    shutil.copytree(tmp_path / "w1", tmp_path / "w2")
    (tmp_path / "w2/a/00000/hashes.npy").unlink()
    copied = replace(config, work_dir=str(tmp_path / "w2"), out_dir=f"{config.out}2")
    told = list(dry_run(copied))
    assert "1 done, 1 to do" in told[1] and told[2].endswith(
        "cut short: " + str(tmp_path / "w2/a/00000/hashes.npy")
    )
    assert tree(build(copied).out_dir) == tree(config.out)


def test_a_work_file_that_vanishes_costs_its_task_only(
    config_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure is to run again, not to delete all."""
    config = config_for()
    monkeypatch.setattr(decide, "document_ids", _unlinks(config.work / "a/00000/hashes.npy"))
    with pytest.raises(UserError, match=r"hashes.npy vanished; run again"):
        build(config)
    monkeypatch.undo()
    build(config)


def _unlinks(path: Path) -> Callable[..., object]:
    real = decide.document_ids

    def do(*args: object) -> object:
        path.unlink()
        return real(*args)  # type: ignore[arg-type]

    return do


def test_an_output_half_removed_is_in_nobodys_way(config_for: Make) -> None:
    """Killed while the output that was replaced went."""
    config = config_for()
    build(config)
    other = replace(config, seed=18, overwrite=True)

    def killed(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.corpus.output.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            build(other)
    assert not build(other).seconds
    build(config_for(seed=19, overwrite=True))
    assert [p.name for p in config.out.parent.iterdir() if p.name.startswith("out")] == [
        "out",
        "out.work",
    ]
