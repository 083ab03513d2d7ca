"""What the checkpoint tests share: one weight [2, 3] with its moments, a whole small model, and a
state to save."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from training.checkpoint import Checkpoint, TrainState
from training.config import TrainConfig
from training.pieces import Float32, Kind, Piece, Slice
from training.saver import Saver
from training.sections import Lora, ModelConfig
from training.shapes import parameter_shapes

CONFIG = TrainConfig(data="out", save_dir="run")
SHAPE = (2, 3)
VALUES: dict[Kind, Float32] = {
    "w": np.arange(6, dtype=np.float32).reshape(SHAPE),
    "m": np.full(SHAPE, 0.1, np.float32),
    "v": np.full(SHAPE, 1e-30, np.float32),
}
FILES = ["rank-00000.json", "rank-00000.safetensors", "state.json"]


def state(step: int, config: TrainConfig = CONFIG) -> TrainState:
    return TrainState(
        step=step,
        consumed_rows=8 * step,
        epoch=0,
        seed=17,
        data="f" * 64,
        config=json.loads(json.dumps(asdict(config))),
        order="feistel-1",
        rows_per_step=8,
        seq_length=16,
        updates=step,
        skipped=[],
        loss_scale={"value": 1.0, "good": 0},
    )


def pieces(rank: int = 0, ranks: int = 1) -> Iterator[Piece]:
    """A rank's share of the six elements of one weight and its moments."""
    first, last = 6 * rank // ranks, 6 * (rank + 1) // ranks
    for kind, values in VALUES.items():
        flat = values.reshape(-1)[first:last].copy()
        yield Piece(kind, "a", Slice(SHAPE), first, last, flat.copy)


def save_one(save_dir: Path, step: int, keep: int = 9) -> Path:
    Saver(save_dir, keep=keep, asynchronous=False).save(state(step), pieces())
    return save_dir / f"step-{step:08d}"


def names(save_dir: Path) -> list[str]:
    return sorted(p.name for p in save_dir.iterdir())


def check_values(found: Checkpoint) -> None:
    assert found.tensors.shapes == {(kind, "a"): SHAPE for kind in VALUES}
    for kind, values in VALUES.items():
        assert found.read(kind, "a", Slice(SHAPE), 0, 6).tobytes() == values.tobytes()


MODEL = ModelConfig(
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    n_kv_heads=1,
    intermediate_size=12,
    tie_word_embeddings=False,
)
Arrays = dict[str, np.ndarray]


def model_arrays(model: ModelConfig = MODEL, lora: Lora | None = None) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = parameter_shapes(model, 10, lora)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def save_model(
    folder: Path, values: Arrays, model: ModelConfig = MODEL, lora: Lora | None = None
) -> Path:
    owned = [
        Piece("w", name, Slice(array.shape), 0, array.size, array.reshape(-1).copy)
        for name, array in values.items()
    ]
    config = replace(CONFIG, model=model, lora=lora)
    Saver(folder, asynchronous=False).save(state(7, config), owned)
    return folder / "step-00000007"
