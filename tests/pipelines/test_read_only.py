"""Folders that cannot be written: one line that names the folder and the cure, exit code 2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from dataprep.corpus import BuildConfig, build
from pipelines.cli import main

Make = Callable[..., BuildConfig]


@pytest.fixture
def as_anyone() -> list[str]:
    """Prefix of a command to which permissions apply: root loses the right to ignore them."""
    if os.geteuid():
        return []
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]
    if not shutil.which("setpriv") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("root may write anywhere, and setpriv cannot take that right away here")
    return prefix


def config_file(config: BuildConfig, folder: Path, **engine: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**asdict(config), "engine": {"quiet": True, **engine}}))
    return path


@pytest.mark.parametrize("what", ["work_dir", "parent of work_dir", "parent of out_dir"])
def test_a_read_only_folder(
    config_for: Make, as_anyone: list[str], tmp_path: Path, what: str
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    paths = {
        "work_dir": {"work_dir": str(shut)},
        "parent of work_dir": {"work_dir": str(shut / "w")},
        "parent of out_dir": {"out_dir": str(shut / "out"), "work_dir": str(tmp_path / "w")},
    }
    config = replace(config_for(), **paths[what])
    file = config_file(config, tmp_path)
    shut.chmod(0o555)
    command = [*as_anyone, sys.executable, "-m", "pipelines.build_corpus", "--config", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    shut.chmod(0o755)
    folder = config.building if what == "parent of out_dir" else config.work
    cure = "choose a folder that can be written, then run again"
    assert run.stderr == f"error: cannot write {folder}: Permission denied; {cure}\n"
    assert (run.returncode, run.stdout) == (2, "")
    assert not list(shut.iterdir()) and not config.out.exists()


def test_a_work_folder_that_became_read_only(
    config_for: Make, as_anyone: list[str], tmp_path: Path
) -> None:
    """What an earlier run has left there can be read; workers find that nothing can be added."""
    config = config_for(work_dir=str(tmp_path / "w"))
    build(config)
    file = config_file(replace(config, seed=3, out_dir=config.out_dir + "2"), tmp_path, workers=2)
    folders = [path for path in config.work.rglob("*") if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    command = [*as_anyone, sys.executable, "-m", "pipelines.build_corpus", "--config", str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    for path in folders:
        path.chmod(0o755)
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith(f"error: cannot write {config.work}/decide: Permission denied;")
    assert main(["build", "--config", str(file)]) == 0


def test_a_work_folder_below_a_file(
    config_for: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cause that holds for root everywhere."""
    (tmp_path / "file").touch()
    config = config_for(work_dir=str(tmp_path / "file" / "w"))
    assert main(["build", "--config", str(config_file(config, tmp_path))]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith(f"error: cannot write {config.work}: Not a directory; choose a folder")
    assert not config.out.exists() and not config.building.exists()
