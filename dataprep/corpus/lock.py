"""One run at a time in a folder.

    local     the kernel's lock on a file, let go when the process ends
    remote    an object that its owner renews; one that is not renewed is nobody's any more

A store has no locks that end with their owner. A second run watches the object for a while: it does
not trust clocks, only change. If its owner is a dead process of this machine, nobody waits.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dataprep.errors import UserError
from dataprep.files import write_error, write_json
from dataprep.storage import Place, Remote, read, remove

LOCK = ".lock"
RENEW = 10.0  # seconds between two renewals
WATCH = 45.0  # seconds without one after which a lock is nobody's

StillOurs = Callable[[], None]


@contextlib.contextmanager
def exclusive(folder: Place) -> Iterator[StillOurs]:
    """Holds the folder for this process. The value raises UserError when it is called too late.

    Raises UserError when another run holds it.
    """
    with _leased(folder) if isinstance(folder, Remote) else _locked(folder) as still_ours:
        yield still_ours


def _busy(folder: Place) -> UserError:
    return UserError(
        f"another run is at work in {folder}; wait for it, stop it, or name other folders"
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[StillOurs]:
    try:
        file = (folder / LOCK).open("a")
    except OSError as e:
        raise write_error(folder, e) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise _busy(folder) from e
        yield lambda: None


@contextlib.contextmanager
def _leased(folder: Remote) -> Iterator[StillOurs]:
    path = folder / LOCK
    _wait_until_free(folder)
    mine = {"host": os.uname().nodename, "pid": os.getpid(), "run": uuid.uuid4().hex}
    write_json(path, {**mine, "renewed": 0})
    ended = threading.Event()

    def still_ours() -> None:
        now = _holder(path)
        if now is None or now["run"] != mine["run"]:
            raise UserError(f"another run has taken {folder}, as this one did not answer; stop one")

    def renew() -> None:
        for n in range(1, 1 << 62):
            if ended.wait(RENEW):
                return
            # A failure is told by still_ours, or by the work itself.
            with contextlib.suppress(UserError):
                still_ours()
                write_json(path, {**mine, "renewed": n})

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        still_ours()  # two may have found it free
        yield still_ours
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(UserError):
            still_ours()
            remove(path)


def _wait_until_free(folder: Remote) -> None:
    first = _holder(folder / LOCK)
    if first is None or _is_dead(first):
        return
    end = time.monotonic() + WATCH
    while time.monotonic() < end:
        time.sleep(min(1.0, WATCH / 10))
        now = _holder(folder / LOCK)
        if now is None:
            return
        if now != first:
            raise _busy(folder)


def _holder(path: Remote) -> dict[str, Any] | None:
    try:
        return dict(json.loads(read(path)))
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise UserError(f"{path} is damaged: {e}; remove it if no run is at work there") from e


def _is_dead(holder: dict[str, Any]) -> bool:
    if holder["host"] != os.uname().nodename:
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
