"""The functions of the package together, from texts to decisions, against brute force."""

import itertools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.batch import text_buffers
from dataprep.dedup import (
    Resolution,
    band_keys,
    buckets,
    choose_bands,
    first_of_equal,
    jaccard,
    permutations,
    resolve,
    shingle,
    signatures,
    text_hashes,
    unique_sorted,
)

Sets = list[npt.NDArray[np.uint64]]
DATA = Path(__file__).parents[3] / "shared" / "data" / "neardup"


def sets_of(texts: list[str], ngram: int = 5) -> Sets:
    hashes, offsets = shingle(*text_buffers(pa.array(texts, pa.large_string())), ngram)
    return [unique_sorted(hashes[a:b]) for a, b in itertools.pairwise(offsets)]


def groups_of(sets: Sets, threshold: float) -> list[tuple[np.ndarray, np.ndarray]]:
    offsets = np.append(0, np.cumsum([len(s) for s in sets])).astype(np.int64)
    sig = signatures(np.concatenate(sets), offsets, *permutations(128))
    docs = np.flatnonzero(np.diff(offsets))
    keys = band_keys(sig[docs], *choose_bands(128, threshold))
    return [buckets(row, docs) for row in keys]


def dedup(sets: Sets, threshold: float = 0.8) -> Resolution:
    groups = groups_of(sets, threshold)
    return resolve(len(sets), groups, lambda i, j: jaccard(sets[i], sets[j]), threshold)


def kept(texts: list[str], ngram: int = 5) -> list[str]:
    result = dedup(sets_of(texts, ngram))
    return [text for text, of in zip(texts, result.duplicate_of) if of < 0]


def similar_pairs(sets: Sets, threshold: float) -> dict[tuple[int, int], float]:
    """Brute force."""
    pairs = itertools.combinations(range(len(sets)), 2)
    values = {(i, j): jaccard(sets[i], sets[j]) for i, j in pairs}
    return {pair: value for pair, value in values.items() if value >= threshold}


def check_removals(result: Resolution, sets: Sets, threshold: float) -> None:
    """Every removed document has a kept, earlier one at or above the threshold, truly measured."""
    for doc in np.flatnonzero(result.duplicate_of >= 0):
        of = result.duplicate_of[doc]
        assert of < doc and result.duplicate_of[of] < 0
        value = jaccard(sets[of], sets[doc])
        assert value >= threshold and result.similarity[doc] == value
        assert result.cluster[doc] == result.cluster[of] <= of


def test_short_texts() -> None:
    assert kept(["cat", "dog", "cat"]) == ["cat", "dog"]
    assert kept(["", "短", "长", "", "!?", "..."]) == ["", "短", "长", "", "!?", "..."]
    assert kept(["a b", "b a", "A, B!"]) == ["a b", "b a"]


def test_exact_copies() -> None:
    texts = ["cat", "dog", "cat"]
    data = text_buffers(pa.array(texts, pa.large_string()))
    assert first_of_equal(text_hashes(*data)).tolist() == [0, 1, 0]


def test_a_chinese_near_copy_is_found() -> None:
    """One clause in thirty differs. As whole clauses for words, all five-grams around it would."""
    rng = np.random.default_rng(0)
    chars = [chr(c) for c in range(0x4E00, 0x9FA5)]
    clauses = ["".join(rng.choice(chars, 10)) for _ in range(31)]
    text = "，".join(clauses[:30]) + "。"
    copy = "，".join(clauses[:14] + clauses[30:] + clauses[15:30]) + "。"
    other = "，".join("".join(rng.choice(chars, 10)) for _ in range(30)) + "。"
    sets = sets_of([text, other, copy])
    # 296 five-grams each, of which the 10 new characters touch 14.
    assert jaccard(sets[0], sets[2]) == (296 - 14) / (296 + 14) > 0.8
    assert dedup(sets).duplicate_of.tolist() == [-1, -1, 0]


def test_a_hundred_unique_documents_stay() -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(map(str, rng.integers(0, 1000, 200))) for _ in range(100)]
    assert kept(texts) == texts
    assert dedup(sets_of(texts)).cluster.tolist() == list(range(100))


