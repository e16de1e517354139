"""The private optimizers against each other, at δ = 1e-5 and normalised clip 1.

- fashion-p2: P2 on Fashion-MNIST, batch 256, ε = 1; learning rate by 2 epochs, then 10 epochs with three seeds.
- digits-mlp: the embedded digits, batch 128, ε = 3; learning rate by 30 epochs, then 30 epochs with five seeds.

The learning rate is chosen with one seed, by accuracy on a tenth of the training rows that is held out; the winner runs
on all of them and is measured on the test rows (phase final). So, on request, is the learning rate one step below it
(phase below), which shows what a short search costs. What choosing costs in privacy is not counted, as papers do. One
JSON line a run goes to docs/results/optimizers.jsonl, with the spec that made it; a run that is there is not run again.

    OMP_NUM_THREADS=1 python benchmarks/optimizers.py [--problem fashion-p2] [--only dp-sgd,dp-adam] [--phase below]
    python benchmarks/optimizers.py --show [--problem digits-mlp]     # the table, and docs/results/*.svg
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hush.data_source import as_source
from hush.datasets import catalogue, problem
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import seeded
from hush.run import Run
from hush.training import take_steps

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "optimizers.jsonl"
VALIDATION = 0.1
INK = "#1f4e79"
OFF = 50.0  # per cent: what lies below is not drawn to scale
MOST = 5  # values of the learning rate that are tried at most
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "automatic clipping": {"clip_mode": "automatic"},
    "per-layer clipping": {"per_layer": True},
    "adaptive clipping": {"clip_quantile": 0.5},
    "less noise late": {"noise_end": 0.5, "noise_stages": 5},
    "floor 1e-6": {"floor": 1e-6},
}


@dataclass(frozen=True)
class Setup:
    """What a comparison keeps fixed, and where each method's search starts: half powers of ten, 0 is 1, −1 is 0.32."""

    batch_size: int
    epsilon: float
    search_epochs: int
    final_epochs: int
    seeds: int
    starts: dict[str, tuple[int, ...]]


SETUPS = {
    "fashion-p2": Setup(
        256,
        1.0,
        2,
        10,
        3,
        {
            "dp-sgd": (-1, 0, 1),
            "dp-adam": (-7, -6, -5),
            "dp-adam-bc": (-9, -8, -7),
            "dp-adam-bc + floor 1e-6": (-7, -6, -5),
            "dp-disk": (-1, 0, 1),
            "dp-dice (claimed)": (-2, -1, 0),
            "dp-dice (proven)": (-6, -4, -2),
        },
    ),
    "digits-mlp": Setup(
        128,
        3.0,
        30,
        30,
        5,
        {
            "dp-sgd": (-1, 0, 1),
            "dp-sgd + automatic clipping": (-1, 0, 1),
            "dp-sgd + per-layer clipping": (-1, 0, 1),
            "dp-sgd + adaptive clipping": (-1, 0, 1),
            "dp-sgd + less noise late": (-1, 0, 1),
            "dp-adam": (-5, -4, -3),
            "dp-adam-bc": (-8, -7, -6),
            "dp-disk": (-1, 0, 1),
            "dp-dice (claimed)": (-1, 0, 1),
            "dp-dice (proven)": (-5, -4, -3),
        },
    ),
}


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
        variant = VARIANTS[self.entry.partition(" + ")[2]]
        options: dict[str, Any] = {"lr": self.lr, "clip": self.clip, "clip_mode": self.clip_mode} | variant
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


def begun(spec: Spec) -> tuple[problem.Problem, Run]:
    """A problem, and a run on it before its first step."""
    task = catalogue.load(spec.problem, seed=0, validation=VALIDATION if spec.phase == "search" else 0.0)
    plan = spec.plan(len(as_source(task.train)))
    with seeded(spec.seed):
        model = ChannelsLast(task.model()) if spec.problem == "fashion-p2" else task.model()
    return task, plan.start(model, task.losses, task.train, secret=spec.seed)


