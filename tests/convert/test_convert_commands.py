"""The commands: what they print, and how they end."""

from pathlib import Path

import pytest
import yaml

from pipelines.common import run
from pipelines.convert import main
from tests.convert import judge

DOCUMENTS = [[5, 6, 7], [], [8, 9]]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return judge.write(tmp_path / "x", DOCUMENTS)


def test_in_and_out(tmp_path: Path, prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    numbers = ["--tokenizer.vocab_size", "100", "--tokenizer.eos_id=1"]
    assert run(main, ["import", str(prefix), "--out_dir", out, *numbers]) == 0
    text = capsys.readouterr().out
    for part in ("3 read, 2 kept", "removed  1 import.empty", "tokens/s", "MB/s of input", out):
        assert part in text
    assert {"mindformers.yaml", "report.html", "manifest.json"} <= {
        path.name for path in Path(out).iterdir()
    }
    assert run(main, ["import", str(prefix), "--out_dir", out, *numbers]) == 0
    assert "built before, nothing is left to do" in capsys.readouterr().out
    assert run(main, ["export", out, str(tmp_path / "y"), "--workers", "2"]) == 0
    text = capsys.readouterr().out
    for part in ("documents  2", "tokens     5 as uint16", f"{tmp_path}/y.bin and .idx"):
        assert part in text
    assert judge.read(tmp_path / "y")[1] == [[5, 6, 7], [8, 9]]


def test_a_config_file(tmp_path: Path, prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "inputs": [{"path": str(prefix), "source": "owt"}],
        "tokenizer": {"vocab_size": 100, "eos_id": 0},
        "out_dir": str(tmp_path / "out"),
        "pack": {"seq_length": 16},
        "shuffle": False,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    args = ["import", "--config", str(tmp_path / "c.yaml"), "--write.columns", "compact"]
    assert run(main, args) == 0
    assert "rows of 16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["import", "{x}", "--out_dir", "o", "--tokenizer.vocab_sise", "9"], "did you mean"),
        (["import", "{x}", "--out_dir", "o"], "tokenizer"),
        (["import", "--tokenizer.vocab_size=9", "--tokenizer.eos_id=1", "--out_dir=o"], "inputs"),
        (["export", "{x}", "y"], "holds no manifest.json"),
        (["export", "a", "b", "c"], "export takes OUT and PREFIX, not 3 names"),
        (["export", "a"], "prefix"),
        (["port"], "convert knows import and export, not 'port'"),
    ],
)
def test_errors_are_one_line(
    prefix: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(main, [arg.format(x=prefix) for arg in args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, []) == 2
    assert run(main, ["--help"]) == 0
    assert "mindprep convert import DATA" in capsys.readouterr().out
    for what, texts in (
        ("import", ("The end-of-document id", "in the order of the inputs", "MindRecord files in")),
        ("export", ("65,500", "which split", "Threads that read shards")),
    ):
        with pytest.raises(SystemExit) as e:
            main([what, "--help"])
        assert e.value.code == 0
        shown = " ".join(capsys.readouterr().out.split()).lower()
        assert all(text.lower() in shown for text in texts)
