"""A web server as a store to read from: the right bytes or a clear error."""

import random
import socket
from pathlib import Path

import pytest

from dataprep import UserError
from dataprep.storage import (
    Remote,
    copy,
    download,
    entry,
    find,
    is_folder,
    match,
    open_reader,
    read,
    remove,
    store,
    upload,
)
from tests.object_store import HOST, Web

DATA = random.Random(1).randbytes(30_000)


@pytest.fixture
def at(web: Web) -> Remote:
    return web.put("data.jsonl", DATA)


def read_on(at: Remote, block: int = 4096) -> bytes:
    with open_reader(at, block) as f:
        return b"".join(iter(lambda: f.read(1000), b""))


def test_a_file_is_read_by_ranges(web: Web, at: Remote, tmp_path: Path) -> None:
    found = entry(at)
    assert found and found.size == len(DATA) and match(str(at)) == {str(at): found}
    assert read(at) == read_on(at) == DATA
    with open_reader(at, 100) as f:
        f.seek(-777, 2)
        assert f.read(10) == DATA[-777:-767]
    download(at, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA
    assert not is_folder(at)


def test_a_question_in_a_url_is_no_pattern(web: Web) -> None:
    at = web.put("get?name=a*b&part=1", DATA)
    assert list(match(str(at))) == [str(at)] and read_on(at) == DATA


def test_what_is_not_there(web: Web, at: Remote) -> None:
    nothing = at.with_name("nothing")
    assert entry(nothing) is None and match(str(nothing)) == {} and not is_folder(nothing)
    with pytest.raises(FileNotFoundError):
        read(nothing)
    with pytest.raises(FileNotFoundError):
        open_reader(nothing)


def test_a_version_is_the_time_where_there_is_no_hash(web: Web, at: Remote) -> None:
    before = entry(at)
    web.modified = "Sun, 02 Jan 2000 00:00:00 GMT"
    assert before != entry(at)


def test_a_server_without_ranges_gives_the_right_bytes_or_none(web: Web, at: Remote) -> None:
    web.knows_ranges = False
    assert read(at) == read_on(at, 1 << 20) == DATA
    with pytest.raises(UserError, match=f"{at}: 30,000 bytes came where 4,096 .*knows no ranges"):
        read_on(at)


def test_a_server_that_zips_is_asked_not_to(web: Web, at: Remote, tmp_path: Path) -> None:
    web.zips = True
    assert read(at) == read_on(at) == DATA
    download(at, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_server_that_tells_no_length(web: Web, at: Remote) -> None:
    web.tells_length = False
    for look in (entry, open_reader):
        with pytest.raises(UserError, match=f"{at}: its server does not tell how long it is"):
            look(at)
    assert read(at) == DATA


@pytest.mark.usefixtures("hurried")
def test_failures_in_passing(web: Web, at: Remote, tmp_path: Path) -> None:
    web.failures = [503, 503, 429, 500]  # two tries, as fsspec asks by HEAD, then by GET
    found = entry(at)
    assert found and found.size == len(DATA) and not web.failures
    web.failures, web.cuts = [502, 504], [0, 1000]
    assert read_on(at) == DATA
    web.cuts = [0, 1000]
    download(at, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA


@pytest.mark.usefixtures("hurried")
def test_a_server_that_fails_is_not_a_file_that_is_not_there(web: Web, at: Remote) -> None:
    tries = 1 + len(store.DELAYS)
    for look in (entry, open_reader, read):
        web.failures = [503] * 100
        with pytest.raises(UserError, match=f"{at}: 503.*tried {tries} times"):
            look(at)
    with socket.socket() as port:
        port.bind((HOST, 0))
        gone = Remote(f"http://{HOST}:{port.getsockname()[1]}/x")
    for look in (entry, open_reader, read):
        with pytest.raises(UserError, match=f"{gone}: .*tried {tries} times"):
            look(gone)


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_refused_is_not_tried_again(web: Web, at: Remote, status: int) -> None:
    for look in (entry, open_reader, read):
        web.failures = [status] * 2
        with pytest.raises(UserError, match=f"{at}: the store refuses it"):
            look(at)
        web.failures.clear()
    assert len(web.seen) == 5


def test_nothing_is_written_or_crawled(web: Web, at: Remote, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for do in (
        lambda: upload(tmp_path / "a", at),
        lambda: copy(at, at.with_name("b")),
        lambda: remove(at),
        lambda: find(at.parent),
        lambda: match(f"{at.parent}/[x].jsonl"),
    ):
        with pytest.raises(UserError, match="web server is only for reading files one by one"):
            do()
    assert set(web.seen) <= {"HEAD", "GET"}
