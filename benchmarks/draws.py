"""What model randomness by place costs: one private piece, to the same with torch's own generator.

    python benchmarks/draws.py

MLP 784-512-256-128-10 at batch 256, with dropout 0.2 and without; CPU time, the best of ``--rounds`` interleaved
rounds, one thread. The places are those of a batch in order, and scattered ones.
"""

from __future__ import annotations

import argparse
import math
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush.clipping.clipped import Clipping, clipped_sums
from hush.datasets.models import mlp
from hush.per_example.gradients import per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.randomness import Secret, seeded

N = 256


def losses(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy, one number per example."""
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def measure(dropout: float, rounds: int) -> dict[str, float]:
    """The best time of each way, in seconds."""
    with seeded(0):
        model = mlp([784, 512, 256, 128, 10], dropout=dropout)
        content = torch.randn(N, 1, 28, 28), torch.randint(0, 10, (N,))
        places = {"by place, in order": torch.arange(N), "by place, scattered": torch.randperm(20_000)[:N]}
    secret = Secret.from_seed(0, "benchmark")
    best: dict[str, float] = {}
    for step in range(rounds):
        for name in ("torch's generator", *places):
            scope = (
                model_randomness(secret, step, places[name], torch.device("cpu")) if name in places else nullcontext()
            )
            start = time.process_time()
            with scope:
                clipped_sums(per_example_gradients(model, losses, content), Clipping(1.0))
            if step:  # the first one tries the model and compares the engines
                best[name] = min(best.get(name, math.inf), time.process_time() - start)
    return best


def main() -> None:
    """Print one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for dropout in (0.2, 0.0):
        best = measure(dropout, options.rounds)
        for name, seconds in best.items():
            ratio = seconds / best["torch's generator"]
            print(f"dropout {dropout}  {name:22} {1000 * seconds:7.2f} ms  {ratio:.3f}")


if __name__ == "__main__":
    main()