def test_copies_in_any_place_give_the_earliest() -> None:
    rng = np.random.default_rng(2)
    words = [str(w) for w in rng.integers(0, 1000, 200)]
    copies = [" ".join(words[:i] + ["new"] + words[i + 1 :]) for i in (0, 50, 100, 199)]
    assert kept(["first one here is other"] + copies) == ["first one here is other", copies[0]]


def planted(rng: np.random.Generator, size: int, shared: int) -> Sets:
    """Two sets of `size` hashes with `shared` in common: J = shared / (2 * size - shared)."""
    hashes = rng.integers(0, 2**64, 2 * size - shared, dtype=np.uint64)
    return [np.sort(hashes[:size]), np.sort(hashes[size - shared :])]


@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9])
def test_recall_of_planted_pairs(threshold: float) -> None:
    """2,000 pairs over J = 0.5..1: what is at or above the threshold is found, the rest stays."""
    rng = np.random.default_rng(4)
    sets: Sets = []
    truth = []
    for share in np.linspace(0.5, 1, 2000):
        sets += planted(rng, 300, round(600 * share / (1 + share)))
        truth.append(jaccard(sets[-2], sets[-1]))
    result = dedup(sets, threshold)
    removed = result.duplicate_of[1::2] == np.arange(0, len(sets), 2)
    similar = np.array(truth) >= threshold
    assert not removed[~similar].any() and (result.duplicate_of[::2] < 0).all()
    assert removed[similar].mean() >= 0.995
    check_removals(result, sets, threshold)


def test_recall_at_the_threshold_is_as_promised() -> None:
    """2,000 pairs of exactly J = 0.8 meet in a bucket at about the share of choose_bands."""
    rng = np.random.default_rng(5)
    pairs = [planted(rng, 270, 240) for _ in range(2000)]
    result = dedup([s for pair in pairs for s in pair])
    bands, rows = choose_bands(128, 0.8)
    promised = 1 - (1 - 0.8**rows) ** bands
    assert abs((result.duplicate_of[1::2] >= 0).mean() - promised) < 0.003


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.6, 0.8]))
def test_random_families(seed: int, threshold: float) -> None:
    """Families around common ancestors, all degrees of likeness, against brute force."""
    rng = np.random.default_rng(seed)
    sets: Sets = []
    for _ in range(4):
        ancestor = rng.integers(0, 2**64, 60, dtype=np.uint64)
        for _ in range(6):
            copy = ancestor.copy()
            changed = rng.random(60) < rng.choice([0, 0.03, 0.1, 0.3])
            copy[changed] = rng.integers(0, 2**64, changed.sum(), dtype=np.uint64)
            sets.append(unique_sorted(copy))
    rng.shuffle(sets)
    result = dedup(sets, threshold)
    check_removals(result, sets, threshold)
    stays = result.duplicate_of < 0
    missed = [p for p in similar_pairs(sets, threshold) if stays[list(p)].all()]
    assert len(missed) <= 2
    assert (result.cluster <= np.arange(len(sets))).all()
    assert (result.cluster[result.cluster] == result.cluster).all()


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")
@pytest.mark.parametrize("name", ["spdx_licenses", "google_license_variants"])
def test_licences(name: str) -> None:
    """Real near-copies: every pair at or above 0.8, with recall as promised."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    sets = sets_of([d["text"] for d in documents])
    truth = similar_pairs(sets, 0.8)
    met = set()
    for members, starts in groups_of(sets, 0.8):
        for a, b in itertools.pairwise(starts):
            met.update(itertools.combinations(members[a:b].tolist(), 2))
    assert len(truth) > 80
    assert sum(pair in met for pair in truth) >= 0.995 * len(truth)

    result = dedup(sets)
    check_removals(result, sets, 0.8)
    stays = result.duplicate_of < 0
    assert sum(stays[i] and stays[j] for i, j in truth) <= 0.005 * len(truth)

    # Computed independently, with words as \w+: where that means the same, so are the values.
    simple = {
        d["id"]: shingles
        for d, shingles in zip(documents, sets)
        if "_" not in d["text"] and max(d["text"]) < "\u0300"
    }
    rows = (DATA / f"{name}_pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]
    values = {(a, b): float(word5) for a, b, word5, _ in (row.split("\t") for row in rows)}
    both = [pair for pair in values if pair[0] in simple and pair[1] in simple]
    assert len(both) > 100
    for a, b in both:
        assert jaccard(simple[a], simple[b]) == pytest.approx(values[a, b], abs=1e-5)
