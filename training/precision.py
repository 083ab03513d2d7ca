"""Lower precisions: where numbers are rounded, and what stays float32.

MindSpore has no bfloat16 product on CPU, so it is emulated: inputs are rounded to the compute
dtype, the product is made in float32, and its result is rounded. That is what accelerators do
inside, whose accumulators are float32. The gradient passes the same casts backwards, so it is
rounded at the same places; in float16 it may overflow there, which a loss scale is for.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}


class Round(nn.Cell):
    """float32 -> the nearest number of a dtype (ties to even), held in float32 again."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.rounded = dtype != "float32"
        self.dtype = DTYPES[dtype]

    def construct(self, x: Tensor) -> Tensor:
        if self.rounded:
            return x.astype(self.dtype).astype(ms.float32)
        return x


class Widen(nn.Cell):
    """A weight that is held in a dtype -> float32; its gradient is rounded to that dtype.

    A plain cast would do, but for a weight that is used twice, of whose bfloat16 gradients the
    compiler finds no sum on CPU.
    """

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.round = Round(dtype)

    def construct(self, weight: Tensor) -> Tensor:
        return weight.astype(ms.float32)

    def bprop(self, weight: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.round(dout),)


class Product(nn.Cell):
    """a @ b, or a @ b^T, over the last two axes.

    float32 [..., M, K] and [..., K, N] (transposed: [..., N, K]) -> float32 [..., M, N], with the
    same leading axes on both.
    """

    def __init__(self, compute_dtype: str, transpose_b: bool = False) -> None:
        super().__init__()
        self.rounded = compute_dtype != "float32"
        self.round = Round(compute_dtype)
        self.multiply = ops.BatchMatMul(transpose_b=transpose_b)

    def construct(self, a: Tensor, b: Tensor) -> Tensor:
        if self.rounded:
            return self.round(self.multiply(self.round(a), self.round(b)))
        return self.multiply(a, b)
