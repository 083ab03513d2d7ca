"""The sections of a training config. Keys are MindFormers' names where it has them.

Each class checks itself when it is made and raises UserError naming the key, its value and the
cure. No MindSpore here, so a command line can explain the keys at once.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep.errors import UserError

Dtype = Literal["float32", "bfloat16", "float16"]


def require(holds: bool, key: str, value: Any, cure: str) -> None:
    """Raises UserError unless a rule holds."""
    if not holds:
        raise UserError(f"{key} is {value!r}: {cure}")


def require_choices(section: object, prefix: str, choices: dict[str, tuple[Any, ...]]) -> None:
    """Raises UserError when a key of a section has none of its values."""
    for key, allowed in choices.items():
        value = getattr(section, key)
        cure = f"give one of {', '.join(map(str, allowed))}"
        require(value in allowed, f"{prefix}{key}", value, cure)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family."""

    vocab_size: int | None = None
    """Rows of the embedding; None: the vocabulary of the data's tokenizer."""
    seq_length: int | None = None
    """Tokens of a row; None: as many as the data's rows have."""
    hidden_size: int = 128
    """Width of the residual stream (H)."""
    num_layers: int = 4
    """Decoder layers, each attention and feed-forward."""
    num_heads: int = 4
    """Query heads; each has hidden_size / num_heads channels, an even number for RoPE."""
    n_kv_heads: int = 2
    """Key and value heads, each shared by num_heads / n_kv_heads query heads."""
    intermediate_size: int = 384
    """Width inside the feed-forward block."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square in norms."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding's wavelengths."""
    tie_word_embeddings: bool = True
    """True: the output head is the embedding matrix."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights; less for those that end a residual branch."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "num_heads", "n_kv_heads", "intermediate_size")
        for key in (*sizes, "rms_norm_eps", "rope_theta", "initializer_range"):
            value = getattr(self, key)
            require(value > 0, f"model.{key}", value, "give a number above 0")
        if self.vocab_size is not None:
            cure = "give a number above 0, or leave it out to take the tokenizer's"
            require(self.vocab_size > 0, "model.vocab_size", self.vocab_size, cure)
        if self.seq_length is not None:
            cure = "give a number above 0, or leave it out to take the data's"
            require(self.seq_length > 0, "model.seq_length", self.seq_length, cure)
        cure = f"make it a multiple of 2 x num_heads ({2 * self.num_heads})"
        fits = self.hidden_size % (2 * self.num_heads) == 0
        require(fits, "model.hidden_size", self.hidden_size, cure)
        cure = f"make it a divisor of num_heads ({self.num_heads})"
        fits = self.num_heads % self.n_kv_heads == 0
        require(fits, "model.n_kv_heads", self.n_kv_heads, cure)


@dataclass(frozen=True)
class Precision:
    """In which precision numbers are held and products are made."""

    compute_dtype: Dtype = "float32"
    """Of matrix products; they accumulate in float32. float16 scales the loss."""
    layernorm_compute_dtype: Dtype = "float32"
    """Of norms."""
    softmax_compute_dtype: Dtype = "float32"
    """Of the attention's softmax; that of the loss is always float32."""
    param_init_type: Dtype = "float32"
    """Of the weights; below float32, the optimizer keeps a float32 master of each."""
    loss_scale: float = 65536.0
    """First factor of a micro batch's mean loss in float16; halved, and the step left out, when a
    gradient overflows; at 1 that is a failure, see on_nonfinite. Ignored otherwise."""
    loss_scale_window: int = 1000
    """Steps without overflow after which the factor is doubled."""

    def __post_init__(self) -> None:
        dtypes = ("float32", "bfloat16", "float16")
        keys = ("compute_dtype", "layernorm_compute_dtype", "softmax_compute_dtype")
        require_choices(self, "precision.", dict.fromkeys((*keys, "param_init_type"), dtypes))
        for key in ("loss_scale", "loss_scale_window"):
            value = getattr(self, key)
            require(value >= 1, f"precision.{key}", value, "give a number of at least 1")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate."""

    learning_rate: float = 3e-3
    """The peak, reached at the end of the warm-up."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    """After the warm-up: constant; down to the floor in a line or a cosine; or wsd, constant until
    the last `decay_ratio` of the steps and then down in a line."""
    warmup_steps: int = 10
    """Steps in which it rises to the peak in a line."""
    min_lr_ratio: float = 0.1
    """Learning rate of the last step, the floor, as a share of the peak; not of constant."""
    decay_ratio: float = 0.2
    """Share of all steps in which wsd goes down."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Shares of the old in the running means of the gradient and of its square."""
    eps: float = 1e-8
    """Added to the root of the mean square gradient."""
    weight_decay: float = 0.1
    """Decoupled; not applied to norms and biases."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this global L2 norm when it is longer."""
    offload: bool | None = None
    """Keep moments and masters in the host's memory, and update there. Unset: only on CPU, where
    the weights are there too, and one pass over them is faster than MindSpore's operator."""

    def __post_init__(self) -> None:
        for key in ("learning_rate", "eps", "max_grad_norm"):
            value = getattr(self, key)
            require(value > 0, f"optimizer.{key}", value, "give a number above 0")
        for key in ("warmup_steps", "weight_decay"):
            value = getattr(self, key)
            require(value >= 0, f"optimizer.{key}", value, "give 0 or more")
        for key in ("min_lr_ratio", "decay_ratio"):
            value = getattr(self, key)
            require(0 <= value <= 1, f"optimizer.{key}", value, "give a share from 0 to 1")
        fits = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        cure = "give two numbers, each at least 0 and below 1"
        require(fits, "optimizer.betas", self.betas, cure)
        schedules = ("constant", "linear", "cosine", "wsd")
        require_choices(self, "optimizer.", {"schedule": schedules})


