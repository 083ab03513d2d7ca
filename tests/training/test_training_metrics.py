"""The metrics file: one line a step, also after a resume; and what its numbers mean."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dataprep.errors import UserError
from training.metrics import MetricsLog, flops_per_token, memory_mib, plot, utilization
from training.sections import ModelConfig


def written(path: Path, steps: int = 5) -> MetricsLog:
    log = MetricsLog(path)
    log.append({"step": 0, "eval_loss": 3.0})
    for step in range(1, steps + 1):
        log.append({"step": step, "loss": 3.0 / step, "lr": 0.1, "grad_norm": 1.0})
    return log


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_by_eye(tmp_path: Path) -> None:
    log = written(tmp_path / "m.jsonl", steps=1)
    assert log.path.read_text() == (
        '{"step": 0, "eval_loss": 3.0}\n{"step": 1, "loss": 3.0, "lr": 0.1, "grad_norm": 1.0}\n'
    )
    assert log.column("eval_loss") == ([0], [3.0])


def test_a_resume_cuts_back_to_its_step(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl").path
    log = MetricsLog(path, 3)
    assert steps_in(path) == [0, 1, 2, 3]
    log.append({"step": 4, "loss": 1.0})
    assert steps_in(path) == [0, 1, 2, 3, 4]
    assert log.column("loss")[0] == [1, 2, 3, 4]


def test_a_new_run_starts_anew(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl").path
    assert MetricsLog(path).records == []
    assert steps_in(path) == []


def test_a_line_cut_by_a_kill_is_dropped_and_damage_is_not(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl").path
    whole = path.read_text()
    path.write_text(whole[:-5])
    assert len(MetricsLog(path, 4).records) == 5
    path.write_text("{" + whole)
    with pytest.raises(UserError, match="m.jsonl is damaged"):
        MetricsLog(path, 4)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    log = written(tmp_path / "m.jsonl")
    plot(log, tmp_path / "m.png")
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_each_record_is_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        record = {"step": 7, "loss": 2.34567, "lr": 3e-4, "mfu": None}
        MetricsLog(tmp_path / "m.jsonl").append(record)
    assert caplog.messages == ["step 7  loss 2.346  lr 0.0003"]


def test_what_is_not_known_or_not_finite_is_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.append({"step": 1, "loss": 2.0, "grad_norm": math.inf, "mfu": None})
    assert log.path.read_text() == '{"step": 1, "loss": 2.0, "grad_norm": null, "mfu": null}\n'
    assert log.column("mfu") == ([], [])
    plot(log, tmp_path / "m.png")


def test_a_process_that_does_not_write_holds_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "m.jsonl").path
    before = path.read_bytes()
    with caplog.at_level("INFO"):
        other = MetricsLog(path, 3, writes=False, tensorboard=True)
        other.append({"step": 4, "loss": 1.0})
        other.sync()
    assert other.column("loss") == ([1, 2, 3, 4], [3.0, 1.5, 1.0, 1.0])
    assert (path.read_bytes(), list(tmp_path.iterdir()), caplog.messages) == (before, [path], [])


def test_flops_by_hand() -> None:
    """H = 8, 4 query heads of 2 channels, 2 key heads, I = 12, 3 layers, V = 10, T = 16."""
    tiny = ModelConfig(hidden_size=8, num_layers=3, num_heads=4, n_kv_heads=2, intermediate_size=12)
    q_o, k_v, mlp, head = 2 * 64, 2 * 8 * 4, 3 * 8 * 12, 80
    weights = 3 * (q_o + k_v + mlp) + head
    assert weights == 1520
    assert flops_per_token(tiny, 10, 16) == 6 * 1520 + 12 * 3 * (4 * 2) * 16 == 13728


def test_flops_of_a_7b_llama() -> None:
    """6 N T, N = 6.607e9 without the embedding's look-up, and 16 % more for attention at 4096."""
    llama = ModelConfig(
        hidden_size=4096, num_layers=32, num_heads=32, n_kv_heads=32, intermediate_size=11008
    )
    n = 6_738_415_616 - 32_000 * 4096 - 65 * 4096  # all, less embedding and norms
    assert flops_per_token(llama, 32_000, 4096) == 6 * n + 12 * 32 * 4096 * 4096


def test_utilization() -> None:
    """1000 tokens/s of 2e9 operations each are 2e12 a second: half of 2 devices of 2 TFLOPS."""
    assert utilization(1000.0, 2e9, 2, 2.0) == 0.5
    assert utilization(1000.0, 2e9, 2, None) is None


def test_memory_is_that_of_the_process() -> None:
    before = memory_mib()
    held = np.ones(64 << 20, np.uint8)
    assert 60 < memory_mib() - before < 80
    assert held.all()
