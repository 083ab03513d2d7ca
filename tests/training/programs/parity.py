"""Trains by each of several configs; rank 0 returns losses, norms and the whole model's weights."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from tests.training.ranks import program
from training.config import TrainConfig
from training.loop import train
from training.metrics import Record
from training.weights import open_weights


def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for i, keys in enumerate(json.loads(args[0])):
        keys.setdefault("save_dir", str(out / f"case-{i}"))
        result |= run(rank, f"{i}/", keys)
    return result


def run(rank: int, prefix: str, keys: dict[str, Any]) -> dict[str, Any]:
    killed_at = keys.pop("killed_at", None)

    def on_step(record: Record) -> None:
        if record["step"] == killed_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    done = train(make_config(keys), on_step)
    if rank:
        return {}
    records = [json.loads(line) for line in done.metrics_path.read_text().splitlines()]
    weights = open_weights(Path(keys["save_dir"]))
    return {
        f"{prefix}loss": np.array([r["loss"] for r in records[1:]]),
        # None is the norm of a step that overflowed in float16.
        f"{prefix}norm": np.array([r["grad_norm"] for r in records[1:]], np.float64),
        f"{prefix}eval": done.eval_after,
        **{f"{prefix}w/{name}": weights.whole(name) for name in weights.shapes},
    }


def make_config(keys: dict[str, Any]) -> TrainConfig:
    """A TrainConfig from dotted keys."""
    hints = get_type_hints(TrainConfig)
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, dot, name = key.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = value
        else:
            top[key] = value
    for name, values in sections.items():
        kind = hints[name]
        assert dataclasses.is_dataclass(kind)
        top[name] = kind(**values)
    return TrainConfig(**top)


if __name__ == "__main__":
    program(main)
