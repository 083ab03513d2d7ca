"""The text gathered from made folders, row by row; then from the machine the tests run on."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep.errors import UserError
from pipelines import local_text
from pipelines.common import run
from pipelines.local_text import Document, Gathered, Roots, fair_share, gather

LONG = "A long docstring says what the thing does." * 6  # 252 characters
LICENCE = "Permission is hereby granted, free of charge.\n"

MODULE = f'''"""{LONG}"""
raise SystemExit("a module must never be run")

class Reader:
    """Reads shards, {"one after the other, " * 5}slowly."""

    def rows(self):
        """Yields rows, {"one after the other, " * 5}slowly."""

try:
    async def fetch():
        """{LONG}"""
        text = """not a docstring, however long: {LONG}"""
except ImportError:
    pass
'''

FILES: dict[str, str | bytes] = {
    "site-packages/alpha-1.0.dist-info/METADATA": "Name: alpha\n\n# alpha\n\nIt is.\n",
    "site-packages/alpha-1.0.dist-info/LICENSE.txt": LICENCE,
    "site-packages/alpha-1.0.dist-info/RECORD": "alpha/core.py,,\n",
    "site-packages/alpha/core.py": MODULE,
    "site-packages/alpha/short.py": '"""Too short for a document."""\n',
    "site-packages/beta-2.0.dist-info/METADATA": "Name: beta\nDescription: Older style.\n",
    "site-packages/beta-2.0.dist-info/licenses/sub/MIT": LICENCE,
    "python3/json.py": f'"""{LONG}"""\n',
    "python3/site-packages/other.py": f'"""{LONG}"""\n',
    "python3/test/test_json.py": f'"""{LONG}"""\n',
    "doc/bash/README.gz": gzip.compress(b"Bash is a shell.\n"),
    "doc/bash/changelog.Debian.gz": gzip.compress(b"bash (5.2) unstable\n"),
    "doc/bash/copyright": "Copyright the authors.\n",
    "doc/bash/index.html": "<p>no plain text</p>\n",
    "common-licenses/GPL-3": "GNU GENERAL PUBLIC LICENSE\n",
}


def make(root: Path, files: dict[str, str | bytes]) -> Roots:
    """Writes the files below `root`, in the order given."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    folders = ("site-packages", "python3", "doc", "common-licenses")
    return Roots(*((root / folder,) for folder in folders))


def rows(out: Path) -> dict[str, tuple[str, str]]:
    """What was written: origin → (kind, text)."""
    docs = [json.loads(line) for line in (out / "docs.jsonl").read_text("utf-8").splitlines()]
    licences = pq.read_table(out / "licences.parquet").to_pylist()
    assert {row["kind"] for row in licences} <= {"licences"}
    return {row["origin"]: (row["kind"], row["text"]) for row in docs + licences}


def skipped(tmp_path: Path, files: dict[str, str | bytes]) -> dict[str, int]:
    """The reasons counted for some more files beside a good one."""
    good: dict[str, str | bytes] = {"doc/good/copyright": "Copyright.\n"}
    roots = make(tmp_path, good | files)
    gathered = gather(tmp_path / "out", 1, 10_000_000, roots)
    assert gathered.documents_by_kind == {"system_docs": 1}
    return gathered.skipped


def test_every_row(tmp_path: Path) -> None:
    gathered = gather(tmp_path / "out", 1, 100_000, make(tmp_path, FILES))
    short = "one after the other, " * 5
    expected = {
        "alpha-1.0.dist-info/LICENSE.txt": ("licences", LICENCE),
        "beta-2.0.dist-info/licenses/sub/MIT": ("licences", LICENCE),
        "common-licenses/GPL-3": ("licences", "GNU GENERAL PUBLIC LICENSE\n"),
        "alpha-1.0.dist-info/METADATA": ("descriptions", "# alpha\n\nIt is.\n"),
        "beta-2.0.dist-info/METADATA": ("descriptions", "Older style."),
        "doc/bash/README.gz": ("system_docs", "Bash is a shell.\n"),
        "doc/bash/changelog.Debian.gz": ("system_docs", "bash (5.2) unstable\n"),
        "doc/bash/copyright": ("system_docs", "Copyright the authors.\n"),
        "alpha/core.py:1": ("docstrings", LONG),
        "alpha/core.py:11": ("docstrings", LONG),
        "alpha/core.py": (
            "docstrings",
            f"Reads shards, {short}slowly.\n\nYields rows, {short}slowly.",
        ),
        "python3/json.py:1": ("docstrings", LONG),
    }
    assert rows(tmp_path / "out") == expected
    assert gathered == Gathered(
        bytes=sum(len(text.encode()) for _, text in expected.values()),
        documents=12,
        bytes_by_kind={
            kind: sum(len(text) for k, text in expected.values() if k == kind)
            for kind in ("licences", "descriptions", "system_docs", "docstrings")
        },
        documents_by_kind={"licences": 3, "descriptions": 2, "system_docs": 3, "docstrings": 4},
        skipped={"without text": 1},
    )


