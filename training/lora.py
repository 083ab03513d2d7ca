"""Low-rank adapters (LoRA, arXiv:2106.09685): y = x W^T + alpha / rank (dropout(x) A^T) B^T.

    layers.3.self_attn.q_proj.weight   W [out, in]   as it was, and not trained any more
                             .lora_a   A [r, in]     drawn from N(0, 1 / in)
                             .lora_b   B [out, r]    zeros, so that training begins at W

Merging them, W + alpha / rank B A, is the business of weights.py.

Dropout draws no random numbers: whether an element is left out is a hash of the step's seed, the
layer, the row's number among all rows of the step, the token's place and the channel. So a backward
pass that runs forward again, tensor-parallel partners, and any division of rows into micro batches
and replicas, see the same mask. What changes from one micro batch to the next is in a parameter,
which a compiled function reads anew.
"""

import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from training.flat import write
from training.layers import Linear
from training.sections import Lora

DROPOUT = "lora_dropout"
"""Name of the parameter that holds what dropout depends on; it is no weight."""


class Dropout(nn.Cell):
    """float32 [B, S, C] -> the same with a share of it zero, the rest scaled up; or as it is."""

    def __init__(self, state: Parameter, name: str, share: float) -> None:
        """state: see set_dropout_seed; name: of the matrix that comes next."""
        super().__init__()
        self.state = state
        self.key = zlib.crc32(name.encode()) & 0x7FFFFFFF
        self.first_channel = 0
        # Hashes are spread evenly over all of int32.
        self.threshold = int(round(share * 2**32)) - 2**31
        self.grown = 1 / (1 - share)

    def construct(self, x: Tensor) -> Tensor:
        rows, length, channels = x.shape
        seed, first, stride, on = self.state[0], self.state[1], self.state[2], self.state[3]
        row = mix(ops.arange(rows).astype(ms.int32) * stride + first + seed)
        token = mix(row[:, None] + ops.arange(length).astype(ms.int32)[None, :])
        channel = mix(ops.arange(channels).astype(ms.int32) + (self.first_channel + self.key))
        hashed = mix(ops.bitwise_xor(token[:, :, None], channel[None, None, :]))
        kept = (hashed >= self.threshold).astype(ms.float32) * self.grown
        active = on.astype(ms.float32)
        return x * (kept * active + (1.0 - active))


def mix(x: Tensor) -> Tensor:
    """A bijection of int32 that spreads each bit over all (C. Wellons' lowbias32)."""
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF))
    x = x * 0x7FEB352D
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 15), 0x1FFFF))
    x = x * (0x846CA68B - 2**32)
    return ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF))


class LoraLinear(nn.Cell):
    """A Linear with an adapter beside it: float32 [B, S, in] -> [B, S, out]."""

    def __init__(self, base: Linear, config: Lora, state: Parameter | None) -> None:
        super().__init__()
        name, (size_out, size_in) = base.weight.name.removesuffix(".weight"), base.weight.shape
        self.weight = base.weight
        self.is_narrow, self.widen, self.product = base.is_narrow, base.widen, base.product
        dtype = base.weight.dtype
        self.lora_a = Parameter(Tensor(np.zeros((config.rank, size_in), np.float32)).astype(dtype))
        self.lora_b = Parameter(Tensor(np.zeros((size_out, config.rank), np.float32)).astype(dtype))
        self.scale = config.alpha / config.rank
        self.has_dropout = state is not None
        self.dropout = nn.Identity() if state is None else Dropout(state, name, config.dropout)

    def construct(self, x: Tensor) -> Tensor:
        weight, a, b = self.weight, self.lora_a, self.lora_b
        if self.is_narrow:
            weight, a, b = self.widen(weight), self.widen(a), self.widen(b)
        flat = x.reshape(-1, x.shape[-1])
        entering = self.dropout(x).reshape(-1, x.shape[-1]) if self.has_dropout else flat
        added = self.product(self.product(entering, a), b) * self.scale
        return (self.product(flat, weight) + added).reshape(*x.shape[:-1], -1)


def apply_lora(model: nn.Cell, config: Lora, seed: int) -> None:
    """Puts adapters beside the targets of a decoder or a part of it, and trains nothing else.

    Called before anything is sliced. A is drawn by the global name, as in model.initialize.
    """
    state = None
    if config.dropout:
        values = Tensor(np.zeros(4, np.int32))
        state = Parameter(values, name=DROPOUT, requires_grad=False)
    for weight in model.get_parameters():
        weight.requires_grad = False
    for layer in model.layers:
        for part in (layer.self_attn, layer.mlp):
            for target in config.targets:
                if hasattr(part, target):
                    _adapt(part, target, config, state, seed)


def _adapt(part: nn.Cell, target: str, config: Lora, state: Parameter | None, seed: int) -> None:
    base = getattr(part, target)
    weight, name = base.weight, base.weight.name
    adapted = LoraLinear(base, config, state)
    setattr(part, target, adapted)
    # Taking a Cell in, MindSpore puts its place there before the names of its parameters.
    weight.name = name
    adapted.lora_a.name = name.removesuffix("weight") + "lora_a"
    adapted.lora_b.name = name.removesuffix("weight") + "lora_b"
    if state is not None:
        state.name = DROPOUT
    generator = np.random.default_rng([seed, zlib.crc32(adapted.lora_a.name.encode())])
    drawn = generator.standard_normal(adapted.lora_a.shape, np.float32)
    drawn *= np.float32(weight.shape[1] ** -0.5)
    adapted.lora_a.set_data(Tensor(drawn).astype(weight.dtype))


def set_dropout_seed(model: nn.Cell, seed: int | None, first_row: int = 0, stride: int = 1) -> None:
    """Tells dropout what comes next; None: nothing is left out, as at first and in evaluation.

    seed: another one in each step, see dropout_seed. Row i of the batch is row first_row + i x
    stride of the step.
    """
    values = (0, 0, 0, 0) if seed is None else (seed, first_row, stride, 1)
    for parameter in model.get_parameters():
        if parameter.name == DROPOUT:
            write(parameter, Tensor(np.array(values, np.int32)))


def dropout_seed(seed: int, step: int) -> int:
    """Of a step, 31 bits; neighbouring seeds and steps have nothing in common."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0] >> 1)


def place_dropout(model: nn.Cell, first_channels: dict[str, int]) -> None:
    """After slicing: where along its inputs each divided lora_a begins, by its name.

    Without it partners would leave out the same channels of their parts, which is no error but is
    not what one process does.
    """
    for _, cell in model.cells_and_names():
        if isinstance(cell, LoraLinear) and cell.has_dropout:
            cell.dropout.first_channel = first_channels.get(cell.lora_a.name, 0)
