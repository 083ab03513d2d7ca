"""Runs every tensor-parallel case on as many partners as there are ranks; one rank is the judge.

Arguments: case=mode each. Results are named CASE/MODE/sums (summed loss, valid targets) and
CASE/MODE/WEIGHT (gradient of its part); CASE/loss without gradients, CASE/logits, and CASE/others
with another first document; CASE/slices and CASE/partial tell how the parts belong together.
"""

import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn

from tests.training.ranks import program
from training.comm import Comm, open_comm
from training.derive import Batch
from training.gradients import accumulate, gradient_function, loss_function, tensors
from training.lora import apply_lora
from training.loss import VocabParallelLoss, token_losses
from training.mesh import Mesh
from training.model import Decoder, initialize
from training.parallel import Layout, parallelize, recompute
from training.sections import Lora, ModelConfig, Precision, Recompute
from training.shapes import EMBEDDING, HEAD

VOCAB, ROWS, LENGTH = 13, 2, 8  # 13 ids are 4, 3, 3, 3 on four partners
DOCUMENT = 5  # tokens of the first document of row 0
SCALE = 8.0  # of the loss

BF16 = Precision("bfloat16", "bfloat16", "bfloat16", "float32")
BF16_WEIGHTS = Precision("bfloat16", "bfloat16", "bfloat16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """A model and how it is run."""

    layers: int = 1
    tied: bool = True
    sequence: bool = False
    precision: Precision = field(default_factory=Precision)
    recompute: Recompute = field(default_factory=Recompute)
    lora: Lora | None = None


CASES = {
    "tied": Case(layers=2),
    "untied": Case(tied=False),
    "tied sequence": Case(sequence=True),
    "untied sequence": Case(tied=False, sequence=True),
    "bfloat16": Case(sequence=True, precision=BF16),
    "bfloat16 weights": Case(precision=BF16_WEIGHTS),
    "full": Case(sequence=True, recompute=Recompute(full=True)),
    "layer": Case(layers=2, recompute=Recompute(full=True, layers=[1])),
    "attention": Case(sequence=True, recompute=Recompute(select=["attention"])),
    "mlp": Case(sequence=True, recompute=Recompute(select=["mlp"])),
    "lora": Case(lora=Lora(3, 4.0, ["q_proj", "o_proj", "up_proj", "down_proj"])),
    "lora sequence": Case(
        sequence=True, lora=Lora(3, 4.0, ["k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
    ),
}


def config(case: Case) -> ModelConfig:
    """Eight query heads on four key heads."""
    return ModelConfig(
        hidden_size=32,
        num_layers=case.layers,
        num_heads=8,
        n_kv_heads=4,
        intermediate_size=24,
        tie_word_embeddings=case.tied,
        initializer_range=0.3,
    )


def whole(case: Case) -> Decoder:
    """The whole model with weights that leave no gradient zero."""
    model = Decoder(config(case), VOCAB, case.precision)
    initialize(model, config(case), seed=3)
    if case.lora:
        apply_lora(model, case.lora, seed=3)
    for weight in model.get_parameters():
        if weight.ndim == 1 or weight.name.endswith("lora_b"):
            generator = np.random.default_rng(zlib.crc32(weight.name.encode()))
            values = (1 + 0.3 * generator.standard_normal(weight.shape)).astype(np.float32)
            weight.set_data(Tensor(values).astype(weight.dtype))
    return model


def batch(first: int = 0) -> Batch:
    """Two documents in each row; `first` is added to the ids of row 0's first document."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    labels = rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    mask = np.ones((ROWS, LENGTH), np.int32)
    mask[0, DOCUMENT - 1] = mask[1, -1] = 0
    ids[0, :DOCUMENT] = (ids[0, :DOCUMENT] + first) % VOCAB
    starts = np.array([[DOCUMENT], [3]])
    places = np.arange(LENGTH)
    return {
        "input_ids": ids,
        "position_ids": np.where(places < starts, places, places - starts).astype(np.int32),
        "segments": (places >= starts).astype(np.int32),
        "labels": np.where(mask == 1, labels, np.int32(-100)),
        "loss_mask": mask,
    }


def logits(model: nn.Cell, first: int = 0) -> npt.NDArray[np.float32]:
    """float32 [ROWS, LENGTH, ids of this part]."""
    made: npt.NDArray[np.float32] = model(*tensors(batch(first))[:3]).asnumpy()
    return made


def run(name: str, mode: str, comm: Comm) -> dict[str, Any]:
    """One case; with one rank, on the whole model."""
    case = CASES[name]
    model, losses = whole(case), token_losses
    layout = Layout({}, frozenset())
    if comm.tp.size > 1:
        layout = parallelize(model, comm.mesh, comm, case.sequence)
        losses = VocabParallelLoss(comm.tp, layout.slices[EMBEDDING if case.tied else HEAD].start)
    recompute(model, case.recompute)
    sums = accumulate(gradient_function(model, mode, losses), [batch()], SCALE)
    found = {"sums": np.array([sums.loss_sum, sums.valid_tokens])}
    for weight, gradient in zip(model.trainable_params(), sums.gradients, strict=True):
        found[weight.name] = gradient.asnumpy()
    result: dict[str, Any] = {f"{name}/{mode}/{key}": value for key, value in found.items()}
    if mode == "pynative":
        total, _ = loss_function(model, mode, losses)(*tensors(batch()))
        result |= {
            f"{name}/loss": float(total.asnumpy()),
            f"{name}/logits": logits(model),
            f"{name}/others": logits(model, first=5),
        }
    result[f"{name}/slices"] = {
        key: [part.axis, part.start, part.stop, *part.shape] for key, part in layout.slices.items()
    }
    result[f"{name}/partial"] = sorted(layout.partial)
    return result


def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
    comm = open_comm(Mesh(tp=size, rank=rank))
    results: dict[str, Any] = {}
    for argument in args:
        began = time.process_time()
        results |= run(*argument.split("="), comm)
        print(argument, round(time.process_time() - began, 1), "s", flush=True)
    return results


if __name__ == "__main__":
    program(main)
