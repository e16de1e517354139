"""How long the networks of Tables I to IV take for MNIST's 10 000 test images: CPU time, one thread, best of nine.

hush reproduce 000-table-1                              # where results/inference.json is missing
python benchmarks/inference.py results/inference.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from hush.datasets import catalogue

PROBLEMS, BATCH, REPEATS = ("mnist-mlp", "mnist-lenet"), 1000, 9


def measure(name: str) -> float:
    """CPU seconds of the fastest pass over all test images."""
    problem = catalogue.load(name, seed=0)
    model, parts = problem.model().eval(), problem.test[0].split(BATCH)
    found = []
    with torch.inference_mode():
        for _ in range(REPEATS):
            start = time.process_time()
            for part in parts:
                model(part)
            found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Write the times, and how they were measured."""
    torch.set_num_threads(1)
    setting = {"images": 10_000, "batch": BATCH, "threads": 1, "best_of": REPEATS, "torch": torch.__version__}
    seconds = {name: measure(name) for name in PROBLEMS}
    Path(sys.argv[1]).write_text(json.dumps({"setting": setting, "cpu_seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
