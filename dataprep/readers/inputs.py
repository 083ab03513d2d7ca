"""What to read: input entries of a config, and the sorted list of files they match."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep.errors import UserError
from dataprep.files import check_path

Format = Literal["jsonl", "parquet", "text"]
Compression = Literal["", "gzip", "zstd", "bzip2"]

MAX_WEIGHT = 1000
_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
}
_COMPRESSED_SUFFIXES = {".gz", ".zst", ".bz2"}
# How compressed files begin; none is how text would.
_MAGIC: tuple[tuple[re.Pattern[bytes], Compression], ...] = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    # A frame, or a skippable frame before it (RFC 8878, 3.1).
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), "zstd"),
    # The header, then the first block or the end.
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), "bzip2"),
)
_MAGIC_BYTES = 10  # the longest
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Input:
    """One entry of `inputs`: files of one form that share a source name."""

    path: str
    """A file, or a pattern with * ? [] ** (matched files are read in sorted order)."""
    source: str = "default"
    """Name under which documents are counted in the ledger and the report."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """auto: from the file name (.jsonl .ndjson .json .parquet .txt .text, then .gz .zst .bz2)."""
    text_key: str = "text"
    """JSON key or Parquet column that holds the text."""
    document: Literal["line", "file"] = "line"
    """For format text: each line is a document, or each whole file is one."""
    weight: float = 1.0
    """Passes over these documents: 2.0 places each twice, far apart; 0.5 keeps a seeded half."""
    language: str = "auto"
    """ISO 639-1 code when all documents have one language; auto: told by script and, where a rule
    needs it, by language identification."""

    def __post_init__(self) -> None:
        check_path("inputs.path", self.path)
        if not self.source or not isinstance(self.source, str):
            raise UserError(f"inputs: source of {self.path} is {self.source!r}; give it a name")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise UserError(
                f"inputs: weight of {self.path} is {self.weight}; it must be above 0, up to "
                f"{MAX_WEIGHT}"
            )


@dataclass(frozen=True)
class InputFile:
    """One file to read, with all that reading it depends on."""

    path: str
    source: str
    format: Format
    text_key: str
    document: Literal["line", "file"]
    weight: float
    language: str
    compression: Compression
    size: int
    """Bytes on disk."""
    mtime_ns: int
    """Modification time: with path and size, the identity of the content for receipts."""


def expand(inputs: Sequence[Input]) -> list[InputFile]:
    """All files of all entries, sorted by path, so that the order of entries changes nothing.

    Raises UserError when an entry matches nothing, a file matches two entries, cannot be read, or
    its format cannot be told.
    """
    if not inputs:
        raise UserError("inputs is empty: name at least one file or pattern")
    owner: dict[str, int] = {}
    files: list[InputFile] = []
    for i, entry in enumerate(inputs):
        for path in _matches(entry.path):
            first = owner.setdefault(os.path.abspath(path), i)
            if first != i:
                raise UserError(
                    f"{path} is matched by two inputs ({inputs[first].path!r} and {entry.path!r}); "
                    "each file must belong to one"
                )
            files.append(_describe(path, entry))
    return sorted(files, key=lambda file: file.path)


def _matches(pattern: str) -> set[str]:
    if "://" in pattern:
        raise UserError(f"inputs: {pattern!r} is a URL; only local paths can be read")
    if os.path.isdir(pattern):
        raise UserError(f"inputs: {pattern} is a folder; give a pattern such as {pattern}/*.jsonl")
    if os.path.isfile(pattern):  # a literal name wins, even one with [ or * in it
        return {pattern}
    found = {p for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)}
    if not found:
        raise UserError(f"inputs: no file matches {pattern!r}; check the path and the pattern")
    return found


def _describe(path: str, entry: Input) -> InputFile:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"the name of {path} is not valid UTF-8; rename it") from None
    try:
        stat = os.stat(path)
        with open(path, "rb") as f:
            head = f.read(_MAGIC_BYTES)
    except OSError as e:
        raise UserError(
            f"cannot read {path}: {e.strerror}; check that it exists and may be read"
        ) from e
    if head[:2] in _UTF16:
        raise UserError(
            f"{path} is UTF-16 (byte-order mark); convert it to UTF-8: iconv -f UTF-16 -t UTF-8"
        )
    return InputFile(
        path=path,
        source=entry.source,
        format=entry.format if entry.format != "auto" else _format_of(path),
        text_key=entry.text_key,
        document=entry.document,
        weight=entry.weight,
        language=entry.language,
        # By content, not by name: files are often misnamed, and a wrong guess loses a whole file.
        compression=next((kind for magic, kind in _MAGIC if magic.match(head)), ""),
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
    )


def _format_of(path: str) -> Format:
    name = Path(path)
    if name.suffix.lower() in _COMPRESSED_SUFFIXES:
        name = name.with_suffix("")
    try:
        return _FORMATS[name.suffix.lower()]
    except KeyError:
        raise UserError(
            f"cannot tell the format of {path} from its name; set format: jsonl, parquet or text"
        ) from None


def check_unchanged(file: InputFile) -> None:
    """Raises UserError when a file is not the one that was planned: half of it may be old."""
    try:
        stat = os.stat(file.path)
    except OSError as e:
        raise UserError(f"{file.path} vanished while it was read: {e.strerror}") from e
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
        raise UserError(
            f"{file.path} changed during the run; run again when nothing writes to it: what is "
            "done of the other files is kept"
        )
