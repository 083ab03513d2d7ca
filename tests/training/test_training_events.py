"""TensorBoard events: read back by hand, each step once after any number of resumes.

The judge parses the framing and computes CRC-32C itself (RFC 3720: reflected 0x82F63B78).
"""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event, SessionLog

from dataprep.errors import UserError
from training.events import EventFile
from training.metrics import MetricsLog

Scalars = dict[str, list[tuple[int, float]]]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def events_of(path: Path) -> list[Event]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8) == (masked(data[at : at + 8]),)
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length) == (masked(body),)
        found.append(Event.FromString(body))
        at += 16 + length
    return found


def scalars(folder: Path) -> Scalars:
    """All values by tag, in the order of the files' names, as TensorBoard reads them."""
    found: Scalars = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in events_of(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def write(folder: Path, first: int, last: int, factor: float = 1.0) -> EventFile:
    """Steps first … last of a run that continues before `first`."""
    file = EventFile(folder, first - 1)
    for step in range(first, last + 1):
        file.append({"step": step, "loss": factor * step})
    return file


def test_the_judge_knows_the_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_events_by_eye(tmp_path: Path) -> None:
    record = {"step": 3, "loss": 2.5, "mfu": None, "valid_tokens": 40, "note": "x"}
    file = EventFile(tmp_path)
    file.append(record)
    file.sync()
    version, start, event = events_of(file.path)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (0, SessionLog.START)
    assert (event.step, version.wall_time <= event.wall_time) == (3, True)
    assert scalars(tmp_path) == {"loss": [(3, 2.5)], "valid_tokens": [(3, 40.0)]}
    assert file.path.name.startswith("events.out.tfevents.1")


def test_a_resume_cuts_back_and_purges(tmp_path: Path) -> None:
    write(tmp_path, 1, 8)
    second = write(tmp_path, 6, 7, factor=10.0)
    assert scalars(tmp_path) == {
        "loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 60.0), (7, 70.0)]
    }
    start = events_of(second.path)[1]
    assert (start.step, start.session_log.status) == (6, SessionLog.START)


def test_a_new_run_starts_anew(tmp_path: Path) -> None:
    write(tmp_path, 1, 8)
    (tmp_path / "events.out.tfevents.1700000000.elsewhere").write_bytes(b"")  # not ours
    write(tmp_path, 1, 2)
    assert scalars(tmp_path) == {"loss": [(1, 1.0), (2, 2.0)]}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("lost", [1, 20, 42])
def test_an_event_cut_by_a_kill_is_dropped(tmp_path: Path, lost: int) -> None:
    """Each has 42 bytes."""
    path = write(tmp_path, 1, 6).path
    path.write_bytes(path.read_bytes()[:-lost])
    write(tmp_path, 6, 6, factor=10.0)
    assert scalars(tmp_path)["loss"] == [*((i, float(i)) for i in range(1, 6)), (6, 60.0)]


@pytest.mark.parametrize("at", [-43, -60, -75, -84])
def test_damage_is_cut_off_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    path = write(tmp_path, 1, 6).path
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    write(tmp_path, 6, 7)
    assert [step for step, _ in scalars(tmp_path)["loss"]] == [1, 2, 3, 4, 6, 7]
    (message,) = caplog.messages
    assert "end at step 4 and the run goes on after step 5" in message


@given(runs=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_each_step_once_whatever_was_killed(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]]
) -> None:
    """Runs that resume at most where the one before ended; metrics.jsonl says the same."""
    folder = tmp_path_factory.mktemp("run")
    reached, expected = 0, []
    for run, (step, steps) in enumerate(runs):
        step = min(step, reached)
        log = MetricsLog(folder / "metrics.jsonl", step, tensorboard=True)
        expected = expected[:step]
        for reached in range(step + 1, step + steps + 1):
            log.append({"step": reached, "loss": float(run)})
            expected.append((reached, float(run)))
    assert scalars(folder) == {"loss": expected}
    assert list(zip(*log.column("loss"))) == expected


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(UserError, match=r"cannot write .*events\.out\.tfevents.* Is a directory"):
        file.append({"step": 1, "loss": 1.0})
