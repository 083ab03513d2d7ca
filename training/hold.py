"""One run at a time writes into a save_dir."""

import errno
import fcntl
import logging
import os
from pathlib import Path

from dataprep.errors import UserError
from dataprep.files import write_error

log = logging.getLogger(__name__)
NAME = ".lock"


def hold(save_dir: Path) -> int:
    """Locks a save_dir until the returned descriptor is closed, or this process ends anyhow.

    Raises UserError when it is held already, or nothing can be written there. A file system
    without locks is named in a warning.
    """
    try:
        save_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(save_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise write_error(save_dir, e) from e
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno == errno.EWOULDBLOCK:
            os.close(lock)
            raise UserError(
                f"another run writes into {save_dir}; wait for its end, or choose another save_dir"
            ) from e
        log.warning("%s cannot be locked (%s): let one run at a time use it", save_dir, e.strerror)
    return lock
