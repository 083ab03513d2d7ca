"""The optimizer on one process: literal steps, and twenty against float64 NumPy.

Several processes: test_training_sharding.py.
"""

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest
from mindspore import Parameter, Tensor

from tests.training.adamw_reference import Reference
from training.comm import open_comm
from training.mesh import Mesh
from training.optimizer import Optimizer
from training.parallel import Layout
from training.pieces import Piece, Slice
from training.sections import OptimizerConfig

Values = dict[str, npt.NDArray[Any]]
SHAPES = {"a.weight": (3, 5), "norm.weight": (5,), "b.weight": (7, 2), "c.weight": (1, 1)}
where = pytest.mark.parametrize("offload", [False, True], ids=["device", "host"])
dtypes = pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.float16], ids=str)


def make(values: Values, dtype: Any = ms.float32, **config: Any) -> tuple[Optimizer, Values]:
    """An optimizer, and a function's worth of its parameters by name."""
    params = [Parameter(Tensor(x, ms.float32).astype(dtype), name=n) for n, x in values.items()]
    layout = Layout({p.name: Slice(p.shape) for p in params}, frozenset())
    mesh = Mesh()
    made = Optimizer(
        params, OptimizerConfig(**config), mesh, open_comm(mesh), layout, shard=True, bucket_mib=1
    )
    return made, {p.name: p for p in params}


def numbers(weight: Parameter) -> npt.NDArray[np.float32]:
    return weight.astype(ms.float32).asnumpy().copy()


def tensors(*values: Any) -> list[Tensor]:
    return [Tensor(np.array(v, np.float32)) for v in values]


def draw(seed: int, scale: float = 1.0) -> Values:
    rng = np.random.default_rng(seed)
    return {n: (rng.standard_normal(s) * scale).astype(np.float32) for n, s in SHAPES.items()}


def step(optimizer: Optimizer, seed: int, t: int, rate: float = 0.01) -> float:
    norm = optimizer.reduce(tensors(*draw(seed).values()), share=0.25)
    optimizer.update(rate, t, norm)
    return norm


def kept(optimizer: Optimizer) -> dict[tuple[str, str], Piece]:
    return {(p.kind, p.name): p for p in optimizer.pieces()}


def read_from(pieces: dict[tuple[str, str], npt.NDArray[np.float32]]) -> Callable[..., Any]:
    return lambda kind, name, slice_, first, last: pieces[kind, name][first:last]


@where
def test_the_norm_and_clipping_by_eye(offload: bool) -> None:
    """Gradients (3, 0) and (4) have norm 5; clipped to 1 they are (0.6, 0) and 0.8."""
    values = {"a": np.zeros(2), "b": np.zeros(1)}
    optimizer, _ = make(values, offload=offload, max_grad_norm=1.0, betas=(0.0, 0.0))
    assert optimizer.reduce(tensors([6.0, 0.0], [8.0]), share=0.5) == 5.0
    optimizer.update(0.1, 1, 5.0)
    first = {name: p.values() for (kind, name), p in kept(optimizer).items() if kind == "m"}
    np.testing.assert_allclose(np.concatenate([first["a"], first["b"]]), [0.6, 0, 0.8], rtol=1e-6)
    assert optimizer.reduce(tensors([0.3, 0.0], [0.4]), share=1.0) == pytest.approx(0.5)
    optimizer.update(0.1, 2, 0.5)
    np.testing.assert_allclose(kept(optimizer)["m", "a"].values(), [0.3, 0.0], rtol=1e-6)


@where
def test_the_first_step_by_eye(offload: bool) -> None:
    """With bias correction it is lr x sign(gradient), after decay of the matrix alone."""
    values = {"matrix": np.array([[1.0, -1.0]]), "norm": np.array([1.0, 1.0])}
    optimizer, weights = make(values, offload=offload, weight_decay=0.5, eps=1e-12)
    norm = optimizer.reduce(tensors([[0.3, -2.0]], [5.0, -0.1]), share=1.0)
    optimizer.update(0.1, 1, norm)
    np.testing.assert_allclose(numbers(weights["matrix"]), [[0.95 - 0.1, -0.95 + 0.1]], rtol=1e-6)
    np.testing.assert_allclose(numbers(weights["norm"]), [0.9, 1.1], rtol=1e-6)


@where
def test_a_zero_gradient_only_decays(offload: bool) -> None:
    values = {"matrix": np.array([[1.0]]), "norm": np.array([1.0])}
    optimizer, weights = make(values, offload=offload, weight_decay=0.5)
    assert optimizer.reduce(tensors([[0.0]], [0.0]), share=1.0) == 0.0
    optimizer.update(0.1, 1, 0.0)
    assert [numbers(w).item() for w in weights.values()] == [np.float32(0.95), 1.0]


@where
@dtypes
def test_twenty_steps_against_float64(offload: bool, dtype: Any) -> None:
    """Masters, which for float32 are the weights; lower weights are their rounding."""
    values = draw(0, 0.3)
    config = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.3, "max_grad_norm": 1.5}
    optimizer, weights = make(values, dtype, offload=offload, **config)
    start = {name: numbers(w).astype(np.float64) for name, w in weights.items()}
    reference = Reference(start, OptimizerConfig(**config))
    clipped = 0
    for t in range(1, 21):
        gradients = {name: g.astype(np.float64) * 0.25 for name, g in draw(t).items()}
        expected = reference.step(gradients, rate=0.05 / t, t=t)
        assert step(optimizer, t, t, rate=0.05 / t) == pytest.approx(expected, rel=1e-7)
        clipped += expected > 1.5
    assert 0 < clipped < 20
    pieces = kept(optimizer)
    for name, weight in weights.items():
        for kind, judge in (("w", reference.w), ("m", reference.m), ("v", reference.v)):
            found = pieces[kind, name].values()
            np.testing.assert_allclose(found, judge[name].reshape(-1), rtol=1e-6, atol=1e-6)
        master = Tensor(pieces["w", name].values()).astype(dtype).astype(ms.float32)
        assert np.array_equal(master.asnumpy(), numbers(weight).reshape(-1))
        assert weight.dtype == dtype


