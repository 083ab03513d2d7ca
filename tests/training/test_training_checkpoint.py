"""Checkpoints are complete or absent, and a damaged one is recognized."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from dataprep.errors import UserError
from training import checkpoint
from training.checkpoint import TrainState

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
MOMENTS = {"m.w": np.full((2, 3), 0.1, np.float32), "v.w": np.full((2, 3), 1e-30, np.float32)}


def state(step: int) -> TrainState:
    return TrainState(step, 8 * step, 0, 17, "f" * 64, {"model": {"betas": [0.9, 0.95]}})


def save(save_dir: Path, step: int, keep: int = 9) -> Path:
    return checkpoint.save(save_dir, state(step), WEIGHTS, MOMENTS, keep)


def names(save_dir: Path) -> list[str]:
    return sorted(p.name for p in save_dir.iterdir())


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save(tmp_path / "run", 4)
    assert names(path) == ["optimizer.safetensors", "state.json", "weights.safetensors"]
    found = checkpoint.load_latest(tmp_path / "run")
    assert found is not None
    assert (found.path, found.state) == (path, state(4))
    for loaded, saved in ((found.weights, WEIGHTS), (found.moments, MOMENTS)):
        assert loaded.keys() == saved.keys()
        assert all(loaded[k].tobytes() == saved[k].tobytes() for k in saved)


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path) is None
    assert checkpoint.load_latest(tmp_path / "absent") is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 10):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00000004", "step-00000010"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    older, newer = save(tmp_path, 2), save(tmp_path, 4)
    damage(newer / name)
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.path == older
    assert str(newer / name) in caplog.text
    damage(older / name)
    with pytest.raises(UserError, match="every checkpoint in .* is damaged"):
        checkpoint.load_latest(tmp_path)


def test_state_json_of_another_kind_is_damaged(tmp_path: Path) -> None:
    (save(tmp_path, 2) / "state.json").write_text("[1]")
    with pytest.raises(UserError, match="state.json is damaged"):
        checkpoint.load(tmp_path / "step-00000002")


def test_a_kill_while_writing_leaves_the_earlier_one(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with (
        mock.patch.object(checkpoint.os, "replace", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        save(tmp_path, 4)
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.state.step == 2
    save(tmp_path, 4)  # over the remains
    assert names(tmp_path) == ["step-00000002", "step-00000004"]


def test_a_damaged_one_is_replaced_when_its_step_is_done_again(tmp_path: Path) -> None:
    flip(save(tmp_path, 4) / "weights.safetensors")
    save(tmp_path, 4)
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.state.step == 4


def test_a_full_disk_is_a_user_error(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with (
        mock.patch.object(checkpoint, "sync", side_effect=full),
        pytest.raises(UserError, match="cannot write .*step-00000004: No space left on device"),
    ):
        save(tmp_path, 4)
    assert checkpoint.load_latest(tmp_path) is None
