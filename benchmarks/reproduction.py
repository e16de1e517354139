"""Published results, run again: from stores to compact records, and from records to docs/reproduction.md.

    python benchmarks/reproduction.py collect STORE specs/mnist-dpsgd.toml   # results/mnist-dpsgd.jsonl
    python benchmarks/reproduction.py render                                 # docs/reproduction.md

A record is one run of a spec: its settings, its seed, the versions, what came out, the confusion matrix and the curve
over epochs; no weights. A test holds that the page is what the records give.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "reproduction.md"
KEPT = (
    *("key", "outcome", "reason", "config", "versions", "test_loss", "test_accuracy", "validation_loss"),
    *("validation_accuracy", "epsilon", "delta", "status", "protects", "adjacency", "accountant"),
    *(
        "noise_multiplier",
        "sensitivity",
        "noise_std",
        "steps",
        "steps_taken",
        "examples",
        "parameters",
        "train_seconds",
        "confusion",
    ),
)
CURVE = ("epoch", "test_accuracy", "test_loss", "epsilon", "spread")
Record = dict[str, Any]


def collect(store: Path, spec: Path) -> Path:
    """The finished runs of a spec in a store, compact, in the order of the spec."""
    from hush.bench.spec import read_spec

    lines = []
    for trial in read_spec(spec).trials:
        folder = store / "runs" / trial.key
        if not (folder / "record.json").exists():
            continue
        record = json.loads((folder / "record.json").read_text())
        curve = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        shown = [{k: e[k] for k in CURVE if k in e} for e in curve]
        lines.append(json.dumps({k: record[k] for k in KEPT if k in record} | {"curve": shown}))
    out = RESULTS / f"{spec.stem}.jsonl"
    RESULTS.mkdir(exist_ok=True)
    out.write_text("".join(f"{line}\n" for line in lines))
    return out


def read(name: str) -> list[Record]:
    """The records of one spec; none where it has not been run."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pick(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """The finished runs whose settings or options are these."""

    def value(record: Record, name: str) -> Any:
        config = record["config"]
        return config[name] if name in config else config["options"].get(name)

    return [r for r in records if r["outcome"] == "finished" and all(value(r, k) == v for k, v in wanted.items())]


def spread(records: list[Record], figure: str = "test_accuracy") -> str:
    """Mean ± standard deviation over seeds in percent, and how many."""
    values = [100 * r[figure] for r in records]
    if not values:
        return "not run"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation} ({len(values)})"


def epsilon(records: list[Record]) -> str:
    """ε by our accountant, rounded up, with its status where it is not proven."""
    if not records or records[0]["epsilon"] is None:
        return "none"
    found = max(r["epsilon"] for r in records)
    status = "" if records[0]["status"] == "proven" else f", {records[0]['status']}"
    return f"{math.ceil(found * 100 - 1e-9) / 100:.2f}{status}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def wrap(text: str) -> list[str]:
    """A paragraph in lines of a page's width."""
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


HEAD = ("model", "noise", "published", "ours, mean ± deviation (seeds)", "ε published", "ε here")
DPSGD = {  # noise multiplier: (ε in the publication, accuracy of the MLP, of LeNet)
    1.0: ("1.68", "92.22", "93.63"),
    0.75: ("3.33", "93.17", "95.38"),
    0.5: ("13.09", "94.13", "96.61"),
}


def render_plain() -> list[str]:
    """No privacy."""
    found = read("mnist-plain")
    rows = [
        (model, "none", f"about {said}", spread(pick(found, problem=problem)), "none", "none")
        for problem, model, said in (("mnist-mlp", "MLP", "98"), ("mnist-lenet", "LeNet", "99"))
    ]
    return ["## MNIST without privacy", "", *table(HEAD, rows)]


