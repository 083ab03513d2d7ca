"""Adam with bias correction and decoupled weight decay (arXiv:1711.05101), on one flat shard.

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)

in float32. `DeviceState` keeps moments and masters on the device and updates there by MindSpore's
fused operator; `HostState` keeps them in the host's memory and updates there in one pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from mindspore import Parameter, Tensor, ops
from numba import njit

from training.flat import host, scaled, write
from training.pieces import Float32, Kind


@dataclass(frozen=True)
class Step:
    """The numbers of one update."""

    number: int
    """t, from 1."""
    rate: float
    betas: tuple[float, float]
    eps: float
    decay: float
    scale: float
    """Gradients are multiplied by it first."""

    @property
    def corrections(self) -> tuple[float, float]:
        """1 - b1^t and sqrt(1 - b2^t)."""
        return 1 - self.betas[0] ** self.number, math.sqrt(1 - self.betas[1] ** self.number)


class State(Protocol):
    """Moments of a shard, and its float32 masters when the weights are no masters themselves."""

    def update(self, weights: Tensor | None, gradient: Tensor, step: Step) -> Tensor:
        """The updated values, float32 [n].

        `weights`: the present ones, None when there are masters. They and the gradient are given
        up: they may be changed in place, and be the result.
        """
        ...

    def read(self, kind: Kind) -> Float32:
        """The shard's numbers of a kind, float32 [n]; not a copy."""
        ...

    def load(self, kind: Kind, values: Float32) -> None:
        """Replaces them."""
        ...


class DeviceState:
    """On the device, by MindSpore's operator."""

    def __init__(self, size: int, masters: Float32 | None) -> None:
        self.tensors = {kind: _parameter(np.zeros(size, np.float32), kind) for kind in ("m", "v")}
        if masters is not None:
            self.tensors["w"] = _parameter(masters, "w")
        self.operator = ops.AdamWeightDecay()

    def update(self, weights: Tensor | None, gradient: Tensor, step: Step) -> Tensor:
        """See State.

        The operator knows no bias correction. With c1 = 1 - b1^t and c2 = sqrt(1 - b2^t), the
        learning rate lr c2 / c1, eps c2 and decay c1 / c2 give the same.
        """
        target = self.tensors["w"] if weights is None else weights
        c1, c2 = step.corrections
        self.operator(
            target,
            self.tensors["m"],
            self.tensors["v"],
            step.rate * c2 / c1,
            *step.betas,
            step.eps * c2,
            step.decay * c1 / c2,
            scaled(gradient, step.scale),
        )
        return target

    def read(self, kind: Kind) -> Float32:
        """See State."""
        return host(self.tensors[kind])

    def load(self, kind: Kind, values: Float32) -> None:
        """See State."""
        write(self.tensors[kind], Tensor.from_numpy(values))


class HostState:
    """In the host's memory, by one compiled pass over it."""

    def __init__(self, size: int, masters: Float32 | None) -> None:
        self.arrays = {kind: np.zeros(size, np.float32) for kind in ("m", "v")}
        if masters is not None:
            self.arrays["w"] = masters

    def update(self, weights: Tensor | None, gradient: Tensor, step: Step) -> Tensor:
        """See State."""
        target = self.arrays["w"] if weights is None else host(weights)
        self.update_in_place([target], gradient, step)
        return Tensor.from_numpy(target)

    def update_in_place(self, targets: Sequence[Float32], gradient: Tensor, step: Step) -> None:
        """Changes the numbers of `targets`, float32 [n] each, which stand one after another at the
        shard's start; what is left of it is padding, and stays.
        """
        c1, c2 = step.corrections
        b1, b2 = step.betas
        keep = 1 - step.rate * step.decay
        numbers = (b1, 1 - b1, b2, 1 - b2, step.rate / c1, 1 / c2, step.eps, keep, step.scale)
        factors = [np.float32(x) for x in numbers]
        m, v, g = self.arrays["m"], self.arrays["v"], host(gradient)
        at = 0
        for target in targets:
            here = slice(at, at + target.size)
            _update(target, m[here], v[here], g[here], *factors)
            at = here.stop

    def read(self, kind: Kind) -> Float32:
        """See State."""
        return self.arrays[kind]

    def load(self, kind: Kind, values: Float32) -> None:
        """See State."""
        self.arrays[kind][:] = values


def _parameter(values: Float32, kind: Literal["w", "m", "v"]) -> Parameter:
    return Parameter(Tensor(values), name=kind, requires_grad=False)


@njit(nogil=True, cache=True, error_model="numpy")
def _update(
    w: Float32,
    m: Float32,
    v: Float32,
    g: Float32,
    b1: np.float32,
    rest1: np.float32,
    b2: np.float32,
    rest2: np.float32,
    rate: np.float32,
    correction: np.float32,
    eps: np.float32,
    keep: np.float32,
    scale: np.float32,
) -> None:
    """The rule above, in place: rest = 1 - b, rate = lr / (1 - b1^t), keep = 1 - lr decay."""
    for i in range(w.size):
        x = g[i] * scale
        m[i] = first = m[i] * b1 + x * rest1
        v[i] = second = v[i] * b2 + x * x * rest2
        w[i] = w[i] * keep - first * rate / (np.sqrt(second) * correction + eps)
