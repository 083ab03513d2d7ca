"""Tensor and sequence parallelism against one process: logits, loss and every gradient."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from dataprep.errors import UserError
from tests.training.programs import tensor_parallel as cases
from tests.training.ranks import Result, run_ranks
from training.comm import open_comm
from training.mesh import Mesh
from training.parallel import check_model, parallelize
from training.sections import ModelConfig, Parallel
from training.shapes import parameter_shapes, split_range

Floats = npt.NDArray[np.float32]
Launched = Callable[[int], list[Result]]
# (case, mode) of each number of partners: starts and compilations take most of the time.
RUNS = {
    2: [
        ("tied", "pynative"),
        ("untied sequence", "pynative"),
        ("untied sequence", "graph"),
        ("bfloat16", "graph"),
        ("bfloat16 weights", "pynative"),
        ("lora", "pynative"),
        ("lora sequence", "graph"),
        ("tied sequence", "pynative"),
        ("full", "pynative"),
        ("tied sequence", "graph"),
        ("attention", "graph"),
    ],
    4: [
        ("untied", "pynative"),
        ("tied", "graph"),
        ("tied sequence", "pynative"),
        ("bfloat16", "pynative"),
    ],
}
EVERY = [(parts, case, mode) for parts, runs in RUNS.items() for case, mode in runs]


@pytest.fixture(scope="module")
def launched() -> Iterator[Launched]:
    """`launched(parts)`: results of RUNS[parts] by rank, launched once, even if it fails."""
    with ThreadPoolExecutor() as pool:
        begun: dict[int, Future[list[Result]]] = {}

        def results(parts: int) -> list[Result]:
            if parts not in begun:
                arguments = ["=".join(run) for run in RUNS[parts]]
                begun[parts] = pool.submit(run_ranks, "tensor_parallel", parts, *arguments)
            return begun[parts].result()

        yield results


@cache
def alone(case: str, mode: str) -> Result:
    return cases.run(case, mode, open_comm(Mesh()))


def distance(a: Floats, b: Floats) -> float:
    """Largest difference, as a share of the largest number."""
    assert a.shape == b.shape
    return float(np.abs(a - b).max() / np.abs(b).max())


def joined(ranks: list[Result], case: str, mode: str, name: str) -> Floats:
    """A global gradient of the partners' parts, which must be the same bits where it is whole."""
    parts: list[Floats] = [rank[f"{case}/{mode}/{name}"] for rank in ranks]
    axis = ranks[0][f"{case}/slices"][name][0]
    if axis is not None:
        return np.concatenate(parts, axis)
    if name in ranks[0][f"{case}/partial"]:
        return np.sum(parts, axis=0)
    assert all((part == parts[0]).all() for part in parts)
    return parts[0]


@pytest.mark.parity
@pytest.mark.parametrize(("parts", "case", "mode"), EVERY)
def test_partners_equal_one_process(launched: Launched, parts: int, case: str, mode: str) -> None:
    ranks, judge = launched(parts), alone(case, mode)
    # Each partner's partial product is rounded before they are summed.
    limit = 0.03 if case.startswith("bfloat16") else 1e-5
    for rank in ranks:
        np.testing.assert_allclose(
            rank[f"{case}/{mode}/sums"], judge[f"{case}/{mode}/sums"], rtol=limit
        )
    names = [key.split("/")[2] for key in judge if key.startswith(f"{case}/{mode}/")]
    assert len(names) > 3
    for name in names:
        if name == "sums":
            continue
        expected = judge[f"{case}/{mode}/{name}"]
        assert np.abs(expected).max() > 0, name
        assert distance(joined(ranks, case, mode, name), expected) < limit, name
    if mode == "pynative":
        assert ranks[0][f"{case}/loss"] == pytest.approx(judge[f"{case}/loss"], rel=limit)
        logits = np.concatenate([rank[f"{case}/logits"] for rank in ranks], -1)
        assert distance(logits, judge[f"{case}/logits"]) < limit


@pytest.mark.parity
@pytest.mark.parametrize("sequence", [False, True])
def test_which_gradients_are_to_be_summed(launched: Launched, sequence: bool) -> None:
    """Norms under sequence parallelism; the half of an adapter that is not divided, always."""
    case = "lora sequence" if sequence else "lora"
    partial = set(launched(2)[0][f"{case}/partial"])
    norms = {name for name in partial if "norm" in name}
    assert len(norms) == (3 if sequence else 0)
    lora = cases.CASES[case].lora
    assert lora is not None
    kinds = {"o_proj": "lora_b", "down_proj": "lora_b"}
    halves = {f"{target}.{kinds.get(target, 'lora_a')}" for target in lora.targets}
    found = [".".join(name.split(".")[-2:]) for name in partial - norms]
    assert sorted(found) == sorted(halves)


