"""One pass over Fashion-MNIST: noise of the optimal factorisation (dp-matrix-se) against DP-SGD, at the same ε.

P2, batch 64, 938 steps, ε = 10, δ = 1e-5, normalised clip 1. Both methods try the same learning rates with the same
seeds. DP-SGD takes Poisson batches and gains amplification; SE takes every example once and gains cancellation. One
JSON line a run goes to docs/results/one-pass.jsonl, with the spec that made it; a run that is there is not run again.

    OMP_NUM_THREADS=1 python benchmarks/one_pass.py [--seeds 3]
    python benchmarks/one_pass.py --show     # the table, as Markdown
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hush.data_source import as_source
from hush.datasets import catalogue
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.training import take_steps
from optimizers import ChannelsLast, evaluated

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "one-pass.jsonl"
METHODS = ("dp-matrix-se", "dp-sgd")
RATES = (0.1, 0.32, 1.0, 3.2, 10.0)  # half powers of ten; 0.032 was tried with the first seed and left out


@dataclass(frozen=True)
class Spec:
    """Everything that decides a run's result."""

    method: str
    lr: float
    seed: int
    problem: str = "fashion-p2"
    batch_size: int = 64
    epochs: int = 1
    epsilon: float = 10.0
    delta: float = 1e-5
    clip: float = 1.0
    clip_mode: str = "normalised"

    def plan(self, examples: int) -> Plan:
        """The plan, calibrated to ε."""
        chosen = asdict(self)
        for name in ("method", "seed", "problem"):
            del chosen[name]
        return make_plan(self.method, examples=examples, **chosen)


def specs(seeds: int) -> Iterator[Spec]:
    """All runs, seed by seed."""
    for seed in range(seeds):
        for lr in reversed(RATES):
            for method in METHODS:
                yield Spec(method, lr, seed)


def measured(spec: Spec) -> dict[str, Any]:
    """One run from its first weights to its accuracy on the test rows."""
    task = catalogue.load(spec.problem, seed=0)
    plan = spec.plan(len(as_source(task.train)))
    with seeded(spec.seed):
        model = ChannelsLast(task.model())
    run = plan.start(model, task.losses, task.train, secret=spec.seed)
    started = time.process_time()
    for _ in take_steps(run):
        pass
    seconds = time.process_time() - started
    accuracy, loss = evaluated(run.model, task.test, task.losses)
    guarantee = plan.guarantee()
    return {
        "spec": asdict(spec),
        "accuracy": accuracy,
        "loss": loss,
        "noise_multiplier": plan.sigma,
        "sensitivity": plan.sensitivity,
        "noise_std": plan.noise_std,
        "steps": plan.steps,
        "epsilon": guarantee.epsilon,
        "adjacency": guarantee.adjacency,
        "status": guarantee.status,
        "cpu_seconds": round(seconds, 1),
    }


def known() -> list[dict[str, Any]]:
    """Every run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table() -> str:
    """Mean and standard deviation of the test accuracy over seeds, as Markdown."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in known():
        found.setdefault((row["spec"]["method"], row["spec"]["lr"]), []).append(100 * row["accuracy"])
    lines = ["| learning rate | dp-matrix-se | dp-sgd | difference | seeds |", "|---|---|---|---|---|"]
    for lr in sorted({lr for _, lr in found}):
        ours, theirs = (found.get((method, lr), []) for method in METHODS)
        if ours and theirs:
            gain = f"{statistics.mean(ours) - statistics.mean(theirs):+.2f}"
            lines.append(f"| {lr:g} | {_spread(ours)} | {_spread(theirs)} | {gain} | {len(ours)}, {len(theirs)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def main() -> None:
    """Run what is missing, or show what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="print the table of what there is")
    arguments = parser.parse_args()
    if arguments.show:
        print(table())
        return
    torch.set_num_threads(1)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for spec in specs(arguments.seeds):
        if asdict(spec) in [r["spec"] for r in known()]:
            continue
        row = measured(spec)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        said = f"{100 * row['accuracy']:.2f} % ({row['cpu_seconds']} s)"
        print(f"{spec.method} {spec.lr:g} seed {spec.seed}: {said}", flush=True)


if __name__ == "__main__":
    main()
