"""Whole runs: they learn, resume bit for bit, and stop with a clear word."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.errors import UserError
from dataprep.files import fingerprint
from training import ModelConfig, OptimizerConfig, TrainConfig, train
from training.checkpoint import load, load_latest
from training.config import Folder
from training.loop import Trainer
from training.metrics import Record

WriteData = Callable[..., Path]
MODEL = ModelConfig(hidden_size=16, num_layers=1, num_heads=2, n_kv_heads=1, intermediate_size=24)


@pytest.fixture
def config(learnable: WriteData, tmp_path: Path) -> TrainConfig:
    """10 steps of 2 x 3 rows over 27 rows: an epoch is 4 steps, and 3 rows are dropped."""
    return TrainConfig(
        data=str(learnable(27)),
        save_dir=str(tmp_path / "run"),
        model=MODEL,
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=3),
        steps=10,
        batch_size=3,
        micro_batch_num=2,
        mode="pynative",
        eval_batches=2,
        shuffle=True,
        save_interval=4,
    )


class Killed(Exception):
    """Stands for a kill -9."""


def kill_at(step: int) -> Callable[[Record], None]:
    def on_step(record: Record) -> None:
        if record["step"] == step:
            raise Killed

    return on_step


def records(config: TrainConfig) -> list[dict[str, Any]]:
    """The metrics file, without the speed."""
    lines = (Path(config.save_dir) / "metrics.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    for record in made:
        record.pop("tokens_per_s", None)
    return made


def test_a_run_by_its_record(config: TrainConfig) -> None:
    seen: list[Record] = []
    result = train(replace(config, eval_interval=5), seen.append)
    made = records(config)
    assert [record["step"] for record in made] == list(range(11))
    assert [record["step"] for record in made if "eval_loss" in record] == [0, 5, 10]
    # 4 steps and 3 trimmed rows are an epoch of 27.
    consumed = [6, 12, 18, 27, 33, 39, 45, 54, 60, 66]
    assert [record["consumed_rows"] for record in made[1:]] == consumed
    assert [record["lr"] for record in made[1:4]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert all(0 < record["valid_tokens"] <= 6 * 14 for record in made[1:])
    assert [record["step"] for record in seen] == list(range(1, 11))
    assert result.steps == 10
    assert (result.first_loss, result.last_loss) == (made[1]["loss"], made[10]["loss"])
    assert (result.eval_before, result.eval_after) == (made[0]["eval_loss"], made[10]["eval_loss"])
    assert result.eval_before == pytest.approx(np.log(20), rel=0.05)  # of 20 ids, nothing known
    assert result.plot_path.read_bytes().startswith(b"\x89PNG")
    saved = sorted(p.name for p in Path(config.save_dir).iterdir())
    assert saved == ["metrics.jsonl", "metrics.png", "step-00000008", "step-00000010"]
    state = load(result.checkpoint_path).state
    assert (state.step, state.consumed_rows, state.epoch, state.seed) == (10, 66, 2, 17)


def test_resume_is_bit_identical(config: TrainConfig) -> None:
    """Killed at an epoch's end, in the middle of one, and steps after the newest checkpoint."""
    straight = train(config)
    expected, one = records(config), load(straight.checkpoint_path)
    for save_interval, killed in ((4, 4), (3, 5), (4, 9)):
        save_dir = f"{config.save_dir}-{killed}"
        other = replace(config, save_dir=save_dir, save_interval=save_interval)
        with pytest.raises(Killed):
            train(other, kill_at(killed))
        result = train(other)
        assert records(other) == expected
        assert result.first_loss == straight.first_loss
        assert result.eval_before == straight.eval_before
        two = load(result.checkpoint_path)
        for a, b in ((one.weights, two.weights), (one.moments, two.moments)):
            assert a.keys() == b.keys()
            assert all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_both_readers_train_alike(config: TrainConfig) -> None:
    """Equal losses and weights; and a run begun with one reader goes on with the other."""
    config = replace(config, steps=6, eval_batches=0)
    train(config)
    expected = records(config)
    other = replace(config, save_dir=f"{config.save_dir}-direct", reader="direct")
    with pytest.raises(Killed):
        train(other, kill_at(5))
    train(replace(other, reader="mindspore", data_workers=2))
    assert records(other) == expected


