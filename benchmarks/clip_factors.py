"""How far clip factors fall on real data because a norm is bounded from above and not only estimated.

    python benchmarks/clip_factors.py [--problems mnist-mlp,fashion-p2] [--rows 64] [--steps 5]

An example that is clipped is multiplied by c/‖g‖. The norm in it is a bound that no rounding can pass
(`src/hush/per_example/ARITHMETIC.md`), and so a little larger than the best estimate from the same tape. One minus
their ratio is printed, over the rows of one batch at the initial weights and after a few private steps.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import hush
from hush.clipping.clipped import total_norms
from hush.data_source import as_source
from hush.datasets.catalogue import load
from hush.datasets.problem import Problem
from hush.per_example.gradients import per_example_gradients

PROBLEMS = "mnist-mlp,mnist-lenet,cifar10-p1,fashion-p2,fashion-vae,cifar10-resnet18"


def falls(problem: Problem, model: nn.Module, content: Any) -> Tensor:
    """1 − factor by the bound / factor by the estimate, of every example whose gradient is not zero."""
    tape = per_example_gradients(model, problem.losses, content)
    bound, estimate = total_norms(tape.squared_norms()), total_norms(tape.squared_norms(certain=False))
    return (1.0 - estimate / bound)[estimate > 0]


def measured(name: str, rows: int, steps: int) -> Tensor:
    """The falls at the initial weights and after ``steps`` steps."""
    problem = load(name)
    source = as_source(problem.train)
    torch.manual_seed(0)
    model = problem.model()
    content = source.take(torch.arange(rows))
    before = falls(problem, model, content)
    plan = hush.make_plan("dp-sgd", examples=len(source), batch_size=rows, steps=steps, noise_multiplier=1.0)
    run = plan.start(model, problem.losses, problem.train)
    for batch in run.batches():
        run.step(batch)
    return torch.cat([before, falls(problem, model, content)])


def main() -> None:
    """Parse, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=PROBLEMS)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| problem | median | largest |\n|---|---|---|")
    for name in options.problems.split(","):
        found = measured(name, options.rows, options.steps)
        print(f"| {name} | {float(found.median()):.1e} | {float(found.max()):.1e} |", flush=True)


if __name__ == "__main__":
    main()
