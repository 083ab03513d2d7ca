"""The commands on a small corpus: what they print, and that hostile text stays text."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from dataprep import Manifest, UserError
from dataprep.corpus import BuildConfig, Write, build
from dataprep.mindformers import write_mindformers
from dataprep.pack import Pack
from dataprep.readers import Input
from dataprep.report import write_report
from dataprep.tokens.tokenizer import load
from dataprep.trace import Piece, row_pieces, stored_targets
from pipelines.cli import main
from pipelines.common import run
from tests.conftest import document, write_jsonl

Make = Callable[..., BuildConfig]
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def out(config_for: Make) -> Path:
    config = config_for()
    return build(config, finish=[write_mindformers(config.out), write_report]).out_dir


def test_mindformers_yaml_loads_the_folder(out: Path) -> None:
    content = yaml.safe_load((out / "mindformers.yaml").read_text(encoding="utf-8"))
    columns = list(Manifest.load(out).columns)
    assert columns[-1] == "actual_seq_len"
    section = content["train_dataset"]
    assert section["data_loader"] == {
        "type": "MindDataset",
        "dataset_dir": str(out / "train"),
        "shuffle": False,
    }
    assert section["input_columns"] == section["construct_args_key"] == columns
    assert content["parallel"]["dataset_strategy"] == [[1, 1]] * len(columns)
    assert content["train_dataset_task"]["dataset_config"] == section


def test_the_commented_pynative_section_is_yaml_too(out: Path) -> None:
    text = (out / "mindformers.yaml").read_text(encoding="utf-8")
    commented = text.split("use this section instead\n")[1]
    section = yaml.safe_load("\n".join(line[4:] for line in commented.splitlines()))
    loader = section["train_dataset"]["dataloader"]
    assert loader["dataset_files"] == Manifest.load(out).files(out, "train")
    assert section["model"]["compressed_eod_mask_length"] == 16


def test_the_report_escapes_hostile_names(config_for: Make, tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / f"{HOSTILE.replace('/', '')}.jsonl", [document(i) for i in range(9)]
    )
    config = replace(config_for(), inputs=[Input(str(path), source=HOSTILE)])
    page = (build(config, finish=[write_report]).out_dir / "report.html").read_text("utf-8")
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    assert "http" not in page.replace("http-equiv", "")  # self-contained


def test_report_is_written_anew(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == before


def test_inspect_shows_a_row(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(out), "--shard", "1", "--row", "2"]) == 0
    told = capsys.readouterr().out
    assert "train/train-00001-of-00003.mindrecord row 2: " in told
    assert "slots 0.." in told and "slots of padding" in told
    assert main(["inspect", str(out), "--ids", "--split", "eval"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(out), "--row", "100000"]) == 2
    assert main(["inspect", str(out), "--shard", "9"]) == 2
    assert "it has 3, from 0 on" in capsys.readouterr().err


ALL = ["mindformers", "legacy", "legacy_labels", "compact", ["input_ids", "labels"], ["input_ids"]]


@pytest.mark.parametrize("isolated", [True, False])
def test_inspect_and_trace_know_every_preset(
    config_for: Make, capsys: pytest.CaptureFixture[str], isolated: bool
) -> None:
    """The same rows and the same targets, whatever was stored of them."""
    shown: dict[str, list[str]] = {}
    traced: dict[str, list[str]] = {}
    for columns in ALL:
        config = config_for(
            out=f"out {columns}",
            write=Write(shards=3, columns=columns),
            pack=Pack(seq_length=64, max_documents=16, isolate_documents=isolated),
        )
        out = str(build(config).out_dir)
        rows = [row.row for row in _rows(Path(out))]
        for row in rows[:12]:
            assert main(["inspect", out, "--ids", "--row", str(row)]) == 0
            shown.setdefault(str(columns), []).append(capsys.readouterr().out)
            assert main(["trace", out, "--row", f"0:{row}"]) == 0
            traced.setdefault(str(columns), []).append(capsys.readouterr().out)
    first = shown["mindformers"]
    assert any("0 slots of padding" in told for told in first)
    extras = 0
    for name, rows_shown in shown.items():
        for told, want in zip(rows_shown, first):
            plain, _, extra = told.partition("── slot 64, beyond the row: ")
            assert (
                plain.replace(" by audit/rows: legacy stores no mask", "").replace(
                    " by audit/rows: custom stores no mask", ""
                )
                == want
            )
            assert bool(extra) == (name in ("legacy", "legacy_labels", "compact"))
            extras += extra.startswith("the next token of the last document, a target only")
    assert extras > 3 and extras % 3 == 0
    for name, rows_traced in traced.items():
        if name in ("legacy", "['input_ids']"):
            assert all("targets not stored (" in told for told in rows_traced)
        else:
            assert rows_traced == traced["mindformers"]


def _rows(out: Path) -> list[Piece]:
    """The first piece of every row of shard 0."""
    manifest = Manifest.load(out)
    shard = manifest.splits["train"][0]
    return [row_pieces(out, shard, row)[0] for row in range(shard.rows)]


def test_the_targets_of_a_row_by_hand() -> None:
    """S = 6: documents [1,2], [3,4,5,6,7], the 7 elsewhere; and [1,2], [3,4,5]."""
    cut, padded = [1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]
    no = -100
    for row, want in (
        ({"loss_mask": cut}, cut),
        ({"labels": [2, no, 4, 5, 6, 7]}, cut),
        ({"labels": [no, 2, no, 4, 5, 6, 7]}, cut),
        ({"segments": [2, 5, 0, 0]}, cut),
        ({"segments": [2, 3, 0, 0]}, padded),
        ({"labels": [no, 2, no, 4, 5, no, no]}, padded),
    ):
        found = stored_targets({k: np.array(v, np.int32) for k, v in row.items()}, 6)
        assert found is not None and found.astype(int).tolist() == want
    assert stored_targets({"input_ids": np.arange(7, dtype=np.int32)}, 6) is None
    with pytest.raises(UserError, match="segments of 8 tokens"):
        stored_targets({"segments": np.array([2, 6], np.int32)}, 6)


def test_trace_without_the_shard(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a row comes from is known all the same."""
    (out / "train/train-00000-of-00003.mindrecord").unlink()
    assert main(["trace", str(out), "--row", "0:1"]) == 0
    told = capsys.readouterr()
    assert "tokens 0.." in told.out and "targets not known" in told.out
    assert told.err.startswith("note: cannot read ") and told.err.count("\n") == 1
    assert main(["trace", str(out), "--row", "0:1", "--split", "test"]) == 2
    assert "there is no split 'test'; there is: train, eval" in capsys.readouterr().err


