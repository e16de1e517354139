"""A private step of small transformers, with all weights, with LoRA, and with a frozen backbone and a head.

    python benchmarks/fine_tuning.py
    python benchmarks/fine_tuning.py --models BERT --batches 8,32,128 --json times.json

The models have 4 layers of width 128, random weights, 64 tokens with masks of varying length, and their default
dropout. CPU time on one thread, the best of several interleaved rounds, as a ratio to an ordinary step of SGD with the
same weights to train; next to it Opacus' ghost clipping where that runs. K is the number of rows of a chunk, which
passed the check of the arithmetic before the first step. That check, once per run, and the spot checks of the first
steps are not timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import hush
from hush.per_example.engine import FIRST, verdict_of
from memory import peak_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import language_models as lm

Step = Callable[[], Any]
SIZES = {"width": 128, "layers": 4, "words": 1000, "length": 64, "patch": 4}
WAYS = ("all weights", "LoRA", "head")


def make(name: str, way: str) -> torch.nn.Module:
    """A model with these weights to train."""
    model = lm.make(name, **SIZES)
    return lm.adapt(name, model) if way == "LoRA" else lm.freeze(model) if way == "head" else model


def plain(model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> Step:
    """Ordinary SGD."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        lm.losses(model, data).mean().backward()
        optimizer.step()

    return step


def private(model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> tuple[Step, int]:
    """A step of a run whose batch is the whole data, past its checked first steps; and the rows of its chunks."""
    n = len(data[0])
    options = {"steps": 10**4, "noise_multiplier": 1.0, "lr": 0.01, "clip": 1.0}
    plan = hush.make_plan("dp-sgd", examples=n, batch_size=n, sample_rate=1.0, **options)
    run = plan.start(model, lm.losses, data)

    def step() -> None:
        run.step(run.batch(run.next))

    for _ in range(FIRST + 1):
        step()
    return step, run._summing.rows


def opacus(model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> Step:
    """A step of Opacus' ghost clipping with the same noise; raises where it does not support the model."""
    from opacus import PrivacyEngine

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    private, updater, criterion, _ = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(*data), batch_size=len(data[0])),
        criterion=torch.nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )

    def step() -> None:
        updater.zero_grad()
        criterion(lm.logits_of(private, data), data[-1]).backward()
        updater.step()

    step()
    return step


def best(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """CPU seconds of each."""
    found = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.process_time()
            step()
            found[name] = min(found[name], time.process_time() - start)
    return found


def measure(name: str, way: str, n: int, rounds: int) -> dict[str, Any]:
    """One line of the table."""
    data = lm.batch(name, n, words=SIZES["words"], length=SIZES["length"])
    model = make(name, way).train()
    ordinary, (own, rows) = plain(copy.deepcopy(model), data), private(model, data)
    steps = {"plain SGD": ordinary, "hush": own}
    ordinary()
    try:
        steps["Opacus ghost"] = opacus(make(name, way).train(), data)
    except Exception as error:
        print(f"Opacus, {name}, {way}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    seconds = best(steps, rounds)
    verdict = verdict_of(model, lm.losses)
    path = verdict.engine if not verdict.alone else f"torch.func for {', '.join(sorted(verdict.alone))}"
    memory = peak_bytes(own) / peak_bytes(ordinary)
    return {"model": name, "trained": way, "batch": n, "K": rows, "seconds": seconds, "memory": memory, "path": path}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(lm.TARGETS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH", help="save the figures here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | trained | batch | K | SGD, ms | hush | Opacus | memory | path |\n" + "|---" * 9 + "|")
    results: list[dict[str, Any]] = []
    for name in options.models.split(","):
        for way in options.ways.split(","):
            for n in map(int, options.batches.split(",")):
                results.append(found := measure(name, way, n, options.rounds))
                base = found["seconds"]["plain SGD"]
                ratios = [f"{found['seconds'].get(key, math.nan) / base:.2f}" for key in ("hush", "Opacus ghost")]
                cells = f"{base * 1e3:.0f} | {' | '.join(ratios)} | {found['memory']:.2f} | {found['path']}"
                print(f"| {name} | {way} | {n} | {found['K']} | {cells} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
