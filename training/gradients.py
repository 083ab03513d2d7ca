"""From micro batches to one step's gradient; the optimizer is elsewhere.

Gradients are of the summed loss. They and the counts are added up over micro batches (and, were
there several processes, over those), and divided once, by the number of valid targets.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import mindspore as ms
from mindspore import Tensor, nn

from training.derive import Batch
from training.loss import token_losses

FIELDS = ("input_ids", "position_ids", "segments", "labels", "loss_mask")
LossFunction = Callable[..., tuple[Tensor, Tensor]]
GradientFunction = Callable[..., tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]]


class StepGradients(NamedTuple):
    """The outcome of all micro batches of a step."""

    loss: float
    """Mean over the valid targets, in nats; 0 when there is none."""
    valid_tokens: int
    gradients: list[Tensor]
    """Of the mean loss, in the order of model.trainable_params()."""


def tensors(batch: Batch) -> tuple[Tensor, ...]:
    """The arguments of a loss or gradient function, int32 [B, S] each, in the order of FIELDS."""
    return tuple(Tensor(batch[name]) for name in FIELDS)


def loss_function(model: nn.Cell, mode: str) -> LossFunction:
    """tensors(batch) -> (sum of the token losses, number of valid targets), without gradient."""

    def forward(
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Tensor,
        labels: Tensor,
        loss_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return token_losses(model(input_ids, position_ids, segments), labels, loss_mask)

    return ms.jit(forward) if mode == "graph" else forward


def gradient_function(model: nn.Cell, mode: str) -> GradientFunction:
    """tensors(batch) -> ((sum, count), gradients of the sum)."""
    weights = model.trainable_params()
    forward = loss_function(model, "pynative")
    function = ms.value_and_grad(forward, None, weights, has_aux=True)
    return ms.jit(function) if mode == "graph" else function


def accumulate(function: GradientFunction, micro_batches: Iterable[Batch]) -> StepGradients:
    """Runs every micro batch and returns the gradient of the mean over all their valid targets."""
    total, count = 0.0, 0
    summed: list[Tensor] = []
    for batch in micro_batches:
        (loss, valid), gradients = function(*tensors(batch))
        total += float(loss.asnumpy())
        count += int(valid.asnumpy())
        summed = [a + b for a, b in zip(summed, gradients)] if summed else list(gradients)
    share = 1 / max(count, 1)
    return StepGradients(total * share, count, [g * share for g in summed])
