"""AdamW with float32 weights and moments, and clipping by the global norm.

The weights are the masters: a lower compute dtype rounds them inside the products only.
"""

import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from training.config import OptimizerConfig


def global_norm(gradients: Sequence[Tensor]) -> float:
    """L2 norm of all gradients taken as one vector."""
    return math.sqrt(sum(float((g * g).sum().asnumpy()) for g in gradients))


def clip(gradients: Sequence[Tensor], max_norm: float) -> tuple[list[Tensor], float]:
    """Scales the gradients down to `max_norm` when they are longer.

    Returns them and the norm they had before; arXiv:1211.5063.
    """
    norm = global_norm(gradients)
    if norm > max_norm:
        return [g * (max_norm / norm) for g in gradients], norm
    return list(gradients), norm


class AdamW:
    """Adam with bias correction and decoupled weight decay (arXiv:1711.05101).

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
        w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)

    Weights with one axis, the norms, do not decay.
    """

    def __init__(self, weights: Sequence[Parameter], config: OptimizerConfig) -> None:
        self.weights = list(weights)
        self.config = config
        self.first = [_zeros(w, "m") for w in self.weights]
        self.second = [_zeros(w, "v") for w in self.weights]

    @property
    def moments(self) -> list[Parameter]:
        """Both moments of every weight, named m.<weight> and v.<weight>."""
        return [*self.first, *self.second]

    def update(self, gradients: Sequence[Tensor], rate: float, step: int) -> None:
        """One step; `step` counts from 1. Weights and moments change in place."""
        beta1, beta2 = self.config.betas
        step_size = rate / (1 - beta1**step)
        correction = 1 / math.sqrt(1 - beta2**step)
        for weight, g, m, v in zip(self.weights, gradients, self.first, self.second, strict=True):
            decay = self.config.weight_decay if weight.ndim > 1 else 0.0
            new_m = m * beta1 + g * (1 - beta1)
            new_v = v * beta2 + g * g * (1 - beta2)
            change = new_m * step_size / (ops.sqrt(new_v) * correction + self.config.eps)
            ops.assign(weight, weight * (1 - rate * decay) - change)
            ops.assign(m, new_m)
            ops.assign(v, new_v)


def _zeros(weight: Parameter, prefix: str) -> Parameter:
    values = Tensor(np.zeros(weight.shape, np.float32), ms.float32)
    return Parameter(values, name=f"{prefix}.{weight.name}", requires_grad=False)
