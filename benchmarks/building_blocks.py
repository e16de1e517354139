"""Every figure of docs/building-blocks.md, from the records in results/ and a few runs of its own.

    python benchmarks/building_blocks.py measure  # results/building-blocks-norms.json: norms in a real run
    hush reproduce --render                       # docs/pictures/building-blocks/*.svg, and the other pages

Needs matplotlib in the version of constraints.txt (it comes with the extra `mnist5k`). ``--small`` takes the digits and
few steps, ``--out`` another folder.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from dp_accounting import dp_event
from scipy.stats import norm
from torch.func import functional_call, grad, vmap

from hush.accounting import accountant, calibration
from hush.accounting.gaussian import gaussian_delta
from hush.datasets import catalogue
from hush.matrix_factorization import Tree, optimal_single, prefix_sums
from hush.textbook.composition import basic, kairouz_oh_viswanath
from hush.textbook.gaussian import analytic_sigma, any_epsilon_sigma, classic_sigma, pei_sigma

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "hush",  # the same figure is the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
from matplotlib import pyplot as plt  # noqa: E402  (the backend comes first)

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PICTURES = ROOT / "results", ROOT / "docs" / "pictures" / "building-blocks"
NORMS = "building-blocks-norms.json"
QUANTILES = [1, 5, 10, 25, 50, 75, 90, 95, 99, 100]
EPSILON, DELTA = 1.0, 1e-6
INK = ["#1b6ca8", "#d1495b", "#2a9d5c", "#8d5a97", "#c77c02"]


def measure(out: Path, *, small: bool) -> Path:
    """Gradient norms of single examples over full-batch gradient descent, as in the spec building-blocks-full."""
    name, steps, marks = "mnist5k-full-twolayer", 5000, (0, 100, 500, 1000, 2000, 5000)
    if small:
        name, steps, marks = "digits-mlp", 20, (0, 20)
    problem = catalogue.load(name, seed=0)
    torch.manual_seed(0)
    model, (features, labels) = problem.model(), problem.train
    seen = []
    for step in range(steps + 1):
        if step in marks:
            norms = gradient_norms(model, problem.losses, features, labels)
            points = dict(zip(map(str, QUANTILES), np.percentile(norms, QUANTILES).tolist(), strict=True))
            counts, edges = np.histogram(np.log10(np.maximum(norms, 1e-6)), bins=60, range=(-4, 3))
            seen.append({"step": step, "percentiles": points, "counts": counts.tolist(), "edges": edges.tolist()})
        loss = problem.losses(model, (features, labels)).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    setting = {
        "problem": name,
        "steps": steps,
        "lr": 0.01,
        "batch_size": len(features),
        "seed": 0,
        "torch": torch.__version__,
    }
    path = out / NORMS
    path.write_text(json.dumps({"setting": setting, "seen": seen}, indent=1) + "\n")
    return path


def gradient_norms(model: torch.nn.Module, losses: Any, features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """‖∇ℓᵢ‖ of every example."""
    params = {name: value.detach() for name, value in model.named_parameters()}

    def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return losses(lambda batch: functional_call(model, params, (batch,)), (x[None], y[None])).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    found = []
    for part in torch.arange(len(features)).split(250):
        grads = each(params, features[part], labels[part])
        found.append(torch.sqrt(sum((g.flatten(1) ** 2).sum(1) for g in grads.values())))
    return torch.cat(found).numpy()


def draw(out: Path, results: Path, *, small: bool) -> list[Path]:
    """Every figure; those whose records are not there are left out."""
    out.mkdir(parents=True, exist_ok=True)
    made = [
        draw_loss(out),
        draw_calibrations(out),
        draw_steps(out, small=small),
        draw_matrices(out, 16 if small else 200),
    ]
    if (results / NORMS).exists():
        made.append(draw_norms(out, json.loads((results / NORMS).read_text())))
    tries = [run for name in TRIED if (results / name).exists() for run in _read(results / name)]
    if tries:
        made.append(draw_tries(out, tries))
    return made


def draw_loss(out: Path) -> Path:
    """Two neighbours' answers, and the distribution of the privacy loss."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
    mu = 1.0
    x = np.linspace(-4, 5, 400)
    for place, (mean, words) in enumerate([(0.0, "without Ada"), (mu, "with Ada")]):
        left.plot(x, norm.pdf(x, mean), color=INK[place], label=words)
    left.set(xlabel="answer, in standard deviations of the noise", ylabel="density", title="Two possible worlds")
    left.set_ylim(0, 0.5)
    left.legend(frameon=False, loc="upper left", ncols=2, fontsize=8)
    loss = np.linspace(-3, 4, 400)
    density = norm.pdf(loss, mu**2 / 2, mu)
    right.plot(loss, density, color=INK[1])
    epsilon = 2.0
    right.fill_between(loss, density, where=loss >= epsilon, color=INK[1], alpha=0.25, lw=0)
    right.axvline(epsilon, color="#555", lw=1, ls=":")
    excess = np.where(loss >= epsilon, 1 - np.exp(np.minimum(0, epsilon - loss)), 0) * density
    right.fill_between(loss, excess, color=INK[1], alpha=0.6, lw=0)
    beyond = 1 - norm.cdf(epsilon, mu**2 / 2, mu)
    counted = gaussian_delta(epsilon, mu)
    right.annotate(f"light and dark:\n{beyond:.3f} beyond ε = 2\ndark: what counts,\nδ = {counted:.3f}", (2.1, 0.16))
    right.set(
        xlabel="privacy loss of an answer, ln(p with / p without)", ylabel="density", title="What an answer gives away"
    )
    return _save(figure, out / "privacy-loss.svg")


