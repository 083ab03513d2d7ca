"""Splits: how the input is cut into pieces of work, by the inputs alone, never by the workers.

    uncompressed JSONL / text    byte ranges      [0, 128 MiB) [128 MiB, 256 MiB) ...
    Parquet                      row-group ranges
    compressed, or one document  the whole file

A record belongs to the split that holds its first byte, so any border is sound.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from dataprep.errors import UserError
from dataprep.readers.inputs import InputFile
from dataprep.storage import AT_ONCE, open_reader, place

MIB = 1 << 20
GROUP_BYTES = 4 * MIB  # neighbouring small files become one task: no task a file


@dataclass(frozen=True)
class Split:
    """A piece of one file."""

    file: InputFile
    start: int
    """First byte (uncompressed), first row group (Parquet), else 0."""
    stop: int
    """One past the last byte or row group; the file size for compressed files."""
    size: int
    """Bytes on disk (Parquet: uncompressed), for progress."""


def plan_splits(files: Sequence[InputFile], split_bytes: int = 128 * MIB) -> list[Split]:
    """Cuts files into splits, in file order. An empty file has one (empty) split."""
    splits: list[Split] = []
    parquet = [file for file in files if file.format == "parquet"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        row_groups = zip(parquet, pool.map(_row_group_sizes, parquet))
        for file in files:
            if file.format == "parquet":
                splits.extend(_row_group_splits(*next(row_groups), split_bytes))
            elif file.compression or (file.format == "text" and file.document == "file"):
                splits.append(Split(file, 0, file.size, file.size))
            else:
                starts = range(0, max(file.size, 1), split_bytes)
                ends = [min(s + split_bytes, file.size) for s in starts]
                splits.extend(Split(file, s, e, e - s) for s, e in zip(starts, ends, strict=True))
    return splits


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file, to be used as a context manager."""
    at = place(path)
    return pq.ParquetFile(at if isinstance(at, Path) else open_reader(at))


def _row_group_sizes(file: InputFile) -> list[int]:
    try:
        with open_parquet(file.path) as parquet:
            meta = parquet.metadata
            return [meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)]
    except UserError:
        raise
    except Exception as e:  # pyarrow raises many kinds on damaged files
        raise UserError(f"{file.path} is not a readable Parquet file: {e}") from e


def _row_group_splits(file: InputFile, sizes: Sequence[int], split_bytes: int) -> list[Split]:
    splits, start, size = [], 0, 0
    for i, group in enumerate(sizes):
        size += group
        if size >= split_bytes or i == len(sizes) - 1:
            splits.append(Split(file, start, i + 1, size))
            start, size = i + 1, 0
    return splits or [Split(file, 0, 0, 0)]


def group_splits(splits: Sequence[Split]) -> list[list[int]]:
    """Indices of splits, grouped into tasks: neighbours of one source under 4 MiB together."""
    groups: list[list[int]] = []
    room = 0
    for i, split in enumerate(splits):
        same = bool(groups) and _mates(splits[groups[-1][-1]].file, split.file)
        if same and split.size <= room:
            groups[-1].append(i)
        else:
            groups.append([i])
            room = GROUP_BYTES
        room -= split.size
    return groups


def _mates(a: InputFile, b: InputFile) -> bool:
    return (a.source, a.language) == (b.source, b.language)
