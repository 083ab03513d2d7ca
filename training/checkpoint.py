"""Checkpoints: a folder a step, complete or absent.

    save_dir/step-00000040/
      weights.safetensors     float32 master weights
      optimizer.safetensors   both moments of every weight, m.<weight> and v.<weight>
      state.json              step, rows consumed, epoch, seed, data fingerprint, config, hashes

A checkpoint is written under a temporary name, flushed to disk and renamed. state.json holds the
hash of both other files and of itself, so that a damaged one is recognized and an older one used.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from dataprep.errors import UserError
from dataprep.files import (
    TMP,
    canonical_json,
    fingerprint,
    read_json,
    sha256_file,
    sync,
    write_error,
    write_json,
)
from training.config import TrainConfig

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[np.float32]]
# What a run may not change when it continues. `steps` may grow, which stretches the schedule.
FROZEN = (
    "model", "optimizer", "batch_size", "micro_batch_num", "seed", "shuffle", "compute_dtype"
)  # fmt: skip
FILES = ("weights.safetensors", "optimizer.safetensors")
STATE = "state.json"


@dataclass(frozen=True)
class TrainState:
    """Where a run stands, apart from its tensors."""

    step: int
    """Optimizer steps done."""
    consumed_rows: int
    """Rows behind since the start, read or trimmed, over all epochs."""
    epoch: int
    """Whole epochs behind it."""
    seed: int
    """The only random state: initial weights and row order follow from it."""
    data: str
    """Fingerprint of the data set's manifest, or of the mix of several."""
    config: dict[str, Any]
    """The TrainConfig as JSON."""
    order: str = "mindspore"
    """The rule that `consumed_rows` counts along; the default is that of versions before 0.3."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back, every hash checked."""

    path: Path
    state: TrainState
    weights: Arrays
    moments: Arrays


def save(save_dir: Path, state: TrainState, weights: Arrays, moments: Arrays, keep: int) -> Path:
    """Publishes a checkpoint, removes all but the newest `keep`, and returns its folder.

    Raises UserError when it cannot be written; earlier checkpoints are then untouched.
    """
    path = save_dir / f"step-{state.step:08d}"
    tmp = path.with_name(path.name + TMP)
    try:
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        for name, arrays in zip(FILES, (weights, moments), strict=True):
            save_file(arrays, tmp / name)
            sync(tmp / name)
        hashes = {name: sha256_file(tmp / name) for name in FILES}
        content = {**asdict(state), "files": hashes}
        write_json(tmp / STATE, {**content, "fingerprint": fingerprint(content)})
        if path.exists():  # a damaged one, whose step was done again
            shutil.rmtree(path)
        os.replace(tmp, path)
        sync(save_dir)
        for old in list_checkpoints(save_dir)[keep:]:
            shutil.rmtree(old)
    except OSError as e:
        raise write_error(path, e) from e
    return path


def list_checkpoints(save_dir: Path) -> list[Path]:
    """Folders of published checkpoints, newest first."""
    return sorted(
        (p for p in save_dir.glob("step-*") if re.search(r"-\d{8}$", p.name)), reverse=True
    )


def load_latest(save_dir: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint; None when there is none at all.

    A damaged one is named in a warning and passed over. Raises UserError when all are damaged.
    """
    found = list_checkpoints(save_dir)
    for path in found:
        try:
            return load(path)
        except UserError as e:
            log.warning("%s; looking for an older checkpoint", e)
    if found:
        raise UserError(
            f"every checkpoint in {save_dir} is damaged; restore one, or remove them all to start "
            "from the beginning"
        )
    return None


def load(path: Path) -> Checkpoint:
    """Reads one checkpoint. Raises UserError when a file is missing or a hash differs."""
    content = read_json(path / STATE)
    try:
        stored, hashes = content.pop("fingerprint"), content["files"]
        if stored != fingerprint(content):
            raise UserError(f"{path / STATE} is damaged: its fingerprint differs")
        for name in FILES:
            if sha256_file(path / name) != hashes[name]:
                raise UserError(f"{path / name} is damaged: its hash differs")
        state = TrainState(**{k: v for k, v in content.items() if k != "files"})
    except (KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{path / STATE} is damaged: {type(e).__name__} {e}") from e
    except OSError as e:
        raise UserError(f"cannot read {e.filename}: {e.strerror}") from e
    weights, moments = (load_file(path / name) for name in FILES)
    return Checkpoint(path, state, weights, moments)


def check_same_run(found: Checkpoint, config: TrainConfig, loader: Mapping[str, Any]) -> None:
    """Raises UserError when a checkpoint is of another data set, order of rows or config.

    `loader`: the present Loader's state.
    """
    start_over = "or choose another save_dir to start over"
    if found.state.data != loader["data"]:
        folders = [config.data] if isinstance(config.data, str) else [f.path for f in config.data]
        raise UserError(
            f"{found.path} was trained on another data set than {', '.join(folders)} (the "
            f"manifests' fingerprints or the weights differ); give that data set, {start_over}"
        )
    if found.state.order != loader["order"]:
        raise UserError(
            f"{found.path} is of a version that read the rows in another order "
            f"({found.state.order}, now {loader['order']}); finish with that version, {start_over}"
        )
    now = json.loads(canonical_json(asdict(config)))  # as state.json has it: lists for tuples
    for key in FROZEN:
        then = found.state.config.get(key)
        if then != now[key]:
            raise UserError(
                f"{key} is {now[key]}, but {found.path} was trained with {then}; change it back, "
                f"{start_over}"
            )
    if found.state.step > config.steps:
        raise UserError(
            f"steps is {config.steps}, but {found.path} is at step {found.state.step}; raise "
            f"steps, {start_over}"
        )
