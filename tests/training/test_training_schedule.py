"""Warm-up and cosine, by their values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config import OptimizerConfig
from training.schedule import learning_rate


def test_literal_values() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, min_lr_ratio=0.2)
    rates = [learning_rate(step, 12, config) for step in range(1, 13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[7] == pytest.approx(0.6)  # half way down, from 1.0 to 0.2
    assert rates[5] == pytest.approx(0.6 + 0.4 * 0.5**0.5)
    assert rates[11] == pytest.approx(0.2)


def test_without_warm_up_the_first_step_is_just_below_the_peak() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, min_lr_ratio=0.0)
    assert [learning_rate(s, 2, config) for s in (1, 2)] == pytest.approx([0.5, 0.0])


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0, 1))
def test_it_rises_to_the_peak_and_never_again(warmup: int, rest: int, ratio: float) -> None:
    config = OptimizerConfig(learning_rate=2.0, warmup_steps=warmup, min_lr_ratio=ratio)
    steps = warmup + rest
    rates = [learning_rate(step, steps, config) for step in range(1, steps + 1)]
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(2.0 * ratio - 1e-12 <= rate <= 2.0 for rate in rates[warmup:])
