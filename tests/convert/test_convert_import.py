"""Tokenized documents become an output folder: literal rows, then what must hold for all."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep import Manifest, UserError
from dataprep.convert import ImportConfig, Tokenized, Vocabulary, import_tokens, steps
from dataprep.convert.inputs import find_data_sets
from dataprep.corpus import Write
from dataprep.engine import Engine
from dataprep.mindformers import write_mindformers
from dataprep.mindrecord import ShardReader
from dataprep.pack import Pack
from dataprep.report import write_report
from dataprep.trace import document_fate
from dataprep.verify import verify
from pipelines.inspect import main as inspect
from tests.convert import judge
from tests.convert.conftest import MakeImport
from tests.corpus.test_determinism import tree

MANY = [[1 + (i * j) % 99 for j in range(i * 7 % 23)] for i in range(200)]


def run(config: ImportConfig) -> Manifest:
    return import_tokens(config, [write_mindformers(config.out), write_report]).manifest


def rows(out: Path, split: str = "train") -> list[dict[str, list[int]]]:
    """All rows of a split, in order."""
    found = []
    for path in Manifest.load(out).files(out, split):
        with ShardReader(Path(path)) as reader:
            columns = {k: v.tolist() for k, v in reader.read(0, len(reader)).items()}
            found += [dict(zip(columns, row)) for row in zip(*columns.values())]
    return found


def test_a_few_documents(tmp_path: Path, import_of: MakeImport) -> None:
    prefix = judge.write(tmp_path / "x", [[5, 6, 7], [], [8, 9]])
    config = import_of(
        prefix,
        shuffle=False,
        pack=Pack(seq_length=6, strategy="concat", max_documents=4),
        write=Write(shards=1),
    )
    manifest = run(config)
    assert rows(config.out) == [
        {
            "actual_seq_len": [3, 5, 6, 6],
            "input_ids": [5, 6, 7, 8, 9, 0],
            "labels": [6, 7, -100, 9, -100, -100],
            "loss_mask": [1, 1, 0, 1, 0, 0],
            "position_ids": [0, 1, 2, 0, 1, 0],
        }
    ]
    assert manifest.ledger == {
        "": {
            "slots.padding": 1,
            "slots.total": 6,
            "targets.masked.document_end": 2,
            "targets.masked.padding": 1,
            "targets.trained": 3,
            "tokens.placed": 5,
        },
        "default": {
            "documents.kept": 2,
            "documents.read": 3,
            "documents.removed.import.empty": 1,
            "tokens.tokenized": 5,
        },
    }
    size = (tmp_path / "x.bin").stat().st_size + (tmp_path / "x.idx").stat().st_size
    assert manifest.inputs == [
        {
            "path": f"{prefix}.bin",
            "source": "default",
            "format": "megatron",
            "bytes": size,
            "rows": 3,
        }
    ]
    (removed,) = pq.read_table(config.out / "audit" / "removed").to_pylist()
    told = (removed["file"], removed["row"], removed["stage"], removed["rule"])
    assert told == (f"{prefix}.bin", 1, "import", "empty")
    fate = document_fate(config.out, manifest, "x.bin", 1)
    assert not fate.pieces and fate.removed and fate.removed["rule"] == "empty"
    (piece,) = document_fate(config.out, manifest, "x.bin", 2).pieces
    assert (piece.row, piece.start, piece.length, piece.token_start) == (0, 3, 2, 0)
    assert verify(config.out).defects == []


def test_ids_can_be_inspected(
    tmp_path: Path, import_of: MakeImport, capsys: pytest.CaptureFixture[str]
) -> None:
    config = import_of(judge.write(tmp_path / "x", [[5, 6, 7]]))
    run(config)
    assert inspect([str(config.out), "--ids"]) == 0
    assert "5 6 " in capsys.readouterr().out


@pytest.mark.parametrize(
    "columns",
    ["mindformers", "legacy", "legacy_labels", "compact", ["input_ids", "labels"]],
    ids=str,
)
@pytest.mark.parametrize("isolate", [True, False])
def test_every_preset_is_verified(
    tmp_path: Path, import_of: MakeImport, columns: Any, isolate: bool
) -> None:
    config = import_of(
        judge.write(tmp_path / "x", MANY),
        pack=Pack(seq_length=8, max_documents=4, isolate_documents=isolate),
        write=Write(shards=3, columns=columns),
    )
    run(config)
    verdict = verify(config.out)
    assert verdict.defects == [] and verdict.shards == 3
    assert verdict.tokens == sum(map(len, MANY))


def test_the_same_bytes_for_any_workers_and_tasks(
    tmp_path: Path, import_of: MakeImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = judge.write(tmp_path / "x", MANY)
    expected = tree(import_tokens(import_of(prefix, out="one")).out_dir)
    two = import_of(prefix, out="two", engine=Engine(workers=2, quiet=True))
    assert tree(import_tokens(two).out_dir) == expected
    real = steps.place_task
    monkeypatch.setattr(
        "dataprep.convert.ingest.place_task",
        lambda *args: real(*args[:-1], task_bytes=300),
    )
    cut = import_of(prefix, out="cut")
    got = tree(import_tokens(cut).out_dir)
    assert len(list((cut.work / "b").iterdir())) > 20
    assert without_removed(got) == without_removed(expected)


def without_removed(files: dict[str, str]) -> dict[str, str]:
    """Removed documents are in one file a task; SHA256SUMS lists those."""
    return {k: v for k, v in files.items() if "removed" not in k and k != "SHA256SUMS"}


def test_a_second_run_does_nothing(tmp_path: Path, import_of: MakeImport) -> None:
    config = import_of(judge.write(tmp_path / "x", MANY))
    first = import_tokens(config)
    again = import_tokens(config)
    assert first.seconds and not again.seconds
    assert again.manifest == first.manifest
    with pytest.raises(UserError, match=r"holds another run \(different: config.seed\)"):
        import_tokens(replace(config, seed=18))


def test_an_interrupted_run_goes_on(
    tmp_path: Path, import_of: MakeImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = judge.write(tmp_path / "x", MANY)
    expected = tree(import_tokens(import_of(prefix, out="expected")).out_dir)
    config = import_of(prefix)
    for name in ("convert.ingest.spill_tasks", "corpus.pass_c.tasks", "corpus.audit.write_tables"):
        with monkeypatch.context() as patch:
            patch.setattr(f"dataprep.{name}", _stop)
            with pytest.raises(UserError, match="stopped here"):
                import_tokens(config)
        assert not config.out.exists()
    spilled = {p: p.stat().st_mtime_ns for p in config.work.glob("b/*/receipt.json")}
    assert spilled
    assert tree(import_tokens(config).out_dir) == expected
    assert {p: p.stat().st_mtime_ns for p in spilled} == spilled


def _stop(*args: object) -> None:
    raise UserError("stopped here")


def test_source_order(tmp_path: Path, import_of: MakeImport) -> None:
    """Two data sets, three shards: the ids of all rows, one after another, are those of all
    documents, by path and number."""
    a = judge.write(tmp_path / "a", MANY[:120])
    b = judge.write(tmp_path / "b", MANY[120:])
    config = import_of(
        b,
        a,
        shuffle=False,
        pack=Pack(seq_length=8, strategy="concat", max_documents=64),
        write=Write(shards=3),
    )
    run(config)
    got = [i for row in rows(config.out) for i in row["input_ids"]]
    flat = [i for ids in MANY for i in ids]
    assert [i for i in got if i] == flat  # 0 is the padding, and no id of MANY
    sizes = [shard.tokens for shard in Manifest.load(config.out).splits["train"]]
    assert max(sizes) - min(sizes) < 2 * 23


def test_the_shuffle_mixes_and_follows_the_seed(tmp_path: Path, import_of: MakeImport) -> None:
    prefix = judge.write(tmp_path / "x", MANY)
    made = {}
    for seed in (1, 2):
        config = import_of(prefix, out=f"out{seed}", seed=seed)
        run(config)
        table = pq.read_table(config.out / "audit" / "rows", columns=["source_row"])
        made[seed] = table["source_row"].to_pylist()
    assert made[1] != made[2] and sorted(set(made[1])) == sorted(set(made[2]))
    assert made[1] != sorted(made[1])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    length=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    gaps=st.integers(1, 4),
    shards=st.integers(1, 12),
)
def test_shards_in_source_order_are_even_and_never_empty(
    length: list[int], gaps: int, shards: int
) -> None:
    shards = min(shards, len(length))
    number = np.arange(len(length)) * gaps
    borders = steps._even(number, np.array(length), shards)
    shard = np.searchsorted(borders, number, "right")
    sizes = np.bincount(shard, length, shards)
    assert len(sizes) == shards and (np.bincount(shard, minlength=shards) > 0).all()
    assert (np.diff(shard) >= 0).all()
    if len(length) >= 4 * shards:
        assert sizes.max() <= sum(length) / shards + 2 * max(length)


def test_fewer_documents_than_shards(tmp_path: Path, import_of: MakeImport) -> None:
    config = import_of(judge.write(tmp_path / "x", [[1], [], [2], []]), write=Write(shards=64))
    manifest = run(config)
    assert len(manifest.splits["train"]) == 2
    assert manifest.notes == ["wrote 2 train shards, not 64: there are no more documents"]


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_nothing_to_import(
    tmp_path: Path, import_of: MakeImport, documents: judge.Documents
) -> None:
    config = import_of(judge.write(tmp_path / "x", documents))
    with pytest.raises(UserError, match=f"none of {len(documents)} documents has a token"):
        import_tokens(config)
    assert not config.out.exists()


@pytest.mark.parametrize(
    ("dtype", "bad"), [("uint16", 100), ("int32", -1), ("int64", 2**40 + 3), ("int64", -(2**40))]
)
def test_an_id_outside_of_the_vocabulary(
    tmp_path: Path, import_of: MakeImport, dtype: str, bad: int
) -> None:
    """2**40 + 3 would be 3 in int32."""
    prefix = judge.write(tmp_path / "x", [[1], [], [2, bad, 200 % 99]], dtype)
    with pytest.raises(UserError) as e:
        import_tokens(import_of(prefix))
    assert str(e.value) == (
        f"{prefix}.bin: document 2 has the id {bad} (its token 1), and the vocabulary has ids "
        "0..99; give the tokenizer that made the ids, or its vocab_size"
    )


def test_the_tokenizer_that_made_the_ids(
    tmp_path: Path, import_of: MakeImport, tokenizer: str
) -> None:
    config = import_of(
        judge.write(tmp_path / "x", [[400, 500, 599]]), tokenizer=Vocabulary(tokenizer)
    )
    info = run(config).tokenizer
    assert (info.path, info.kind, info.vocab_size) == (tokenizer, "sentencepiece", 600)
    assert (info.eos_id, info.pad_id) == (2, 3)
    verdict = verify(config.out)
    assert not verdict.defects and not verdict.notes


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "give the path of the tokenizer that made the ids, or its vocab_size and eos_id"),
        ({"vocab_size": 9}, r"\(eos_id is missing\)"),
        ({"vocab_size": 9, "eos_id": 0, "eos_token": "x"}, "eos_token is a name, which needs"),
        ({"vocab_size": 0, "eos_id": 0}, "vocab_size is 0; it must be 1 or more"),
        ({"vocab_size": 2**31, "eos_id": 0}, r"must be 1 or more, below 2\*\*31"),
        ({"vocab_size": 9, "eos_id": 9}, r"eos_id is 9; the vocabulary has ids 0\.\.8"),
        ({"vocab_size": 9, "eos_id": 1, "pad_id": -1}, "pad_id is -1; the vocabulary has"),
        ({"path": "s3://bucket/tok.json"}, "copy the file here first"),
    ],
)
def test_a_vocabulary_that_cannot_be(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Vocabulary(**given_).info()


def test_prefixes_by_pattern(tmp_path: Path) -> None:
    for name in ("c4_00", "c4_01.text"):
        judge.write(tmp_path / name, [[1]])
    for pattern in ("c4_*.idx", "c4_*.bin", "c4_*"):
        found = find_data_sets([Tokenized(f"{tmp_path}/{pattern}")])
        assert [Path(data.path).name for data in found] == ["c4_00.bin", "c4_01.text.bin"]
    for path in ("c4_01.text", "c4_01.text.bin", "c4_01.text.idx"):
        (one,) = find_data_sets([Tokenized(f"{tmp_path}/{path}")])
        assert one.path == f"{tmp_path}/c4_01.text.bin"


def test_what_cannot_be_an_input(tmp_path: Path) -> None:
    judge.write(tmp_path / "x", [[1]])
    for name in ("text.txt", "lonely.idx"):
        (tmp_path / name).write_text("some text")
    for entries, message in (
        ([], "inputs is empty"),
        (["nothing"], "nothing is called '.*nothing', nor is there a .*nothing.idx"),
        (["x", "*.bin"], "x.bin is matched by two inputs"),
        (["text.txt"], "begins with b'some t': neither Arrow nor Parquet"),
        (["lonely.idx"], "lonely.bin is not there, or no file; the data set is not whole"),
    ):
        with pytest.raises(UserError, match=message):
            find_data_sets([Tokenized(f"{tmp_path}/{entry}") for entry in entries])
    with pytest.raises(UserError, match="is a URL; copy the data"):
        Tokenized("s3://bucket/x")


def test_a_data_set_that_changes(
    tmp_path: Path, import_of: MakeImport, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = judge.write(tmp_path / "x", MANY)
    real = steps.spill_tasks

    def later(*args: Any) -> Any:
        judge.write(prefix, MANY)
        os.utime(f"{prefix}.bin", ns=(1, 1))
        return real(*args)

    monkeypatch.setattr("dataprep.convert.ingest.spill_tasks", later)
    with pytest.raises(UserError, match="x.bin changed during the run; run again"):
        import_tokens(import_of(prefix))


def test_data_inside_of_the_output(tmp_path: Path, import_of: MakeImport) -> None:
    with pytest.raises(UserError, match="lies inside of out_dir, which a run replaces; move it"):
        import_tokens(import_of(judge.write(tmp_path / "out" / "x", [[1]])))


def test_a_name_with_spaces_and_han(tmp_path: Path, import_of: MakeImport) -> None:
    config = import_of(judge.write(tmp_path / "中 文" / "数据 x", MANY), out="输 出")
    run(config)
    assert verify(config.out).defects == []
