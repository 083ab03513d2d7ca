"""What the loaders read: packed rows of made documents, as rows.npy and as our output folders.

    CACHE/loader/512/rows.npy        int32 [n, S], n a multiple of 8, about 16 million tokens
    CACHE/loader/512/mindformers/    an output folder: manifest, 4 shards, audit/rows
    CACHE/loader/512/legacy/  compact/

One id in seven is below 128, as in real text under a BPE vocabulary; it decides the stored width.
"""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import CACHE
from benchmarks.peers.loader_timing import BATCH
from dataprep.corpus import output
from dataprep.corpus.pass_c import ROWS, file_column
from dataprep.files import sha256_file
from dataprep.manifest import Manifest, Shard, TokenizerInfo
from dataprep.mindrecord import ShardWriter, fit_layout
from dataprep.pack import Pack, Pieces, Rows, column_lengths, make_rows

PRESETS = ("mindformers", "legacy", "compact")
TOKENS, VOCABULARY, SHARDS = 1 << 24, 32_000, 4
MEAN_LENGTH = 600  # of a document
EOS, PAD = 1, 0
BLOCK = 256


def made(seq_length: int) -> Path:
    """The folder of a sequence length, made once."""
    folder = CACHE / "loader" / str(seq_length)
    if folder.is_dir():
        return folder
    tmp = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    pack = Pack(seq_length=seq_length)
    packed = [documents(np.random.default_rng([seq_length, i]), pack) for i in range(SHARDS)]
    for preset in PRESETS:
        write_folder(tmp / preset, preset, pack, packed)
    ids = [rows.tokens[:, :seq_length] for _, _, rows in packed]
    np.save(tmp / "rows.npy", np.concatenate(ids))
    tmp.rename(folder)
    return folder


def documents(
    rng: np.random.Generator, pack: Pack, tokens: int = TOKENS, vocabulary: int = VOCABULARY
) -> tuple[Pieces, np.ndarray, Rows]:
    """One shard: pieces, document of each piece, rows. Its rows are a multiple of the batch.

    tokens: about as many, of all shards.
    """
    wanted = tokens // SHARDS
    lengths = 16 + rng.exponential(MEAN_LENGTH - 16, 2 * wanted // MEAN_LENGTH).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(lengths.cumsum(), wanted))]
    missing = -pack.place(lengths).rows % BATCH
    # A document as long as a row takes a row of its own.
    lengths = np.concatenate([lengths, np.full(missing, pack.seq_length)])
    pieces = pack.place(lengths)
    assert pieces.rows % BATCH == 0
    offsets = np.concatenate([[0], lengths.cumsum()])
    low = rng.random(offsets[-1], np.float32) < 1 / 7
    ids = rng.integers(128, vocabulary, offsets[-1], np.int32)
    ids[low] = rng.integers(EOS + 1, 128, int(low.sum()), np.int32)
    ids[offsets[1:] - 1] = EOS
    rows = make_rows(pieces, 0, pieces.rows, ids, offsets, pack.seq_length, PAD, pack.ends)
    return pieces, lengths, rows


def write_folder(
    out: Path,
    preset: str,
    pack: Pack,
    packed: list[tuple[Pieces, np.ndarray, Rows]],
    vocabulary: int = VOCABULARY,
) -> None:
    """An output folder as build_corpus leaves it, without report and the like."""
    columns = column_lengths(preset, pack.seq_length, pack.ends)
    layout = fit_layout(columns, max(pieces.rows for pieces, _, _ in packed))
    shards = []
    for i, (pieces, _, rows) in enumerate(packed):
        name = f"train-{i:05d}-of-{SHARDS:05d}"
        stored = rows.columns(columns)
        with ShardWriter(out / "train" / f"{name}.mindrecord", columns, layout) as writer:
            for first in range(0, pieces.rows, BLOCK):
                writer.write({k: v[first : first + BLOCK] for k, v in stored.items()})
        audit = out / output.ROWS / f"{name}.parquet"
        write_audit(audit, name, pieces)
        shards.append(
            Shard(
                path=f"train/{name}.mindrecord",
                rows=pieces.rows,
                tokens=int(pieces.length.sum()),
                bytes=writer.bytes,
                sha256=writer.sha256,
                index_sha256=writer.index_sha256,
                audit_sha256=sha256_file(audit),
            )
        )
    tokenizer = TokenizerInfo("made", "sentencepiece", "0" * 64, vocabulary, EOS, PAD)
    Manifest(pack.seq_length, preset, columns, True, tokenizer, {"train": shards}).save(out)


def write_audit(path: Path, name: str, pieces: Pieces) -> None:
    """Which documents stand in which row; all are rows of one made file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    n = len(pieces.row)
    columns = [
        pa.repeat(name, n),
        pa.array(pieces.row),
        pa.array(pieces.start.astype(np.int32)),
        pa.array(pieces.length.astype(np.int32)),
        file_column(np.zeros(n, np.int64), [f"{name}.made"]),
        pa.array(pieces.document),
        pa.array(pieces.token_start),
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=ROWS), path, compression="zstd")
