"""Invariants 2, 3, 6: all is accounted for, explained, and no document goes without a kept one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencepiece

from dataprep import UserError, dedup
from dataprep.batch import text_buffers
from dataprep.clean import Clean
from dataprep.corpus import BuildConfig, BuildResult, Eval, Write, build
from dataprep.dedup.config import Dedup
from dataprep.engine import Engine
from dataprep.ledger import Ledger, TaskLedger
from dataprep.manifest import Manifest
from dataprep.mindrecord import ShardReader
from dataprep.pack import Pack
from dataprep.readers import Input, Read, expand, plan_splits
from dataprep.tokens import Tokenize
from dataprep.trace import document_fate
from tests.conftest import document, write_jsonl

Make = Callable[..., BuildConfig]


@pytest.fixture
def built(config_for: Make) -> BuildResult:
    return build(config_for())


def cleaned(built: BuildResult) -> dict[tuple[str, int], str]:
    """(file, row) -> cleaned text, by reading the inputs again."""
    out = {}
    files = expand([Input(f["path"]) for f in built.manifest.inputs])
    for split in plan_splits(files):
        ledger = TaskLedger("again")
        for batch in Clean()(Read()(split, 0, ledger), ledger):
            for row, text in zip(batch.column("row").to_pylist(), batch.column("text").to_pylist()):
                out[split.file.path, row] = text
    return out


def test_counts_of_the_made_corpus(built: BuildResult) -> None:
    ledger = built.ledger
    assert ledger.total("documents.read") == 150
    assert ledger.below("documents.removed.") == {
        "dedup.exact": 20,
        "dedup.minhash": 5,
        "clean.empty": 1,
        "read.invalid_json": 1,
    }
    assert ledger.total("documents.kept") == 123
    assert ledger.imbalances() == []
    assert ledger.sources() == ["", "lines", "web"]


def test_every_removed_document_is_explained(built: BuildResult) -> None:
    removed = pq.read_table(built.out_dir / "audit/removed").to_pylist()
    assert len(removed) == 27
    keys = {(r["file"], r["row"]) for r in removed}
    assert len(keys) == 27
    for r in removed:
        assert r["source"] == "web" and r["stage"] and r["rule"]
        if r["stage"] == "dedup":
            name, row = r["duplicate_of"].rsplit(":", 1)
            assert (name, int(row)) not in keys  # a document that stayed
            assert r["similarity"] >= r["threshold"] or r["rule"] == "exact"
            assert document_fate(built.out_dir, built.manifest, name, int(row)).pieces
    empty = next(r for r in removed if r["rule"] == "empty")
    assert (empty["row"], empty["value"], empty["threshold"]) == (78, 0.0, 1.0)
    assert next(r for r in removed if r["rule"] == "invalid_json")["row"] == 79


def test_every_token_traces_to_its_source(built: BuildResult, tokenizer: str) -> None:
    """Each piece of each row holds exactly those tokens of that document; all of them, once."""
    sp = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
    texts = cleaned(built)
    placed: dict[tuple[str, int], int] = {}
    for shards in built.manifest.splits.values():
        for shard in shards:
            name = Path(shard.path).stem
            with ShardReader(built.out_dir / shard.path) as reader:
                ids = reader.read(0, len(reader))["input_ids"]
            for p in pq.read_table(built.out_dir / f"audit/rows/{name}.parquet").to_pylist():
                key = p["file"], p["source_row"]
                tokens = [*sp.encode(texts[key]), sp.eos_id()]
                want = tokens[p["token_start"] : p["token_start"] + p["length"]]
                assert ids[p["row"], p["start"] : p["start"] + p["length"]].tolist() == want
                placed[key] = placed.get(key, 0) + p["length"]
    removed = pq.read_table(built.out_dir / "audit/removed").to_pylist()
    gone = {(r["file"], r["row"]) for r in removed}
    assert placed == {
        key: len(sp.encode(text)) + 1 for key, text in texts.items() if key not in gone
    }


def test_removed_means_a_kept_one_is_that_similar(built: BuildResult) -> None:
    """Brute force over all pairs, with plain sets: nothing removed in vain, nothing missed."""
    texts = cleaned(built)
    removed = pq.read_table(built.out_dir / "audit/removed").to_pylist()
    gone = {(r["file"], r["row"]): r for r in removed if r["stage"] == "dedup"}
    sets = {}
    for key, text in texts.items():
        shingles, _ = dedup.shingle(*text_buffers(pa.array([text], pa.large_string())), 5)
        sets[key] = set(shingles.tolist())

    def jaccard(a: tuple[str, int], b: tuple[str, int]) -> float:
        return len(sets[a] & sets[b]) / len(sets[a] | sets[b])

    kept = [key for key in texts if key not in gone]
    for key, r in gone.items():
        name, row = r["duplicate_of"].rsplit(":", 1)
        assert jaccard(key, (name, int(row))) == pytest.approx(r["similarity"])
        assert r["similarity"] >= 0.8
    assert not [(a, b) for i, a in enumerate(kept) for b in kept[:i] if jaccard(a, b) >= 0.8]


def test_an_unbalanced_ledger_stops_the_build(
    config_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ledger.to_json

    def lose_one(self: Ledger) -> dict[str, dict[str, int]]:
        told = real(self)
        if "documents.kept" in told.get("web", {}):
            told["web"]["documents.kept"] -= 1
        return told

    monkeypatch.setattr(Ledger, "to_json", lose_one)
    config = config_for()
    with pytest.raises(UserError, match="documents.read = 150 but"):
        build(config)
    assert not config.out.exists()


def small(tmp_path: Path, tokenizer: str, texts: list[str], **fields: object) -> BuildResult:
    """A build of a handful of documents with two workers."""
    path = write_jsonl(tmp_path / "small.jsonl", texts)
    base: dict[str, object] = {
        "inputs": [Input(str(path))],
        "tokenizer": Tokenize(tokenizer),
        "out_dir": str(tmp_path / "small"),
        "pack": Pack(seq_length=32),
        "write": Write(shards=2),
        "engine": Engine(workers=2, quiet=True),
    }
    return build(BuildConfig(**{**base, **fields}))  # type: ignore[arg-type]


def kept_rows(result: BuildResult) -> list[int]:
    tables = [pq.read_table(p) for p in (result.out_dir / "audit/rows").glob("*.parquet")]
    return sorted({row for table in tables for row in table["source_row"].to_pylist()})


def test_short_texts_do_not_merge(tmp_path: Path, tokenizer: str) -> None:
    """text-dedup 77: short texts shared one empty signature."""
    assert kept_rows(small(tmp_path, tokenizer, ["cat", "dog", "cat"])) == [0, 1]


def test_short_chinese_texts_stay(tmp_path: Path, tokenizer: str) -> None:
    """data-juicer PR 1051: an empty or short text crashed, then merged."""
    result = small(tmp_path, tokenizer, ["", "短", "长"])
    assert kept_rows(result) == [1, 2]
    assert result.ledger.below("documents.removed.") == {"clean.empty": 1}


@pytest.mark.parametrize(
    "texts",
    [
        ["C", "C++", "C#"],
        ["x = -1", "x = 1", "x != 1", "x > 1"],
        ["-5", "5"],
        ["US", "us"],
        [f"return a {op} b" for op in "+-*/%&|^"],
    ],
)
def test_short_texts_that_differ_in_symbols_stay(
    tmp_path: Path, tokenizer: str, texts: list[str]
) -> None:
    """What shingles leave out (case, operators) may be all that matters in a short text."""
    result = small(tmp_path, tokenizer, texts, engine=Engine(quiet=True))
    assert kept_rows(result) == list(range(len(texts)))


def test_unique_documents_all_stay(tmp_path: Path, tokenizer: str) -> None:
    """dclm 83: a filter updated twice removed 90 %."""
    texts = [document(1000 + i, 5) for i in range(100)]
    assert kept_rows(small(tmp_path, tokenizer, texts)) == list(range(100))


def test_a_chinese_near_copy_is_found(tmp_path: Path, tokenizer: str) -> None:
    """datatrove 234: one clause of 30 changed."""
    han = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"
    rng = np.random.default_rng(5)
    clauses = ["".join(rng.choice(list(han), 9)) for _ in range(31)]
    one, two = "，".join(clauses[:30]), "，".join([*clauses[:14], clauses[30], *clauses[15:30]])
    result = small(tmp_path, tokenizer, [one, two], write=Write(shards=1))
    assert kept_rows(result) == [0]
    assert result.ledger.below("documents.removed.") == {"dedup.minhash": 1}


def test_one_document_is_enough(tmp_path: Path, tokenizer: str) -> None:
    result = small(tmp_path, tokenizer, ["just one", "", "\n\n"])
    assert kept_rows(result) == [0]
    assert result.manifest.rows("train") == 1


@pytest.mark.parametrize("texts", [[], ["", "\n\n", " "], ["!!!", "..."]])
def test_nothing_left_is_a_clear_end(tmp_path: Path, tokenizer: str, texts: list[str]) -> None:
    with pytest.raises(UserError, match=f"no document is left of {len(texts)} read"):
        small(tmp_path, tokenizer, texts)
    assert not (tmp_path / "small").exists()


def test_dedup_can_be_switched_off(tmp_path: Path, tokenizer: str) -> None:
    result = small(tmp_path, tokenizer, ["cat", "cat"], dedup=Dedup(method="none"))
    assert kept_rows(result) == [0, 1]


def test_eval_takes_whole_clusters(tmp_path: Path, tokenizer: str) -> None:
    """A~B~C with A and C too far apart: A and C both stay, always on the same side."""
    texts = []
    for i in range(40):
        words = [f"w{i}x{j}" for j in range(120)]
        b = words[8:] + [f"b{i}y{j}" for j in range(6)]
        c = b[8:] + [f"c{i}z{j}" for j in range(6)]
        texts += [" ".join(words), " ".join(b), " ".join(c)]
    result = small(tmp_path, tokenizer, texts, eval=Eval(fraction=0.3), write=Write(shards=2))
    sides: dict[int, set[str]] = {}
    kept = 0
    for path in (result.out_dir / "audit/rows").glob("*.parquet"):
        for row in set(pq.read_table(path)["source_row"].to_pylist()):
            sides.setdefault(row // 3, set()).add(path.name.split("-")[0])
            kept += 1
    assert kept == 80  # B of each three is gone
    assert all(len(side) == 1 for side in sides.values())
    held = sum(side == {"eval"} for side in sides.values())
    assert held == 12  # 24 documents of 80


def test_a_manifest_survives_a_round_trip(built: BuildResult) -> None:
    assert Manifest.load(built.out_dir) == built.manifest
