"""The loss scale: halved on overflow, doubled after a window, kept in checkpoints."""

import math

import pytest

from training.scale import LossScale
from training.sections import Precision


def test_a_run_by_eye() -> None:
    scale = LossScale(value=8.0, window=2)
    seen = []
    for good in (True, True, False, True, False, False, True, True, True, True):
        (scale.succeeded if good else scale.overflowed)()
        seen.append(scale.value)
    assert seen == [8.0, 16.0, 8.0, 8.0, 4.0, 2.0, 2.0, 4.0, 4.0, 8.0]


def test_it_never_falls_below_one() -> None:
    scale = LossScale(value=1.5, window=5)
    scale.overflowed()
    assert scale.value == 1.0
    assert scale.dynamic and not scale.falls


@pytest.mark.parametrize("tokens", [1, 2, 4095, 4096, 4097])
def test_it_is_of_the_mean_loss_of_a_micro_batch_and_exact(tokens: int) -> None:
    scale = LossScale.of(Precision(compute_dtype="float16"), tokens)
    assert 65536 / 2 < scale.factor * tokens <= 65536
    assert math.frexp(scale.factor)[0] == 0.5  # a power of two


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_float16_needs_one(dtype: str) -> None:
    scale = LossScale.of(Precision(compute_dtype=dtype), 4096)  # type: ignore[arg-type]
    assert (scale.factor, scale.dynamic) == (1.0, False)
    for _ in range(3):
        scale.succeeded()
    scale.restore({"value": 4.0, "good": 7})
    assert scale == LossScale()


def test_it_continues_from_a_checkpoint() -> None:
    precision = Precision(compute_dtype="float16", loss_scale=1024.0, loss_scale_window=3)
    scale, restored = LossScale.of(precision, 4096), LossScale.of(precision, 4096)
    assert scale.dynamic
    for step in range(8):
        restored = LossScale.of(precision, 4096)
        restored.restore(scale.state())
        assert restored == scale
        (scale.overflowed if step == 4 else scale.succeeded)()
    assert scale.value == 1024.0 * 2 / 2 * 2
