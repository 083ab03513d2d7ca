"""What a model takes of each card, and the layout to train it in.

python -m pipelines.plan --model 7B --cards 8 --memory_gb 64 --seq_length 4096 --rows_per_step 512
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import yaml

from dataprep.errors import UserError
from pipelines.common import human, parse_config, run
from training.config import TrainConfig
from training.costs import GB, Hardware
from training.ledger import whole_model
from training.metrics import flops_per_token, utilization
from training.plan import Layout, Plan, plan
from training.sections import Dtype, Lora, ModelConfig, Precision, require
from training.shapes import parameter_shapes

DESCRIPTION = """Prints what a model takes of each card's memory in the layouts that fit, fastest
first by an estimate, those that do not fit and why, and the config keys of the best to copy. Exit
code 1: nothing fits. docs/plan.md has the formulas."""

SIZES = ("hidden_size", "num_layers", "num_heads", "n_kv_heads", "intermediate_size", "vocab_size")
# In the order of SIZES: 7B 13B 30B 65B of LLaMA (arXiv:2302.13971), 8B 70B 405B of Llama 3
# (arXiv:2407.21783), 1B 3B of Llama 3.2 (its config.json).
PRESETS: dict[str, tuple[int, ...]] = {
    "1B": (2048, 16, 32, 8, 8192, 128256),
    "3B": (3072, 28, 24, 8, 8192, 128256),
    "7B": (4096, 32, 32, 32, 11008, 32000),
    "8B": (4096, 32, 32, 8, 14336, 128256),
    "13B": (5120, 40, 40, 40, 13824, 32000),
    "30B": (6656, 60, 52, 52, 17920, 32000),
    "65B": (8192, 80, 64, 64, 22016, 32000),
    "70B": (8192, 80, 64, 8, 28672, 128256),
    "405B": (16384, 126, 128, 8, 53248, 128256),
}
TIED = ("1B", "3B")
SHOWN = 5
DOUBLINGS = 6


@dataclass(frozen=True)
class PlanConfig:
    """A model, cards, and what a step is to be."""

    cards: int
    """Cards in all."""
    model: str | None = None
    """Sizes of a Llama model: 1B 3B 7B 8B 13B 30B 65B 70B 405B. The keys below replace single
    ones; without a model, all of them are needed, but for n_kv_heads."""
    hidden_size: int | None = None
    """Width of the residual stream."""
    num_layers: int | None = None
    """Decoder layers."""
    num_heads: int | None = None
    """Query heads."""
    n_kv_heads: int | None = None
    """Key and value heads; without a model, as many as query heads."""
    intermediate_size: int | None = None
    """Width inside the feed-forward block."""
    vocab_size: int | None = None
    """Rows of the embedding."""
    tie_word_embeddings: bool | None = None
    """True: the output head is the embedding matrix."""
    memory_gb: float = 64.0
    """Of one card, in 10^9 bytes."""
    seq_length: int = 4096
    """Tokens of a row."""
    rows_per_step: int = 512
    """Rows of all replicas that one optimizer step consumes."""
    compute_dtype: Dtype = "bfloat16"
    """Of matrix products, and so of most activations."""
    param_init_type: Dtype = "bfloat16"
    """Of the weights; below float32 there are float32 masters."""
    lora: Lora | None = None
    """Train low-rank adapters only."""
    hardware: Hardware = field(default_factory=Hardware)

    def __post_init__(self) -> None:
        limits = {"cards": 2**16, "memory_gb": 10**6, "seq_length": 2**24, "rows_per_step": 2**40}
        limits |= {"num_layers": 1000} | dict.fromkeys(set(SIZES) - {"num_layers"}, 2**24)
        for key, most in limits.items():
            value = getattr(self, key)
            if value is not None:
                require(0 < value <= most, key, value, f"give a number above 0, at most {most}")
        if self.model is not None:
            require(self.model in PRESETS, "model", self.model, f"give one of {', '.join(PRESETS)}")

    @property
    def is_preset(self) -> bool:
        """Whether the model is a known one, unchanged."""
        own = [getattr(self, key) for key in (*SIZES, "tie_word_embeddings")]
        return self.model is not None and own.count(None) == len(own)

    def run(self) -> TrainConfig:
        """The training run, without a layout."""
        sizes: dict[str, int] = dict(zip(SIZES, PRESETS[self.model])) if self.model else {}
        sizes |= {key: getattr(self, key) for key in SIZES if getattr(self, key) is not None}
        missing = [key for key in SIZES if key not in {"n_kv_heads", *sizes}]
        if missing:
            raise UserError(
                f"{', '.join(missing)}: not given; give --model ({', '.join(PRESETS)}) or all sizes"
            )
        tied = self.tie_word_embeddings
        try:
            model = ModelConfig(
                **{"n_kv_heads": sizes["num_heads"], **sizes},
                seq_length=self.seq_length,
                tie_word_embeddings=self.model in TIED if tied is None else tied,
            )
        except UserError as e:
            raise UserError(str(e).removeprefix("model.")) from e
        precision = Precision(self.compute_dtype, param_init_type=self.param_init_type)
        return TrainConfig("out", "run", model, precision=precision, lora=self.lora)


def main(argv: Sequence[str] | None = None) -> int:
    """Searches and prints."""
    config = parse_config(PlanConfig, argv, "mindprep plan", DESCRIPTION)
    base = config.run()
    vocab_size = base.model.vocab_size or 0  # a size that run() demands
    found = plan(
        base, vocab_size, config.rows_per_step, config.cards, config.memory_gb, config.hardware
    )
    print("\n".join(head(config, base, vocab_size)), end="\n\n")
    print("\n".join(table(found, config, vocab_size)), end="\n\n")
    if not found.fitting:
        print(f"Nothing fits; {cure(config, base, vocab_size)}.")
        return 1
    print("The first as config keys of mindprep train, to copy:\n")
    print(keys(found.fitting[0].config), end="")
    return 0


def head(config: PlanConfig, base: TrainConfig, vocab_size: int) -> list[str]:
    """The model as a whole."""
    model = base.model
    count = sum(map(prod, parameter_shapes(model, vocab_size).values()))
    nominal = float(config.model[:-1]) * 1e9 if config.model and config.is_preset else count
    weights, gradients, optimizer = (x / GB for x in whole_model(nominal))
    total = weights + gradients + optimizer
    room = config.hardware.room(config.memory_gb) / GB
    tokens = config.rows_per_step * config.seq_length
    return [
        f"model        {human(count)} weights: {model.num_layers} layers, hidden size "
        f"{model.hidden_size}, {model.num_heads} heads on {model.n_kv_heads}, feed-forward "
        f"{model.intermediate_size}, {vocab_size:,} ids",
        f"usual count  {human(nominal)} x 16 bytes: weights {weights:.4g} GB, gradients "
        f"{gradients:.4g} GB, optimizer state {optimizer:.4g} GB",
        f"             {total:.4g} GB in all; evenly over {config.cards} cards "
        f"{total / config.cards:.3g} GB a card",
        f"cards        {config.cards} of {config.memory_gb:g} GB; {room:.3g} may be filled",
        f"step         {config.rows_per_step:,} rows x {config.seq_length:,} = {human(tokens)} "
        f"tokens; weights {config.param_init_type}, products {config.compute_dtype}",
    ]


def table(found: Plan, config: PlanConfig, vocab_size: int) -> list[str]:
    """The fastest layouts, then the nearest of those that do not fit, and what is impossible."""
    lines = []
    if found.fitting:
        lines = [
            "  tp  pp  dp  rows x micro  recompute  weights  gradients  optimizer  activations  "
            "total GB     sent  bubble   s/step  MFU",
            *(row(layout, config, vocab_size) for layout in found.fitting[:SHOWN]),
        ]
        if len(found.fitting) > SHOWN:
            lines.append(f"and {len(found.fitting) - SHOWN} slower divisions")
        if any(layout.config.optimizer.offload for layout in found.fitting[:SHOWN]):
            lines.append("host: by optimizer.offload it is in the host's memory")
    if found.too_large:
        room = config.hardware.room(config.memory_gb)
        lines += ["", "too large, at their smallest:"]
        lines += [f"  {reason(layout, room)}" for layout in found.too_large[:SHOWN]]
    if found.impossible:
        lines += ["", "impossible:", *(f"  {why}" for why in found.impossible[:SHOWN])]
    return lines


def row(layout: Layout, config: PlanConfig, vocab_size: int) -> str:
    """One layout that fits: GB on the fullest card, GB it sends in a step, and estimates."""
    run, mesh = layout.config, layout.mesh
    tokens = config.rows_per_step * config.seq_length
    used = utilization(
        tokens / layout.seconds,
        flops_per_token(run.model, vocab_size, config.seq_length),
        config.cards,
        config.hardware.peak_tflops,
    )
    assert used is not None
    weights, gradients, optimizer, kept = (x / GB for x in layout.parts.values())
    host = run.optimizer.offload
    state = f"{layout.states.optimizer / GB:.1f} host" if host else f"{optimizer:.1f}"
    return (
        f"{mesh.tp:4}{mesh.pp:4}{mesh.dp:4}{run.batch_size:6} x {run.micro_batch_num:<5}"
        f"{recomputed(run):>11}{weights:9.1f}{gradients:11.1f}{state:>11}{kept:13.1f}"
        f"{layout.total / GB:10.1f}{layout.traffic.total / GB:9.1f}{layout.bubble:8.1%}"
        f"{layout.seconds:9.2f}{used:5.0%}"
    )


def reason(layout: Layout, room: float) -> str:
    """One layout that does not fit, at its smallest, and why."""
    mesh, parts = layout.mesh, layout.parts
    most, largest = max((size, name) for name, size in parts.items())
    return (
        f"tp {mesh.tp} pp {mesh.pp} dp {mesh.dp}: {layout.total / GB:.1f} GB, "
        f"{(layout.total - room) / GB:.1f} too much; {most / GB:.1f} are {largest}"
    )


def recomputed(config: TrainConfig) -> str:
    """In a word."""
    return "full" if config.recompute.full else "+".join(config.recompute.select) or "none"


def cure(config: PlanConfig, base: TrainConfig, vocab_size: int) -> str:
    """How many cards it would take."""
    cards = config.cards
    for _ in range(DOUBLINGS):
        cards *= 2
        found = plan(
            base, vocab_size, config.rows_per_step, cards, config.memory_gb, config.hardware
        )
        if found.fitting:
            return f"{cards} cards are enough"
    return f"nor on {cards} cards; give cards with more memory, shorter or more rows"


def keys(config: TrainConfig) -> str:
    """YAML for a training config."""
    default = TrainConfig("out", "run")
    values: dict[str, Any] = {
        key: getattr(config, key) for key in ("batch_size", "micro_batch_num")
    }
    for name in ("model", "precision", "parallel", "recompute", "optimizer", "lora"):
        section, usual = getattr(config, name), getattr(default, name)
        if section is not None:
            usual = usual or type(section)()
            values[name] = {
                key: value
                for key, value in asdict(section).items()
                if value != getattr(usual, key) or name == "lora"
            }
    flow = {key: yaml.safe_dump(v, default_flow_style=True, width=999) for key, v in values.items()}
    return "".join(f"{key}: {text.splitlines()[0]}\n" for key, text in flow.items() if values[key])


if __name__ == "__main__":
    sys.exit(run(main))
