"""MindFormers itself, in its own environment, loads our output folders and gets our arrays.

`benchmarks/peers/setup.sh mindformers` makes the environment (3 GB); tests use it where it is.
"""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common import ROOT
from dataprep import Manifest
from dataprep.corpus import BuildConfig, Write, build
from dataprep.mindformers import write_mindformers
from dataprep.mindrecord import ShardReader
from dataprep.pack import Pack

Make = Callable[..., BuildConfig]
PEERS = ROOT / "benchmarks" / "peers"
CUSTOM = ["labels", "input_ids", "actual_seq_len"]


@pytest.fixture(scope="module")
def peer() -> Path:
    """The interpreter of MindFormers' environment, complete and up to date."""
    venv = PEERS / ".venv-mindformers"
    wanted = [PEERS / f"mindformers.{end}" for end in ("txt", "no-deps")]
    made_from = venv / "requirements.txt"
    if not made_from.is_file() or made_from.read_text() != "".join(p.read_text() for p in wanted):
        pytest.skip("no environment of MindFormers: bash benchmarks/peers/setup.sh mindformers")
    return venv / "bin" / "python"


def made(config: BuildConfig) -> Path:
    return build(config, finish=[write_mindformers(config.out)]).out_dir


def ask(peer: Path, mode: str, outs: list[Path]) -> list[dict[str, Any]]:
    """What MindFormers got from each folder."""
    client = PEERS / "mindformers_client.py"
    run = subprocess.run(
        [peer, client, "--mode", mode, *outs], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def expected(out: Path) -> dict[str, dict[str, Any]]:
    """Our rows, shard after shard in the order of the manifest, column after column."""
    manifest = Manifest.load(out)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in manifest.columns}
    for shard in manifest.splits["train"]:
        with ShardReader(out / shard.path) as reader:
            for name, rows in reader.read(0, len(reader)).items():
                parts[name].append(rows)
    assert len(manifest.splits["train"]) == 3
    told = {}
    for name, arrays in parts.items():
        rows = np.concatenate(arrays)
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        told[name] = {"shape": list(rows.shape), "dtype": "int32", "sha256": digest}
    return told


def same(answer: dict[str, Any], out: Path) -> None:
    """Equal arrays, in equal order of the columns."""
    assert answer["out"] == str(out) and answer["version"] == "1.9.0"
    assert list(answer["columns"].items()) == list(expected(out).items())


def test_graph_mode_gets_our_arrays(peer: Path, config_for: Make) -> None:
    whole = Pack(seq_length=64, isolate_documents=False)
    outs = [
        made(config_for("isolated 隔离")),
        made(config_for("whole", pack=whole)),
        made(config_for("legacy", write=Write(shards=3, columns="legacy"))),
        made(config_for("legacy_labels", write=Write(shards=3, columns="legacy_labels"))),
        made(config_for("custom", write=Write(shards=3, columns=CUSTOM))),
    ]
    answers = ask(peer, "graph", outs)
    for answer, out in zip(answers, outs, strict=True):
        same(answer, out)
    columns = [list(answer["columns"]) for answer in answers]
    shifted = ["input_ids", "labels", "loss_mask", "position_ids"]
    assert columns[0] == [*shifted, "actual_seq_len"]
    assert columns[1] == shifted
    assert columns[2:] == [["input_ids"], ["input_ids", "labels"], CUSTOM]
    assert answers[2]["columns"]["input_ids"]["shape"][1] == 65


def test_pynative_mode_gets_our_arrays(peer: Path, config_for: Make) -> None:
    outs = [
        made(config_for("isolated 隔离")),
        made(config_for("custom", write=Write(shards=3, columns=CUSTOM))),
    ]
    for answer, out in zip(ask(peer, "pynative", outs), outs, strict=True):
        same(answer, out)
