"""The decoder: embedding, layers, final norm, head (the Llama family); or a part of it.

    input_ids [B, S] -> embedding [B, S, H] -> num_layers x block -> norm -> logits [B, S, V]
                                            |<- a part may begin or end here ->|

A token attends to itself and to earlier tokens of its own segment, so that the documents of a
packed row do not see one another. Parts are in layers.py, what makes them parallel in parallel.py.
"""

import zlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from training.layers import Block, Embedding, Linear, RMSNorm, attention_bias
from training.precision import Product
from training.sections import ModelConfig, Precision


class Decoder(nn.Cell):
    """A contiguous part of the model, by default all of it.

    Weights have their global names, whatever part this is: `layers.3.mlp.up_proj.weight` in a part
    that begins with layer 3 too. They are in `Parameter.name`; the Cells are numbered from 0.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        precision: Precision = Precision(),  # noqa: B008 (it is frozen)
        layers: range | None = None,
        embed: bool = True,
        head: bool = True,
    ) -> None:
        """vocab_size: the resolved one (the config's may be None).

        layers: numbers of the layers in the whole model; None: all.
        embed: begins with token ids; else with the residual stream of the part before.
        head: ends with logits; else with the residual stream. With a tied head and without the
            embedding, it holds a copy of that matrix.
        """
        super().__init__()
        self.layer_numbers = tuple(range(config.num_layers) if layers is None else layers)
        self.is_first, self.is_last = embed, head
        self.tied = config.tie_word_embeddings
        hidden = config.hidden_size
        if embed:
            self.embed_tokens = Embedding(vocab_size, hidden, precision)
            self.enter_stream = nn.Identity()
        self.layers = nn.CellList([Block(config, precision) for _ in self.layer_numbers])
        if head:
            self.norm = RMSNorm(hidden, config.rms_norm_eps, precision)
            self.enter_head = nn.Identity()
            if self.tied:
                self.head = Product(precision.compute_dtype, transpose_b=True)
            else:
                self.lm_head = Linear(hidden, vocab_size, precision)
            if self.tied and not embed:
                self.embed_tokens = Embedding(vocab_size, hidden, precision)
        size = hidden // config.num_heads
        frequencies = config.rope_theta ** (-np.arange(0, size, 2) / size)
        self.frequencies = Tensor(frequencies.astype(np.float32))  # radians per position, [D/2]
        self._name_layers()

    def _name_layers(self) -> None:
        for number, layer in zip(self.layer_numbers, self.layers):
            for weight in layer.get_parameters():
                name = weight.name.removeprefix("layers.").partition(".")[2]
                weight.name = f"layers.{number}.{name}"

    def rotary(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """int32 [B, S] -> cos and sin of RoPE's angles, float32 [B, 1, S, D/2]."""
        angles = (position_ids.astype(ms.float32)[:, :, None] * self.frequencies)[:, None]
        return ops.cos(angles), ops.sin(angles)

    def logits(self, x: Tensor) -> Tensor:
        """Residual stream after the last layer, [B, S, H] -> [B, S, V]."""
        x = self.enter_head(self.norm(x))
        if self.tied:
            flat = self.head(x.reshape(-1, x.shape[-1]), self.embed_tokens.matrix())
            return flat.reshape(x.shape[0], x.shape[1], -1)
        return self.lm_head(x)

    def construct(self, x: Tensor, position_ids: Tensor, segments: Tensor) -> Tensor:
        """x: token ids, int32 [B, S], or the residual stream, float32 [B, S, H].

        position_ids, segments: int32 [B, S]. Returns float32 logits [B, S, V], or the residual
        stream.
        """
        if self.is_first:
            x = self.enter_stream(self.embed_tokens(x))
        cos, sin = self.rotary(position_ids)
        bias = attention_bias(segments)
        for layer in self.layers:
            x = layer(x, cos, sin, bias)
        if self.is_last:
            return self.logits(x)
        return x


def initialize(model: nn.Cell, config: ModelConfig, seed: int) -> None:
    """Draws every matrix from N(0, initializer_range^2); norms stay at one.

    The projections that end a residual branch are divided by sqrt(2 x num_layers), so that the
    residual stream keeps its scale at any depth (GPT-2). Each weight has its own generator, seeded
    by its global name: it does not depend on which other weights exist.
    """
    for weight in model.get_parameters():
        if weight.ndim < 2:
            continue
        scale = config.initializer_range
        if "o_proj" in weight.name or "down_proj" in weight.name:
            scale /= (2 * config.num_layers) ** 0.5
        generator = np.random.default_rng([seed, zlib.crc32(weight.name.encode())])
        values = generator.standard_normal(weight.shape, np.float32) * np.float32(scale)
        weight.set_data(Tensor(values).astype(weight.dtype))
