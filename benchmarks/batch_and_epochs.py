"""Test accuracy on the digits over batch size × epochs × learning rate at one ε, to check what `hush plan` advises.

    python benchmarks/batch_and_epochs.py docs/results/batch-and-epochs.jsonl

A run that is in the file is not run again.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch

import hush
from hush.data_source import as_source
from hush.datasets import catalogue, problem
from hush.datasets.evaluation import evaluate_problem
from hush.randomness import seeded

EPSILONS, BATCHES, EPOCHS = (3.0,), (1024, 256, 64), (5, 20, 50)
RATES, SEEDS = (0.5, 1.0, 2.0, 4.0), (0, 1)


def train(plan: hush.Plan, task: problem.Problem, seed: int) -> float:
    """The test accuracy of one run."""
    with seeded(seed):
        model = task.model()
    run = plan.start(model, task.losses, task.train, secret=seed)
    for batch in run.batches():
        run.step(batch)
    model.eval()
    return float(evaluate_problem(model, task).accuracy or 0.0)


def main(path: Path) -> None:
    """Every run that the file does not hold yet, a line each."""
    torch.set_num_threads(1)
    task = catalogue.load("digits-mlp", seed=0, validation=0.0)
    known = {json.dumps(json.loads(line)["spec"]) for line in path.read_text().splitlines()} if path.exists() else set()
    for epsilon, batch, epochs in itertools.product(EPSILONS, BATCHES, EPOCHS):
        public = {
            "examples": len(as_source(task.train)),
            "batch_size": batch,
            "epochs": epochs,
            "clip_mode": "normalised",
        }
        plan = hush.make_plan("dp-sgd", **public, epsilon=epsilon)
        for lr, seed in itertools.product(RATES, SEEDS):
            spec = {"epsilon": epsilon, "batch_size": batch, "epochs": epochs, "lr": lr, "seed": seed}
            if json.dumps(spec) in known:
                continue
            ready = hush.make_plan("dp-sgd", **public, noise_multiplier=plan.sigma, lr=lr)
            row = {"spec": spec, "noise_multiplier": plan.sigma, "accuracy": train(ready, task, seed)}
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