@dataclass(frozen=True)
class Parallel:
    """How processes share the work; data x model x pipeline is their number."""

    data_parallel: int | None = None
    """Replicas that read different rows; None: what the other two leave of the processes."""
    model_parallel: int = 1
    """Tensor parallelism: processes that share heads, feed-forward width and vocabulary."""
    pipeline_stage: int = 1
    """Stages that the layers are divided into."""
    use_seq_parallel: bool = False
    """Between products, each process of a tensor-parallel group keeps a part of the sequence."""
    enable_parallel_optimizer: bool = False
    """Each replica keeps and updates its own part of the optimizer's state (ZeRO 1)."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Of micro batches in the pipeline: 1f1b holds at most as many as there are stages ahead."""
    bucket_mib: int = 32
    """Gradients are summed over replicas in pieces of this many MiB."""

    def __post_init__(self) -> None:
        for key in ("data_parallel", "model_parallel", "pipeline_stage", "bucket_mib"):
            value = getattr(self, key)
            good = value is None and key == "data_parallel"
            require(good or value > 0, f"parallel.{key}", value, "give a number above 0")
        require_choices(self, "parallel.", {"schedule": ("1f1b", "gpipe")})
        fits = not self.use_seq_parallel or self.model_parallel > 1
        cure = "it needs parallel.model_parallel above 1"
        require(fits, "parallel.use_seq_parallel", self.use_seq_parallel, cure)


@dataclass(frozen=True)
class Recompute:
    """Activations that are computed again in the backward pass instead of being kept."""

    full: bool = False
    """Whole layers: only what enters them is kept."""
    select: list[Literal["attention", "mlp"]] = field(default_factory=list)
    """These parts of a layer."""
    layers: list[int] | None = None
    """Numbers of the layers that `full` or `select` is for, from 0; None: all."""

    def __post_init__(self) -> None:
        fits = not (self.full and self.select)
        require(fits, "recompute.select", self.select, "leave it out, or recompute.full")
        chosen = self.full or bool(self.select)
        cure = "say what of them: recompute.full or recompute.select"
        require(self.layers is None or chosen, "recompute.layers", self.layers, cure)
        for part in self.select:
            require(part in ("attention", "mlp"), "recompute.select", part, "give attention or mlp")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (arXiv:2106.09685); the weights they adapt are frozen."""

    rank: int = 8
    """Inner width of an adapter's two matrices."""
    alpha: float = 16.0
    """The adapter's output is scaled by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    """Of q_proj k_proj v_proj o_proj gate_proj up_proj down_proj."""
    dropout: float = 0.0
    """Share of an adapter's inputs that is left out in training."""

    def __post_init__(self) -> None:
        require(self.rank > 0, "lora.rank", self.rank, "give a number above 0")
        require(0 <= self.dropout < 1, "lora.dropout", self.dropout, "give a share below 1")
        known = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        require(len(self.targets) > 0, "lora.targets", self.targets, "name at least one")
        for name in self.targets:
            require(name in known, "lora.targets", name, f"give some of {', '.join(known)}")
