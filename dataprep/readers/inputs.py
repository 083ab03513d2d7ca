"""What to read: input entries of a config, and the sorted list of files they match."""

import glob
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep.errors import UserError
from dataprep.files import check_path
from dataprep.storage import AT_ONCE, Entry, entry, is_folder, is_url, match, open_reader, place

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
    """A file, or a pattern with * ? [] ** (matched files are read in sorted order); a path, or a
    URL such as s3://bucket/text/*.jsonl."""
    source: str = "default"
    """Name under which documents are counted in the ledger and the report."""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """auto: from the file name (.jsonl .ndjson .json .parquet .txt .text, then .gz .zst .bz2)."""
    text_key: str = "text"
    """JSON key or Parquet column that holds the text."""
    document: Literal["line", "file"] = "line"
    """For format text: each line is a document, or each whole file is one."""
    weight: float = 1.0
    """Passes over these documents: 2.0 places each twice, far apart; 0.5 keeps a seeded half. A
    text that several inputs hold has the largest of their weights."""
    max_tokens: int | None = None
    """At most this many tokens of these documents in train, copies included; whole documents are
    kept in a seeded order. A text that several inputs hold belongs to the earliest file."""
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
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(
                f"inputs: max_tokens of {self.path} is {self.max_tokens}; it must be 1 or more"
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
    max_tokens: int | None
    """Of all files of its entry together."""
    entry: str
    """Path of the entry of `inputs` that names it."""
    language: str
    compression: Compression
    size: int
    """Bytes on disk."""
    version: str
    """Modification time (ns), or what the store gives, as an ETag: with path and size, the identity
    of the content for receipts."""


def expand(inputs: Sequence[Input]) -> list[InputFile]:
    """All files of all entries, sorted by path, so that the order of entries changes nothing.

    Raises UserError when an entry matches nothing, a file matches two entries, cannot be read, or
    its format cannot be told.
    """
    if not inputs:
        raise UserError("inputs is empty: name at least one file or pattern")
    owner: dict[str, int] = {}
    found: list[tuple[str, Entry, Input]] = []
    for i, one in enumerate(inputs):
        for path, stat in _matches(one.path).items():
            first = owner.setdefault(path if is_url(path) else os.path.abspath(path), i)
            if first != i:
                raise UserError(
                    f"{path} is matched by two inputs ({inputs[first].path!r} and {one.path!r}); "
                    "each file must belong to one"
                )
            found.append((path, stat, one))
    files = [_describe(*one) for one in found if not is_url(one[0])]
    remote = [one for one in found if is_url(one[0])]
    with ThreadPoolExecutor(AT_ONCE) as pool:  # a store answers slowly, but many at a time
        files.extend(pool.map(lambda one: _describe(*one), remote))
    return sorted(files, key=lambda file: file.path)


def _matches(pattern: str) -> dict[str, Entry]:
    """Path or URL of each file, and its size and version."""
    folder = place(pattern)
    if isinstance(folder, Path):
        pattern = str(folder) if is_url(pattern) else pattern  # file://
        found = _local(pattern)
    else:
        found = match(pattern)
    if not found and is_folder(folder):
        name = pattern.rstrip("/")
        raise UserError(f"inputs: {name} is a folder; give a pattern such as {name}/*.jsonl")
    if not found:
        raise UserError(f"inputs: no file matches {pattern!r}; check the path and the pattern")
    return found


def _local(pattern: str) -> dict[str, Entry]:
    alone = entry(Path(pattern))  # a literal name wins, even one with [ or * in it
    if alone:
        return {pattern: alone}
    every = ((path, entry(Path(path))) for path in set(glob.glob(pattern, recursive=True)))
    return {path: found for path, found in every if found}


def _describe(path: str, stat: Entry, entry: Input) -> InputFile:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"the name of {path} is not valid UTF-8; rename it") from None
    try:
        with open_reader(place(path), _MAGIC_BYTES) as f:
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
        max_tokens=entry.max_tokens,
        entry=entry.path,
        language=entry.language,
        # By content, not by name: files are often misnamed, and a wrong guess loses a whole file.
        compression=next((kind for magic, kind in _MAGIC if magic.match(head)), ""),
        size=stat.size,
        version=stat.version,
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
    now = entry(place(file.path))
    if now is None:
        raise UserError(f"{file.path} vanished while it was read; run again when it is back")
    if (now.size, now.version) != (file.size, file.version):
        raise UserError(
            f"{file.path} changed during the run; run again when nothing writes to it: what is "
            "done of the other files is kept"
        )
