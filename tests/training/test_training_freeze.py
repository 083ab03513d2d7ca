"""Frozen weights: which they are, what a user is told, and that steps leave them alone."""

from dataclasses import replace
from typing import Any

import pytest

from dataprep.errors import UserError
from training.config import TrainConfig
from training.freeze import frozen_names
from training.sections import Lora, ModelConfig


@pytest.fixture
def config(tiny_model: ModelConfig) -> TrainConfig:
    return TrainConfig("data", "run", tiny_model)


def test_literal(config: TrainConfig) -> None:
    patterns = ["layers.1.*_proj.weight", "norm.*"]
    assert frozen_names(replace(config, frozen_params=patterns)) == {
        "layers.1.self_attn.q_proj.weight",
        "layers.1.self_attn.k_proj.weight",
        "layers.1.self_attn.v_proj.weight",
        "layers.1.self_attn.o_proj.weight",
        "layers.1.mlp.gate_proj.weight",
        "layers.1.mlp.up_proj.weight",
        "layers.1.mlp.down_proj.weight",
        "norm.weight",
    }
    assert frozen_names(config) == set()


@pytest.mark.parametrize(
    ("share", "layers", "count"),
    [(0.5, 4, 2), (0.5, 5, 2), (0.99, 4, 3), (0.29, 100, 29), (0.1, 10, 1), (0.25, 4, 1)],
)
def test_the_lowest_share(config: TrainConfig, share: float, layers: int, count: int) -> None:
    model = replace(config.model, num_layers=layers)
    frozen = frozen_names(replace(config, model=model, frozen_layers=share))
    assert "embed_tokens.weight" in frozen
    assert {int(name.split(".")[1]) for name in frozen if "layers" in name} == set(range(count))
    assert len(frozen) == 1 + 9 * count


def test_adapters_alone_are_trained(config: TrainConfig) -> None:
    lora = replace(config, lora=Lora(targets=["v_proj"]))
    every = frozen_names(lora)
    assert len(every) == 1 + 9 * 2 + 1 and not any("lora" in name for name in every)
    half = frozen_names(replace(lora, frozen_layers=0.5))
    assert half - every == {f"layers.0.self_attn.v_proj.lora_{x}" for x in "ab"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"frozen_params": ["norm"]}, "frozen_params 'norm' matches no weight; the nearest are"),
        ({"frozen_params": ["norm"]}, "norm.weight"),
        ({"frozen_params": ["layers.7.*"]}, "'layers.7.*' matches no weight"),
        ({"frozen_params": ["layer.1.mlp.up_proj.weight"]}, "are layers.1.mlp.up_proj.weight, "),
        ({"frozen_params": ["*.lora_a"]}, "'*.lora_a' matches no weight"),
        ({"frozen_params": ["*"]}, "leave nothing to train"),
        (
            {"frozen_layers": 0.4},
            "frozen_layers is 0.4: less than one of 2 layers; give at least 0.5",
        ),
    ],
)
def test_what_is_wrong_is_named(config: TrainConfig, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as error:
        frozen_names(replace(config, **keys))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
