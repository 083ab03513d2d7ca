"""Weights: sources placed several times, or in part; deterministic, balanced, explained."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.corpus import BuildConfig, BuildResult, Eval, Write, build
from dataprep.corpus.decide import Places, repeat
from dataprep.engine import Engine
from dataprep.readers import Input
from dataprep.trace import document_fate
from dataprep.verify import verify
from tests.conftest import document, write_jsonl

Make = Callable[..., BuildConfig]


@pytest.fixture
def config(config_for: Make, tmp_path: Path) -> BuildConfig:
    """400 documents of each of three sources with weights 1, 2.5 and 0.25; four shards."""
    inputs = []
    for k, weight in enumerate((1.0, 2.5, 0.25)):
        path = write_jsonl(
            tmp_path / f"s{k}.jsonl", [document(5000 * k + i, 2) for i in range(400)]
        )
        inputs.append(Input(str(path), source=f"s{k}", weight=weight))
    return config_for(inputs=inputs, eval=Eval(fraction=0), write=Write(shards=4))


def places(result: BuildResult) -> dict[tuple[str, int], list[str]]:
    """(source, row) -> shards in which the document begins."""
    out: dict[tuple[str, int], list[str]] = {}
    for path in sorted((result.out_dir / "audit/rows").glob("*.parquet")):
        for p in pq.read_table(path).to_pylist():
            if p["token_start"] == 0:
                out.setdefault((Path(p["file"]).stem, p["source_row"]), []).append(p["shard"])
    return out


def test_weights_act(config: BuildConfig) -> None:
    result = build(config)
    found = places(result)
    times = {s: [len(v) for (name, _), v in found.items() if name == s] for s in ("s0", "s1", "s2")}
    assert times["s0"] == [1] * 400
    assert len(times["s1"]) == 400 and set(times["s1"]) == {2, 3}
    assert 160 < times["s1"].count(3) < 240  # half of them a third time
    assert 70 < len(times["s2"]) < 130 and set(times["s2"]) == {1}
    # A repeated document is in different shards.
    assert all(len(set(shards)) == len(shards) for shards in found.values())
    ledger = result.ledger
    assert ledger.imbalances() == []
    assert ledger.below("documents.removed.") == {"mix.weight": 400 - len(times["s2"])}
    assert ledger.total("tokens.repeated") > ledger.total("tokens.tokenized") / 2
    assert verify(result.out_dir).defects == []


def test_what_a_weight_leaves_out_is_explained(config: BuildConfig) -> None:
    result = build(config)
    removed = pq.read_table(result.out_dir / "audit/removed").to_pylist()
    assert {(r["stage"], r["rule"], r["value"], r["source"]) for r in removed} == {
        ("mix", "weight", 0.25, "s2")
    }
    assert all(r["duplicate_of"] is None and r["similarity"] is None for r in removed)
    fate = document_fate(result.out_dir, result.manifest, removed[0]["file"], removed[0]["row"])
    assert fate.removed and not fate.pieces


def test_more_copies_than_shards(config: BuildConfig) -> None:
    """Four copies in two shards: verified, far apart."""
    heavy = replace(config.inputs[0], weight=4.0)
    result = build(replace(config, inputs=[heavy], write=Write(shards=2)))
    assert verify(result.out_dir).defects == []
    assert all(
        sorted(s[-14:-9] for s in v) == ["00000"] * 2 + ["00001"] * 2
        for v in places(result).values()
    )


def test_weights_are_deterministic_and_redo_no_reading(config: BuildConfig) -> None:
    config = replace(config, work_dir=str(config.out) + ".shared")
    one = build(config).manifest
    before = {p: p.stat().st_mtime_ns for p in (config.work / "a").rglob("receipt.json")}
    two = build(replace(config, out_dir=config.out_dir + "2", engine=Engine(workers=2, quiet=True)))
    assert two.manifest == one
    other = [replace(entry, weight=1.0) for entry in config.inputs]
    plain = build(replace(config, inputs=other, out_dir=config.out_dir + "3"))
    assert plain.ledger.total("tokens.repeated") == 0
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())


def test_held_out_documents_are_placed_once(config: BuildConfig) -> None:
    result = build(replace(config, eval=Eval(fraction=0.2)))
    held = [v for v in places(result).values() if any(s.startswith("eval") for s in v)]
    assert len(held) > 100 and all(len(v) == 1 for v in held)


@pytest.mark.parametrize("weight", [0, -1, 1001, float("nan")])
def test_impossible_weights(weight: float) -> None:
    with pytest.raises(UserError, match="weight of x.jsonl"):
        Input("x.jsonl", weight=weight)


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50, unique=True), st.integers(1, 60)
)
def test_no_shard_is_empty(found: list[int], shards: int) -> None:
    places = np.array(found, np.uint64)
    shards = min(shards, len(places))
    limits = Places(places, np.ones(len(places), np.int32)).borders(shards)
    used = np.searchsorted(limits, places, "right")
    assert sorted(set(used.tolist())) == list(range(shards))


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 9)), max_size=30))
def test_places_are_made_some_at_a_time(found: list[tuple[int, int]]) -> None:
    order = np.array([place for place, _ in found], np.uint64)
    copies = np.array([n for _, n in found], np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.corpus.decide.AT_ONCE", 7)
        parts = list(Places(order, copies))
    place, document = repeat(order, copies)
    assert [x for part, _ in parts for x in part.tolist()] == place.tolist()
    assert [x for _, part in parts for x in part.tolist()] == document.tolist()


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_text_of_two_sources_has_the_larger_weight(
    config_for: Make, tmp_path: Path, first: str
) -> None:
    """Whichever is read first, and so is kept: a is asked for in part, b twice."""
    texts = [document(i, 3) for i in range(200)]
    names = {"a": 0.3, "b": 2.0} if first == "a" else {"b": 2.0, "a": 0.3}
    inputs = []
    for i, (name, weight) in enumerate(names.items()):
        mine = [document(1000 + i, 3) for i in range(100)] if name == "a" else []
        path = write_jsonl(tmp_path / f"{i}-{name}.jsonl", texts + mine)
        inputs.append(Input(str(path), source=name, weight=weight))
    result = build(config_for(inputs=inputs, eval=Eval(fraction=0), write=Write(shards=4)))
    found = places(result)
    shared = [v for (_, row), v in found.items() if row < len(texts)]
    assert [len(v) for v in shared] == [2] * len(texts)
    assert 10 < len(found) - len(shared) < 60  # of those that only a holds
    assert not verify(Path(str(result.out_dir))).defects


def test_copies_stand_at_equal_distances() -> None:
    order = np.array([5, 2**63, 7], np.uint64)
    got, doc = repeat(order, np.array([1, 2, 4], np.int32))
    assert doc.tolist() == [0, 1, 1, 2, 2, 2, 2]
    quarter = (2**64 - 1) // 4
    assert got.tolist() == [5, 2**63, (2**63 + (2**64 - 1) // 2) % 2**64] + [
        7 + i * quarter for i in range(4)
    ]
