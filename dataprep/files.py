"""Whole files or none: atomic writes, hashes, canonical JSON.

Invariant: a file under its final name is complete. Content goes to a temporary name in the same
folder, is flushed to disk, and is renamed; a failure removes the temporary file. A remote file is
written here and uploaded. Work files are not flushed: they can be made again (`engine.task`).
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep.errors import Unreadable, UserError
from dataprep.storage import DISK_FULL, Place, Remote, place, read, staged

TMP = ".tmp"  # suffix of every unfinished file; never read, removed freely


@contextlib.contextmanager
def atomic_path(path: Place, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary local path; on success its content appears under `path`, whole.

    `durable`: it outlives the machine; without, it may be lost with it, or cut short.
    Raises UserError when the disk is full, or the folder or the store cannot be written.
    """
    if isinstance(path, Remote):
        with staged(path.parent) as folder:
            tmp = folder / path.name
            try:
                yield tmp
            except OSError as e:
                raise write_error(tmp, e) from e
        return
    tmp = unfinished(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield tmp
        if durable:
            sync(tmp)
        os.replace(tmp, path)
        if durable:
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


def write_error(path: Place, cause: OSError) -> UserError:
    """The one wording for a failed write."""
    full = cause.errno in DISK_FULL
    cure = "free some space" if full else "choose a folder that can be written"
    return UserError(f"cannot write {path}: {cause.strerror or cause}; {cure}, then run again")


def read_error(path: Place, cause: OSError) -> UserError:
    """The one wording for a failed read: Unreadable, unless there is no such file."""
    absent = FileNotFoundError | NotADirectoryError | IsADirectoryError
    kind = UserError if isinstance(cause, absent) else Unreadable
    return kind(f"cannot read {path}: {cause.strerror or cause}")


def check_path(key: str, path: str) -> None:
    """Raises UserError when no file can have this name: the system's own errors name no key.

    `path` may be a URL.
    """
    try:
        good = path and "\0" not in path and path.encode("utf-8")
    except UnicodeEncodeError:
        good = False
    if not good:
        raise UserError(f"{key} is {path!r}: not the name of a file or folder; give another")
    try:
        place(path)
    except UserError as e:
        raise UserError(f"{key}: {e}") from e


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


def write_json(path: Place, value: Any, durable: bool = True) -> None:
    """Writes readable JSON atomically; `durable` as for atomic_path."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with atomic_path(path, durable) as tmp:
        tmp.write_text(text, encoding="utf-8")


def read_json(path: Place) -> Any:
    """Reads JSON; raises UserError when the file is missing or damaged."""
    try:
        return json.loads(read(path).decode("utf-8"))
    except OSError as e:
        raise read_error(path, e) from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{path} is damaged: not valid JSON ({e})") from e


def fingerprint(value: Any) -> str:
    """SHA-256 (64 hex digits) of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes (64 hex digits)."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
