"""The decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU (the Llama family).

    input_ids [B, S] -> embedding [B, S, H] -> num_layers x block -> norm -> logits [B, S, V]

A token attends to itself and to earlier tokens of its own segment, so that the documents of a
packed row do not see one another. Names and [out, in] shapes of the weights are those of Llama
checkpoints. Nothing here knows of several devices: head counts are read off the weights, so a
layer whose weights are sliced by heads computes its share.
"""

import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from training.config import ModelConfig
from training.precision import Product

# Added to the score of a forbidden pair: exp() of it is exactly 0, and no sum of it overflows.
FORBIDDEN = -1e9


class Linear(nn.Cell):
    """x @ weight^T: float32 [..., in] -> [..., out]."""

    def __init__(self, size_in: int, size_out: int, compute_dtype: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((size_out, size_in), np.float32)))
        self.product = Product(compute_dtype, transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        flat = self.product(x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


class RMSNorm(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32 (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(Tensor(np.ones(size, np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.mean(x * x, -1, True) + self.eps) * self.weight


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

    def __init__(self, config: ModelConfig, compute_dtype: str) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.head_size = hidden // config.num_heads
        self.scale = self.head_size**-0.5
        kv_size = config.n_kv_heads * self.head_size
        self.q_proj = Linear(hidden, hidden, compute_dtype)
        self.k_proj = Linear(hidden, kv_size, compute_dtype)
        self.v_proj = Linear(hidden, kv_size, compute_dtype)
        self.o_proj = Linear(hidden, hidden, compute_dtype)
        self.scores = Product(compute_dtype, transpose_b=True)
        self.mix = Product(compute_dtype)

    def heads(self, x: Tensor) -> Tensor:
        """[B, S, heads x D] -> [B, heads, S, D]."""
        return x.reshape(x.shape[0], x.shape[1], -1, self.head_size).transpose(0, 2, 1, 3)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        query = rotate(self.heads(self.q_proj(x)), cos, sin) * self.scale
        key = rotate(self.heads(self.k_proj(x)), cos, sin)
        value = self.heads(self.v_proj(x))
        batch, heads, length, size = query.shape
        # The query heads of a group are stacked along the sequence, [B, kv heads, group x S, D]:
        # keys and values need no copies.
        query = query.reshape(batch, key.shape[1], -1, size)
        scores = self.scores(query, key).reshape(batch, heads, length, length)
        # For CPU: a tiled copy and a plain addition take a sixth of a broadcasting addition's time,
        # and log_softmax has a gradient kernel, five times as fast as softmax's composed gradient.
        shares = ops.exp(ops.log_softmax(scores + ops.tile(bias, (1, heads, 1, 1)), -1))
        mixed = self.mix(shares.reshape(batch, key.shape[1], -1, length), value)
        mixed = mixed.reshape(batch, heads, length, size).transpose(0, 2, 1, 3)
        return self.o_proj(mixed.reshape(batch, length, -1))


class FeedForward(nn.Cell):
    """SwiGLU (arXiv:2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, compute_dtype: str) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, compute_dtype)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, compute_dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, compute_dtype)

    def construct(self, x: Tensor) -> Tensor:
        return self.down_proj(ops.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Cell):
    """One layer: attention and feed-forward, each normalized before and added to the residual."""

    def __init__(self, config: ModelConfig, compute_dtype: str) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, compute_dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config, compute_dtype)

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Embedding(nn.Cell):
    """int32 [B, S] -> float32 [B, S, H]."""

    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((vocab_size, size), np.float32)))

    def construct(self, input_ids: Tensor) -> Tensor:
        return ops.gather(self.weight, input_ids, 0)


class Decoder(nn.Cell):
    """The whole model; `vocab_size` is the resolved one (the config's may be None)."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, compute_dtype: str = "float32"
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(vocab_size, config.hidden_size)
        self.layers = nn.CellList([Block(config, compute_dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.tied = config.tie_word_embeddings
        if self.tied:
            self.head = Product(compute_dtype, transpose_b=True)
        else:
            self.lm_head = Linear(config.hidden_size, vocab_size, compute_dtype)
        size = config.hidden_size // config.num_heads
        frequencies = config.rope_theta ** (-np.arange(0, size, 2) / size)
        self.frequencies = Tensor(frequencies.astype(np.float32))  # radians per position, [D/2]

    def rotary(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """int32 [B, S] -> cos and sin of RoPE's angles, float32 [B, 1, S, D/2]."""
        angles = (position_ids.astype(ms.float32)[:, :, None] * self.frequencies)[:, None]
        return ops.cos(angles), ops.sin(angles)

    def logits(self, x: Tensor) -> Tensor:
        """Residual stream after the last layer, [B, S, H] -> [B, S, V]."""
        x = self.norm(x)
        if self.tied:
            flat = self.head(x.reshape(-1, x.shape[-1]), self.embed_tokens.weight)
            return flat.reshape(x.shape[0], x.shape[1], -1)
        return self.lm_head(x)

    def construct(self, input_ids: Tensor, position_ids: Tensor, segments: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        cos, sin = self.rotary(position_ids)
        bias = attention_bias(segments)
        for layer in self.layers:
            x = layer(x, cos, sin, bias)
        return self.logits(x)


def initialize(model: nn.Cell, config: ModelConfig, seed: int) -> None:
    """Draws every matrix from N(0, initializer_range^2); norms stay at one.

    The projections that end a residual branch are divided by sqrt(2 x num_layers), so that the
    residual stream keeps its scale at any depth (GPT-2). Each weight has its own generator, seeded
    by its name: it does not depend on which other weights exist.
    """
    for name, weight in model.parameters_and_names():
        if weight.ndim < 2:
            continue
        scale = config.initializer_range
        if "o_proj" in name or "down_proj" in name:
            scale /= (2 * config.num_layers) ** 0.5
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = generator.standard_normal(weight.shape, np.float32) * np.float32(scale)
        weight.set_data(Tensor(values))
