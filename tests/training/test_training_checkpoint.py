"""A damaged checkpoint is recognized, and only the same run goes on from one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep.errors import Unreadable, UserError
from dataprep.files import fingerprint
from tests.training.checkpoints import CONFIG, FILES, check_values, names, pieces, save_one, state
from training.checkpoint import OtherVersion, check_same_run, load_latest, open_checkpoint
from training.config import OptimizerConfig
from training.saver import Saver
from training.sections import Lora, ModelConfig, Parallel, Recompute


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save_one(tmp_path / "run", 4)
    assert names(path) == FILES
    found = load_latest(tmp_path / "run")
    assert found is not None
    assert (found.path, found.state, found.ranks) == (path, state(4), 1)
    check_values(found)
    index = json.loads((path / "rank-00000.json").read_text())
    place = {"shape": [2, 3], "axis": None, "start": 0, "stop": 0, "first": 0, "last": 6}
    assert index["pieces"][1] == {"key": "m.a:1", "kind": "m", "name": "a", **place}


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "absent") is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[Path], None]
) -> None:
    older, newer = save_one(tmp_path, 2), save_one(tmp_path, 4)
    damage(newer / name)
    found = load_latest(tmp_path)
    assert found is not None
    assert found.path == older
    assert str(newer / name) in caplog.text
    damage(older / name)
    with pytest.raises(UserError, match="every checkpoint in .* is damaged"):
        load_latest(tmp_path)


def rewrite(path: Path, **changes: Any) -> None:
    """Changes state.json as somebody would who knows the format: its fingerprint fits."""
    content = json.loads((path / "state.json").read_text())
    del content["fingerprint"]
    content = {k: v for k, v in {**content, **changes}.items() if v is not ...}
    text = json.dumps({**content, "fingerprint": fingerprint(content)})
    (path / "state.json").write_text(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../../etc/passwd": "0"}},
        {"files": {}},
        {"files": ["rank-00000.json"]},
        {"files": {"rank-00001.json": "0"}},
        {"step": -1},
        {"step": True},
        {"step": "4"},
        {"skipped": {}},
        {"order": ...},
        {"more": 1},
    ],
)
def test_a_state_that_cannot_be_is_damaged(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = save_one(tmp_path, 4)
    rewrite(path)
    check_values(open_checkpoint(path))
    rewrite(path, **changes)
    with pytest.raises(UserError, match="state.json is damaged"):
        open_checkpoint(path)


def test_state_json_of_another_kind_is_damaged(tmp_path: Path) -> None:
    (save_one(tmp_path, 2) / "state.json").write_text("[1]")
    with pytest.raises(UserError, match="state.json is damaged"):
        open_checkpoint(tmp_path / "step-00000002")


def test_another_format_is_named_and_nothing_older_is_taken(tmp_path: Path) -> None:
    save_one(tmp_path, 2)
    for format in (..., 3):  # the first format did not say so
        rewrite(save_one(tmp_path, 4), format=format)
        with pytest.raises(OtherVersion, match="of format [13], and this version reads format 2"):
            load_latest(tmp_path)


def test_a_damaged_one_is_replaced_when_its_step_is_done_again(tmp_path: Path) -> None:
    flip(save_one(tmp_path, 4) / "rank-00000.safetensors")
    check_values(open_checkpoint(save_one(tmp_path, 4)))


LOADER = {"data": "f" * 64, "order": "feistel-1"}


def test_what_may_differ_when_a_run_goes_on(tmp_path: Path) -> None:
    found = open_checkpoint(save_one(tmp_path, 4))
    config = replace(
        CONFIG,
        parallel=Parallel(data_parallel=2, enable_parallel_optimizer=True),
        recompute=Recompute(full=True),
        optimizer=OptimizerConfig(offload=True),
        mode="pynative",
        batch_size=2,
        micro_batch_num=2,
        data_workers=3,
        steps=90,
        profile=2,
        async_save=False,
        save_dir="elsewhere",
    )
    check_same_run(found, config, LOADER, 8)


@pytest.mark.parametrize(
    "change, told",
    [
        ({"model": ModelConfig(hidden_size=64)}, "model.hidden_size is 64, but .* with 128; "),
        ({"optimizer": OptimizerConfig(betas=(0.9, 0.99))}, r"optimizer.betas is \[0.9, 0.99\]"),
        ({"lora": Lora()}, "lora is {.*}, but .* was trained with None"),
        ({"frozen_params": ["norm.*"]}, r"frozen_params is \['norm"),
        ({"shuffle": True}, "shuffle is True, but .* was trained with False; change it back"),
        ({"seed": 18}, "seed is 18, but .* was trained with 17; change it back"),
        ({"steps": 10, "save_interval": 2}, "steps is 10, but .* is at step 12; raise steps"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    found = open_checkpoint(save_one(tmp_path, 12))
    check_same_run(found, CONFIG, LOADER, 8)
    with pytest.raises(UserError, match=told):
        check_same_run(found, replace(CONFIG, **change), LOADER, 8)


def test_other_data_order_or_rows_are_refused(tmp_path: Path) -> None:
    found = open_checkpoint(save_one(tmp_path, 12))
    with pytest.raises(UserError, match="was trained on another data set than out"):
        check_same_run(found, CONFIG, {**LOADER, "data": "0" * 64}, 8)
    with pytest.raises(UserError, match="in another order .feistel-1, now feistel-2"):
        check_same_run(found, CONFIG, {**LOADER, "order": "feistel-2"}, 8)
    with pytest.raises(UserError, match="a step has 16 rows .* was trained with 8; change batch"):
        check_same_run(found, CONFIG, LOADER, 16)


@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_now_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It may be whole: going on from an older one would replace it."""
    save_one(tmp_path, 2)
    broken = save_one(tmp_path, 4) / name
    real = Path.open

    def failing(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == broken:
            raise OSError(5, "Input/output error")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(Unreadable, match=rf"cannot read .*{name}: Input/.* or remove {tmp_path}"):
        load_latest(tmp_path)


def test_a_run_that_began_elsewhere_is_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, load_checkpoint="first")
    Saver(tmp_path, asynchronous=False).save(state(2, config), pieces())
    found = load_latest(tmp_path)
    assert found is not None
    loader = {"data": "f" * 64, "order": "feistel-1"}
    for same in (config, replace(CONFIG, load_checkpoint=None)):
        check_same_run(found, same, loader, 8)
    with pytest.raises(UserError, match="load_checkpoint is other, but .* began from first; leave"):
        check_same_run(found, replace(CONFIG, load_checkpoint="other"), loader, 8)
