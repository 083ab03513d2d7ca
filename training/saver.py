"""Writes checkpoints, alone or with other ranks, while training goes on.

    every rank   copies what it owns -> a thread: tmp/rank-N.safetensors, then tmp/rank-N.json
    rank 0       waits for all of those, writes tmp/state.json, renames tmp, removes old ones
    the others   wait until tmp is gone

So ranks need a folder that all see, and no collective, which a thread could not join. Whoever sees
state.json sees a whole checkpoint: everything was flushed to disk before the rename.
"""

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from dataprep.errors import UserError
from dataprep.files import TMP, fingerprint, sha256_file, sync, write_error, write_json
from training.checkpoint import FORMAT, STATE, TrainState, list_checkpoints, step_folder
from training.pieces import Float32, Piece, Slice
from training.rankfile import index_name, read_index, slice_of, tensors_name, write_rank
from training.relayout import check_whole

log = logging.getLogger(__name__)

PATIENCE = 600.0  # seconds without a byte more, after which a rank stops waiting for others
POLL = 0.02  # seconds


class Saver:
    """A rank's share in the checkpoints of a run.

    Make it on every rank before the first collective of the run: rank 0 clears away what a killed
    run has left.
    """

    def __init__(
        self,
        save_dir: Path,
        rank: int = 0,
        ranks: int = 1,
        keep: int = 2,
        asynchronous: bool = True,
    ) -> None:
        """`keep`: newest checkpoints that stay. `asynchronous`: save returns before it is done."""
        self.save_dir, self.rank, self.ranks = save_dir, rank, ranks
        self.keep, self.asynchronous = keep, asynchronous
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._damaged: set[Path] = set()
        if rank == 0:
            for remains in save_dir.glob(f"step-*{TMP}"):
                shutil.rmtree(remains, ignore_errors=True)

    def continues(self, found: Path) -> None:
        """`found` is the newest whole checkpoint: later ones are damaged, and keep no place."""
        done = list_checkpoints(self.save_dir)
        self._damaged = {path for path in done if path.name > found.name}

    def newest(self) -> Path | None:
        """The newest that is there and not known to be damaged."""
        found = (path for path in list_checkpoints(self.save_dir) if path not in self._damaged)
        return next(found, None)

    def save(self, state: TrainState, pieces: Iterable[Piece]) -> None:
        """Begins to write a checkpoint, when the one before is there.

        The values are copied before this returns, so that they may change afterwards; without
        `asynchronous` they are written one by one and the checkpoint is there on return. `state`
        is the same on all ranks. Raises UserError when this or the one before cannot be written;
        earlier checkpoints are then untouched.
        """
        self.wait()
        owned = [piece for piece in pieces if piece.first < piece.last]
        if not self.asynchronous:
            self._write(state, owned, None)
            return
        values = [piece.values() for piece in owned]
        self._thread = threading.Thread(
            target=self._write_aside, args=(state, owned, values), name="checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Returns when the last checkpoint is there for all ranks; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check(self) -> None:
        """Raises what went wrong with the last checkpoint, if it is known by now."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def abandon(self) -> bool:
        """After a failure of the run: a single process finishes what it writes, without raising.

        One of several does not wait: its partners may have ended. Returns whether nothing is being
        written any more.
        """
        if self._thread is not None and self.ranks == 1:
            self._thread.join()
        if self._error is not None:
            log.warning("%s", self._error)
        return self._thread is None or not self._thread.is_alive()

    def _write_aside(
        self, state: TrainState, pieces: Sequence[Piece], values: Sequence[Float32]
    ) -> None:
        try:
            self._write(state, pieces, values)
        except BaseException as e:  # for `wait`
            self._error = e

    def _write(
        self, state: TrainState, pieces: Sequence[Piece], values: Sequence[Float32] | None
    ) -> None:
        path = step_folder(self.save_dir, state.step)
        tmp = path.with_name(path.name + TMP)
        save = fingerprint([asdict(state), self.ranks])
        try:
            tmp.mkdir(parents=True, exist_ok=True)
            write_rank(tmp, self.rank, save, pieces, values)
            if self.rank == 0:
                self._publish(path, tmp, state, save)
            else:
                self._await_publication(path, tmp)
        except OSError as e:
            if self.ranks == 1:
                shutil.rmtree(tmp, ignore_errors=True)
            raise write_error(path, e) from e

    def _publish(self, path: Path, tmp: Path, state: TrainState, save: str) -> None:
        hashes = self._receipts(tmp, save)
        content = {"format": FORMAT, **asdict(state), "files": hashes}
        write_json(tmp / STATE, {**content, "fingerprint": fingerprint(content)})
        if path.exists():  # a damaged one, whose step was done again
            shutil.rmtree(path)
        os.replace(tmp, path)
        sync(self.save_dir)
        self._damaged.discard(path)
        # Not those of later steps: they are damaged, or this run would have continued from them.
        mine = [old for old in list_checkpoints(self.save_dir) if old.name <= path.name]
        kept = [old for old in mine if old not in self._damaged][: self.keep]
        for old in mine:
            if old not in kept:
                shutil.rmtree(old)

    def _receipts(self, tmp: Path, save: str) -> dict[str, str]:
        """Hashes of all ranks' files, when they are all there and hold every element once."""
        hashes: dict[str, str] = {}
        parts: dict[str, list[tuple[Slice, int, int]]] = {}
        for rank in range(self.ranks):
            index = tmp / index_name(rank)
            told = f"rank {rank} does not write its part; choose a save_dir that all processes see"
            _wait(partial(_receipt, index, save), tmp, told)
            content = read_index(index)
            hashes[index.name] = sha256_file(index)
            if content["file"]:
                hashes[tensors_name(rank)] = content["file"]
            for piece in content["pieces"]:
                place = slice_of(piece), piece["first"], piece["last"]
                parts.setdefault(f"{piece['kind']}.{piece['name']}", []).append(place)
        for name, places in parts.items():
            check_whole(f"{tmp}: {name}", places)
        return hashes

    def _await_publication(self, path: Path, tmp: Path) -> None:
        _wait(lambda: not tmp.exists(), tmp, "rank 0 does not finish it; see what it says")
        if not path.exists():
            raise UserError(f"cannot write {path}: it was removed while it was written")


def _receipt(index: Path, save: str) -> bool:
    return index.exists() and bool(read_index(index)["save"] == save)


def _wait(done: Callable[[], bool], tmp: Path, told: str) -> None:
    """Returns when something is done. Raises UserError when nothing happens in `tmp` for long."""
    written, since = _bytes(tmp), time.monotonic()
    while not done():
        if time.monotonic() - since > PATIENCE:
            before, written, since = written, _bytes(tmp), time.monotonic()
            if written == before:
                raise UserError(f"cannot write {tmp}: for {PATIENCE:.0f} s {told}")
        time.sleep(POLL)


def _bytes(folder: Path) -> int:
    """Of all files in it; files may come and go meanwhile."""
    total = 0
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
