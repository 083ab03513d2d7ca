"""Every collective of every group of several meshes, with gradients, for test_training_comm.py.

Arguments: meshes as pp,dp,tp. Results are named mesh/group/operation/mode.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from tests.training.ranks import program
from training import comm as talk
from training.comm import Comm, Edge, Group, open_comm
from training.mesh import Mesh

SHAPE = (8, 16, 3)  # axes 0 and 1 divide by 8 processes
SEAMS: dict[str, Callable[[Group], nn.Cell]] = {
    "Copy": talk.Copy,
    "Sum": talk.Sum,
    "Gather0": lambda group: talk.Gather(group, 0),
    "Gather1": lambda group: talk.Gather(group, 1),
    "Scatter0": lambda group: talk.Scatter(group, 0),
    "Scatter1": lambda group: talk.Scatter(group, 1),
    "Split1": lambda group: talk.Split(group, 1),
    "Join1": lambda group: talk.Join(group, 1),
    "Max": talk.Max,
}
WIDTH = 16
A_SEED, B_SEED, W_SEED, X_SEED = 21, 22, 23, 24


def numbers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 of both signs, which the test can make too."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def modes(size: int) -> list[str]:
    """Of gradients; 8 processes would compile for half a minute what 4 have shown."""
    return ["pynative", "graph"] if size < 8 else ["pynative"]


def own(rank: int) -> np.ndarray:
    """What a rank gives to each operation."""
    return numbers(rank, SHAPE)


def calls(group: Group, rank: int) -> dict[str, np.ndarray]:
    """The methods of a group."""
    x = Tensor(own(rank))
    last = group.size - 1
    made = {
        "all_reduce": group.all_reduce(x),
        "all_gather0": group.all_gather(x),
        "all_gather2": group.all_gather(x, 2),
        "reduce_scatter0": group.reduce_scatter(x),
        "reduce_scatter1": group.reduce_scatter(x, 1),
        "broadcast": group.broadcast(x, last),
        "maximum": group.maximum(x),
    }
    return {f"{name}/call": value.asnumpy() for name, value in made.items()}


class Block(nn.Cell):
    """relu(x A) B, of which each process holds columns of A and the same rows of B."""

    def __init__(self, group: Group, sequence: bool) -> None:
        super().__init__()
        part = WIDTH // group.size
        mine = slice(group.index * part, (group.index + 1) * part)
        self.a = ms.Parameter(Tensor(numbers(A_SEED, (3, WIDTH))[:, mine]))
        self.b = ms.Parameter(Tensor(numbers(B_SEED, (WIDTH, 3))[mine]))
        self.enter = talk.Gather(group, 1) if sequence else talk.Copy(group)
        self.leave = talk.Scatter(group, 1) if sequence else talk.Sum(group)
        self.split = talk.Split(group, 1) if sequence else nn.Identity()
        self.join = talk.Join(group, 1) if sequence else nn.Identity()

    def construct(self, x: Tensor) -> Tensor:
        x = self.split(x)
        for _ in range(2):  # the second gradient depends on the first one's way back
            x = x + self.leave(ops.matmul(ops.relu(ops.matmul(self.enter(x), self.a)), self.b))
        return self.join(x)


def gradients(group: Group, rank: int, mode: str) -> dict[str, np.ndarray]:
    """Outputs of all Cells in one function, and gradients of the sum of output * weights.

    Together, since each function takes a second to compile; and since Cells that do not depend on
    each other must not get each other's sums. Weights are numbers(100 + rank, shape of the
    output), or numbers(W_SEED, ...) for blocks, the same on all.
    """
    named = {name: (make(group), rank) for name, make in SEAMS.items()}
    named |= {
        "block": (Block(group, False), X_SEED),
        "sequence_block": (Block(group, True), X_SEED),
    }
    cells = nn.CellList([cell for cell, _ in named.values()])
    xs = tuple(Tensor(numbers(seed, SHAPE)) for _, seed in named.values())
    seeds = [W_SEED if "block" in name else 100 + rank for name in named]
    shapes = [cell(x).shape for cell, x in zip(cells, xs)]
    ws = tuple(Tensor(numbers(seed, shape)) for seed, shape in zip(seeds, shapes))

    def forward(*xs: Tensor) -> tuple[Tensor, list[Tensor]]:
        outs = [cell(x) for cell, x in zip(cells, xs)]
        loss = 0.0
        for out, w in zip(outs, ws):
            loss = loss + (out * w).sum()
        return loss, outs

    function = ms.value_and_grad(
        forward, tuple(range(len(xs))), cells.trainable_params(), has_aux=True
    )
    function = ms.jit(function) if mode == "graph" else function
    (_, outs), (dxs, dws) = function(*xs)
    made = {}
    for name, out, dx in zip(named, outs, dxs, strict=True):
        made |= {f"{name}/{mode}": out.asnumpy(), f"{name}.x/{mode}": dx.asnumpy()}
    names = [f"{block}.{w}/{mode}" for block in ("block", "sequence_block") for w in "ab"]
    return made | {name: dw.asnumpy() for name, dw in zip(names, dws, strict=True)}


def many(comm: Comm, rank: int) -> dict[str, np.ndarray]:
    """Independent sums in one compiled function must meet their own counterparts, always."""
    cells = nn.CellList([comm.world.cell("reduce"), comm.tp.cell("reduce"), comm.dp.cell("reduce")])

    def forward(x: Tensor) -> list[Tensor]:
        return [cells[i % 3](ops.matmul(x, x) * 0 + x + i) for i in range(12)]

    function = ms.jit(forward)
    x = Tensor(np.full((16, 16), 100 * rank, np.float32))
    runs = [np.stack([y.asnumpy()[0, 0] for y in function(x)]) for _ in range(5)]
    return {"many": np.stack(runs)}


def edges(comm: Comm, rank: int) -> dict[str, np.ndarray]:
    """A relay down the stages and up again; an exchange of two shapes with each neighbour."""
    made = {}
    x = Tensor(np.full((2, 3), 1 + rank, np.float32))
    if comm.previous is not None:
        x = x + comm.previous.receive((2, 3))
    if comm.next is not None:
        comm.next.send(x)
        made["relay.up"] = comm.next.receive((5,)).asnumpy()
    if comm.previous is not None:
        comm.previous.send(Tensor(np.full(5, rank, np.float32)))
    made["relay.down"] = x.asnumpy()
    down, up = (2, 4, 3), (7,)

    def trade(edge: Edge, gives: tuple[int, ...], gets: tuple[int, ...]) -> np.ndarray:
        return edge.exchange(Tensor(numbers(rank, gives)), gets).asnumpy()

    # Even stages talk downwards first, odd ones upwards.
    for is_down in (comm.mesh.pp_rank % 2 == 0, comm.mesh.pp_rank % 2 == 1):
        if is_down and comm.next is not None:
            made["exchange.next"] = trade(comm.next, down, up)
        if not is_down and comm.previous is not None:
            made["exchange.previous"] = trade(comm.previous, up, down)
    return made


def main(rank: int, size: int, out: Path, args: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {"seconds": []}
    for text in args:
        mesh = Mesh(*map(int, text.split(",")), rank)
        comm = open_comm(mesh)
        found: dict[str, np.ndarray] = {}
        for name in ("world", "tp", "dp", "ends"):
            group = getattr(comm, name)
            found |= {f"{name}/{key}": value for key, value in calls(group, rank).items()}
        for mode in modes(size):
            if comm.tp.size > 1:
                made = gradients(comm.tp, rank, mode)
                found |= {f"tp/{key}": value for key, value in made.items()}
        found |= many(comm, rank) | edges(comm, rank)
        results |= {f"{text}/{key}": value for key, value in found.items()}
        results["seconds"].append([comm.seconds, comm.take_seconds(), comm.seconds])
    return results


if __name__ == "__main__":
    program(main)
