"""Peak memory and time of a step with and without recomputation of activations.

    python -m benchmarks.recompute [--modes pynative graph] [--length 2048]

A decoder of 8 layers of width 128 on one row, forward and backward; each choice runs in a process
of its own. Memory is the highest that its resident set grew over what it was before the first step.
In graph mode that includes what the compiler needs, which grows with the graph, so the figure of a
very short row is told too. Exit code 1 when gradients are not the same bits for all choices.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore: errors only; read when it is imported

from benchmarks.common import ROOT, machine, table

CHOICES: dict[str, dict[str, Any]] = {
    "off": {},
    "full": {"full": True},
    "attention": {"select": ["attention"]},
    "mlp": {"select": ["mlp"]},
    "upper half": {"full": True, "layers": [4, 5, 6, 7]},
}
MODES = ("pynative", "graph")
SHORT = 16
VOCABULARY = 512


def main() -> int:
    """Measures all choices and prints a table, or is one of the measured processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--length", type=int, default=2048, help="tokens of the row")
    parser.add_argument("--choice", choices=CHOICES, help=argparse.SUPPRESS)  # of a measured one
    args = parser.parse_args()
    if args.choice is not None:
        print(json.dumps(measure(args.choice, args.modes[0], args.length)))
        return 0
    rows, same = [], True
    for mode in args.modes:
        found = {choice: apart(choice, mode, args.length) for choice in CHOICES}
        for choice, one in found.items():
            share = one["MiB"] / found["off"]["MiB"]
            short = apart(choice, mode, SHORT)["MiB"]
            rows.append((mode, choice, one["MiB"], f"{share:.2f}", short, f"{one['seconds']:.1f}"))
        same &= len({one["gradients"] for one in found.values()}) == 1
    head = ("mode", "recompute", "MiB", "of off", f"MiB at {SHORT} tokens", "CPU s")
    print(f"{machine()}\n\nA row of {args.length} tokens\n\n{table(head, rows)}\n")
    print(f"gradients: {'the same bits' if same else 'DIFFERENT'} for all choices of a mode")
    return 0 if same else 1


def measure(choice: str, mode: str, length: int) -> dict[str, Any]:
    """Two steps on one row of `length` tokens, in this process."""
    import numpy as np

    from training.gradients import FIELDS, accumulate, gradient_function
    from training.model import Decoder, initialize
    from training.parallel import recompute
    from training.sections import ModelConfig, Recompute

    config = ModelConfig(
        hidden_size=128, num_layers=8, num_heads=8, n_kv_heads=4, intermediate_size=384
    )
    model = Decoder(config, VOCABULARY)
    initialize(model, config, seed=1)
    recompute(model, Recompute(**CHOICES[choice]))
    function = gradient_function(model, mode)
    row = np.arange(length, dtype=np.int32)[None]
    values = {"position_ids": row, "segments": row * 0, "loss_mask": row * 0 + 1}
    batch = {name: values.get(name, row % VOCABULARY) for name in FIELDS}
    before = high_water()
    for _ in range(2):  # the second is compiled already
        start = time.process_time()
        digest = hashlib.sha256()
        for gradient in accumulate(function, [batch]).gradients:
            digest.update(gradient.asnumpy().tobytes())
        seconds = time.process_time() - start
    grown = round(high_water() - before)
    return {"MiB": grown, "seconds": seconds, "gradients": digest.hexdigest()}


def high_water() -> float:
    """Largest resident set so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(choice: str, mode: str, length: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    options = ["--choice", choice, "--modes", mode, "--length", str(length)]
    command = [sys.executable, "-m", "benchmarks.recompute", *options]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
