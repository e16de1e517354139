"""Synthetic stores for reports: any number of runs with every kind of outcome, without training."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.bench.store import Result, open_store

METHODS = {"dp-sgd": "proven", "dp-adam": "proven", "dp-ftrl": "proven", "dp-dice": "claimed", "sgd": "none"}
EPSILONS = (1.0, 3.0, 10.0)


def make_record(
    number: int,
    *,
    problem: str = "digits-mlp",
    method: str = "dp-sgd",
    epsilon: float | None = 3.0,
    lr: float = 0.1,
    batch_size: int = 64,
    epochs: int = 5,
    seed: int = 0,
    outcome: str = "finished",
    status: str | None = None,
    metric: str = "accuracy",
    **more: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A record and its lines an epoch; what it holds is a smooth function of its settings and a little chance."""
    chance = random.Random(number)
    goodness = 1 / (1 + (math.log10(lr) + 1) ** 2) * (1 - math.exp(-(epsilon or 20.0) / 2)) * (1 - 0.1 / epochs)
    accuracy = min(0.99, 0.5 + 0.48 * goodness + chance.gauss(0, 0.005))
    loss = 3 * (1 - accuracy) + 0.01
    config = {"problem": problem, "method": method, "batch_size": batch_size, "delta": 1e-5, "epochs": epochs}
    config |= {} if epsilon is None else {"epsilon": epsilon}
    record = {
        "format": 1,
        "key": f"{number:032x}",
        "outcome": outcome,
        "reason": "" if outcome == "finished" else "the test loss is not finite after step 40",
        "config": config | {"options": {"lr": lr, "clip": 1.0}, "seed": seed, "split_seed": 0, "validation": 0.1},
        "metric": metric,
    }
    if outcome == "failed":
        return record | more, []
    metrics: dict[str, Any] = {"test_loss": loss, "validation_loss": loss * 1.01}
    if metric == "accuracy":
        metrics |= {"test_accuracy": accuracy, "validation_accuracy": accuracy - 0.005}
    gaussian = method == "dp-ftrl"
    sigma = math.sqrt(2 * math.log(1.25e5)) / epsilon if epsilon else 0.0
    record |= metrics | {
        "epsilon": epsilon,
        "delta": 1e-5,
        "status": status or METHODS.get(method, "proven"),
        "adjacency": "zero-out",
        "accountant": "gdp" if gaussian else "pld",
        "noise_multiplier": sigma,
        "steps": epochs * 20,
        "examples": 1280,
        "train_seconds": epochs * (1 + chance.random()),
        "inference_seconds": 1e-5 * (1 + chance.random()),
        "confusion": [[90 + (i == j) * 900 - 80 * (i != j) for j in range(10)] for i in range(10)],
    }
    keep = {name: value for name, value in metrics.items() if name.startswith(("test", "validation"))}
    curve = [
        {"step": 20 * e, "epoch": float(e), "epsilon": epsilon and epsilon * math.sqrt(e / epochs)}
        | {name: value * (0.6 + 0.4 * e / epochs) for name, value in keep.items()}
        for e in range(1, epochs + 1)
    ]
    return record | more, curve


def make_many(runs: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Three problems, one of them with a loss, five methods, a grid and seeds: the first ``runs``."""
    seeds, problems = range(3), (("digits-mlp", "accuracy"), ("mnist-lenet", "accuracy"), ("fashion-vae", "loss"))
    grid = itertools.product(seeds, (64, 256), (0.01, 0.1, 1.0, 10.0), (5, 20), EPSILONS, METHODS, problems)
    wanted = itertools.islice(
        itertools.chain(
            grid, itertools.product(range(3, 10), *[[64], [0.1], [5, 20, 40]], EPSILONS, METHODS, problems)
        ),
        runs,
    )
    for number, (seed, batch, lr, epochs, epsilon, method, (problem, metric)) in enumerate(wanted):
        outcome = "diverged" if lr == 10.0 and number % 3 else "failed" if number % 97 == 0 else "finished"
        spent = None if method == "sgd" else epsilon
        yield make_record(
            number,
            problem=problem,
            method=method,
            epsilon=spent,
            lr=lr,
            batch_size=batch,
            epochs=epochs,
            seed=seed if spent is not None else int(10 * epsilon) + seed,
            outcome=outcome,
            metric=metric,
        )


def write_store(root: Path, runs: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> Path:
    """A store of these runs."""
    store = open_store(root)
    for record, curve in runs:
        store.finish(record["key"], Result(dict(record), tuple(dict(line) for line in curve)))
    return root


def write_plainly(root: Path, runs: Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> Path:
    """The same without syncing every file to the disk, for large ones."""
    open_store(root)
    for record, curve in runs:
        folder = root / "runs" / record["key"]
        folder.mkdir()
        (folder / "record.json").write_text(json.dumps(record))
        (folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    return root
