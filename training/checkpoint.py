"""Checkpoints: a folder a step, complete or absent, readable by any number of processes.

    save_dir/step-00000040/
      rank-00000.safetensors   what a rank owns of weights "w" and both moments "m" and "v"
      rank-00000.json          which pieces of which tensors these are, see rankfile.py
      ...
      state.json               step, rows consumed, seed, data fingerprint, config, hashes

saver.py writes one under a temporary name and renames it. state.json holds the hash of every other
file and of itself, so that a damaged one is recognized and an older one used. Tensors are put
together from the pieces by relayout.py.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from os.path import abspath
from pathlib import Path
from typing import Any

from dataprep.errors import Unreadable, UserError
from dataprep.files import canonical_json, fingerprint, read_error, read_json, sha256_file
from training.config import TrainConfig
from training.pieces import Read
from training.rankfile import index_name, read_rank
from training.relayout import Tensors

log = logging.getLogger(__name__)

FORMAT = 2  # 1: two files of whole tensors, of versions before there were several processes
STATE = "state.json"
# What a run may not change when it continues. `steps` may grow, which stretches the schedule.
FROZEN = (
    "model", "optimizer", "precision", "lora", "frozen_params", "frozen_layers", "seed", "shuffle"
)  # fmt: skip
FREE = {"offload"}  # keys inside these sections that are about where, not what


class OtherVersion(UserError):
    """A checkpoint that is whole, and that this version does not read."""


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
    order: str
    """The rule that `consumed_rows` counts along."""
    rows_per_step: int
    """Rows of one optimizer step, of all replicas."""
    seq_length: int
    """Tokens of a row."""
    updates: int
    """Steps that changed the weights: the optimizer's own count."""
    skipped: list[int]
    """Steps whose rows were left out, since something was not finite."""
    loss_scale: dict[str, Any]
    """Of float16, see scale.py."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, every hash checked, its tensors still on disk."""

    path: Path
    state: TrainState
    ranks: int
    """Processes that wrote it."""

    tensors: Tensors

    @property
    def read(self) -> Read:
        """Any part of any tensor, whatever layout wrote it."""
        return self.tensors.read


def step_folder(save_dir: Path, step: int) -> Path:
    """Folder of a step's checkpoint."""
    return save_dir / f"step-{step:08d}"


def list_checkpoints(save_dir: Path) -> list[Path]:
    """Folders of published checkpoints, newest first."""
    return sorted(
        (p for p in save_dir.glob("step-*") if re.search(r"-\d{8}$", p.name)), reverse=True
    )


def load_latest(save_dir: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint; None when there is none at all.

    A damaged one is named in a warning and passed over. Raises UserError when all are damaged, or
    another version's, or when one cannot be read, which may be whole.
    """
    found = list_checkpoints(save_dir)
    for path in found:
        try:
            return open_checkpoint(path)
        except OtherVersion:
            raise
        except Unreadable as e:
            raise Unreadable(f"{e}; it may be whole: read it elsewhere, or remove {path}") from e
        except UserError as e:
            log.warning("%s; looking for an older checkpoint", e)
    if found:
        raise UserError(
            f"every checkpoint in {save_dir} is damaged; restore one, or remove them all to start "
            "from the beginning"
        )
    return None


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens one checkpoint. Raises UserError when it is damaged or not complete."""
    content = read_json(path / STATE)
    if not isinstance(content, dict):
        raise UserError(f"{path / STATE} is damaged: it holds no keys")
    stored = content.pop("fingerprint", None)
    if stored != fingerprint(content):
        raise UserError(f"{path / STATE} is damaged: its fingerprint differs")
    version, hashes = content.pop("format", 1), content.pop("files", None)
    if version != FORMAT:
        raise OtherVersion(
            f"{path} is a checkpoint of format {version}, and this version reads format {FORMAT}; "
            "finish with the version that wrote it, or choose another save_dir to start over"
        )
    ranks = _check_files(path, hashes)
    state = _state(path / STATE, content)
    pieces = (piece for rank in range(ranks) for piece in read_rank(path, rank))
    return Checkpoint(path, state, ranks, Tensors(path, pieces))


def _check_files(path: Path, hashes: Any) -> int:
    """Compares every file's hash; returns the number of ranks."""
    if not isinstance(hashes, dict) or not all(
        re.fullmatch(r"rank-\d{5,}\.(json|safetensors)", name) for name in hashes
    ):
        raise UserError(f"{path / STATE} is damaged: its files are not those of ranks")
    ranks = sum(name.endswith(".json") for name in hashes)
    if ranks == 0 or any(index_name(rank) not in hashes for rank in range(ranks)):
        raise UserError(f"{path / STATE} is damaged: a rank's files are not told")
    for name, digest in hashes.items():
        try:
            if sha256_file(path / name) != digest:
                raise UserError(f"{path / name} is damaged: its hash differs")
        except OSError as e:
            raise read_error(path / name, e) from e
    return ranks


def _state(path: Path, content: dict[str, Any]) -> TrainState:
    if content.keys() != {field.name for field in fields(TrainState)}:
        raise UserError(f"{path} is damaged: it has other keys than this version writes")
    for field in fields(TrainState):
        value = content[field.name]
        kinds = {int: int, str: str, dict[str, Any]: dict, list[int]: list}
        good = type(value) is kinds[field.type]  # type: ignore[index]
        if not good or (type(value) is int and value < 0):
            raise UserError(f"{path} is damaged: {field.name} is {str(value):.60}")
    return TrainState(**content)


def check_same_run(
    found: Checkpoint, config: TrainConfig, loader: Mapping[str, Any], rows_per_step: int
) -> None:
    """Raises UserError when a checkpoint is of another data set, order of rows or config.

    The layout of processes may differ, and what a replica reads at a time, as long as a step has
    equally many rows. `loader`: the present Loader's state; `rows_per_step`: of all replicas.
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
        _check_key(found, key, found.state.config.get(key), now[key], start_over)
    began, asked = found.state.config.get("load_checkpoint"), config.load_checkpoint
    if asked is not None and (began is None or abspath(asked) != abspath(began)):
        raise UserError(
            f"load_checkpoint is {asked}, but {found.path} is of a run that began "
            f"from {began or 'new weights'}; leave the key out to continue it, {start_over}"
        )
    if found.state.rows_per_step != rows_per_step:
        raise UserError(
            f"a step has {rows_per_step} rows (batch_size x micro_batch_num x replicas), but "
            f"{found.path} was trained with {found.state.rows_per_step}; change batch_size or "
            f"micro_batch_num, {start_over}"
        )
    if found.state.step > config.steps:
        raise UserError(
            f"steps is {config.steps}, but {found.path} is at step {found.state.step}; raise "
            f"steps, {start_over}"
        )


def _check_key(found: Checkpoint, key: str, then: Any, now: Any, start_over: str) -> None:
    """Raises UserError, naming the key, unless it has the value that it had."""
    if isinstance(then, dict) and isinstance(now, dict):
        for inner in sorted((then.keys() | now.keys()) - FREE):
            _check_key(found, f"{key}.{inner}", then.get(inner), now.get(inner), start_over)
    elif then != now:
        raise UserError(
            f"{key} is {now}, but {found.path} was trained with {then}; change it back, "
            f"{start_over}"
        )