def draw_calibrations(out: Path) -> Path:
    """σ/Δ that each calibration asks for, relative to the exact one."""
    figure, axes = plt.subplots(figsize=(5.4, 3))
    every = np.geomspace(0.1, 20, 80)
    exact = np.array([analytic_sigma(e, DELTA) for e in every])
    for place, (name, sigma) in enumerate(
        {"classic, proven": classic_sigma, "any ε": any_epsilon_sigma, "Pei": pei_sigma}.items()
    ):
        kept = every[every < 1] if sigma is classic_sigma else every
        axes.plot(kept, [sigma(e, DELTA) for e in kept] / exact[: len(kept)], color=INK[place], label=name)
    beyond = every[every >= 1]
    oldest = np.sqrt(2 * np.log(1.25 / DELTA)) / beyond / exact[every >= 1]
    axes.plot(beyond, oldest, color=INK[0], ls="--", label="classic, beyond its proof")
    axes.axhline(1.0, color="#555", lw=1, ls=":")
    axes.set(xscale="log", xlabel="ε (δ = 10⁻⁶)", ylabel="noise ÷ exact noise", title="How much noise a formula wastes")
    axes.set_ylim(0.8, 1.7)
    axes.legend(frameon=False, loc="upper right", ncols=2, fontsize=8)
    return _save(figure, out / "calibrations.svg")


def draw_steps(out: Path, *, small: bool) -> Path:
    """σ for T releases at (1, 10⁻⁶) by every accounting."""
    steps = np.unique(np.geomspace(1, 100 if small else 10_000, 4 if small else 17).astype(int))
    curves: dict[str, list[float]] = {
        "basic composition": [analytic_sigma(EPSILON / t, DELTA / t) for t in steps],
        "advanced composition": [_advanced(int(t)) for t in steps],
        "RDP": [_calibrated(int(t), 1.0, "rdp") for t in steps],
        "exact": [analytic_sigma(EPSILON, DELTA) * math.sqrt(t) for t in steps],
        "5 % sampled (sums 20 times smaller), PLD": [_calibrated(int(t), 0.05, "pld") for t in steps],
    }
    figure, axes = plt.subplots(figsize=(5.4, 3.4))
    for place, (name, values) in enumerate(curves.items()):
        axes.plot(steps, values, color=INK[place], label=name, marker="osd^v"[place], ms=3)
    axes.set(xscale="log", yscale="log", xlabel="releases T", ylabel="σ (noise ÷ sensitivity)")
    axes.set_title("The noise that (1, 10⁻⁶) asks for")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, out / "sigma-against-steps.svg")


def _advanced(steps: int) -> float:
    each = kairouz_oh_viswanath(EPSILON, DELTA, steps) if steps > 1 else basic(EPSILON, DELTA, 1)
    return analytic_sigma(each.epsilon, each.delta)


def _calibrated(steps: int, rate: float, accountant: accountant.Accountant) -> float:
    def event(sigma: float) -> dp_event.DpEvent:
        one: dp_event.DpEvent = dp_event.GaussianDpEvent(sigma)
        one = one if rate == 1 else dp_event.PoissonSampledDpEvent(rate, one)
        return dp_event.SelfComposedDpEvent(one, steps)

    return calibration.smallest_sigma(event, EPSILON, DELTA, adjacency="add-remove", accountant=accountant)


