"""The whole way on text found on this machine: gather, tokenizer, build, verify, train.

python -m pipelines.demo FOLDER
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dataprep.clean import Clean
from dataprep.corpus import BuildConfig, Eval, Write, build
from dataprep.corpus.texts import cleaned_texts
from dataprep.engine import Engine
from dataprep.errors import UserError
from dataprep.mindformers import write_mindformers
from dataprep.pack import Pack
from dataprep.readers import Input, Read
from dataprep.report import write_report
from dataprep.tokens import Tokenize
from dataprep.tokens.train import TrainTokenizer
from dataprep.verify import verify
from pipelines import build_corpus, local_text, train
from pipelines.common import run
from training import ModelConfig, OptimizerConfig, TrainConfig

STEPS = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; fails unless the data verifies and the eval loss falls."""
    parser = argparse.ArgumentParser(prog="mindprep demo", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="where everything goes; emptied first if it is ours"
    )
    folder = parser.parse_args(argv).folder
    start = time.monotonic()
    make_room(folder)

    title("1. Gather text that is on this machine")
    print(local_text.gather(folder / "text"))

    title("2. Train a tokenizer on it")
    inputs = [
        Input(str(folder / "text/*.jsonl"), "docs"),
        Input(str(folder / "text/*.parquet"), "licences"),
    ]
    clean = Clean()
    model = folder / "tokenizer.model"
    TrainTokenizer(vocab_size=6000, max_mib=4)(cleaned_texts(inputs, Read(), clean, []), model)
    print(f"tokenizer  6,000 ids: {model}")

    title("3. Build the corpus: clean, deduplicate, tokenize, pack, write")
    config = BuildConfig(
        inputs=inputs,
        tokenizer=Tokenize(str(model)),
        out_dir=str(folder / "out"),
        clean=clean,
        eval=Eval(fraction=0.02),
        pack=Pack(seq_length=512),
        write=Write(shards=4),
        engine=Engine(workers=min(2, os.cpu_count() or 1)),
    )
    result = build(config, finish=[write_mindformers(config.out), write_report])
    print(build_corpus.summary(result))

    title("4. Verify every byte, row and label with MindSpore's reader")
    verdict = verify(config.out)
    if verdict.defects:
        raise UserError("the data does not verify: " + "; ".join(verdict.defects))
    print(f"verified   {verdict.shards} shards, {verdict.rows:,} rows, {verdict.tokens:,} tokens")

    title(f"5. Train a small decoder on it for {STEPS} steps")
    trained = train.train_with_progress(
        TrainConfig(
            data=str(config.out),
            save_dir=str(folder / "train"),
            steps=STEPS,
            model=ModelConfig(),
            optimizer=OptimizerConfig(),
        )
    )
    print(train.summary(trained))
    if not (
        trained.eval_before and trained.eval_after and trained.eval_after < trained.eval_before
    ):
        raise UserError("the eval loss did not fall")

    title(f"Done in {time.monotonic() - start:.0f} s")
    print(f"report     {config.out / 'report.html'}")
    print(f"look at a row:  mindprep inspect {config.out} --shard 0 --row 3")
    return 0


def make_room(folder: Path) -> None:
    """Empties a folder of an earlier demo; refuses any other that is not empty."""
    marker = folder / ".mindprep-demo"
    if folder.exists() and any(folder.iterdir()):
        if not marker.is_file():
            raise UserError(
                f"{folder} is not empty and not of an earlier demo; name another folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    marker.touch()


def title(text: str) -> None:
    """A line between steps."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(run(main))
