"""mindprep plan: the figures it prints, keys that can be copied, and bad input."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.common import parse_config
from training import TrainConfig

SMALL = [
    *("--hidden_size", "64", "--num_layers", "4", "--num_heads", "4", "--intermediate_size", "96"),
    *("--vocab_size", "100", "--seq_length", "32", "--cards", "4", "--rows_per_step", "8"),
]


def told(capsys: pytest.CaptureFixture[str], *flags: str, code: int = 0) -> str:
    assert main(["plan", *flags]) == code
    return capsys.readouterr().out


def test_worked_figures(capsys: pytest.CaptureFixture[str]) -> None:
    seven = told(
        capsys,
        *("--model", "7B", "--cards", "8", "--memory_gb", "64"),
        *("--seq_length", "4096", "--rows_per_step", "512"),
    )
    assert "weights 14 GB, gradients 14 GB, optimizer state 84 GB" in seven
    large = told(capsys, "--model", "65B", "--cards", "32")
    assert "weights 130 GB, gradients 130 GB, optimizer state 780 GB" in large
    assert "evenly over 32 cards 32.5 GB a card" in large
    assert max(map(len, seven.split("The first")[0].splitlines())) <= 130


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--model", "7B", "--cards", "8")
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) x (\d+) ", text, re.MULTILINE)
    assert len(rows) == 5
    for tp, pp, dp, rows_of_one, micro_batches in (map(int, row) for row in rows):
        assert tp * pp * dp == 8
        assert rows_of_one * micro_batches * dp == 512
    assert re.search(r"tp 1 pp 1 dp 8: [\d.]+ GB, [\d.]+ too much; [\d.]+ are gradients", text)
    assert "model_parallel 5 does not divide num_heads 32" in told(
        capsys, "--model", "7B", "--cards", "40", "--rows_per_step", "40"
    )


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "7B", "--cards", "8"),
        ("--model", "65B", "--cards", "32"),
        ("--model", "3B", "--cards", "2", "--lora.rank", "4", "--compute_dtype", "float16"),
    ],
)
def test_keys_can_be_copied(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "train.yaml"
    copied = told(capsys, *flags).split("to copy:\n\n")[1]
    path.write_text(f"data: out\nsave_dir: run\n{copied}", encoding="utf-8")
    config = parse_config(TrainConfig, ["--config", str(path)], "train", "")
    parallel, cards = config.parallel, int(flags[3])
    assert parallel.data_parallel is not None
    assert parallel.data_parallel * parallel.model_parallel * parallel.pipeline_stage == cards
    assert config.rows_per_step * parallel.data_parallel == 512
    assert config.model.seq_length == 4096
    assert (config.lora is None) == ("--lora.rank" not in flags)
    assert config.model.tie_word_embeddings == (flags[1] == "3B")
    assert config.precision.param_init_type == "bfloat16"


def test_sizes_replace_those_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--model", "8B", "--num_layers", "8", "--cards", "8")
    assert "8 layers, hidden size 4096, 32 heads on 8, feed-forward 14336, 128,256 ids" in text
    assert "usual count  2.8 G x 16 bytes" in text
    assert "4 layers, hidden size 64, 4 heads on 4" in told(capsys, *SMALL)


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--model", "65B", "--cards", "8", code=1)
    assert "Nothing fits; 16 cards are enough." in text
    assert "to copy" not in text
    text = told(capsys, *SMALL, "--memory_gb", "0.000001", code=1)
    assert "Nothing fits; nor on 256 cards" in text


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--model", "7B"), "cards"),
        (
            ("--cards", "8"),
            "hidden_size, num_layers, num_heads, intermediate_size, vocab_size: not",
        ),
        (("--model", "9B", "--cards", "8"), "model is '9B': give one of 1B, 3B, 7B"),
        (("--model", "7B", "--cards", "0"), "cards is 0: give a number above 0"),
        (("--model", "7B", "--cards", "many"), "cards"),
        (("--model", "7B", "--cards", "8", "--memory_gb", "-1"), "memory_gb is -1.0: give"),
        (("--model", "7B", "--cards", "8", "--num_heads", "48"), "hidden_size is 4096: make it a"),
        (("--model", "7B", "--cards", "8", "--sequence", "8"), "unknown key 'sequence'"),
        (("--model", "7B", "--cards", "8", "--hardware.efficiency", "2"), "hardware.efficiency is"),
        (("--model", "7B", "--cards", "8", "--hardware.net_gb_s", "0"), "hardware.net_gb_s is 0"),
        (("--model", "7B", "--cards", "8", "--lora.rank", "0"), "lora.rank is 0"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], line: str
) -> None:
    assert main(["plan", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
    assert line in captured.err
    assert captured.out == ""


def test_it_needs_no_mindspore() -> None:
    code = (
        "import sys; from pipelines.cli import main; main(['plan', '--model=7B', '--cards=8']); "
        "sys.exit('mindspore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
