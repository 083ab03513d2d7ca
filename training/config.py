"""What a training run is told. Keys are MindFormers' names where it has them.

Each class checks itself when it is made and raises UserError naming the key, its value and the
cure. This file needs no MindSpore, so a command line can explain the keys at once.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep.errors import UserError


def _require(holds: bool, key: str, value: Any, cure: str) -> None:
    if not holds:
        raise UserError(f"{key} is {value!r}: {cure}")


ReaderName = Literal["mindspore", "direct"]


@dataclass(frozen=True)
class Folder:
    """One output folder of several that are read as one."""

    path: str
    """Output folder of build_corpus, the one that holds manifest.json."""
    weight: float = 1.0
    """Passes over it in one epoch of the mix: 2.0 reads it twice, 0.5 a half of it, the other half
    in the next epoch."""

    def __post_init__(self) -> None:
        _require(isinstance(self.path, str), "data.path", self.path, "give a path as text")
        _require("://" not in self.path, "data.path", self.path, "copy the folder to this machine")
        fits = 0 < self.weight < math.inf
        _require(fits, "data.weight", self.weight, "give a number above 0, or leave the folder out")


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family."""

    vocab_size: int | None = None
    """Rows of the embedding; None: the vocabulary of the data's tokenizer."""
    hidden_size: int = 128
    """Width of the residual stream (H)."""
    num_layers: int = 4
    num_heads: int = 4
    """Query heads; each has hidden_size / num_heads channels, an even number for RoPE."""
    n_kv_heads: int = 2
    """Key and value heads, each shared by num_heads / n_kv_heads query heads."""
    intermediate_size: int = 384
    """Width inside the feed-forward block."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True
    """True: the output head is the embedding matrix."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights; less for those that end a residual branch."""

    def __post_init__(self) -> None:
        sizes = ("hidden_size", "num_layers", "num_heads", "n_kv_heads", "intermediate_size")
        for key in (*sizes, "rms_norm_eps", "rope_theta", "initializer_range"):
            value = getattr(self, key)
            _require(value > 0, f"model.{key}", value, "give a number above 0")
        if self.vocab_size is not None:
            cure = "give a number above 0, or leave it out to take the tokenizer's"
            _require(self.vocab_size > 0, "model.vocab_size", self.vocab_size, cure)
        cure = f"make it a multiple of 2 x num_heads ({2 * self.num_heads})"
        fits = self.hidden_size % (2 * self.num_heads) == 0
        _require(fits, "model.hidden_size", self.hidden_size, cure)
        cure = f"make it a divisor of num_heads ({self.num_heads})"
        fits = self.num_heads % self.n_kv_heads == 0
        _require(fits, "model.n_kv_heads", self.n_kv_heads, cure)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning rate: linear warm-up, then a cosine down to a floor."""

    learning_rate: float = 3e-3
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int = 10
    min_lr_ratio: float = 0.1
    """Learning rate of the last step, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Decoupled; not applied to norms."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this global L2 norm when it is longer."""

    def __post_init__(self) -> None:
        for key in ("learning_rate", "eps", "max_grad_norm"):
            value = getattr(self, key)
            _require(value > 0, f"optimizer.{key}", value, "give a number above 0")
        for key in ("warmup_steps", "weight_decay"):
            value = getattr(self, key)
            _require(value >= 0, f"optimizer.{key}", value, "give 0 or more")
        ratio = self.min_lr_ratio
        _require(0 <= ratio <= 1, "optimizer.min_lr_ratio", ratio, "give a share from 0 to 1")
        fits = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        cure = "give two numbers, each at least 0 and below 1"
        _require(fits, "optimizer.betas", self.betas, cure)


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    data: str | list[Folder]
    """Output folder of build_corpus, the one that holds manifest.json; or several, each with `path`
    and `weight`, read as one."""
    save_dir: str
    """Folder for checkpoints, metrics.jsonl and metrics.png."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    steps: int = 60
    """Optimizer steps in all; the learning rate reaches its floor at the last."""
    batch_size: int = 8
    """Rows of a micro batch."""
    micro_batch_num: int = 1
    """Micro batches whose gradients are added up before one optimizer step."""
    seed: int = 17
    """Of the initial weights, and of the row order when shuffle is on."""
    shuffle: bool = False
    """True: another order of rows in each epoch. The build has already shuffled the documents."""
    reader: ReaderName = "mindspore"
    """mindspore: MindDataset; direct: our memory-mapped reader, which gives the same rows with less
    work and keeps no file open."""
    data_workers: int = 1
    """Threads that read rows; one gives thousands of rows a second."""
    eval_batches: int = 8
    """Micro batches of the eval split an evaluation reads; 0: no evaluation."""
    eval_interval: int = 0
    """Steps between evaluations; 0: only before the first and after the last step."""
    save_interval: int = 0
    """Steps between checkpoints; 0: only after the last step."""
    keep: int = 2
    """Newest checkpoints to keep."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of matrix products; norms, softmax, loss and weights stay in float32."""
    mode: Literal["graph", "pynative"] = "graph"
    """graph: forward and backward are compiled; pynative: run operator by operator."""
    resume: bool = True
    """Continue from the newest complete checkpoint in save_dir, if there is one."""

    @property
    def shuffle_seed(self) -> int | None:
        """Of the row order; None: rows come as they are stored."""
        return self.seed if self.shuffle else None

    @property
    def rows_per_step(self) -> int:
        """Rows that one optimizer step consumes."""
        return self.batch_size * self.micro_batch_num

    def __post_init__(self) -> None:
        for key in ("steps", "batch_size", "micro_batch_num", "data_workers", "keep"):
            value = getattr(self, key)
            _require(value > 0, key, value, "give a number above 0")
        for key in ("eval_batches", "eval_interval", "save_interval"):
            value = getattr(self, key)
            _require(value >= 0, key, value, "give 0 or more")
        if isinstance(self.data, str):
            _require("://" not in self.data, "data", self.data, "copy the folder to this machine")
            cure = "give a folder, or a list of entries with the keys path and weight"
            _require(not self.data.startswith(("[", "{")), "data", self.data, cure)
        else:
            _require(len(self.data) > 0, "data", self.data, "name at least one folder")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "give a number from 0 to 2**32 - 1")
        choices = {
            "compute_dtype": ("float32", "bfloat16"),
            "mode": ("graph", "pynative"),
            "reader": ("mindspore", "direct"),
        }
        for key, allowed in choices.items():
            value = getattr(self, key)
            _require(value in allowed, key, value, f"give one of {', '.join(allowed)}")
        warmup = self.optimizer.warmup_steps
        cure = f"give at most the number of steps ({self.steps})"
        _require(warmup <= self.steps, "optimizer.warmup_steps", warmup, cure)
