"""A rank's part of a checkpoint: its pieces in a safetensors file, and an index that tells of them.

    rank-00003.safetensors    float32, flat, one tensor a piece; absent when the rank has none
    rank-00003.json           {"save": ..., "file": SHA-256 or null, "pieces": [
                                {"key": "m.norm.weight:7", "kind": "m", "name": "norm.weight",
                                 "shape": [64], "axis": null, "start": 0, "stop": 0,
                                 "first": 0, "last": 64}, ...]}

The index is written last and is the rank's receipt. `save` is the fingerprint of the state that
the checkpoint is of, so that a receipt of another save is not taken for one of this.
"""

import json
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, get_args

from dataprep.errors import UserError
from dataprep.files import TMP, read_json, sync
from training.pieces import Float32, Kind, Piece, Slice
from training.relayout import Stored
from training.tensorfile import MAX_ELEMENTS, TensorFile, is_sizes, write_tensors

FIELDS = {"key", "kind", "name", "shape", "axis", "start", "stop", "first", "last"}


def index_name(rank: int) -> str:
    """File name of a rank's index."""
    return f"rank-{rank:05d}.json"


def tensors_name(rank: int) -> str:
    """File name of a rank's tensors."""
    return f"rank-{rank:05d}.safetensors"


def write_rank(
    folder: Path, rank: int, save: str, pieces: Sequence[Piece], values: Sequence[Float32] | None
) -> None:
    """Writes a rank's files and flushes them to disk; the index appears last.

    `values`: of the pieces, copied before; None: they are asked for here, one at a time.
    """
    told = [_told(i, piece) for i, piece in enumerate(pieces)]
    digest = None
    if pieces:
        path = folder / tensors_name(rank)
        sizes = [(one["key"], (one["last"] - one["first"],)) for one in told]
        arrays = (piece.values() for piece in pieces) if values is None else values
        digest = write_tensors(path, sizes, arrays)
        sync(path)
    index = folder / index_name(rank)
    tmp = index.with_name(index.name + TMP)
    text = json.dumps({"save": save, "file": digest, "pieces": told}, ensure_ascii=False)
    tmp.write_text(text + "\n", encoding="utf-8")
    sync(tmp)
    # The last thing done here: as soon as rank 0 sees it, it may rename the folder.
    os.replace(tmp, index)


def _told(i: int, piece: Piece) -> dict[str, Any]:
    part = piece.slice
    return {
        "key": f"{piece.kind}.{piece.name}:{i}",
        "kind": piece.kind,
        "name": piece.name,
        "shape": list(part.shape),
        "axis": part.axis,
        "start": part.start,
        "stop": part.stop,
        "first": piece.first,
        "last": piece.last,
    }


def read_index(path: Path) -> dict[str, Any]:
    """An index whose pieces are possible. Raises UserError when it is damaged."""
    content = read_json(path)
    if not isinstance(content, dict) or content.keys() != {"save", "file", "pieces"}:
        raise UserError(f"{path} is damaged: it has other keys than save, file and pieces")
    if not isinstance(content["pieces"], list):
        raise UserError(f"{path} is damaged: its pieces are no list")
    for i, told in enumerate(content["pieces"]):
        if not _possible(told):
            raise UserError(f"{path} is damaged: piece {i} is {str(told):.200}")
    return content


def _possible(told: Any) -> bool:
    """Whether this is a non-empty flat range of a slice of a tensor."""
    if not isinstance(told, dict) or told.keys() != FIELDS or not is_sizes(told["shape"]):
        return False
    texts = all(isinstance(told[key], str) for key in ("key", "kind", "name"))
    if not texts or told["kind"] not in get_args(Kind):
        return False
    shape, axis = told["shape"], told["axis"]
    bounds = [told[key] for key in ("start", "stop", "first", "last")]
    if not is_sizes(bounds) or not 0 < prod(shape) <= MAX_ELEMENTS:
        return False
    start, stop, first, last = bounds
    if axis is not None:
        fits = type(axis) is int and 0 <= axis < len(shape) and start < stop <= shape[axis]
        if not fits:
            return False
    return bool(first < last <= slice_of(told).size)


def slice_of(told: dict[str, Any]) -> Slice:
    """The slice that a piece of an index is of."""
    return Slice(tuple(told["shape"]), told["axis"], told["start"], told["stop"])


def read_rank(folder: Path, rank: int) -> list[Stored]:
    """The pieces of a rank. Raises UserError when index and tensors disagree."""
    path = folder / index_name(rank)
    content = read_index(path)
    if not content["pieces"]:
        return []
    file = TensorFile(folder / tensors_name(rank))
    found = []
    for told in content["pieces"]:
        key, first, last = told["key"], told["first"], told["last"]
        entry = file.entries.get(key)
        if entry is None or entry.code != "F32" or entry.shape != (last - first,):
            raise UserError(
                f"{path} is damaged: {file.path} holds no float32 [{last - first}] {key}"
            )
        found.append(Stored(told["kind"], told["name"], slice_of(told), first, last, file, key))
    return found
