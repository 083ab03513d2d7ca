"""What is done to places. Remote ones are tried again while the store may recover.

An error is *final* (no such object, no rights, no credentials) or *passing* (503, a connection
lost, a time-out). After the last try, a passing one ends the run as well; finished work is kept.
"""

import contextlib
import errno
import io
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

import fsspec

from dataprep.errors import UserError, printable
from dataprep.storage.place import Place, Remote

T = TypeVar("T")

DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between tries
AT_ONCE = 16  # requests: a store answers slowly, but many at a time
BLOCK = 8 << 20  # bytes asked for at a time when a file is read from end to end
_VERSION_KEYS = (
    *("ETag", "etag", "md5", "LastModified", "Last-Modified", "mtime", "updated", "created"),
)
_WEB = ("http://", "https://")
# For s3fs and botocore below it. Tries multiply: s3fs makes none of its own, botocore a few, as one
# request of a hundred that fails is no reason to upload a whole file again. By default, a transfer
# holds ten parts of 50 MiB twice.
_S3FS = {"retries": 1, "max_concurrency": 2, "default_block_size": BLOCK}
_BOTOCORE = {"retries": {"mode": "standard", "total_max_attempts": 3}, "max_pool_connections": 32}

_DEFECTS = (TypeError, AttributeError, NameError, LookupError, AssertionError, MemoryError)
_UNUSABLE = (ImportError, ValueError, FileExistsError, IsADirectoryError, NotADirectoryError)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_CREDENTIALS = (
    "no usable credentials were found; for S3, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "or AWS_PROFILE"
)
# By name: the packages of a store are not imported unless it is used.
_FINAL = {
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "ProfileNotFound": _NO_CREDENTIALS,
    "ParamValidationError": "the name is not one that the store allows",
}
# Answers of status 4xx that are not the fault of the request.
_PASSING_STATUS = (408, 409, 425, 429)
_PASSING_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
_hasty: ContextVar[bool] = ContextVar("hasty", default=False)
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def hasty() -> Iterator[None]:
    """Within it nothing is tried again: what is done on the way out of a failure may fail."""
    token = _hasty.set(True)
    try:
        yield
    finally:
        _hasty.reset(token)


@dataclass(frozen=True)
class Entry:
    """What a store says of one file."""

    size: int
    """Bytes."""
    version: str
    """Changes when the content does: a hash or a time, whichever the store offers."""


def entry(at: Place) -> Entry | None:
    """Size and version of a file; None when there is none (a folder is none)."""
    if isinstance(at, Path):
        try:
            found = at.stat()
        except OSError:
            return None
        return Entry(found.st_size, str(found.st_mtime_ns)) if S_ISREG(found.st_mode) else None
    try:
        info = _insist("look at", at, lambda fs, path: fs.info(path))
    except FileNotFoundError:
        return None
    return _entry(info) if info["type"] == "file" else None


def _entry(info: dict[str, Any]) -> Entry:
    if info["size"] is None:
        raise UserError(f"{info['name']}: its server does not tell how long it is; fetch it first")
    version = next((info[key] for key in _VERSION_KEYS if info.get(key)), "")
    # A listing may give the same time as a number.
    return Entry(int(info["size"]), str(getattr(version, "timestamp", lambda: version)()))


def is_folder(at: Place) -> bool:
    """Whether it is a folder, or files have names below it."""
    if isinstance(at, Path):
        return os.path.isdir(at)
    return bool(_insist("look at", at, lambda fs, path: fs.isdir(path)))


def match(pattern: str) -> dict[str, Entry]:
    """URL -> entry of the files that a URL names: it alone, or those that fit it as a pattern."""
    at = Remote(pattern.rstrip("/"))
    alone = entry(at)  # a literal name wins, even one with [ or * in it
    if alone or not has_magic(pattern):
        return {at.url: alone} if alone else {}

    def do(fs: fsspec.AbstractFileSystem, path: str) -> dict[str, Entry]:
        found = fs.glob(path, detail=True)
        root = at.url.removesuffix(path)  # with the host, where names have none
        return {
            fs.unstrip_protocol(name) if root == at.url else f"{root}{name}": _entry(info)
            for name, info in found.items()
            if info["type"] == "file" and not name.endswith("/")
        }

    try:
        return _insist("list", at, do)
    except FileNotFoundError:
        return {}


