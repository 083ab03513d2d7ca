"""From a config to this process's part of the model, ready to run.

    a part of the decoder -> weights -> adapters, freezing -> slices -> recompute -> runner

The order matters: weights are drawn and adapters made before anything is sliced, so that they do
not depend on how many processes there are.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mindspore import Parameter, Tensor, nn

from dataprep.errors import UserError
from dataprep.manifest import Manifest
from training.comm import Comm
from training.config import TrainConfig
from training.derive import Batch
from training.flat import host, write
from training.freeze import freeze, is_adapter
from training.gradients import (
    Losses,
    StepGradients,
    accumulate,
    gradient_function,
    loss_function,
    tensors,
)
from training.lora import apply_lora
from training.loss import VocabParallelLoss, token_losses
from training.mesh import Mesh
from training.model import Decoder, initialize
from training.parallel import Layout, check_model, parallelize, recompute
from training.pieces import Float32, Piece, Read
from training.pipeline import PipelineStage
from training.reduce import speaks
from training.sections import ModelConfig
from training.shapes import EMBEDDING, HEAD
from training.timeline import stage_layers

Prepare = Callable[[int], None]
"""Called with the number of a micro batch before the model runs on it."""


class Runner(Protocol):
    """Runs micro batches through the model, whatever it is spread over."""

    def run(self, micro_batches: Iterable[Batch], scale: float) -> StepGradients:
        """Sums over the micro batches of a replica: losses, valid targets, gradients of loss x
        scale. The loss is known on the last stage, and 0 on others.
        """
        ...

    def evaluate(self, micro_batches: Iterable[Batch]) -> tuple[float, int]:
        """(summed loss, valid targets), without gradients."""
        ...


class Whole:
    """All layers in one process, or in one tensor-parallel group."""

    def __init__(self, model: nn.Cell, mode: str, losses: Losses, prepare: Prepare | None) -> None:
        self._gradients = gradient_function(model, mode, losses)
        self._losses = loss_function(model, mode, losses)
        self._prepare = prepare

    def run(self, micro_batches: Iterable[Batch], scale: float) -> StepGradients:
        """See Runner."""
        return accumulate(self._gradients, micro_batches, scale, self._prepare)

    def evaluate(self, micro_batches: Iterable[Batch]) -> tuple[float, int]:
        """See Runner."""
        total, count = 0.0, 0
        for batch in micro_batches:
            loss, valid = self._losses(*tensors(batch))
            total += float(loss.asnumpy())
            count += int(valid.asnumpy())
        return total, count


@dataclass(frozen=True)
class Built:
    """This process's part of the model."""

    model: Decoder
    layout: Layout
    mesh: Mesh
    runner: Runner

    def restore_frozen(self, read: Read, adapters: bool = True) -> None:
        """Sets the weights that are not trained; the optimizer sets the others.

        Without `adapters`, those are left as they were drawn. Raises UserError when a weight is
        missing or of another shape.
        """
        for weight in self._frozen():
            if adapters or not is_adapter(weight.name):
                part = self.layout.slices[weight.name]
                values = read("w", weight.name, part, 0, part.size)
                write(weight, Tensor(values.reshape(part.local_shape)))

    def frozen_pieces(self) -> Iterator[Piece]:
        """What this process writes of them into a checkpoint: over all processes, each once."""
        for weight in self._frozen():
            part = self.layout.slices[weight.name]
            if speaks(self.mesh, part.axis is not None, weight.name == EMBEDDING):
                yield Piece("w", weight.name, part, 0, part.size, partial(_values, weight))

    def _frozen(self) -> Iterator[Parameter]:
        # What is no weight, such as the seed of dropout, is not in the layout.
        names = self.layout.slices
        return (w for w in self.model.get_parameters() if not w.requires_grad and w.name in names)


def build(
    config: TrainConfig,
    vocab_size: int,
    seq_length: int,
    mesh: Mesh,
    comm: Comm,
    prepare: Prepare | None = None,
) -> Built:
    """Makes the part, with freshly drawn weights.

    Raises UserError when the model cannot be divided as asked, or nothing is left to train.
    """
    check_model(config.model, vocab_size, seq_length, config.parallel, mesh)
    layers = stage_layers(config.model, vocab_size, seq_length, mesh.pp)[mesh.pp_rank]
    first, last = mesh.is_first_stage, mesh.is_last_stage
    model = Decoder(config.model, vocab_size, config.precision, layers, embed=first, head=last)
    initialize(model, config.model, config.seed)
    if config.lora:
        apply_lora(model, config.lora, config.seed)
    freeze(model, config)
    layout = parallelize(model, mesh, comm, config.parallel.use_seq_parallel)
    recompute(model, config.recompute)
    return Built(model, layout, mesh, _runner(config, model, layout, mesh, comm, prepare))


def _runner(
    config: TrainConfig,
    model: Decoder,
    layout: Layout,
    mesh: Mesh,
    comm: Comm,
    prepare: Prepare | None,
) -> Runner:
    losses: Losses = token_losses
    if mesh.tp > 1 and mesh.is_last_stage:
        head = EMBEDDING if config.model.tie_word_embeddings else HEAD
        losses = VocabParallelLoss(comm.tp, layout.slices[head].start)
    if mesh.pp == 1:
        return Whole(model, config.mode, losses, prepare)
    parts = mesh.tp if config.parallel.use_seq_parallel else 1
    kind, hidden = config.parallel.schedule, config.model.hidden_size
    return PipelineStage(model, mesh, comm, config.mode, kind, hidden, parts, losses, prepare)


def check_data(config: ModelConfig, manifest: Manifest) -> tuple[int, int]:
    """(vocabulary, tokens of a row): the model's, or the data's where it has none.

    Raises UserError when the data does not fit the model.
    """
    needed, vocab_size = manifest.tokenizer.vocab_size, config.vocab_size
    if vocab_size is not None and vocab_size < needed:
        raise UserError(
            f"model.vocab_size is {vocab_size}, but the tokenizer of the data has {needed} ids; "
            "raise it, or leave it out"
        )
    length = manifest.seq_length
    if config.seq_length not in (None, length):
        raise UserError(
            f"model.seq_length is {config.seq_length}, but the data's rows have {length} tokens; "
            "build the data with pack.seq_length of the model, or leave the key out"
        )
    return vocab_size or needed, length


def _values(weight: Parameter) -> Float32:
    return host(weight).copy()
