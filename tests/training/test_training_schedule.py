"""Learning rates by their values, and what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.schedule import learning_rate
from training.sections import OptimizerConfig

KINDS = ("constant", "linear", "cosine", "wsd")


def rates(steps: int, schedule: str, **fields: float) -> list[float]:
    config = OptimizerConfig(
        schedule=schedule,  # type: ignore[arg-type]
        **{"learning_rate": 1.0, "warmup_steps": 2, "min_lr_ratio": 0.2, **fields},  # type: ignore[arg-type]
    )
    return [learning_rate(step, steps, config) for step in range(1, steps + 1)]


def test_literal_values() -> None:
    assert rates(6, "constant") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates(6, "linear") == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])
    quarter = 0.6 + 0.4 * 0.5**0.5
    assert rates(6, "cosine") == pytest.approx([0.5, 1.0, quarter, 0.6, 1.2 - quarter, 0.2])
    wsd = rates(10, "wsd", decay_ratio=0.4)
    assert wsd == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])


def test_without_warm_up_the_first_step_is_just_below_the_peak() -> None:
    assert rates(2, "linear", warmup_steps=0, min_lr_ratio=0.0) == pytest.approx([0.5, 0.0])
    assert rates(2, "cosine", warmup_steps=0, min_lr_ratio=0.0) == pytest.approx([0.5, 0.0])


def test_the_decay_of_wsd_waits_for_the_warm_up_and_may_be_left_out() -> None:
    late = rates(4, "wsd", decay_ratio=1.0)
    assert late == pytest.approx([0.5, 1.0, 0.6, 0.2])
    assert rates(4, "wsd", decay_ratio=0.0) == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_be_nothing_but_warm_up(kind: str) -> None:
    assert rates(2, kind) == [0.5, 1.0]


@given(
    st.sampled_from(KINDS), st.integers(0, 50), st.integers(1, 50), st.floats(0, 1), st.floats(0, 1)
)
def test_it_rises_to_the_peak_and_never_again(
    kind: str, warmup: int, rest: int, floor: float, decay: float
) -> None:
    found = rates(warmup + rest, kind, warmup_steps=warmup, min_lr_ratio=floor, decay_ratio=decay)
    assert found[:warmup] == sorted(found[:warmup])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert all(floor - 1e-12 <= rate <= 1.0 for rate in found[warmup:])
    if kind in ("linear", "cosine"):
        assert found[-1] == pytest.approx(floor)
