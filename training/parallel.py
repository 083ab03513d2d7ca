"""Tensor and sequence parallelism, put onto a decoder from outside (arXiv:1909.08053, 2205.05198).

A tensor-parallel group shares each matrix. Two that follow one another are divided so that what is
between them stays on its process, and only the residual stream is summed:

    stream -> enter -> [q k v, gate up: rows of the weight] -> [o, down: columns] -> leave -> stream
              Copy      own heads, own channels                partial sums          Sum
              Gather    (with sequence parallelism)                                  Scatter

The vocabulary is divided too: each process embeds its own ids, and has the logits of its own ids.
With sequence parallelism the stream, and with it norms and residuals, is a part of the sequence,
[B, S / tp, H]; positions and the attention's bias are of the whole one.
"""

from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dataprep.errors import UserError
from training.comm import Comm, Copy, Gather, Group, Scatter, Sum
from training.flat import host
from training.layers import Embedding
from training.lora import DROPOUT, place_dropout
from training.mesh import Mesh
from training.model import Decoder
from training.pieces import Slice
from training.sections import ModelConfig, Parallel, Recompute
from training.shapes import EMBEDDING, split_axis, split_range


@dataclass(frozen=True)
class Layout:
    """How the weights of this process's part of the model are parts of global ones."""

    slices: dict[str, Slice]
    """Of every weight, by its name, in the order of the model's."""
    partial: frozenset[str]
    """Weights that each partner holds whole, and whose gradient here is one summand of several: it
    is to be summed over the tensor-parallel group."""


def check_model(
    config: ModelConfig, vocab_size: int, seq_length: int, parallel: Parallel, mesh: Mesh
) -> None:
    """Raises UserError when the model cannot be divided as asked."""
    divided = {
        "num_heads": config.num_heads,
        "n_kv_heads": config.n_kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    for key, value in divided.items():
        _require_parts(f"model.{key}", value, mesh.tp)
    if parallel.use_seq_parallel:
        _require_parts("with parallel.use_seq_parallel, the row length", seq_length, mesh.tp)
    if vocab_size < mesh.tp:
        raise UserError(
            f"the vocabulary has {vocab_size} ids, less than parallel.model_parallel "
            f"({mesh.tp}): give at most that many parts"
        )
    if config.num_layers < mesh.pp:
        raise UserError(
            f"model.num_layers is {config.num_layers}, less than parallel.pipeline_stage "
            f"({mesh.pp}): give at most one stage a layer"
        )


def _require_parts(what: str, value: int, parts: int) -> None:
    if value % parts:
        raise UserError(
            f"{what} is {value}, not divisible by parallel.model_parallel ({parts}): make it a "
            f"multiple of {parts}, or take fewer parts"
        )


def parallelize(model: Decoder, mesh: Mesh, comm: Comm, use_seq_parallel: bool) -> Layout:
    """Divides the weights, which must be set, and puts communication into the model's seams.

    Adapters must be there already, and `recompute` comes after: MindSpore would go on to use the
    weights that it replaces. With one part, it only tells the layout.
    """
    # The state of dropout is a Parameter, but no weight.
    weights = [weight for weight in model.get_parameters() if weight.name != DROPOUT]
    slices = {weight.name: _slice_of(weight, mesh) for weight in weights}
    if mesh.tp == 1:
        return Layout(slices, frozenset())
    _cut(model, slices)
    _fill_seams(model, comm.tp, use_seq_parallel)
    if model.is_first:
        _divide_embedding(model, slices[EMBEDDING].start)
    firsts = {name: part.start for name, part in slices.items() if part.axis == 1}
    place_dropout(model, firsts)
    whole = (name for name, part in slices.items() if part.axis is None)
    # A whole adapter matrix stands beside a divided one; a norm sees all tokens, or its own.
    partial = (name for name in whole if use_seq_parallel or "lora_" in name)
    return Layout(slices, frozenset(partial))


def _slice_of(weight: Parameter, mesh: Mesh) -> Slice:
    axis = split_axis(weight.name) if mesh.tp > 1 else None
    if axis is None:
        return Slice(weight.shape)
    return Slice(weight.shape, axis, *split_range(weight.shape[axis], mesh.tp, mesh.tp_rank))


def _cut(model: nn.Cell, slices: dict[str, Slice]) -> None:
    # New Parameters: MindSpore goes on to take the old shape of one that `set_data` has cut.
    for _, cell in model.cells_and_names():
        for key, weight in list(cell.parameters_and_names(expand=False)):
            part = slices.get(weight.name, Slice(()))
            if part.axis is None:
                continue
            own = np.take(host(weight).reshape(part.shape), range(part.start, part.stop), part.axis)
            values = Tensor(own).astype(weight.dtype)
            setattr(cell, key, Parameter(values, weight.name, weight.requires_grad))


def _fill_seams(model: Decoder, tp: Group, use_seq_parallel: bool) -> None:
    def enter() -> nn.Cell:
        return Gather(tp, 1) if use_seq_parallel else Copy(tp)

    def leave() -> nn.Cell:
        return Scatter(tp, 1) if use_seq_parallel else Sum(tp)

    for layer in model.layers:
        for part in (layer.self_attn, layer.mlp):
            part.enter, part.leave = enter(), leave()
    if model.is_first:
        model.enter_stream = leave()
    if model.is_last:
        model.enter_head = enter()


class EmbeddingPart(nn.Cell):
    """The rows of consecutive ids of an embedding: other ids give 0, so that partners add up.

    int32 [B, S] -> float32 [B, S, H].
    """

    def __init__(self, own: Embedding, first_id: int) -> None:
        super().__init__()
        self.own, self.first_id = own, first_id

    def matrix(self) -> Tensor:
        """The weight, float32 [V / parts, H]."""
        return self.own.matrix()

    def construct(self, input_ids: Tensor) -> Tensor:
        ids = input_ids - self.first_id
        is_own = ops.logical_and(ids >= 0, ids < self.own.weight.shape[0])
        found = self.own(ids * is_own.astype(ids.dtype))
        return found * is_own.astype(found.dtype).expand_dims(-1)


def _divide_embedding(model: Decoder, first_id: int) -> None:
    weight = model.embed_tokens.weight
    model.embed_tokens = EmbeddingPart(model.embed_tokens, first_id)
    weight.name = EMBEDDING  # MindSpore puts the Cell's new place before it


def recompute(model: Decoder, config: Recompute) -> None:
    """Has the chosen layers, or parts of layers, run forward again when the gradient comes.

    Gradients are the same bits. What a part kept between the two is what entered it.
    """
    for number, layer in zip(model.layer_numbers, model.layers):
        if config.layers is not None and number not in config.layers:
            continue
        if config.full:
            layer.recompute()
        for part in config.select:
            (layer.self_attn if part == "attention" else layer.mlp).recompute()
