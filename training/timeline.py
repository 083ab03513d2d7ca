"""Which stage of a pipeline has which layers, and what it does when. Pure data: no MindSpore.

Micro batches pass through the stages one after another, so all stages work at once but at the
step's begin and end. Two orders, here 3 stages and 4 micro batches (F forward, b backward):

    1f1b (arXiv:2104.04473)             gpipe (arXiv:1811.06965)
    F0 F1 F2       b0 F3 b1 b2 b3       F0 F1 F2 F3             b0 b1 b2 b3
       F0 F1    b0 F2 b1 F3 b2 b3          F0 F1 F2 F3       b0 b1 b2 b3
          F0 b0 F1 b1 F2 b2 F3 b3             F0 F1 F2 F3 b0 b1 b2 b3

1f1b holds what p micro batches left behind at most, for p stages, gpipe that of all. The time that
a stage waits is the bubble, see there.

A transfer takes both neighbours: each waits for the other. Where 1f1b has a stage send a residual
stream and then wait for a gradient, while its neighbour sends that gradient and then waits for the
stream, both would wait forever; so the two are one exchange.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from training.sections import ModelConfig

Side = Literal["previous", "next"]
Kind = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class Forward:
    """Runs the stage on a micro batch."""

    micro_batch: int


@dataclass(frozen=True)
class Backward:
    """Runs the stage's gradient on a micro batch."""

    micro_batch: int


@dataclass(frozen=True)
class Transfer:
    """Sends to a neighbour, receives from it, or both at once.

    What goes to the next stage is a micro batch's residual stream; what goes to the previous one
    is the gradient of it.
    """

    side: Side
    sends: int | None = None
    """Micro batch."""
    receives: int | None = None


Action = Forward | Backward | Transfer


def timeline(kind: Kind, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """All that a stage does in one step, in order.

    Micro batches go backward in the order in which they went forward, so both kinds add up
    gradients in the same order, that of one process.
    """
    assert 0 <= stage < stages and micro_batches > 0
    ahead = min(stages - 1 - stage if kind == "1f1b" else micro_batches, micro_batches)
    last = stage == stages - 1
    actions: list[Action] = []
    for i in range(ahead):
        actions += [Transfer("previous", receives=i), Forward(i), Transfer("next", sends=i)]
    rest = micro_batches - ahead
    if rest:
        actions.append(Transfer("previous", receives=ahead))
    for done in range(rest):
        following = ahead + done + 1 if done + 1 < rest else None
        actions += [Forward(ahead + done), Transfer("next", ahead + done, done), Backward(done)]
        actions.append(Transfer("previous", sends=done, receives=following))
    for i in range(rest, micro_batches):
        actions += [Transfer("next", receives=i), Backward(i), Transfer("previous", sends=i)]
    missing = {"previous"} if stage == 0 else set()
    missing |= {"next"} if last else set()
    return [a for a in actions if not (isinstance(a, Transfer) and a.side in missing)]


def bubble(stages: int, micro_batches: int, kind: Kind = "1f1b") -> float:
    """Share of a step in which a stage waits, when all are equally fast and transfers take no time.

    (p - 1) / (m + p - 1) for p stages and m micro batches, in 1f1b. It would be gpipe's, too, but
    the last stage runs forward and backward in one, so it has nothing to do while the others run
    forward, a quarter of their work.
    """
    if kind == "gpipe" and stages > 1:
        wait = micro_batches + 4 * stages - 5
        return wait / (4 * micro_batches + wait)
    return (stages - 1) / (micro_batches + stages - 1)


def balance(
    costs: Sequence[float], stages: int, factors: Sequence[float] | None = None
) -> list[range]:
    """Divides items into `stages` contiguous, non-empty ranges, so that the costliest costs least.

    A range costs the sum of its items' costs, times its stage's factor (None: all 1). Of equally
    good divisions, the one with the least sum of squares: what the others hold is even, too.
    Exact, in O(stages x items^2).
    """
    assert 0 < stages <= len(costs)
    sums = list(accumulate(costs, initial=0.0))

    def cost(stage: int, start: int, stop: int) -> float:
        return (sums[stop] - sums[start]) * (factors[stage] if factors else 1.0)

    def costliest(before: float, stage: int, start: int, stop: int) -> float:
        return max(before, cost(stage, start, stop))

    least = _divide(len(costs), stages, costliest)[0]

    def squares(before: float, stage: int, start: int, stop: int) -> float:
        one = cost(stage, start, stop)
        return before + one * one if one <= least else math.inf

    return _divide(len(costs), stages, squares)[1]


def _divide(
    items: int, stages: int, extend: Callable[[float, int, int, int], float]
) -> tuple[float, list[range]]:
    """The division of least score; extend(score of the stages before, stage, start, stop)."""
    best: dict[int, tuple[float, list[range]]] = {0: (0.0, [])}  # by the items that are placed
    for stage in range(stages):
        longer = {}
        for stop in range(stage + 1, items - (stages - 1 - stage) + 1):
            starts = [start for start in best if start < stop]
            score, start = min((extend(best[s][0], stage, s, stop), s) for s in starts)
            longer[stop] = (score, [*best[start][1], range(start, stop)])
        best = longer
    return best[items]


def stage_layers(config: ModelConfig, vocab_size: int, seq_length: int, stages: int) -> list[range]:
    """Layers of each stage, so that the slowest is as fast as can be; numbered from 0.

    Costs are floating-point operations a token, forward: the embedding's are added to the first
    layer's and the head's to the last one's. The last stage runs forward and backward in one,
    three times a forward's operations; the others run their forward a second time: four times.
    """
    layer, head = layer_flops(config, seq_length), 2.0 * vocab_size * config.hidden_size
    costs = [layer] * config.num_layers
    costs[0] += config.hidden_size  # a row is copied
    costs[-1] += head
    return balance(costs, stages, [4.0] * (stages - 1) + [3.0])


def layer_flops(config: ModelConfig, seq_length: int) -> float:
    """Operations of one layer's matrix products, forward, a token: a multiply-add is two.

    The scores are made for all pairs of a row, forbidden ones too.
    """
    hidden = config.hidden_size
    kv_size = hidden // config.num_heads * config.n_kv_heads
    attention = 2 * hidden * (hidden + kv_size) + 2 * seq_length * hidden
    return 2.0 * (attention + 3 * hidden * config.intermediate_size)
