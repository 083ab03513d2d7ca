"""The optimizer on four processes, in layouts of every kind, against float64 NumPy.

See programs/optimizer_cases.py. Sizes are uneven: 11 rows of vocabulary over 2 parts, buckets that
4 replicas do not divide. Gradients are drawn so that a rank that is left out, or counted twice,
changes the sum.
"""

from collections import defaultdict
from typing import Any

import pytest

from tests.training.ranks import run_ranks

SHARDED = {"dp4 sharded": 4, "dp2 tp2 sharded float16": 2, "pp2 dp2 sharded bfloat16": 2}
WHOLE = ("dp2 tp2", "pp2 tp2", "pp4 frozen")
CASES = (*SHARDED, *WHOLE)
# The unit of rounding at the largest weight, below 2.
ROUNDING = {"dp2 tp2 sharded float16": 2.0**-11, "pp2 dp2 sharded bfloat16": 2.0**-8}
cases = pytest.mark.parametrize("name", CASES)

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks("optimizer_cases", 4)


@cases
def test_norms_weights_and_moments_are_the_reference(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for found in (rank[name] for rank in ranks):
        assert all(found[kind] < 1e-6 for kind in ("w", "m", "v", "norm"))
        assert found["weights"] < ROUNDING.get(name, 0) + 1e-6


@cases
def test_what_is_held_twice_is_the_same_to_the_bit(ranks: list[dict[str, Any]], name: str) -> None:
    """Replicas' weights, norms on tensor-parallel partners, both ends' tied embedding."""
    copies = defaultdict(list)
    for rank in ranks:
        for place, values in rank[name]["weights_at"].items():
            copies[place].append(values)
    assert all(values == held[0] for held in copies.values() for values in held)
    several = sum(len(held) > 1 for held in copies.values())
    assert several if name != "pp4 frozen" else not several


@cases
def test_pieces_cover_every_element_once(ranks: list[dict[str, Any]], name: str) -> None:
    assert ranks[0][name]["coverage"] == [1, 1]


@cases
def test_bytes_held(ranks: list[dict[str, Any]], name: str) -> None:
    """Masters and moments only of the own part; a bucket's padding is below one element a rank."""
    for found in (rank[name] for rank in ranks):
        held, size, parts = found["held"], found["size"], SHARDED.get(name, 1)
        rounded = name in ROUNDING
        assert held["parameters"] == size * (2 if rounded else 4)
        own = held["moments"] / 8
        assert size / parts <= own <= size / parts + (4 if parts > 1 else 0)
        assert held["gradients"] == own * 4
        assert held["masters"] == (own * 4 if rounded else 0)
    if name == "pp4 frozen":
        assert [rank[name]["size"] for rank in ranks][1:3] == [0, 0]


def test_repeated_it_is_the_same_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    assert [rank["repeated"] for rank in ranks] == [0.0] * 4


@pytest.mark.parametrize(
    "path, tolerance",
    [
        ("dp2 tp2 sharded float16 -> dp2 tp2 sharded float16", 0.0),
        ("dp4 sharded -> pp2 tp2", 1e-6),
        ("pp2 tp2 -> dp4 sharded", 1e-6),
    ],
)
def test_restored_in_any_layout(ranks: list[dict[str, Any]], path: str, tolerance: float) -> None:
    """Every number arrives as it was; the same layout then goes on bit for bit."""
    for found in (rank[path] for rank in ranks):
        assert found["exact"]
        assert found["distance"] <= tolerance


def test_sums_of_losses_and_counts(ranks: list[dict[str, Any]]) -> None:
    """Each replica counts once; float32 could not hold these counts."""
    for rank in ranks:
        loss, valid = rank["totals dp2 tp2"]["sums"]
        assert loss == pytest.approx(0.1 + 0.2, rel=1e-12)
        assert valid == 2**40 - 1 + 2**40 - 2
        loss, valid = rank["totals pp4 frozen"]["sums"]
        assert loss == pytest.approx(0.1, rel=1e-12)
        assert valid == 2**40 - 1
        expected = [[str(r + 0.25), "-inf", "nan", str(2.0**47 + 1)] for r in range(4)]
        assert rank["totals dp2 tp2"]["numbers"] == expected
