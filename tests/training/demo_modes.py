"""The demo's corpus in every mode of the trainer: does the eval loss fall? Part of `make parity`.

    python -m tests.training.demo_modes demo/out [--steps 12]

Each mode is a run of `mindprep train`, on as many processes as it needs. Adapters and frozen layers
start from what the first run has learned. Prints a table; exit code 1 when a loss does not fall.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import ROOT, machine, table

COMMON = """--batch_size 4 --eval_batches 4 --tensorboard False
--model.hidden_size 64 --model.num_layers 2 --model.num_heads 4 --model.n_kv_heads 2
--model.intermediate_size 176 --optimizer.learning_rate 0.01 --optimizer.warmup_steps 2"""
DP, TP, PP = (
    f"--parallel.{key} 2" for key in ("data_parallel", "model_parallel", "pipeline_stage")
)
ZERO, SP = (f"--parallel.{key} True" for key in ("enable_parallel_optimizer", "use_seq_parallel"))
MICRO, LOW = "--batch_size 2 --micro_batch_num 2", "--precision.compute_dtype"
FROM = "--load_checkpoint {first}"
MODES: tuple[tuple[str, int, str], ...] = (
    ("graph", 1, "--mode graph"),
    ("pynative", 1, "--mode pynative"),
    ("bfloat16", 1, f"{LOW} bfloat16"),
    ("float16, scaled", 1, f"{LOW} float16"),
    ("bfloat16 weights", 1, f"{LOW} bfloat16 --precision.param_init_type bfloat16"),
    ("accumulation", 1, MICRO),
    ("recompute", 1, "--recompute.full True"),
    ("recompute of parts", 1, "--recompute.select [attention,mlp]"),
    ("optimizer on the device", 1, "--optimizer.offload False"),
    ("adapters", 1, f"{FROM} --lora.rank 8 --lora.targets [q_proj,v_proj,up_proj,down_proj]"),
    ("upper half", 1, f"{FROM} --frozen_layers 0.5"),
    ("dp2", 2, DP),
    ("dp2 sharded", 2, f"{DP} {ZERO}"),
    ("tp2", 2, TP),
    ("tp2 sequence", 2, f"{TP} {SP}"),
    ("pp2 1f1b", 2, f"{PP} {MICRO}"),
    ("pp2 gpipe", 2, f"{PP} {MICRO} --parallel.schedule gpipe"),
    ("dp2 tp2 sharded sequence", 4, f"{DP} {TP} {ZERO} {SP}"),
    ("dp2 pp2", 4, f"{DP} {PP} {MICRO}"),
    ("tp2 pp2", 4, f"{TP} {PP} {MICRO}"),
    ("dp2 tp2 pp2 sharded sequence", 8, f"{DP} {TP} {PP} {MICRO} {ZERO} {SP}"),
)


def main() -> int:
    """Runs, prints, judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, help="output folder of the demo")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    rows, held = [], True
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / MODES[0][0]
        for name, workers, flags in MODES:
            start = time.monotonic()
            told = f"{COMMON} {flags.format(first=first)} --steps {args.steps} --workers {workers}"
            places = ["--data", str(args.data), "--save_dir", str(Path(folder) / name)]
            before, after = eval_losses([*places, *told.split()])
            good = after < before
            held &= good
            seconds = f"{time.monotonic() - start:.0f}"
            verdict = "falls" if good else "DOES NOT FALL"
            rows.append((name, workers, f"{before:.4f}", f"{after:.4f}", seconds, verdict))
            print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    print(f"{machine()}\n\nEval loss on the demo's corpus in {args.steps} steps\n")
    print(table(("mode", "processes", "before", "after", "s", ""), rows))
    return 0 if held else 1


def eval_losses(flags: list[str]) -> tuple[float, float]:
    """Before and after a run of the command."""
    command = [sys.executable, "-m", "pipelines.cli", "train", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"^eval loss +(\S+) -> (\S+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return float(found[1]), float(found[2])


if __name__ == "__main__":
    sys.exit(main())
