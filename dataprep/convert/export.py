"""The export: an output folder to a Megatron IndexedDataset, each document whole, in source order.

    audit/rows   where every run of a document's tokens stands      -> lengths, and so each place
    shards       row by row: input_ids -> the documents' places in PREFIX.bin, a mapped file

    row 0   A A A B B        PREFIX.bin   A A A A A B B
    row 1   A A . . .

Memory: 16 bytes for each record of the inputs, and for each worker a block of rows and the audit of
one shard.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from dataprep.convert.megatron import SMALL_VOCABULARY, bin_path, create, idx_path
from dataprep.corpus.config import inside
from dataprep.corpus.output import ROWS
from dataprep.corpus.plan import Ints
from dataprep.engine.progress import Reporter
from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.manifest import Manifest, Shard
from dataprep.mindrecord import IndexableSource
from dataprep.storage import is_url
from dataprep.trace import read_audit

BLOCK_BYTES = 8 << 20  # of input_ids, read at a time
_ENDINGS = (".bin", ".idx")


@dataclass(frozen=True)
class ExportConfig:
    """An output folder to a Megatron IndexedDataset."""

    out_dir: str
    """Output folder to read, on this machine."""
    prefix: str
    """PREFIX.bin and PREFIX.idx are written."""
    split: str = "train"
    """Which split: train or eval."""
    dtype: Literal["auto", "uint16", "int32"] = "auto"
    """Of the ids; auto, as Megatron does: uint16 for vocabularies below 65,500 ids, else int32."""
    overwrite: bool = False
    """Replace files of that name."""
    workers: int = 1
    """Threads that read shards. Changes no byte."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self) -> None:
        for key in ("out_dir", "prefix"):
            value = getattr(self, key)
            check_path(key, value)
            if is_url(value):
                raise UserError(f"{key} is {value}, a URL; copy the data to this machine first")
        if not self.files.name:
            raise UserError(f"prefix is {self.prefix!r}; give it a name")
        if inside(self.files.resolve(), Path(self.out_dir).resolve()):
            raise UserError(
                f"prefix {self.prefix} lies inside of {self.out_dir}, which holds its own files "
                "only; choose another"
            )
        if self.workers < 1:
            raise UserError(f"workers is {self.workers}; it must be 1 or more")

    @property
    def files(self) -> Path:
        """The prefix, without an ending that may have been written out."""
        path = Path(self.prefix)
        return path.with_suffix("") if path.suffix in _ENDINGS else path


@dataclass(frozen=True)
class Exported:
    """What an export did."""

    prefix: Path
    documents: int
    tokens: int
    dtype: str
    bytes: int
    """Of both files."""
    seconds: float
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Pieces:
    """Runs of documents' tokens in the rows of one shard, by row; int64[p] each."""

    document: Ints
    """Number of the record among those of all inputs."""
    row: Ints
    start: Ints
    length: Ints
    token_start: Ints


def export_megatron(config: ExportConfig) -> Exported:
    """Writes PREFIX.bin and PREFIX.idx, the index last.

    Raises UserError when the folder is none or damaged, or the files cannot be written.
    """
    begun = time.monotonic()
    out = Path(config.out_dir)
    manifest = Manifest.load(out)
    manifest.files(out, config.split)  # there is such a split
    shards = manifest.splits[config.split]
    length, copies = _documents(out, manifest, shards)
    documents = np.flatnonzero(length)
    place = np.zeros(len(length), np.int64)
    place[documents] = np.cumsum(length[documents]) - length[documents]
    dtype = _dtype(config.dtype, manifest.tokenizer.vocab_size)
    total = sum(shard.tokens for shard in shards)
    with (
        create(config.files, dtype, length[documents], config.overwrite) as ids,
        ThreadPoolExecutor(config.workers) as pool,
        Reporter("export", total, quiet=config.quiet) as report,
    ):
        work = [pool.submit(_copy, out, manifest, shard, place, ids) for shard in shards]
        try:
            for shard, one in zip(shards, work):
                one.result()
                report.advance(shard.tokens)
        finally:
            for one in work:
                one.cancel()
    return Exported(
        config.files,
        len(documents),
        int(length.sum()),
        np.dtype(dtype).name,
        sum(path(config.files).stat().st_size for path in (bin_path, idx_path)),
        time.monotonic() - begun,
        [f"{copies:,} documents are repeated in {config.split}; each was written once"]
        * bool(copies),
    )


