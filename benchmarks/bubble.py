"""The pipeline's bubble: how much of a step its stages wait, against what is to be expected.

    python -m benchmarks.bubble [--micro-batches 1 2 4 8 16] [--steps 5]

Two stages, a process each, run 7 layers of width 256 on micro batches of 4 rows of 256 tokens,
compiled. The last stage needs no second forward, so it has four of the layers: the stages are about
equally fast. A stage's share is what it does not compute of the step of the slower one: it waits in
a transfer, moves numbers, or has ended. The fastest step is told. Expected is `bubble` of
training/timeline.py, for stages that are equally fast and transfers that take no time. With fewer
free cores than stages the figures mean nothing.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import machine, table
from pipelines.launcher import launch
from training.launch import join, leave
from training.sections import ModelConfig
from training.timeline import Kind, bubble, stage_layers

STAGES, ROWS, LENGTH, VOCAB = 2, 4, 256, 512
MODEL = ModelConfig(hidden_size=256, num_layers=7, intermediate_size=768)
KINDS: tuple[Kind, Kind] = ("1f1b", "gpipe")


def main() -> int:
    """Measures and prints, or is one of the measured processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # of a measured process
    args = parser.parse_args()
    if args.out is not None:
        measure(args.micro_batches, args.steps, args.out)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bubble", *sys.argv[1:], "--out", folder]
        os.environ["OMP_NUM_THREADS"] = "1"
        code = launch(command, STAGES, Path(folder) / "logs")
        if code:
            return code
        ranks = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(STAGES)]
    print(f"{machine()}\n\n{show(ranks, args.micro_batches)}")
    return 0


def show(ranks: list[dict[str, list[list[float]]]], counts: list[int]) -> str:
    """The table; a rank's figures are [seconds, those in transfers] of steps, by `kind count`."""
    rows = []
    for kind in KINDS:
        for count in counts:
            steps = zip(*(rank[f"{kind} {count}"] for rank in ranks))
            step, stages = min((max(seconds for seconds, _ in s), s) for s in steps)
            shares = [1 - (seconds - waited) / step for seconds, waited in stages]
            mean, expected = statistics.mean(shares), bubble(STAGES, count, kind)
            rows.append([kind, count, step, *shares, mean, expected])
    head = [f"stage {s}" for s in range(STAGES)]
    return table(["schedule", "micro batches", "step s", *head, "mean", "expected"], rows)


def measure(counts: list[int], steps: int, out: Path) -> None:
    """One stage: every schedule and number of micro batches; one step each is not counted."""
    import numpy as np
    from mindspore import Tensor

    from training.comm import open_comm
    from training.mesh import Mesh
    from training.model import Decoder, initialize
    from training.pipeline import PipelineStage

    rank, _ = join()
    mesh = Mesh(pp=STAGES, rank=rank)
    comm = open_comm(mesh)
    layers = stage_layers(MODEL, VOCAB, LENGTH, STAGES)[rank]
    ends = {"embed": mesh.is_first_stage, "head": mesh.is_last_stage}
    model = Decoder(MODEL, VOCAB, layers=layers, **ends)
    initialize(model, MODEL, seed=1)
    stage = PipelineStage(model, mesh, comm, "graph", "1f1b", MODEL.hidden_size)
    ids = np.random.default_rng(0).integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    places = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    fixed = {"position_ids": places, "segments": 0 * places, "loss_mask": 0 * places + 1}
    batch = {"input_ids": ids, "labels": ids, **fixed}
    found = {}
    for kind in KINDS:
        stage.kind = kind
        for count in counts:
            runs = []
            for _ in range(steps + 1):
                comm.world.all_reduce(Tensor(np.zeros(1, np.float32)))  # both begin at once
                comm.take_seconds()
                start = time.perf_counter()
                stage.run([batch] * count, 1.0).gradients[-1].asnumpy()  # the last to be ready
                runs.append((time.perf_counter() - start, comm.take_seconds()))
            found[f"{kind} {count}"] = runs[1:]
    (out / f"{rank}.part").write_text(json.dumps(found))
    (out / f"{rank}.part").rename(out / f"{rank}.json")
    while len(list(out.glob("*.json"))) < STAGES:  # a partner may still be reading from us
        time.sleep(0.05)
    leave(0)


if __name__ == "__main__":
    sys.exit(main())
