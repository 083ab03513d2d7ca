"""Runs every pipeline case on as many stages as there are ranks, for test_training_pipeline.py.

Arguments: modes. Results of a case are named CASE/sums (summed loss, valid targets) and CASE/WEIGHT
(its gradient); those of a run of several cases RUN/evaluated and RUN/compiled.
"""

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.graph.api import ms_compile_cache

from tests.training.ranks import program
from training.comm import Comm, open_comm
from training.derive import Batch
from training.gradients import StepGradients
from training.mesh import Mesh
from training.model import Decoder, initialize
from training.pipeline import PipelineStage
from training.sections import ModelConfig
from training.timeline import Kind, stage_layers

VOCAB, LENGTH, ROWS, LAYERS, SEED = 20, 8, 2, 4, 3
SCALE = 1024.0
KINDS: tuple[Kind, Kind] = ("1f1b", "gpipe")
COUNTS = (1, 2, 4, 5)


def config(tied: bool) -> ModelConfig:
    """A narrow model of four layers."""
    sizes = {"hidden_size": 16, "num_layers": LAYERS, "num_heads": 4, "n_kv_heads": 2}
    return ModelConfig(
        **sizes, intermediate_size=24, initializer_range=0.2, tie_word_embeddings=tied
    )


def ties(mode: str, stages: int) -> list[bool]:
    """Whether the head is the embedding: both, but where compiling four stages takes its time."""
    return [True] if mode == "graph" and stages > 2 else [True, False]


def layers(tied: bool, stages: int) -> list[range]:
    """Of each stage."""
    return stage_layers(config(tied), VOCAB, LENGTH, stages)


def batches(number: int, seed: int = 0, rows: int = ROWS) -> list[Batch]:
    """The first micro batches of a seed's: rows of two documents, some targets masked."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(number):
        slots = np.tile(np.arange(LENGTH, dtype=np.int32), (rows, 1))
        mask = (slots > i % (LENGTH - 1)).astype(np.int32)
        labels = rng.integers(0, VOCAB, mask.shape).astype(np.int32)
        made.append(
            {
                "input_ids": rng.integers(0, VOCAB, mask.shape).astype(np.int32),
                "position_ids": slots % 5,
                "segments": slots // 5,
                "labels": np.where(mask == 1, labels, np.int32(-100)),
                "loss_mask": mask,
            }
        )
    return made


def uneven() -> list[Batch]:
    """For an evaluation: the last batch has fewer rows."""
    return [*batches(2, seed=1), *batches(1, seed=2, rows=1)]


def change(model: nn.Cell) -> None:
    """Other weights, written in place as an optimizer step does."""
    for weight in model.get_parameters():
        weight.copy_(Tensor(weight.asnumpy() * np.float32(1.25)))


def freeze(model: nn.Cell, stages: int) -> None:
    """Freezes the first half of the stages, the embedding included."""
    half = layers(False, stages)[: stages // 2]
    frozen = ("embed_tokens.", *(f"layers.{n}." for r in half for n in r))
    for weight in model.get_parameters():
        weight.requires_grad = not weight.name.startswith(frozen)


def arrays(case: str, model: nn.Cell, sums: StepGradients) -> dict[str, Any]:
    """The result of a step."""
    named = zip(model.trainable_params(), sums.gradients, strict=True)
    found = {f"{case}/{weight.name}": gradient.asnumpy() for weight, gradient in named}
    return {**found, f"{case}/sums": np.array([sums.loss_sum, sums.valid_tokens])}


def part(tied: bool, mesh: Mesh) -> Decoder:
    """This stage's part of the model."""
    ours = layers(tied, mesh.pp)[mesh.pp_rank]
    ends = {"embed": mesh.is_first_stage, "head": mesh.is_last_stage}
    model = Decoder(config(tied), VOCAB, layers=ours, **ends)
    initialize(model, config(tied), SEED)
    return model


def run(tied: bool, mode: str, mesh: Mesh, comm: Comm) -> dict[str, Any]:
    """All kinds and numbers of micro batches; then another step with other weights, and scaled."""
    model = part(tied, mesh)
    stage = PipelineStage(model, mesh, comm, mode, "1f1b", 16)
    name = f"{'tied' if tied else 'untied'} {mode}"
    found, compiled = {}, [len(ms_compile_cache)]
    for kind in KINDS:
        stage.kind = kind
        for count in COUNTS:
            sums = stage.run(iter(batches(count)), 1.0)
            found |= arrays(f"{name} {kind} {count}", model, sums)
            compiled.append(len(ms_compile_cache))
    change(model)
    found |= arrays(f"{name} changed", model, stage.run(batches(3), SCALE))
    compiled.append(len(ms_compile_cache))
    found[f"{name}/evaluated"] = np.array(stage.evaluate(iter(uneven())))
    return {**found, f"{name}/compiled": np.array(compiled)}


def run_frozen(mode: str, mesh: Mesh, comm: Comm) -> dict[str, Any]:
    """Stages with nothing to train."""
    model = part(False, mesh)
    freeze(model, mesh.pp)
    told: list[int] = []
    stage = PipelineStage(model, mesh, comm, mode, "1f1b", 16, prepare=told.append)
    found = arrays(f"frozen {mode}", model, stage.run(batches(3), 1.0))
    return {**found, f"told {mode}": np.array(told)}


def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
    ms.runtime.launch_blocking()  # ten times as fast, for operators as small as these
    mesh = Mesh(pp=size, rank=rank)
    comm = open_comm(mesh)
    found: dict[str, Any] = {}
    for mode in args:
        for tied in ties(mode, size):
            found |= run(tied, mode, mesh, comm)
        if mode == "pynative" or size > 2:
            found |= run_frozen(mode, mesh, comm)
    return found


if __name__ == "__main__":
    program(main)
