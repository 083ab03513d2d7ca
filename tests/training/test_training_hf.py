"""Hugging Face folders, in and out; the judge is LlamaForCausalLM in an environment of its own.

`benchmarks/peers/setup.sh transformers` makes the environment (1.2 GB with a CPU build of torch);
tests use it where it is.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

from benchmarks.common import ROOT
from tests.training.checkpoints import CONFIG, state
from training.checkpoint import open_checkpoint
from training.model import Decoder, initialize
from training.pieces import Float32, Piece, Slice
from training.saver import Saver
from training.sections import ModelConfig
from training.weights import Weights, export, open_weights

PEERS = ROOT / "benchmarks" / "peers"
VOCAB = 50
# Grouped heads, an own head, and nothing at its default; then tied, one key head a query head.
MODELS = {
    "untied": ModelConfig(
        hidden_size=32,
        num_layers=3,
        num_heads=4,
        n_kv_heads=2,
        intermediate_size=48,
        rms_norm_eps=1e-3,
        rope_theta=500.0,
        tie_word_embeddings=False,
    ),
    "tied": ModelConfig(
        hidden_size=24, num_layers=2, num_heads=2, n_kv_heads=2, intermediate_size=40
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "untied": {
        "config": {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-3,
            "rope_theta": 500.0,
            "tie_word_embeddings": False,
        },
        "seed": 1,
        "dtype": "float32",
        "max_shard_size": "20KB",
    },
    "tied": {
        "config": {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "tie_word_embeddings": True,
        },
        "seed": 2,
        "dtype": "bfloat16",
        "max_shard_size": "1GB",
    },
}


@pytest.fixture(scope="module")
def peer() -> Path:
    """The interpreter of the environment of transformers, complete and up to date."""
    venv, wanted = PEERS / ".venv-transformers", PEERS / "transformers.txt"
    made_from = venv / "requirements.txt"
    if not made_from.is_file() or made_from.read_text() != wanted.read_text():
        pytest.skip("no environment of transformers: bash benchmarks/peers/setup.sh transformers")
    return venv / "bin" / "python"


def drawn(model: ModelConfig) -> Decoder:
    """Random weights, large enough and norms far enough from one that each matters."""
    decoder = Decoder(model, VOCAB)
    initialize(decoder, model, 3)
    rng = np.random.default_rng(4)
    for p in decoder.get_parameters():
        values = p.asnumpy() * 4 if p.ndim > 1 else 1 + 0.2 * rng.standard_normal(p.shape)
        p.set_data(Tensor(values.astype(np.float32)))
    return decoder


def saved(decoder: Decoder, model: ModelConfig, folder: Path) -> Path:
    """A checkpoint of it, written by two ranks that divide every matrix along its last axis."""
    savers = [Saver(folder, rank, 2) for rank in range(2)]
    for rank, one in enumerate(savers):
        owned = []
        for p in decoder.get_parameters():
            axis, half = p.ndim - 1, p.shape[-1] // 2
            part = Slice(p.shape, axis, *((0, half) if rank == 0 else (half, p.shape[-1])))
            values = p.asnumpy()[..., part.start : part.stop].reshape(-1)
            owned.append(Piece("w", p.name, part, 0, part.size, values.copy))
        one.save(state(1, replace(CONFIG, model=model)), owned)
    for one in savers:
        one.wait()
    return folder / "step-00000001"


def logits(decoder: Decoder, ids: np.ndarray) -> Float32:
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    segments = np.zeros_like(ids)
    return np.asarray(decoder(Tensor(ids), Tensor(positions.copy()), Tensor(segments)).asnumpy())


def loaded(weights: Weights, model: ModelConfig) -> Decoder:
    decoder = Decoder(model, VOCAB)
    for p in decoder.get_parameters():
        values = weights.read("w", p.name, Slice(p.shape), 0, p.size)
        p.set_data(Tensor(values.reshape(p.shape)))
    return decoder


@pytest.fixture(scope="module")
def judged(peer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of folders: what transformers made and read, and read of ours, in one process."""
    out = tmp_path_factory.mktemp("hf")
    ids = np.random.default_rng(5).integers(0, VOCAB, (2, 33), np.int32)
    np.save(out / "ids.npy", ids)
    commands: list[list[object]] = []
    for name, model in MODELS.items():
        decoder = drawn(model)
        export(open_checkpoint(saved(decoder, model, out / f"run-{name}")), out / f"ours-{name}")
        np.save(out / f"ours-{name}.npy", logits(decoder, ids))
        (out / f"{name}.json").write_text(json.dumps(SETTINGS[name]))
        commands.append(["make", out / f"{name}.json", out / f"theirs-{name}"])
        for side in ("ours", "theirs"):
            folder = out / f"{side}-{name}"
            commands.append(["read", folder, out / "ids.npy", out / f"{folder.name}.npz"])
    words = [word for command in commands for word in (*command, "then")][:-1]
    script = PEERS / "transformers_logits.py"
    run = subprocess.run([peer, script, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return out


@pytest.mark.parametrize("name", MODELS)
def test_transformers_reads_what_we_export(judged: Path, name: str) -> None:
    """Logits within 1e-4, and every weight to the bit."""
    theirs = np.load(judged / f"ours-{name}.npz")
    ours = np.load(judged / f"ours-{name}.npy")
    assert ours.std() > 0.1
    np.testing.assert_allclose(ours, theirs["logits"], rtol=0, atol=1e-4)
    found = open_checkpoint(judged / f"run-{name}" / "step-00000001").tensors
    for weight in found.weights():
        there = theirs[weight if weight == "lm_head.weight" else f"model.{weight}"]
        assert found.whole(weight).tobytes() == there.tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_we_read_what_transformers_saves(judged: Path, name: str) -> None:
    """One file of bfloat16, or several of float32 with an index."""
    folder = judged / f"theirs-{name}"
    assert (folder / "model.safetensors.index.json").exists() == (name == "untied")
    theirs = np.load(judged / f"theirs-{name}.npz")
    eps = SETTINGS[name]["config"].get("rms_norm_eps", 1e-6)
    model = replace(MODELS[name], rms_norm_eps=eps)
    decoder = loaded(open_weights(folder, model), model)
    for p in decoder.get_parameters():
        there = theirs[p.name if p.name == "lm_head.weight" else f"model.{p.name}"]
        assert p.asnumpy().tobytes() == there.tobytes()
    ours = logits(decoder, np.load(judged / "ids.npy"))
    assert ours.std() > 0.1
    np.testing.assert_allclose(ours, theirs["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_export_and_import_give_the_same_weights(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    decoder = drawn(model)
    export(open_checkpoint(saved(decoder, model, tmp_path / "run")), tmp_path / "hf")
    again = loaded(open_weights(tmp_path / "hf", model), model)
    for a, b in zip(decoder.get_parameters(), again.get_parameters(), strict=True):
        assert (a.name, a.asnumpy().tobytes()) == (b.name, b.asnumpy().tobytes())