def measured(spec: Spec) -> dict[str, Any]:
    """One run from its first weights to its accuracy."""
    task, run = begun(spec)
    started = time.process_time()
    for _ in take_steps(run):
        pass
    seconds = time.process_time() - started
    searching, plan = spec.phase == "search", run.plan
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


def todo(problem: str, entries: list[str], phase: str) -> Spec | None:
    """The next run: first every search, then the winners seed by seed, so that all methods have as many."""
    setup = SETUPS[problem]
    done = [r["spec"] for r in known()]
    fixed: dict[str, Any] = {"problem": problem, "batch_size": setup.batch_size, "epsilon": setup.epsilon}
    for entry in entries:
        for lr in grid(problem, entry):
            spec = Spec(entry, "search", lr, 0, setup.search_epochs, **fixed)
            if asdict(spec) not in done:
                return spec
    for seed in range(setup.seeds if phase != "search" else 0):
        for entry in entries:
            lr = winner(problem, entry) if phase == "final" else below(problem, entry)
            spec = Spec(entry, phase, lr, seed, setup.final_epochs, **fixed)
            if asdict(spec) not in done:
                return spec
    return None


def rate(half_powers: int) -> float:
    """10^(k/2), to two digits."""
    return float(f"{10 ** (half_powers / 2):.2g}")


def grid(problem: str, entry: str) -> list[float]:
    """The learning rates to try: three, and beyond an end as long as the best of them lies there."""
    tried = list(SETUPS[problem].starts[entry])
    scores = searched(problem, entry)
    while len(tried) < MOST and all(rate(k) in scores for k in tried):
        best = max(tried, key=lambda k: scores[rate(k)])
        if best not in (min(tried), max(tried)):
            break
        step = tried[1] - tried[0]
        tried = sorted([*tried, best - step if best == min(tried) else best + step])
    return [rate(k) for k in tried]


def runs(problem: str, entry: str, phase: str) -> list[dict[str, Any]]:
    """What there is of one entry."""
    wanted = {"problem": problem, "entry": entry, "phase": phase}
    return [r for r in known() if wanted.items() <= r["spec"].items()]


def searched(problem: str, entry: str) -> dict[float, float]:
    """Validation accuracy by learning rate."""
    return {r["spec"]["lr"]: r["accuracy"] for r in runs(problem, entry, "search")}


def winner(problem: str, entry: str) -> float:
    """The learning rate with the best validation accuracy."""
    scores = searched(problem, entry)
    return max(scores, key=lambda lr: scores[lr])


def below(problem: str, entry: str) -> float:
    """The learning rate one step of the grid below the winner."""
    first, second, *_ = SETUPS[problem].starts[entry]
    return rate(round(2 * math.log10(winner(problem, entry))) - (second - first))