def render_dpsgd() -> list[str]:
    """Tables I and II."""
    found = read("mnist-dpsgd")
    rows = []
    for momentum in (0.9, 0.0):
        for problem, model, place in (("mnist-mlp", "MLP", 1), ("mnist-lenet", "LeNet", 2)):
            for sigma, said in DPSGD.items():
                runs = pick(found, problem=problem, noise_multiplier=sigma, momentum=momentum)
                named = f"{model}, momentum {momentum:g}"
                rows.append((named, f"σ = {sigma:g}", said[place], spread(runs), said[0], epsilon(runs)))
    return [
        "## DP-SGD on MNIST",
        "",
        *wrap(
            "Batch 256, 20 epochs, learning rate 0.05, clip 1.1, δ = 1e-5, a tenth held out. The publication names no "
            "momentum. Without it 4 220 steps of at most 0.05 · 1.1 are too short."
        ),
        "",
        *table(HEAD, rows),
    ]


FTRL = {  # node noise: (ε in the publication, accuracy)
    25: ("2.65", "90.18"),
    20: ("3.41", "91.27"),
    12.5: ("5.84", "93.63"),
    8: ("9.92", "95.21"),
    4: ("23.80", "96.17"),
}


def render_ftrl() -> list[str]:
    """Table III."""
    found = read("mnist-ftrl")
    rows = []
    for noise, said in FTRL.items():
        runs = pick(found, node_noise=noise)
        failed = [r for r in found if r["outcome"] == "failed" and r["config"].get("node_noise") == noise]
        ours = "refused" if failed and not runs else spread(runs)
        rows.append(("LeNet", f"node noise {noise:g}", said[1], ours, said[0], epsilon(runs)))
    return [
        "## DP-FTRL on MNIST",
        "",
        *wrap(
            "Batch 500, 10 epochs in the same order, one tree, learning rate 1, clip 1.1, δ = 1e-5, nothing held out. "
            "Node noise 4 is σ = 0.27, at which noise that ends at 9.42 deviations cannot deliver this δ: refused."
        ),
        "",
        *table(HEAD, rows),
    ]


VERSUS = {3.41: ("95.70", "91.27"), 5.71: ("96.02", "93.57"), 13.14: ("96.60", "95.55")}


def render_versus() -> list[str]:
    """Table IV."""
    found = read("mnist-versus")
    rows = []
    for target, said in VERSUS.items():
        for method, published in zip(("dp-sgd", "dp-ftrl"), said, strict=True):
            runs = pick(found, method=method, epsilon=target)
            rows.append(
                (f"LeNet, {method}", f"for ε = {target:g}", published, spread(runs), f"{target:g}", epsilon(runs))
            )
    return [
        "## DP-SGD against DP-FTRL at equal ε",
        "",
        *wrap(
            "Batch 500, clip 1.1, δ = 1e-5; DP-SGD 20 epochs at learning rate 0.1, DP-FTRL 10 epochs at 1. Here both "
            "are calibrated to the same proven ε."
        ),
        "",
        *table(HEAD, rows),
    ]


def render_blocks() -> list[str]:
    """Four tries at one small network."""
    found = read("building-blocks")
    tries = (
        ("no privacy", {"method": "sgd"}),
        ("1: advanced composition, 100 full steps", {"method": "dp-sgd", "batch_size": 5000, "steps": 100}),
        ("2: the same accounted by RDP, 200 full steps", {"method": "dp-sgd", "batch_size": 5000, "steps": 200}),
        ("3: Poisson batches of 250, 200 steps", {"method": "dp-sgd", "batch_size": 250}),
        ("4: one pass, correlated noise, batch 25", {"method": "dp-matrix-se"}),
    )
    rows = []
    for name, wanted in tries:
        runs = pick(found, **wanted)
        sigma = f"{runs[0]['noise_multiplier']:.4g}" if runs else ""
        rows.append((name, sigma, spread(runs), epsilon(runs)))
    return [
        "## Four tries at one small network",
        "",
        *wrap(
            "5 000 MNIST images, two layers, clip 30, learning rate 0.01, δ = 1e-6. The first try's noise is what "
            "advanced composition asks for at ε = 1; by exact accounting it is worth far less ε than that."
        ),
        "",
        *table(("try", "σ", "ours, mean ± deviation (seeds)", "ε here"), rows),
    ]


