"""Names of places."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from dataprep import UserError
from dataprep.storage import Remote, absolute, is_url, place

OUT = Remote("s3://bucket/out")


def test_paths_are_paths_and_urls_are_not() -> None:
    assert place("out/demo") == Path("out/demo")
    assert place("s3://bucket/out") == OUT
    assert str(place("s3://bucket/out//")) == "s3://bucket/out"
    assert is_url("memory://x") and not is_url("c:/x")


def test_names_join_and_part_as_those_of_paths() -> None:
    shard = OUT / "train" / Path("00.mindrecord")
    assert str(shard) == "s3://bucket/out/train/00.mindrecord"
    assert shard.name == "00.mindrecord"
    assert shard.parent == OUT / "train"
    assert shard.with_name("01.mindrecord") == OUT / "train/01.mindrecord"
    assert shard.relative_to(OUT) == "train/00.mindrecord"
    assert shard.is_relative_to(OUT) and OUT.is_relative_to(OUT)
    assert not Remote("s3://bucket/output").is_relative_to(OUT)
    assert not shard.is_relative_to(Path("out"))
    assert sorted([shard, OUT]) == [OUT, shard] and len({shard, OUT, OUT}) == 2


def test_a_bucket_is_its_own_parent() -> None:
    bucket = Remote("s3://bucket")
    assert OUT.parent == bucket
    assert bucket.name == "" and bucket.parent == bucket


@pytest.mark.parametrize("other", [Remote("s3://bucket/o"), OUT, Remote("s3://other")])
def test_what_is_not_below_has_no_rest(other: Remote) -> None:
    with pytest.raises(ValueError, match="is not below"):
        OUT.relative_to(other)


@pytest.mark.parametrize("name", ["a b", "天地", "a#b?c", "100%", "%20", "a;b", "[1]*"])
def test_letters_of_a_name_stay_what_they_are(name: str) -> None:
    assert place(f"file:///data/{name}") == Path(f"/data/{name}")
    assert place(f"s3://bucket/{name}") == Remote("s3://bucket") / name


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("what://x/y", "unknown scheme; known are s3://"),
        ("S3://bucket/x", "unknown scheme"),
        ("zip://a.txt::s3://bucket/a.zip", "chains several URLs"),
        ("s3://key:secret@bucket/x", "holds a password"),
        ("https://me:secret@host/x", "holds a password"),
        ("https://host/x?X-Amz-Signature=abc&a=1", "or a signature"),
        ("s3://", "names no bucket"),
        ("memory:///", "names no bucket"),
        ("https://[1/x", "is not a URL"),
        ("file://out/demo", "names no absolute path"),
    ],
)
def test_what_cannot_be_opened_is_refused(url: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as error:
        place(url)
    assert "secret" not in str(error.value)


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    known = import_module("fsspec.registry")._registry
    for scheme, package in (("s3", "s3fs"), ("gs", "gcsfs")):
        monkeypatch.delitem(known, scheme, raising=False)
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"s3://b/x.*pip install 'mindprep\[s3\]'"):
        place("s3://b/x")
    with pytest.raises(UserError, match=r"gs://b/x.*gcsfs"):
        place("gs://b/x")


def test_absolute_follows_links_of_paths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert absolute("link/x") == tmp_path.resolve() / "folder/x"
    assert absolute("s3://bucket/out/") == OUT
