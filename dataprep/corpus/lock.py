"""One run at a time in a folder."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from dataprep.errors import UserError
from dataprep.files import write_error

LOCK = ".lock"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the kernel lets go of it when the process ends.

    Raises UserError when another process holds it.
    """
    try:
        file = (folder / LOCK).open("a")
    except OSError as e:
        raise write_error(folder, e) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise UserError(
                f"another run is at work in {folder}; wait for it, stop it, or name other folders"
            ) from e
        yield