def _dtype(asked: str, vocab_size: int) -> type[np.integer[Any]]:
    if asked == "uint16" and vocab_size > 1 << 16:
        raise UserError(f"dtype uint16 does not hold a vocabulary of {vocab_size:,} ids; use int32")
    small = vocab_size < SMALL_VOCABULARY if asked == "auto" else asked == "uint16"
    return np.uint16 if small else np.int32


def _documents(out: Path, manifest: Manifest, shards: Sequence[Shard]) -> tuple[Ints, int]:
    """(tokens of each record of the inputs int64[n], how many documents stand there repeatedly).

    Raises UserError when audit/rows does not account for whole documents.
    """
    records = sum(int(told["rows"]) for told in manifest.inputs)
    length, placed = np.zeros(records, np.int64), np.zeros(records, np.int64)
    for shard in shards:
        pieces = _pieces(out, manifest, shard)
        np.maximum.at(length, pieces.document, pieces.token_start + pieces.length)
        np.add.at(placed, pieces.document, pieces.length)
    used = length > 0
    copies, rest = np.divmod(placed[used], length[used])
    if rest.any():
        raise _damaged(out / ROWS, "it holds parts of documents")
    if placed.sum() != sum(shard.tokens for shard in shards):
        raise _damaged(out / ROWS, "it has other numbers of tokens than the manifest")
    return length, int((copies > 1).sum())


def _pieces(out: Path, manifest: Manifest, shard: Shard) -> _Pieces:
    """Of one shard, all within its rows."""
    path = out / ROWS / f"{Path(shard.path).stem}.parquet"
    table = read_audit(path)
    first = dict(
        zip(
            (told["path"] for told in manifest.inputs),
            np.cumsum([0, *(int(told["rows"]) for told in manifest.inputs)]).tolist(),
        )
    )
    rows = {told["path"]: int(told["rows"]) for told in manifest.inputs}
    try:
        row, start, size, source_row, token = (
            np.asarray(table[name]).astype(np.int64)
            for name in ("row", "start", "length", "source_row", "token_start")
        )
        file = table["file"].combine_chunks().dictionary_encode()
        names, code = file.dictionary.to_pylist(), np.asarray(file.indices)
    except (KeyError, pa.ArrowException, ValueError) as e:
        raise _damaged(path, f"{e}") from e
    most = np.array([rows.get(name, 0) for name in names], np.int64)[code]
    outside = (source_row < 0) | (source_row >= most) | (token < 0) | (size < 1)
    outside |= (row < 0) | (row >= shard.rows) | (start < 0)
    outside |= start + size > manifest.seq_length
    if outside.any() or (np.diff(row) < 0).any():
        raise _damaged(path, "it names rows, slots or records that do not exist, or not in order")
    base = np.array([first.get(name, 0) for name in names], np.int64)
    return _Pieces(base[code] + source_row, row, start, size, token)


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged: {what}; run verify, or build again")


def _copy(
    out: Path,
    manifest: Manifest,
    shard: Shard,
    place: Ints,
    ids: npt.NDArray[np.integer[Any]],
) -> None:
    """Copies all tokens of a shard to their places in `ids`."""
    pieces = _pieces(out, manifest, shard)
    path = out / shard.path
    to = place[pieces.document] + pieces.token_start
    step = max(1, BLOCK_BYTES // (4 * manifest.seq_length))
    largest = np.iinfo(ids.dtype).max
    with IndexableSource([path], ["input_ids"]) as source:
        if len(source) != shard.rows:
            raise _damaged(path, f"it has {len(source):,} rows, the manifest says {shard.rows:,}")
        for first in range(0, shard.rows, step):
            stop = min(first + step, shard.rows)
            block = source.read(np.arange(first, stop))["input_ids"]
            if block.min() < 0 or block.max() > largest:
                raise _damaged(path, "it holds ids outside of the vocabulary")
            lo, hi = np.searchsorted(pieces.row, [first, stop])
            _scatter(
                block,
                pieces.row[lo:hi] - first,
                pieces.start[lo:hi],
                pieces.length[lo:hi],
                to[lo:hi],
                ids,
            )


@njit(nogil=True, cache=True)
def _scatter(
    block: npt.NDArray[np.int32],
    row: Ints,
    start: Ints,
    length: Ints,
    to: Ints,
    out: npt.NDArray[np.integer[Any]],
) -> None:
    """out[to[i]:] gets length[i] ids of row[i] from start[i] on."""
    for i in range(len(row)):
        for j in range(length[i]):
            out[to[i] + j] = block[row[i], start[i] + j]
