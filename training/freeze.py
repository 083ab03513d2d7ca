"""Which weights are not trained: by patterns of names, and the lowest layers.

    frozen_params: ["layers.0.*", "norm.weight"]     * stands for any text, dots too
    frozen_layers: 0.5                               layers 0 .. n/2 - 1 and the embedding

Decided by the names of the whole model, so that every process of a pipeline decides, or complains,
alike, whichever layers it holds. A weight that is not trained has no gradient and no optimizer
state. A tied head is the embedding, and frozen with it.
"""

import difflib
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dataprep.errors import UserError
from training.config import TrainConfig
from training.shapes import EMBEDDING, parameter_shapes

if TYPE_CHECKING:  # a memory ledger asks for names without loading MindSpore
    from mindspore import nn


def freeze(model: "nn.Cell", config: TrainConfig) -> None:
    """Sets requires_grad off for those weights of the model, or of a part of it, that are frozen.

    Called after adapters are made. Raises UserError as frozen_names does.
    """
    frozen = frozen_names(config)
    for weight in model.get_parameters():
        if weight.name in frozen:
            weight.requires_grad = False


def frozen_names(config: TrainConfig) -> set[str]:
    """Global names of all weights that are not trained.

    Raises UserError for a pattern that matches nothing (naming the nearest weights), a share that
    is less than one layer, or when nothing is left to train.
    """
    names = list(parameter_shapes(config.model, 1, config.lora))
    frozen = set(_lowest(names, config))
    if config.lora is not None:
        frozen |= {name for name in names if not is_adapter(name)}
    for pattern in config.frozen_params:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise UserError(
                f"frozen_params {pattern!r} matches no weight; the nearest are "
                f"{', '.join(_nearest(pattern, names))} (* stands for any text)"
            )
        frozen |= matched
    if len(frozen) == len(names):
        raise UserError(
            f"frozen_params {config.frozen_params} and frozen_layers {config.frozen_layers} leave "
            "nothing to train; freeze fewer weights"
        )
    return frozen


def is_adapter(name: str) -> bool:
    """Whether a weight belongs to a low-rank adapter."""
    return name.endswith((".lora_a", ".lora_b"))


def frozen_layer_count(config: TrainConfig) -> int:
    """How many layers, from the lowest, `frozen_layers` is: rounded down."""
    # 0.29 x 100 is 28.999999999999996 in floating point, and means 29.
    return int(config.frozen_layers * config.model.num_layers + 1e-9)


def _lowest(names: Collection[str], config: TrainConfig) -> list[str]:
    count, layers = frozen_layer_count(config), config.model.num_layers
    if config.frozen_layers == 0:
        return []
    if count == 0:
        raise UserError(
            f"frozen_layers is {config.frozen_layers}: less than one of {layers} layers; give at "
            f"least {1 / layers:.4g}, or 0 for none"
        )
    prefixes = tuple(f"layers.{i}." for i in range(count))
    return [name for name in names if name == EMBEDDING or name.startswith(prefixes)]


def _nearest(pattern: str, names: Collection[str]) -> list[str]:
    return difflib.get_close_matches(pattern, names, 3, 0.0)
