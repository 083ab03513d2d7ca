"""Layers over stages, and the order of a step, proved by playing all stages against each other."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.sections import ModelConfig
from training.timeline import (
    Action,
    Backward,
    Forward,
    Kind,
    Transfer,
    balance,
    bubble,
    layer_flops,
    stage_layers,
    timeline,
)

KINDS: tuple[Kind, Kind] = ("1f1b", "gpipe")


def text(kind: Kind, stage: int, stages: int, micro_batches: int) -> str:
    """A stage's actions: F0, b0; < and > are the neighbours, with what is sent ! and received ?"""
    words = []
    for action in timeline(kind, stage, stages, micro_batches):
        if isinstance(action, Transfer):
            sends = "" if action.sends is None else f"!{action.sends}"
            receives = "" if action.receives is None else f"?{action.receives}"
            words.append(("<" if action.side == "previous" else ">") + sends + receives)
        else:
            words.append(("F" if isinstance(action, Forward) else "b") + str(action.micro_batch))
    return " ".join(words)


def play(actions: list[list[Action]], costs: list[tuple[int, int]]) -> list[int]:
    """The time at which each stage ends; a transfer takes none, but waits for both sides.

    costs: of each stage's forward and backward.

    Raises AssertionError when stages wait for each other, or want different things.
    """
    left, clocks = [list(reversed(a)) for a in actions], [0] * len(actions)
    moved = True
    while moved:
        moved = False
        for stage, todo in enumerate(left):
            action = todo[-1] if todo else None
            if isinstance(action, Forward | Backward):
                clocks[stage] += costs[stage][isinstance(action, Backward)]
                moved = bool(todo.pop())
            elif isinstance(action, Transfer) and action.side == "next":
                other = left[stage + 1][-1] if left[stage + 1] else None
                if not isinstance(other, Transfer) or other.side != "previous":
                    continue
                assert (other.sends, other.receives) == (action.receives, action.sends)
                clocks[stage] = clocks[stage + 1] = max(clocks[stage : stage + 2])
                moved = bool(todo.pop() and left[stage + 1].pop())
    assert not any(left), "the stages wait for each other"
    return clocks


def test_one_forward_one_backward_by_eye() -> None:
    assert text("1f1b", 0, 2, 3) == "F0 >!0 F1 >!1?0 b0 F2 >!2?1 b1 >?2 b2"
    assert text("1f1b", 1, 2, 3) == "<?0 F0 b0 <!0?1 F1 b1 <!1?2 F2 b2 <!2"
    assert text("1f1b", 1, 3, 2) == "<?0 F0 >!0 <?1 F1 >!1?0 b0 <!0 >?1 b1 <!1"


def test_gpipe_by_eye() -> None:
    assert text("gpipe", 0, 2, 2) == "F0 >!0 F1 >!1 >?0 b0 >?1 b1"
    assert text("gpipe", 1, 2, 2) == "<?0 F0 <?1 F1 b0 <!0 b1 <!1"


def test_one_stage_alone() -> None:
    assert text("1f1b", 0, 1, 2) == "F0 b0 F1 b1"
    assert text("gpipe", 0, 1, 2) == "F0 F1 b0 b1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", range(1, 9))
def test_no_deadlock_and_no_longer_than_the_bubble(kind: Kind, stages: int) -> None:
    for micro_batches in range(1, 17):
        actions = [timeline(kind, s, stages, micro_batches) for s in range(stages)]
        for forward, backward in ((1, 2), (1, 3), (1, 1)):
            ends = play(actions, [(forward, backward)] * stages)
            work = micro_batches * (forward + backward)
            assert 1 - work / max(ends) == pytest.approx(bubble(stages, micro_batches))


