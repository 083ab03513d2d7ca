"""Tokenized Hugging Face data sets: Arrow files of `Dataset.save_to_disk`, and Parquet files.

    folder of a Dataset        state.json            names data-00000-of-00002.arrow, ... in order
    folder of a DatasetDict    dataset_dict.json     names its splits, each a folder of a Dataset

They are read by pyarrow, batch by batch, without the `datasets` package and without Python objects
for ids: a list column is its flat values and their offsets.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.convert.source import READ_BYTES, Found, Lists, wrong_type
from dataprep.corpus.exchange import cuts
from dataprep.errors import UserError

STATE, SPLITS = "state.json", "dataset_dict.json"
PARQUET_MAGIC, FILE_MAGIC, STREAM_MAGIC = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_BUFFER = 1 << 20  # bytes of a Parquet column read at a time

# What pyarrow raises for damaged files.
DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError)


@dataclass(frozen=True)
class ArrowFile:
    """Documents of one Arrow file, in the stream form (that of `datasets`) or the file form."""

    path: Path
    column: str

    def look(self) -> Found:
        """Reads offsets only."""
        return _look(self.path, (column for column in self._columns()))

    def read(self, first: int, stop: int) -> Iterator[Lists]:
        """Documents first..stop-1. Batches before are passed over, but not read."""
        start = 0
        for column in self._columns():
            wanted = column.slice(max(first - start, 0), max(stop - max(first, start), 0))
            if len(wanted):
                yield from _lists(self.path, max(first, start), wanted)
            start += len(column)
            if start >= stop:
                return

    def _columns(self) -> Iterator[pa.Array]:
        """The column, batch by batch: views of the mapped file."""
        try:
            with pa.memory_map(str(self.path)) as source:
                if source.read(len(FILE_MAGIC)) == FILE_MAGIC:
                    options = self._options(pa.ipc.open_file(source).schema)
                    reader = pa.ipc.open_file(source, options=options)
                    for i in range(reader.num_record_batches):
                        yield reader.get_batch(i).column(0)
                    return
                source.seek(0)
                options = self._options(pa.ipc.open_stream(source).schema)
                source.seek(0)
                for batch in pa.ipc.open_stream(source, options=options):
                    yield batch.column(0)
        except (*DAMAGE, EOFError) as e:
            raise _unreadable(self.path, "Arrow", e) from e

    def _options(self, schema: pa.Schema) -> pa.ipc.IpcReadOptions:
        _check_column(self.path, schema, self.column)
        return pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(self.column)])


@dataclass(frozen=True)
class ParquetFile:
    """Documents of one Parquet file."""

    path: Path
    column: str

    def look(self) -> Found:
        """Reads the column: its lengths stand nowhere else. A reader can begin at a row group."""
        try:
            with self._open() as parquet:
                meta = parquet.metadata
                rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
                found = _look(self.path, self._batches(parquet, range(len(rows))))
        except DAMAGE as e:
            raise _unreadable(self.path, "Parquet", e) from e
        return found._replace(begins=_begins(rows))

    def read(self, first: int, stop: int) -> Iterator[Lists]:
        """Documents first..stop-1, where `first` begins a row group and `stop` ends one."""
        try:
            with self._open() as parquet:
                meta = parquet.metadata
                rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
                starts = np.cumsum([0, *rows])
                groups = np.flatnonzero((starts[:-1] >= first) & (starts[1:] <= stop))
                at = first
                for column in self._batches(parquet, groups.tolist()):
                    yield from _lists(self.path, at, column)
                    at += len(column)
        except DAMAGE as e:
            raise _unreadable(self.path, "Parquet", e) from e

    def _open(self) -> pq.ParquetFile:
        parquet = pq.ParquetFile(
            self.path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
        )
        _check_column(self.path, parquet.schema_arrow, self.column)
        return parquet

    def _batches(self, parquet: pq.ParquetFile, groups: Any) -> Iterator[pa.Array]:
        for number in groups:
            rows = _batch_rows(parquet.metadata.row_group(number), self.column)
            for batch in parquet.iter_batches(rows, [number], [self.column], use_threads=False):
                yield batch.column(0)


def _batch_rows(group: pq.RowGroupMetaData, column: str) -> int:
    """How many rows to hold at a time: about READ_BYTES of ids of eight bytes."""
    parts = (group.column(i) for i in range(group.num_columns))
    values = max(p.num_values for p in parts if p.path_in_schema.startswith(f"{column}."))
    return max(1, READ_BYTES // 8 * group.num_rows // max(values, 1))


def _look(path: Path, columns: Iterator[pa.Array]) -> Found:
    """Lengths of all documents; a reader can begin at each batch."""
    lengths = [_lengths(path, column) for column in columns]
    found = np.concatenate([np.zeros(0, np.int64), *lengths])
    return Found(found, _begins([len(part) for part in lengths]), [])


def _begins(rows: list[int]) -> np.ndarray:
    """int64: first row of each batch or row group that has any."""
    starts = np.cumsum([0, *rows])[:-1]
    return starts[np.array(rows, np.int64) > 0].astype(np.int64)


def _lengths(path: Path, column: pa.Array) -> np.ndarray:
    """int64 [documents]; 0 of a null. Raises UserError when offsets point anywhere."""
    try:
        column.validate(full=True)
    except pa.ArrowException as e:
        raise UserError(f"{path} is damaged: {' '.join(str(e).split())}; make it again") from e
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)


def _lists(path: Path, first: int, column: pa.Array) -> Iterator[Lists]:
    """A batch's documents, about READ_BYTES at a time."""
    length = _lengths(path, column)
    values = column.flatten()  # without what null lists may hide
    offsets = np.concatenate([[0], np.cumsum(length)])
    if values.null_count:
        at = int(np.argmax(np.asarray(values.is_null())))
        document = first + int(np.searchsorted(offsets, at, "right")) - 1
        raise UserError(f"{path}: row {document:,} has a null among its ids; remove the row")
    if len(values) != offsets[-1]:
        raise UserError(f"{path} is damaged: its lists do not fit their values; make it again")
    ids = np.asarray(values)
    missing = np.asarray(column.is_null()) if column.null_count else None
    for a, b in cuts(length * ids.itemsize, READ_BYTES):
        yield Lists(
            first + a,
            ids[offsets[a] : offsets[b]],
            offsets[a : b + 1] - offsets[a],
            None if missing is None else missing[a:b],
        )


