"""What a training run is told: folders, batches, steps, and the sections of sections.py."""

import math
from dataclasses import dataclass, field
from typing import Literal

from dataprep.files import check_path
from training.sections import (
    Lora,
    ModelConfig,
    OptimizerConfig,
    Parallel,
    Precision,
    Recompute,
    require,
    require_choices,
)

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
        require(isinstance(self.path, str), "data.path", self.path, "give a path as text")
        check_path("data.path", self.path)
        require("://" not in self.path, "data.path", self.path, "copy the folder to this machine")
        fits = 0 < self.weight < math.inf
        require(fits, "data.weight", self.weight, "give a number above 0, or leave the folder out")


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
    precision: Precision = field(default_factory=Precision)
    parallel: Parallel = field(default_factory=Parallel)
    recompute: Recompute = field(default_factory=Recompute)
    lora: Lora | None = None
    """Fine-tune by low-rank adapters."""
    load_checkpoint: str | None = None
    """Weights to start from: a checkpoint of ours, a save_dir (its newest), a .safetensors file of
    `mindprep checkpoint`, or a Hugging Face folder of the Llama family."""
    frozen_params: list[str] = field(default_factory=list)
    """Weights that are not trained: names, * stands for any text, as in layers.0.*"""
    frozen_layers: float = 0.0
    """Share of the layers, from the lowest, that are not trained, and the embedding with them."""
    steps: int = 60
    """Optimizer steps in all; the schedule of the learning rate ends at the last. A run that is
    continued may have more, which stretches it."""
    batch_size: int = 8
    """Rows of a micro batch of one replica."""
    micro_batch_num: int = 1
    """Micro batches of a replica whose gradients are added up before one optimizer step."""
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
    """Steps between checkpoints, where a killed run can continue; 0: only after the last step."""
    keep: int = 2
    """Newest checkpoints to keep."""
    async_save: bool = True
    """Write checkpoints while training goes on."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """When loss or gradient is not finite: stop; or leave the rows of that step out, and go back to
    the last checkpoint, where there is one."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    profile: int = 0
    """Steps, after the second, whose phases are written to trace.json; 0: none."""
    peak_tflops: float | None = None
    """Of one device, for the share of it that is used (MFU); None: not told."""
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
        """Rows of one replica that one optimizer step consumes."""
        return self.batch_size * self.micro_batch_num

    def __post_init__(self) -> None:
        for key in ("steps", "batch_size", "micro_batch_num", "data_workers", "keep"):
            value = getattr(self, key)
            require(value > 0, key, value, "give a number above 0")
        check_path("save_dir", self.save_dir)
        require("://" not in self.save_dir, "save_dir", self.save_dir, "give a folder")
        if self.load_checkpoint is not None:
            check_path("load_checkpoint", self.load_checkpoint)
        for key in ("eval_batches", "eval_interval", "save_interval", "profile"):
            value = getattr(self, key)
            require(value >= 0, key, value, "give 0 or more")
        if isinstance(self.data, str):
            check_path("data", self.data)
            require("://" not in self.data, "data", self.data, "copy the folder to this machine")
            cure = "give a folder, or a list of entries with the keys path and weight"
            require(not self.data.startswith(("[", "{")), "data", self.data, cure)
        else:
            require(len(self.data) > 0, "data", self.data, "name at least one folder")
        require(0 <= self.seed < 2**32, "seed", self.seed, "give a number from 0 to 2**32 - 1")
        choices: dict[str, tuple[str, ...]] = {
            "mode": ("graph", "pynative"),
            "reader": ("mindspore", "direct"),
            "on_nonfinite": ("stop", "skip"),
        }
        require_choices(self, "", choices)
        share = self.frozen_layers
        require(0 <= share < 1, "frozen_layers", share, "give a share of at least 0 and below 1")
        peak = self.peak_tflops
        require(peak is None or peak > 0, "peak_tflops", peak, "give a number above 0")
        for layer in self.recompute.layers or []:
            cure = f"give numbers from 0 to {self.model.num_layers - 1}"
            fits = 0 <= layer < self.model.num_layers
            require(fits, "recompute.layers", layer, cure)
        warmup = self.optimizer.warmup_steps
        cure = f"give at most the number of steps ({self.steps})"
        require(warmup <= self.steps, "optimizer.warmup_steps", warmup, cure)
