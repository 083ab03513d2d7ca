"""Local files that stand for remote ones while they are written or read.

They lie in a folder of this process below TMPDIR. Workers die by SIGKILL, so nobody can be trusted
to tidy up: whoever needs a folder next removes those whose lock no process holds any more.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from stat import S_ISDIR
from typing import IO

from dataprep.storage.place import Place, Remote
from dataprep.storage.store import download, find, upload

PREFIX, LOCK = "mindprep-scratch-", ".lock"
_YOUNG = 60.0  # seconds in which a folder may not have its lock yet
_held: list[IO[str]] = []  # locks of this process, let go by the kernel when it ends


@cache
def _root() -> Path:
    """This process's folder."""
    _sweep()
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = (root / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    return root


def _sweep() -> None:
    """Removes folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            found = folder.lstat()
            ours = S_ISDIR(found.st_mode) and found.st_uid == os.getuid()  # /tmp is everybody's
            if not ours or time.time() - found.st_mtime < _YOUNG:
                continue
            with (folder / LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:
            continue  # it is held, somebody else's, or being removed by another process


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty local folder, removed at the end."""
    with tempfile.TemporaryDirectory(dir=_root()) as folder:
        yield Path(folder)


@contextlib.contextmanager
def staged(folder: Place) -> Iterator[Path]:
    """A local folder to write whole files into: `folder` itself, or one that is uploaded to it.

    Nothing is uploaded after an exception. Files go in reverse order of their names, so that the
    index of a shard (.db) is there before the shard.
    """
    if isinstance(folder, Path):
        yield folder
        return
    with scratch_folder() as local:
        yield local
        for path in reversed([*find(local)]):
            assert isinstance(path, Path)
            upload(path, folder / path.relative_to(local))


@contextlib.contextmanager
def fetched(places: Sequence[Place]) -> Iterator[list[Path]]:
    """Local files with the content of these places: themselves, or copies removed at the end."""
    with contextlib.ExitStack() as stack:
        paths = []
        for at in places:
            if isinstance(at, Remote):
                path = stack.enter_context(scratch_folder()) / "file"  # its own name is hostile
                download(at, path)
                paths.append(path)
            else:
                paths.append(at)
        yield paths
