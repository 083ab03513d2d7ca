"""A small model as a dictionary of tensors, cut by hand into the layouts of four ranks.

Used by programs/optimizer_cases.py.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from training.mesh import Mesh
from training.pieces import Slice

Array = npt.NDArray[Any]
VOCAB, HIDDEN, LAYERS = 11, 6, 4
EMBED = "embed_tokens.weight"
AXES = {EMBED: 0, "lm_head.weight": 0, "q.weight": 0, "o.weight": 1}


@dataclass(frozen=True)
class Case:
    """A layout of four ranks, and how the optimizer is kept."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    shard: bool = False
    dtype: str = "float32"
    offload: bool = False
    tied: bool = True
    frozen: tuple[str, ...] = ()


CASES = {
    "dp4 sharded": Case(dp=4, shard=True),
    "dp2 tp2": Case(dp=2, tp=2),
    "dp2 tp2 sharded float16": Case(dp=2, tp=2, shard=True, dtype="float16", offload=True),
    "pp2 dp2 sharded bfloat16": Case(pp=2, dp=2, shard=True, dtype="bfloat16"),
    "pp2 tp2": Case(pp=2, tp=2, offload=True),
    "pp4 frozen": Case(pp=4, tied=False, frozen=("layers.1.", "layers.2.")),
}


def shapes(case: Case, stage: int | None = None) -> dict[str, tuple[int, ...]]:
    """Of the trained tensors of a stage, or of the whole model."""
    found: dict[str, tuple[int, ...]] = {}
    last = stage is None or stage == case.pp - 1
    if stage in (None, 0) or (last and case.tied):
        found[EMBED] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        if stage is None or i * case.pp // LAYERS == stage:
            found[f"layers.{i}.q.weight"] = (8, HIDDEN)
            found[f"layers.{i}.o.weight"] = (HIDDEN, 8)
            found[f"layers.{i}.lora_a"] = (3, HIDDEN)
            found[f"layers.{i}.norm.weight"] = (HIDDEN,)
    if last:
        found["norm.weight"] = (HIDDEN,)
        if not case.tied:
            found["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: shape for name, shape in found.items() if not name.startswith(case.frozen)}


def cut(name: str, shape: tuple[int, ...], mesh: Mesh) -> Slice:
    axis = next((axis for end, axis in AXES.items() if name.endswith(end)), None)
    if axis is None or mesh.tp == 1:
        return Slice(shape)
    places = [shape[axis] * i // mesh.tp for i in range(mesh.tp + 1)]
    return Slice(shape, axis, places[mesh.tp_rank], places[mesh.tp_rank + 1])


def take(x: Array, part: Slice) -> Array:
    if part.axis is None:
        return x
    return np.ascontiguousarray(np.take(x, range(part.start, part.stop), part.axis))


def draw(name: str, shape: tuple[int, ...], *key: int) -> Array:
    rng = np.random.default_rng([zlib.crc32(name.encode()), *key])
    return rng.standard_normal(shape).astype(np.float32)


def holders(case: Case, name: str) -> int:
    """Ranks of one replica whose gradients of this name are parts of a sum."""
    if name == EMBED and case.tied and case.pp > 1:
        return 2
    return case.tp if "norm" in name else 1


def shares(case: Case, name: str, t: int) -> list[Array]:
    """What each replica and holder contributes; the sum is the same in all layouts."""
    shape, count = shapes(case)[name], case.dp * holders(case, name)
    parts = [draw(name, shape, t, i + 1) for i in range(count - 1)]
    return [*parts, draw(name, shape, t) - sum(parts, np.zeros(shape, np.float32))]
