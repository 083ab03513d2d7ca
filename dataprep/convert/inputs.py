"""What to import: entries of a config, and the sorted list of data sets they name."""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dataprep.convert.huggingface import (
    FILE_MAGIC,
    PARQUET_MAGIC,
    STREAM_MAGIC,
    ArrowFile,
    ParquetFile,
    data_files,
)
from dataprep.convert.megatron import Megatron, bin_path, idx_path
from dataprep.convert.source import Source
from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.storage import entry, is_url

_ENDINGS = (".bin", ".idx")


@dataclass(frozen=True)
class Tokenized:
    """One entry of `inputs`: tokenized data sets that share a source name."""

    path: str
    """A Megatron prefix (or its .bin or .idx), a folder of Dataset.save_to_disk, or an Arrow or
    Parquet file; or a pattern with * ? [] ** of such. Told apart by what they hold."""
    source: str = "default"
    """Name under which documents are counted in the ledger and the report."""
    column: str = "input_ids"
    """Hugging Face: the column of lists of ids."""
    split: str | None = None
    """Hugging Face: which split of a folder that holds several."""

    def __post_init__(self) -> None:
        check_path("inputs.path", self.path)
        if is_url(self.path):
            raise UserError(f"inputs: {self.path} is a URL; copy the data to this machine first")
        if not self.source:
            raise UserError(f"inputs: source of {self.path} is ''; give it a name")


class File(NamedTuple):
    """A file as it was when the run was planned."""

    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Part:
    """Documents of a data set that stand in files of their own."""

    source: Source
    files: list[File]

    def check_unchanged(self) -> None:
        """Raises UserError when a file is not the one that was planned: half of it may be old."""
        for file in self.files:
            if _file(Path(file.path)) != file:
                raise UserError(
                    f"{file.path} changed during the run; run again when nothing writes to it"
                )


@dataclass(frozen=True)
class DataSet:
    """Documents under one name; document i of it is row i of its audit."""

    path: str
    """Megatron: of the .bin; Hugging Face: of the folder, or of the one file."""
    source: str
    format: str
    """megatron, arrow or parquet."""
    parts: list[Part]

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(file.size for part in self.parts for file in part.files)


def find_data_sets(inputs: Sequence[Tokenized]) -> list[DataSet]:
    """All data sets of all entries, sorted by path, so that the order of entries changes nothing.

    Raises UserError when an entry names nothing that can be read, or two the same.
    """
    if not inputs:
        raise UserError("inputs is empty: name at least one data set")
    owner: dict[str, str] = {}
    found = []
    for one in inputs:
        for data in _matches(one):
            key = os.path.abspath(data.path)
            if key in owner:
                raise UserError(
                    f"{data.path} is matched by two inputs ({owner[key]!r} and {one.path!r}); each "
                    "data set must belong to one"
                )
            owner[key] = one.path
            found.append(data)
    return sorted(found, key=lambda data: data.path)


def _matches(one: Tokenized) -> Iterator[DataSet]:
    literal = Path(one.path)
    if literal.exists() or idx_path(literal).exists():
        paths = {one.path}
    else:
        paths = set(glob.glob(one.path, recursive=True))
    if not paths:
        raise UserError(
            f"inputs: nothing is called {one.path!r}, nor is there a {one.path}.idx; check the path"
        )
    prefixes = {prefix: None for path in sorted(paths) if (prefix := _prefix(Path(path)))}
    for prefix in prefixes:
        files = [_file(bin_path(prefix)), _file(idx_path(prefix))]
        part = Part(Megatron(prefix), files)
        yield DataSet(_name(bin_path(prefix)), one.source, "megatron", [part])
    for path in sorted(paths):
        if not _prefix(Path(path)):
            yield _hugging_face(Path(path), one)


def _prefix(path: Path) -> Path | None:
    """The prefix of an IndexedDataset that a path names, if it does."""
    if path.suffix in _ENDINGS and path.with_suffix("").name:
        return path.with_suffix("")
    return path if not path.exists() and path.name and idx_path(path).exists() else None


def _hugging_face(path: Path, one: Tokenized) -> DataSet:
    if path.is_dir():
        files = data_files(path, one.split)
        folder = path / one.split if one.split else path
        parts = [Part(ArrowFile(file, one.column), [_file(file)]) for file in files]
        return DataSet(_name(folder), one.source, "arrow", parts)
    told = _file(path)
    try:
        with path.open("rb") as f:
            head = f.read(len(FILE_MAGIC))
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}; check that it may be read") from e
    if head.startswith(PARQUET_MAGIC):
        part = Part(ParquetFile(path, one.column), [told])
        return DataSet(_name(path), one.source, "parquet", [part])
    if head.startswith((FILE_MAGIC, STREAM_MAGIC)):
        return DataSet(
            _name(path), one.source, "arrow", [Part(ArrowFile(path, one.column), [told])]
        )
    raise UserError(
        f"{path} begins with {head!r}: neither Arrow nor Parquet, nor part of an IndexedDataset; "
        "text is made into shards by mindprep build"
    )


def _file(path: Path) -> File:
    found = entry(path)
    if found is None:
        raise UserError(f"{path} is not there, or no file; the data set is not whole")
    return File(str(path), found.size, found.version)


def _name(path: Path) -> str:
    text = str(path)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"the name of {path} is not valid UTF-8; rename it") from None
    return text
