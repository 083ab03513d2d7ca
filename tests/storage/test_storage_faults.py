"""A store that fails: in passing, for good, and in the middle of a file."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
    place,
    read,
    remove,
    store,
    upload,
)
from tests.object_store import PAGE, Bucket, Faulty, look_at

DATA = random.Random(0).randbytes(200_000)
TRIES = 1 + len(store.DELAYS)
Do = Callable[[Remote, Path], Any]


def read_on(at: Remote, _: Path) -> bytes:
    with open_reader(at, 50_000) as f:
        return b"".join(iter(lambda: f.read(30_000), b""))


def fetch(at: Remote, folder: Path) -> bytes:
    download(at, folder / "copy")
    return (folder / "copy").read_bytes()


def send(at: Remote, folder: Path) -> bytes:
    (folder / "sent").write_bytes(DATA)
    upload(folder / "sent", at.with_name("sent"))
    return read(at.with_name("sent"))


def duplicate(at: Remote, _: Path) -> bytes:
    copy(at, at.with_name("copy"))
    return read(at.with_name("copy"))


def take_away(at: Remote, _: Path) -> bytes:
    before = read(at)
    remove(at)
    assert entry(at) is None
    return before


OPERATIONS: dict[str, Do] = {
    "read": lambda at, _: read(at),
    "read_on": read_on,
    "fetch": fetch,
    "send": send,
    "duplicate": duplicate,
    "take_away": take_away,
}
LOOKS: dict[str, Do] = {
    "entry": lambda at, _: entry(at),
    "find": lambda at, _: find(at.parent)[at],
    "match": lambda at, _: match(f"{at.parent}/d*")[at.url],
}


@pytest.fixture
def at(s3: Bucket) -> Remote:
    return s3.put("in/data", DATA)


@pytest.mark.usefixtures("hurried")
def test_errors_in_passing_change_no_byte(at: Remote, faulty: Faulty, tmp_path: Path) -> None:
    for name, do in OPERATIONS.items():
        faulty.faults.clear()
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            faulty.answer(503, "ServiceUnavailable", 1, method)
            faulty.answer(500, "InternalError", 1, method)
        assert do(at, tmp_path) == DATA, name


@pytest.mark.usefixtures("hurried")
def test_errors_in_passing_hide_nothing(at: Remote, faulty: Faulty, tmp_path: Path) -> None:
    for name, look in LOOKS.items():
        faulty.answer(503, "ServiceUnavailable", 2)
        found = look(at, tmp_path)
        assert found.size == len(DATA) and found == entry(at), name
    faulty.answer(503, "ServiceUnavailable", 2)
    assert is_folder(at.parent)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("after", [0, 40_000])
def test_a_connection_lost_in_mid_body_costs_no_byte(
    after: int, at: Remote, faulty: Faulty, tmp_path: Path
) -> None:
    for do in (OPERATIONS["read"], read_on, fetch):
        faulty.cut(after, 2)
        assert do(at, tmp_path) == DATA
        assert faulty.faults[-1].times == 0


@pytest.mark.usefixtures("hurried")
def test_a_listing_is_whole_though_a_page_fails(s3: Bucket, faulty: Faulty) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: s3.put(f"many/{i:03}", b""), range(PAGE + 1)))
    faulty.answer(503, "SlowDown", 2, path="continuation-token")
    faulty.cut(100, 1, path="list-type=2")
    assert len(find(s3.at / "many")) == PAGE + 1


def test_the_client_tries_a_request_again_by_itself(
    at: Remote, faulty: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    """Else one part of a hundred that fails would cost the whole upload."""
    faulty.answer(503, "SlowDown", 1)
    assert read(at) == DATA
    assert not [record for record in caplog.records if record.name == store.__name__]


@pytest.mark.usefixtures("hurried")
def test_what_does_not_pass_ends_with_what_where_and_how_often(
    at: Remote, faulty: Faulty, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.answer(503, "ServiceUnavailable", float("inf"))
    told = rf"cannot [a-z ]+ {at.parent}.*: .*Unavailable; tried {TRIES} times in .*run again"
    for do in (OPERATIONS | LOOKS).values():
        faulty.seen.clear()
        caplog.clear()
        with pytest.raises(UserError, match=told):
            do(at, tmp_path)
        assert len(faulty.seen) == TRIES  # the layers below do not multiply them
        assert caplog.text.count("trying again") == TRIES - 1


@pytest.mark.usefixtures("hurried")
def test_no_layer_below_multiplies_the_tries_when_told_to_slow_down(
    at: Remote, faulty: Faulty
) -> None:
    faulty.answer(503, "SlowDown", float("inf"), "GET")
    with pytest.raises(UserError, match=f"SlowDown; tried {TRIES} times"):
        read(at)
    assert faulty.count("GET") == TRIES


@pytest.mark.usefixtures("hurried")
def test_a_server_that_is_gone(at: Remote, faulty: Faulty, tmp_path: Path) -> None:
    with open_reader(at, 1000) as f:
        assert f.read(10) == DATA[:10]
        faulty.vanish()
        with pytest.raises(UserError, match=rf"cannot read {at}: .*tried {TRIES} times"):
            f.read(5000)
    for look in LOOKS.values():
        with pytest.raises(UserError, match=rf"tried {TRIES} times"):
            look(at, tmp_path)


def test_what_is_refused_is_not_tried_again(at: Remote, faulty: Faulty, tmp_path: Path) -> None:
    faulty.answer(403, "InvalidAccessKeyId", float("inf"))
    for do in (OPERATIONS | LOOKS).values():
        faulty.seen.clear()
        with pytest.raises(UserError, match=rf"{at.parent}.*refuses it: check the credentials"):
            do(at, tmp_path)
        assert len(faulty.seen) == 1


@pytest.mark.parametrize("profile", ["", "nobody"])
def test_no_credentials_at_all(
    profile: str, at: Remote, faulty: Faulty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    look_at(faulty.endpoint, monkeypatch)
    for do in (OPERATIONS | LOOKS).values():
        told = rf"{at.parent}.*no usable credentials.*AWS_ACCESS_KEY_ID"
        with pytest.raises(UserError, match=told):
            do(at, tmp_path)
    assert faulty.seen == []


def test_a_bucket_that_is_not_there(s3: Bucket, tmp_path: Path) -> None:
    at = Remote("s3://no-such-bucket-here/a")
    assert entry(at) is None and not is_folder(at.parent)
    assert find(at.parent) == match(f"{at.parent}/*") == {}
    with pytest.raises(FileNotFoundError):
        read(at)
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match=rf"cannot write {at}: .*make the bucket first"):
        upload(tmp_path / "a", at)


@pytest.mark.parametrize("bucket", ["no bucket", "a" * 300, "[x]"])
def test_a_name_that_no_store_takes_is_not_tried_twice(bucket: str, faulty: Faulty) -> None:
    with pytest.raises(UserError, match="not one that the store allows|cannot be used|not a URL"):
        read(place(f"s3://{bucket}/a"))
    assert faulty.seen == []


def test_requests_that_the_store_does_not_take_are_not_tried_again(
    at: Remote, faulty: Faulty
) -> None:
    faulty.answer(400, "InvalidArgument", float("inf"), "GET")
    with pytest.raises(UserError, match=r"does not take the request \(.*InvalidArgument\)"):
        read(at)
    assert faulty.count("GET") == 1


@pytest.mark.usefixtures("hurried")
def test_time_outs_that_look_like_bad_requests_pass(at: Remote, faulty: Faulty) -> None:
    faulty.answer(400, "RequestTimeout", 2, "GET")
    assert read(at) == DATA


def test_an_object_that_changes_under_its_reader_is_no_mixture(s3: Bucket, at: Remote) -> None:
    for shorter in (DATA[:70_000], DATA[:10]):
        s3.put("in/data", DATA)
        with open_reader(at, 50_000) as f:
            assert f.read(50_000) == DATA[:50_000]
            s3.put("in/data", shorter)
            with pytest.raises(UserError, match=f"{at}.*(it changed|does not take the request)"):
                f.read()


def test_an_object_that_vanishes_under_its_reader(s3: Bucket, at: Remote) -> None:
    with open_reader(at, 50_000) as f:
        f.read(50_000)
        remove(at)
        with pytest.raises(FileNotFoundError):
            f.read()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_not_the_fault_of_the_store(at: Remote) -> None:
    with pytest.raises(UserError, match="disk of this machine is full; free some space"):
        download(at, Path("/dev/full"))


@pytest.mark.usefixtures("hurried")
def test_messages_are_one_line_whatever_the_name(
    s3: Bucket, faulty: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    at = s3.put("a\tb\x1b[31m", b"")
    faulty.answer(503, "SlowDown", float("inf"))
    with pytest.raises(UserError) as error:
        read(at)
    told = [str(error.value), *(record.getMessage() for record in caplog.records)]
    assert len(told) == TRIES and all(line.isprintable() for line in told)
