"""Who stays: rows to check by eye, then the kernels against the rule in plain Python."""

import importlib
import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dedup import Resolution, resolve

Groups = list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def band(*found: list[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    sizes = [len(bucket) for bucket in found]
    members = np.array(list(itertools.chain(*found)), np.int64)
    return members, np.append(0, np.cumsum(sizes)).astype(np.int64)


def table(pairs: dict[tuple[int, int], float]) -> Callable[[int, int], float]:
    """Similarities by (kept, document); 0 for others."""
    return lambda document, kept: pairs.get((kept, document), 0.0)


def rows(result: Resolution) -> list[tuple[int, float | None, int]]:
    """(duplicate_of, similarity, cluster) of each document."""
    assert result.duplicate_of.dtype == result.cluster.dtype == np.int64
    assert result.similarity.dtype == np.float64
    values = [None if np.isnan(v) else round(float(v), 4) for v in result.similarity]
    return list(zip(result.duplicate_of.tolist(), values, result.cluster.tolist()))


def test_the_earliest_stays() -> None:
    result = resolve(4, [band([1, 3])], table({(1, 3): 0.9}), 0.8)
    assert rows(result) == [(-1, None, 0), (-1, None, 1), (-1, None, 2), (1, 0.9, 1)]


def test_the_threshold_itself_is_enough() -> None:
    assert resolve(2, [band([0, 1])], table({(0, 1): 0.8}), 0.8).duplicate_of.tolist() == [-1, 0]
    below = table({(0, 1): float(np.nextafter(0.8, 0))})
    assert resolve(2, [band([0, 1])], below, 0.8).duplicate_of.tolist() == [-1, -1]


def test_a_chain_keeps_its_far_end() -> None:
    """A~B~C, but not A~C: B goes, and C has no kept document to repeat; all are one cluster."""
    similarity = table({(0, 1): 0.85, (1, 2): 0.85, (0, 2): 0.7})
    result = resolve(3, [band([0, 1, 2])], similarity, 0.8)
    assert rows(result) == [(-1, None, 0), (0, 0.85, 0), (-1, None, 0)]


def test_a_cluster_is_linked_through_removed_documents() -> None:
    """A~B~D~C with A and C kept, B and D removed: the link of B and D makes it one cluster."""
    similarity = table({(0, 2): 0.9, (1, 3): 0.9, (2, 3): 0.9})
    result = resolve(4, [band([0, 2], [1, 3]), band([2, 3])], similarity, 0.8)
    assert rows(result) == [(-1, None, 0), (-1, None, 0), (0, 0.9, 0), (1, 0.9, 0)]


def test_a_document_like_two_kept_ones_joins_their_clusters() -> None:
    similarity = table({(0, 2): 0.8, (1, 2): 0.95, (0, 1): 0.5})
    result = resolve(4, [band([1, 2], [0, 3]), band([0, 2])], similarity, 0.8)
    assert rows(result) == [(-1, None, 0), (-1, None, 0), (0, 0.8, 0), (-1, None, 3)]


def test_near_copies_cost_one_comparison_each() -> None:
    calls = []

    def similarity(document: int, kept: int) -> float:
        calls.append((document, kept))
        return 1.0

    everyone = list(range(500))
    result = resolve(500, [band(everyone)] * 21, similarity, 0.8)
    assert calls == [(document, 0) for document in range(1, 500)]
    assert result.duplicate_of.tolist() == [-1] + [0] * 499
    assert result.cluster.tolist() == [0] * 500
    assert result.capped == 0


def test_a_family_below_the_threshold_costs_a_bounded_number_of_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("dataprep.dedup.resolve")
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    calls = []

    def similarity(document: int, kept: int) -> float:
        calls.append((document, kept))
        return 0.7

    result = resolve(6, [band([0, 1, 2, 3, 4, 5])], similarity, 0.8)
    pairs = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    pairs += [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2)]
    assert calls == pairs
    assert result.capped == 2
    assert result.duplicate_of.tolist() == [-1] * 6


def test_nothing_to_resolve() -> None:
    nothing = (np.zeros(0, np.int64), np.zeros(1, np.int64))
    for groups in ([], [nothing, nothing]):
        assert rows(resolve(2, groups, table({}), 0.8)) == [(-1, None, 0), (-1, None, 1)]
    assert rows(resolve(0, [], table({}), 0.8)) == []


def plain(n_docs: int, groups: Groups, sim: npt.NDArray, threshold: float) -> list[list[float]]:
    """The rule, with sets and dicts; clusters are connected components of all similar partners."""
    partners: dict[int, set[int]] = {doc: set() for doc in range(n_docs)}
    for members, starts in groups:
        for a, b in itertools.pairwise(starts):
            for one, other in itertools.permutations(members[a:b].tolist(), 2):
                partners[one].add(other)
    kept: list[int] = []
    clusters = [{doc} for doc in range(n_docs)]
    result = []
    for doc in range(n_docs):
        linked = [k for k in range(doc) if k in partners[doc] and sim[k, doc] >= threshold]
        similar = [k for k in linked if k in kept]
        for k in linked:
            joined = clusters[k] | clusters[doc]
            for member in joined:
                clusters[member] = joined
        if not similar:
            kept.append(doc)
        result.append([similar[0], sim[similar[0], doc]] if similar else [-1, -1])
    return [row + [min(clusters[doc])] for doc, row in enumerate(result)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, Groups]:
    n_docs = draw(st.integers(1, 14))
    bands = []
    for _ in range(draw(st.integers(0, 4))):
        labels = draw(st.lists(st.integers(0, 3), min_size=n_docs, max_size=n_docs))
        found = [[d for d in range(n_docs) if labels[d] == label] for label in range(4)]
        bands.append(band(*sorted(b for b in found if len(b) > 1)))
    return n_docs, bands


@given(cases(), st.integers(0, 2**32 - 1))
def test_the_kernels_follow_the_rule(case: tuple[int, Groups], seed: int) -> None:
    n_docs, groups = case
    sim = np.random.default_rng(seed).integers(0, 5, (n_docs, n_docs)) / 4
    asked: list[tuple[int, int]] = []

    def similarity(document: int, kept: int) -> float:
        asked.append((document, kept))
        return float(sim[kept, document])

    got = resolve(n_docs, iter(groups), similarity, 0.75)
    stays = got.duplicate_of < 0
    assert np.array_equal(np.isnan(got.similarity), stays)
    values = np.where(stays, -1, got.similarity)
    expected = plain(n_docs, groups, sim, 0.75)
    assert np.stack([got.duplicate_of, values, got.cluster], 1).tolist() == expected
    assert len(asked) == len(set(asked))
    assert all(earlier < document for document, earlier in asked)
    documents = [document for document, _ in asked]
    assert documents == sorted(documents)
