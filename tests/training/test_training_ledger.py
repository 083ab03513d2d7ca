"""The ledger against the bytes that the trainer holds, and frozen weights through its steps."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dataprep.errors import UserError
from training.build import build
from training.comm import open_comm
from training.config import TrainConfig
from training.freeze import frozen_names
from training.ledger import ledger
from training.lora import set_dropout_seed
from training.mesh import Mesh
from training.optimizer import Optimizer
from training.parallel import check_model
from training.plan import obstacle
from training.sections import Lora, ModelConfig, OptimizerConfig, Parallel, Precision
from training.shapes import local_shape, split_range

VOCAB, LENGTH = 21, 8
LOW = Precision(param_init_type="bfloat16")


@pytest.fixture
def config(tiny_model: ModelConfig) -> TrainConfig:
    return TrainConfig("data", "run", tiny_model, mode="pynative")


def batch(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCAB, (2, LENGTH + 1)).astype(np.int32)
    return {
        "input_ids": ids[:, :-1],
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1)),
        "segments": np.zeros((2, LENGTH), np.int32),
        "labels": ids[:, 1:],
        "loss_mask": np.ones((2, LENGTH), np.int32),
    }


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"precision": LOW, "model": {"tie_word_embeddings": False}},
        {"precision": LOW, "optimizer": OptimizerConfig(offload=True), "frozen_layers": 0.5},
        {"frozen_params": ["*norm*", "layers.1.mlp.*"]},
        {"lora": Lora(rank=2, targets=["q_proj", "down_proj"], dropout=0.1)},
        {"lora": Lora(rank=3), "precision": LOW, "frozen_params": ["layers.0.*"]},
    ],
    ids=["float32", "bfloat16", "offload", "frozen", "lora", "lora in bfloat16"],
)
def test_what_the_trainer_holds(config: TrainConfig, keys: dict[str, Any]) -> None:
    model = replace(config.model, **keys.get("model", {}))
    config = replace(config, **{**keys, "model": model})
    expected = ledger(config, VOCAB, LENGTH, Mesh())
    comm = open_comm(Mesh())
    built = build(config, VOCAB, LENGTH, Mesh(), comm)
    set_dropout_seed(built.model, 1)
    weights = [p for p in built.model.get_parameters() if p.name in built.layout.slices]
    trained = built.model.trainable_params()
    optimizer = Optimizer(
        trained, config.optimizer, Mesh(), comm, built.layout, shard=False, bucket_mib=32
    )
    before = {p.name: p.asnumpy().tobytes() for p in weights}
    for step in (1, 2):
        found = built.runner.run([batch(step), batch(step + 7)], 1.0)
        norm = optimizer.reduce(found.gradients, 1 / found.valid_tokens)
        held = optimizer.bytes()
        optimizer.update(1e-2, step, norm)

    assert sum(p.nbytes for p in weights) == expected.parameters
    assert sum(p.nbytes for p in trained) == expected.fresh == held["parameters"]
    assert sum(g.nbytes for g in found.gradients) == expected.gradients
    assert held["gradients"] == expected.reduced
    assert held["moments"] == expected.moments
    assert held["masters"] == expected.masters

    changed = {p.name for p in weights if p.asnumpy().tobytes() != before[p.name]}
    assert changed == set(before) - frozen_names(config)


def test_rules_are_those_of_the_trainer(config: TrainConfig) -> None:
    model = replace(config.model, vocab_size=3, num_heads=8, n_kv_heads=4)
    for tp, pp in product((1, 2, 3, 4, 5, 8), (1, 2, 3)):
        mesh = Mesh(pp, 1, tp)
        try:
            check_model(model, model.vocab_size or 0, LENGTH, Parallel(), mesh)
            allowed = True
        except UserError:
            allowed = False
        assert (obstacle(model, mesh, 1) is None) == allowed, mesh


def test_parts_are_those_of_the_trainer() -> None:
    for total, parts in product((1, 7, 16, 21), (1, 2, 3, 5)):
        for index in range(parts):
            start, stop = split_range(total, parts, index)
            assert local_shape("lm_head.weight", (total, 4), parts, index) == (stop - start, 4)
