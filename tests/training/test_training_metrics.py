"""The metrics file: one line a step, also after a resume."""

import json
from pathlib import Path

import pytest

from dataprep.errors import UserError
from training.metrics import MetricsLog, plot


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
        MetricsLog(tmp_path / "m.jsonl").append({"step": 7, "loss": 2.34567, "lr": 3e-4})
    assert caplog.messages == ["step 7  loss 2.346  lr 0.0003"]
