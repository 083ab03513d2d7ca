"""Plain text: lines or whole files as documents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Reads = Callable[..., Any]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\r\nb\r\r\n\r\n", ["a", "b\r", ""]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"a\0b\tc\x1a\n", ["a\0b\tc\x1a"]),
        ("一\n𠮷\u2028二".encode(), ["一", "𠮷\u2028二"]),
    ],
)
def test_lines(data: bytes, texts: list[str], tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    result = reads(path)
    assert result.documents == list(enumerate(texts))
    assert result.records == [len(texts)]
    assert result.counts == ({"documents.read": len(texts)} if texts else {})


def test_undecodable_bytes_stay_in_their_line(tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"good\ncaf\xe9\r\n\n\xc0\xaf\nend")
    result = reads(path)
    assert result.texts == ["good", "caf\ufffd", "", "\ufffd\ufffd", "end"]
    assert result.counts["notes.read.documents_with_bad_bytes"] == 2


@settings(deadline=None, max_examples=60)
@given(st.binary())
def test_any_bytes_decode_as_python_decodes_them(
    reads: Reads, tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("text") / "x.txt"
    path.write_bytes(b"line\n" + data)
    lines = data.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n") if data else []
    assert reads(path).texts == ["line", *(x.decode("utf-8", "replace") for x in lines)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"a\r\n\r\n\xef\xbb\xbfb\n", "a\r\n\r\n\ufeffb\n"),
        (b"\xef\xbb\xbfa\n", "a\n"),
        (b"caf\xe9\nb", "caf\ufffd\nb"),
        (b"x" * (9 << 20) + b"\nend", "x" * (9 << 20) + "\nend"),
    ],
)
def test_a_file_as_one_document(data: bytes, text: str, tmp_path: Path, reads: Reads) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(data)
    result = reads(path, document="file")
    assert result.documents == [(0, text)]
    assert result.records == [1]
