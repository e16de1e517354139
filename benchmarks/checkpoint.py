"""What ledger, checkpoints and the record of sums cost: their share of a step's time, with a checkpoint every 50 steps.

All in one run: time spent in them over time spent on everything else, CPU and wall clock, on one thread; ``tags`` is
the share of the record of sums alone. The one-off work at the start (the digest of 60 000 images, the budget, the first
checkpoint) is given beside it.

    python benchmarks/checkpoint.py [--steps 235] [--directory DIR]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hush.checkpointing import Checkpoints
from hush.datasets.models import lenet5, mlp
from hush.ledger.book import Ledger
from hush.ledger.run_account import charge
from hush.methods import make_plan
from hush.training import take_steps
from models import cross_entropy, images

EXAMPLES, BATCH = 60_000, 256
MODELS: dict[str, Callable[[], nn.Module]] = {"lenet5": lenet5, "mlp": lambda: mlp([784, 512, 256, 128, 10])}


class Watch:
    """CPU and wall-clock seconds spent in the functions that it wraps."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.cpu += time.process_time() - cpu
                self.wall += time.perf_counter() - wall
                self.calls += 1

        return timed


class Timed:
    """A run's witness, timed."""

    def __init__(self, witness: Any, *watches: Watch) -> None:
        self.allows, self.before_release = witness.allows, witness.before_release
        for watch in watches:
            self.allows = watch.around(self.allows)


def measure(model: str, method: str, steps: int, directory: Path, *, every: int = 50) -> dict[str, Any]:
    """Train, and say which part of the time the keeping took."""
    torch.manual_seed(0)
    plan = make_plan(method, examples=EXAMPLES, batch_size=BATCH, steps=steps, noise_multiplier=1.0)
    run = plan.start(MODELS[model](), cross_entropy, images(1, 28)(EXAMPLES), secret=0)
    once, often, tags = Watch(), Watch(), Watch()
    ledger = Ledger(directory / "ledger.jsonl")
    ledger.set_budget("random images", 50.0, 1e-5)
    kept = Checkpoints(directory / "private")
    account = once.around(charge)(run, ledger, "random images", kept)
    once.around(account.room)()
    once.around(kept.begin)(run)
    run.charged_by(once.around(account.charge))
    kept.save, kept.log = often.around(kept.save), often.around(kept.log)  # type: ignore[method-assign]
    assert run._noise_guard is not None
    run.guard_noise(Timed(run._noise_guard, tags, often))
    run.step(run.batch(0))  # warm up
    often.cpu = often.wall = tags.cpu = 0.0
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in take_steps(run, checkpoints=kept, every=every):
        pass
    cpu, wall = time.process_time() - cpu - often.cpu, time.perf_counter() - wall - often.wall
    kept.close()
    return {
        "model": model,
        "method": method,
        "steps": steps,
        "step_ms_cpu": round(1000 * cpu / (steps - 1), 3),
        "kept_ms_cpu_per_step": round(1000 * often.cpu / (steps - 1), 4),
        "tags_cpu": round(tags.cpu / cpu, 5),
        "overhead_cpu": round(often.cpu / cpu, 5),
        "overhead_wall": round(often.wall / wall, 5),
        "once_seconds_cpu": round(once.cpu, 3),
        "once_in_steps": round(once.cpu / (cpu / (steps - 1)), 2),
        "checkpoint_bytes": max(p.stat().st_size for p in kept.files()),
    }


def main() -> None:
    """Measure and print, one JSON line a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=235)
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model, method in (("lenet5", "dp-sgd"), ("lenet5", "dp-adam"), ("mlp", "dp-sgd"), ("mlp", "dp-adam")):
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            print(json.dumps(measure(model, method, options.steps, Path(directory))))


if __name__ == "__main__":
    main()
