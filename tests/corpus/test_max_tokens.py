"""max_tokens: whole documents up to a limit, of single inputs and of all; seeded, explained."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentencepiece

from dataprep import UserError
from dataprep.corpus import BuildConfig, BuildResult, Eval, Write, build
from dataprep.corpus.cap import ALL, first_over
from dataprep.corpus.status import dry_run
from dataprep.engine import Engine
from dataprep.readers import Input
from dataprep.tokens import Tokenize
from dataprep.trace import document_fate
from dataprep.verify import verify
from pipelines.common import parse_config
from tests.conftest import document, write_jsonl
from tests.corpus.test_determinism import tree

Make = Callable[..., BuildConfig]
Key = tuple[str, int]  # file and row
LIMIT = 5000  # of the source with weight 2


def test_the_first_document_over_a_limit() -> None:
    """In the order of draws: 20, 10 and 30 tokens."""
    draw, size = np.array([5, 1, 9], np.uint64), np.array([10, 20, 30])
    found = {limit: first_over(draw, size, limit) for limit in (60, 59, 30, 29, 20, 19)}
    assert found == {60: ALL, 59: 9, 30: 9, 29: 5, 20: 5, 19: 1}
    assert first_over(draw[:0], size[:0], 1) == ALL


def placed(result: BuildResult, split: str = "train") -> dict[Key, tuple[int, int]]:
    """(file, row) -> (copies, tokens of one copy), as the audit of the rows has it."""
    found: dict[Key, list[int]] = {}
    for path in (result.out_dir / "audit/rows").glob(f"{split}-*.parquet"):
        for p in pq.read_table(path).to_pylist():
            both = found.setdefault((Path(p["file"]).name, p["source_row"]), [0, 0])
            both[0] += p["token_start"] == 0
            both[1] += p["length"]
    return {key: (copies, tokens // copies) for key, (copies, tokens) in found.items()}


def removed(result: BuildResult) -> dict[Key, tuple[float, float]]:
    """(file, row) -> (tokens, limit) of what max_tokens has removed."""
    rows = pq.read_table(result.out_dir / "audit/removed").to_pylist()
    assert all(r["duplicate_of"] is None for r in rows if r["stage"] == "mix")
    return {
        (Path(r["file"]).name, r["row"]): (r["value"], r["threshold"])
        for r in rows
        if (r["stage"], r["rule"]) == ("mix", "max_tokens")
    }


def draw(seed: int, file: int, row: int) -> int:
    """decide.mix, in Python's integers."""
    x, ones = seed, 2**64 - 1
    for part in (file, row):
        x = (x * 0x9E3779B97F4A7C15 + part) & ones
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & ones
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & ones
        x ^= x >> 31
    return x


def stays(documents: dict[Key, tuple[int, int]], limit: int, seed: int) -> set[Key]:
    """What is within a limit, said as plainly as it can be. The number in a name is the file's."""
    left, kept = limit, set()
    for key in sorted(documents, key=lambda key: draw(seed, int(key[0][1]), key[1])):
        copies, tokens = documents[key]
        left -= copies * tokens
        if left < 0:
            break
        kept.add(key)
    return kept


@pytest.fixture
def config(config_for: Make, tmp_path: Path) -> BuildConfig:
    """300 documents of each of three sources with weights 2, 0.5 and 1; four shards."""
    inputs = []
    for k, weight in enumerate((2.0, 0.5, 1.0)):
        texts = [document(9000 * k + i, 1 + i % 3) for i in range(300)]
        path = write_jsonl(tmp_path / f"s{k}.jsonl", texts)
        inputs.append(Input(str(path), source=f"s{k}", weight=weight))
    shared = str(tmp_path / "work")
    return config_for(
        inputs=inputs, eval=Eval(fraction=0.1), write=Write(shards=4), work_dir=shared
    )


def limited(config: BuildConfig, out: str, *limits: int | None, **fields: Any) -> BuildConfig:
    """The same with limits of the three inputs."""
    inputs = [replace(entry, max_tokens=n) for entry, n in zip(config.inputs, limits)]
    return replace(config, out_dir=config.out_dir + out, inputs=inputs, **fields)


