"""The private optimizers against each other: P2 on Fashion-MNIST, batch 256, ε = 1, δ = 1e-5, normalised clip 1.

For each method the learning rate is chosen with one seed and 2 epochs (by accuracy on 6 000 held-out training images);
the winner runs for 10 epochs with three seeds on all 60 000 and is measured on the test images. One JSON line a run
goes to docs/results/optimizers.jsonl, with the spec that made it; a run that is there already is not run again.

    OMP_NUM_THREADS=1 python benchmarks/optimizers.py [--until 23:30] [--only dp-sgd,dp-adam] [--phase search]
    python benchmarks/optimizers.py --table
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from hush import problems
from hush.methods import catalogue, make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.source import as_source
from hush.train import train

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "optimizers.jsonl"
SEARCH_EPOCHS, FINAL_EPOCHS, SEEDS, VALIDATION = 2, 10, (0, 1, 2), 0.1

# where the search for the learning rate starts, in half powers of ten: 0 is 1, -1 is 0.32, 1 is 3.2
STARTS: dict[str, tuple[int, ...]] = {
    "dp-sgd": (-1, 0, 1),
    "dp-adam": (-7, -6, -5),
    "dp-adam-bc": (-9, -8, -7),
    "dp-disk": (-1, 0, 1),
    "dp-dice (claimed)": (-2, -1, 0),
    "dp-dice (proven)": (-6, -4, -2),
}
MOST = 5  # values of the learning rate that are tried at most


@dataclass(frozen=True)
class Spec:
    """Everything that decides a run's result."""

    entry: str
    phase: str
    lr: float
    seed: int
    epochs: int
    problem: str = "fashion-p2"
    batch_size: int = 256
    epsilon: float = 1.0
    delta: float = 1e-5
    clip: float = 1.0
    clip_mode: str = "normalised"

    @property
    def method(self) -> str:
        """The method's name in hush."""
        return self.entry.split()[0]

    def plan(self, examples: int) -> Plan:
        """The plan, calibrated to ε: by what is proven, or for a claimed entry by what its paper says."""
        public = {"examples": examples, "batch_size": self.batch_size, "epochs": self.epochs, "delta": self.delta}
        options = {"lr": self.lr, "clip": self.clip, "clip_mode": self.clip_mode}
        if "claimed" not in self.entry:
            return make_plan(self.method, **public, **options, epsilon=self.epsilon)
        plain = make_plan("dp-sgd", **public, **options, epsilon=self.epsilon)
        sigma = plain.sigma * 3**0.5  # σ√(1 + 2C₂/C₁) with C₁ = C₂
        return make_plan(self.method, **public, **options, noise_multiplier=sigma)


class ChannelsLast(torch.nn.Module):
    """The same model with its images' channels last in memory: pooling is several times faster so."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        out: torch.Tensor = self.model(x.contiguous(memory_format=torch.channels_last))
        return out


def measured(spec: Spec) -> dict[str, Any]:
    """One run from its first weights to its accuracy."""
    searching = spec.phase == "search"
    task = problems.load(spec.problem, seed=0, validation=VALIDATION if searching else 0.0)
    plan = spec.plan(len(as_source(task.train)))
    with seeded(spec.seed):
        model = ChannelsLast(task.model())
    run = plan.start(model, task.losses, task.train, secret=spec.seed)
    started = time.process_time()
    for _ in train(run):
        pass
    seconds = time.process_time() - started
    held = task.validation if searching else task.test
    accuracy, loss = evaluated(run.model, held, task.losses)
    return {
        "spec": asdict(spec),
        "accuracy": accuracy,
        "loss": loss,
        "measured_on": "validation" if searching else "test",
        "noise_multiplier": plan.sigma,
        "steps": plan.steps,
        "claims": [{"epsilon": c.epsilon, "status": c.status} for c in plan.claims()],
        "cpu_seconds": round(seconds, 1),
    }


@torch.no_grad()
def evaluated(model: torch.nn.Module, held: Any, losses: Any) -> tuple[float, float]:
    """Accuracy and mean loss on held-out images."""
    images, labels = held
    right, total = 0, 0.0
    for x, y in zip(images.split(1000), labels.split(1000), strict=True):
        right += int((model(x).argmax(1) == y).sum())
        total += float(losses(model, (x, y)).sum())
    return right / len(labels), total / len(labels)


def known() -> list[dict[str, Any]]:
    """Every run so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def todo(entries: list[str], phase: str | None) -> Spec | None:
    """The next run: first every search, then the winners seed by seed, so that all methods have as many."""
    done = [r["spec"] for r in known()]
    for entry in entries:
        for lr in grid(entry):
            spec = Spec(entry, "search", lr, 0, SEARCH_EPOCHS)
            if asdict(spec) not in done:
                return spec
    if phase == "search":
        return None
    finals = [Spec(e, "final", winner(e), seed, FINAL_EPOCHS) for seed in SEEDS for e in entries]
    return next((spec for spec in finals if asdict(spec) not in done), None)


