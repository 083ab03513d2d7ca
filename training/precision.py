"""Matrix products in the compute dtype, accumulated in float32.

MindSpore has no bfloat16 product on CPU, so it is emulated: inputs are rounded to bfloat16, the
product is made in float32, and its result is rounded. That is what accelerators do inside, whose
accumulators are float32. The gradient passes the same casts backwards, so it is rounded at the
same places.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops


def round_bfloat16(x: Tensor) -> Tensor:
    """float32 -> the nearest bfloat16 (ties to even), held in float32 again."""
    return x.astype(ms.bfloat16).astype(ms.float32)


class Product(nn.Cell):
    """a @ b, or a @ b^T, over the last two axes.

    float32 [..., M, K] and [..., K, N] (transposed: [..., N, K]) -> float32 [..., M, N], with the
    same leading axes on both.
    """

    def __init__(self, compute_dtype: str, transpose_b: bool = False) -> None:
        super().__init__()
        self.rounded = compute_dtype == "bfloat16"
        self.multiply = ops.BatchMatMul(transpose_b=transpose_b)

    def construct(self, a: Tensor, b: Tensor) -> Tensor:
        if self.rounded:
            return round_bfloat16(self.multiply(round_bfloat16(a), round_bfloat16(b)))
        return self.multiply(a, b)