def test_same_bytes_whatever_the_order_on_disk(tmp_path: Path) -> None:
    for name, files in {"a": FILES, "b": dict(reversed(FILES.items()))}.items():
        gather(tmp_path / name / "out", 1, 1_500, make(tmp_path / name, files))
    for name in ("docs.jsonl", "licences.parquet"):
        first, second = (tmp_path / run / "out" / name for run in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()


def test_a_share_of_each_kind() -> None:
    def source(kind: str, *sizes: int) -> list[Document]:
        return [Document("x" * size, kind, f"{kind}{i}") for i, size in enumerate(sizes)]

    def taken(max_bytes: int) -> list[str]:
        kinds = {"a": source("a", 30, 30, 30, 30), "b": source("b", 10), "c": source("c", 20, 20)}
        return [d.origin for d in fair_share({k: iter(v) for k, v in kinds.items()}, max_bytes)]

    assert taken(100) == ["a0", "b0", "c0", "c1"]  # a1 is 30 more than the 80 taken: stop
    assert taken(150) == ["a0", "b0", "c0", "c1", "a1"]  # a2 would be over half of all
    assert taken(1000) == ["a0", "b0", "c0", "c1", "a1", "a2", "a3"]
    assert taken(10) == []


def test_vendored_copies_stand_together() -> None:
    origins = [
        f"{p}/requests/{n}.py" for p in ("", "pip/_vendor") for n in ("api", "auth", "hooks")
    ]
    names = [origin.split("/")[-1] for origin in sorted(origins, key=local_text.mixed)]
    assert names[::2] == names[1::2] != sorted(names[::2])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("doc/a/copyright", "Müller".encode("latin-1"), "not UTF-8"),
        ("doc/a/README.gz", gzip.compress(b"x" * 600_000), "over 512 KiB"),
        ("doc/a/README", b"x" * 600_000, "over 512 KiB"),
        ("doc/a/README.gz", gzip.compress(bytes(range(256)))[:-9], "damaged gzip"),
        ("doc/a/README.gz", b"no gzip at all", "damaged gzip"),
        ("doc/a/README", " \n", "without text"),
        ("site-packages/a.py", '"""Python 2"""\nprint "text"\n', "not Python 3"),
        ("site-packages/a.py", b'"""\0"""\n', "not Python 3"),
        ("site-packages/a.py", f'"""{LONG}\\ud800"""\n', "not UTF-8"),
        ("site-packages/a-1.dist-info/METADATA", "Name: a\n\n", "without text"),
    ],
)
def test_skipped_and_counted(tmp_path: Path, name: str, content: str | bytes, reason: str) -> None:
    assert skipped(tmp_path, {name: content}) == {reason: 1}


def test_others_warnings_are_not_ours(tmp_path: Path) -> None:
    roots = make(tmp_path, {"python3/old.py": f'"""{LONG}"""\nx = "\\d"\ny = 1 is 1\n'})
    assert gather(tmp_path / "out", 1, 10_000, roots).documents == 1  # warnings fail tests


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere" / "secret" / "README"
    secret.parent.mkdir(parents=True)
    secret.write_text("not to be found")
    folder = tmp_path / "doc" / "a"
    folder.mkdir(parents=True)
    (folder / "README").symlink_to(secret)
    (folder / "NEWS").symlink_to("nowhere")
    (folder / "linked").symlink_to(secret.parent)
    os.mkfifo(folder / "copyright")
    assert skipped(tmp_path, {}) == {"linked or special": 3}


def test_an_unreadable_file_or_folder_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may read everything, so permissions would not do.
    def refuse(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Path | str, *args: Any) -> Any:
            if Path(path).name == name:
                raise PermissionError(13, "Permission denied", path)
            return real(path, *args)

        return opened

    roots = make(tmp_path, {"doc/a/NEWS": "x", "doc/shut/README": "x", "doc/a/README": "x"})
    monkeypatch.setattr(os, "scandir", refuse("shut", os.scandir))
    monkeypatch.setattr(local_text, "read", refuse("NEWS", local_text.read))
    gathered = gather(tmp_path / "out", 1, 100, roots)
    assert (gathered.documents, gathered.skipped) == (1, {"unreadable": 2})


def test_too_little_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    roots = make(tmp_path, FILES)
    with pytest.raises(UserError, match=r"5000000 bytes .* 12 documents; .*docstrings 0.0 MB in 4"):
        gather(tmp_path / "out", roots=roots)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="in 0 documents; files skipped: none"):
        gather(tmp_path / "out", roots=Roots(stdlib=(tmp_path / "absent",)))


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = make(tmp_path, FILES)
    monkeypatch.setattr(Roots, "here", lambda: roots)
    assert local_text.main([str(tmp_path / "out"), "--min-bytes", "100"]) == 0
    assert "12 documents; " in capsys.readouterr().out
    assert run(local_text.main, [str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: too little text on this machine: ")


@pytest.mark.soak  # make demo does it too
def test_this_machine(tmp_path: Path) -> None:
    gathered = gather(tmp_path)
    assert 5_000_000 <= gathered.bytes <= 12_000_000
    # A slim system may have no documentation of its own.
    assert {"docstrings", "descriptions", "licences"} <= gathered.bytes_by_kind.keys()
    found = rows(tmp_path)
    assert sum(len(text.encode()) for _, text in found.values()) <= gathered.bytes
    assert not any(Path(origin).is_absolute() for origin in found)
    assert any(origin.startswith("numpy-") for origin in found)
    texts = [text for _, text in found.values()]
    assert len(set(texts)) < len(texts)  # real duplicates
