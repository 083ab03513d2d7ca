"""Names and shapes of the decoder's weights, and how they are divided, without making them.

    embed_tokens.weight                          [V, H]     axis 0
    layers.i.input_layernorm.weight              [H]        whole
            .self_attn.{q,k,v}_proj.weight       [out, H]   axis 0, by heads
            .self_attn.o_proj.weight             [H, H]     axis 1
            .post_attention_layernorm.weight     [H]        whole
            .mlp.{gate,up}_proj.weight           [F, H]     axis 0
            .mlp.down_proj.weight                [H, F]     axis 1
    norm.weight                                  [H]        whole
    lm_head.weight, unless tied                  [V, H]     axis 0

An adapted matrix [out, in] has lora_a [r, in] and lora_b [out, r] beside it, divided along the
axis that they share with it. (Megatron-LM, arXiv:1909.08053, section 3.) No MindSpore here.
"""

from collections.abc import Iterable

from training.sections import Lora, ModelConfig

Shape = tuple[int, ...]
EMBEDDING, HEAD, NORM = "embed_tokens.weight", "lm_head.weight", "norm.weight"
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROWS = ("o_proj", "down_proj")


def layer_shapes(config: ModelConfig, layer: int, lora: Lora | None = None) -> dict[str, Shape]:
    """Weights of one layer, in the order of the model's."""
    hidden, inner = config.hidden_size, config.intermediate_size
    kv = config.n_kv_heads * (hidden // config.num_heads)
    parts: dict[str, dict[str, Shape]] = {
        "input_layernorm": {"": (hidden,)},
        "self_attn.": {
            "q_proj": (hidden, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, hidden),
        },
        "post_attention_layernorm": {"": (hidden,)},
        "mlp.": {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        },
    }
    shapes = {}
    for part, matrices in parts.items():
        for name, shape in matrices.items():
            prefix = f"layers.{layer}.{part}{name}"
            shapes[f"{prefix}.weight"] = shape
            if lora is not None and name in lora.targets:
                shapes[f"{prefix}.lora_a"] = (lora.rank, shape[1])
                shapes[f"{prefix}.lora_b"] = (shape[0], lora.rank)
    return shapes


def parameter_shapes(
    config: ModelConfig,
    vocab_size: int,
    lora: Lora | None = None,
    layers: Iterable[int] | None = None,
    embed: bool = True,
    head: bool = True,
) -> dict[str, Shape]:
    """Weights of the decoder, or of a part of it, by global name, in the order of the model's.

    A part that has the head without the embedding holds a tied matrix of its own.
    """
    vocabulary = (vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {EMBEDDING: vocabulary} if embed else {}
    for layer in range(config.num_layers) if layers is None else layers:
        shapes |= layer_shapes(config, layer, lora)
    if head:
        shapes[NORM] = (config.hidden_size,)
        if not config.tie_word_embeddings:
            shapes[HEAD] = vocabulary
        elif not embed:
            shapes[EMBEDDING] = vocabulary
    return shapes


def split_axis(name: str) -> int | None:
    """Along which axis tensor parallelism divides a weight; None: it does not."""
    if name in (EMBEDDING, HEAD):
        return 0
    matrix, kind = name.split(".")[-2:]
    if matrix in COLUMNS:
        return None if kind == "lora_a" else 0
    if matrix in ROWS:
        return None if kind == "lora_b" else 1
    return None


def split_range(total: int, parts: int, index: int) -> tuple[int, int]:
    """Start and stop of part `index` of range(total); the first parts have one more, if any."""
    length, longer = divmod(total, parts)
    start = index * length + min(index, longer)
    return start, start + length + (index < longer)


def local_shape(name: str, shape: Shape, parts: int, index: int) -> Shape:
    """Shape of the part of a weight that partner `index` of `parts` holds."""
    axis = split_axis(name)
    if axis is None:
        return shape
    start, stop = split_range(shape[axis], parts, index)
    return (*shape[:axis], stop - start, *shape[axis + 1 :])
