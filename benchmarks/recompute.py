"""Peak memory and time of a step with and without recomputation of activations.

    python benchmarks/recompute.py --mode graph --length 2048

Each choice runs in a process of its own; memory is the highest its resident set grew over what it
was before the first step. In graph mode that includes what the compiler needs, which grows with
the graph, so the figure of a very short row is told too. Gradients must be the same in all.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("GLOG_v", "3")

CHOICES: dict[str, dict[str, object]] = {
    "off": {},
    "full": {"full": True},
    "attention": {"select": ["attention"]},
    "mlp": {"select": ["mlp"]},
    "upper half": {"full": True, "layers": [4, 5, 6, 7]},
}
SHORT = 16


def measure(choice: str, mode: str, length: int) -> dict[str, float]:
    """Two steps on one row of `length` tokens, in this process."""
    import numpy as np

    from training.gradients import FIELDS, accumulate, gradient_function
    from training.model import Decoder, initialize
    from training.parallel import recompute
    from training.sections import ModelConfig, Recompute

    config = ModelConfig(
        hidden_size=128, num_layers=8, num_heads=8, n_kv_heads=4, intermediate_size=384
    )
    model = Decoder(config, 512)
    initialize(model, config, seed=1)
    recompute(model, Recompute(**CHOICES[choice]))  # type: ignore[arg-type]
    function = gradient_function(model, mode)
    row = np.arange(length, dtype=np.int32)[None]
    values = {"position_ids": row, "segments": row * 0, "loss_mask": row * 0 + 1}
    batch = {name: values.get(name, row % 512) for name in FIELDS}
    before = _high_water()
    for _ in range(2):  # the second is compiled already
        start = time.process_time()
        gradients = accumulate(function, [batch]).gradients
        total = sum(float(np.abs(g.asnumpy()).sum()) for g in gradients)
        seconds = time.process_time() - start
    return {"MiB": _high_water() - before, "seconds": seconds, "gradients": total}


def _high_water() -> float:
    """Largest resident set so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(choice: str, mode: str, length: int) -> dict[str, float]:
    """`measure` in a process of its own."""
    code = f"import json, recompute; print(json.dumps(recompute.measure{choice, mode, length}))"
    folder = os.path.dirname(os.path.abspath(__file__))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.path.dirname(folder)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Prints a table, one line for each choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the row")
    args = parser.parse_args()
    print(f"{'':12} {'MiB':>6} {f'MiB at {SHORT}':>10} {'CPU s':>6}")
    gradients = set()
    for choice in CHOICES:
        short, full = (apart(choice, args.mode, n) for n in (SHORT, args.length))
        gradients.add(full["gradients"])
        print(f"{choice:12} {full['MiB']:6.0f} {short['MiB']:10.0f} {full['seconds']:6.1f}")
    assert len(gradients) == 1, gradients


if __name__ == "__main__":
    main()
