"""What sound arithmetic costs: a private step through the sampler, fast and rigorous, as ratios to ordinary SGD.

    python benchmarks/arithmetic.py --models MLP,P2 --batches 256
    python benchmarks/arithmetic.py --before ../older/src            # the same steps by an older tree, interleaved

Every figure is CPU time on one thread: the mean over ``--steps`` consecutive steps, the best of ``--rounds`` rounds. A
round starts one process for every way of stepping, so that all see the same state of the machine. Batches are Poisson
batches from 60 000 examples.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = 60_000
COMMON = "MLP,LeNet-5,P1,P2,P3"


@dataclass(frozen=True)
class Repeated:
    """A large dataset in little memory: a few rows, again and again."""

    rows: tuple[Any, ...]

    def __len__(self) -> int:
        return EXAMPLES

    def take(self, indices: Any) -> tuple[Any, ...]:
        """The rows of these examples."""
        return tuple(t[indices % len(t)] for t in self.rows)


def measure(way: str, model: str, batch: int, steps: int) -> float:
    """Mean CPU seconds of a step, after those that are not counted: the first ones of a run are checked."""
    import torch

    import hush
    from hush.per_example.engine import FIRST
    from models import CASES
    from peers import LR, plain

    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[model]
    rows = case.batch(min(batch, 1024))
    if way == "plain":
        whole = tuple(torch.cat([t] * -(-batch // len(t)))[:batch] for t in rows)
        step = plain(case, whole)
    else:
        mode = {"arithmetic": way} if way in ("fast", "rigorous") else {}
        plan = hush.make_plan(
            "dp-sgd", examples=EXAMPLES, batch_size=batch, steps=10**4, noise_multiplier=1.0, lr=LR, **mode
        )
        run = plan.start(case.model(), case.losses, Repeated(rows))

        def step() -> None:
            run.step(run.batch(run.next))

    for _ in range(FIRST + 1):
        step()
    started = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - started) / steps


def child(options: argparse.Namespace, way: str, model: str, batch: int) -> float | None:
    """One way of stepping in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if way == "before":
        environment["PYTHONPATH"] = str(options.before.resolve())
    command = [sys.executable, __file__, "--child", way, "--models", model, "--batches", str(batch)]
    command += ["--steps", str(max(2, options.steps * 256 // batch))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr[-800:], file=sys.stderr)
        return None
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Parse, measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=COMMON)
    parser.add_argument("--batches", default="256")
    parser.add_argument("--steps", type=int, default=20, help="at batch 256; fewer for larger batches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, default=None, help="the src folder of an older tree")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        warnings.simplefilter("ignore")
        print(measure(options.child, options.models, int(options.batches), options.steps))
        return
    ways = ["plain", *(["before"] if options.before else []), "fast", "rigorous"]
    results: list[dict[str, Any]] = []
    print("| model | batch | plain SGD, ms | " + " | ".join(ways[1:]) + " |\n" + "|---" * (2 + len(ways)) + "|")
    for model in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            best: dict[str, float] = {}
            for _ in range(options.rounds):
                for way in ways:
                    seconds = child(options, way, model, batch)
                    if seconds is not None:
                        best[way] = min(best.get(way, math.inf), seconds)
            results.append({"model": model, "batch": batch, "seconds": best})
            cells = [f"{best[w] / best['plain']:.2f}" if w in best else "–" for w in ways[1:]]
            print(f"| {model} | {batch} | {best['plain'] * 1e3:.1f} | " + " | ".join(cells) + " |", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    for way in ways[1:]:
        ratios = [r["seconds"][way] / r["seconds"]["plain"] for r in results if way in r["seconds"]]
        print(f"geometric mean, {way}: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
