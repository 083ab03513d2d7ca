"""What the trainer's tests share: small output folders.

`write_data` writes rows with MindSpore's own FileWriter; `packed` packs documents and writes any
column preset as a build does, audit/rows included.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs errors only; read when it is imported

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mindspore.mindrecord import FileWriter

from dataprep.files import sha256_file
from dataprep.manifest import Manifest, Shard, TokenizerInfo
from dataprep.mindrecord import ShardWriter, fit_layout
from dataprep.pack import Pieces, column_lengths, make_rows, preset_name
from dataprep.pack.place import place_concat
from training.config import ModelConfig

Rows = list[list[list[int]]]  # rows of documents of token ids
ENDS = 4  # length of actual_seq_len


def arrays(row: list[list[int]], seq_length: int) -> dict[str, npt.NDArray[np.int32]]:
    """One packed row: documents one after another, padding at the end, labels shifted once."""
    columns = {
        name: np.full(seq_length, fill, np.int32)
        for name, fill in (
            ("input_ids", 0),
            ("labels", -100),
            ("loss_mask", 0),
            ("position_ids", 0),
        )
    }
    start, ends = 0, []
    for document in row:
        end = start + len(document)
        columns["input_ids"][start:end] = document
        columns["labels"][start : end - 1] = document[1:]
        columns["loss_mask"][start : end - 1] = 1
        columns["position_ids"][start:end] = range(len(document))
        start = end
        ends.append(end)
    padded = [*ends[: -1 if start == seq_length else None], *[seq_length] * ENDS][:ENDS]
    return {**columns, "actual_seq_len": np.array(padded, np.int32)}


def write_shard(path: Path, rows: Rows, seq_length: int, names: list[str]) -> Shard:
    """One single-shard MindRecord file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = [arrays(row, seq_length) for row in rows]
    writer = FileWriter(str(path), 1)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    shapes = {name: {"type": "int32", "shape": [len(stored[0][name])]} for name in names}
    writer.add_schema(shapes, "rows")
    writer.write_raw_data([{name: row[name] for name in names} for row in stored])
    writer.commit()
    return Shard(
        path=f"{path.parent.name}/{path.name}",
        rows=len(rows),
        tokens=sum(len(document) for row in rows for document in row),
        bytes=path.stat().st_size,
        sha256=sha256_file(path),
        index_sha256=sha256_file(path.with_name(path.name + ".db")),
    )


@pytest.fixture
def write_data(tmp_path: Path) -> Callable[..., Path]:
    """`write_data(rows, seq_length, vocab_size, eval_rows=(), isolate=True, name="data")`.

    Writes an output folder with two train shards and returns it.
    """

    def write(
        rows: Rows,
        seq_length: int,
        vocab_size: int,
        eval_rows: Rows | tuple[()] = (),
        isolate: bool = True,
        name: str = "data",
    ) -> Path:
        out_dir = tmp_path / name
        columns = dict.fromkeys(("input_ids", "labels", "loss_mask", "position_ids"), seq_length)
        if isolate:
            columns["actual_seq_len"] = ENDS
        half = (len(rows) + 1) // 2
        splits: dict[str, list[Shard]] = {"train": []}
        for i, part in enumerate((rows[:half], rows[half:])):
            path = out_dir / "train" / f"train-{i:05d}-of-00002.mindrecord"
            splits["train"].append(write_shard(path, part, seq_length, list(columns)))
        if eval_rows:
            path = out_dir / "eval" / "eval-00000-of-00001.mindrecord"
            splits["eval"] = [write_shard(path, list(eval_rows), seq_length, list(columns))]
        tokenizer = TokenizerInfo("tok.model", "sentencepiece", "0" * 64, vocab_size, 1, 0)
        Manifest(seq_length, "mindformers", columns, isolate, tokenizer, splits).save(out_dir)
        return out_dir

    return write


