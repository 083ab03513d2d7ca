"""Which layout a model trains fastest in, of those that fit the cards' memory. No MindSpore.

Every division of the cards into tensor-parallel parts, stages and replicas is tried with some
sizes of the micro batch and kinds of recompute; what a card holds is of ledger.py, how long a step
takes of costs.py. Of each division the fastest that fits is kept: without offload of the
optimizer, or else with it, or else the smallest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from training.config import TrainConfig
from training.costs import Hardware, Traffic, step_seconds, traffic
from training.ledger import Activations, States, activations, ledger
from training.mesh import Mesh
from training.sections import ModelConfig, Parallel, Recompute
from training.timeline import bubble

MICRO_BATCHES = (1, 2, 4, 8)  # rows
MOST_STAGES = 64
RECOMPUTE = (
    Recompute(),
    Recompute(select=["attention"]),
    Recompute(select=["mlp"]),
    Recompute(full=True),
)


@dataclass(frozen=True)
class Layout:
    """One way to train, and what it costs the fullest card."""

    config: TrainConfig
    mesh: Mesh
    states: States
    activations: Activations
    traffic: Traffic
    seconds: float
    """Of a step, estimated."""

    @property
    def optimizer(self) -> int:
        """Bytes of optimizer state on the card: none when it is in the host's memory."""
        return 0 if self.config.optimizer.offload else self.states.optimizer

    @property
    def gradients(self) -> float:
        """Bytes of gradients on the card beside all activations.

        The sums, and a micro batch's; when there are no activations any more, those summed over
        replicas take their place, and count where they take more.
        """
        fresh = self.states.fresh if self.config.micro_batch_num > 1 else 0
        return self.states.gradients + max(fresh, self.states.reduced - self.activations.total)

    @property
    def total(self) -> float:
        """Bytes on the card."""
        return sum(self.parts.values())

    @property
    def bubble(self) -> float:
        """Share of the time in which a stage waits."""
        return bubble(self.mesh.pp, self.config.micro_batch_num, self.config.parallel.schedule)

    @property
    def parts(self) -> dict[str, float]:
        """Bytes on the card by what they are for."""
        return {
            "weights": self.states.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations.total,
        }


@dataclass(frozen=True)
class Plan:
    """The outcome of a search."""

    fitting: list[Layout]
    """One of each division that fits, fastest first."""
    too_large: list[Layout]
    """The smallest of each division that does not, smallest first."""
    impossible: list[str]
    """Divisions that the model or the batch does not allow, and why."""


def plan(
    base: TrainConfig,
    vocab_size: int,
    rows_per_step: int,
    cards: int,
    memory_gb: float,
    hardware: Hardware,
) -> Plan:
    """Searches layouts for a run; `base` gives what is not searched, and model.seq_length.

    The optimizer's state goes to the host's memory where a division does not fit otherwise.
    """
    found = Plan([], [], [])
    for mesh in meshes(cards):
        why = obstacle(base.model, mesh, rows_per_step)
        if why is not None:
            if why not in found.impossible:
                found.impossible.append(why)
            continue
        layouts = _layouts(base, vocab_size, rows_per_step, mesh, hardware)
        fits = [a for a in layouts if a.total <= hardware.room(memory_gb)]
        if not fits:
            offload = replace(base, optimizer=replace(base.optimizer, offload=True))
            layouts = _layouts(offload, vocab_size, rows_per_step, mesh, hardware)
            fits = [a for a in layouts if a.total <= hardware.room(memory_gb)]
        if fits:
            found.fitting.append(min(fits, key=lambda a: (a.seconds, a.total)))
        else:
            found.too_large.append(min(layouts, key=lambda a: (a.total, a.seconds)))
    found.fitting.sort(key=lambda a: (a.seconds, a.total))
    found.too_large.sort(key=lambda a: (a.total, a.seconds))
    return found


def _layouts(
    base: TrainConfig, vocab_size: int, rows_per_step: int, mesh: Mesh, hardware: Hardware
) -> list[Layout]:
    """All that is tried for a division."""
    tried = list(configs(base, mesh, rows_per_step))
    stages = stages_of(tried[0], vocab_size, mesh)  # of states: the same for all
    return [layout(config, vocab_size, stages, hardware) for config in tried]


def meshes(cards: int) -> Iterator[Mesh]:
    """All divisions of the cards, as the first of them sees it."""
    for tp in (n for n in range(1, cards + 1) if cards % n == 0):
        rest = cards // tp
        yield from (Mesh(pp, rest // pp, tp) for pp in range(1, rest + 1) if rest % pp == 0)


def obstacle(model: ModelConfig, mesh: Mesh, rows_per_step: int) -> str | None:
    """Why a division is impossible, or None: the trainer's own rules."""
    for key in ("num_heads", "n_kv_heads", "intermediate_size"):
        value = getattr(model, key)
        if value % mesh.tp:
            return f"model_parallel {mesh.tp} does not divide {key} {value}"
    if (model.vocab_size or 0) < mesh.tp:
        return f"model_parallel {mesh.tp} is more than vocab_size {model.vocab_size}"
    if mesh.pp > model.num_layers:
        return f"pipeline_stage {mesh.pp} is more than num_layers {model.num_layers}"
    if mesh.pp > MOST_STAGES:
        return f"pipeline_stage {mesh.pp} is more than is tried, {MOST_STAGES}"
    if rows_per_step % mesh.dp:
        return f"data_parallel {mesh.dp} does not divide rows_per_step {rows_per_step}"
    return None


def configs(base: TrainConfig, mesh: Mesh, rows_per_step: int) -> Iterator[TrainConfig]:
    """What is tried for a division."""
    rows = rows_per_step // mesh.dp
    parallel = Parallel(
        data_parallel=mesh.dp,
        model_parallel=mesh.tp,
        pipeline_stage=mesh.pp,
        use_seq_parallel=mesh.tp > 1 and (base.model.seq_length or 0) % mesh.tp == 0,
        enable_parallel_optimizer=mesh.dp > 1,
    )
    for batch_size in (n for n in MICRO_BATCHES if rows % n == 0):
        for recompute in RECOMPUTE:
            yield replace(
                base,
                parallel=parallel,
                recompute=recompute,
                batch_size=batch_size,
                micro_batch_num=rows // batch_size,
            )


def stages_of(config: TrainConfig, vocab_size: int, mesh: Mesh) -> list[tuple[Mesh, States]]:
    """The first process of each stage, and what it holds of states."""
    seq_length = config.model.seq_length
    assert seq_length is not None
    places = [replace(mesh, rank=mesh.rank_at(stage, 0, 0)) for stage in range(mesh.pp)]
    return [(place, ledger(config, vocab_size, seq_length, place)) for place in places]


def layout(
    config: TrainConfig, vocab_size: int, stages: list[tuple[Mesh, States]], hardware: Hardware
) -> Layout:
    """Costs of one way to train, on the fullest of the stages' cards."""
    seq_length = config.model.seq_length
    assert seq_length is not None
    seconds = step_seconds(config, vocab_size, seq_length, stages, hardware)
    cards = [
        Layout(
            config,
            place,
            held,
            activations(config, vocab_size, seq_length, place),
            traffic(config, vocab_size, seq_length, place, held),
            seconds,
        )
        for place, held in stages
    ]
    return max(cards, key=lambda card: card.total)