def test_three_documents_of_known_length(tmp_path: Path, tokenizer: str, config: Any) -> None:
    """Limits met exactly, missed by one token, and larger than all there is."""
    texts = ["the river", "one word from the garden", "music"]
    sp = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
    tokens = [len(sp.encode(text)) + 1 for text in texts]
    path = write_jsonl(tmp_path / "t0.jsonl", texts)
    order = sorted(range(3), key=lambda row: draw(17 + 3, 0, row))
    one, two, three = np.cumsum([tokens[i] for i in order]).tolist()

    def kept(limit: int) -> list[int]:
        result = build(
            replace(
                config,
                inputs=[Input(str(path), max_tokens=limit)],
                out_dir=str(tmp_path / f"out{limit}"),
                write=Write(shards=1),
                eval=Eval(0),
            )
        )
        return sorted(row for _, row in placed(result))

    assert kept(three + 1) == kept(three) == [0, 1, 2]
    assert kept(three - 1) == kept(two) == sorted(order[:2])
    assert kept(two - 1) == kept(one) == order[:1]
    with pytest.raises(
        UserError, match=r"shard 0 of train would be empty: max_tokens leaves .* write\.shards"
    ):
        kept(one - 1)


def test_limits_of_inputs_and_of_all(config: BuildConfig, tokenizer: str) -> None:
    """Weights 2 and 0.5, an eval split, a limit of one input and one of all that is left."""
    plain = build(config)
    before = placed(plain)
    sizes = {key: copies * tokens for key, (copies, tokens) in before.items()}
    first = {key: v for key, v in before.items() if key[0] == "s0.jsonl"}
    assert all(copies == 2 for copies, _ in first.values())
    assert sum(sizes[key] for key in first) > 2 * LIMIT
    ours = stays(first, LIMIT, config.seed + 3)
    left = {key: v for key, v in before.items() if key in ours or key not in first}
    whole = sum(sizes[key] for key in left) // 2
    want = stays(left, whole, config.seed + 4)

    result = build(limited(config, "1", LIMIT, None, None, max_tokens=whole))
    found = placed(result)
    assert found == {key: before[key] for key in want}
    total = sum(copies * tokens for copies, tokens in found.values())
    assert whole - 300 < total <= whole
    # The limit of all takes the same share of each input.
    for name in ("s0.jsonl", "s1.jsonl", "s2.jsonl"):
        shares = [sum(sizes[k] for k in part if k[0] == name) for part in (found, left)]
        assert 0.35 < shares[0] / shares[1] < 0.65
    # Eval is neither touched nor counted.
    assert placed(result, "eval") == placed(plain, "eval") != {}
    # Every document is explained, and everything balances.
    gone = removed(result)
    assert {key: value for key, (value, _) in gone.items()} == {
        key: sizes[key] for key in before.keys() - want
    }
    assert all(
        limit == (LIMIT if key in first and key not in ours else whole)
        for key, (_, limit) in gone.items()
    )
    ledger = result.ledger
    assert ledger.imbalances() == [] == verify(result.out_dir).defects
    assert ledger.below("documents.removed.mix.")["max_tokens"] == len(gone)
    assert ledger.total("tokens.dropped.max_tokens") == sum(value for value, _ in gone.values())
    kept = ledger.total("documents.kept")
    assert kept == len(found) + len(placed(result, "eval"))
    assert plain.ledger.total("documents.kept") == kept + len(gone)
    for source in ("s0", "s1", "s2"):
        assert ledger.counts[source, "documents.kept"] > 0
    name, row = next(iter(gone))
    fate = document_fate(result.out_dir, result.manifest, name, row)
    assert not fate.pieces and fate.removed and fate.removed["rule"] == "max_tokens"


def test_a_limit_never_reached_changes_no_byte(config: BuildConfig) -> None:
    plain = tree(build(config).out_dir)
    result = build(limited(config, "1", 10**15, None, 10**9, max_tokens=10**18))
    by_config = ("manifest.json", "run.json", "SHA256SUMS")
    same = {k: v for k, v in tree(result.out_dir).items() if k not in by_config}
    assert same.items() <= plain.items() and len(same) == len(plain) - 3
    assert removed(result) == {}


