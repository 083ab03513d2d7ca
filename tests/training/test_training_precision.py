"""Where each precision key rounds, and that weights of a lower dtype have usable gradients."""

from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest
from mindspore import Tensor

from training.config import ModelConfig
from training.derive import Batch
from training.gradients import accumulate, add, gradient_function
from training.layers import Attention, RMSNorm, attention_bias
from training.model import Decoder, initialize
from training.precision import Product, Round
from training.sections import Dtype, Precision

Floats = npt.NDArray[np.float32]
VOCAB = 12
LOWER: list[Dtype] = ["bfloat16", "float16"]


def rounded(x: Any, dtype: str) -> Floats:
    """By NumPy: float16 is its own; a bfloat16 is the upper half of a float32, ties to even."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def batch(rows: int = 2, length: int = 6) -> Batch:
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, VOCAB, (2, rows, length)).astype(np.int32)
    places = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    zeros = np.zeros((rows, length), np.int32)
    return {
        "input_ids": ids,
        "position_ids": places,
        "segments": zeros,
        "labels": labels,
        "loss_mask": zeros + 1,
    }


def made(config: ModelConfig, precision: Precision) -> Decoder:
    model = Decoder(config, VOCAB, precision)
    initialize(model, config, seed=3)
    return model


def step(model: Decoder, mode: str = "pynative", scale: float = 1.0) -> list[Floats]:
    gradients = accumulate(gradient_function(model, mode), [batch()], scale).gradients
    assert all(g.dtype == ms.float32 for g in gradients)
    return [g.asnumpy() for g in gradients]


def test_bfloat16_rounding_by_eye() -> None:
    """8 significant bits: steps of 1/128 between 1 and 2, ties to the even one."""
    x = [1.0, 1 + 1 / 256, 1 + 3 / 256, 1 + 1.1 / 256, -3.14159]
    expected = [1.0, 1.0, 1 + 2 / 128, 1 + 1 / 128, -3.140625]
    assert Round("bfloat16")(Tensor(np.array(x, np.float32))).asnumpy().tolist() == expected


def test_float16_rounding_by_eye() -> None:
    """11 significant bits, up to 65504."""
    x = [1 + 1 / 2048, 1 + 3 / 2048, 65504.0, 65519.0, 65536.0, -1e9, 1e-8]
    expected = [1.0, 1 + 2 / 1024, 65504.0, 65504.0, float("inf"), float("-inf"), 0.0]
    assert Round("float16")(Tensor(np.array(x, np.float32))).asnumpy().tolist() == expected


@pytest.mark.parametrize("dtype", LOWER)
def test_rounding_against_numpy(dtype: str) -> None:
    x = normal(10_000) * np.float32(10.0) ** np.random.default_rng(1).integers(-9, 6, 10_000)
    x = np.r_[x, 0, np.inf, -np.inf, 3e38, -65520].astype(np.float32)
    assert (Round(dtype)(Tensor(x)).asnumpy() == rounded(x, dtype)).all()


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize("transpose_b", [False, True])
def test_a_product_rounds_inputs_and_result_but_not_between(dtype: str, transpose_b: bool) -> None:
    a, b = normal(2, 3, 64), normal(2, 64, 5, seed=1)
    expected = rounded(rounded(a, dtype) @ rounded(b, dtype), dtype)
    right = np.ascontiguousarray(np.swapaxes(b, 1, 2)) if transpose_b else b
    actual = Product(dtype, transpose_b)(Tensor(a), Tensor(right)).asnumpy()
    np.testing.assert_allclose(actual, expected, rtol=1 / 128)
    assert (actual == expected).mean() > 0.95  # the order of the sum may tip a tie
    assert (rounded(actual, dtype) == actual).all()
    assert (actual != a @ b).mean() > 0.9


@pytest.mark.parametrize("dtype", LOWER)
def test_norms_round_what_enters_and_what_leaves(dtype: Dtype) -> None:
    norm = RMSNorm(64, 1e-5, Precision(layernorm_compute_dtype=dtype))
    x = normal(3, 64)
    entering = rounded(x, dtype)
    inside = entering / np.sqrt((entering**2).mean(-1, keepdims=True) + 1e-5)
    actual = norm(Tensor(x)).asnumpy()
    assert (actual == rounded(inside, dtype)).mean() > 0.95
    assert (actual == rounded(actual, dtype)).all()


@pytest.mark.parametrize("dtype", LOWER)
def test_softmax_rounds_what_enters_and_what_leaves(tiny_model: ModelConfig, dtype: Dtype) -> None:
    attention = Attention(tiny_model, Precision(softmax_compute_dtype=dtype))
    scores = normal(1, 2, 4, 4) * 5
    bias = attention_bias(Tensor(np.array([[0, 0, 1, 1]], np.int32)))
    shares = attention.softmax(Tensor(scores), bias).asnumpy()
    allowed = bias.asnumpy() == 0
    powers = np.exp(rounded(scores, dtype)) * allowed
    expected = rounded(powers / powers.sum(-1, keepdims=True), dtype)
    assert (shares == rounded(shares, dtype)).all()
    np.testing.assert_allclose(shares, expected, rtol=1 / 128)
    assert (shares[~np.broadcast_to(allowed, shares.shape)] == 0).all()


@pytest.mark.parametrize("key", ["compute_dtype", "layernorm_compute_dtype"])
def test_each_key_changes_the_gradient_a_little(tiny_model: ModelConfig, key: str) -> None:
    exact = step(made(tiny_model, Precision()))
    for dtype in LOWER:
        keys: dict[str, Any] = {key: dtype}
        for a, b in zip(step(made(tiny_model, Precision(**keys))), exact, strict=True):
            assert 0 < np.abs(a - b).max() < 0.05 * np.abs(b).max()


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.parity)])
def test_graph_mode_equals_pynative_in_lower_precision(
    tiny_model: ModelConfig, dtype: Dtype
) -> None:
    """With weights held in it too, and one of them used twice."""
    model = made(tiny_model, Precision(dtype, dtype, dtype, dtype))
    assert all(w.dtype == getattr(ms, dtype) for w in model.trainable_params())
    plain, compiled = step(model, scale=8.0), step(model, "graph", scale=8.0)
    for a, b in zip(compiled, plain, strict=True):
        assert np.abs(b).max() > 0
        # A sum in another order may round to a neighbour, and what follows with it.
        assert np.abs(a - b).max() < 0.02 * np.abs(b).max()


@pytest.mark.parametrize("dtype", LOWER)
def test_held_weights_are_the_rounded_ones(tiny_model: ModelConfig, dtype: Dtype) -> None:
    full = made(tiny_model, Precision())
    held = made(tiny_model, Precision(param_init_type=dtype))
    for a, b in zip(held.trainable_params(), full.trainable_params(), strict=True):
        assert (a.astype(ms.float32).asnumpy() == rounded(b.asnumpy(), dtype)).all()
    for a, b in zip(step(held), step(full), strict=True):
        assert (a == rounded(a, dtype)).all()  # the gradient passes the cast too
        assert np.abs(a - b).max() < 0.05 * np.abs(b).max()


def test_the_scale_is_in_the_gradients_alone(tiny_model: ModelConfig) -> None:
    function = gradient_function(made(tiny_model, Precision()), "pynative")
    plain = accumulate(function, [batch()])
    scaled = accumulate(function, [batch()], scale=1024.0)
    assert scaled.loss_sum == plain.loss_sum
    for a, b in zip(scaled.gradients, plain.gradients, strict=True):
        np.testing.assert_allclose(a.asnumpy(), 1024 * b.asnumpy(), rtol=1e-4, atol=1e-3)


def test_a_scale_keeps_small_gradients_in_float16_and_a_large_one_overflows(
    tiny_model: ModelConfig,
) -> None:
    model = made(tiny_model, Precision(compute_dtype="float16"))
    small = np.float32(2.0**-24)
    vanished, kept = step(model, scale=float(small)), step(model, scale=1.0)
    assert sum((g == 0).sum() for g in vanished) > 2 * sum((g == 0).sum() for g in kept)
    assert not all(np.isfinite(g).all() for g in step(model, scale=2.0**30))


def test_gradients_of_lower_dtypes_are_added_in_float32() -> None:
    one = Tensor(np.array([256.0, 1.0], np.float32)).astype(ms.bfloat16)
    small = Tensor(np.array([1.0, 2**-9], np.float32)).astype(ms.bfloat16)
    summed: list[Tensor] = []
    add(summed, [one])
    assert summed[0].dtype == ms.float32
    add(summed, [small])
    assert summed[0].asnumpy().tolist() == [257.0, 1 + 2**-9]  # no bfloat16s
