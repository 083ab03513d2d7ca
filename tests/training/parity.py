"""Runs that must come to the same: one process is the judge of any number of them.

A case is what differs from BASE, by dotted keys of TrainConfig, as in a command line. Each step of
every case takes the same 8 rows, however many replicas and micro batches they are spread over.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.ranks import run_ranks

ROWS = 8  # of a step
EVAL_ROWS = 16
STEPS = 20
BASE: dict[str, Any] = {
    "steps": STEPS,
    "seed": 5,
    "shuffle": True,
    "reader": "direct",
    "mode": "graph",
    "tensorboard": False,
    "model.vocab_size": 21,  # uneven in two parts
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.n_kv_heads": 2,
    "model.intermediate_size": 48,
    "optimizer.learning_rate": 0.003,
    "optimizer.warmup_steps": 4,
}
SHORT = {
    "dp": "parallel.data_parallel",
    "tp": "parallel.model_parallel",
    "pp": "parallel.pipeline_stage",
    "sp": "parallel.use_seq_parallel",
    "zero": "parallel.enable_parallel_optimizer",
    "schedule": "parallel.schedule",
    "micro": "micro_batch_num",
    "full": "recompute.full",
    "select": "recompute.select",
    "dtype": "precision.compute_dtype",
    "weights": "precision.param_init_type",
    "tied": "model.tie_word_embeddings",
    "offload": "optimizer.offload",
    "mode": "mode",
}
ON = {"model.tie_word_embeddings", "optimizer.offload"}
"""What is on, on CPU, when nothing is said."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    loss: np.ndarray
    """float64 [steps]."""
    norm: np.ndarray
    """Of the gradient, float64 [steps]; NaN where a step overflowed in float16."""
    eval_loss: float
    weights: dict[str, np.ndarray]
    """The whole model's, float32, by name."""


def case(**short: Any) -> dict[str, Any]:
    """Keys of a case by their SHORT names, batch_size with them."""
    keys = {SHORT[name]: value for name, value in short.items()}
    keys["batch_size"] = ROWS // (short.get("dp", 1) * short.get("micro", 1))
    keys["eval_batches"] = EVAL_ROWS // keys["batch_size"]
    return keys


def processes(keys: dict[str, Any]) -> int:
    """How many a case needs."""
    factors = ("parallel.data_parallel", "parallel.model_parallel", "parallel.pipeline_stage")
    return int(np.prod([keys.get(name, 1) for name in factors]))


def told(keys: dict[str, Any]) -> str:
    """A case in a few words: dp=2 tp=2 sp."""
    names = {long: short for short, long in SHORT.items()}
    parts = []
    for key, value in keys.items():
        if key in names and (value or key in ON):
            parts.append(names[key] if value is True else f"{names[key]}={value}")
    return " ".join(map(str, parts)) or "one process"


def run_cases(data: Path, cases: list[dict[str, Any]], timeout: float = 240) -> list[Outcome]:
    """Runs cases of one number of processes, one after another in one launch.

    Raises AssertionError when a rank fails.
    """
    (size,) = {processes(keys) for keys in cases}
    told = json.dumps([{**BASE, "data": str(data), **keys} for keys in cases])
    ranks = run_ranks("parity", size, told, timeout=timeout)
    return [_outcome(ranks[0], i) for i in range(len(cases))]


def _outcome(result: dict[str, Any], i: int) -> Outcome:
    prefix = f"{i}/w/"
    weights = {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}
    return Outcome(result[f"{i}/loss"], result[f"{i}/norm"], float(result[f"{i}/eval"]), weights)


@dataclass(frozen=True)
class Difference:
    """Largest relative differences of a run from its judge."""

    loss: float
    norm: float
    eval_loss: float
    weights: float
    """Of each weight tensor, L2 norm of the difference to L2 norm; the largest of all tensors."""

    @property
    def most(self) -> float:
        """The largest of the four."""
        return max(self.loss, self.norm, self.eval_loss, self.weights)


def compare(one: Outcome, other: Outcome) -> Difference:
    """Raises AssertionError when they do not have the same weights."""
    assert one.weights.keys() == other.weights.keys()

    def relative(a: np.ndarray, b: np.ndarray) -> float:
        assert a.shape == b.shape
        found = float(np.max(np.abs(a - b) / np.abs(a)))
        return found if np.isfinite(found) else np.inf

    weights = max(
        float(np.linalg.norm(a - other.weights[name]) / np.linalg.norm(a))
        for name, a in one.weights.items()
    )
    evals = relative(np.array(one.eval_loss), np.array(other.eval_loss))
    return Difference(
        relative(one.loss, other.loss), relative(one.norm, other.norm), evals, weights
    )