def render_tuned() -> list[str]:
    """The tries with clip and learning rate chosen for each, and other fourth tries."""
    found = read("building-blocks-tuned")
    tries = (
        ("2: all data, 200 steps", {"method": "dp-sgd", "batch_size": 4500}),
        ("3: Poisson batches of 225, 200 steps", {"method": "dp-sgd", "batch_size": 225}),
        ("4: one pass, correlated noise, batch 25", {"method": "dp-matrix-se", "batch_size": 25}),
        ("4 with batch 225, so 20 steps", {"method": "dp-matrix-se", "batch_size": 225}),
        ("4 with ten passes of batch 225", {"method": "dp-matrix-me"}),
        ("4 with banded noise on sampled batches of 225", {"method": "dp-bandmf"}),
    )
    rows = []
    for name, wanted in tries:
        best = max(pick(found, **wanted), key=lambda r: r["validation_accuracy"], default=None)
        if best is None:
            rows.append((name, "", "", "", "not run"))
            continue
        options = best["config"]["options"]
        reached = f"{100 * best['test_accuracy']:.2f}"
        rows.append((name, f"{best['noise_multiplier']:.4g}", f"{options['clip']:g}", f"{options['lr']:g}", reached))
    return [
        "## The same tries, each at its best clip and learning rate",
        "",
        *wrap(
            "4 500 of the images, 500 held out to choose among four clips and four learning rates each; ε = 1, "
            "δ = 1e-6, one seed. The choice itself is not counted in ε. The banded noise that is best here has one "
            "band: it is independent noise."
        ),
        "",
        *table(("try", "σ", "clip", "lr", "ours (1)"), rows),
    ]


def tell_best(best: Record | None) -> str:
    """The test accuracy of the run that was chosen, and its learning rate."""
    if best is None:
        return "not run"
    return f"{100 * best['test_accuracy']:.2f} (lr {best['config']['options']['lr']:g})"


def render_one_pass() -> list[str]:
    """Setup 2: the best learning rate by validation, for each method, batch and ε."""
    found = read("setup-2")
    rows = []
    for epsilon_asked in (1, 10):
        for batch in (32, 64):
            cells = []
            for method in ("dp-sgd", "dp-matrix-se", "dp-matrix-se-lambda"):
                runs = pick(found, method=method, batch_size=batch, epsilon=epsilon_asked)
                best = max(runs, key=lambda r: r["validation_accuracy"], default=None)
                cells.append(tell_best(best))
            rows.append((f"{epsilon_asked}", f"{batch}", *cells))
    return [
        "## One pass over Fashion-MNIST",
        "",
        "P2, one epoch, clip 1 normalised, δ = 1e-5, one seed, the learning rate chosen among five on held-out rows.",
        "",
        *table(("ε", "batch", "dp-sgd", "dp-matrix-se", "dp-matrix-se-lambda"), rows),
    ]


PARTS: tuple[tuple[str, Callable[[], list[str]]], ...] = (
    ("mnist-plain", render_plain),
    ("mnist-dpsgd", render_dpsgd),
    ("mnist-ftrl", render_ftrl),
    ("mnist-versus", render_versus),
    ("building-blocks", render_blocks),
    ("building-blocks-tuned", render_tuned),
    ("setup-2", render_one_pass),
)


def render() -> str:
    """The page. A table whose spec has not been run is left out."""
    lines = [
        "# Published results, run again",
        "",
        *wrap(
            "Every figure comes from the records in [results](../results/README.md): one line a run, with settings, "
            "seed and versions. `hush bench specs/NAME.toml --store STORE` makes the runs, and "
            "`benchmarks/reproduction.py` the records and this page. Accuracies are of the test set, in percent. Noise "
            "is from a fixed secret, as the data are public; seeds differ in initial weights, sampling and noise. ε "
            "here is proven, for one example's contribution becoming zero, by the accountant that "
            "[accounting](accounting.md) describes."
        ),
        "",
    ]
    for name, part in PARTS:
        if read(name):
            lines += part()
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("store", type=Path)
    collecting.add_argument("spec", type=Path)
    commands.add_parser("render")
    given = parser.parse_args()
    if given.command == "collect":
        print(collect(given.store, given.spec))
    else:
        PAGE.write_text(render())
        print(PAGE)


if __name__ == "__main__":
    main()