def test_a_mix_of_folders_resumes_too(config: TrainConfig, learnable: WriteData) -> None:
    folders = [Folder(str(config.data), 0.5), Folder(str(learnable(9, seed=1, name="more")), 2.0)]
    config = replace(config, data=folders, steps=6)
    straight = train(config)
    expected = records(config)
    consumed = [record["consumed_rows"] for record in expected[1:]]
    assert consumed == [6, 12, 18, 24, 32, 38]  # an epoch is 14 + 18 rows: 5 steps, 2 trimmed
    other = replace(config, save_dir=f"{config.save_dir}-killed")
    with pytest.raises(Killed):
        train(other, kill_at(5))
    assert train(other).last_loss == straight.last_loss
    assert records(other) == expected


def test_a_finished_run_is_left_as_it_is_and_can_be_prolonged(config: TrainConfig) -> None:
    config = replace(config, steps=3)
    first = train(config)
    made = records(config)
    assert train(config) == first
    assert records(config) == made
    first.metrics_path.unlink()
    assert train(config) == replace(
        first, first_loss=None, last_loss=None, eval_before=None, eval_after=None
    )
    assert train(replace(config, steps=5)).steps == 5
    with pytest.raises(UserError, match="steps is 4, but .* is at step 5; raise steps"):
        train(replace(config, steps=4))


def test_a_resume_of_another_run_is_refused(config: TrainConfig, learnable: WriteData) -> None:
    config = replace(config, steps=3)
    train(config)
    other = learnable(27, seed=1, name="other")
    with pytest.raises(UserError, match="was trained on another data set than .*other"):
        train(replace(config, data=str(other)))
    with pytest.raises(UserError, match="seed is 18, but .* was trained with 17; change it back"):
        train(replace(config, seed=18))
    with pytest.raises(UserError, match="batch_size is 2, but .* was trained with 3; change it"):
        train(replace(config, batch_size=2, micro_batch_num=3))
    mixed = [Folder(str(config.data), 2.0)]
    with pytest.raises(UserError, match="another data set than .*fingerprints or the weights"):
        train(replace(config, data=mixed))
    path = load_latest(Path(config.save_dir)).path / "state.json"  # type: ignore[union-attr]
    state = json.loads(path.read_text())
    del state["order"], state["fingerprint"]  # as an earlier version wrote it
    path.write_text(json.dumps({**state, "fingerprint": fingerprint(state)}))
    with pytest.raises(UserError, match="read the rows in another order .mindspore, now feistel-1"):
        train(config)
    with pytest.raises(UserError, match="resume is False, but .* holds checkpoints"):
        train(replace(config, resume=False))


def test_a_loss_that_is_not_finite_stops_the_run(config: TrainConfig) -> None:
    run = Trainer(config)
    for _ in range(5):
        run.advance()
    run.model.norm.weight.set_data(run.model.norm.weight * float("nan"))
    before = run.model.embed_tokens.weight.asnumpy().copy()
    with pytest.raises(UserError, match="step 6 has loss nan .* rows 6 to 11 of epoch 1"):
        run.advance()
    assert (run.model.embed_tokens.weight.asnumpy() == before).all()


def test_a_vocabulary_below_the_tokenizers_is_refused(config: TrainConfig) -> None:
    with pytest.raises(UserError, match="model.vocab_size is 19, but the tokenizer .* has 20 ids"):
        train(replace(config, model=replace(MODEL, vocab_size=19)))


def test_without_an_eval_split_there_is_no_evaluation(
    config: TrainConfig, counted: WriteData
) -> None:
    data = str(counted(6, name="plain"))
    result = train(replace(config, data=data, steps=3, batch_size=1))
    assert (result.eval_before, result.eval_after) == (None, None)
    assert [record["step"] for record in records(config)] == [1, 2, 3]


def test_a_dropped_rest_is_told(config: TrainConfig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Trainer(config)
    assert "an epoch is 4 steps of 6 rows, and 3 rows at its end are not read" in caplog.text


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_it_overfits_a_few_rows_in_graph_mode(
    config: TrainConfig, learnable: WriteData, compute_dtype: Any
) -> None:
    """Each next token is its successor, but for the first of a row's documents: nothing else."""
    config = replace(
        config,
        data=str(learnable(8, name="few")),
        mode="graph",
        compute_dtype=compute_dtype,
        steps=60,
        batch_size=8,
        micro_batch_num=1,
        optimizer=OptimizerConfig(learning_rate=0.03, warmup_steps=5),
        save_interval=0,
    )
    result = train(config)
    assert result.last_loss is not None and result.last_loss < 0.1
    assert result.eval_before is not None and result.eval_after is not None
    assert result.eval_after < result.eval_before / 2
