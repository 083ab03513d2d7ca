"""Whole files or none: atomic writes, hashes, canonical JSON.

Invariant: a file under its final name is complete. Content goes to a temporary name in the same
folder, is flushed to disk, and is renamed; a failure removes the temporary file.
"""

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep.errors import UserError

TMP = ".tmp"  # suffix of every unfinished file; never read, removed freely


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success syncs it and renames it to `path`.

    Raises UserError when the disk is full or the folder cannot be written.
    """
    tmp = unfinished(path)
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


def unfinished(path: Path) -> Path:
    """A temporary name beside `path`, used by nobody else: a lost machine may still be writing."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{TMP}")


def write_error(path: Path, cause: OSError) -> UserError:
    """The one wording for a failed write."""
    full = cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    cure = "free some space" if full else "choose a folder that can be written"
    return UserError(f"cannot write {path}: {cause.strerror or cause}; {cure}, then run again")


def check_path(key: str, path: str) -> None:
    """Raises UserError when no file can have this name: the system's own errors name no key."""
    try:
        good = path and "\0" not in path and path.encode("utf-8")
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UserError(f"{key} is {path!r}: not the name of a file or folder; give another")


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
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path} is damaged: not valid JSON ({e})") from e


def fingerprint(value: Any) -> str:
    """SHA-256 (64 hex digits) of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes (64 hex digits)."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