def test_inspect_does_not_obey_escape_sequences(
    config_for: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row may hold terminal codes (when cleaning is off) and rich's markup."""
    text = "\x1b[2J[red]bold[/red] \x1b]0;title\x07 " + document(3)
    path = write_jsonl(tmp_path / "hostile.jsonl", [text])
    config = config_for()
    clean = replace(config.clean, fix_unicode=False, rules=[])
    config = replace(config, inputs=[Input(str(path))], clean=clean, pack=Pack(seq_length=512))
    assert main(["inspect", str(build(config).out_dir)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told and "\x07" not in told
    assert "\\x1b[2J[red]bold[/red]" in told


def test_trace_there_and_back(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(out), "--row", "0:1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    where = first.split(": ", 1)[1].split(" tokens")[0]
    assert main(["trace", str(out), "--doc", where]) == 0
    assert "kept: train-00000-of-00003 row 1 slots 0.." in capsys.readouterr().out
    assert re.search(r" tokens \d+\.\.\d+, \d+ targets$", first)


@pytest.mark.parametrize(
    ("doc", "told"),
    [
        ("a.jsonl:70", "removed by dedup: exact\n  measured 1, threshold 1\n  duplicate of "),
        ("a.jsonl:75", "removed by dedup: minhash\n  measured 0."),
        ("a.jsonl:78", "removed by clean: empty\n  measured 0, threshold 1"),
        ("a.jsonl:79", "removed by read: invalid_json\n"),
    ],
)
def test_trace_tells_why(
    out: Path, doc: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(out), "--doc", doc]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("doc", "told"),
    [
        ("a.jsonl:80", "has no record 80: it has 80, from 0 on"),
        ("absent.jsonl:1", "is no input of this run"),
        ("jsonl", "write it as A:B"),
        ("a.jsonl:x", "is not a number"),
    ],
)
def test_trace_refuses(out: Path, doc: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(out), "--doc", doc]) == 2
    assert told in capsys.readouterr().err


def test_a_tokenizer_is_trained(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "inputs": [{"path": str(corpus / "*.jsonl")}],
        "out": str(tmp_path / "tok.model"),
        "train": {"vocab_size": 400},
    }
    (tmp_path / "tok.yaml").write_text(json.dumps(config))
    command = ["tokenizer", "--config", str(tmp_path / "tok.yaml")]
    assert main(command) == 0
    assert "400 ids from 108 documents" in capsys.readouterr().out
    first = (tmp_path / "tok.model").read_bytes()
    loaded = load(config["out"])  # type: ignore[arg-type]
    assert (loaded.info.eos_id, loaded.info.pad_id, loaded.lossy) == (2, 3, "")
    assert main(command) == 0
    assert (tmp_path / "tok.model").read_bytes() == first
    assert main([*command, "--train.vocab_size", "90000"]) == 2
    assert "cannot train a tokenizer of 90000 ids" in capsys.readouterr().err


def test_train_runs(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data", str(out), "--save_dir", str(tmp_path / "run"), "--steps", "3"]
    flags += ["--batch_size", "4", "--optimizer.warmup_steps", "1", "--model.hidden_size", "32"]
    flags += ["--model.num_layers", "1", "--model.intermediate_size", "64"]
    assert main(["train", *flags]) == 0
    told = capsys.readouterr().out
    assert "steps      3" in told and "eval loss" in told
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "run/metrics.png").stat().st_size > 1000
    assert main(["train", *flags, "--model.num_heads", "3"]) == 2
    assert main(["train", "--data", str(tmp_path), "--save_dir", "x"]) == 2


def test_a_pipe_that_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody reads our output any more: no failure. Another pipe has broken: one."""

    def broken(argv: Sequence[str] | None) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    assert run(broken) == 2
    assert capsys.readouterr().err.startswith("error: [Errno 32] Broken pipe")
    talk = "from pipelines.common import run; exit(run(lambda _: print('x' * 10**6)))"
    with subprocess.Popen(
        [sys.executable, "-c", talk], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as talker:
        assert talker.stdout and talker.stderr
        talker.stdout.read(1)
        talker.stdout.close()
        assert talker.stderr.read() == b""
    assert talker.returncode == 0


def test_no_output_at_all(config_for: Make, tmp_path: Path) -> None:
    """Standard output closed, as by some schedulers."""
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(asdict(config_for())))
    line = 'exec "$0" -m pipelines.build_corpus --config "$1" >&-'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, file], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["runs.jsonl", "progress.json"])
@pytest.mark.parametrize("content", [b"\xff", b"{}\n", b"[1]\n", b'{"a": 3}\n', b""])
def test_a_damaged_diary(
    config_for: Make, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    config = config_for()
    build(config)
    (config.work / name).write_bytes(content)
    code = main(["build", "--status", str(config.out)])
    told = capsys.readouterr().err
    if (name, content) == ("progress.json", b"{}\n"):
        assert code == 0
    else:
        assert code == 2 and told.count("\n") == 1 and name in told
