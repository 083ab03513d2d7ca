"""From micro batches to one step's gradient; the optimizer is elsewhere.

Gradients are of the summed loss, and nothing here divides: sums and counts are added up over micro
batches, then over processes, and divided once, by the number of valid targets of all (reduce.py).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from training.derive import Batch
from training.flat import as_float32
from training.loss import token_losses

FIELDS = ("input_ids", "position_ids", "segments", "labels", "loss_mask")
Losses = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
LossFunction = Callable[..., tuple[Tensor, Tensor]]
GradientFunction = Callable[..., tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]]


class StepGradients(NamedTuple):
    """The outcome of all micro batches of a step."""

    loss_sum: float
    """Over the valid targets, in nats."""
    valid_tokens: int
    gradients: list[Tensor]
    """Of the summed loss x scale, float32, in the order of model.trainable_params()."""


def tensors(batch: Batch) -> tuple[Tensor, ...]:
    """The arguments of a loss or gradient function, int32 [B, S] each, in the order of FIELDS."""
    return tuple(Tensor(batch[name]) for name in FIELDS)


def loss_function(model: nn.Cell, mode: str, losses: Losses = token_losses) -> LossFunction:
    """tensors(batch) -> (sum of the token losses, number of valid targets), without gradient."""

    def forward(
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Tensor,
        labels: Tensor,
        loss_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return losses(model(input_ids, position_ids, segments), labels, loss_mask)

    return ms.jit(forward) if mode == "graph" else forward


def scaled_loss_of(model: nn.Cell, losses: Losses = token_losses) -> Callable[..., Any]:
    """(*tensors(batch), scale) -> (sum of the token losses x scale, (that sum, valid targets))."""
    forward = loss_function(model, "pynative", losses)

    def scaled(
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Tensor,
        labels: Tensor,
        loss_mask: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        total, count = forward(input_ids, position_ids, segments, labels, loss_mask)
        return total * scale, (total, count)

    return scaled


def gradient_function(model: nn.Cell, mode: str, losses: Losses = token_losses) -> GradientFunction:
    """(*tensors(batch), scale) -> ((sum, count), gradients of sum x scale, float32).

    scale: float32 scalar, above 1 where small gradients would vanish in float16. A weight that is
    held in a lower dtype has its gradient rounded to that dtype.
    """
    weights = model.trainable_params()
    scaled = scaled_loss_of(model, losses)
    differentiated = ms.value_and_grad(scaled, None, weights, has_aux=True)

    def function(
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Tensor,
        labels: Tensor,
        loss_mask: Tensor,
        scale: Tensor,
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        (_, sums), gradients = differentiated(
            input_ids, position_ids, segments, labels, loss_mask, scale
        )
        return sums, gradients

    return ms.jit(function) if mode == "graph" else function


def accumulate(
    function: GradientFunction,
    micro_batches: Iterable[Batch],
    scale: float = 1.0,
    prepare: Callable[[int], None] | None = None,
) -> StepGradients:
    """Runs every micro batch and adds up; `prepare` is called with the number of each before it."""
    total, count = 0.0, 0
    factor = Tensor(np.float32(scale))
    summed: list[Tensor] = []
    for i, batch in enumerate(micro_batches):
        if prepare is not None:
            prepare(i)
        (loss, valid), gradients = function(*tensors(batch), factor)
        total += float(loss.asnumpy())
        count += int(valid.asnumpy())
        add(summed, gradients)
    return StepGradients(total, count, summed)


def add(summed: list[Tensor], gradients: Sequence[Tensor]) -> None:
    """Adds gradients of one more micro batch, of any dtype, in float32; `summed` may be empty.

    One after another, so that beside sums and gradients there is one tensor at most.
    """
    if not summed:
        summed.extend(map(as_float32, gradients))
        return
    for i, gradient in enumerate(gradients):
        summed[i] = summed[i] + as_float32(gradient)
