"""What the trainer's tests share: small output folders, written with MindSpore's own FileWriter."""

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore logs errors only; read when it is imported

import numpy as np
import numpy.typing as npt
import pytest
from mindspore.mindrecord import FileWriter

from dataprep.files import sha256_file
from dataprep.manifest import Manifest, Shard, TokenizerInfo
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
