"""JSON Lines: each odd record is one text, or one removal with its reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep import UserError
from dataprep.readers import Read

Reads = Callable[..., Any]

LAX = Read(max_bad_fraction=1)
GOOD = b'{"text": "good"}'


def write(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": "a"}', "a"),
        (b' \t{"text":"a"} \r', "a"),
        (b'{"text": ""}', ""),
        (b'{"text": "a\\nb\\u0000\\t"}', "a\nb\0\t"),
        ('{"text": "a\u2028b\u2029c\u0085d"}'.encode(), "a\u2028b\u2029c\u0085d"),
        (b'{"text": "\\ud83d\\ude00"}', "\U0001f600"),
        (b'{"text": "first", "text": "last"}', "last"),
        (b'{"text": "a", "x": ' + b"9" * 5000 + b', "y": -1e999, "z": NaN}', "a"),
        (b'{"x": {"text": "inner"}, "text": "outer"}', "outer"),
        (b'{"text": "a", "x": ' + b"[" * 100 + b"]" * 100 + b"}", "a"),
    ],
)
def test_good_records(line: bytes, text: str, tmp_path: Path, reads: Reads) -> None:
    result = reads(write(tmp_path, line))
    assert result.texts == [text]
    assert result.counts == {"documents.read": 1}


@pytest.mark.parametrize(
    ("line", "rule", "cause"),
    [
        (b"{", "invalid_json", r"not valid JSON: .* \(character 2\)"),
        (b'{"text": "a"', "invalid_json", r"not valid JSON: .* \(character 13\)"),
        (b'{"text": "a"} {"text": "b"}', "invalid_json", "Extra data"),
        (b'{"text": "raw \x00"}', "invalid_json", "Invalid control character"),
        (b"\xef\xbb\xbf" + GOOD, "invalid_json", "Expecting value"),
        (b'{"x": ' + b"[" * 100_000, "invalid_json", "nested too deep"),
        (b"[" * 100_000 + b"]" * 100_000, "invalid_json", "nested too deep"),
        (b'["text"]', "not_an_object", "a JSON array, not an object"),
        (b'"text"', "not_an_object", "a JSON string, not"),
        (b"1" * 5000, "not_an_object", "a JSON number, not"),
        (b"null", "not_an_object", "a JSON null, not"),
        (b"true", "not_an_object", "a JSON boolean, not"),
        (b"{}", "missing_text", r"no text under key 'text'; its keys are: none"),
        (b'{"Text": "a", "id": 1}', "missing_text", r"its keys are: 'Text', 'id'"),
        (b'{"text": null}', "missing_text", "no text under key 'text'"),
        (b'{"%s": 1}' % (b"k" * 99_999), "missing_text", r"its keys are: 'k{40}'"),
        (b'{"text": 1}', "text_not_string", "the value under 'text' is a number, not a string"),
        (b'{"text": 1.5e3}', "text_not_string", "number"),
        (b'{"text": Infinity}', "text_not_string", "number"),
        (b'{"text": ["a"]}', "text_not_string", "array"),
        (b'{"text": {"a": 1}}', "text_not_string", "object"),
        (b'{"text": false}', "text_not_string", "boolean"),
        (b'{"text": "first", "text": 2}', "text_not_string", "number"),
    ],
)
def test_bad_records(line: bytes, rule: str, cause: str, tmp_path: Path, reads: Reads) -> None:
    path = write(tmp_path, GOOD, b"", line, GOOD)
    result = reads(path, read=LAX)
    assert result.documents == [(0, "good"), (3, "good")]
    assert {row: r for row, (r, *_) in result.removed.items()} == {2: rule}
    assert result.counts[f"documents.removed.read.{rule}"] == 1
    with pytest.raises(UserError, match=rf"x\.jsonl, line 3: .*{cause}.*read\.strict"):
        reads(path, read=Read(strict=True))


def test_undecodable_bytes_become_one_replacement_each(tmp_path: Path, reads: Reads) -> None:
    """The other records of the file are kept (one bad byte once cost the rest of a file)."""
    lines = [GOOD, b'{"text": "caf\xe9"}', b'{"text": "\xed\xa0\x80"}', '{"text": "é"}'.encode()]
    result = reads(write(tmp_path, *lines))
    assert result.texts == ["good", "caf\ufffd", "\ufffd\ufffd\ufffd", "é"]
    assert result.counts == {"documents.read": 4, "notes.read.documents_with_bad_bytes": 2}


def test_lone_surrogates_are_replaced_and_counted(tmp_path: Path, reads: Reads) -> None:
    lines = [GOOD, b'{"text": "a\\ud83d"}', b'{"text": "\\udc00\\ud800b"}']
    result = reads(write(tmp_path, *lines))
    assert result.texts == ["good", "a\ufffd", "\ufffd\ufffdb"]
    assert result.counts == {"documents.read": 3, "notes.read.documents_with_surrogates": 2}


def test_another_text_key(tmp_path: Path, reads: Reads) -> None:
    path = write(tmp_path, '{"内容": "文", "text": "no"}'.encode())
    assert reads(path, text_key="内容").texts == ["文"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=8), st.booleans())
def test_what_json_writes_is_read(
    reads: Reads, tmp_path_factory: pytest.TempPathFactory, texts: list[str], ascii_only: bool
) -> None:
    lines = [json.dumps({"id": 1, "text": t}, ensure_ascii=ascii_only).encode() for t in texts]
    assert reads(write(tmp_path_factory.mktemp("json"), *lines)).documents == list(enumerate(texts))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=30) | st.just(GOOD) | st.sampled_from([b"\xff", b"{}"])))
def test_any_bytes_are_accounted_for(
    reads: Reads, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = write(tmp_path_factory.mktemp("bytes"), GOOD, *lines)
    data = path.read_bytes()
    result = reads(path, read=LAX)
    good = [i for i, line in enumerate(data.split(b"\n")) if line == GOOD]
    assert {row for row, text in result.documents if text == "good"} >= set(good)
    n_lines = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    blank = result.counts.get("notes.read.blank_lines", 0)
    assert sum(result.records) == n_lines
    assert len(result.documents) + len(result.removed) + blank == n_lines
