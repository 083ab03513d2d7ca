"""Parts of the decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU (the Llama family).

Names and [out, in] shapes of the weights are those of Llama checkpoints. Nothing here knows of
several devices. But head counts and widths are read off the weights, so that a layer with sliced
weights computes its share; and `enter` and `leave` stand before and after the matrices of a part,
do nothing, and can be replaced by what a share needs of the others.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from training.precision import DTYPES, Product, Round, Widen
from training.sections import ModelConfig, Precision

# Added to the score of a forbidden pair: exp() of it is exactly 0, and no sum of it overflows.
FORBIDDEN = -1e9


def weight_of(values: np.ndarray, precision: Precision) -> Parameter:
    """A weight, held in the dtype that the precision says."""
    return Parameter(Tensor(values.astype(np.float32)).astype(DTYPES[precision.param_init_type]))


class Linear(nn.Cell):
    """x @ weight^T: float32 [..., in] -> [..., out]."""

    def __init__(self, size_in: int, size_out: int, precision: Precision) -> None:
        super().__init__()
        self.weight = weight_of(np.zeros((size_out, size_in)), precision)
        self.is_narrow = precision.param_init_type != "float32"
        self.widen = Widen(precision.param_init_type)
        self.product = Product(precision.compute_dtype, transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        weight = self.widen(self.weight) if self.is_narrow else self.weight
        flat = self.product(x.reshape(-1, x.shape[-1]), weight)
        return flat.reshape(*x.shape[:-1], -1)


class Embedding(nn.Cell):
    """int32 [B, S] -> float32 [B, S, H]."""

    def __init__(self, vocab_size: int, size: int, precision: Precision) -> None:
        super().__init__()
        self.weight = weight_of(np.zeros((vocab_size, size)), precision)
        self.is_narrow = precision.param_init_type != "float32"
        self.widen = Widen(precision.param_init_type)

    def matrix(self) -> Tensor:
        """The weight, float32 [V, H]."""
        return self.widen(self.weight) if self.is_narrow else self.weight

    def construct(self, input_ids: Tensor) -> Tensor:
        return ops.gather(self.matrix(), input_ids, 0)


class RMSNorm(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32 (arXiv:1910.07467).

    A lower layernorm_compute_dtype rounds what enters and what leaves.
    """

    def __init__(self, size: int, eps: float, precision: Precision) -> None:
        super().__init__()
        self.eps = eps
        self.weight = weight_of(np.ones(size), precision)
        self.is_narrow = precision.param_init_type != "float32"
        self.widen = Widen(precision.param_init_type)
        self.rounded = precision.layernorm_compute_dtype != "float32"
        self.round = Round(precision.layernorm_compute_dtype)

    def construct(self, x: Tensor) -> Tensor:
        weight = self.widen(self.weight) if self.is_narrow else self.weight
        if self.rounded:
            x = self.round(x)
            return self.round(x * ops.rsqrt(ops.mean(x * x, -1, True) + self.eps) * weight)
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + self.eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE (arXiv:2104.09864) on pairs (i, i + D/2) of channels.

    x [B, heads, S, D], cos and sin [B, 1, S, D/2] -> [B, heads, S, D].
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return ops.concat((first * cos - second * sin, second * cos + first * sin), -1)


def attention_bias(segments: Tensor) -> Tensor:
    """int32 [B, S] -> float32 [B, 1, S, S]: 0 where row i may attend to column j, else FORBIDDEN.

    Allowed: j <= i, and the same segment.
    """
    order = ops.arange(segments.shape[1])
    causal = order[:, None] >= order[None, :]
    same = segments[:, :, None] == segments[:, None, :]
    allowed = ops.logical_and(causal, same).astype(ms.float32)
    return ((1.0 - allowed) * FORBIDDEN).expand_dims(1)


class Attention(nn.Cell):
    """Causal self-attention with grouped query heads (arXiv:2305.13245)."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.head_size = hidden // config.num_heads
        self.scale = self.head_size**-0.5
        kv_size = config.n_kv_heads * self.head_size
        self.q_proj = Linear(hidden, hidden, precision)
        self.k_proj = Linear(hidden, kv_size, precision)
        self.v_proj = Linear(hidden, kv_size, precision)
        self.o_proj = Linear(hidden, hidden, precision)
        self.scores = Product(precision.compute_dtype, transpose_b=True)
        self.mix = Product(precision.compute_dtype)
        self.rounded = precision.softmax_compute_dtype != "float32"
        self.round = Round(precision.softmax_compute_dtype)
        self.enter, self.leave = nn.Identity(), nn.Identity()

    def heads(self, x: Tensor) -> Tensor:
        """[B, S, heads x D] -> [B, heads, S, D]."""
        return x.reshape(x.shape[0], x.shape[1], -1, self.head_size).transpose(0, 2, 1, 3)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        x = self.enter(x)
        query = rotate(self.heads(self.q_proj(x)), cos, sin) * self.scale
        key = rotate(self.heads(self.k_proj(x)), cos, sin)
        value = self.heads(self.v_proj(x))
        batch, heads, length, size = query.shape
        # The query heads of a group are stacked along the sequence, [B, kv heads, group x S, D]:
        # keys and values need no copies.
        query = query.reshape(batch, key.shape[1], -1, size)
        scores = self.scores(query, key).reshape(batch, heads, length, length)
        shares = self.softmax(scores, bias)
        mixed = self.mix(shares.reshape(batch, key.shape[1], -1, length), value)
        mixed = mixed.reshape(batch, heads, length, size).transpose(0, 2, 1, 3)
        return self.leave(self.o_proj(mixed.reshape(batch, length, -1)))

    def softmax(self, scores: Tensor, bias: Tensor) -> Tensor:
        """[B, heads, S, S] -> what each row gives to each column; a lower dtype rounds both."""
        if self.rounded:  # before the bias, which is infinite in float16
            scores = self.round(scores)
        # For CPU: a tiled copy and a plain addition take a sixth of a broadcasting addition's time,
        # and log_softmax has a gradient kernel, five times as fast as softmax's composed gradient.
        scores = scores + ops.tile(bias, (1, scores.shape[1], 1, 1))
        shares = ops.exp(ops.log_softmax(scores, -1))
        return self.round(shares) if self.rounded else shares


class FeedForward(nn.Cell):
    """SwiGLU (arXiv:2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, precision)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, precision)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, precision)
        self.enter, self.leave = nn.Identity(), nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        return self.leave(self.down_proj(ops.silu(self.gate_proj(x)) * self.up_proj(x)))


class Block(nn.Cell):
    """One layer: attention and feed-forward, each normalized before and added to the residual."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, precision)
        self.self_attn = Attention(config, precision)
        self.post_attention_layernorm = RMSNorm(hidden, eps, precision)
        self.mlp = FeedForward(config, precision)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, bias)
        return x + self.mlp(self.post_attention_layernorm(x))
