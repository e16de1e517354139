"""The table of docs/sanitize.md, from the records of spec `sanitize`: what each method protects, at which ε, how well.

    hush reproduce 003-table-2    # results/sanitize.jsonl, and docs/sanitize.md between its two marks

A run that stops early is the beginning of one that does not, so the rows with stopping are read off the epochs of the
same runs: the accuracy and the claimed ε of the epoch at which the paper's flag is first raised, of the last one where
it is never raised. So is the row of label-rr at its best epoch, which rows that are not trained on choose: its labels
are released once, and the number of epochs costs nothing. A test holds that the page is what the records give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hush.sanitize.early_stopping import Stop
from published.records import Record, is_fast, pick, read, spread, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sanitize.md"
BEGIN, END = "<!-- made by benchmarks/sanitize_table.py -->", "<!-- end of what is made -->"
HEAD = (
    *("data and network", "method", "protects", "ε", "accuracy, mean ± deviation (seeds)", "published"),
    "batch: here (published)",
)
IMPLIED, PRINTED = "20, by its ε", "250"  # of the CNN and of ResNet-18
PROTECTS = {"example": "features and labels", "features": "features", "labels": "labels"}
RATE = 1e-3  # of the layer's runs, where nothing else is said
Curve = list[dict[str, Any]]
CNN = {False: Stop(10, 1.2e-4), True: Stop(5, 2e-5, adaptive=True)}
RESNET = {False: Stop(10, 1.5e-5), True: Stop(5, 3e-5, adaptive=True)}
MNIST, CIFAR = "MNIST, funnel CNN, n = 50, 20 epochs", "CIFAR-10, funnel CNN, n = 50, 30 epochs"
PART = "10 000 images of CIFAR-10, ResNet-18 of width 16, 20 epochs; not comparable"


@dataclass(frozen=True)
class Row:
    """One line: which runs, and what was published about them."""

    data: str
    method: str
    protects: str  # of the method, for runs that are not there
    wanted: Mapping[str, Any] = field(hash=False)
    published: str = "–"
    stop: Callable[[Curve], int | None] | None = None

    def render(self, records: list[Record]) -> tuple[str, ...]:
        """Its cells."""
        runs = pick(records, **self.wanted)
        ended = runs if self.stop is None else [stop_early(run, self.stop) for run in runs]
        told = self.method + tell_epochs(ended)
        shown = self.data, told, self.tell_protected(runs), format_epsilon(ended), spread(ended), self.published
        batches = {f"{run['config']['batch_size']}" for run in runs if "batch_size" in run["config"]}
        theirs = "–" if self.published == "–" else PRINTED if self.data == PART else IMPLIED
        return *shown, f"{', '.join(sorted(batches)) or '–'} ({theirs})"

    def tell_protected(self, runs: list[Record]) -> str:
        """What is protected, as the runs say; that it is a claim only, where it is one."""
        held = all(run["status"] == "proven" or is_fast(run) for run in runs)
        proven = held if runs else self.wanted["method"] != "sanitize"
        protected = PROTECTS[runs[0]["protects"] if runs else self.protects]
        return protected if proven else f"nothing; {protected} by its claim"


def list_layer(problem: str, data: str, share: float, published: tuple[str, ...], stops: dict[bool, Stop]) -> list[Row]:
    """The published layer: static and adaptive C, each without and with stopping."""
    rows = []
    for adaptive, name in ((False, "static C"), (True, "adaptive C")):
        wanted = {"problem": problem, "method": "sanitize", "threshold_share": share if adaptive else None, "lr": RATE}
        for stop in (None, stops[adaptive]):
            said = published[2 * adaptive + (stop is not None)]
            told = f"`sanitize`, {name}" + (", with stopping" if stop else "")
            rows.append(Row(data, told, "features", wanted, said, stop and partial(find_flag, stop)))
    return rows


def list_rows() -> list[Row]:
    """All lines, in order."""
    at = {"problem": "mnist-funnel"}
    return [
        *list_layer("mnist-sanitized", MNIST, 0.05, ("98 at ε 1", "–", "–", "–"), CNN),
        Row(
            "MNIST, 50 random directions of scattering features",
            "`sanitize-once`",
            "features",
            {"method": "sanitize-once"},
        ),
        *list_responses(),
        Row(MNIST, "`dp-sgd`, batches of 1000, averaged weights", "example", {**at, "method": "dp-sgd"}),
        *list_layer("cifar10-sanitized", CIFAR, 0.05, ("60", "57.38", "61", "60.33"), CNN),
        Row(
            "CIFAR-10, funnel CNN, n = 50, 12 epochs",
            "`sanitize`, static C, learning rate 3e-4",
            "features",
            {"problem": "cifar10-sanitized", "method": "sanitize", "lr": 3e-4},
            "60",
        ),
        *list_layer("cifar10-part-resnet18-sanitized", PART, 0.02, ("79", "76.8", "79.5", "78.9"), RESNET),
    ]


def list_responses() -> list[Row]:
    """Randomised labels: after all epochs, and after the best."""
    wanted = {"problem": "mnist-funnel", "method": "label-rr"}
    whole = Row(MNIST, "`label-rr`", "labels", wanted)
    return [whole, replace(whole, method=f"{whole.method}, best epoch on held-out rows", stop=find_best)]


def find_flag(stop: Stop, curve: Curve) -> int | None:
    """After how many epochs the layer's flag is raised."""
    return stop.find([epoch["spread"] for epoch in curve])


def find_best(curve: Curve) -> int:
    """After how many epochs held-out rows are classified best."""
    held = [epoch["validation_accuracy"] for epoch in curve]
    return held.index(max(held)) + 1


def stop_early(run: Record, stop: Callable[[Curve], int | None]) -> Record:
    """The run as it was at the epoch where it is told to stop; whole where it never is."""
    after = stop(run["curve"])
    at = run["curve"][-1 if after is None else after - 1]
    return run | {"test_accuracy": at["test_accuracy"], "epsilon": at["epsilon"], "stopped_after": after}


def tell_epochs(ended: list[Record]) -> str:
    """After how many epochs each run stopped, if it did."""
    found = [run["stopped_after"] for run in ended if "stopped_after" in run]
    if not any(found):
        return ": never" if found else ""
    return f" (after {', '.join('all' if after is None else str(after) for after in found)} epochs)"


def format_epsilon(runs: list[Record]) -> str:
    """The largest ε, rounded up, and always how far it can be trusted."""
    if not runs:
        return "not run"
    statuses = sorted({"claimed (fast arithmetic)" if is_fast(run) else run["status"] for run in runs})
    found = max(math.inf if run["epsilon"] is None else run["epsilon"] for run in runs)
    shown = f"{math.ceil(found * 100 - 1e-9) / 100:.2f}" if math.isfinite(found) else "∞"
    return f"{shown}, {' or '.join(statuses)}" if statuses == ["proven"] else f"{shown}, **{' or '.join(statuses)}**"


def render() -> list[str]:
    """The table."""
    records = read("sanitize")
    return table(HEAD, [row.render(records) for row in list_rows()])


def rewrite(page: str) -> str:
    """The page with the table between its two marks."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return "\n".join([before + BEGIN, "", *render(), END]) + after
