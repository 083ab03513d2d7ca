"""Checkpoints are complete or absent, written by one rank or several, while training goes on."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dataprep.errors import UserError
from tests.training.checkpoints import check_values, names, pieces, save_one, state
from training import rankfile, saver
from training.checkpoint import load_latest, open_checkpoint
from training.pieces import Piece, Slice
from training.saver import Saver


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 10):
        save_one(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00000004", "step-00000010"]


def test_a_damaged_later_one_does_not_push_out_what_is_written(tmp_path: Path) -> None:
    """Step 8 is restored from a backup, since step 10 is damaged; the run goes on from there."""
    for step in (8, 10):
        save_one(tmp_path, step)
    (tmp_path / "step-00000010" / "state.json").write_text("{}")
    save_one(tmp_path, 9, keep=1)
    assert names(tmp_path) == ["step-00000009", "step-00000010"]
    found = load_latest(tmp_path)
    assert found is not None and found.state.step == 9
    save_one(tmp_path, 10, keep=1)
    assert names(tmp_path) == ["step-00000010"]


def test_a_damaged_one_that_is_passed_keeps_no_place(tmp_path: Path) -> None:
    """Step 20 is damaged; the run goes on from 10 and saves 15, then 25 beyond it."""
    for step in (10, 20):
        save_one(tmp_path, step)
    (tmp_path / "step-00000020" / "state.json").write_text("{}")
    found = load_latest(tmp_path)
    assert found is not None and found.state.step == 10
    one = Saver(tmp_path, asynchronous=False)
    one.continues(found.path)
    assert one.newest() == found.path
    one.save(state(15), pieces())
    assert names(tmp_path) == ["step-00000010", "step-00000015", "step-00000020"]
    one.save(state(25), pieces())
    assert names(tmp_path) == ["step-00000015", "step-00000025"]
    assert one.newest() == tmp_path / "step-00000025"


def test_a_kill_while_writing_leaves_the_earlier_one(tmp_path: Path) -> None:
    save_one(tmp_path, 2)
    with (
        mock.patch.object(saver.os, "replace", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        save_one(tmp_path, 4)
    assert names(tmp_path) == ["step-00000002", "step-00000004.tmp"]
    found = load_latest(tmp_path)
    assert found is not None
    assert found.state.step == 2
    save_one(tmp_path, 6)  # the remains are cleared away
    assert names(tmp_path) == ["step-00000002", "step-00000006"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_a_user_error(tmp_path: Path, asynchronous: bool) -> None:
    save_one(tmp_path, 2)
    full = OSError(28, "No space left on device")
    one = Saver(tmp_path, asynchronous=asynchronous)
    with (
        mock.patch.object(rankfile, "sync", side_effect=full),
        pytest.raises(UserError, match="cannot write .*step-00000004: No space left on device"),
    ):
        one.save(state(4), pieces())
        one.wait()
    one.wait()  # it is told once
    assert names(tmp_path) == ["step-00000002"]
    check_values(open_checkpoint(tmp_path / "step-00000002"))


def test_save_returns_with_copies_and_the_next_waits(tmp_path: Path) -> None:
    """What trains on after `save` changes nothing in it; the second waits for the first."""
    live = np.zeros(4, np.float32)
    going = threading.Event()
    original = saver.write_rank

    def slow(*args: Any) -> None:
        assert going.wait(20)
        original(*args)

    one = Saver(tmp_path)
    piece = Piece("w", "a", Slice((4,)), 0, 4, live.copy)
    with mock.patch.object(saver, "write_rank", slow):
        one.save(state(1), [piece])
        live += 1
        assert names(tmp_path) in ([], ["step-00000001.tmp"])
        threading.Timer(0.2, going.set).start()
        one.save(state(2), [piece])
        assert (tmp_path / "step-00000001").exists()
        one.wait()
    for step, value in ((1, 0), (2, 1)):
        found = open_checkpoint(tmp_path / f"step-0000000{step}")
        assert (found.read("w", "a", Slice((4,)), 0, 4) == value).all()


def test_an_error_in_the_background_is_raised_by_the_next_save(tmp_path: Path) -> None:
    one = Saver(tmp_path)
    with mock.patch.object(saver, "write_rank", side_effect=OSError(5, "Input/output error")):
        one.save(state(1), pieces())
        one.abandon()  # which raises nothing
    with pytest.raises(UserError, match="cannot write .*step-00000001: Input/output error"):
        one.save(state(2), pieces())


def test_an_error_in_the_background_is_told_as_soon_as_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Saver(tmp_path)
    one.check()
    with mock.patch.object(saver, "write_rank", side_effect=OSError(5, "Input/output error")):
        one.save(state(1), pieces())
        one.abandon()
    assert "cannot write" in caplog.text and "step-00000001" in caplog.text
    with pytest.raises(UserError, match="cannot write .*step-00000001: Input/output error"):
        one.check()
    one.check()  # it is told once


def ranks_of(tmp_path: Path, ranks: int) -> list[Saver]:
    return [Saver(tmp_path, rank, ranks) for rank in range(ranks)]


def test_ranks_write_one_checkpoint_together(tmp_path: Path) -> None:
    savers = ranks_of(tmp_path, 4)
    for step in (1, 2):
        for rank in (3, 1, 0, 2):
            owned = pieces(rank, 3) if rank < 3 else []  # the last one owns nothing
            savers[rank].save(state(step), owned)
    for one in savers:
        one.wait()
    assert len(names(tmp_path / "step-00000002")) == 4 + 3 + 1
    found = load_latest(tmp_path)
    assert found is not None
    assert (found.state.step, found.ranks) == (2, 4)
    check_values(found)


def test_a_receipt_of_another_save_is_not_taken(tmp_path: Path) -> None:
    """A rank's file of a killed run lies there until the rank writes it anew."""
    zero, one = ranks_of(tmp_path, 2)
    tmp = tmp_path / "step-00000001.tmp"
    tmp.mkdir()
    other = [replace(piece, values=lambda: np.zeros(3, np.float32)) for piece in pieces(1, 2)]
    rankfile.write_rank(tmp, 1, "another", other, None)
    zero.save(state(1), pieces(0, 2))
    time.sleep(0.2)
    assert tmp.exists()
    one.save(state(1), pieces(1, 2))
    one.wait()
    zero.wait()
    check_values(open_checkpoint(tmp_path / "step-00000001"))


