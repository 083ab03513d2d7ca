"""Inputs: which files an entry names, and what is wrong with those it should not."""

import gzip
import os
from pathlib import Path

import pytest

from dataprep import UserError
from dataprep.readers import Input, InputFile, expand


def names(files: list[InputFile]) -> list[str]:
    return [Path(file.path).name for file in files]


def make(tmp_path: Path, *paths: str) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text('{"text": "a"}\n')


def test_files_come_sorted_whatever_the_order_of_entries(tmp_path: Path) -> None:
    make(tmp_path, "b.jsonl", "a.jsonl", "sub/c.jsonl", "d.txt", ".hidden.jsonl")
    entries = [
        Input(f"{tmp_path}/*.txt", "x"),
        Input(f"{tmp_path}/b.jsonl", "y"),
        Input(f"{tmp_path}/a*", "z"),
        Input(f"{tmp_path}/sub/**", "w"),
    ]
    files = expand(entries)
    assert names(files) == ["a.jsonl", "b.jsonl", "d.txt", "c.jsonl"]
    assert [file.source for file in files] == ["z", "y", "x", "w"]
    assert files == expand(entries[::-1])


def test_an_entry_matches_a_file_once(tmp_path: Path) -> None:
    make(tmp_path, "a/b/c.jsonl")
    assert names(expand([Input(f"{tmp_path}/**/**/*.jsonl")])) == ["c.jsonl"]


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("a.jsonl", "jsonl"),
        ("a.JSON", "jsonl"),
        ("a.ndjson.gz", "jsonl"),
        ("a.jsonl.zst", "jsonl"),
        ("a.txt.bz2", "text"),
        ("a.text", "text"),
        ("a.b.parquet", "parquet"),
    ],
)
def test_the_name_tells_the_format(name: str, format_: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    file = expand([Input(str(tmp_path / name))])[0]
    assert (file.format, file.compression, file.size) == (format_, "", 14)


def test_the_content_tells_the_compression(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b""))
    assert expand([Input(str(tmp_path / "a.jsonl"))])[0].compression == "gzip"


@pytest.mark.parametrize("name", ["a", "a.csv", "a.gz", "a.jsonl.tmp", "a.jsonl.gz.gz"])
def test_an_unknown_name_needs_a_format(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    with pytest.raises(UserError, match=f"cannot tell the format of .*/{name} from its name"):
        expand([Input(str(tmp_path / name))])
    assert expand([Input(str(tmp_path / name), format="text")])[0].format == "text"


@pytest.mark.parametrize(
    "name",
    ["a[1].txt", "[a].txt", "*.txt", "?.txt", "a b.txt", "中文 名.txt", "é\u0301.txt", "#%.txt"],
)
def test_any_name_is_taken_literally_when_it_exists(name: str, tmp_path: Path) -> None:
    make(tmp_path, name, "other.txt")
    assert names(expand([Input(str(tmp_path / name))])) == [name]
    assert name in names(expand([Input(str(tmp_path / "*"))]))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.txt", "no file matches '.*none.txt'"),
        ("none*", "no file matches"),
        ("x" * 5000, "no file matches"),
        ("nul\0.txt", "not the name of a file or folder"),
        ("folder", r"folder is a folder; give a pattern such as .*folder/\*\.jsonl"),
        ("pipe.txt", "no file matches"),
        ("dangling.txt", "no file matches"),
    ],
)
def test_paths_that_name_no_file(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "dangling.txt").symlink_to("gone")
    with pytest.raises(UserError, match=message):
        expand([Input(f"{tmp_path}/{path}")])


def test_no_entry_no_path_no_scheme() -> None:
    with pytest.raises(UserError, match="inputs is empty"):
        expand([])
    with pytest.raises(UserError, match="inputs.path is '': not the name"):
        expand([Input("")])
    with pytest.raises(
        UserError, match="inputs.path: 'foo://bucket/x.jsonl' has an unknown scheme"
    ):
        expand([Input("foo://bucket/x.jsonl")])


def test_a_file_belongs_to_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jsonl", "b.jsonl")
    monkeypatch.chdir(tmp_path)
    entry = Input("*.jsonl")
    for again in (Input("a.jsonl"), Input("./a*"), Input(f"{tmp_path}/a.jsonl"), entry):
        with pytest.raises(UserError, match="is matched by two inputs .*each file must belong"):
            expand([entry, again])


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl")
    (tmp_path / "a.jsonl").chmod(0)
    if os.access(tmp_path / "a.jsonl", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(UserError, match=r"cannot read .*a\.jsonl: Permission denied"):
        expand([Input(str(tmp_path / "a.jsonl"))])


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xd6\xd0.txt"  # GBK
    try:
        with open(path, "wb"):
            pass
    except OSError:
        pytest.skip("this file system allows UTF-8 names only")
    with pytest.raises(UserError, match=r"the name of .*\\udcd6\\udcd0\.txt is not valid UTF-8"):
        expand([Input(f"{tmp_path}/*")])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_its_cure(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("\ufeffa").encode(encoding))
    with pytest.raises(UserError, match="is UTF-16 .*iconv -f UTF-16 -t UTF-8"):
        expand([Input(str(tmp_path / "a.txt"))])
