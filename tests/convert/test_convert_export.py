"""An output folder becomes an IndexedDataset: each document whole, once, in source order."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep import Manifest, UserError
from dataprep.convert import ExportConfig, export_megatron, import_tokens
from dataprep.corpus import BuildConfig, Eval, Write, build
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.tokens import Tokenize, load
from tests.conftest import document, write_jsonl
from tests.convert import judge
from tests.convert.conftest import MakeImport

Make = Callable[..., BuildConfig]
PRESETS: list[Any] = ["mindformers", "legacy", "legacy_labels", "compact", ["input_ids"]]


def export(out: Path, prefix: Path, **fields: Any) -> judge.Documents:
    export_megatron(ExportConfig(str(out), str(prefix), quiet=True, **fields))
    return judge.read(prefix)[1]


@pytest.mark.parametrize("columns", PRESETS, ids=str)
def test_documents_cut_across_rows(tmp_path: Path, import_of: MakeImport, columns: Any) -> None:
    documents = [[*range(1, 30)], [50], [*range(60, 77)], [*range(40)]]
    prefix = judge.write(tmp_path / "x", documents)
    for strategy in ("concat", "best_fit"):
        config = import_of(
            prefix,
            out=strategy,
            pack=Pack(seq_length=8, strategy=strategy, max_documents=3),
            write=Write(shards=2, columns=columns),
        )
        assert import_tokens(config).manifest.rows("train") > 10
        assert export(config.out, tmp_path / "out" / strategy) == documents


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    documents=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=30), min_size=1),
    columns=st.sampled_from(PRESETS),
    strategy=st.sampled_from(["concat", "best_fit"]),
    isolate=st.booleans(),
    shuffle=st.booleans(),
    shards=st.integers(1, 4),
    workers=st.integers(1, 3),
)
def test_in_and_out_again_is_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    import_of: MakeImport,
    documents: judge.Documents,
    columns: Any,
    strategy: Any,
    isolate: bool,
    shuffle: bool,
    shards: int,
    workers: int,
) -> None:
    folder = tmp_path_factory.mktemp("c")
    prefix = judge.write(folder / "x", documents)
    config = import_of(
        prefix,
        shuffle=shuffle,
        pack=Pack(8, strategy, isolate, max_documents=4),
        write=Write(shards, columns),
    )
    config = replace(config, out_dir=str(folder / "out"))
    import_tokens(config)
    export(config.out, folder / "y", workers=workers)
    for ending in ("bin", "idx"):
        assert (folder / f"x.{ending}").read_bytes() == (folder / f"y.{ending}").read_bytes()


def test_a_build_of_text(tmp_path: Path, config_for: Make, tokenizer: str) -> None:
    """Two splits, several sources, duplicates removed: what is left, in the order of the files."""
    config = config_for(eval=Eval(0.1))
    out = build(config).out_dir
    assert isinstance(out, Path)
    manifest = Manifest.load(out)
    tables = [
        pq.read_table(path, columns=["file", "source_row", "token_start", "length"])
        for path in sorted((out / "audit" / "rows").glob("train-*"))
    ]
    every = pa.concat_tables(tables).to_pylist()
    found = {}
    for piece in every:
        key = (piece["file"], piece["source_row"])
        found[key] = max(found.get(key, 0), piece["token_start"] + piece["length"])
    got = export(out, tmp_path / "x")
    assert [len(ids) for ids in got] == [length for _, length in sorted(found.items())]
    assert sum(map(len, got)) == sum(shard.tokens for shard in manifest.splits["train"])
    held_out = export(out, tmp_path / "y", split="eval")
    assert (
        len(got) + len(held_out)
        == manifest.ledger["web"]["documents.kept"] + (manifest.ledger["lines"]["documents.kept"])
    )
    encoder = load(tokenizer).encoder
    texts = (config.inputs[1].path, (tmp_path / "text" / "c.txt").read_text().splitlines())
    last = [encoder.decode(ids[:-1]) for ids in got[-3:]]
    assert all(text in texts[1] for text in last)
    assert all(ids[-1] == manifest.tokenizer.eos_id for ids in got)


def test_a_repeated_document_is_written_once(
    tmp_path: Path, config_for: Make, tokenizer: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [document(i, 8) for i in range(20)])
    made = {}
    for weight in (1.0, 2.5):
        config = config_for(
            f"out{weight}",
            inputs=[Input(str(path), weight=weight)],
            tokenizer=Tokenize(tokenizer),
            eval=Eval(0.0),
        )
        out = build(config).out_dir
        settings_ = ExportConfig(str(out), str(tmp_path / f"x{weight}"), quiet=True)
        made[weight] = export_megatron(settings_)
    assert judge.read(tmp_path / "x2.5") == judge.read(tmp_path / "x1.0")
    assert made[1.0].notes == []
    assert made[2.5].notes == ["20 documents are repeated in train; each was written once"]
    assert made[2.5].tokens == made[1.0].tokens and made[2.5].documents == 20


@pytest.mark.parametrize(
    ("vocab_size", "asked", "dtype"),
    [
        (65_499, "auto", "uint16"),
        (65_500, "auto", "int32"),
        (65_536, "uint16", "uint16"),
        (100, "int32", "int32"),
    ],
)
def test_the_type_of_the_ids(
    tmp_path: Path, import_of: MakeImport, vocab_size: int, asked: str, dtype: str
) -> None:
    config = import_of(judge.write(tmp_path / "x", [[1, 2]]))
    config = replace(config, tokenizer=replace(config.tokenizer, vocab_size=vocab_size))
    import_tokens(config)
    assert export(config.out, tmp_path / "y", dtype=asked) == [[1, 2]]
    assert judge.read(tmp_path / "y")[0] == dtype


def test_a_type_too_small(tmp_path: Path, import_of: MakeImport) -> None:
    config = import_of(judge.write(tmp_path / "x", [[1, 2]]))
    import_tokens(replace(config, tokenizer=replace(config.tokenizer, vocab_size=65_537)))
    with pytest.raises(UserError, match="dtype uint16 does not hold a vocabulary of 65,537 ids"):
        export(config.out, tmp_path / "y", dtype="uint16")


@pytest.fixture
def out(tmp_path: Path, import_of: MakeImport) -> Path:
    config = import_of(judge.write(tmp_path / "x", [[1, 2, 3], [4], [*range(5, 25)]]))
    import_tokens(config)
    return config.out  # type: ignore[return-value]


def test_an_ending_may_be_written_out(tmp_path: Path, out: Path) -> None:
    export_megatron(ExportConfig(str(out), str(tmp_path / "y.idx"), quiet=True))
    assert judge.read(tmp_path / "y")[1][1] == [4]


def test_places_that_cannot_be_written(tmp_path: Path, out: Path) -> None:
    with pytest.raises(UserError, match="lies inside of .*out, which holds its own files only"):
        ExportConfig(str(out), str(out / "x"))
    with pytest.raises(UserError, match="prefix is s3://b/x, a URL; copy the data"):
        ExportConfig(str(out), "s3://b/x")
    with pytest.raises(UserError, match="has no split 'eval'; it has: train"):
        export(out, tmp_path / "y", split="eval")
    with pytest.raises(UserError, match="x.bin exists; choose another prefix"):
        export(out, tmp_path / "x")
    with pytest.raises(UserError, match="holds no manifest.json"):
        export(tmp_path / "nothing", tmp_path / "y")
    assert not list(tmp_path.glob("y*"))


def _change(table: pa.Table, name: str, value: int) -> pa.Table:
    at = table.schema.get_field_index(name)
    values = table[name].to_pylist()
    values[-1] = value
    return table.set_column(at, table.schema.field(name), pa.array(values, table[name].type))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("row", 1000),
        ("row", -1),
        ("start", 8),
        ("start", -1),
        ("length", 9),
        ("length", 0),
        ("source_row", 3),
        ("source_row", -1),
        ("token_start", -1),
        ("token_start", 2**40),
    ],
)
def test_a_damaged_audit(tmp_path: Path, out: Path, name: str, value: int) -> None:
    path = sorted((out / "audit" / "rows").iterdir())[0]
    pq.write_table(_change(pq.read_table(path), name, value), path)
    with pytest.raises(UserError, match="audit/rows.* is damaged: it (names|holds parts)"):
        export(out, tmp_path / "y")
    assert not list(tmp_path.glob("y*"))


def test_a_missing_audit_or_shard(tmp_path: Path, out: Path) -> None:
    shard = next((out / "train").glob("*.mindrecord"))
    content = shard.read_bytes()
    shard.unlink()
    with pytest.raises(UserError, match=shard.name):
        export(out, tmp_path / "y")
    shard.write_bytes(content)
    next((out / "audit" / "rows").iterdir()).unlink()
    with pytest.raises(UserError, match="audit/rows/.* cannot be read"):
        export(out, tmp_path / "y")
    assert not list(tmp_path.glob("y*"))
