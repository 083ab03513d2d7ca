"""Runs the optimizer on four ranks in many layouts and compares with float64 NumPy.

Each rank's gradients are drawn from a seed, so every rank knows what the sum over all of them is.
"""

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from tests.training.adamw_reference import Reference
from tests.training.optimizer_layouts import (
    CASES,
    Array,
    Case,
    cut,
    draw,
    holders,
    shapes,
    shares,
    take,
)
from tests.training.ranks import program
from training.comm import Comm, open_comm
from training.mesh import Mesh
from training.optimizer import Optimizer
from training.parallel import Layout
from training.pieces import Slice
from training.reduce import gather_numbers, step_totals
from training.sections import OptimizerConfig

STEPS, SAVED = 4, 2
CONFIG: dict[str, Any] = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.3}
REPEATED = "dp4 sharded"
RESTORED = [
    ("dp2 tp2 sharded float16", "dp2 tp2 sharded float16"),
    ("dp4 sharded", "pp2 tp2"),
    ("pp2 tp2", "dp4 sharded"),
]


class Run:
    """One rank's optimizer, and the reference of the whole."""

    def __init__(self, case: Case, rank: int, seed: int = 0) -> None:
        self.case, self.mesh = case, Mesh(case.pp, case.dp, case.tp, rank)
        self.comm = open_comm(self.mesh)
        dtype = getattr(ms, case.dtype)
        everything = {n: draw(n, s, seed) * np.float32(0.3) for n, s in shapes(case).items()}
        for name, x in everything.items():
            everything[name] = Tensor(x).astype(dtype).astype(ms.float32).asnumpy()
        own = shapes(case, self.mesh.pp_rank)
        slices = {name: cut(name, shape, self.mesh) for name, shape in own.items()}
        self.params = [
            Parameter(Tensor(take(everything[name], part)).astype(dtype), name=name)
            for name, part in slices.items()
        ]
        partial = frozenset(name for name in own if "norm" in name)
        layout, config = Layout(slices, partial), OptimizerConfig(offload=case.offload, **CONFIG)
        self.slices, self.reference = slices, Reference(everything, config)
        self.optimizer = Optimizer(
            self.params, config, self.mesh, self.comm, layout, case.shard, bucket_mib=1
        )
        self.norm_error = 0.0

    def step(self, t: int) -> None:
        case, mesh, share, rate = self.case, self.mesh, 0.01 * t, 0.05 / t
        own = []
        for name, part in self.slices.items():
            holder = mesh.tp_rank if "norm" in name else int(mesh.pp_rank > 0)
            several = holders(case, name)
            place = mesh.dp_rank * several + (holder if several > 1 else 0)
            own.append(Tensor(take(shares(case, name, t)[place], part)))
        norm = self.optimizer.reduce(own, share)
        self.held = self.optimizer.bytes()
        self.optimizer.update(rate, t, norm)
        sums = {
            name: np.sum(shares(case, name, t), axis=0, dtype=np.float64) * share
            for name in shapes(case)
        }
        expected = self.reference.step(sums, rate, t)
        self.norm_error = max(self.norm_error, abs(norm / expected - 1))

    def size(self) -> int:
        """Elements of this rank's weights."""
        return sum(p.size for p in self.params)

    def weights(self) -> list[Array]:
        return [p.astype(ms.float32).asnumpy().copy() for p in self.params]

    def errors(self) -> dict[str, float]:
        """The largest, of this rank's pieces and weights, against the reference."""
        found = {"w": 0.0, "m": 0.0, "v": 0.0, "norm": self.norm_error, "weights": 0.0}
        wholes = {"w": self.reference.w, "m": self.reference.m, "v": self.reference.v}
        for piece in self.optimizer.pieces():
            expected = take(wholes[piece.kind][piece.name], piece.slice).reshape(-1)
            distance = np.abs(piece.values() - expected[piece.first : piece.last]).max()
            found[piece.kind] = max(found[piece.kind], float(distance))
        for p, x in zip(self.params, self.weights(), strict=True):
            distance = np.abs(x - take(self.reference.w[p.name], self.slices[p.name])).max()
            found["weights"] = max(found["weights"], float(distance))
        return found


