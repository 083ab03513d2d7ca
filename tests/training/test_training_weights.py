"""Folders of weights: those that are refused, and adapters that are merged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dataprep.errors import UserError
from tests.training.checkpoints import MODEL, Arrays, model_arrays, save_model
from training.checkpoint import open_checkpoint
from training.hf import import_llama
from training.pieces import Slice
from training.sections import Lora
from training.shapes import parameter_shapes
from training.tensorfile import write_tensors
from training.weights import export, merge, open_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder."""
    export(open_checkpoint(save_model(tmp_path / "run", model_arrays())), tmp_path / "hf")
    return tmp_path / "hf"


def test_the_folder_that_is_exported(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    found = load_file(folder / "model.safetensors")
    assert len(found) == 2 * 9 + 3
    ours = model_arrays()
    assert (found["lm_head.weight"] == ours["lm_head.weight"]).all()
    name = "layers.1.self_attn.k_proj.weight"
    assert (found[f"model.{name}"] == ours[name]).all()
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["num_key_value_heads"], config["head_dim"]) == (10, 1, 4)
    assert (config["max_position_embeddings"], config["torch_dtype"]) == (16, "float32")
    model, tensors = import_llama(folder)
    assert model == replace(MODEL, vocab_size=10, seq_length=16)
    assert all((tensors.whole(name) == array).all() for name, array in ours.items())


