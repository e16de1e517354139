"""The figures of the sanitisation layer's paper as data from runs of our own: MNIST, one seed.

Reduced, so that all eight runs take half an hour of one core: 12 000 of the 60 000 images, 20 epochs; widths 10, 30 and
50 of the paper's 10 to 60; t of 0.02, 0.05 and 0.1. The flags are taken from the runs of width 50. What is claimed of a
stop is for these 12 000 images.

    python benchmarks/sanitize_figures.py results/sanitize-figures.json --store DIR
    python benchmarks/sanitize_figures.py OUT --store DIR --small          # the digits, seconds
    hush reproduce --render                                                # draws them for docs/sanitize.md

Each run is a file of the store and is not run again; the result holds the spec that made it. Every ε in it is the
paper's claim, which is not proven: the weights before the layer learn from raw features.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hush
from hush._internal.storage import write_atomic
from hush.datasets import catalogue
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.models import Funnel
from hush.datasets.problem import Problem
from hush.randomness import seeded
from hush.sanitize.adaptive import find_weight, measure_norm
from hush.sanitize.early_stopping import find_stop, flag_flat, flag_steady, state_stop, watch_epochs
from hush.sanitize.layer import Sanitize, insert
from hush.training import take_steps

VECTOR = (2.8, 0.9, 1.5)


@dataclass(frozen=True)
class Training:
    """One run: what decides it, and nothing else."""

    problem: str = "mnist-funnel"
    width: int = 50
    sigma: float = 1.0
    clip: float = 0.5
    share: float | None = None  # t of the adaptive threshold; None for a static one
    batch_size: int = 250
    epochs: int = 20
    examples: int | None = 12_000  # the first so many; None for all
    lr: float = 1e-3
    seed: int = 0

    @property
    def key(self) -> str:
        """A name by its content."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ClassificationMetrics:
    """What is drawn: the axes of each figure."""

    base: Training = Training()
    widths: tuple[int, ...] = (10, 30, 50)
    shares: tuple[float, ...] = (0.02, 0.05, 0.1)
    share: float = 0.05  # of the adaptive runs over the widths
    lengths: tuple[int, ...] = (3, 5, 8, 10)
    thresholds: tuple[float, ...] = (1e-5, 1.2e-4, 1e-3, 1e-2)
    tolerances: tuple[float, ...] = (2e-5, 2e-4, 2e-3)

    def list_runs(self) -> list[Training]:
        """Every run that some figure needs, each once."""
        static = [replace(self.base, width=n) for n in self.widths]
        adaptive = [replace(run, share=self.share) for run in static]
        shares = [replace(self.base, share=t) for t in self.shares]
        return list(dict.fromkeys([*static, *adaptive, *shares, self.base]))


SMALL = ClassificationMetrics(
    base=Training(problem="digits-mlp", width=4, batch_size=128, epochs=3, examples=None, lr=3e-3),
    widths=(2, 4),
    shares=(0.05, 0.1),
    lengths=(2,),
    thresholds=(1e-2, 1e2),
    tolerances=(1e-2, 1e2),
)


def build(run: Training, task: Problem) -> nn.Module:
    """The funnel for the problem's images with a sanitisation layer behind its body."""
    channels, side, _ = task.train[0].shape[1:]
    with seeded(run.seed):
        model = Funnel(channels, side, width=run.width)
    return insert(model, "body", Sanitize(run.clip, run.sigma, width=run.width))


def make_plan(run: Training, examples: int) -> hush.Plan:
    """The published method's plan."""
    chosen = {} if run.share is None else {"threshold_share": run.share}
    return hush.make_plan(
        "sanitize",
        examples=examples,
        batch_size=run.batch_size,
        epochs=run.epochs,
        noise_multiplier=run.sigma,
        delta=1e-5,
        accept_claimed=True,
        lr=run.lr,
        **chosen,
    )


def train(run: Training, task: Problem) -> dict[str, Any]:
    """One run, an entry for each epoch: accuracy, mean deviation of the noisy outputs, ‖W‖ and C."""
    model = build(run, task)
    layer = next(module for module in model.modules() if isinstance(module, Sanitize))
    data = tuple(part[: run.examples] for part in task.train)
    plan = make_plan(run, len(data[0]))
    started = plan.start(model, task.losses, data, secret=run.seed)
    per_epoch, epochs, clips = plan.steps // run.epochs, [], [layer.clip]
    steps = (clips.append(layer.clip) or record.numbers() for record in take_steps(started))
    for spread in watch_epochs(steps, per_epoch):
        epsilon = _say_stop(plan, started.next)
        epochs.append({"clip": clips[-2], **_measure(model, task), "spread": spread, "claimed_epsilon": epsilon})
    return {"run": asdict(run), "claimed_epsilon": plan.guarantee().epsilon, "epochs": epochs}


