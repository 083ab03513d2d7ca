"""The grid of processes: ranks and places, groups, and factors that do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.errors import UserError
from training.mesh import Mesh, make_mesh
from training.sections import Parallel

FACTORS = st.integers(1, 5)


def test_the_grid_of_the_docstring() -> None:
    """pp = dp = tp = 2: rank 5 is part 1 of replica 0 of stage 1."""
    mesh = Mesh(2, 2, 2, 5)
    assert (mesh.size, mesh.pp_rank, mesh.dp_rank, mesh.tp_rank) == (8, 1, 0, 1)
    assert (mesh.is_first_stage, mesh.is_last_stage) == (False, True)
    assert (mesh.tp_group(), mesh.dp_group(), mesh.pp_group()) == ([4, 5], [5, 7], [1, 5])


def test_one_process_is_everything() -> None:
    mesh = make_mesh(Parallel(), 1, 0)
    assert mesh == Mesh() and mesh.is_first_stage and mesh.is_last_stage
    assert mesh.tp_group() == mesh.dp_group() == mesh.pp_group() == [0]


@given(FACTORS, FACTORS, FACTORS)
def test_ranks_and_places_are_one_to_one(pp: int, dp: int, tp: int) -> None:
    places = set()
    for rank in range(pp * dp * tp):
        mesh = Mesh(pp, dp, tp, rank)
        place = (mesh.pp_rank, mesh.dp_rank, mesh.tp_rank)
        assert mesh.rank_at(*place) == rank
        places.add(place)
    assert places == {(p, d, t) for p in range(pp) for d in range(dp) for t in range(tp)}


@given(FACTORS, FACTORS, FACTORS)
def test_groups_of_a_kind_divide_all_ranks(pp: int, dp: int, tp: int) -> None:
    """All members agree on a group; it has the kind's size, and differs in that place alone."""
    meshes = [Mesh(pp, dp, tp, rank) for rank in range(pp * dp * tp)]
    for kind, size in (("tp", tp), ("dp", dp), ("pp", pp)):
        groups = [getattr(mesh, f"{kind}_group")() for mesh in meshes]
        for mesh, group in zip(meshes, groups):
            assert mesh.rank in group and len(group) == size and group == sorted(group)
            assert all(groups[rank] == group for rank in group)
            others = [name for name in ("pp_rank", "dp_rank", "tp_rank") if name[:2] != kind]
            for name in others:
                assert len({getattr(meshes[rank], name) for rank in group}) == 1


def test_data_parallel_is_what_is_left() -> None:
    mesh = make_mesh(Parallel(model_parallel=2, pipeline_stage=2), 12, 7)
    assert (mesh.pp, mesh.dp, mesh.tp, mesh.rank) == (2, 3, 2, 7)
    assert make_mesh(Parallel(data_parallel=3, model_parallel=2), 6, 0).size == 6


@pytest.mark.parametrize(
    ("factors", "size", "told"),
    [
        (
            {"model_parallel": 3},
            4,
            "parallel.data_parallel (left out) x model_parallel 3 x pipeline_stage 1 is not a "
            "divisor of the number of processes, 4",
        ),
        (
            {"data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2},
            4,
            "parallel.data_parallel 2 x model_parallel 2 x pipeline_stage 2 is 8, not the number "
            "of processes, 4",
        ),
        ({"data_parallel": 1}, 2, "is 1, not the number of processes, 2"),
    ],
)
def test_factors_that_do_not_fit_are_named(factors: dict[str, int], size: int, told: str) -> None:
    with pytest.raises(UserError) as error:
        make_mesh(Parallel(**factors), size, 0)
    assert told in str(error.value) and "\n" not in str(error.value)
