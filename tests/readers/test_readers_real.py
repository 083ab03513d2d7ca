"""Real and derived dirty files: never a crash, never a lost neighbour. Skipped without them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep import UserError
from dataprep.readers import Read

Reads = Callable[..., Any]

LAX = Read(max_bad_fraction=1)


def test_derived_files_give_what_they_hold(dirty: Path, reads: Reads) -> None:
    folder = dirty / "derived"
    expected = json.loads((folder / "EXPECTED.json").read_text())
    lines = (folder / "no_final_newline.jsonl").read_text().split("\n")
    same_forty = [json.loads(line)["text"] for line in lines]
    for name, facts in expected.items():
        if "docs_if_bom_sniffed" in facts:  # UTF-16
            with pytest.raises(UserError, match="UTF-16"):
                reads(folder / name)
            continue
        result = reads(folder / name, read=LAX)
        if "docs_at_most" in facts:
            assert len(result.warnings) == 1, name
            assert result.texts == same_forty[: len(result.texts)], name
            continue
        documents = len(result.documents)
        if "docs" in facts or "docs_if_sniffed" in facts:
            assert documents == facts.get("docs", facts.get("docs_if_sniffed")), name
            assert not result.removed, name
        if "lines" in facts:
            assert sum(result.records) == facts["lines"], name
        if "docs_valid" in facts:
            assert documents >= facts["docs_valid"], name
        assert not result.warnings, name
        if documents == 40:
            assert result.texts == same_forty, name


def test_derived_damage_is_told(dirty: Path, reads: Reads) -> None:
    folder = dirty / "derived"
    why = {
        "truncated.jsonl.gz": ("ends in the middle", 39),
        "bad_crc.jsonl.gz": ("incorrect data check", 40),
        "trailing_garbage.jsonl.gz": ("incorrect header check", 40),
        "truncated.jsonl.zst": ("ends in the middle", 0),  # its only block is the one cut
    }
    for name, (cause, at_least) in why.items():
        result = reads(folder / name)
        assert cause in result.warnings[0]
        assert len(result.texts) >= at_least
        with pytest.raises(UserError, match=f"{name} is damaged.*{cause}.*byte"):
            reads(folder / name, read=Read(strict=True))


def test_json_conformance_suite(dirty: Path, reads: Reads) -> None:
    """y_ must be accepted, n_ must not; what is no object with a text is bad either way."""
    files = sorted((dirty / "JSONTestSuite").rglob("*.json"))
    assert len(files) > 300
    for path in files:
        data = path.read_bytes()
        try:
            result = reads(path, read=LAX)
        except UserError as e:
            assert "UTF-16" in str(e), path
            continue
        rules = {rule for rule, *_ in result.removed.values()}
        line = data.removeprefix(b"\xef\xbb\xbf").strip()
        if b"\n" in line or not line:
            continue  # several lines or none: another file than the suite means
        assert len(result.removed) == 1, path
        if path.name.startswith("y_"):
            assert rules <= {"not_an_object", "missing_text"}, path
        elif path.name.startswith("n_") and b"\xff" not in data:
            known = {"n_number_NaN.json", "n_number_infinity.json", "n_number_minus_infinity.json"}
            assert rules == {"invalid_json"} or path.name in known, path


def test_arrays_are_no_records(dirty: Path, reads: Reads) -> None:
    path = dirty / "amazon_cellphones.ndjson"
    with pytest.raises(UserError, match=r"793 of 793 records.*line 1: a JSON array, not an object"):
        reads(path)


@pytest.mark.parametrize("name", ["UTF-8-test_kuhn.txt", "utf8tests.txt", "blns.txt"])
def test_stress_texts_decode_as_python_decodes_them(name: str, dirty: Path, reads: Reads) -> None:
    data = (dirty / name).read_bytes().replace(b"\r\n", b"\n").removesuffix(b"\n")
    lines = [line.decode("utf-8", "replace") for line in data.split(b"\n")]
    for split_bytes in (1000, 1 << 27):
        assert reads(dirty / name, split_bytes).texts == lines


def test_every_encoding_is_read_to_its_end(dirty: Path, reads: Reads) -> None:
    for path in sorted((dirty / "encodings").rglob("*.*")):
        if path.is_file():
            try:
                result = reads(path, format="text")
            except UserError as e:
                assert "UTF-16" in str(e), path
                continue
            data = path.read_bytes()
            assert sum(result.records) == data.count(b"\n") + (not data.endswith(b"\n")), path


def test_parquet_suite(dirty: Path, reads: Reads) -> None:
    """Good, odd and fuzzed files: documents, or one clear line."""
    files = sorted((dirty / "parquet").rglob("*.parquet"))
    assert len(files) > 50
    read = 0
    for path in files:
        for column in column_names(path):
            try:
                read += len(reads(path, read=LAX, text_key=column).documents) > 0
            except UserError as e:
                assert str(path) in str(e)
                assert re.search("not a readable Parquet file|not string|no column", str(e)), e
    assert read > 5


def column_names(path: Path) -> list[str]:
    try:
        return [str(name) for name in pq.read_schema(path).names]
    except Exception:  # damaged: pyarrow raises many kinds
        return ["text"]
