"""The stage: text becomes ids, every document and token counted, in any worker."""

import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import tokens
from dataprep.batch import make_batch
from dataprep.ledger import TaskLedger
from dataprep.tokens import Tokenize
from dataprep.tokens.tokenizer import flatten

CharLevel = Callable[[dict[str, int]], Path]


def run(stage: Tokenize, texts: Sequence[str]) -> tuple[dict[int, list[int]], TaskLedger]:
    """Ids by row."""
    batch = make_batch(4, range(len(texts)), pa.array(texts, pa.large_string()))
    ledger = TaskLedger("x")
    rows = [r for b in stage(iter([batch]), ledger) for r in b.to_pylist()]
    assert all(r["split"] == 4 for r in rows)
    return {r["row"]: r["tokens"] for r in rows}, ledger


VOCAB = {"a": 10, "b": 11, "</s>": 1, "<s>": 2}


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "ids"),
    [
        (False, True, [10, 11, 1]),
        (True, True, [2, 10, 11, 1]),
        (True, False, [2, 10, 11]),
        (False, False, [10, 11]),
    ],
)
def test_what_stands_around_a_document(
    add_bos: bool, add_eos: bool, ids: list[int], char_level: CharLevel
) -> None:
    stage = Tokenize(str(char_level(VOCAB)), add_bos, add_eos)
    found, ledger = run(stage, ["a b", "b"])
    assert found == {0: ids, 1: [i for i in ids if i != 10]}
    assert ledger.ledger.total("tokens.tokenized") == 2 * len(ids) - 1
    assert ledger.ledger.total("documents.kept") == 2


def test_a_document_without_a_token_of_its_own_is_removed(char_level: CharLevel) -> None:
    """Not kept as a lone end-of-document id."""
    found, ledger = run(Tokenize(str(char_level(VOCAB)), add_bos=True), ["a", "", " ", "x", "b"])
    assert found == {0: [2, 10, 1], 4: [2, 11, 1]}
    removed = [r for b in ledger.removed for r in b.to_pylist()]
    assert [(r["split"], r["row"], r["stage"], r["rule"]) for r in removed] == [
        (4, row, "tokens", "no_tokens") for row in (1, 2, 3)
    ]
    counts = {name: n for (_, name), n in ledger.ledger.counts.items()}
    assert counts == {
        "documents.kept": 2,
        "documents.removed.tokens.no_tokens": 3,
        "tokens.tokenized": 6,
    }


def test_nothing_survives(char_level: CharLevel) -> None:
    found, ledger = run(Tokenize(str(char_level(VOCAB))), ["", "x"])
    assert found == {}
    assert ledger.ledger.total("documents.removed.") == 2


def test_ids_above_16_bits_are_kept(char_level: CharLevel) -> None:
    vocab = {"a": 65_535, "b": 65_536, "c": 200_000, "</s>": 70_000}
    found, _ = run(Tokenize(str(char_level(vocab))), ["abc", "cb a"])
    assert found == {0: [65_535, 65_536, 200_000, 70_000], 1: [200_000, 65_536, 65_535, 70_000]}


def test_other_columns_pass_through(tiny: dict[str, Path]) -> None:
    batch = make_batch(0, range(600), pa.array(["a b"] * 600, pa.large_string()))
    batch = batch.append_column("shard", pa.array(np.arange(600) % 7))
    out = list(Tokenize(str(tiny["tokenizers"]))(iter([batch]), TaskLedger("x")))
    assert len(out) == -(-600 // tokens._TEXTS)
    table = pa.Table.from_batches(out)
    assert table.column_names == ["split", "row", "shard", "tokens"]
    assert table["row"].to_pylist() == list(range(600))
    assert table["shard"].to_pylist() == [i % 7 for i in range(600)]
    assert table.schema.field("tokens").type == pa.large_list(pa.int32())


def test_no_batches(tiny: dict[str, Path]) -> None:
    assert list(Tokenize(str(tiny["tokenizers"]))(iter([]), TaskLedger("x"))) == []


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
def test_a_document_depends_on_nothing_around_it(
    kind: str, tiny: dict[str, Path], samples: list[str]
) -> None:
    stage = Tokenize(str(tiny[kind]))
    together, _ = run(stage, samples)
    alone = [run(stage, [text])[0].get(0) for text in samples]
    assert [together.get(i) for i in range(len(samples))] == alone
    assert together[1][-1] == stage.load().info.eos_id


@settings(deadline=None)
@given(
    ids=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5),
    prefix=st.none() | st.integers(0, 9),
    suffix=st.none() | st.integers(0, 9),
)
def test_flatten(ids: list[list[int]], prefix: int | None, suffix: int | None) -> None:
    flat, offsets = flatten(ids, prefix, suffix)
    assert flat.dtype == np.int32 and offsets.dtype == np.int64
    around = [[x for x in (prefix,) if x is not None], [x for x in (suffix,) if x is not None]]
    documents = [flat[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
    assert documents == [around[0] + x + around[1] for x in ids]


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_after_use_in_the_parent(method: str, kind: str, tiny: dict[str, Path]) -> None:
    """Encode, then fork: a thread pool inherited locked would hang (tokenizers 187)."""
    command = [sys.executable, "-m", "tests.tokens.use_then_fork", method, str(tiny[kind])]
    root = Path(__file__).parents[2]
    run = subprocess.run(
        command, cwd=root, timeout=120, check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
def test_two_megabytes_without_a_space_end_in_bounded_time(
    kind: str, tiny: dict[str, Path]
) -> None:
    rnd = random.Random(1)
    stage = Tokenize(str(tiny[kind]))
    seconds: list[float] = []
    for n in (250_000, 2_000_000):
        text = "".join(rnd.choices("etaoinshr", k=n))
        begin = time.process_time()
        found, _ = run(stage, [text])
        seconds.append(time.process_time() - begin)
        assert stage.load().encoder.decode(found[0][:-1]) == text
    # Eight times the text in about eight times the time; 64 times would be the square.
    assert seconds[1] < 24 * seconds[0] + 1


def test_a_stage_pickles() -> None:
    stage: Any = Tokenize("x.model", True, False, "</s>", "<s>", "<pad>")
    assert pickle.loads(pickle.dumps(stage)) == stage