def draw_matrices(out: Path, steps: int) -> Path:
    """B, C and C⁻¹ of the one-pass optimum, what the inverse holds, and the noise that adds up in a weight."""
    best, tree = optimal_single(prefix_sums(steps)).structure, Tree(steps)
    inverse = best.noise_map()
    figure, ((left, middle_axes, right), (row, elements, sums)) = plt.subplots(2, 3, figsize=(11, 6))
    shown_matrices = ((left, np.cumsum(inverse, axis=0), "B = AC⁻¹"), (middle_axes, best.strategy(), "C"))
    for axes, values, title in (*shown_matrices, (right, inverse, "C⁻¹")):
        top = 0.1 * np.abs(values).max()
        shown = axes.imshow(values, cmap="RdBu_r", vmin=-top, vmax=top, interpolation="nearest")
        axes.set(title=f"{title}, colours cut at a tenth\nof its largest", xlabel="column", ylabel="row: a step")
        axes.title.set_fontsize(9)
        figure.colorbar(shown, ax=axes, shrink=0.8, extend="both")
    middle, back = steps // 2, np.arange(6)
    found = inverse[middle, middle - back]
    row.bar(back, found / found[0], color=[INK[0] if value > 0 else INK[1] for value in found])
    for place, value in zip(back, found / found[0], strict=True):
        row.annotate(f"{value:.3f}", (place, value), ha="center", va="bottom" if value > 0 else "top", fontsize=7)
    row.axhline(0.0, color="#555", lw=1)
    row.set(xlabel="steps back", ylabel="weight of that step's Z", ylim=(-0.65, 1.15))
    row.set_title(f"The noise of step {middle}: a row of C⁻¹, first entry 1", fontsize=9)
    elements.hist(inverse[np.tril_indices(steps)], bins=60, color=INK[0], log=True)
    elements.set(xlabel="element of C⁻¹ on and below the diagonal", ylabel="how many (log scale)")
    elements.set_title("Elements of C⁻¹", fontsize=9)
    at = np.arange(1, steps + 1)
    sums.plot(at, np.sqrt(at), color=INK[0], label="independent")
    sums.plot(at, tree.single() * np.sqrt(tree.prefix_variances()), color=INK[2], label="binary tree")
    sums.plot(at, best.single() * np.sqrt(best.prefix_variances()), color=INK[1], label="optimal for one pass")
    sums.set(xlabel="step", ylabel="standard deviation ÷ σ", ylim=(0, 1.35 * math.sqrt(steps)))
    sums.set_title("Noise in the sum so far", fontsize=9)
    sums.legend(frameon=False, loc="upper left", fontsize=8)
    return _save(figure, out / "correlated-noise.svg")


def draw_norms(out: Path, found: dict[str, Any]) -> Path:
    """The distribution of gradient norms as training goes on."""
    figure, axes = plt.subplots(figsize=(5.4, 3))
    for place, seen in enumerate(found["seen"]):
        middle = 0.5 * (np.array(seen["edges"][1:]) + np.array(seen["edges"][:-1]))
        share = np.array(seen["counts"]) / sum(seen["counts"])
        colour = plt.get_cmap("viridis")(place / max(1, len(found["seen"]) - 1) * 0.85)
        axes.plot(10**middle, 100 * share, color=colour, label=f"step {seen['step']}")
    axes.set(xscale="log", xlabel="gradient norm of one example", ylabel="share of examples, %")
    axes.set_title("Gradients differ by orders of magnitude")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, out / "gradient-norms.svg")


TRIES = {
    "1: advanced composition": ("dp-sgd", 321.65),
    "2: RDP, all data": ("dp-sgd", 64.09),
    "3: sampled batches": ("dp-sgd", 3.197),
    "4: one pass, correlated": ("dp-matrix-se", 4.226),
}
TRIED = ("building-blocks.jsonl", "building-blocks-curves.jsonl")  # the later one has more points of the same tries


def draw_tries(out: Path, records: list[dict[str, Any]]) -> Path:
    """Test accuracy of the four tries over their steps: mean over seeds."""
    figure, axes = plt.subplots(figsize=(5.4, 3.2))
    for place, (words, (method, sigma)) in enumerate(TRIES.items()):
        mine = [
            r
            for r in records
            if r["config"]["method"] == method and math.isclose(r["noise_multiplier"], sigma, rel_tol=1e-3)
        ]
        if not mine:
            continue
        longest = max(len(r["curve"]) for r in mine)
        mine = [r for r in mine if len(r["curve"]) == longest]
        per_point = mine[0]["steps"] / len(mine[0]["curve"])
        mean = [
            statistics.mean(100 * r["curve"][i]["test_accuracy"] for r in mine) for i in range(len(mine[0]["curve"]))
        ]
        at = [per_point * (i + 1) for i in range(len(mean))]
        axes.plot(at, mean, color=INK[place], label=words, marker="o" if len(at) < 20 else None, ms=3)
    axes.set(xlabel="step", ylabel="test accuracy, %", ylim=(0, 100), title="Four tries at ε = 1")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    return _save(figure, out / "four-tries.svg")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("--small", action="store_true", help="the digits and few steps")
    parser.add_argument("--out", type=Path, help="folder to write to")
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.out or RESULTS, small=given.small)
    else:
        draw(given.out or PICTURES, RESULTS, small=given.small)


if __name__ == "__main__":
    main()