def _check_column(path: Path, schema: pa.Schema, name: str) -> None:
    if schema.names.count(name) != 1:
        names = ", ".join(repr(n) for n in schema.names[:12])
        have = "several columns" if name in schema.names else "no column"
        raise UserError(f"{path} has {have} {name!r}; set column to one of: {names}")
    kind = schema.field(name).type
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(kind) for test in lists) or not pa.types.is_integer(kind.value_type):
        raise UserError(wrong_type(f"column {name!r} of {path}", f"{kind}"))


def _unreadable(path: Path, form: str, cause: Exception) -> UserError:
    text = " ".join(str(cause).split())
    return UserError(f"{path} is not a readable {form} file: {text}; make it again")


def data_files(folder: Path, split: str | None) -> list[Path]:
    """Arrow files of a data set saved to a folder, in order; `split`: which of a DatasetDict.

    Raises UserError when the folder holds none, or a split has to be named.
    """
    if (folder / SPLITS).is_file():
        splits = _json(folder / SPLITS, "splits")
        if split is None or split not in splits:
            what = "has several splits" if split is None else f"has no split {split!r}"
            raise UserError(f"{folder} {what}; set split to one of: {', '.join(map(str, splits))}")
        folder, split = folder / split, None
    if split is not None:
        raise UserError(f"{folder} is one data set, without splits; leave split {split!r} out")
    if not (folder / STATE).is_file():
        raise UserError(
            f"{folder} is a folder, but none that Dataset.save_to_disk has made (no {STATE}); give "
            f"a pattern of files, such as {folder}/*.parquet"
        )
    entries = _json(folder / STATE, "_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    good = [name for name in names if isinstance(name, str) and Path(name).name == name]
    if not names or len(good) < len(names):
        raise UserError(
            f"{folder / STATE} is damaged: it names no files of this folder; save the data set "
            "again"
        )
    if _state(folder / STATE).get("_indices_data_files"):
        raise UserError(
            f"{folder} is a selection of rows (by indices); load it, flatten_indices(), save it "
            "again"
        )
    return [folder / name for name in good]


def _json(path: Path, key: str) -> list[Any]:
    found = _state(path).get(key)
    if not isinstance(found, list):
        raise UserError(f"{path} is damaged: it has no list {key!r}; save the data set again")
    return found


def _state(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"{path} cannot be read: {e}; save the data set again") from e
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it is no JSON object; save the data set again")
    return value
