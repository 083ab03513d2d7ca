"""Bad input: one clear line, exit code 2, no traceback, no half-written output."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.cli import main
from tests.conftest import document, write_jsonl

Write = Callable[..., Path]


@pytest.fixture
def config_file(corpus: Path, tokenizer: str, tmp_path: Path) -> Write:
    """Writes a YAML config that works; keywords replace whole sections, None removes one."""

    def write(**sections: Any) -> Path:
        config: dict[str, Any] = {
            "inputs": [{"path": str(corpus / "*.jsonl"), "source": "web"}],
            "tokenizer": {"path": tokenizer},
            "out_dir": str(tmp_path / "out"),
            "pack": {"seq_length": 64},
            "write": {"shards": 2},
            "engine": {"quiet": True},
        }
        config.update(sections)
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in config.items() if v is not None}))
        return path

    return write


@pytest.fixture
def fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `mindprep build`; gives the one line on stderr."""

    def run(config: Path, *flags: str) -> str:
        assert main(["build", "--config", str(config), *flags]) == 2
        told = capsys.readouterr()
        assert told.err.startswith("error: ") and told.err.count("\n") == 1, told.err
        assert told.out == ""
        assert not (tmp_path / "out").exists()
        return told.err

    return run


Fails = Callable[..., str]