@where
@dtypes
@pytest.mark.parametrize("stop", [1, 3])
def test_restored_from_its_pieces_it_goes_on_bit_for_bit(
    offload: bool, dtype: Any, stop: int
) -> None:
    straight, expected = make(draw(0), dtype, offload=offload)
    for t in range(1, 5):
        step(straight, t, t)
        if t == stop:
            saved = {key: piece.values() for key, piece in kept(straight).items()}
    for other in (offload, not offload):  # any kind of state restores any
        resumed, weights = make(draw(1), dtype, offload=other)
        step(resumed, 9, 1)
        resumed.restore(read_from(saved))
        assert all(np.array_equal(p.values(), saved[key]) for key, p in kept(resumed).items())
        if other == offload:
            for t in range(stop + 1, 5):
                step(resumed, t, t)
            for name, weight in weights.items():
                assert np.array_equal(numbers(weight), numbers(expected[name]))


@dtypes
def test_weights_that_are_loaded_are_the_new_masters(dtype: Any) -> None:
    optimizer, weights = make(draw(0), dtype)
    values = {("w", name): x.reshape(-1) for name, x in draw(5).items()}
    optimizer.load_weights(read_from(values))
    for name, weight in weights.items():
        assert np.array_equal(kept(optimizer)["w", name].values(), values["w", name])
        rounded = Tensor(values["w", name]).astype(dtype).astype(ms.float32).asnumpy()
        assert np.array_equal(numbers(weight).reshape(-1), rounded)
        assert not kept(optimizer)["m", name].values().any()


@where
def test_pieces_are_copies(offload: bool) -> None:
    optimizer, _ = make(draw(0), offload=offload)
    step(optimizer, 1, 1)
    pieces = kept(optimizer)
    before = {key: piece.values() for key, piece in pieces.items()}
    copies = {key: x.copy() for key, x in before.items()}
    step(optimizer, 2, 2)
    assert all(np.array_equal(before[key], copies[key]) for key in before)
    assert not any(np.array_equal(before[key], pieces[key].values()) for key in before)


@where
def test_a_compiled_function_sees_updates_restores_and_loads(offload: bool) -> None:
    """Weights keep their memory; under ms.jit a replaced one would go unseen."""
    for dtype in (ms.float32, ms.bfloat16, ms.float16):
        optimizer, weights = make(draw(0), dtype, offload=offload)
        weight = weights["a.weight"]

        def total() -> Tensor:
            return weight.astype(ms.float32).sum()  # noqa: B023 (called in this round)

        compiled = ms.jit(total)
        seen = [float(compiled())]
        saved = {key: piece.values() for key, piece in kept(optimizer).items()}
        for t in (1, 2):
            step(optimizer, t, t)
            seen.append(float(compiled()))
            assert seen[-1] == pytest.approx(float(numbers(weight).sum()), abs=1e-5)
        optimizer.restore(read_from(saved))
        assert float(compiled()) == seen[0]
        assert len(set(seen)) == 3


@where
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_shows_in_the_norm(offload: bool, bad: float) -> None:
    optimizer, _ = make({"a": np.ones(3)}, offload=offload)
    assert not math.isfinite(optimizer.reduce(tensors([1.0, bad, 0.0]), share=0.5))


def test_the_norm_neither_overflows_nor_loses_small_terms() -> None:
    optimizer, _ = make({"a": np.ones(2), "b": np.ones(200_000)})
    big = optimizer.reduce(tensors([3e30, 4e30], np.zeros(200_000)), share=2.0**-100)
    assert big == pytest.approx(5e30 * 2.0**-100, rel=1e-7)
    many = optimizer.reduce(tensors([100.0, 0.0], np.full(200_000, 1e-3)), share=1.0)
    assert many == pytest.approx(math.sqrt(100.0**2 + 200_000 * 1e-6), rel=1e-9)


def test_gradients_of_a_lower_dtype_are_taken_as_they_are() -> None:
    optimizer, weights = make({"a": np.ones((2, 2))}, ms.bfloat16)
    gradient = Tensor(np.full((2, 2), 2.0, np.float32)).astype(ms.bfloat16)
    norm = optimizer.reduce([gradient], share=1.0)
    assert norm == 4.0
    optimizer.update(0.5, 1, norm)
    assert numbers(weights["a"]).max() < 0.6


@where
def test_bytes_held(offload: bool) -> None:
    count = 15 + 5 + 14 + 1
    optimizer, _ = make(draw(0), offload=offload)
    held = {"parameters": 4 * count, "gradients": 0, "masters": 0, "moments": 8 * count}
    assert optimizer.bytes() == held
    norm = optimizer.reduce(tensors(*draw(1).values()), share=1.0)
    assert optimizer.bytes() == {**held, "gradients": 4 * count}
    optimizer.update(0.1, 1, norm)
    assert optimizer.bytes() == held
    optimizer, _ = make(draw(0), ms.bfloat16, offload=offload)
    assert optimizer.bytes() == {**held, "parameters": 2 * count, "masters": 4 * count}
