"""Whole files or none: atomic writes, hashes, canonical JSON.

Invariant: a file under its final name is complete. Content goes to a temporary name in the same
folder, is flushed to disk, and is renamed; a failure removes the temporary file.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep.errors import UserError

TMP = ".tmp"  # suffix of every unfinished file; never read, overwritten freely


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success syncs it and renames it to `path`.

    Raises UserError when the disk is full or the folder cannot be written.
    """
    tmp = path.with_name(path.name + TMP)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield tmp
        sync(tmp)
        os.replace(tmp, path)
        sync(path.parent)
    except OSError as e:
        tmp.unlink(missing_ok=True)
        raise write_error(path, e) from e
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise


def write_error(path: Path, cause: OSError) -> UserError:
    """The one wording for a failed write."""
    return UserError(
        f"cannot write {path}: {cause.strerror or cause}; "
        "free some space or choose a folder that can be written, then run again"
    )


def sync(path: Path) -> None:
    """Flushes a file or folder to disk, so that a rename never publishes missing bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def canonical_json(value: Any) -> str:
    """The same text for equal values: sorted keys, no spaces. For fingerprints."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with atomic_path(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads JSON; raises UserError when the file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"{path} is damaged: not valid JSON ({e})") from e


def fingerprint(value: Any) -> str:
    """SHA-256 (64 hex digits) of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes (64 hex digits)."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
