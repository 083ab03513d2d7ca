"""Stages in processes of their own against the whole model in one: losses and every gradient."""

from functools import cache

import mindspore as ms
import numpy as np
import numpy.typing as npt
import pytest

from tests.training.programs import stages as cases
from tests.training.ranks import Result, run_ranks
from training.derive import Batch
from training.gradients import accumulate, gradient_function, loss_function, tensors
from training.model import Decoder, initialize

MODES = ("pynative", "graph")
Arrays = dict[str, npt.NDArray[np.float32]]


def whole(tied: bool, changed: bool = False) -> Decoder:
    """The whole model, as drawn or as changed."""
    model = Decoder(cases.config(tied), cases.VOCAB)
    initialize(model, cases.config(tied), cases.SEED)
    if changed:
        cases.change(model)
    return model


def step(model: Decoder, micro_batches: list[Batch]) -> list[Arrays]:
    """Loss and gradients of each micro batch, in one process, operator by operator."""
    ms.runtime.launch_blocking()  # faster, for operators as small as these
    function = gradient_function(model, "pynative")
    single = [cases.arrays("", model, accumulate(function, [batch])) for batch in micro_batches]
    return [{name.removeprefix("/"): array for name, array in s.items()} for s in single]


@cache
def largest_step(tied: bool) -> list[Arrays]:
    """The others are parts of it."""
    return step(whole(tied), cases.batches(5))


def add(single: list[Arrays]) -> Arrays:
    """In float64, to be an outside judge."""
    return {name: np.sum([s[name] for s in single], 0, np.float64) for name in single[0]}


@cache
def changed_step(tied: bool) -> tuple[Arrays, npt.NDArray[np.float64]]:
    """After other weights were set; and an evaluation with them."""
    model = whole(tied, changed=True)
    function = loss_function(model, "pynative")
    sums = [[float(v) for v in function(*tensors(b))] for b in cases.uneven()]
    return add(step(model, cases.batches(3))), np.sum(sums, 0)


def together(ranks: list[Result], case: str) -> Arrays:
    """A case's loss and gradients; those of a weight that two stages hold are added up."""
    summed: Arrays = {}
    for rank in ranks:
        for name, array in rank.items():
            if name.startswith(f"{case}/"):
                key = name.removeprefix(f"{case}/")
                summed[key] = summed[key] + array if key in summed else array
    valid = {int(rank[f"{case}/sums"][1]) for rank in ranks}
    assert len(valid) == 1, "every stage counts its rows' targets"
    assert all(rank[f"{case}/sums"][0] == 0 for rank in ranks[:-1])
    return {**summed, "sums": ranks[-1][f"{case}/sums"]}


def check(found: Arrays, right: Arrays, scale: float = 1.0) -> None:
    """Equal to a hundred-thousandth of each weight's largest gradient."""
    assert found.keys() == right.keys()
    np.testing.assert_allclose(found["sums"], right["sums"], rtol=1e-5)
    for name in right.keys() - {"sums"}:
        largest = np.abs(right[name]).max()
        assert largest > 1e-3, f"{name}: nothing to compare"
        error = np.abs(found[name] / scale - right[name]).max() / largest
        assert error < 1e-5, f"{name}: {error}"


def check_all(ranks: list[Result]) -> None:
    """Every case of the program."""
    for mode in MODES:
        for tied in cases.ties(mode, len(ranks)):
            run = f"{'tied' if tied else 'untied'} {mode}"
            for kind in cases.KINDS:
                for count in cases.COUNTS:
                    right = add(largest_step(tied)[:count])
                    check(together(ranks, f"{run} {kind} {count}"), right)
            right, evaluated = changed_step(tied)
            check(together(ranks, f"{run} changed"), right, cases.SCALE)
            np.testing.assert_allclose(ranks[-1][f"{run}/evaluated"], evaluated, rtol=1e-5)
            assert all(r[f"{run}/evaluated"].tolist() == [0, evaluated[1]] for r in ranks[:-1])
            check_compiled(ranks, f"{run}/compiled", mode)
        if mode == "pynative" or len(ranks) > 2:
            check_frozen(ranks, mode)


def check_compiled(ranks: list[Result], name: str, mode: str) -> None:
    """Two functions in the first step, one on the last stage, and nothing ever after."""
    for rank in ranks:
        before, *after = rank[name]
        functions = 0 if mode == "pynative" else 1 if rank is ranks[-1] else 2
        assert set(after - before) == {functions}


def check_frozen(ranks: list[Result], mode: str) -> None:
    model = whole(tied=False)
    cases.freeze(model, len(ranks))
    check(together(ranks, f"frozen {mode}"), add(step(model, cases.batches(3))))
    told = {0: [0, 1, 2], len(ranks) - 1: [0, 1, 2]}  # no backward, no forward of its own
    for rank, numbers in told.items():
        assert ranks[rank][f"told {mode}"].tolist() == numbers


@pytest.mark.parity
def test_two_stages_equal_one_process() -> None:
    check_all(run_ranks("stages", 2, *MODES))


@pytest.mark.parity
def test_four_stages_equal_one_process() -> None:
    """The two in the middle have neighbours on both sides; one of them is frozen in a case."""
    check_all(run_ranks("stages", 4, *MODES))