def write_audit(path: Path, shard: int, pieces: Pieces, documents: list[int]) -> str:
    """audit/rows of a shard; `documents`: number in the whole of each of the shard's own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.array(documents)[pieces.document]
    table = pa.table(
        {
            "shard": pa.array(np.full(len(numbers), shard, np.int32)),
            "row": pieces.row,
            "start": pieces.start,
            "length": pieces.length,
            "file": pa.array([f"{n % 2}.jsonl" for n in numbers]).dictionary_encode(),
            "source_row": numbers // 2,
            "token_start": pieces.token_start,
        }
    )
    pq.write_table(table, path)
    return sha256_file(path)


def write_packed(
    out_dir: Path,
    documents: list[list[int]],
    preset: Any = "mindformers",
    seq_length: int = 8,
    isolate: bool = True,
    vocab_size: int = 100,
    shards: int = 2,
    splits: tuple[str, ...] = ("train",),
) -> Path:
    """Packs documents into each split's shards in turn, and writes the folder."""
    ends = 4 if isolate else 0
    columns = column_lengths(preset, seq_length, ends)
    written: dict[str, list[Shard]] = {}
    for split in splits:
        for i in range(shards):
            ours = list(range(i, len(documents), shards))
            lengths = np.array([len(documents[d]) for d in ours])
            pieces = place_concat(lengths, seq_length, ends or 99)
            tokens = np.concatenate([documents[d] for d in ours]).astype(np.int32)
            offsets = np.r_[0, np.cumsum(lengths)]
            rows = make_rows(pieces, 0, pieces.rows, tokens, offsets, seq_length, 0, ends)
            path = out_dir / split / f"{split}-{i:05d}-of-{shards:05d}.mindrecord"
            with ShardWriter(path, columns, fit_layout(columns, pieces.rows)) as writer:
                writer.write(rows.columns(columns))
            audit = out_dir / "audit" / "rows" / f"{path.stem}.parquet"
            shard = Shard(
                path=f"{split}/{path.name}",
                rows=writer.rows,
                tokens=int(lengths.sum()),
                bytes=writer.bytes,
                sha256=writer.sha256,
                index_sha256=writer.index_sha256,
                audit_sha256=write_audit(audit, i, pieces, ours),
            )
            written.setdefault(split, []).append(shard)
    tokenizer = TokenizerInfo("tok.model", "sentencepiece", "0" * 64, vocab_size, 1, 0)
    manifest = Manifest(seq_length, preset_name(preset), columns, isolate, tokenizer, written)
    manifest.save(out_dir)
    return out_dir


def one_token_rows(rows: int, first: int = 0) -> list[list[int]]:
    """Documents that fill a row of 4 slots each: row i is [first + i] * 4 when in one shard."""
    return [[first + i] * 4 for i in range(rows)]


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Path]:
    """`packed(documents, preset="mindformers", name="data", **options)`: see write_packed."""

    def write(documents: list[list[int]], *args: Any, name: str = "data", **options: Any) -> Path:
        return write_packed(tmp_path / name, documents, *args, **options)

    return write


@pytest.fixture
def numbered(packed: Callable[..., Path]) -> Callable[..., Path]:
    """`numbered(n, first=0, name="data")`: row i of n, in two shards, is [first + i] * 4."""

    def write(n: int, first: int = 0, **options: Any) -> Path:
        rows = one_token_rows(n, first)
        half = (n + 1) // 2
        order = [row for pair in zip(rows[:half], rows[half:]) for row in pair]
        order += rows[half - 1 : half] if n % 2 else []
        sizes = {"seq_length": 4, "preset": "compact", "vocab_size": max(2, first + n)}
        return packed(order, **{**sizes, **options})

    return write


@pytest.fixture
def counted(write_data: Callable[..., Path]) -> Callable[..., Path]:
    """`counted(n, **options)`: n rows of 6 slots; row i is one document [i, i, i, i, i, i]."""

    def write(n: int, **options: object) -> Path:
        return write_data([[[i] * 6] for i in range(n)], 6, max(n, 2), **options)

    return write


def sequences(rows: int, seed: int, seq_length: int = 16, vocab_size: int = 20) -> Rows:
    """Rows of two documents that count upwards from a random token: easy to learn."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(rows):
        first = int(rng.integers(3, seq_length - 4))
        sizes = (first, int(rng.integers(3, seq_length - first)))
        starts = rng.integers(1, vocab_size, 2)
        made.append([[int(s + i) % vocab_size for i in range(n)] for s, n in zip(starts, sizes)])
    return made


@pytest.fixture
def learnable(write_data: Callable[..., Path]) -> Callable[..., Path]:
    """`learnable(rows, seed=0, name="data")`: S = 16, 20 ids, and 5 eval rows."""

    def write(rows: int, seed: int = 0, name: str = "data") -> Path:
        return write_data(sequences(rows, seed), 16, 20, sequences(5, 99), name=name)

    return write


@pytest.fixture
def tiny_model() -> ModelConfig:
    """Two layers, four query heads on two key heads."""
    return ModelConfig(
        hidden_size=16, num_layers=2, num_heads=4, n_kv_heads=2, intermediate_size=24
    )
