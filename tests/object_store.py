"""Fixtures: an S3 server of this machine, a proxy before it that fails on demand, a web server.

The S3 server is moto's, in a process of its own: none of its threads, warnings and seconds of CPU
are the tests' own. It ends when its standard input does, and so never outlives them.
"""

import gzip
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dataprep.storage import Remote, store

HOST = "127.0.0.1"
PAGE = 20  # objects in one page of a listing; 1,000, as real stores have it, take long to make
OURS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
    "NO_PROXY": HOST,
    "no_proxy": HOST,
}


@dataclass(frozen=True)
class Bucket:
    """A bucket, seen by a client that shares nothing with the code under test."""

    client: Any
    name: str
    endpoint: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def at(self) -> Remote:
        return Remote(self.url)

    def put(self, key: str, data: bytes) -> Remote:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return self.at / key

    def get(self, key: str) -> bytes:
        with self.client.get_object(Bucket=self.name, Key=key)["Body"] as body:
            return bytes(body.read())

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [found["Key"] for page in pages for found in page.get("Contents", [])]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server without buckets."""
    for package in ("s3fs", "boto3", "moto", "flask"):
        if find_spec(package) is None:
            pytest.skip(f"no S3 server: {package} is not installed")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.object_store"],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin and server.stdout
        yield f"http://{HOST}:{int(server.stdout.readline())}"
        server.stdin.close()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket; to this process and those that it starts, s3:// means its server."""
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)
    look_at(s3_endpoint, monkeypatch)
    client = boto3.client("s3", endpoint_url=s3_endpoint)
    bucket = Bucket(client, f"bucket-{uuid.uuid4().hex[:12]}", s3_endpoint)
    client.create_bucket(Bucket=bucket.name)
    yield bucket
    client.close()
    forget()


def look_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on s3:// means this server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    forget()


def forget() -> None:
    """Drops connections, and what was read from the environment for them."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries as ever, without the waiting, and each of one request."""
    monkeypatch.setattr(store, "DELAYS", (0.001,) * len(store.DELAYS))
    monkeypatch.setitem(store._BOTOCORE, "retries", {"mode": "standard", "total_max_attempts": 1})


@dataclass
class Fault:
    """What becomes of the next requests that fit."""

    method: str
    path: str
    times: float
    status: int = 0
    code: str = ""
    cut: int = 0


class Faulty(ThreadingHTTPServer):
    """A proxy that passes requests on, or fails as it was told to."""

    def __init__(self, endpoint: str) -> None:
        super().__init__((HOST, 0), _Pass)
        self.behind = endpoint.removeprefix("http://")
        self.seen: list[tuple[str, str]] = []
        self.gone = False
        self.faults: list[Fault] = []
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.server_port}"

    def answer(
        self, status: int, code: str, times: float = 1, method: str = ".*", path: str = ""
    ) -> None:
        """The next requests get an error. `method`, `path`: regular expressions."""
        self.faults.append(Fault(method, path, times, status=status, code=code))

    def cut(self, after: int, times: float = 1, method: str = "GET", path: str = "") -> None:
        """The next answers lose their connection after so many bytes of the body."""
        self.faults.append(Fault(method, path, times, cut=after))

    def vanish(self) -> None:
        """Refuses all connections from now on."""
        self.gone = True
        self.shutdown()
        self.server_close()

    def count(self, method: str = ".*", path: str = "") -> int:
        """Requests that have come so far."""
        return sum(bool(re.fullmatch(method, m) and re.search(path, p)) for m, p in self.seen)

    def fate(self, method: str, path: str) -> Fault | None:
        """Notes a request; what it meets, if anything."""
        with self._lock:
            self.seen.append((method, path))
            for fault in self.faults:
                fits = re.fullmatch(fault.method, method) and re.search(fault.path, path)
                if fits and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, *_: Any) -> None:
        """Clients hang up: nothing to print."""


@pytest.fixture
def faulty(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """s3:// goes through a proxy that fails on demand; `s3` itself still sees its server."""
    with _running(Faulty(s3.endpoint)) as proxy:
        look_at(proxy.endpoint, monkeypatch)
        yield proxy
        forget()


@contextmanager
def _running(server: Any) -> Iterator[Any]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    """Connections are kept, as stores do; nothing is printed."""

    protocol_version = "HTTP/1.1"
    server: Any

    def send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class _Pass(_Answers):
    """Passes a request on as it came, for its signature covers the Host header; or fails."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.gone:
            self.close_connection = True
            return
        fault = self.server.fate(self.command, self.path)
        if fault and fault.status:
            xml = f"<Error><Code>{fault.code}</Code><Message>{fault.code}</Message></Error>"
            headers = {"Content-Type": "application/xml", "Content-Length": str(len(xml))}
            self.send(fault.status, headers, xml.encode())
            return
        there = HTTPConnection(self.server.behind)
        try:
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name not in ("Expect", "Connection"):
                    there.putheader(name, value)
            there.endheaders(body)
            came = there.getresponse()
            data = came.read()
        finally:
            there.close()
        headers = {k: v for k, v in came.headers.items() if k not in ("Connection", "Date")}
        self.close_connection = fault is not None
        self.send(came.status, headers, data[: fault.cut] if fault else data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer


class Web(ThreadingHTTPServer):
    """A web server, more or less able."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), _File)
        self.files: dict[str, bytes] = {}
        self.modified = "Sat, 01 Jan 2000 00:00:00 GMT"
        self.knows_ranges = True
        self.tells_length = True
        self.zips = False  # for clients that accept it
        self.failures: list[int] = []  # the status of the next answers
        self.cuts: list[int] = []  # after so many bytes, the next answers lose their connection
        self.seen: list[str] = []

    def put(self, name: str, data: bytes) -> Remote:
        self.files[f"/{name}"] = data
        return Remote(f"http://{HOST}:{self.server_port}/{name}")

    def handle_error(self, *_: Any) -> None:
        """Clients hang up: nothing to print."""


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server of this machine."""
    with _running(Web()) as server:
        yield server
        fsspec.get_filesystem_class("http").clear_instance_cache()


class _File(_Answers):
    def _answer(self) -> None:
        web = self.server
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        web.seen.append(self.command)
        data = web.files.get(self.path)
        status = web.failures.pop(0) if web.failures else 200 if data is not None else 404
        if status != 200:
            self.send(status, {"Content-Length": "0"}, b"")
            return
        headers = {"Last-Modified": web.modified, "Content-Type": "application/json"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if web.zips and "gzip" in self.headers.get("Accept-Encoding", ""):
            data = gzip.compress(data)
            headers["Content-Encoding"] = "gzip"
        elif web.knows_ranges and span:
            first, last = int(span[1]), min(int(span[2]), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            status, data = 206, data[first : last + 1]
        if web.tells_length:
            headers["Content-Length"] = str(len(data))
        self.close_connection = not web.tells_length
        if web.cuts and self.command == "GET":
            data, self.close_connection = data[: web.cuts.pop(0)], True
        self.send(status, headers, data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer


def _serve() -> None:
    """The S3 server: tells its port, then runs until standard input ends."""
    import logging

    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE)
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