def save(run: Run, folder: Path) -> None:
    """A checkpoint of sorts: one file of values and one index a rank."""
    folder.mkdir(exist_ok=True)
    pieces = list(run.optimizer.pieces())
    index = [[p.kind, p.name, p.slice.axis, p.slice.start, p.slice.stop, p.first] for p in pieces]
    np.savez(folder / f"{run.mesh.rank}.npz", *[p.values() for p in pieces])
    (folder / f"{run.mesh.rank}.json").write_text(json.dumps(index))


def assemble(case: Case, folder: Path) -> tuple[dict[tuple[str, str], Array], int, int]:
    """The whole model's numbers by kind and name, and how often an element came: least and most."""
    wholes = {(k, n): np.zeros(s, np.float32) for k in "wmv" for n, s in shapes(case).items()}
    counts = {key: np.zeros(x.shape, int) for key, x in wholes.items()}
    for path in folder.glob("*.json"):
        values = np.load(path.with_suffix(".npz"))
        for i, (kind, name, axis, start, stop, first) in enumerate(json.loads(path.read_text())):
            places = np.arange(wholes[kind, name].size).reshape(wholes[kind, name].shape)
            own = take(places, Slice(places.shape, axis, start, stop)).reshape(-1)
            own = own[first : first + values[f"arr_{i}"].size]
            wholes[kind, name].reshape(-1)[own] = values[f"arr_{i}"]
            counts[kind, name].reshape(-1)[own] += 1
    every = np.concatenate([x.reshape(-1) for x in counts.values()])
    return wholes, int(every.min()), int(every.max())


def straight(name: str, rank: int, out: Path) -> tuple[Run, dict[str, Any]]:
    """Runs a case, saves it on the way, and compares it with the reference."""
    run = Run(CASES[name], rank)
    for t in range(1, STEPS + 1):
        run.step(t)
        if t == SAVED:
            save(run, out / name)
    gather_numbers(run.comm.world, [0])  # all have saved
    found: dict[str, Any] = {**run.errors(), "held": run.held, "size": run.size()}
    found["coverage"] = assemble(CASES[name], out / name)[1:]
    places = [f"{n} {p.axis} {p.start} {p.stop}" for n, p in run.slices.items()]
    found["weights_at"] = {k: x.tolist() for k, x in zip(places, run.weights(), strict=True)}
    return run, found


def restored(saved: str, name: str, rank: int, out: Path) -> tuple[Run, bool]:
    """Continues one case's checkpoint in another's layout; and whether it was read exactly."""
    wholes, *_ = assemble(CASES[saved], out / saved)
    run = Run(CASES[name], rank, seed=1)
    run.step(9)  # whatever was before is overwritten

    def read(kind: str, name: str, part: Slice, first: int, last: int) -> Array:
        return take(wholes[kind, name], part).reshape(-1)[first:last]

    run.optimizer.restore(read)
    exact = all(
        np.array_equal(p.values(), read(p.kind, p.name, p.slice, p.first, p.last))
        for p in run.optimizer.pieces()
    )
    for t in range(SAVED + 1, STEPS + 1):
        run.step(t)
    return run, exact


def distance(one: Run, other: Run) -> float:
    """The largest between their weights."""
    pairs = zip(one.weights(), other.weights(), strict=True)
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


def totals(comm: Comm) -> dict[str, Any]:
    """Sums of the loss, known on the last stage alone, and of large counts."""
    mesh = comm.mesh
    loss = 0.1 * (mesh.dp_rank + 1) if mesh.is_last_stage else 0.0
    numbers = gather_numbers(comm.world, [mesh.rank + 0.25, -1e300, float("nan"), 2.0**47 + 1])
    return {
        "sums": step_totals(comm, loss, 2**40 - 1 - mesh.dp_rank),
        "numbers": [[str(x) for x in row] for row in numbers],
    }


def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
    assert size == 4
    result: dict[str, Any] = {}
    runs = {}
    for name in CASES:
        runs[name], result[name] = straight(name, rank, out)
    again = Run(CASES[REPEATED], rank)
    for t in range(1, STEPS + 1):
        again.step(t)
    result["repeated"] = distance(again, runs[REPEATED])
    for saved, name in RESTORED:
        run, exact = restored(saved, name, rank, out)
        result[f"{saved} -> {name}"] = {"exact": exact, "distance": distance(run, runs[name])}
    for name in ("dp2 tp2", "pp4 frozen"):
        result[f"totals {name}"] = totals(runs[name].comm)
    return result


if __name__ == "__main__":
    program(main)
