"""Gathers real text from the machine it runs on, for a demo where there is nothing else.

    python -m pipelines.local_text OUT

    METADATA of site-packages' *.dist-info            → descriptions ┐
    docstrings of site-packages and the standard      → docstrings   ├ OUT/docs.jsonl
    library, read with `ast`, never run                              │
    README, changelog, copyright of /usr/share/doc    → system_docs  ┘
    licence files of *.dist-info and the system       → licences       OUT/licences.parquet

Keys and columns are text, kind and origin (a relative path). The text is as found: vendored files
and licences bring real duplicates, which stay. The same machine state gives the same bytes. Sizes
are bytes of UTF-8 text.
"""

import argparse
import ast
import email
import gzip
import hashlib
import json
import os
import re
import site
import stat
import sys
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.errors import UserError
from dataprep.files import atomic_path
from pipelines.common import run

MAX_FILE = 512 * 1024  # bytes of one file, decompressed: nothing larger is read into memory
MIN_DOCSTRING = 200  # characters; a module's shorter docstrings become one document

# Not entered below a root: the first two are roots themselves, the third holds no text.
PRUNED = {"site-packages", "dist-packages", "__pycache__"}
MODULE = r"(?!(.*/)?tests?/).*\.py"  # tests hold much code and few docstrings
DESCRIPTION = r".*\.dist-info/METADATA"
LICENCE = r"(?i).*\.dist-info/(.*/)?((licen[cs]e|copying|copyright|notice)[^/]*|licenses/.*)"
SYSTEM_DOC = (
    r"(?i).*/(readme|changelog|changes|news|history|copyright|faq)(\.(debian|txt|md|rst))?(\.gz)?"
)

Files = dict[str, str]  # origin → path; strings, since a Path takes longer to make than to find


class Document(NamedTuple):
    """One row of the output."""

    text: str
    kind: str
    origin: str

    @property
    def size(self) -> int:
        return len(self.text.encode())


class SkipFile(Exception):
    """Says why a file is passed over."""


@dataclass(frozen=True)
class Roots:
    """The folders to search; one that does not exist is passed over."""

    site_packages: tuple[Path, ...] = ()
    stdlib: tuple[Path, ...] = ()
    system_docs: tuple[Path, ...] = ()
    system_licences: tuple[Path, ...] = ()

    @classmethod
    def here(cls) -> "Roots":
        """Those of the running environment and its system."""
        paths = sysconfig.get_paths()
        return cls(
            (*map(Path, site.getsitepackages()), Path(paths["purelib"]), Path(paths["platlib"])),
            stdlib=(Path(paths["stdlib"]),),
            system_docs=(Path("/usr/share/doc"),),
            system_licences=(Path("/usr/share/common-licenses"),),
        )


@dataclass(frozen=True)
class Gathered:
    """What was written; `skipped` counts the files passed over, by reason."""

    bytes: int
    documents: int
    bytes_by_kind: dict[str, int]
    documents_by_kind: dict[str, int]
    skipped: dict[str, int]

    def __str__(self) -> str:
        kinds = [
            f"{kind} {size / 1e6:.1f} MB in {self.documents_by_kind[kind]}"
            for kind, size in sorted(self.bytes_by_kind.items())
        ]
        skipped = [f"{n} {reason}" for reason, n in sorted(self.skipped.items())]
        total = f"{self.bytes / 1e6:.1f} MB of text in {self.documents} documents"
        return "; ".join([total, *kinds, f"files skipped: {', '.join(skipped) or 'none'}"])


def gather(
    out_dir: Path,
    min_bytes: int = 5_000_000,
    max_bytes: int = 12_000_000,
    roots: Roots | None = None,
) -> Gathered:
    """Writes docs.jsonl and licences.parquet to `out_dir`, at most `max_bytes` of text.

    Raises UserError, and writes nothing, when less than `min_bytes` is found.
    """
    skipped: Counter[str] = Counter()
    documents = fair_share(sources(roots or Roots.here(), skipped), max_bytes)
    size, count = Counter[str](), Counter[str]()
    for document in documents:
        size[document.kind] += document.size
        count[document.kind] += 1
    gathered = Gathered(size.total(), count.total(), dict(size), dict(count), dict(skipped))
    if gathered.bytes < min_bytes:
        raise UserError(
            f"too little text on this machine: {min_bytes} bytes are asked for, found {gathered}. "
            "Ask for less (--min-bytes, and --max-bytes above it), or use text files of your own"
        )
    write(out_dir, sorted(documents, key=lambda d: (d.kind, d.origin, d.text)))
    return gathered


def sources(roots: Roots, skipped: Counter[str]) -> dict[str, Iterator[Document]]:
    """A stream for each kind. It reads a file when its turn comes, and counts those it skips."""

    def matching(pattern: str, files: Files) -> Files:
        return {origin: files[origin] for origin in files if re.fullmatch(pattern, origin)}

    packages = walk(roots.site_packages, skipped, named=False)
    stdlib = walk(roots.stdlib, skipped)
    files = {
        "licences": matching(LICENCE, packages) | walk(roots.system_licences, skipped),
        "descriptions": matching(DESCRIPTION, packages),
        "system_docs": matching(SYSTEM_DOC, walk(roots.system_docs, skipped)),
        "docstrings": matching(MODULE, packages | stdlib),
    }
    return {kind: read_all(kind, files[kind], skipped) for kind in files}