def table(problem: str, phase: str = "final") -> str:
    """Mean and spread of the test accuracy, as Markdown."""
    lines = [
        "| method | lr | ε proven | ε claimed | seeds | test accuracy, mean ± standard deviation | range |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in SETUPS[problem].starts:
        rows = runs(problem, entry, phase)
        if not rows:
            continue
        values = accuracies(problem, entry, phase)
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        said = {c["status"]: f"{c['epsilon']:.3g}" for c in rows[0]["claims"]}
        cells = (entry, f"{rows[0]['spec']['lr']:g}", said.get("proven", "–"), said.get("claimed", "–"), str(len(rows)))
        shown = f"{statistics.mean(values):.2f}{spread} %"
        lines.append(f"| {' | '.join(cells)} | {shown} | {min(values):.2f} – {max(values):.2f} |")
    return "\n".join(lines)


def searches(problem: str) -> str:
    """Validation accuracy of every learning rate that was tried, as Markdown."""
    lines = ["| method | validation accuracy by learning rate |", "|---|---|"]
    for entry in SETUPS[problem].starts:
        scores = sorted(searched(problem, entry).items())
        best = max((a for _, a in scores), default=0.0)
        cells = (f"{lr:g}: {'**' * (a == best)}{100 * a:.2f}{'**' * (a == best)}" for lr, a in scores)
        lines.append(f"| {entry} | {', '.join(cells)} |")
    return "\n".join(lines)


def picture(problem: str) -> str:
    """One line a method, one dot a seed and a bar at the mean, hollow at the learning rate below, as SVG."""
    found = {e: [accuracies(problem, e, phase) for phase in ("final", "below")] for e in SETUPS[problem].starts}
    rows = {entry: parts for entry, parts in found.items() if parts[0]}
    shown = [v for parts in rows.values() for values in parts for v in values if v >= OFF]
    low, high = 5 * math.floor(min(shown) / 5), 5 * math.ceil(max(shown) / 5)
    two = any(below for _, below in rows.values())
    left, width, row, top = 230, 470, 30, 30 if two else 8
    height = top + row * len(rows) + 34

    def x(percent: float) -> float:
        return round(left + width * (percent - low) / (high - low), 1)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 150} {height}" font-family="sans-serif" '
        'font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    if two:
        svg += [_dot(left, 15, True), f'<text x="{left + 10}" y="19">chosen learning rate</text>']
        svg += [_dot(left + 165, 15, False), f'<text x="{left + 175}" y="19">one step below it</text>']
    for percent in range(low, high + 1, 5):
        svg.append(f'<line x1="{x(percent)}" y1="{top}" x2="{x(percent)}" y2="{height - 26}" stroke="#ddd"/>')
        svg.append(f'<text x="{x(percent)}" y="{height - 9}" text-anchor="middle" fill="#555">{percent} %</text>')
    for place, (entry, parts) in enumerate(rows.items()):
        y = top + row * place + 16
        svg.append(f'<text x="{left - 12}" y="{y + 4}" text-anchor="end">{entry}</text>')
        for values, solid in zip(parts, (True, False), strict=True):
            if values and statistics.mean(values) < OFF:
                svg.append(f'<text x="{left + 4}" y="{y + 4}" fill="{INK}">◂ off the scale</text>' if solid else "")
            elif values:
                svg.append(_bar(x(statistics.mean(values)), y, solid))
                svg += [_dot(x(v), y, solid) for v in values]
        means = " / ".join(f"{statistics.mean(values):.1f}" for values in parts if values)
        svg.append(f'<text x="{left + width + 16}" y="{y + 4}" fill="#333">{means} %</text>')
    return "\n".join([*filter(None, svg), "</svg>\n"])


def accuracies(problem: str, entry: str, phase: str) -> list[float]:
    """Test accuracy of every seed, in per cent."""
    return [100 * r["accuracy"] for r in runs(problem, entry, phase)]


def _dot(x: float, y: float, solid: bool) -> str:
    look = f'fill="{INK}" fill-opacity="0.45"' if solid else f'fill="white" stroke="{INK}" stroke-opacity="0.7"'
    return f'<circle cx="{x}" cy="{y}" r="4" {look}/>'


def _bar(x: float, y: float, solid: bool) -> str:
    look = f'fill="{INK}"' if solid else f'fill="white" stroke="{INK}"'
    return f'<rect x="{x - 1.5}" y="{y - 9}" width="3" height="18" {look}/>'


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=list(SETUPS), default="fashion-p2")
    parser.add_argument("--only", help="entries, separated by commas")
    phases = ["search", "final", "below"]
    parser.add_argument("--phase", choices=phases, default="final", help="stop after the searches; or the rate below")
    parser.add_argument("--show", action="store_true", help="print the tables of what there is, and draw the picture")
    arguments = parser.parse_args()
    problem = arguments.problem
    if arguments.show:
        print(searches(problem), table(problem), table(problem, "below"), sep="\n\n")
        if any(runs(problem, entry, "final") for entry in SETUPS[problem].starts):
            RESULTS.with_name(f"optimizers-{problem}.svg").write_text(picture(problem))
        return
    torch.set_num_threads(1)
    entries = arguments.only.split(",") if arguments.only else list(SETUPS[problem].starts)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    while (spec := todo(problem, entries, arguments.phase)) is not None:
        row = measured(spec)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        seconds = f"({row['cpu_seconds']} s)"
        print(f"{spec.entry} {spec.phase} {spec.lr:g} seed {spec.seed}: {row['accuracy']:.4f} {seconds}")


if __name__ == "__main__":
    main()
