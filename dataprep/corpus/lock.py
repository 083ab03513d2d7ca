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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep.engine.task import machine_start
from dataprep.errors import UserError
from dataprep.files import write_error, write_json
from dataprep.storage import Place, Remote, hasty, read, remove

LOCK = ".lock"
RENEW = 10.0  # seconds between two renewals
WATCH = 45.0  # seconds without one after which a lock is nobody's


class Held:
    """A folder that is ours for now."""

    lost = False
    """Whether it is known to be ours no more; costs nothing to ask."""

    def check(self) -> None:
        """Raises UserError when it is ours no more."""


@contextlib.contextmanager
def exclusive(folder: Place) -> Iterator[Held]:
    """Holds the folder for this process. Raises UserError when another run holds it."""
    with _leased(folder) if isinstance(folder, Remote) else _locked(folder) as held:
        yield held


def _busy(folder: Place) -> UserError:
    return UserError(
        f"another run is at work in {folder}; wait for it, stop it, or name other folders"
    )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Held]:
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a run that ended may have moved it
        file = (folder / LOCK).open("a")
    except OSError as e:
        raise write_error(folder, e) from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise _busy(folder) from e
        yield Held()


class _Lease(Held):
    """Renewed by a thread until it is ended."""

    def __init__(self, folder: Remote) -> None:
        self._folder, self._path = folder, folder / LOCK
        self._mine = {**_whoami(), "run": uuid.uuid4().hex}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        write_json(self._path, {**self._mine, "renewed": 0})
        self._thread.start()

    def check(self) -> None:
        now = _holder(self._path)
        if self.lost or now is None or now["run"] != self._mine["run"]:
            self.lost = True
            raise UserError(
                f"another run has taken {self._folder}, as this one did not answer; stop one"
            )

    def _renew(self) -> None:
        for n in range(1, 1 << 62):
            if self._ended.wait(RENEW):
                return
            # A failure of the store is told by the work itself, a lost lock by `lost`.
            with contextlib.suppress(UserError):
                self.check()
                write_json(self._path, {**self._mine, "renewed": n})

    def end(self) -> None:
        self._ended.set()
        self._thread.join(1.0)  # it may be waiting for a store that is gone
        with contextlib.suppress(UserError), hasty():
            self.check()
            remove(self._path)


@contextlib.contextmanager
def _leased(folder: Remote) -> Iterator[Held]:
    _wait_until_free(folder)
    lease = _Lease(folder)
    try:
        lease.check()  # two may have found it free
        yield lease
    finally:
        lease.end()


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
    except (ValueError, TypeError) as e:
        raise UserError(f"{path} is damaged: {e}; remove it if no run is at work there") from e


def _whoami() -> dict[str, Any]:
    """A process, and the set of processes within which its number means something."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    within = [os.uname().nodename, machine_start(), namespace]
    return {"within": within, "pid": os.getpid()}


def _is_dead(holder: dict[str, Any]) -> bool:
    within = _whoami()["within"]
    if not all(within) or holder.get("within") != within:
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it lives, as somebody else's
    return False
