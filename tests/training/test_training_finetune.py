"""Runs that start from another model: they begin where it is, and train what they should."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.errors import UserError
from tests.training.conftest import sequences, write_packed
from training import ModelConfig, OptimizerConfig, TrainConfig, train
from training.checkpoint import open_checkpoint
from training.freeze import frozen_names
from training.loop import Trainer
from training.outcome import TrainResult
from training.sections import Lora, Precision
from training.weights import checkpoint_weights, export, merge

Floats = npt.NDArray[np.float32]
MODEL = ModelConfig(hidden_size=16, num_layers=2, num_heads=2, n_kv_heads=1, intermediate_size=24)


def weights(path: Path) -> dict[str, Floats]:
    """All weights of a checkpoint, float32; adapters apart."""
    found = open_checkpoint(path).tensors
    return {name: found.whole(name) for name in found.weights()}


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, TrainResult]:
    """A run of 6 steps, and what it came to."""
    folder = tmp_path_factory.mktemp("taught")
    documents = [document for row in sequences(27, 0) for document in row]
    splits = ("train", "eval")
    config = TrainConfig(
        data=str(write_packed(folder / "data", documents, "mindformers", 16, splits=splits)),
        save_dir=str(folder / "run"),
        model=MODEL,
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=1),
        steps=6,
        batch_size=4,
        mode="pynative",
        eval_batches=2,
        save_interval=6,
        tensorboard=False,
    )
    return config, train(config)


def test_from_whatever_holds_the_weights(
    taught: tuple[TrainConfig, TrainResult], tmp_path: Path
) -> None:
    """A save_dir, a merged file, a folder for transformers; all of it, adapters, upper layers."""
    base, before = taught
    found = open_checkpoint(before.checkpoint_path)
    merge(checkpoint_weights(found), tmp_path / "merged.safetensors")
    export(found, tmp_path / "hf")
    lora = Lora(rank=4, alpha=16, targets=["q_proj", "v_proj", "up_proj", "down_proj"])
    ways: dict[str, tuple[Path, dict[str, Any]]] = {
        "whole": (Path(base.save_dir), {}),
        "lora": (tmp_path / "merged.safetensors", {"lora": lora}),
        "upper": (tmp_path / "hf", {"frozen_layers": 0.5}),
    }
    for name, (path, options) in ways.items():
        save_dir = str(tmp_path / name)
        config = replace(base, save_dir=save_dir, load_checkpoint=str(path), seed=99, **options)
        after = train(config)
        assert after.eval_before == before.eval_after, name
        assert after.eval_after < after.eval_before, name
        tuned, frozen = weights(after.checkpoint_path), frozen_names(config)
        assert bool(frozen) == (name != "whole")
        for weight, values in weights(before.checkpoint_path).items():
            same = np.array_equal(values, tuned[weight])
            assert same == (weight in frozen), f"{name}: {weight}"


def test_masters_are_not_rounded(taught: tuple[TrainConfig, TrainResult], tmp_path: Path) -> None:
    """Weights below float32 start from the numbers of the file, not from their own rounding."""
    base, before = taught
    expected = weights(before.checkpoint_path)
    config = replace(base, save_dir=str(tmp_path / "low"), load_checkpoint=base.save_dir)
    with Trainer(replace(config, precision=Precision(param_init_type="bfloat16"))) as run:
        pieces = [piece for piece in run.optimizer.pieces() if piece.kind == "w"]
        assert {piece.name for piece in pieces} == set(expected)
        for piece in pieces:
            assert np.array_equal(piece.values(), expected[piece.name].reshape(-1)), piece.name


def test_another_model_is_refused(taught: tuple[TrainConfig, TrainResult], tmp_path: Path) -> None:
    base, _ = taught
    config = replace(base, save_dir=str(tmp_path / "other"), load_checkpoint=base.save_dir)
    with pytest.raises(UserError, match="model.num_layers is 1, but .*step-00000006 was made with"):
        train(replace(config, model=replace(MODEL, num_layers=1)))
    with pytest.raises(UserError, match="embed_tokens.weight"):
        train(replace(config, model=replace(MODEL, vocab_size=140)))
    merge(
        checkpoint_weights(open_checkpoint(taught[1].checkpoint_path)), tmp_path / "all.safetensors"
    )
    other = replace(config, load_checkpoint=str(tmp_path / "all.safetensors"))
    with pytest.raises(UserError, match="model.rope_theta is 50.0, but .*all.safetensors was made"):
        train(replace(other, model=replace(MODEL, rope_theta=50.0)))
    assert not list((tmp_path / "other").glob("step-*"))
