"""Weights to start from or to hand on, from whatever holds them.

    save_dir/step-00000040    a checkpoint of ours; save_dir itself: the newest in it
    a folder with config.json a Hugging Face folder of the Llama family, see hf.py
    x.safetensors             one file with our names, as `merge` writes it; the model section they
                              belong to is in its metadata

Adapters (LoRA) are merged into the matrices that they adapt. No MindSpore here.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from dataprep.errors import UserError
from dataprep.files import atomic_path, canonical_json
from training.checkpoint import STATE, Checkpoint, list_checkpoints, load_latest, open_checkpoint
from training.hf import CONFIG, export_llama, import_llama
from training.pieces import Float32, Kind, Slice
from training.relayout import Stored, Tensors
from training.sections import Dtype, Lora, ModelConfig
from training.shapes import parameter_shapes
from training.tensorfile import TensorFile, write_tensors

Section = TypeVar("Section", Lora, ModelConfig)
# In the metadata of a file: what is compared of the model section, as JSON.
MODEL = "mindprep.model"
# What weights do not depend on, or what their shapes tell as well.
UNCHECKED = {"vocab_size", "seq_length", "initializer_range"}


class Weights:
    """float32 weights by global name, adapters merged; on disk until they are read."""

    def __init__(
        self, tensors: Tensors, lora: Lora | None = None, model: Mapping[str, Any] | None = None
    ) -> None:
        """`model`: keys of the model section that they belong to; None where nobody told."""
        self._tensors, self._lora, self.model = tensors, lora, model
        self.source = tensors.source
        found = tensors.weights()
        adapters = {name for name in found if name.endswith((".lora_a", ".lora_b"))}
        if adapters and lora is None:
            raise UserError(f"{self.source} holds adapters, but not their rank and alpha")
        self._adapted = {f"{name.rpartition('.')[0]}.weight" for name in adapters}
        self.shapes = {name: shape for name, shape in found.items() if name not in adapters}

    def whole(self, name: str) -> Float32:
        """One weight, in its shape."""
        values = self._tensors.whole(name)
        if name in self._adapted:
            assert self._lora is not None
            prefix = name.removesuffix(".weight")
            a, b = (self._tensors.whole(f"{prefix}.lora_{end}") for end in "ab")
            values += self._lora.alpha / self._lora.rank * (b @ a)
        return values

    def read(self, kind: Kind, name: str, part: Slice, first: int, last: int) -> Float32:
        """A Read, see pieces.py. Raises UserError when a weight is missing or of another shape."""
        if name not in self._adapted:
            return self._tensors.read(kind, name, part, first, last)
        values = self.whole(name)
        if values.shape != part.shape:  # which says so
            return self._tensors.read(kind, name, part, first, last)
        if part.axis is not None:
            values = values[(slice(None),) * part.axis + (slice(part.start, part.stop),)]
        return values.reshape(-1)[first:last]


def open_weights(path: Path, model: ModelConfig | None = None) -> Weights:
    """Opens weights. Raises UserError when there are none, or they are of another `model`.

    Their shapes are checked when they are read.
    """
    if path.is_file():
        weights = _single(path)
    elif (path / CONFIG).is_file():
        weights = import_weights(path)
    else:
        weights = checkpoint_weights(find_checkpoint(path))
    if model is not None:
        _check_model(weights, model)
    return weights


def find_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, or the newest of a save_dir. Raises UserError when it is neither."""
    if (path / STATE).exists():
        return open_checkpoint(path)
    if list_checkpoints(path):
        found = load_latest(path)
        assert found is not None
        return found
    raise UserError(
        f"{path} is no checkpoint: give a folder step-..., a save_dir with some, a Hugging Face "
        "folder with config.json, or a .safetensors file"
    )


def checkpoint_weights(found: Checkpoint) -> Weights:
    """The weights of a checkpoint of ours."""
    return Weights(found.tensors, _section(found, "lora", Lora), found.state.config.get("model"))


def import_weights(folder: Path) -> Weights:
    """The weights of a Hugging Face folder."""
    model, tensors = import_llama(folder)
    return Weights(tensors, model=asdict(model))


def merge(weights: Weights, path: Path, dtype: Dtype = "float32") -> None:
    """Writes all weights into one safetensors file, one in memory at a time."""
    with atomic_path(path) as tmp:
        values = (weights.whole(name) for name in weights.shapes)
        told = {key: value for key, value in (weights.model or {}).items() if key not in UNCHECKED}
        metadata = {MODEL: canonical_json(told)} if told else {}
        write_tensors(tmp, list(weights.shapes.items()), values, dtype, metadata)


def export(found: Checkpoint, folder: Path, dtype: Dtype = "float32") -> None:
    """Writes a checkpoint as a Hugging Face folder."""
    weights = checkpoint_weights(found)
    values = (weights.whole(name) for name in weights.shapes)
    model = _section(found, "model", ModelConfig)
    if model is None:
        raise UserError(f"{found.path / STATE} is damaged: its config has no model")
    export_llama(folder, model, weights.shapes, values, found.state.seq_length, dtype)


def _section(found: Checkpoint, key: str, kind: type[Section]) -> Section | None:
    """A section of a checkpoint's config."""
    told = found.state.config.get(key)
    try:
        return None if told is None else kind(**told)
    except TypeError as e:
        raise UserError(f"{found.path / STATE} is damaged: config.{key}: {e}") from e


def _single(path: Path) -> Weights:
    file = TensorFile(path)
    sizes = {name: entry.shape for name, entry in file.entries.items() if prod(entry.shape)}
    whole = (Stored("w", name, Slice(s), 0, prod(s), file, name) for name, s in sizes.items())
    return Weights(Tensors(path, whole), model=_told(file))


def _told(file: TensorFile) -> dict[str, Any] | None:
    """The model section in the metadata of a file, if there is one."""
    if MODEL not in file.metadata:
        return None
    try:
        told = json.loads(file.metadata[MODEL])
    except (ValueError, RecursionError) as e:
        raise UserError(f"{file.path} is damaged: its model is not valid JSON ({e})") from e
    if not isinstance(told, dict):
        raise UserError(f"{file.path} is damaged: its model has no keys")
    return told


def _check_model(weights: Weights, model: ModelConfig) -> None:
    """Raises UserError unless they fit; shapes, and what is missing, are told when one is read."""
    ours = asdict(model)
    theirs = ours if weights.model is None else weights.model
    for key, value in ours.items():
        if key not in UNCHECKED and theirs.get(key) != value:
            raise UserError(
                f"model.{key} is {value}, but {weights.source} was made with {theirs.get(key)}; "
                "make the model section agree with it"
            )
    known = parameter_shapes(model, 1).keys()
    if unknown := sorted(weights.shapes.keys() - known):
        raise UserError(
            f"{weights.source} has weights that this model has not, {unknown[0]} for one; make the "
            "model section agree with it"
        )