def walk(roots: tuple[Path, ...], skipped: Counter[str], named: bool = True) -> Files:
    """Every file below the roots; its origin starts with the root's name, when `named`, or below.

    Enters no linked folder. Of two files with one origin, the first root's counts.
    """

    def unreadable(_: OSError) -> None:
        skipped["unreadable"] += 1

    files: Files = {}
    for root in filter(os.path.isdir, roots):
        base = root.parent if named else root
        for folder, folders, names in os.walk(root, onerror=unreadable):
            folders[:] = [name for name in folders if name not in PRUNED]
            prefix = Path(folder, "_").relative_to(base).as_posix()[:-1]
            for name in names:
                files.setdefault(prefix + name, f"{folder}/{name}")
    return files


def fair_share(sources: dict[str, Iterator[Document]], max_bytes: int) -> list[Document]:
    """Documents up to `max_bytes`, each the next one of the kind that has the least so far.

    So kinds have equal shares, and what a small kind leaves goes to the others, up to a half each.
    """
    documents: list[Document] = []
    taken = dict.fromkeys(sources, 0)
    left = list(sources)
    while left:
        kind = min(left, key=taken.__getitem__)
        document = next(sources[kind], None)
        if document is None or taken[kind] + document.size > max_bytes // 2:
            left.remove(kind)
        elif sum(taken.values()) + document.size > max_bytes:
            break
        else:
            taken[kind] += document.size
            documents.append(document)
    return documents


def mixed(origin: str) -> tuple[bytes, str]:
    """A fixed order of files in which any beginning is a fair sample of all packages.

    By name, the first packages of the alphabet would use up the share. Vendored copies, whose
    folder and name are the same, stand side by side, so that they are taken together.
    """
    tail = "/".join(origin.split("/")[-2:])
    return hashlib.sha256(tail.encode("utf-8", "surrogateescape")).digest(), origin


def read_all(kind: str, files: Files, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of all the files, in `mixed` order."""
    for origin in sorted(files, key=mixed):
        try:
            yield from read_documents(kind, origin, Path(files[origin]))
        except SkipFile as reason:
            skipped[str(reason)] += 1


def read_documents(kind: str, origin: str, path: Path) -> list[Document]:
    """The documents of one file. Raises SkipFile with the reason when there are none."""
    parse = {"descriptions": description, "docstrings": docstrings}.get(kind, whole)
    try:
        parsed = parse(read(path), origin)
        documents = [Document(text, kind, place) for text, place in parsed if text.strip()]
        for row in documents:  # a docstring may spell a lone surrogate, a file name hold any byte
            (row.text + row.origin).encode()
    except UnicodeError as e:
        raise SkipFile("not UTF-8") from e
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise SkipFile("damaged gzip") from e
    except OSError as e:
        raise SkipFile("unreadable") from e
    if not documents:
        raise SkipFile("without text")
    return documents


def read(path: Path) -> bytes:
    """A regular file's content, decompressed; of a bomb, no more than MAX_FILE is read."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise SkipFile("linked or special")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
        content = f.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise SkipFile(f"over {MAX_FILE // 1024} KiB")
    return content


def whole(content: bytes, origin: str) -> list[tuple[str, str]]:
    """A text file is one document."""
    return [(content.decode(), origin)]


def description(content: bytes, origin: str) -> list[tuple[str, str]]:
    """The long description in METADATA: its body, or in older ones a header."""
    message = email.message_from_string(content.decode())
    return [(str(message.get_payload()) or message.get("Description", ""), origin)]


def docstrings(content: bytes, origin: str) -> list[tuple[str, str]]:
    """A module's long docstrings, a document each (origin:line), and its short ones as one."""
    if b'"""' not in content and b"'''" not in content:
        return []  # as good as none, and parsing is what takes the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like, in others' code
            nodes: list[ast.AST] = [ast.parse(content)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise SkipFile("not Python 3") from e
    found = []
    for node in nodes:  # grows as it goes; statements only, far fewer than ast.walk visits
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((getattr(node, "lineno", 1), ast.get_docstring(node) or ""))
        for branch in ("body", "orelse", "handlers", "finalbody"):
            nodes += getattr(node, branch, [])
    found.sort()
    long = [(text, f"{origin}:{line}") for line, text in found if len(text) >= MIN_DOCSTRING]
    short = "\n\n".join(text for _, text in found if 0 < len(text) < MIN_DOCSTRING)
    return long + ([(short, origin)] if len(short) >= MIN_DOCSTRING else [])


def write(out_dir: Path, documents: list[Document]) -> None:
    """Licences as Parquet and the rest as JSONL, so that a demo reads two formats."""
    licences = [d._asdict() for d in documents if d.kind == "licences"]
    schema = pa.schema([(name, pa.string()) for name in Document._fields])
    with atomic_path(out_dir / "licences.parquet") as tmp:
        pq.write_table(pa.Table.from_pylist(licences, schema), tmp)
    with atomic_path(out_dir / "docs.jsonl") as tmp, tmp.open("w", encoding="utf-8") as f:
        for d in documents:
            if d.kind != "licences":
                f.write(json.dumps(d._asdict(), ensure_ascii=False) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: prints a summary."""
    parser = argparse.ArgumentParser("local_text", description="Gathers this machine's text.")
    parser.add_argument("out", type=Path, help="folder for docs.jsonl and licences.parquet")
    parser.add_argument("--min-bytes", type=int, default=5_000_000, help="less is an error")
    parser.add_argument("--max-bytes", type=int, default=12_000_000, help="more is left out")
    args = parser.parse_args(argv)
    print(gather(args.out, args.min_bytes, args.max_bytes))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
