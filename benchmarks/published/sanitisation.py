"""The sanitisation layer by two readings of its noise: Cσ√n for each of n numbers, as published, and Cσ."""

from __future__ import annotations

import functools
import math

import hush
from published.records import Record, list_percent, pick, read, table, tell_values, wrap

PROBLEMS = {
    "mnist-sanitized": "MNIST, CNN",
    "cifar10-sanitized": "CIFAR-10, CNN",
    "cifar10-part-resnet18-sanitized": "CIFAR-10 (10 000), ResNet-18, quarter width",
}
PUBLISHED = {  # accuracy with a static and an adaptive C, ε
    "mnist-sanitized": ("98", "–", "1"),
    "cifar10-sanitized": ("60", "61", "1.10"),
    "cifar10-part-resnet18-sanitized": ("79", "79.5", "4.46"),
}
SCALES = {"published": "Cσ√n", "per-number": "Cσ"}
WIDTHS = {"cifar10-part-resnet18-sanitized": 128}  # 50 elsewhere
EPOCHS, EXAMPLES = 100, 50_000  # of the publication
CLEAR = 10.0  # points: a gap that is taken to decide between the readings
HEAD = (
    *("data", "noise of a number", "batch", "C", "dropout", "learning rate", "epochs", "published (100 epochs)"),
    *("ours (seeds)", "best epoch", "ε published", "ε by its formula here", "… after 100 epochs", "CPU hours"),
)


def _get(run: Record, name: str, default: object) -> object:
    found = run["config"].get(name)
    return default if found is None else found


def describe(run: Record) -> tuple[str, ...]:
    """What tells the settings of a run from those of others."""
    share = run["config"]["options"].get("threshold_share")
    dropout = _get(run, "sanitize_dropout", 0.0)
    return (
        SCALES[str(_get(run, "sanitize_scale", "published"))],
        f"{run['config']['batch_size']}",
        f"{_get(run, 'sanitize_clip', 0.5)}" if share is None else f"{share:g}·‖W‖",
        f"{dropout} {_get(run, 'dropout_place', 'after')}" if dropout else "none",
        f"{run['config']['options']['lr']:g}",
        f"{run['config']['epochs']:g}",
    )


def name_setting(run: Record) -> str:
    """The same in a few words."""
    noise, batch, clip, dropout, rate, _ = describe(run)
    more = "" if dropout == "none" else f", dropout {dropout}"
    return f"{noise}, batch {batch}, C = {clip}, lr {rate}{more}"


def list_groups() -> dict[tuple[str, ...], list[Record]]:
    """The runs of every data set and setting, by both readings."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for run in pick([*read("sanitize"), *read("sanitize-readings")], method="sanitize"):
        groups.setdefault((run["config"]["problem"], *describe(run)), []).append(run)
    return {key: groups[key] for key in sorted(groups, key=lambda key: (list(PROBLEMS).index(key[0]), *key[1:3]))}


@functools.cache
def claim(width: int, batch: int, per_number: bool) -> float:
    """ε that the publication's formula gives at σ = 1 for its 100 epochs of 50 000 examples."""
    scale = {"sanitize_scale": "per-number", "sanitize_width": width} if per_number else {}
    sizes = {"examples": EXAMPLES, "batch_size": batch, "epochs": EPOCHS, "noise_multiplier": 1.0}
    return hush.make_plan("sanitize", **sizes, accept_claimed=True, **scale).guarantee().epsilon


def up(value: float) -> str:
    """Rounded up to two digits after the point."""
    return f"{math.ceil(100 * value - 1e-9) / 100:.2f}"


def render_readings() -> list[str]:
    """Both readings side by side."""
    rows = []
    for (problem, noise, batch, clip, *rest), runs in list_groups().items():
        said, adaptive, epsilon = PUBLISHED[problem]
        best = max(100 * point["test_accuracy"] for run in runs for point in run["curve"])
        whole = claim(WIDTHS.get(problem, 50), int(batch), noise == SCALES["per-number"])
        hours = sum(run["train_seconds"] for run in runs) / 3600
        rows.append(
            (
                *(PROBLEMS[problem], noise, batch, clip, *rest, adaptive if "W" in clip else said),
                *(tell_values(list_percent(runs)), f"{best:.2f}", epsilon),
                *(up(max(run["epsilon"] for run in runs)), up(whole), f"{hours:.2f}"),
            )
        )
    return [
        "## Two readings of the sanitisation layer",
        "",
        *wrap(tell_reading()),
        "",
        *wrap(
            "Every ε here is by the publication's formula, which is [no guarantee](sanitize.md#why-the-published-ε-is-"
            "no-guarantee): it takes a noise multiplier σ for a sensitivity of C√n, so noise of Cσ is σ/√n in it. The "
            "last epoch is that of the runs, the best one is chosen by the test images and flatters."
        ),
        "",
        *table(HEAD, rows),
    ]


def find_best(problem: str, scale: str) -> float | None:
    """The best accuracy of a last epoch by one reading; None before the first run."""
    found = [runs for key, runs in list_groups().items() if key[:2] == (problem, SCALES[scale])]
    return max((max(list_percent(runs)) for runs in found), default=None)


def tell_reading() -> str:
    """Which reading comes near what was published."""
    wide, narrow = (find_best("cifar10-sanitized", scale) for scale in SCALES)
    if wide is None or narrow is None:
        return "Both readings are not run yet."
    reached = "points to Cσ" if narrow - wide > CLEAR else "does not tell them apart"
    both = [find_best("cifar10-part-resnet18-sanitized", scale) for scale in SCALES]
    more = "" if None in both else f" The small ResNet-18 reaches {both[0]:.1f} and {both[1]:.1f} %."
    costs = claim(50, 20, per_number=True)
    return (
        f"On CIFAR-10 the CNN reaches at most {wide:.1f} % with noise of Cσ√n for each number and {narrow:.1f} % with "
        f"Cσ: the published 60 % {reached}.{more} By the publication's own formula Cσ would cost ε = {up(costs)} after "
        f"its 100 epochs in batches of 20, where Cσ√n costs {up(claim(50, 20, per_number=False))} and 1.10 is printed."
    )