def test_a_rank_that_does_not_write_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "PATIENCE", 0.1)
    zero, one = ranks_of(tmp_path, 2)
    zero.save(state(1), pieces(0, 2))
    with pytest.raises(UserError, match="for 0 s rank 1 does not write its part; choose"):
        zero.wait()
    one.save(state(2), pieces(1, 2))
    with pytest.raises(UserError, match="for 0 s rank 0 does not finish it; see"):
        one.wait()
    assert load_latest(tmp_path) is None


@pytest.mark.parametrize("second", [(1, 2), (0, 2), (0, 1)])
def test_ranks_that_leave_out_or_repeat_elements_publish_nothing(
    tmp_path: Path, second: tuple[int, int]
) -> None:
    zero, one = ranks_of(tmp_path, 2)
    if second == (1, 2):
        zero.save(state(1), list(pieces(0, 3)))
    else:
        zero.save(state(1), pieces(0, 2))
    one.save(state(1), pieces(*second))
    with pytest.raises(UserError, match="w.a is damaged: its pieces do not hold each element"):
        zero.wait()
    assert load_latest(tmp_path) is None
    (tmp_path / "step-00000001.tmp").rename(tmp_path / "step-00000001")  # ends rank 1's thread
    one.wait()


WRITER = """
import sys, time
from pathlib import Path
from tests.training.checkpoints import pieces, save_one, state
from training.pieces import Piece, Slice
from training.saver import Saver

def hang():
    print("in the middle", flush=True)
    time.sleep(100)

folder = Path(sys.argv[1])
save_one(folder, 1)
Saver(folder, asynchronous=False).save(
    state(2), [*pieces(), Piece("w", "b", Slice((4,)), 0, 4, hang)]
)
"""


def test_sigkill_in_mid_write_leaves_the_older_one(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert told == "in the middle\n"
    assert names(tmp_path) == ["step-00000001", "step-00000002.tmp"]
    found = load_latest(tmp_path)
    assert found is not None
    assert found.state.step == 1
    check_values(found)