def _say_stop(plan: hush.Plan, steps: int) -> float:
    """ε of a stop here: claimed, as everything about this method is, or refuted."""
    early = state_stop(plan.guarantee(), plan.guarantee(steps))[1]
    assert early.status in ("claimed", "refuted")
    return early.epsilon


def _measure(model: nn.Module, task: Problem) -> dict[str, float]:
    model.eval()
    accuracy = float(evaluate_problem(model, task).accuracy or 0.0)
    model.train()
    return {"accuracy": accuracy, "norm": measure_norm(find_weight(model))}


def keep(metrics: ClassificationMetrics, store: Path) -> Iterator[dict[str, Any]]:
    """The results of all runs, from the store where they are there."""
    store.mkdir(parents=True, exist_ok=True)
    task: Problem | None = None
    for run in metrics.list_runs():
        path = store / f"{run.key}.json"
        if not path.exists():
            task = task or catalogue.load(run.problem)
            write_atomic(path, json.dumps(train(run, task)).encode())
        yield json.loads(path.read_text())


def draw(metrics: ClassificationMetrics, store: Path) -> dict[str, Any]:
    """Every figure as data."""
    runs = {Training(**found["run"]): found["epochs"] for found in keep(metrics, store)}
    base, widths = metrics.base, metrics.widths
    static = runs[base]
    adaptive = {t: runs[replace(base, share=t)] for t in metrics.shares}
    chosen = min(adaptive, key=lambda t: abs(t - metrics.share))
    return {
        "spec": asdict(metrics),
        "status": make_plan(base, 50_000).guarantee().status,
        "accuracy_by_width": {
            "static": [[n, *_rate(runs[replace(base, width=n)])] for n in widths],
            "adaptive": [[n, *_rate(runs[replace(base, width=n, share=metrics.share)])] for n in widths],
        },
        "flags": {
            "static": _flag(static, flag_flat, metrics.lengths, metrics.thresholds),
            "adaptive": _flag(adaptive[chosen], flag_steady, metrics.lengths, metrics.tolerances),
        },
        "norm_and_clip_by_share": {f"{t:g}": [[e["norm"], e["clip"]] for e in run] for t, run in adaptive.items()},
        "accuracy_by_share": [[t, *_rate(run)] for t, run in adaptive.items()],
        "convergence": {
            "static": _stop(static, _flag(static, flag_flat, metrics.lengths, metrics.thresholds)),
            "adaptive": _stop(
                adaptive[chosen], _flag(adaptive[chosen], flag_steady, metrics.lengths, metrics.tolerances)
            ),
        },
    }


def _rate(run: list[dict[str, Any]]) -> tuple[float, float]:
    """The accuracy of the last epoch, and of the best: a class is lost and found again from one epoch to the next."""
    return run[-1]["accuracy"], max(epoch["accuracy"] for epoch in run)


def _flag(run: list[dict[str, Any]], flag: Any, lengths: tuple[int, ...], limits: tuple[float, ...]) -> list[Any]:
    """For each window and limit, the flag of every epoch."""
    series = [epoch["spread"] for epoch in run]
    return [[length, limit, flag(series, length, limit)] for length in lengths for limit in limits]


def _stop(run: list[dict[str, Any]], flags: list[Any]) -> dict[str, Any]:
    """The whole curve, and where each flag would have stopped it: after so many epochs, at this accuracy and claimed
    ε."""
    accuracies = [epoch["accuracy"] for epoch in run]
    stops = []
    for length, limit, raised in flags:
        after = find_stop(raised)
        at = None if after is None else run[after - 1]
        stops.append([length, limit, after, *((at["accuracy"], at["claimed_epsilon"]) if at else (None, None))])
    return {"accuracy": accuracies, "spread": [epoch["spread"] for epoch in run], "stops": stops}


def compare_threshold(clip: float, sigma: float) -> dict[str, Any]:
    """The small table: a vector clipped at C, what that cuts off, and the noise that C brings."""
    layer = Sanitize(clip, sigma, width=len(VECTOR))
    given = torch.tensor([VECTOR], dtype=torch.float64)
    clipped = layer.bound(given)
    lost = float(torch.linalg.vector_norm(given - clipped))
    return {
        "clip": clip,
        "vector": list(VECTOR),
        "clipped": clipped[0].tolist(),
        "lost": lost,
        "noise": layer.noise_std,
    }


def main() -> None:
    """Make what is not there yet, and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--store", type=Path, required=True, help="folder with a file for each run")
    parser.add_argument("--small", action="store_true", help="the digits, in seconds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    drawn = draw(SMALL if given.small else ClassificationMetrics(), given.store)
    write_atomic(given.out, (json.dumps(drawn, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
