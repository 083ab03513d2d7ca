"""Checkpoints: what is in one, one file of it, and Hugging Face folders out and in.

mindprep checkpoint show   PATH
mindprep checkpoint merge  PATH OUT.safetensors
mindprep checkpoint export PATH OUT_FOLDER
mindprep checkpoint import HF_FOLDER OUT.safetensors
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import yaml

from dataprep.errors import UserError, printable
from pipelines.common import human, output_folder, run
from training.checkpoint import Checkpoint
from training.weights import export, find_checkpoint, import_weights, merge, open_weights

DESCRIPTION = """PATH is a checkpoint (a folder step-...) or a save_dir, of which the newest is
taken. It may be of any number of processes; every hash is checked. Adapters (LoRA) are merged into
the weights that they adapt, but by show, which lists what is stored."""
DTYPES = ("float32", "bfloat16", "float16")
COMMANDS = {
    "show": "step, rows, config and tensors of a checkpoint",
    "merge": "all weights of a checkpoint in one safetensors file, under our names",
    "export": "a Hugging Face folder that LlamaForCausalLM opens; add the tokenizer's files",
    "import": "a Hugging Face folder of the Llama family as one file, for load_checkpoint; prints "
    "the model section for the config (load_checkpoint takes the folder itself, too)",
}
OUTPUTS = {"merge": "new .safetensors file", "export": "new folder", "import": "new .safetensors"}


def main(argv: Sequence[str] | None = None) -> int:
    """Shows or converts."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    args = _parser().parse_args(argv)
    if args.command == "show":
        print("\n".join(printable(line) for line in told(find_checkpoint(args.path))))
    elif args.command == "export":
        export(find_checkpoint(args.path), args.out, args.dtype)
    elif args.command == "merge":
        merge(open_weights(args.path), _new_file(args.out), args.dtype)
    else:
        weights = import_weights(args.path)
        merge(weights, _new_file(args.out), args.dtype)
        assert weights.model is not None, "config.json tells it"
        print(section(weights.model))
    if args.command != "show":
        print(f"wrote {printable(str(args.out))}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mindprep checkpoint", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text}.")
        source = "Hugging Face folder" if name == "import" else "checkpoint, or save_dir"
        command.add_argument("path", type=output_folder, help=source)
        if name in OUTPUTS:
            command.add_argument("out", type=output_folder, help=OUTPUTS[name])
            command.add_argument(
                "--dtype", choices=DTYPES, default="float32", help="of what is written (float32)"
            )
    return parser


def _new_file(path: Path) -> Path:
    if path.suffix != ".safetensors":
        raise UserError(f"{path} does not end in .safetensors; give such a name")
    if path.exists():
        raise UserError(f"{path} is there already; give another name, or remove it")
    return path


def told(found: Checkpoint) -> list[str]:
    """What a person wants to know of a checkpoint."""
    state, shapes = found.state, found.tensors.shapes
    weights = found.tensors.weights()
    elements = sum(map(prod, weights.values()))
    parallel = state.config.get("parallel", {})
    layout = ", ".join(f"{key} {value}" for key, value in parallel.items())
    return [
        f"checkpoint    {found.path}",
        f"step          {state.step} ({state.updates} updates, {len(state.skipped)} left out)",
        f"rows          {state.consumed_rows:,} behind, {state.rows_per_step} a step, "
        f"epoch {state.epoch}",
        f"seed          {state.seed}",
        f"data          {state.data}",
        f"written by    {found.ranks} process{'es' * (found.ranks > 1)} ({layout})",
        f"weights       {human(elements)} in {len(weights)} tensors, float32",
        f"moments       of {sum(kind == 'm' for kind, _ in shapes)} tensors",
        f"model         {state.config.get('model')}",
        "",
        *(f"{name:<48} {list(shape)}" for name, shape in weights.items()),
    ]


def section(model: Mapping[str, Any]) -> str:
    """The `model` section of a training config, as YAML."""
    keys = ("vocab_size", "hidden_size", "num_layers", "num_heads", "n_kv_heads")
    more = ("intermediate_size", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    values = {key: model[key] for key in (*keys, *more)}
    return str(yaml.safe_dump({"model": values}, sort_keys=False)).rstrip()


if __name__ == "__main__":
    sys.exit(run(main))
