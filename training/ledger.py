r"""How many bytes one process holds: of states exactly, of activations by formula. No MindSpore.

States. Of n trainable weights on this process (its stage's layers, its part of each matrix):

    parameters   w each, frozen ones too; w is of param_init_type
    gradients    4 n     float32, added up over micro batches
    fresh        w n     of one micro batch, not added yet
    reduced      4 n     summed over replicas          \  each / dp when sharded (ZeRO 1,
    moments      8 n     two, float32                   |  arXiv:1910.02054), buckets padded
    masters      4 n     only where w < 4              /   (arXiv:1710.03740)

Activations. Of one micro batch of B rows of S tokens in one layer, in the way of Korthikanti et al.
(arXiv:2205.05198, section 4) for RMSNorm, grouped heads and SwiGLU, without dropout. H hidden size,
K key-value width, F feed-forward width, n heads, t tensor-parallel parts, e bytes of a number:

    residual stream, input of both norms    2 x 4 B S H                  / t  with use_seq_parallel
    input of attention, input of MLP        2 x e B S H                  whole: what is gathered
                                                                         is kept
    query, key, value, mixed values         e B S (2 H + 2 K)            / t
    softmax: float32, and rounded           (4 + e) B n S^2              / t
    gate, up, silu(gate), their product     4 e B S F                    / t
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from training.buckets import Family, make_buckets
from training.config import TrainConfig
from training.freeze import frozen_names, is_adapter
from training.mesh import Mesh
from training.pieces import Slice
from training.shapes import EMBEDDING, HEAD, Shape, local_shape, parameter_shapes, split_axis
from training.timeline import stage_layers

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""

divide = lru_cache(256)(stage_layers)  # one division serves all stages of many layouts


@dataclass(frozen=True)
class States:
    """Bytes of weights, gradients and optimizer state; the same all through a run."""

    parameters: int
    gradients: int
    """Of this process's rows."""
    fresh: int
    """Gradients of one micro batch, in the weights' dtype, until they are added."""
    reduced: int
    """Gradients summed over replicas, from that sum to the update."""
    moments: int
    masters: int

    @property
    def optimizer(self) -> int:
        """Moments and masters."""
        return self.moments + self.masters

    @property
    def total(self) -> int:
        """Weights, one copy of the gradients, and optimizer state."""
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True)
class Activations:
    """Bytes of what the forward pass keeps for the backward pass, at the fullest moment."""

    layers: float
    """Kept in the layers, of the micro batch that is run."""
    again: float
    """Of the largest part that is computed again, while it is."""
    waiting: float
    """Inputs of this stage, of micro batches that have not gone backward."""
    head: float
    """Final norm, logits, their log-softmax and its gradient, float32; on the last stage."""

    @property
    def total(self) -> float:
        """All at once."""
        return self.layers + self.again + self.waiting + self.head


@dataclass(frozen=True)
class LayerActivations:
    """Bytes of one micro batch in one layer."""

    stream: float
    """The residual stream before a norm."""
    entering: float
    """A norm's output, as it enters attention or MLP."""
    gathered: float
    """The same with the whole sequence."""
    inner: dict[str, float]
    """Inside: "attention" and "mlp"."""


def whole_model(parameters: float) -> tuple[float, float, float]:
    """Bytes of (weights, gradients, optimizer state) of a model by the usual count.

    16 bytes a parameter: weights and gradients in 16 bits, masters and two moments in 32
    (arXiv:1910.02054, section 3.1). 7e9 -> 14, 14 and 84 GB.
    """
    return 2 * parameters, 2 * parameters, 12 * parameters


def stage_shapes(
    config: TrainConfig, vocab_size: int, seq_length: int, mesh: Mesh
) -> dict[str, Shape]:
    """Shapes of what a process holds, by global name: its layers, its part of each matrix."""
    layers = divide(config.model, vocab_size, seq_length, mesh.pp)[mesh.pp_rank]
    shapes = parameter_shapes(
        config.model, vocab_size, config.lora, layers, mesh.is_first_stage, mesh.is_last_stage
    )
    return {n: local_shape(n, shape, mesh.tp, mesh.tp_rank) for n, shape in shapes.items()}