def find(at: Place) -> dict[Place, Entry]:
    """All files below a place, sorted by name; not the empty objects that stand for folders."""
    if isinstance(at, Path):
        every = ((path, entry(path)) for path in sorted(at.rglob("*")))
        return {path: found for path, found in every if found}

    def do(fs: fsspec.AbstractFileSystem, path: str) -> dict[Place, Entry]:
        found = sorted(fs.find(path, detail=True).items())
        return {
            at / name.removeprefix(f"{path}/"): _entry(info)
            for name, info in found
            if name.startswith(f"{path}/") and not name.endswith("/")
        }

    try:
        return _insist("list", at, do)
    except FileNotFoundError:
        return {}


def read(at: Place) -> bytes:
    """A whole small file. Raises FileNotFoundError, or OSError for a local one."""
    if isinstance(at, Path):
        return at.read_bytes()
    return _insist("read", at, lambda fs, path: bytes(fs.cat_file(path)))


def read_range(at: Remote, start: int, stop: int) -> bytes:
    """Bytes of a remote file, which must have them all. Raises FileNotFoundError, UserError."""
    data = _insist("read", at, lambda fs, path: bytes(fs.cat_file(path, start=start, end=stop)))
    if len(data) != stop - start:
        raise UserError(
            f"{at}: {len(data):,} bytes came where {stop - start:,} were asked for; it changed, or "
            "its store knows no ranges"
        )
    return data


def open_reader(at: Place, block: int = BLOCK) -> io.BufferedReader:
    """A file for reading, with seek. `block`: bytes of a remote one that are asked for at a time.

    Raises OSError when it is not there.
    """
    if isinstance(at, Path):
        return at.open("rb")
    found = entry(at)
    if found is None:
        raise FileNotFoundError(2, "there is no such object", str(at))
    return io.BufferedReader(_Ranges(at, found.size), block)


class _Ranges(io.RawIOBase):
    """A remote file as ranges: each is asked for by itself, so that each can be asked for again."""

    def __init__(self, at: Remote, size: int) -> None:
        self._at, self._size, self._position = at, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readall(self) -> bytes:
        rest = bytearray(max(self._size - self._position, 0))  # the default asks for 8 KiB a time
        for at in range(0, len(rest), BLOCK):
            self.readinto(memoryview(rest)[at : at + BLOCK])
        return bytes(rest)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = min(len(buffer), BLOCK)  # the caller asks again for the rest
        start, stop = self._position, min(self._position + size, self._size)
        if start >= stop:
            return 0
        data = read_range(self._at, start, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)


def download(at: Remote, to: Path) -> None:
    """Copies a remote file to this machine."""
    try:
        _insist("read", at, lambda fs, path: fs.get_file(path, str(to)))
    except FileNotFoundError as e:
        raise UserError(f"{at} vanished; run again") from e


def upload(path: Path, to: Remote) -> None:
    """Copies a file of this machine to the store, where it appears whole."""
    try:
        _insist("write", to, lambda fs, name: fs.put_file(str(path), name))
    except FileNotFoundError as e:
        raise UserError(f"cannot write {to}: {e}; make the bucket first") from e


def copy(a: Remote, b: Remote) -> None:
    """Copies within one store; where the store can, no byte comes here.

    Raises FileNotFoundError when `a` is not there.
    """
    _insist("write", b, lambda fs, path: fs.cp_file(_connect(a)[1], path))


def remove(at: Place) -> None:
    """Removes a file, if it is there."""
    if isinstance(at, Path):
        at.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        _insist("remove", at, lambda fs, path: fs.rm_file(path))


