"""The thin trainer: a decoder, trained on the MindRecord shards of an output folder.

    config -> data -> model -> loss -> gradients -> parallel, pipeline -> optimizer -> loop

in reading order; docs/training.md has the parts of it.

`import training` loads no MindSpore; the names below load their module when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from training.config import Folder, ModelConfig, OptimizerConfig, TrainConfig

if TYPE_CHECKING:
    from training.data import Loader
    from training.loop import train
    from training.model import Decoder
    from training.outcome import TrainResult

__all__ = [
    "Decoder",
    "Folder",
    "Loader",
    "ModelConfig",
    "OptimizerConfig",
    "TrainConfig",
    "TrainResult",
    "train",
]

_LAZY = {
    "Decoder": "training.model",
    "Loader": "training.data",
    "TrainResult": "training.outcome",
    "train": "training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
