"""Collectives against NumPy, on 2, 4 and 8 processes, with gradients, compiled and not."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.training.programs.collectives import (
    A_SEED,
    B_SEED,
    SHAPE,
    W_SEED,
    WIDTH,
    X_SEED,
    modes,
    numbers,
    own,
)
from tests.training.programs.collectives import SEAMS as PROGRAM_SEAMS
from tests.training.ranks import Result, run_ranks
from training.comm import open_comm
from training.mesh import Mesh

Array = npt.NDArray[np.float32]
MESHES = {
    2: ["1,1,2", "2,1,1"],
    4: ["1,2,2", "4,1,1"],
    8: ["2,2,2"],
}


MANY = [pytest.param(n, marks=pytest.mark.parity) for n in (2, 4, 8)]


@pytest.fixture(scope="module", params=MANY, ids=lambda n: f"{n} processes")
def ran(request: pytest.FixtureRequest) -> list[Result]:
    """The results of every rank of one launch for all meshes of a size."""
    return run_ranks("collectives", request.param, *MESHES[request.param])


def meshes(ran: list[Result]) -> Iterator[tuple[str, Mesh, Result]]:
    """Every mesh as seen by every rank, and what that rank got in it."""
    for text in MESHES[len(ran)]:
        for rank, result in enumerate(ran):
            prefix = text + "/"
            found = {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}
            yield text, Mesh(*map(int, text.split(",")), rank), found


def groups_of(mesh: Mesh) -> dict[str, list[int]]:
    """The ranks of every group, from the definition of the grid."""
    outer = mesh.pp_rank in (0, mesh.pp - 1)
    stages = [mesh.rank_at(p, mesh.dp_rank, mesh.tp_rank) for p in (0, mesh.pp - 1)]
    return {
        "world": list(range(mesh.size)),
        "tp": mesh.tp_group(),
        "dp": mesh.dp_group(),
        "ends": sorted(set(stages)) if outer else [mesh.rank],
    }


def own_part(x: Array, parts: int, index: int, axis: int) -> Array:
    return np.split(x, parts, axis)[index]


def close(a: Array, b: Array) -> None:
    """Equal but for the order in which a few float32 numbers are added."""
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_groups_against_numpy(ran: list[Result]) -> None:
    for text, mesh, found in meshes(ran):
        for name, ranks in groups_of(mesh).items():
            size, index = len(ranks), ranks.index(mesh.rank)
            given = [own(rank) for rank in ranks]
            total = np.sum(given, axis=0)
            exact = {
                "all_gather0": np.concatenate(given, 0),
                "all_gather2": np.concatenate(given, 2),
                "broadcast": given[-1],
                "maximum": np.max(given, axis=0),
            }
            for call, wanted in exact.items():
                np.testing.assert_array_equal(
                    found[f"{name}/{call}/call"], wanted, f"{text} {name} {call}"
                )
            close(found[f"{name}/all_reduce/call"], total)
            for axis in (0, 1):
                part = own_part(total, size, index, axis)
                close(found[f"{name}/reduce_scatter{axis}/call"], part)


def test_a_sum_is_the_same_to_the_bit_on_all(ran: list[Result]) -> None:
    """Weights that are updated by it must not drift apart."""
    for text in MESHES[len(ran)]:
        first = ran[0][f"{text}/world/all_reduce/call"]
        for result in ran:
            np.testing.assert_array_equal(result[f"{text}/world/all_reduce/call"], first)


Forward = Callable[[list[Array], int], Array]
PARTS: dict[str, Forward] = {
    "sum": lambda xs, i: np.sum(xs, axis=0),
    "own": lambda xs, i: xs[i],
    "max": lambda xs, i: np.max(xs, axis=0),
    "zero": lambda xs, i: np.zeros_like(xs[i]),
    "gather0": lambda xs, i: np.concatenate(xs, 0),
    "gather1": lambda xs, i: np.concatenate(xs, 1),
    "scatter0": lambda xs, i: own_part(np.sum(xs, axis=0), len(xs), i, 0),
    "scatter1": lambda xs, i: own_part(np.sum(xs, axis=0), len(xs), i, 1),
    "part1": lambda xs, i: own_part(xs[i], len(xs), i, 1),
}
SEAMS = {
    "Copy": ("own", "sum"),
    "Sum": ("sum", "own"),
    "Gather0": ("gather0", "scatter0"),
    "Gather1": ("gather1", "scatter1"),
    "Scatter0": ("scatter0", "gather0"),
    "Scatter1": ("scatter1", "gather1"),
    "Split1": ("part1", "gather1"),
    "Join1": ("gather1", "part1"),
    "Max": ("max", "zero"),
}


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_seams_against_numpy(ran: list[Result], mode: str) -> None:
    """Forward as the table says, and backward: the gradient of sum(out * w) comes in as w."""
    for _, mesh, found in meshes(ran):
        if mesh.tp == 1 or mode not in modes(mesh.size):
            continue
        ranks, index = mesh.tp_group(), mesh.tp_rank
        for seam, (there, back) in SEAMS.items():
            out = found[f"tp/{seam}/{mode}"]
            close(out, PARTS[there]([own(rank) for rank in ranks], index))
            weights = [numbers(100 + rank, out.shape) for rank in ranks]
            close(found[f"tp/{seam}.x/{mode}"], PARTS[back](weights, index))


def residual_blocks(x: Array, a: Array, b: Array) -> Array:
    """x + relu(x A) B, twice, in float64."""
    for _ in range(2):
        x = x + np.maximum(x @ a, 0) @ b
    return x


def slope(values: dict[str, Array], name: str, place: tuple[int, ...]) -> float:
    """Of sum(out * w) along one number, by a central difference in float64."""
    step, w = 1e-6, numbers(W_SEED, SHAPE).astype(np.float64)
    sides = []
    for sign in (1, -1):
        moved = {**values, name: values[name].copy()}
        moved[name][place] += sign * step
        sides.append(float((residual_blocks(**moved) * w).sum()))
    return (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("mode", ["pynative", "graph"])
@pytest.mark.parametrize("kind", ["block", "sequence_block"])
def test_a_divided_block_has_the_gradients_of_the_whole(
    ran: list[Result], kind: str, mode: str
) -> None:
    """Tensor and sequence parallelism in small, against finite differences of the whole."""
    shapes = {"x": (X_SEED, SHAPE), "a": (A_SEED, (3, WIDTH)), "b": (B_SEED, (WIDTH, 3))}
    whole = {k: numbers(seed, shape).astype(np.float64) for k, (seed, shape) in shapes.items()}
    out = residual_blocks(**whole)
    places = {k: [np.unravel_index(7 * i, v.shape) for i in range(5)] for k, v in whole.items()}
    slopes = {(k, p): slope(whole, k, p) for k, at in places.items() for p in at}
    for _, mesh, found in meshes(ran):
        if mesh.tp == 1 or mode not in modes(mesh.size):
            continue
        parts = {k: found[f"tp/{kind}.{k}/{mode}"] for k in shapes}
        divided = found[f"tp/{kind}/{mode}"]
        np.testing.assert_allclose(divided, out, rtol=1e-4, atol=1e-4)
        mine = slice(*(WIDTH // mesh.tp * (mesh.tp_rank + i) for i in (0, 1)))
        held = {k: np.full(v.shape, np.nan) for k, v in whole.items()}
        held["x"], held["a"][:, mine], held["b"][mine] = (parts[k] for k in "xab")
        for (k, place), wanted in slopes.items():
            got = held[k][place]
            assert np.isnan(got) or got == pytest.approx(wanted, rel=1e-4, abs=1e-3)
        assert all(parts[k].size == whole[k].size // mesh.tp for k in "ab")


def test_independent_sums_of_a_compiled_function_do_not_mix(ran: list[Result]) -> None:
    for _, mesh, found in meshes(ran):
        groups = groups_of(mesh)
        for i in range(12):
            ranks = groups[("world", "tp", "dp")[i % 3]]
            wanted = sum(100 * rank + i for rank in ranks)
            assert (found["many"][:, i] == wanted).all()


def test_stages_relay_and_exchange(ran: list[Result]) -> None:
    for _, mesh, found in meshes(ran):
        stages, at = mesh.pp_group(), mesh.pp_rank
        above = sum(1 + rank for rank in stages[: at + 1])
        np.testing.assert_array_equal(found["relay.down"], np.full((2, 3), above))
        assert ("relay.up" in found) == ("exchange.next" in found) == (at < mesh.pp - 1)
        assert ("exchange.previous" in found) == (at > 0)
        if at < mesh.pp - 1:
            below = stages[at + 1]
            np.testing.assert_array_equal(found["relay.up"], np.full(5, below))
            np.testing.assert_array_equal(found["exchange.next"], numbers(below, (7,)))
        if at > 0:
            wanted = numbers(stages[at - 1], (2, 4, 3))
            np.testing.assert_array_equal(found["exchange.previous"], wanted)


def test_seconds_are_counted_and_taken(ran: list[Result]) -> None:
    for result in ran:
        for before, taken, after in result["seconds"]:
            assert before == taken > 0 == after


def test_one_process_needs_no_other() -> None:
    from mindspore import Tensor

    comm = open_comm(Mesh())
    assert comm.previous is comm.next is None
    x = own(0)
    for group in (comm.world, comm.tp, comm.dp, comm.ends):
        assert (group.ranks, group.index, group.size) == ((0,), 0, 1)
        calls = (group.all_reduce, group.all_gather, group.reduce_scatter, group.maximum)
        for call in (*calls, group.broadcast):
            np.testing.assert_array_equal(call(Tensor(x)).asnumpy(), x)
    assert comm.seconds == 0.0


@pytest.mark.parametrize("seam", PROGRAM_SEAMS)
def test_seams_of_one_process_change_nothing(seam: str) -> None:
    import mindspore as ms

    cell = PROGRAM_SEAMS[seam](open_comm(Mesh()).tp)
    x, w = ms.Tensor(own(0)), ms.Tensor(numbers(1, SHAPE))

    def forward(x: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        out = cell(x)
        return (out * w).sum(), out

    (_, out), dx = ms.value_and_grad(forward, 0, None, has_aux=True)(x)
    np.testing.assert_array_equal(out.asnumpy(), own(0))
    np.testing.assert_array_equal(dx.asnumpy(), numbers(1, SHAPE) * (seam != "Max"))


def test_a_mesh_of_other_processes_is_refused() -> None:
    with pytest.raises(AssertionError):
        open_comm(replace(Mesh(), dp=2))