def test_the_bytes_follow_from_the_config_alone(config: BuildConfig, tmp_path: Path) -> None:
    """Other workers, another order of inputs, another work folder, interrupted."""
    one = limited(config, "1", LIMIT, 3000, None, max_tokens=12_000)
    expected = tree(build(one).out_dir)
    two = replace(one, out_dir=one.out_dir + "2", engine=Engine(workers=2, quiet=True))
    assert tree(build(two).out_dir) == expected
    turned = replace(
        one, out_dir=one.out_dir + "3", inputs=one.inputs[::-1], work_dir=str(tmp_path / "other")
    )
    assert tree(build(turned).out_dir) == expected


def test_entries_of_several_files_share_a_limit(config: BuildConfig, tmp_path: Path) -> None:
    pattern = Input(str(tmp_path / "s[02].jsonl"), max_tokens=4000)
    other = Input(str(tmp_path / "s1.jsonl"), max_tokens=1000)
    result = build(replace(config, inputs=[pattern, other]))
    sums = {"s0.jsonl": 0, "s1.jsonl": 0, "s2.jsonl": 0}
    for (name, _), (copies, tokens) in placed(result).items():
        sums[name] += copies * tokens
    assert 3700 < sums["s0.jsonl"] + sums["s2.jsonl"] <= 4000
    assert sums["s0.jsonl"] > 1000 and sums["s2.jsonl"] > 1000
    assert 700 < sums["s1.jsonl"] <= 1000


def test_another_limit_redoes_only_the_cut_and_the_shards(config: BuildConfig) -> None:
    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in config.work.rglob("receipt.json")}

    build(config)
    plain = times()
    build(limited(config, "1", LIMIT, None, None))
    first = times()
    again = limited(config, "2", LIMIT, None, None, max_tokens=9000)
    told = "\n".join(dry_run(again))
    assert "max_tokens: 1 tasks, 0 done, 1 to do" in told and "changed: max_tokens" in told
    assert told.endswith("C pack, write: follows from max_tokens")
    build(again)
    last = times()
    assert {p.parent.parent.name for p, t in last.items() if plain.get(p) != t} == {"work", "c"}
    assert {p.parent.parent.name for p, t in last.items() if first[p] != t} == {"work", "c"}
    done = "\n".join(dry_run(replace(again, out_dir=again.out_dir + "3")))
    assert "max_tokens: 1 tasks, 1 done, 0 to do" in done
    assert "max_tokens: " not in "\n".join(dry_run(replace(config, out_dir=again.out_dir + "4")))


def test_an_interrupted_run_goes_on(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    one = limited(config, "1", None, None, None, max_tokens=9000)
    expected = tree(build(one).out_dir)
    two = replace(one, out_dir=one.out_dir + "2", work_dir=str(one.work) + "2")
    for name in ("cap.task", "pass_c.tasks", "audit.write_removed"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dataprep.corpus.{name}", _stop)
            with pytest.raises(UserError, match="stopped here"):
                build(two)
    assert tree(build(two).out_dir) == expected


def _stop(*args: object) -> None:
    raise UserError("stopped here")


@pytest.mark.parametrize("bad", [0, -1])
def test_impossible_limits(config_for: Make, bad: int) -> None:
    with pytest.raises(UserError, match=f"max_tokens of x.jsonl is {bad}; it must be 1 or more"):
        Input("x.jsonl", max_tokens=bad)
    with pytest.raises(UserError, match=f"max_tokens is {bad}; it must be 1 or more"):
        config_for(max_tokens=bad)


def test_the_keys_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "inputs: [{path: a.jsonl, max_tokens: 7}]\ntokenizer: {path: t}\nout_dir: o\n"
    )
    argv = ["--config", str(tmp_path / "c.yaml"), "--max_tokens", "9", "--write.buffer_mib", "3"]
    config = parse_config(BuildConfig, argv, "build", "")
    assert config == BuildConfig(
        inputs=[Input("a.jsonl", max_tokens=7)],
        tokenizer=Tokenize("t"),
        out_dir="o",
        max_tokens=9,
        write=Write(buffer_mib=3),
    )
    with pytest.raises(SystemExit):
        parse_config(BuildConfig, ["--help"], "build", "")
    told = " ".join(capsys.readouterr().out.split())
    assert "At most this many tokens in train" in told
    assert "Tokens of one shard held in memory" in told