@pytest.mark.parametrize(
    "change, told",
    [
        ({"model_type": "mistral"}, "model_type is 'mistral'; only 'llama' can be imported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' can be imported"),
        ({"attention_bias": True}, "attention_bias is True; only False"),
        ({"mlp_bias": True}, "mlp_bias is True; only False"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is .*; only None"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters is .*; only plain RoPE"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "only plain RoPE can be imported"),
        ({"rope_parameters": [1]}, "only plain RoPE can be imported"),
        ({"quantization_config": {}}, "quantization_config is {}; only None"),
        ({"head_dim": 8}, "head_dim is 8 with 2 heads and hidden_size 8; only hidden_size / heads"),
        ({"hidden_size": "8"}, "hidden_size is '8'; it must be a whole number above 0"),
        ({"hidden_size": True}, "hidden_size is True; it must be a whole number above 0"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be a whole number above 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; that is a mistake"),
        ({"num_key_value_heads": 3}, "config.json: model.n_kv_heads is 3: make it a divisor"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; it must be a number above 0"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4'; it must be a number above 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"num_hidden_layers": 3}, "holds no model.layers.2.input_layernorm.weight; give the whol"),
        ({"num_hidden_layers": 1}, "holds model.layers.1.* and 8 more, which a plain Llama"),
        ({"vocab_size": 11}, r"embed_tokens.weight is \[10, 8\], but config.json makes it \[11,"),
    ],
)
def test_other_models_are_refused(folder: Path, change: dict[str, Any], told: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=told):
        import_llama(folder)


def test_plain_rope_may_be_said_in_any_way(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_scaling"] = {"rope_type": "default"}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 7}
    path.write_text(json.dumps(config))
    assert import_llama(folder)[0].rope_theta == 7.0


def in_two(folder: Path) -> dict[str, Any]:
    """The folder in two files, with idle tables as older versions stored them; its index."""
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    weight_map = {}
    for i, part in enumerate((list(found)[:9], list(found)[9:])):
        save_file({name: found[name] for name in part}, folder / f"part-{i}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{i}.safetensors")
    return {"metadata": {}, "weight_map": weight_map}


def test_several_files_are_read_through_their_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(in_two(folder)))
    _, tensors = import_llama(folder)
    assert all((tensors.whole(name) == array).all() for name, array in model_arrays().items())
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(UserError, match="cannot read .*part-1.safetensors: No such file"):
        import_llama(folder)


@pytest.mark.parametrize(
    "name",
    ["../run.safetensors", "/etc/x.safetensors", "a/../b.safetensors", "..", "", "x.bin", "\0"],
)
def test_names_in_the_index_do_not_leave_the_folder(folder: Path, name: str) -> None:
    index = in_two(folder)
    index["weight_map"]["lm_head.weight"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="is no name of a .safetensors file in the same folder"):
        import_llama(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {"a": 1}}', "{"])
def test_an_index_of_another_kind_is_damaged(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match="index.json is damaged"):
        import_llama(folder)


def test_a_model_section_that_disagrees_is_told(tmp_path: Path, folder: Path) -> None:
    merged = tmp_path / "merged.safetensors"
    merge(open_weights(folder), merged)
    for path in (tmp_path / "run", tmp_path / "run" / "step-00000007", folder, merged):
        assert open_weights(path, MODEL).shapes == parameter_shapes(MODEL, 10)
        with pytest.raises(
            UserError, match="model.rope_theta is 5.0, but .* made with 10000.0; ma"
        ):
            open_weights(path, replace(MODEL, rope_theta=5.0))
    with pytest.raises(UserError, match="is no checkpoint: give a folder step-"):
        open_weights(tmp_path)
    with pytest.raises(UserError, match="is no checkpoint: give a folder step-"):
        open_weights(tmp_path / "absent")


@pytest.mark.parametrize("told", ["{", "[]", "[" * 100_000])
def test_a_model_that_a_file_tells_wrongly_is_damage(tmp_path: Path, told: str) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, [("a", (1,))], [np.ones(1, np.float32)], metadata={"mindprep.model": told})
    with pytest.raises(UserError, match="x.safetensors is damaged: its model "):
        open_weights(path)


def test_a_file_that_tells_no_model_is_held_to_its_names(tmp_path: Path) -> None:
    """Of another program: what it cannot be asked is the reader's to know (docs/limits.md)."""
    path = tmp_path / "x.safetensors"
    save_file(model_arrays(), path)
    assert open_weights(path, replace(MODEL, rope_theta=5.0)).shapes == parameter_shapes(MODEL, 10)
    with pytest.raises(UserError, match="has weights that this model has not, layers.1"):
        open_weights(path, replace(MODEL, num_layers=1))


def adapted(values: Arrays) -> Arrays:
    """NumPy's own merge: W + alpha / r B A, in float64."""
    merged = {name: array for name, array in values.items() if ".lora_" not in name}
    for name in merged:
        prefix = name.removesuffix(".weight")
        if f"{prefix}.lora_a" in values:
            a, b = (values[f"{prefix}.lora_{end}"].astype(np.float64) for end in "ab")
            merged[name] = merged[name] + 6.0 / 2 * (b @ a)
    return merged


def test_adapters_are_merged(tmp_path: Path) -> None:
    lora = Lora(rank=2, alpha=6.0, targets=["q_proj", "down_proj"])
    values = model_arrays(lora=lora)
    weights = open_weights(save_model(tmp_path, values, lora=lora), MODEL)
    expected = adapted(values)
    assert weights.shapes == {name: array.shape for name, array in expected.items()}
    merge(weights, tmp_path / "merged.safetensors")
    found = load_file(tmp_path / "merged.safetensors")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6)
    name = "layers.1.mlp.down_proj.weight"
    part = weights.read("w", name, Slice((8, 12), 1, 5, 9), 3, 30)
    np.testing.assert_allclose(part, expected[name][:, 5:9].reshape(-1)[3:30], rtol=1e-6, atol=1e-6)
    with pytest.raises(UserError, match=r"is \[8, 12\] in .* but \[9, 12\]"):
        weights.read("w", name, Slice((9, 12)), 0, 108)
    again = open_weights(tmp_path / "merged.safetensors")
    assert again.whole(name).tobytes() == weights.whole(name).tobytes()
    with pytest.raises(UserError, match="holds adapters, but not their rank and alpha"):
        open_weights(save_model(tmp_path / "run", values))