def ledger(config: TrainConfig, vocab_size: int, seq_length: int, mesh: Mesh) -> States:
    """Bytes of states that the trainer allocates on a process.

    Raises UserError for frozen weights that do not exist, as frozen_names does.
    """
    shapes = stage_shapes(config, vocab_size, seq_length, mesh)
    frozen = frozen_names(config)
    trained = {name: shape for name, shape in shapes.items() if name not in frozen}
    width = WIDTH[config.precision.param_init_type]
    count = sum(map(prod, trained.values()))
    updated = _updated(config, trained, mesh)
    return States(
        parameters=width * sum(map(prod, shapes.values())),
        gradients=4 * count,
        fresh=width * count,
        reduced=4 * updated,
        moments=8 * updated,
        masters=4 * updated if width < 4 else 0,
    )


def _updated(config: TrainConfig, trained: dict[str, Shape], mesh: Mesh) -> int:
    """Elements that a process updates: all, or its part of each bucket, padding included."""
    parallel = config.parallel
    if not parallel.enable_parallel_optimizer:
        return sum(map(prod, trained.values()))
    tied = config.model.tie_word_embeddings and mesh.pp > 1
    rounded = WIDTH[config.precision.param_init_type] < 4
    weights = []
    for name, shape in trained.items():
        whole = split_axis(name) is None
        family = Family(
            apart=tied and name == EMBEDDING,
            sliced=mesh.tp > 1 and not whole,
            partial=mesh.tp > 1 and whole and (parallel.use_seq_parallel or is_adapter(name)),
            decays=len(shape) > 1,
            rounded=rounded,
        )
        weights.append((name, Slice(shape), family))
    buckets = make_buckets(weights, parallel.bucket_mib, mesh.dp)
    return sum(bucket.size for bucket in buckets) // mesh.dp


def activations(config: TrainConfig, vocab_size: int, seq_length: int, mesh: Mesh) -> Activations:
    """Bytes of activations on a process, by the formulas above."""
    layers = divide(config.model, vocab_size, seq_length, mesh.pp)[mesh.pp_rank]
    kept, again = _layers(config, layer_activations(config, seq_length, mesh.tp), layers)
    stream = 4.0 * config.batch_size * seq_length * config.model.hidden_size
    waiting = head = 0.0
    if not mesh.is_first_stage:  # token ids enter there
        ahead = mesh.pp - mesh.pp_rank
        if config.parallel.schedule == "gpipe":
            ahead = config.micro_batch_num
        parts = mesh.tp if config.parallel.use_seq_parallel else 1
        waiting = min(ahead, config.micro_batch_num) * stream / parts
    if mesh.is_last_stage:
        width = local_shape(HEAD, (vocab_size, 1), mesh.tp, mesh.tp_rank)[0]
        head = 2 * stream + 3 * 4.0 * config.batch_size * seq_length * width
    return Activations(kept, again, waiting, head)


def layer_activations(config: TrainConfig, seq_length: int, parts: int) -> LayerActivations:
    """Bytes of one micro batch in one layer on one of `parts` tensor-parallel processes."""
    model, sharded = config.model, parts if config.parallel.use_seq_parallel else 1
    width = WIDTH[config.precision.compute_dtype]
    tokens = float(config.batch_size * seq_length)
    kv = model.n_kv_heads * model.hidden_size // model.num_heads
    mixing = width * tokens * 2 * (model.hidden_size + kv)
    softmax = (4 + width) * tokens * seq_length * model.num_heads
    return LayerActivations(
        stream=4 * tokens * model.hidden_size / sharded,
        entering=width * tokens * model.hidden_size / sharded,
        gathered=width * tokens * model.hidden_size,
        inner={
            "attention": (mixing + softmax) / parts,
            "mlp": 4 * width * tokens * model.intermediate_size / parts,
        },
    )


def _layers(
    config: TrainConfig, one: LayerActivations, layers: Iterable[int]
) -> tuple[float, float]:
    """(bytes kept in the layers, bytes of the largest part that is computed again)."""
    recompute = config.recompute
    kept = again = 0.0
    for layer in layers:
        chosen = recompute.layers is None or layer in recompute.layers
        if chosen and recompute.full:
            kept += one.stream
            again = one.stream + sum(one.gathered + inner for inner in one.inner.values())
            continue
        kept += 2 * one.stream
        for part, inner in one.inner.items():
            if chosen and part in recompute.select:
                kept += one.entering
                again = max(again, one.gathered + inner)
            else:
                kept += one.gathered + inner
    return kept, again
