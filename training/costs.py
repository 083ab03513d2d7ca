"""How much a card computes and sends in a step, and about how long that takes. No MindSpore.

A step's time is an estimate that gives layouts an order, and no promise:

    (m + p - 1) x the slowest stage's time for a micro batch  +  sums over replicas

with p stages, m micro batches, operations at `efficiency` of the peak, and traffic that overlaps
with nothing, as in this trainer. Ring algorithms (Patarasuk and Yuan, 2009): of x bytes, each of t
cards sends (t - 1) / t x in a reduce-scatter or an all-gather, twice as much in an all-reduce.
"""

from dataclasses import dataclass

from training.config import TrainConfig
from training.ledger import States, divide
from training.mesh import Mesh
from training.sections import require
from training.shapes import EMBEDDING, local_shape
from training.timeline import layer_flops

GB = 1e9


@dataclass(frozen=True)
class Hardware:
    """Assumptions about the cards that estimates rest on; give those of your own."""

    reserve: float = 0.1
    """Share of the memory left free: for the framework, buffers of collectives, fragments."""
    cards_per_node: int = 8
    """Cards that reach each other at node_gb_s."""
    peak_tflops: float = 313.0
    """Of one card in 16 bits, 10^12 operations a second."""
    efficiency: float = 0.5
    """Share of the peak that matrix products reach."""
    node_gb_s: float = 150.0
    """What a card sends to cards of its node, 10^9 bytes a second."""
    net_gb_s: float = 25.0
    """What a card sends to other nodes, and to its host's memory."""

    def __post_init__(self) -> None:
        for key in ("cards_per_node", "peak_tflops", "node_gb_s", "net_gb_s"):
            value = getattr(self, key)
            require(0 < value < 1e12, f"hardware.{key}", value, "give a number above 0")
        require(0 <= self.reserve < 1, "hardware.reserve", self.reserve, "give a share below 1")
        fits = 0 < self.efficiency <= 1
        cure = "give a share above 0, at most 1"
        require(fits, "hardware.efficiency", self.efficiency, cure)

    def room(self, memory_gb: float) -> float:
        """Bytes that a run may fill of a card with so many 10^9 bytes."""
        return memory_gb * GB * (1 - self.reserve)

    def rate(self, span: int) -> float:
        """Bytes a second that a card sends within a group that lies in `span` cards in a row."""
        return (self.node_gb_s if span <= self.cards_per_node else self.net_gb_s) * GB


@dataclass(frozen=True)
class Traffic:
    """Bytes that a card sends in one step."""

    tensor: float
    """To tensor-parallel partners."""
    pipeline: float
    """To the stages beside it, the residual stream down and its gradient up."""
    data: float
    """To replicas, and for a tied embedding between the ends of the pipeline."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.tensor + self.pipeline + self.data


def traffic(
    config: TrainConfig, vocab_size: int, seq_length: int, mesh: Mesh, states: States
) -> Traffic:
    """Of one process, all float32. `states`: its ledger."""
    micro_batches = config.micro_batch_num
    stream = 4.0 * config.batch_size * seq_length * config.model.hidden_size
    parts = mesh.tp if config.parallel.use_seq_parallel else 1
    sides = (not mesh.is_first_stage) + (not mesh.is_last_stage)
    # Attention and MLP are summed over partners where they end going forward, and where they begin
    # going backward.
    sums = 4.0 + 2 * _again(mesh) + _recomputed(config, {"attention": 1.0, "mlp": 1.0})
    sums *= len(divide(config.model, vocab_size, seq_length, mesh.pp)[mesh.pp_rank])
    sums += (1 + _again(mesh)) * mesh.is_first_stage + mesh.is_last_stage  # embedding; head
    # Sharded: gradients are reduce-scattered and weights all-gathered, as much as an all-reduce.
    data = 2 * (mesh.dp - 1) / mesh.dp * states.gradients
    if config.model.tie_word_embeddings and mesh.pp > 1 and sides < 2:
        shape = (vocab_size, config.model.hidden_size)
        rows, width = local_shape(EMBEDDING, shape, mesh.tp, mesh.tp_rank)
        data += 4.0 * rows * width
    return Traffic(
        tensor=micro_batches * sums * 2 * (mesh.tp - 1) / mesh.tp * stream,
        pipeline=micro_batches * sides * stream / parts,
        data=data,
    )


def micro_batch_flops(config: TrainConfig, vocab_size: int, seq_length: int, mesh: Mesh) -> float:
    """Operations of one process for a micro batch, forward and backward.

    Backward is twice a forward. All stages but the last run their forward a second time, for they
    keep only what entered them; what is recomputed comes on top.
    """
    model = config.model
    layers = len(divide(model, vocab_size, seq_length, mesh.pp)[mesh.pp_rank])
    whole = layer_flops(model, seq_length)
    mlp = 6.0 * model.hidden_size * model.intermediate_size
    flops = layers * (3.0 + _again(mesh)) * whole
    flops += layers * _recomputed(config, {"attention": whole - mlp, "mlp": mlp})
    if mesh.is_last_stage:
        flops += 6.0 * vocab_size * model.hidden_size
    return flops * config.batch_size * seq_length / mesh.tp


def step_seconds(
    config: TrainConfig,
    vocab_size: int,
    seq_length: int,
    stages: list[tuple[Mesh, States]],
    hardware: Hardware,
) -> float:
    """Estimated time of a step; `stages`: a process of each, and its ledger."""
    slowest = sums = 0.0
    for mesh, states in stages:
        sent = traffic(config, vocab_size, seq_length, mesh, states)
        flops = micro_batch_flops(config, vocab_size, seq_length, mesh)
        between = sent.tensor / hardware.rate(mesh.tp) + sent.pipeline / hardware.rate(mesh.size)
        compute = flops / (hardware.peak_tflops * 1e12 * hardware.efficiency)
        slowest = max(slowest, compute + between / config.micro_batch_num)
        host = 0.0
        if config.optimizer.offload:  # gradients down, weights up, the state read and written
            host = states.gradients + states.parameters + 2.0 * states.optimizer
        replicas = sent.data / hardware.rate(mesh.tp * mesh.dp)
        sums = max(sums, replicas + host / (hardware.net_gb_s * GB))
    return (config.micro_batch_num + len(stages) - 1) * slowest + sums


def _again(mesh: Mesh) -> int:
    """How often a stage runs its forward a second time."""
    return 0 if mesh.is_last_stage else 1


def _recomputed(config: TrainConfig, parts: dict[str, float]) -> float:
    """The sum over those parts of a layer that are computed again, averaged over all layers."""
    recompute = config.recompute
    chosen = sum(x for name, x in parts.items() if recompute.full or name in recompute.select)
    if recompute.layers is None:
        return chosen
    return chosen * len(set(recompute.layers)) / config.model.num_layers
