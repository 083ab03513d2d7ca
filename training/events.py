"""TensorBoard events of a run: a scalar for every number of every record, each step once.

    SAVE_DIR/events.out.tfevents.1767225600      named by the second in which it was begun
      version | start | step 0 | step 1 | …        one after another, each framed as a TFRecord:

    length uint64 | masked CRC-32C of it uint32 | Event (protobuf) | masked CRC-32C of it uint32

A run that continues after step N cuts off what its files have behind N and begins another file. So
any reader finds each step once; and a TensorBoard that has read what was cut off drops it at the
next file's `start, step N + 1`.
"""

import logging
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from dataprep.files import sync, write_error

PREFIX = "events.out.tfevents."
HEAD, TAIL = struct.Struct("<QI"), struct.Struct("<I")
log = logging.getLogger(__name__)


class EventFile:
    """Appends to the events of a run that continues after `step`; 0: of a new run."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        """Raises UserError when the folder cannot be written."""
        before = _files(folder)
        number = max([int(time.time()), *(_number(path) + 1 for path in before)])
        self.path = folder / f"{PREFIX}{number}"
        now = time.time()
        first = step + 1 if step else 0
        start = SessionLog(status=SessionLog.START)
        try:
            if step:
                _cut(before, step)
            else:
                for path in before:
                    path.unlink()
            self._write(Event(wall_time=now, file_version="brain.Event:2"))
            self._write(Event(wall_time=now, step=first, session_log=start))
        except OSError as e:
            raise write_error(self.path, e) from e

    def append(self, record: dict[str, Any]) -> None:
        """Writes the numbers of a record with a "step". Raises UserError when the disk is full."""
        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float)
        ]
        event = Event(wall_time=time.time(), step=record["step"], summary=Summary(value=values))
        try:
            self._write(event)
        except OSError as e:
            raise write_error(self.path, e) from e

    def sync(self) -> None:
        """Flushes to disk."""
        sync(self.path)

    def _write(self, event: Event) -> None:
        with self.path.open("ab") as f:
            f.write(framed(event))


def framed(event: Event) -> bytes:
    """An event as it stands in the file."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + TAIL.pack(masked_crc32c(length)) + data + TAIL.pack(masked_crc32c(data))


def events_in(data: bytes) -> Iterator[tuple[Event, int]]:
    """(event, where it ends), up to the first that is cut short or damaged."""
    at = 0
    while at + HEAD.size <= len(data):
        length, check = HEAD.unpack_from(data, at)
        first, last = at + HEAD.size, at + HEAD.size + length
        if check != masked_crc32c(data[at : at + 8]) or last + TAIL.size > len(data):
            return
        if TAIL.unpack_from(data, last)[0] != masked_crc32c(data[first:last]):
            return
        try:
            event = Event.FromString(data[first:last])
        except DecodeError:
            return
        at = last + TAIL.size
        yield event, at


def _cut(paths: list[Path], step: int) -> None:
    """Cuts off what is damaged or behind a step, of files in the order of their steps."""
    reached = 0
    for path in paths:
        end = 0
        for event, stop in events_in(path.read_bytes()):
            if event.step > step:
                break
            reached, end = max(reached, event.step), stop
        os.truncate(path, end)
    if paths and reached < step:
        log.warning(
            "the TensorBoard events in %s end at step %d and the run goes on after step %d: cut "
            "short, damaged, or not written then; the steps between are in metrics.jsonl alone",
            *(paths[0].parent, reached, step),
        )


def _files(folder: Path) -> list[Path]:
    """Our event files in the order in which they were begun."""
    found = [p for p in folder.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdecimal()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))
