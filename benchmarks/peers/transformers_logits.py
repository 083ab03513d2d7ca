"""LlamaForCausalLM as the judge of our Hugging Face folders; runs in the peer's environment.

PEER transformers_logits.py make SETTINGS.json FOLDER    random weights, saved by transformers
PEER transformers_logits.py read FOLDER IDS.npy OUT.npz  logits float32 [B, S, V] of int32 [B, S]

Several commands in one process, which takes seconds to start, are separated by the word `then`.

SETTINGS.json: {"config": {keys of LlamaConfig}, "seed": 0, "dtype": "float32",
"max_shard_size": "20KB"}. OUT.npz has `logits` and every weight by its name, as float32. `read`
fails when transformers finds a weight missing or one too many.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make(settings: Path, folder: Path) -> None:
    """Saves a model, norms away from one so that every weight matters."""
    told = json.loads(settings.read_text(encoding="utf-8"))
    torch.manual_seed(told["seed"])
    model = LlamaForCausalLM(LlamaConfig(**told["config"]))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
            else:
                weight.mul_(4)
    model.to(getattr(torch, told["dtype"]))
    model.save_pretrained(folder, max_shard_size=told["max_shard_size"])


def read(folder: Path, ids: Path, out: Path) -> None:
    """Loads a folder and runs it."""
    model, info = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
    )
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:
        sys.exit(f"transformers does not find the weights it wants: {wrong}")
    with torch.no_grad():
        logits = model(torch.from_numpy(np.load(ids)).long()).logits
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    np.savez(out, logits=logits.numpy(), **weights)


if __name__ == "__main__":
    torch.set_num_threads(1)
    commands = [[]]
    for word in sys.argv[1:]:
        if word == "then":
            commands.append([])
        else:
            commands[-1].append(word)
    for name, *paths in commands:
        {"make": make, "read": read}[name](*map(Path, paths))
