"""Folders of the Llama family as Hugging Face lays them out, in and out.

    config.json                     sizes, rms_norm_eps, rope_theta, tie_word_embeddings
    model.safetensors               "model." + our names, and lm_head.weight unless tied
    model.safetensors.index.json    for a model in several files: which holds what

Shapes are [out, in] on both sides, and RoPE turns the pairs (i, i + D/2) on both, so the numbers
are the same ones. What our decoder does not compute, such as biases or scaled RoPE, is refused.
No MindSpore here.
"""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

from dataprep.errors import UserError
from dataprep.files import atomic_path, read_json, write_json
from training.pieces import Float32, Slice
from training.relayout import Stored, Tensors
from training.sections import Dtype, ModelConfig
from training.shapes import HEAD, parameter_shapes
from training.tensorfile import TensorFile, write_tensors

CONFIG = "config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# What must have this value when it is there.
ONLY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
SIZES = {
    "vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
MAX_SIZE = 1 << 32  # of any of these: beyond, it is a mistake
MAX_LAYERS = 10_000


def export_llama(
    folder: Path,
    model: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    values: Iterable[Float32],
    seq_length: int,
    dtype: Dtype = "float32",
) -> None:
    """Writes a folder that `transformers` opens; config.json comes last.

    `shapes` by our names, `values` in the same order, one in memory at a time. Raises UserError
    when the folder is not empty or cannot be written. The tokenizer's files are not part of it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; give a new folder")
    tensors = [(theirs(name), shape) for name, shape in shapes.items()]
    with atomic_path(folder / SINGLE) as tmp:
        write_tensors(tmp, tensors, values, dtype)
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{name: value for name, value in ONLY.items() if value is not None},
        **{name: getattr(model, key) for key, name in SIZES.items()},
        "vocab_size": shapes["embed_tokens.weight"][0],
        "max_position_embeddings": seq_length,
        "num_key_value_heads": model.n_kv_heads,
        "head_dim": model.hidden_size // model.num_heads,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tie_word_embeddings,
        "initializer_range": model.initializer_range,
        "bos_token_id": None,  # the tokenizer's matter, which is not here
        "eos_token_id": None,
        "torch_dtype": dtype,
    }
    write_json(folder / CONFIG, config)


def theirs(name: str) -> str:
    """Hugging Face's name of a weight of ours."""
    return name if name == HEAD else f"model.{name}"


def import_llama(folder: Path) -> tuple[ModelConfig, Tensors]:
    """The `model` section and the weights of a folder, which stay on disk until they are read.

    Raises UserError when it is of a model that our decoder is not, damaged, or not complete.
    """
    path = folder / CONFIG
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no keys")
    model = _model(path, content)
    assert model.vocab_size is not None
    shapes = parameter_shapes(model, model.vocab_size)
    return model, Tensors(folder, _pieces(folder, shapes))


def _model(path: Path, content: dict[str, Any]) -> ModelConfig:
    """The config, checked to be of a model like ours."""
    for key, only in ONLY.items():
        if content.get(key, only) != only and not (key == "rope_scaling" and _plain(content[key])):
            raise UserError(f"{path}: {key} is {content[key]!r:.80}; only {only!r} can be imported")
    sizes = {key: _size(path, content, name) for key, name in SIZES.items()}
    if sizes["num_layers"] > MAX_LAYERS:
        raise UserError(f"{path}: num_hidden_layers is {sizes['num_layers']}; that is a mistake")
    heads = sizes["num_heads"]
    kv = _size(path, content, "num_key_value_heads", heads)
    head_size = _size(path, content, "head_dim", sizes["hidden_size"] // heads)
    if head_size * heads != sizes["hidden_size"]:
        raise UserError(
            f"{path}: head_dim is {head_size} with {heads} heads and hidden_size "
            f"{sizes['hidden_size']}; only hidden_size / heads can be imported"
        )
    rope = content.get("rope_parameters") or {}
    if not isinstance(rope, dict) or not _plain(rope):
        raise UserError(f"{path}: rope_parameters is {rope!r:.80}; only plain RoPE can be imported")
    theta = rope.get("rope_theta", content.get("rope_theta", 10000.0))
    tied = content.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise UserError(f"{path}: tie_word_embeddings is {tied!r:.80}; it must be true or false")
    eps = _number(path, "rms_norm_eps", content.get("rms_norm_eps", 1e-6))
    base = _number(path, "rope_theta", theta)
    try:
        return ModelConfig(
            **sizes, n_kv_heads=kv, rms_norm_eps=eps, rope_theta=base, tie_word_embeddings=tied
        )
    except UserError as e:
        raise UserError(f"{path}: {e}") from e


def _plain(rope: Any) -> bool:
    """Whether RoPE's parameters say no more than its base."""
    if not isinstance(rope, dict):
        return rope is None
    kind = rope.get("rope_type", rope.get("type", "default"))
    whole = rope.get("partial_rotary_factor", 1.0) == 1.0
    return whole and kind == "default"


def _size(path: Path, content: dict[str, Any], key: str, default: int | None = None) -> int:
    value = content.get(key)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < MAX_SIZE:
        raise UserError(f"{path}: {key} is {value!r:.80}; it must be a whole number above 0")
    return value


def _number(path: Path, key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e30:
        raise UserError(f"{path}: {key} is {value!r:.80}; it must be a number above 0")
    return float(value)


def _pieces(folder: Path, shapes: dict[str, tuple[int, ...]]) -> Iterator[Stored]:
    """Each weight, whole, in the file that has it."""
    places = _files(folder)
    wanted = {theirs(name) for name in shapes}
    # Tables of RoPE that older versions stored, and the copy of a tied head, say nothing new.
    idle = {name for name in places if name.endswith("rotary_emb.inv_freq")} | {HEAD}
    if extra := sorted(places.keys() - wanted - idle):
        raise UserError(
            f"{folder} holds {extra[0]}{f' and {len(extra) - 1} more' * (len(extra) > 1)}, which "
            "a plain Llama model has not; only such models can be imported"
        )
    for name, shape in shapes.items():
        file = places.get(theirs(name))
        entry = file.entries.get(theirs(name)) if file else None
        if file is None or entry is None:
            raise UserError(f"{folder} holds no {theirs(name)}; give the whole model")
        if entry.shape != shape:
            raise UserError(
                f"{file.path}: {theirs(name)} is {list(entry.shape)}, but {CONFIG} makes it "
                f"{list(shape)}"
            )
        yield Stored("w", name, Slice(shape), 0, prod(shape), file, theirs(name))


def _files(folder: Path) -> dict[str, TensorFile]:
    """Which file holds which tensor. A name in the index never leads out of the folder."""
    if not (folder / INDEX).exists():
        file = TensorFile(folder / SINGLE)
        return dict.fromkeys(file.entries, file)
    content = read_json(folder / INDEX)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise UserError(f"{folder / INDEX} is damaged: its weight_map names no files")
    files = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or "\0" in name or not name.endswith(".safetensors"):
            raise UserError(
                f"{folder / INDEX}: {name!r:.80} is no name of a .safetensors file in the same "
                "folder"
            )
        files[name] = TensorFile(folder / name)
    return {tensor: files[name] for tensor, name in places.items()}
