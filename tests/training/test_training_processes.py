"""Whole runs on several processes: they come to what one process comes to, also when killed.

`make parity` runs these, and then the whole matrix.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import sequences, write_packed
from tests.training.parity import Outcome, case, compare, run_cases, told

LIMIT = 1e-4  # relative, float32

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 16 tokens, with an eval split."""
    documents = [document for row in sequences(40, 0) for document in row]
    folder = tmp_path_factory.mktemp("parity") / "data"
    options: dict[str, Any] = {"seq_length": 16, "vocab_size": 20, "splits": ("train", "eval")}
    return write_packed(folder, documents, **options)


@pytest.fixture(scope="module")
def one(data: Path) -> Outcome:
    """What one process comes to in 20 steps."""
    (outcome,) = run_cases(data, [case()])
    return outcome


CASES = {
    2: [
        case(dp=2, zero=True),
        case(tp=2, sp=True, full=True),
        case(pp=2, micro=4),
        case(pp=2, micro=4, schedule="gpipe"),
    ],
    4: [
        case(dp=2, tp=2, zero=True),
        case(dp=2, pp=2, micro=2, offload=False),
        case(tp=2, pp=2, micro=2, sp=True),
    ],
    8: [case(dp=2, tp=2, pp=2, micro=2, zero=True, sp=True, select=["attention"])],
}


@pytest.mark.parametrize("processes", CASES)
def test_many_processes_come_to_what_one_does(processes: int, data: Path, one: Outcome) -> None:
    assert one.loss[-1] < one.loss[0] - 0.5  # it learns, so equal losses mean something
    for keys, outcome in zip(CASES[processes], run_cases(data, CASES[processes]), strict=True):
        difference = compare(one, outcome)
        assert difference.most < LIMIT, f"{told(keys)}: {difference}"


@pytest.mark.parametrize(
    ("layout", "another"),
    [
        (case(dp=2, zero=True), case(tp=2)),
        (case(dp=2, tp=2, zero=True), case(dp=4)),
    ],
    ids=["dp2 to tp2", "dp2 tp2 to dp4"],
)
def test_a_killed_run_continues_in_any_layout(
    layout: dict[str, Any], another: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    """Saved every 4 steps, killed in step 10: the same layout comes to the same bits, another one,
    and one process, to 1e-5.
    """
    common = {"save_interval": 4, "steps": 14}
    killed = tmp_path / "killed"
    with pytest.raises(AssertionError, match="rank 1: ended by SIGKILL"):
        run_cases(data, [{**layout, **common, "save_dir": str(killed), "killed_at": 10}])
    assert sorted(p.name for p in killed.glob("step-*")) == ["step-00000004", "step-00000008"]
    copies = {name: tmp_path / name for name in ("same", "another", "single")}
    for folder in copies.values():
        shutil.copytree(killed, folder)
    straight, same, other = run_cases(
        data,
        [
            {**layout, **common},
            {**layout, **common, "save_dir": str(copies["same"])},
            {**another, **common, "save_dir": str(copies["another"])},
        ],
    )
    assert len(straight.loss) == 14
    assert np.array_equal(straight.loss, same.loss) and np.array_equal(straight.norm, same.norm)
    for name, weight in straight.weights.items():
        assert np.array_equal(weight, same.weights[name]), name
    (single,) = run_cases(data, [{**case(), **common, "save_dir": str(copies["single"])}])
    for one in (other, single):
        assert compare(straight, one).most < 1e-5


def test_metrics_of_a_run_stand_once(data: Path, tmp_path: Path) -> None:
    """Rank 0 alone writes them."""
    run_cases(data, [{**case(dp=2), "steps": 4, "save_dir": str(tmp_path / "run")}])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    # An epoch is 33 rows: the last is in no step.
    assert [record["consumed_rows"] for record in records[1:]] == [8, 16, 24, 33]
    assert all(0 < record["comm_share"] < 1 for record in records[1:])
