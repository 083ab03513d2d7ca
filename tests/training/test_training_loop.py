"""Whole runs: they learn, resume bit for bit, and stop with a clear word."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.errors import UserError
from training import ModelConfig, OptimizerConfig, TrainConfig, loop, resume, train
from training.checkpoint import open_checkpoint
from training.config import Folder
from training.flat import write
from training.gradients import StepGradients
from training.hold import hold
from training.loop import Trainer
from training.metrics import Record
from training.pieces import Slice
from training.sections import Precision

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
        mode="pynative",  # compiling takes longer than these steps
        eval_batches=2,
        shuffle=True,
        save_interval=4,
        tensorboard=False,
    )


class Killed(Exception):
    """Stands for a kill -9."""


def kill_at(step: int) -> Callable[[Record], None]:
    def on_step(record: Record) -> None:
        if record["step"] == step:
            raise Killed

    return on_step


def records(config: TrainConfig) -> list[dict[str, Any]]:
    """The metrics file, without what differs from run to run."""
    lines = (Path(config.save_dir) / "metrics.jsonl").read_text().splitlines()
    measured = ("tokens_per_s", "mfu", "memory_mib", "comm_share", "data_share")
    return [
        {key: value for key, value in json.loads(line).items() if key not in measured}
        for line in lines
    ]


def tensors(path: Path) -> dict[tuple[str, str], bytes]:
    """Every weight and moment of a checkpoint."""
    found = open_checkpoint(path)
    return {
        (kind, name): found.read(kind, name, Slice(shape), 0, prod(shape)).tobytes()
        for (kind, name), shape in found.tensors.shapes.items()
    }


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
    steps = ["step-00000008", "step-00000010"]
    assert saved == [".lock", "metrics.jsonl", "metrics.png", *steps]
    state = open_checkpoint(result.checkpoint_path).state
    assert (state.step, state.consumed_rows, state.epoch, state.seed) == (10, 66, 2, 17)


@pytest.mark.parametrize(
    ("save_interval", "killed"),
    [(3, 5), *(pytest.param(*at, marks=pytest.mark.parity) for at in ((4, 4), (4, 9)))],
)
def test_resume_is_bit_identical(config: TrainConfig, save_interval: int, killed: int) -> None:
    """Killed at an epoch's end, in the middle of one, and steps after the newest checkpoint."""
    config = replace(config, mode="graph")
    straight = train(config)
    save_dir = f"{config.save_dir}-killed"
    other = replace(config, save_dir=save_dir, save_interval=save_interval)
    with pytest.raises(Killed):
        train(other, kill_at(killed))
    result = train(other)
    assert records(other) == records(config)
    assert result.first_loss == straight.first_loss
    assert result.eval_before == straight.eval_before
    assert tensors(result.checkpoint_path) == tensors(straight.checkpoint_path)


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


@pytest.mark.parity
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
    with pytest.raises(UserError, match="a step has 4 rows .* was trained with 6; change batch"):
        train(replace(config, batch_size=2))
    mixed = [Folder(str(config.data), 2.0)]
    with pytest.raises(UserError, match="another data set than .*fingerprints or the weights"):
        train(replace(config, data=mixed))
    with pytest.raises(UserError, match="resume is False, but .* holds checkpoints"):
        train(replace(config, resume=False))


def poison(run: Trainer, batches: set[int]) -> None:
    """Has the model meet a weight that is not a number on the steps that begin at these rows."""
    runner = run.built.runner.run

    def poisoned(micro_batches: Any, scale: float) -> StepGradients:
        sums = runner(micro_batches, scale)
        begins = run.batches.consumed - run.batches.step_rows
        return sums._replace(loss_sum=float("nan")) if begins in batches else sums

    run.built.runner.run = poisoned  # type: ignore[method-assign]


def test_a_loss_that_is_not_finite_stops_the_run(config: TrainConfig) -> None:
    run = Trainer(config)
    for _ in range(5):
        run.advance()
    weight = run.built.model.norm.weight
    write(weight, weight * float("nan"))
    before = run.built.model.embed_tokens.weight.asnumpy().copy()
    told = "step 6 has loss nan .* rows .*train-0000.* row .*documents are not known"
    with pytest.raises(UserError, match=told):
        run.advance()
    assert (run.built.model.embed_tokens.weight.asnumpy() == before).all()


def test_a_gradient_that_no_scale_makes_finite_stops_the_run(config: TrainConfig) -> None:
    """In float16 an overflow leaves the step out, until there is no scale left to blame."""
    half = Precision(compute_dtype="float16", loss_scale=2.0)
    run = Trainer(replace(config, precision=half))
    runner = run.built.runner.run

    def infinite(micro_batches: Any, scale: float) -> StepGradients:
        sums = runner(micro_batches, scale)
        return sums._replace(gradients=[g / 0 for g in sums.gradients])

    run.built.runner.run = infinite  # type: ignore[method-assign]
    record = run.advance()
    assert record["overflow"] and record["loss_scale"] == 1.0
    with pytest.raises(UserError, match="step 2 has loss .* and gradient norm (inf|nan), on "):
        run.advance()


