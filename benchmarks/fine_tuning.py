"""A private step of small transformers, with all weights, with LoRA, and with a frozen backbone and a head.

    python benchmarks/fine_tuning.py
    python benchmarks/fine_tuning.py --models BERT --batches 8,32,128

The models have 4 layers of width 128, random weights, 64 tokens with masks of varying length, and their default dropout.
CPU time on one thread, the best of several interleaved rounds, as a ratio to an ordinary step of SGD with the same weights
to train. The check before the first step, once per run, and the spot checks of the first steps are left out.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hush
from hush.per_example.engine import FIRST, verdict_of
from memory import peak_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import language_models as lm  # noqa: E402

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


def private(model: torch.nn.Module, data: tuple[torch.Tensor, ...]) -> Step:
    """A step of a run whose batch is the whole data, past its checked first steps."""
    n = len(data[0])
    options = {"steps": 10**4, "noise_multiplier": 1.0, "lr": 0.01, "clip": 1.0}
    plan = hush.make_plan("dp-sgd", examples=n, batch_size=n, sample_rate=1.0, **options)
    run = plan.start(model, lm.losses, data)
    run._summing._check_rows = lambda compute: 0  # the check of the arithmetic, a minute for each of these models

    def step() -> None:
        run.step(run.batch(run.next))

    for _ in range(FIRST + 1):
        step()
    return step


def best(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """CPU milliseconds of each."""
    found = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.process_time()
            step()
            found[name] = min(found[name], (time.process_time() - start) * 1e3)
    return found


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(lm.TARGETS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | trained | batch | SGD, ms | hush | memory | path |\n" + "|---" * 7 + "|")
    for name in options.models.split(","):
        for way in options.ways.split(","):
            for n in map(int, options.batches.split(",")):
                data = lm.batch(name, n, words=SIZES["words"], length=SIZES["length"])
                model = make(name, way).train()
                ordinary, own = plain(copy.deepcopy(model), data), private(model, data)
                ordinary()
                ms = best({"plain": ordinary, "hush": own}, options.rounds)
                memory = peak_bytes(own) / peak_bytes(ordinary)
                verdict = verdict_of(model, lm.losses)
                path = verdict.engine if not verdict.alone else f"torch.func for {', '.join(sorted(verdict.alone))}"
                cells = f"{ms['plain']:.0f} | {ms['hush'] / ms['plain']:.2f} | {memory:.2f} | {path}"
                print(f"| {name} | {way} | {n} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
