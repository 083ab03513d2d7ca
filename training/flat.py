"""Tensors as one vector and back, and the numbers of a tensor in memory.

On CPU a tensor's memory is the process's own: `asnumpy` and `from_numpy` share it. Copies are then
made by NumPy, and written where the tensor is. MindSpore's operators for the same (slices that are
views, `copy_`) took 2 to 4 ms for each weight of 83,000 elements; NumPy takes 0.05. On other
devices they are operators.

A weight is always changed in place. `Parameter.set_data` gives it other memory, which a function
that `ms.jit` has compiled before does not see.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops
from numba import njit

from training.pieces import Float32


def in_host_memory() -> bool:
    """Whether tensors live in this process's memory."""
    return ms.get_context("device_target") == "CPU"


def as_float32(tensor: Tensor) -> Tensor:
    """The tensor itself, or its values in float32."""
    return tensor if tensor.dtype == ms.float32 else tensor.astype(ms.float32)


def host(tensor: Tensor) -> Float32:
    """Its values in C order, float32 [n]; on CPU often the tensor's own memory."""
    values: Float32 = as_float32(tensor).asnumpy().reshape(-1)
    return values


def flatten(ranges: Sequence[tuple[Tensor, int, int]], size: int) -> Tensor:
    """Elements first..last-1 of each (tensor, first, last), in C order, then zeros.

    Float32 [size], in memory of its own.
    """
    if in_host_memory():
        flat = np.empty(size, np.float32)
        at = 0
        for tensor, first, last in ranges:
            flat[at : at + last - first] = host(tensor)[first:last]
            at += last - first
        flat[at:] = 0
        return Tensor.from_numpy(flat)
    # Ascend: not verified
    parts = [as_float32(tensor.reshape(-1)[first:last]) for tensor, first, last in ranges]
    padding = size - sum(last - first for _, first, last in ranges)
    return ops.concat((*parts, ops.zeros((padding,), ms.float32)))


def unflatten(flat: Tensor, targets: Sequence[Parameter]) -> None:
    """The reverse for whole parameters of one dtype, to which the values are rounded.

    They are changed in place, and padding is left out.
    """
    rounded = flat if targets[0].dtype == flat.dtype else flat.astype(targets[0].dtype)
    values = rounded.asnumpy() if in_host_memory() else None
    at = 0
    for target in targets:
        stop = at + target.size
        if values is not None:
            np.copyto(target.asnumpy(), values[at:stop].reshape(target.shape))
        else:
            target.copy_(rounded[at:stop].reshape(target.shape))  # Ascend: not verified
        at = stop


def write(target: Parameter, values: Tensor) -> None:
    """Changes a parameter in place to values of its shape, rounded to its dtype."""
    unflatten(values.reshape(-1), [target])


def scaled(flat: Tensor, factor: float) -> Tensor:
    """flat x factor, float32; the argument is given up, and may hold the result."""
    if in_host_memory():
        values = host(flat)
        values *= np.float32(factor)
        return Tensor.from_numpy(values)
    return flat * factor  # Ascend: not verified


def squares(tensor: Tensor) -> float:
    """Sum of the squares of all elements; of float32, added up in float64 on CPU."""
    if in_host_memory():
        return float(_squares(host(tensor)))
    return float((tensor * tensor).sum().asnumpy())  # Ascend: not verified


# reassoc: terms may be added in any order, which lets the loop use vector registers.
@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
def _squares(values: Float32) -> np.float64:
    total = np.float64(0)
    for i in range(values.size):
        x = np.float64(values[i])  # float() would leave it in float32 here
        total += x * x
    return total
