"""MindFormers 1.9 as a client of output folders: its data set, built from our mindformers.yaml.

Run by the peer's own interpreter (see README.md), never by the project's:

    PEER benchmarks/peers/mindformers_client.py OUT... [--mode graph|pynative]

Graph mode builds the `CausalLanguageModelDataset` of `train_dataset_task`, which is live YAML;
PyNative mode builds what its trainer builds from `train_dataset`, which stands in the file as a
comment to be put in its place. Nothing of the file is changed but the number of worker threads
where this machine has fewer cores: MindSpore refuses more.

Standard output is one line a folder, a JSON object:

    {"tool": "mindformers", "version": "1.9.0", "mode": "graph", "out": "OUT",
     "columns": {"input_ids": {"shape": [rows, S], "dtype": "int32", "sha256": "..."}, ...}}

with the columns in the order in which the model is given them, and the hash of all rows in the
order in which they came. MindFormers' log goes to stderr. Exit code 1 when it refuses a file.
"""

import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only; read when it is imported
os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

NAME = "mindformers.yaml"
PYNATIVE = "# PyNative mode"


def main() -> None:
    """Reads every row of each folder's train split and tells what came."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("outs", type=Path, nargs="+", help="output folders of build_corpus")
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph")
    args = parser.parse_args()
    for out in args.outs:
        if not (out / NAME).is_file():
            parser.error(f"{out} holds no {NAME}")
    build = graph if args.mode == "graph" else pynative
    version = importlib.metadata.version("mindformers")
    for out in args.outs:
        path = (out / NAME).resolve()
        with elsewhere(), stdout_to_stderr():
            columns = read(build(path))
        told = {name: describe(rows) for name, rows in columns.items()}
        result = {"tool": "mindformers", "version": version, "mode": args.mode, "out": str(out)}
        print(json.dumps({**result, "columns": told}), flush=True)


def graph(path: Path):
    """The data set of `train_dataset_task`, through MindFormers' own registry."""
    from mindformers.dataset import build_dataset
    from mindformers.tools.register import MindFormerConfig

    config = MindFormerConfig(str(path))
    fit_workers(config.train_dataset_task.dataset_config)
    return build_dataset(config.train_dataset_task)


def pynative(path: Path):
    """The data set that the PyNative trainer builds from its `train_dataset` section."""
    from mindformers.pynative.config.config import TrainDatasetConfig
    from mindformers.pynative.trainer import utils

    section = yaml.safe_load(pynative_section(path.read_text(encoding="utf-8")))
    fit_workers(section["train_dataset"])
    # It asks the process group, which needs a launcher; this is one process.
    utils.get_world_size, utils.get_rank = lambda: 1, lambda: 0
    config = TrainDatasetConfig.from_dict(section["train_dataset"])
    return utils._build_dataset(config, global_batch_size=1)


def pynative_section(text: str) -> str:
    """The lines under "# PyNative mode", without their comment sign."""
    lines = iter(text.splitlines())
    if not any(line.startswith(PYNATIVE) for line in lines):
        raise SystemExit(f"{NAME} has no section for the PyNative mode")
    return "\n".join(re.sub("^# {3}", "", line) for line in lines if line.startswith("#  "))


def fit_workers(section: dict) -> None:
    """No more threads than cores: MindSpore refuses more, and the file is made for any machine."""
    section["num_parallel_workers"] = min(section["num_parallel_workers"], os.cpu_count() or 1)


def read(dataset) -> dict[str, np.ndarray]:
    """All rows of one epoch, a [rows, length] array a column, in MindFormers' column order."""
    names = dataset.get_col_names()
    batches = list(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
    if not batches:
        raise SystemExit("MindFormers yields no row")
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*batches))}


def describe(rows: np.ndarray) -> dict:
    """Shape, type and hash of an array."""
    digest = hashlib.sha256(np.ascontiguousarray(rows)).hexdigest()
    return {"shape": list(rows.shape), "dtype": str(rows.dtype), "sha256": digest}


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """A folder of its own to work in: MindFormers writes its logs to ./output."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """File descriptor 1 is kept for the result: MindFormers and MindSpore log to it."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


if __name__ == "__main__":
    main()