def test_processes_that_disagree_are_told(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(resume, "gather_numbers", lambda *_: np.array([[4.0, 24], [2, 12]]))
        with pytest.raises(UserError, match=r"different checkpoints in .* \(steps 2, 4\)"):
            Trainer(config)
    monkeypatch.setattr(loop, "join", lambda: (1, 2))
    with pytest.raises(UserError, match="takes itself for number 0 of 1, .* --node_rank"):
        Trainer(config)


def test_one_run_at_a_time(config: TrainConfig, caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; from pathlib import Path; from training.hold import hold; "
    code += "lock = hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, config.save_dir]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"another run writes into {config.save_dir}; wait"):
            Trainer(config)
        other.kill()
    with pytest.raises(KeyboardInterrupt), Trainer(config) as run:
        run.advance()
        raise KeyboardInterrupt
    assert "stopped after step 1; the newest checkpoint is none, so a new run" in caplog.text


def test_a_run_that_ends_badly_holds_its_folder_no_longer(config: TrainConfig) -> None:
    """In its constructor too; and what is open in this process does not free another's lock."""
    train(replace(config, steps=3))
    with pytest.raises(UserError, match="seed is 18, but"):
        Trainer(replace(config, seed=18))
    with Trainer(config):
        with pytest.raises(UserError, match="another run writes into"):
            Trainer(config)
        with pytest.raises(UserError, match="another run writes into"):
            os.close(hold(Path(config.save_dir)))
    os.close(hold(Path(config.save_dir)))


def test_the_first_weights_are_remembered(config: TrainConfig, tmp_path: Path) -> None:
    """The key may be left out when a run goes on, and be there again, in other words."""
    first = train(replace(config, steps=3, save_dir=str(tmp_path / "first")))
    begun = replace(config, eval_batches=0, load_checkpoint=str(first.checkpoint_path))
    train(replace(begun, steps=3))
    train(replace(begun, steps=4, load_checkpoint=None))
    again = Path(os.path.relpath(first.checkpoint_path))
    result = train(replace(begun, steps=5, load_checkpoint=f"{again}/"))
    began = open_checkpoint(result.checkpoint_path).state.config["load_checkpoint"]
    assert began == str(first.checkpoint_path)


def test_rows_that_are_not_finite_are_left_out(
    config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Back to the checkpoint of step 4, and on without the rows 33 to 38 of step 6; also after a
    restart.
    """
    config = replace(config, on_nonfinite="skip", eval_batches=0)
    run = Trainer(config)
    poison(run, {33})
    with run, caplog.at_level("WARNING"):
        for _ in range(5):
            record = run.advance()
            run.record(record, evaluate=False)
            if run.step == 4:
                run.save()
        assert (run.step, run.batches.consumed) == (5, 33)
        run.record(run.advance(), evaluate=False)
        assert (run.step, run.batches.consumed) == (5, 33)  # steps 5 was done again
        run.record(run.advance(), evaluate=False)
        assert (run.step, run.batches.consumed) == (6, 45)
        run.save()
    assert "step 6 has loss nan" in caplog.text and "going on after step 4" in caplog.text
    assert [record["step"] for record in records(config)] == [1, 2, 3, 4, 5, 6]
    assert [r["consumed_rows"] for r in records(config)] == [6, 12, 18, 27, 33, 45]
    again = Trainer(config)
    assert (again.step, again.skipped, again.batches.consumed) == (6, [33], 45)


def test_a_run_gives_up_after_many_rows_that_are_not_finite(config: TrainConfig) -> None:
    run = Trainer(replace(config, on_nonfinite="skip"))
    poison(run, set(range(10_000)))
    with pytest.raises(UserError, match="step 1 has loss nan .* 16 steps were left out before"):
        run.advance()


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


def test_the_usual_first_scale_of_float16_fits(config: TrainConfig) -> None:
    """Whatever the number of tokens, no step is left out, and the scale is in no figure."""
    config = replace(config, eval_batches=0, batch_size=6, micro_batch_num=1)
    in_half = replace(config, precision=Precision(compute_dtype="float16"))
    with Trainer(config) as run:
        right = run.advance()
    with Trainer(in_half) as run:
        found = run.advance()
    assert found["loss_scale"] == 65536.0 and "overflow" not in found
    assert found["loss"] == pytest.approx(right["loss"], rel=16 * 2**-12)
    assert found["grad_norm"] == pytest.approx(right["grad_norm"], rel=16 * 2**-12)


@pytest.mark.parametrize(
    "compute_dtype",
    ["float32", *(pytest.param(d, marks=pytest.mark.parity) for d in ("bfloat16", "float16"))],
)
def test_it_overfits_a_few_rows_in_graph_mode(
    config: TrainConfig, learnable: WriteData, compute_dtype: Any
) -> None:
    """Each next token is its successor, but for the first of a row's documents: nothing else."""
    config = replace(
        config,
        data=str(learnable(8, name="few")),
        mode="graph",
        precision=Precision(compute_dtype=compute_dtype),
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