def remove_many(files: Iterable[Place]) -> None:
    """Removes files, those that are there."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(remove, files))


def _connect(at: Remote) -> tuple[Any, str]:
    """Its file system, and its name there.

    Not by fsspec's url_to_fs, which takes a "::" in an object's name for the start of another URL.
    """
    kind = fsspec.get_filesystem_class(at.url.partition("://")[0])
    try:
        fs = kind(**kind._get_kwargs_from_urls(at.url))  # one for all threads, kept by fsspec
    except Exception as e:  # some want more than a URL
        raise UserError(f"cannot open {at}: {e}; copy the files to another store first") from e
    fs.dircache.use_listings_cache = False  # others write there too
    if "s3" in fs.protocol:
        if "?versionId=" in at.url:  # s3fs would take it off the name
            raise UserError(f"{at} names a version of an object; only the latest can be used")
        vars(fs).update(_S3FS)
        fs.config_kwargs = {**_BOTOCORE, **fs.config_kwargs}
    elif at.url.startswith(_WEB):
        fs.kwargs.setdefault("headers", {"Accept-Encoding": "identity"})  # ranges of the file
    return fs, kind._strip_protocol(at.url)


def _insist(what: str, at: Remote, do: Callable[[Any, str], T]) -> T:
    """do(file system, path), again while it fails for passing reasons.

    Raises FileNotFoundError; UserError for all else that is not a defect of this program.
    """
    if at.url.startswith(_WEB) and what not in ("read", "look at"):
        raise UserError(f"cannot {what} {at}: a web server is only for reading files one by one")
    start = time.monotonic()
    waits = () if _hasty.get() else DELAYS
    for wait in (*waits, None):
        try:
            return do(*_connect(at))
        except (UserError, *_DEFECTS):
            raise
        except Exception as error:  # every store has exceptions of its own
            e = _unmasked(error)
            if isinstance(e, FileNotFoundError):
                raise
            why = printable(str(e) or type(e).__name__)
            final = _final(e)
            if final:
                raise UserError(f"cannot {what} {at}: {final} ({why})") from e
            if wait is None:
                raise UserError(
                    f"cannot {what} {at}: {why}; tried {len(waits) + 1} times in "
                    f"{time.monotonic() - start:.0f} s; check the store and the network, then run "
                    "again: finished work is kept"
                ) from e
            where = printable(str(at))
            _log.warning("cannot %s %s: %s; trying again in %g s", what, where, why, wait)
            time.sleep(wait * random.uniform(0.75, 1.25))  # not all workers at once
    raise AssertionError("the last try returns or raises")


def _unmasked(e: Exception) -> Exception:
    """To fsspec every failure of a web server is a file that is not there."""
    cause = e.__cause__
    if not isinstance(e, FileNotFoundError) or not isinstance(cause, Exception):
        return e
    web = type(cause).__module__.startswith("aiohttp") or isinstance(cause, TimeoutError)
    return cause if web and _status(cause) not in (404, 410) else e


def _status(e: Exception) -> int:
    """The HTTP status that an exception tells of, or 0."""
    status, response = getattr(e, "status", 0), getattr(e.__cause__, "response", None)
    if isinstance(response, dict):  # botocore's
        if response.get("Error", {}).get("Code") in _PASSING_CODES:
            return 0
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def _final(e: Exception) -> str:
    """Why trying again is of no use, or ""."""
    status = _status(e)
    if isinstance(e, PermissionError) or status in (401, 403):
        return "the store refuses it: check the credentials and their rights"
    if isinstance(e, OSError) and e.errno in DISK_FULL:
        return "the disk of this machine is full; free some space, or set TMPDIR to another folder"
    if 400 <= status < 500 and status not in _PASSING_STATUS:
        return "the store does not take the request"
    if isinstance(e, NotImplementedError):
        return "this kind of store cannot do that"
    if isinstance(e, _UNUSABLE):
        return "it cannot be used"
    return next((_FINAL[kind.__name__] for kind in type(e).__mro__ if kind.__name__ in _FINAL), "")
