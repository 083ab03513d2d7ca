"""mindprep checkpoint: show, merge, export, import."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipelines import checkpoint as command
from pipelines.common import run
from tests.training.checkpoints import MODEL, model_arrays, save_model
from training.sections import ModelConfig

Capture = pytest.CaptureFixture[str]
Call = Callable[..., int]


@pytest.fixture
def call() -> Call:
    return lambda *args: run(command.main, [str(arg) for arg in args])


def test_show(tmp_path: Path, capsys: Capture, call: Call) -> None:
    path = save_model(tmp_path / "run", model_arrays())
    assert call("show", tmp_path / "run") == 0
    told = capsys.readouterr().out
    assert f"checkpoint    {path}\nstep          7 (7 updates, 0 left out)\n" in told
    assert "written by    1 process (" in told
    assert "layers.1.mlp.down_proj.weight                    [8, 12]" in told
    assert call("show", tmp_path) == 2
    assert "is no checkpoint" in capsys.readouterr().err


def test_merge_export_and_import(tmp_path: Path, capsys: Capture, call: Call) -> None:
    """Through a Hugging Face folder and back: the same file."""
    save_model(tmp_path / "run", model_arrays())
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    assert call("merge", tmp_path / "run", one) == 0
    assert call("export", tmp_path / "run", tmp_path / "hf") == 0
    capsys.readouterr()
    assert call("import", tmp_path / "hf", two) == 0
    section = yaml.safe_load(capsys.readouterr().out)["model"]
    assert ModelConfig(**section) == replace(MODEL, vocab_size=10)
    assert one.read_bytes() == two.read_bytes()
    half = tmp_path / "half.safetensors"
    assert call("merge", tmp_path / "run", half, "--dtype", "bfloat16") == 0
    assert half.stat().st_size < 0.7 * one.stat().st_size


def test_nothing_is_overwritten(tmp_path: Path, capsys: Capture, call: Call) -> None:
    save_model(tmp_path / "run", model_arrays())
    (tmp_path / "x.safetensors").touch()
    for args, told in (
        (("merge", tmp_path / "run", tmp_path / "x.safetensors"), "is there already; give another"),
        (("merge", tmp_path / "run", tmp_path / "x"), "does not end in .safetensors"),
        (("export", tmp_path / "run", tmp_path), "is there already; give a new folder"),
        (("export", tmp_path / "run", tmp_path / "x.safetensors"), "is there already"),
    ):
        assert call(*args) == 2
        assert told in capsys.readouterr().err