def rate(half_powers: int) -> float:
    """10^(k/2), to two digits."""
    return float(f"{10 ** (half_powers / 2):.2g}")


def grid(entry: str) -> list[float]:
    """The learning rates to try: three, and beyond an end as long as the best of them lies there."""
    tried = list(STARTS[entry])
    scores = searched(entry)
    while len(tried) < MOST and all(rate(k) in scores for k in tried):
        best = max(tried, key=lambda k: scores[rate(k)])
        if best not in (min(tried), max(tried)):
            break
        step = tried[1] - tried[0]
        tried = sorted([*tried, best - step if best == min(tried) else best + step])
    return [rate(k) for k in tried]


def searched(entry: str) -> dict[float, float]:
    """Validation accuracy by learning rate."""
    rows = [r for r in known() if r["spec"]["entry"] == entry and r["spec"]["phase"] == "search"]
    return {r["spec"]["lr"]: r["accuracy"] for r in rows}


def winner(entry: str) -> float:
    """The learning rate with the best validation accuracy."""
    scores = searched(entry)
    return max(scores, key=lambda lr: scores[lr])


def table() -> str:
    """Mean and spread of the test accuracy, as Markdown."""
    lines = [
        "| method | lr | ε proven | ε claimed | seeds | test accuracy, mean ± standard deviation | range |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in STARTS:
        rows = [r for r in known() if r["spec"]["entry"] == entry and r["spec"]["phase"] == "final"]
        if not rows:
            continue
        values = [100 * r["accuracy"] for r in rows]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        said = {c["status"]: f"{c['epsilon']:.3g}" for c in rows[0]["claims"]}
        cells = (entry, f"{rows[0]['spec']['lr']:g}", said.get("proven", "–"), said.get("claimed", "–"), str(len(rows)))
        shown = f"{statistics.mean(values):.2f}{spread} %"
        lines.append(f"| {' | '.join(cells)} | {shown} | {min(values):.2f} – {max(values):.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="entries, separated by commas")
    parser.add_argument("--phase", choices=["search"], help="stop after the searches")
    parser.add_argument("--until", help="start no run after this time of day, HH:MM in UTC")
    parser.add_argument("--table", action="store_true", help="print the table of what there is")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return
    torch.set_num_threads(1)
    entries = arguments.only.split(",") if arguments.only else [e for e in STARTS if e.split()[0] in catalogue()]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    while (spec := todo(entries, arguments.phase)) is not None:
        if arguments.until and f"{datetime.now(UTC):%H:%M}" == arguments.until:
            return
        row = measured(spec)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{spec.entry} {spec.phase} {spec.lr:g} seed {spec.seed}: {row['accuracy']:.4f} ({row['cpu_seconds']} s)")


if __name__ == "__main__":
    main()
