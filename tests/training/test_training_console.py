"""`mindprep train` on several processes as its user sees it: lines, summary, one clear error."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.launcher import free_port
from pipelines.train import line
from tests.training.conftest import sequences, write_packed
from tests.training.ranks import ROOT
from training.config import TrainConfig

BIN = Path(sys.executable).parent
STEPS = 3
FLAGS = {
    "steps": STEPS,
    "batch_size": 2,
    "tensorboard": False,
    "eval_batches": 0,
    "optimizer.warmup_steps": 1,
    "model.hidden_size": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.n_kv_heads": 2,
    "model.intermediate_size": 24,
}


def flags(data: Path, save_dir: Path, **changed: Any) -> list[str]:
    """Of a run; in names of changed keys, __ stands for a dot."""
    keys = {**FLAGS, **{key.replace("__", "."): value for key, value in changed.items()}}
    told = {"data": data, "save_dir": save_dir, **keys}
    return [word for key, value in told.items() for word in (f"--{key}", str(value))]


def run(command: list[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200)


def train(arguments: list[str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pipelines.cli", "train", "--workers", "2", *arguments]
    return run(command, cwd)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 16 tokens of a vocabulary of 100."""
    documents = [document for row in sequences(20, 0) for document in row]
    return write_packed(tmp_path_factory.mktemp("console") / "data", documents, seq_length=16)


def test_a_step_in_a_few_words() -> None:
    config = TrainConfig("d", "s", steps=20)
    record = {"step": 7, "loss": 2.5, "lr": 3e-4, "grad_norm": 1.25, "tokens_per_s": 400.2}
    assert line(record, config) == "step 7/20 loss 2.5000 lr 3.00e-04 grad 1.25 400 tokens/s"
    assert "grad overflow 400" in line({**record, "grad_norm": None, "overflow": True}, config)


@pytest.mark.parity
def test_each_step_is_a_line_and_the_end_a_summary(data: Path, tmp_path: Path) -> None:
    done = train(flags(data, tmp_path / "run", parallel__data_parallel=2), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [text for text in done.stdout.splitlines() if text.startswith("step ")]
    assert [text.split("  ")[0] for text in lines] == [f"step {i + 1}" for i in range(STEPS)]
    for key in ("loss", "lr", "grad_norm", "tokens_per_s", "memory_mib", "comm_share"):
        assert all(f"  {key} " in text for text in lines)
    assert f"steps      {STEPS}" in done.stdout
    assert f"checkpoint {tmp_path / 'run' / f'step-{STEPS:08d}'}" in done.stdout


@pytest.mark.parity
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"parallel__data_parallel": 3}, "data_parallel 3 .* number of processes, 2"),
        (
            {"parallel__model_parallel": 2, "model__num_heads": 1, "model__n_kv_heads": 1},
            "num_heads is 1, not divisible by parallel.model_parallel .2.",
        ),
        (
            {"parallel__pipeline_stage": 2, "model__num_layers": 1},
            "num_layers is 1, less than parallel.pipeline_stage .2.",
        ),
        (
            {"parallel__data_parallel": 2, "model__vocab_size": 50},
            "vocab_size is 50, but the tokenizer of the data has 100 ids",
        ),
        (
            {"parallel__data_parallel": 2, "model__seq_length": 32},
            "seq_length is 32, but the data's rows have 16 tokens",
        ),
    ],
    ids=["factors", "heads", "stages", "vocabulary", "length"],
)
def test_a_wrong_run_ends_in_one_line(
    changed: dict[str, Any], told: str, data: Path, tmp_path: Path
) -> None:
    done = train(flags(data, tmp_path / "run", **changed), tmp_path)
    assert done.returncode == 2
    (text,) = (done.stdout + done.stderr).splitlines()
    assert text.startswith("error: ")
    assert re.search(told, text), text
    assert not list(tmp_path.glob("run/step-*"))


@pytest.mark.parity
def test_the_line_of_the_readme_for_msrun(data: Path, tmp_path: Path) -> None:
    """As a user types it, but for the port."""
    msrun = "msrun --worker_num 2 --local_worker_num 2 --join True --log_dir logs"
    words = " ".join(flags(data, tmp_path / "run", parallel__model_parallel=2))
    port = f"--master_port {free_port()}"
    script = f"{msrun} {port} python -m pipelines.train {words}"
    done = run(["bash", "-c", script], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "logs" / "worker_0.log").read_text()
    assert f"steps      {STEPS}" in log
    assert (tmp_path / "run" / f"step-{STEPS:08d}" / "rank-00001.safetensors").exists()