def test_the_config_works(config_file: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--config", str(config_file()), "--write.shards=1"]) == 0
    told = capsys.readouterr().out
    assert "documents  130 read, 103 kept" in told and "20 dedup.exact" in told


def test_no_input_matches(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    told = fails(config_file(inputs=[{"path": str(tmp_path / "nothing" / "*.jsonl")}]))
    assert "no file matches" in told and "nothing/*.jsonl" in told


def test_a_folder_is_no_pattern(config_file: Write, fails: Fails, corpus: Path) -> None:
    assert f"{corpus}/*.jsonl" in fails(config_file(inputs=[{"path": str(corpus)}]))


def test_an_unreadable_file(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    """A permission cannot be taken from root, so: a link to itself."""
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    told = fails(config_file(inputs=[{"path": str(loop)}]))
    assert "loop.jsonl" in told


def test_a_missing_text_key(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps({"content": "x", "id": i}) + "\n" for i in range(20)))
    told = fails(config_file(inputs=[{"path": str(path)}]))
    assert "other.jsonl" in told and "no text under key 'text'" in told
    assert "'content', 'id'" in told and "text_key" in told


def test_a_tokenizer_that_is_none(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    for content in (b"no model", b'{"no": "tokenizer"}', b""):
        (tmp_path / "bad.model").write_bytes(content)
        told = fails(config_file(tokenizer={"path": str(tmp_path / "bad.model")}))
        assert "bad.model is " in told


def test_a_missing_tokenizer(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    told = fails(config_file(tokenizer={"path": str(tmp_path / "absent.model")}))
    assert "tokenizer.path" in told and "absent.model" in told


def test_an_unknown_eos_token(config_file: Write, fails: Fails, tokenizer: str) -> None:
    told = fails(config_file(tokenizer={"path": tokenizer, "eos_token": "<|end|>"}))
    assert "tokenizer.eos_token: '<|end|>' is not in the vocabulary" in told and "</s>" in told


def test_an_output_folder_of_another_run(
    config_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(config_file())
    assert main(["build", "--config", config]) == 0
    before = (tmp_path / "out/manifest.json").read_bytes()
    capsys.readouterr()
    assert main(["build", "--config", config, "--seed", "3"]) == 2
    told = capsys.readouterr().err
    assert "holds another run" in told and "overwrite: true" in told
    assert (tmp_path / "out/manifest.json").read_bytes() == before
    assert main(["build", "--config", config, "--seed", "3", "--overwrite", "true"]) == 0
    assert (tmp_path / "out/manifest.json").read_bytes() != before
    assert not list(tmp_path.glob("out.replaced")) and not list(tmp_path.glob("out.building"))


def test_overwrite_leaves_no_stale_shard(config_file: Write, tmp_path: Path) -> None:
    """FileWriter leaves the other two behind when four shards become two."""
    assert main(["build", "--config", str(config_file(write={"shards": 4}))]) == 0
    config = str(config_file(write={"shards": 2}, overwrite=True))
    assert main(["build", "--config", config]) == 0
    names = sorted(p.name for p in (tmp_path / "out/train").iterdir())
    assert names == [
        f"train-0000{i}-of-00002.mindrecord{end}" for i in range(2) for end in ("", ".db")
    ]


def test_an_output_folder_with_foreign_files(
    config_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious.txt").write_text("mine")
    assert main(["build", "--config", str(config_file()), "--overwrite", "true"]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
    assert (tmp_path / "out/precious.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_made(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = fails(config_file(out_dir=str(tmp_path / "file" / "out")))
    assert "cannot write" in told and "file" in told


@pytest.mark.parametrize("limit_kb", [1, 20, 60])
def test_a_full_disk(config_file: Write, tmp_path: Path, limit_kb: int) -> None:
    """Writes beyond RLIMIT_FSIZE fail, as on a full disk; freed, the run goes on from there."""
    config = config_file(write={"shards": 1}, pack={"seq_length": 512})
    command = [sys.executable, "-m", "pipelines.build_corpus", "--config", str(config)]

    # Not by preexec_fn: a fork of a test process with the threads of other libraries may hang.
    limited = ["bash", "-c", 'ulimit -f "$1"; shift; exec "$@"', "_", str(limit_kb), *command]
    run = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert "error: cannot write" in run.stderr and "free some space" in run.stderr
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("*.tmp"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_seq_length_below_two(config_file: Write, fails: Fails) -> None:
    told = fails(config_file(), "--pack.seq_length", "1")
    assert "pack.seq_length is 1; it must be 2 or more" in told


@pytest.mark.parametrize(
    ("flags", "sections", "told"),
    [
        (["--pack.seq_lenght", "3"], {}, "unknown key 'pack.seq_lenght'; did you mean 'pack.seq_l"),
        ([], {"pack": {"seqlength": 3}}, "unknown key 'pack.seqlength'; did you mean 'pack.seq_le"),
        ([], {"wirte": {"shards": 1}}, "unknown key 'wirte'; did you mean 'write'"),
        ([], {"inputs": [{"pth": "x"}]}, "unknown key 'inputs.*.pth'; did you mean 'inputs.path'"),
        ([], {"out_dir": None}, "out_dir"),
        (["--pack.seq_length", "long"], {}, "pack.seq_length"),
        ([], {"clean": {"rules": ["gopher"]}}, "gopher_quality"),
        ([], {"dedup": {"threshold": 1.5}}, "dedup.threshold is 1.5; it must be in (0, 1]"),
        ([], {"dedup": {"num_perm": 2}}, "dedup"),
        ([], {"write": {"shards": 0}}, "write.shards is 0"),
        ([], {"eval": {"fraction": 1}}, "eval.fraction is 1"),
        ([], {"engine": {"workers": 0}}, "engine.workers is 0"),
        ([], {"inputs": []}, "inputs is empty"),
        ([], {"inputs": {"path": "x"}}, "inputs must be a list of entries, not {'path': 'x'}"),
        ([], {"inputs": ["x"]}, "each of inputs must be a section of keys, not 'x'"),
        ([], {"inputs": [{"path": "x", "source": None}]}, "source"),
        ([], {"tokenizer": "tok.model"}, "tokenizer must be a section of keys, not 'tok.model'"),
        ([], {"pack": 3}, "pack must be a section of keys, not 3"),
        ([], {"out_dir": ""}, "out_dir is '': not the name of a file"),
        ([], {"out_dir": "a\0b"}, "not the name of a file or folder"),
        ([], {"tokenizer": {"path": "a\0b"}}, "tokenizer.path"),
        ([], {"dedup": {"ngram": 10**23}}, "dedup.ngram"),
        (["--pack.seq", "32"], {}, "unknown key 'pack.seq'"),
        (["--pack.seq_length", "100000000"], {}, "lower seq_length to at most"),
        (["--work_dir", "x/out/work", "--out_dir", "x/out"], {}, "inside of the output folder"),
        ([], {"inputs": [{"path": "foo://bucket/x.jsonl"}]}, "has an unknown scheme; known are s3"),
        (["--work_dir", "foo://bucket/work"], {}, "work_dir: 'foo://bucket/work' has an unknown"),
        (["--out_dir", "s3://bucket"], {}, "name a folder that can be replaced as a whole"),
        (["--out_dir", "s3://a:b@bucket/out"], {}, "holds a password"),
        ([], {"tokenizer": {"path": "s3://bucket/tok.model"}}, "a file of this machine"),
    ],
)
def test_a_wrong_config(
    config_file: Write, fails: Fails, flags: list[str], sections: dict[str, Any], told: str
) -> None:
    assert told in fails(config_file(**sections), *flags)


def test_a_config_that_is_no_yaml(fails: Fails, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("inputs: [\n")
    assert "is not valid YAML" in fails(bad)
    assert "cannot read" in fails(tmp_path / "absent.yaml")


def test_a_damaged_file_is_kept_as_far_as_it_goes(
    config_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gzip

    texts = "".join(json.dumps({"text": document(i)}) + "\n" for i in range(50))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(texts.encode())[:-4])
    config = config_file(inputs=[{"path": str(tmp_path / "cut.jsonl.gz")}])
    assert main(["build", "--config", str(config)]) == 0
    told = capsys.readouterr().out
    assert "50 read, 50 kept" in told and "cut.jsonl.gz is damaged" in told
    assert main(["build", "--config", str(config), "--read.strict=true", "--overwrite=true"]) == 2
    assert "cut.jsonl.gz is damaged" in capsys.readouterr().err


def test_inputs_inside_of_the_output_folder(
    config_file: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "out" / "a.jsonl", [document(1)])
    config = config_file(inputs=[{"path": str(path)}], overwrite=True)
    assert main(["build", "--config", str(config)]) == 2
    assert "inside of out_dir" in capsys.readouterr().err
    assert path.exists()


def test_ctrl_c_stops_and_says_how_to_go_on(config_file: Write, tmp_path: Path) -> None:
    config = config_file(engine={"workers": 2, "quiet": True})
    command = [sys.executable, "-m", "pipelines.build_corpus", "--config", str(config)]
    run = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out.work").glob("decide/receipt.json")) and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to parent and workers
    out, err = run.communicate(timeout=60)
    if run.returncode == 130:
        assert err == "stopped; run the same command again to go on\n"
    else:  # it was faster
        assert run.returncode == 0, err
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_help_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["build", "--help"])
    assert end.value.code == 0
    from dataprep.corpus import BuildConfig
    from pipelines.common import known_keys

    told = capsys.readouterr().out
    for key in known_keys(BuildConfig):
        if "*" not in key:
            assert f"--{key}" in told, key
    assert "Slots in a row (S)." in told


def test_unknown_and_missing_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bild"]) == 2
    assert "there are: build" in capsys.readouterr().err
    assert main([]) == 2 and main(["--help"]) == 0


def test_workers_report_errors_too(config_file: Write, fails: Fails, tmp_path: Path) -> None:
    bad = write_jsonl(tmp_path / "bad.jsonl", ["x"])
    bad.write_text("[1]\n" * 100)
    more = write_jsonl(tmp_path / "good.jsonl", [document(i, 200) for i in range(40)])
    inputs = [{"path": str(bad), "source": "a"}, {"path": str(more), "source": "b"}]
    told = fails(config_file(inputs=inputs, engine={"workers": 2, "quiet": True}))
    assert "bad.jsonl: 100 of 100 records are bad" in told
