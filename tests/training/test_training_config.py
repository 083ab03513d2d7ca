"""Configs refuse what cannot work, and say what to do."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dataprep.errors import UserError
from training import Folder, ModelConfig, OptimizerConfig, TrainConfig
from training.sections import Lora, Parallel, Precision, Recompute


def train_config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"data": "out", "save_dir": "run", **changes})


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (ModelConfig, {"num_layers": 0}, "model.num_layers is 0: give a number above 0"),
        (ModelConfig, {"hidden_size": 12}, "model.hidden_size is 12: make it a multiple of"),
        (ModelConfig, {"n_kv_heads": 3}, "model.n_kv_heads is 3: make it a divisor of num_heads"),
        (ModelConfig, {"vocab_size": -1}, "model.vocab_size is -1: give a number above 0, or"),
        (OptimizerConfig, {"learning_rate": float("nan")}, "optimizer.learning_rate is nan"),
        (OptimizerConfig, {"min_lr_ratio": 1.5}, "optimizer.min_lr_ratio is 1.5: give a share"),
        (OptimizerConfig, {"betas": (0.9, 1.0)}, "optimizer.betas is (0.9, 1.0): give two"),
        (OptimizerConfig, {"weight_decay": -0.1}, "optimizer.weight_decay is -0.1: give 0 or more"),
        (Folder, {"path": "s3://b/out"}, "data.path is 's3://b/out': copy the folder to this"),
        (Folder, {"path": "out", "weight": 0}, "data.weight is 0: give a number above 0, or leave"),
        (Folder, {"path": "out", "weight": math.inf}, "data.weight is inf: give a number above 0"),
        (train_config, {"save_dir": "s3://b/run"}, "save_dir is 's3://b/run': give a folder"),
        (
            train_config,
            {"save_dir": "caf\udce9"},
            "save_dir is 'caf\\udce9': not the name of a file",
        ),
        (train_config, {"load_checkpoint": ""}, "load_checkpoint is '': not the name of a file"),
        (Folder, {"path": "caf\udce9"}, "data.path is 'caf\\udce9': not the name of a file"),
        (
            Precision,
            {"loss_scale": 0.5},
            "precision.loss_scale is 0.5: give a number of at least 1",
        ),
        (Recompute, {"layers": [0]}, "recompute.layers is [0]: say what of them"),
        (train_config, {"data": []}, "data is []: name at least one folder"),
        (train_config, {"data": "s3://b/out"}, "data is 's3://b/out': copy the folder to this"),
        (train_config, {"data": '[{"pth": 1}]'}, "data is '[{\"pth\": 1}]': give a folder, or a"),
        (train_config, {"reader": "fast"}, "reader is 'fast': give one of mindspore, direct"),
        (train_config, {"data_workers": 0}, "data_workers is 0: give a number above 0"),
        (train_config, {"batch_size": 0}, "batch_size is 0: give a number above 0"),
        (train_config, {"save_interval": -1}, "save_interval is -1: give 0 or more"),
        (Precision, {"compute_dtype": "int8"}, "precision.compute_dtype is 'int8': give one of"),
        (Parallel, {"model_parallel": 0}, "parallel.model_parallel is 0: give a number above 0"),
        (Parallel, {"use_seq_parallel": True}, "parallel.use_seq_parallel is True: it needs"),
        (Recompute, {"full": True, "select": ["mlp"]}, "recompute.select is ['mlp']: leave it out"),
        (Lora, {"targets": ["qkv"]}, "lora.targets is 'qkv': give some of q_proj, k_proj"),
        (
            train_config,
            {"recompute": Recompute(full=True, layers=[4])},
            "recompute.layers is 4: give numbers",
        ),
        (train_config, {"on_nonfinite": "go"}, "on_nonfinite is 'go': give one of stop, skip"),
        (train_config, {"frozen_layers": 1.0}, "frozen_layers is 1.0: give a share of at least 0"),
        (train_config, {"seed": 2**32}, "seed is 4294967296: give a number from 0"),
        (train_config, {"steps": 5}, "optimizer.warmup_steps is 10: give at most the number of"),
    ],
)
def test_a_wrong_value_is_named(
    make: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        make(**changes)
    assert str(error.value).startswith(message)


def test_rows_per_step() -> None:
    assert train_config(batch_size=4, micro_batch_num=3).rows_per_step == 12


def test_importing_the_package_loads_no_mindspore() -> None:
    code = "import sys, training; print('mindspore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_public_names_exist() -> None:
    import training

    assert all(getattr(training, name) for name in training.__all__)