@pytest.mark.parity
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_weight_make_it_up(launched: Launched, parts: int) -> None:
    ranks = launched(parts)
    case = cases.CASES["tied"]
    shapes = parameter_shapes(cases.config(case), cases.VOCAB)
    tables = [rank["tied/slices"] for rank in ranks]
    assert [list(table) for table in tables] == [list(shapes)] * parts
    for name, shape in shapes.items():
        assert all(tuple(table[name][3:]) == shape for table in tables)
        axis = tables[0][name][0]
        bounds = [tuple(table[name][1:3]) for table in tables]
        if axis is not None:
            assert bounds == [split_range(shape[axis], parts, i) for i in range(parts)]


@pytest.mark.parity
@pytest.mark.parametrize("case", ["tied", "bfloat16 weights", "untied sequence"])
def test_documents_stay_apart(launched: Launched, case: str) -> None:
    """Other ids in one document: the logits of all other documents are the same bits."""
    for rank in (*launched(2), alone(case, "pynative")):
        before, after = rank[f"{case}/logits"], rank[f"{case}/others"]
        assert (before[0, : cases.DOCUMENT] != after[0, : cases.DOCUMENT]).any(-1).all()
        assert (before[0, cases.DOCUMENT :] == after[0, cases.DOCUMENT :]).all()
        assert (before[1] == after[1]).all()


@pytest.mark.parity
@pytest.mark.parametrize(("case", "mode"), [("full", "pynative"), ("attention", "graph")])
def test_recomputed_gradients_are_the_same_bits_on_partners(
    launched: Launched, case: str, mode: str
) -> None:
    for rank in launched(2):
        _assert_same_bits(rank, case, rank, "tied sequence", mode)


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("full", "pynative"),
        ("full", "graph"),
        ("layer", "pynative"),
        ("attention", "graph"),
        ("mlp", "pynative"),
    ],
)
def test_recomputed_gradients_are_the_same_bits(case: str, mode: str) -> None:
    plain = "tied" if case == "layer" else "tied sequence"
    _assert_same_bits(alone(case, mode), case, alone(plain, mode), plain, mode)


def _assert_same_bits(actual: Result, case: str, expected: Result, plain: str, mode: str) -> None:
    prefix = f"{plain}/{mode}/"
    names = [key.removeprefix(prefix) for key in expected if key.startswith(prefix)]
    assert len(names) == 1 + 9 * cases.CASES[case].layers + 2
    for name in names:
        assert (actual[f"{case}/{mode}/{name}"] == expected[prefix + name]).all(), name


def test_one_part_leaves_the_model_as_it_is() -> None:
    model = cases.whole(cases.CASES["tied"])
    before = [weight.asnumpy().copy() for weight in model.get_parameters()]
    layout = parallelize(model, Mesh(), open_comm(Mesh()), use_seq_parallel=False)
    assert not layout.partial
    assert all(part.axis is None for part in layout.slices.values())
    for weight, values in zip(model.get_parameters(), before, strict=True):
        assert (weight.asnumpy() == values).all()
        assert layout.slices[weight.name].shape == values.shape


def test_split_range_by_eye() -> None:
    assert [split_range(13, 4, i) for i in range(4)] == [(0, 4), (4, 7), (7, 10), (10, 13)]
    assert [split_range(8, 2, i) for i in range(2)] == [(0, 4), (4, 8)]


@pytest.mark.parametrize(
    ("model", "mesh", "length", "told"),
    [
        ({"num_heads": 6, "hidden_size": 48}, Mesh(tp=4), 8, r"num_heads is 6.*\(4\)"),
        ({"num_heads": 8, "n_kv_heads": 2}, Mesh(tp=4), 8, r"n_kv_heads is 2.*\(4\)"),
        ({"intermediate_size": 33}, Mesh(tp=2), 8, r"intermediate_size is 33.*\(2\)"),
        ({"vocab_size": 1}, Mesh(tp=2), 8, r"vocabulary has 1 ids.*\(2\)"),
        ({"num_layers": 3}, Mesh(pp=4), 8, r"num_layers is 3.*\(4\)"),
        ({}, Mesh(tp=2), 9, r"row length is 9.*\(2\)"),
    ],
)
def test_a_model_that_cannot_be_divided(
    model: dict[str, int], mesh: Mesh, length: int, told: str
) -> None:
    parallel = Parallel(model_parallel=mesh.tp, use_seq_parallel=mesh.tp > 1)
    with pytest.raises(UserError, match=told):
        check_model(ModelConfig(**model), model.get("vocab_size", 64), length, parallel, mesh)


def test_a_model_that_can() -> None:
    parallel = Parallel(model_parallel=4, use_seq_parallel=True)
    check_model(ModelConfig(num_heads=8, n_kv_heads=4), 13, 8, parallel, Mesh(tp=4, pp=2))