@pytest.mark.parametrize("kind", KINDS)
def test_bubble_when_the_last_stage_runs_both_in_one(kind: Kind) -> None:
    for stages in range(1, 9):
        for micro_batches in range(1, 17):
            actions = [timeline(kind, s, stages, micro_batches) for s in range(stages)]
            ends = play(actions, [(1, 3)] * (stages - 1) + [(0, 4)])
            share = 1 - 4 * micro_batches / max(ends)
            assert share == pytest.approx(bubble(stages, micro_batches, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", range(1, 9))
def test_each_micro_batch_once_and_few_in_flight(kind: Kind, stages: int) -> None:
    for micro_batches in range(1, 17):
        for stage in range(stages):
            actions = timeline(kind, stage, stages, micro_batches)
            forward = [a.micro_batch for a in actions if isinstance(a, Forward)]
            backward = [a.micro_batch for a in actions if isinstance(a, Backward)]
            assert forward == backward == list(range(micro_batches))
            held = [0]
            for a in actions:
                held.append(held[-1] + isinstance(a, Forward) - isinstance(a, Backward))
            most = stages - stage if kind == "1f1b" else micro_batches
            assert max(held) == min(most, micro_batches)


def test_a_send_apart_from_the_receive_would_block() -> None:
    """Why exchanges exist, and that `play` sees what it is there to see."""

    def apart(action: Action) -> list[Action]:
        if not isinstance(action, Transfer) or None in (action.sends, action.receives):
            return [action]
        side = action.side
        return [Transfer(side, sends=action.sends), Transfer(side, receives=action.receives)]

    actions = [[b for a in timeline("1f1b", s, 2, 3) for b in apart(a)] for s in range(2)]
    with pytest.raises(AssertionError):
        play(actions, [(1, 2)] * 2)


def test_bubble_by_eye() -> None:
    assert [bubble(1, 4), bubble(2, 1), bubble(4, 13)] == [0, 1 / 2, 3 / 16]
    assert [bubble(1, 4, "gpipe"), bubble(2, 8, "gpipe")] == [0, 11 / 43]


def test_balance_by_eye() -> None:
    assert balance([1, 1, 1, 1], 2) == [range(0, 2), range(2, 4)]
    assert balance([1, 1, 1, 9], 2) == [range(0, 3), range(3, 4)]
    assert balance([5, 1, 1, 2], 3) == [range(0, 1), range(1, 3), range(3, 4)]
    assert balance([1] * 6 + [9], 4) == [range(0, 2), range(2, 4), range(4, 6), range(6, 7)]
    assert balance([1] * 7, 2, [4, 3]) == [range(0, 3), range(3, 7)]


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(1, 8),
    st.lists(st.integers(1, 4), min_size=8, max_size=8),
)
def test_balance_is_the_best_of_all_divisions(
    costs: list[int], stages: int, factors: list[int]
) -> None:
    items, stages = len(costs), min(stages, len(costs))

    def costliest(ranges: list[range]) -> float:
        return max(f * sum(costs[i] for i in r) for r, f in zip(ranges, factors))

    found = balance(costs, stages, factors[:stages])
    assert [i for r in found for i in r] == list(range(items))
    assert len(found) == stages and all(found)
    cuts = ((0, *inner, items) for inner in combinations(range(1, items), stages - 1))
    divisions = [[range(a, b) for a, b in zip(cut, cut[1:])] for cut in cuts]
    assert costliest(found) == min(map(costliest, divisions))


def test_flops_of_a_layer_by_hand() -> None:
    config = ModelConfig(hidden_size=4, num_heads=2, n_kv_heads=1, intermediate_size=6)
    # q, o: 4 x 4; k, v: 2 x 4; gate, up, down: 6 x 4; scores and mix: 10 keys x 4 channels.
    assert layer_flops(config, 10) == 2 * (16 + 16 + 8 + 8 + 3 * 24 + 40 + 40)


def test_layers_of_stages() -> None:
    def sizes(layers: int, vocab_size: int, stages: int) -> list[int]:
        config = ModelConfig(num_layers=layers, hidden_size=128, intermediate_size=384)
        return [len(r) for r in stage_layers(config, vocab_size, 128, stages)]

    assert sizes(4, 100, 1) == [4]
    assert sizes(7, 100, 2) == [3, 4]  # the last stage has no second forward
    assert sizes(8, 8000, 2) == [5, 3]  # but the head
    assert sizes(4, 100_000, 4) == [1, 1, 1, 1]
    assert sizes(8, 100_000, 4) == [2, 2, 3, 1]
