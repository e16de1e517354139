"""The sanitisation layer's figures, drawn from results/sanitize-figures.json, and what docs/sanitize.md says of them.

    hush reproduce 003-figure-6     # the runs, once; docs/pictures/sanitize/*.svg, docs/sanitize.md

Every ε here is the paper's claim, which an audit refuted: lines of ε are drawn as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from hush.report.svg import Axis, Cell, Dot, Series, draw_cells, draw_lines
from published import sanitisation
from published.pictures import arrange
from published.records import table, wrap
from sanitize_figures import compare_threshold

ROOT = Path(__file__).resolve().parents[1]
DATA, PICTURES = ROOT / "results" / "sanitize-figures.json", ROOT / "docs" / "pictures" / "sanitize"
PAGE = ROOT / "docs" / "sanitize.md"
BEGIN, END = "<!-- made by benchmarks/sanitize_pictures.py -->", "<!-- end of the figures -->"
EPOCH, ACCURACY = Axis("epoch"), Axis("test accuracy, %", percent=True)
KINDS = ("static", "adaptive")
BUDGETS = (("MNIST", 60_000), ("CIFAR-10, CNN", 50_000))
SIGMAS, DELTAS, BATCH = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0), (1e-6, 1e-5, 1e-4), 20  # σ and batch of the publication
THRESHOLDS = {1.0: 0.5, 5.0: 2.5}  # C, and the deviation that Table 1 prints
TABLE_SIGMA = 0.5
Panel = tuple[str, str]


def draw_all(found: dict[str, Any]) -> dict[str, str]:
    """Every picture: its file's name and its SVG."""
    return {
        "budget.svg": arrange([_draw_budget(found["status"], *one) for one in BUDGETS], 2),
        "threshold.svg": arrange([*_draw_norms(found), *_draw_accuracies(found)], 2),
        "stopping.svg": arrange([*_draw_convergence(found), *_draw_flags(found)], 2),
    }


def _draw_budget(status: str, title: str, examples: int) -> Panel:
    series = [
        Series(
            f"δ = {delta:g}",
            [Dot(s, sanitisation.claim(BATCH, examples=examples, sigma=s, delta=delta)) for s in SIGMAS],
            status,
        )
        for delta in DELTAS
    ]
    told = f"{title}: claimed ε, {sanitisation.EPOCHS} epochs, batch {BATCH}"
    return _line(told, Axis("σ"), Axis("ε", log=True), series)


def _draw_norms(found: dict[str, Any]) -> Iterator[Panel]:
    for place, (title, name) in enumerate((("norm of W", "‖W‖"), ("threshold C = t·‖W‖", "C"))):
        series = [
            Series(f"t = {share}", [Dot(epoch, pair[place]) for epoch, pair in enumerate(pairs, 1)])
            for share, pairs in found["norm_and_clip_by_share"].items()
        ]
        yield _line(title, EPOCH, Axis(name), series)


def _draw_accuracies(found: dict[str, Any]) -> Iterator[Panel]:
    by_width = [s for i, kind in enumerate(KINDS) for s in _rate(kind, found["accuracy_by_width"][kind], i)]
    yield _line("accuracy against width", Axis("n"), ACCURACY, by_width)
    by_share = list(_rate("adaptive", found["accuracy_by_share"], 1))
    yield _line("accuracy against t", Axis("t"), ACCURACY, by_share)


def _rate(kind: str, rows: Sequence[Sequence[float]], look: int) -> Iterator[Series]:
    """The best epoch as a line, the last one as points below it."""
    yield Series(f"{kind} C, best epoch", [Dot(x, best) for x, _, best in rows], look=look)
    yield Series(f"{kind} C, last epoch", [Dot(x, last) for x, last, _ in rows], line=False, look=look)


def _draw_convergence(found: dict[str, Any]) -> Iterator[Panel]:
    kinds = found["convergence"]
    whole = [Series(f"{kind} C", list(_list_points(kinds[kind]["accuracy"])), look=i) for i, kind in enumerate(kinds)]
    stops = [
        Series(f"{kind} C, stops", list(_list_stops(kinds[kind]["stops"])), "refuted", line=False, look=i)
        for i, kind in enumerate(kinds)
    ]
    shown = [*whole, *(one for one in stops if one.points)]
    yield _line("accuracy, and where a flag would stop", EPOCH, ACCURACY, shown)
    spreads = [Series(f"{kind} C", list(_list_points(kinds[kind]["spread"]))) for kind in kinds]
    yield _line("mean deviation of noisy outputs", EPOCH, Axis("standard deviation"), spreads)


def _list_points(values: Sequence[float]) -> Iterator[Dot]:
    return (Dot(epoch, value) for epoch, value in enumerate(values, 1))


def _list_stops(stops: Sequence[Sequence[Any]]) -> Iterator[Dot]:
    """Each epoch at which some flag is first raised, once."""
    for epoch, accuracy in sorted({(after, accuracy) for _, _, after, accuracy, _ in stops if after is not None}):
        said = [f"window {length}, limit {limit:g}" for length, limit, after, *_ in stops if after == epoch]
        yield Dot(epoch, accuracy, "; ".join(said))


def _draw_flags(found: dict[str, Any]) -> Iterator[Panel]:
    """For each window and limit which epochs are flagged: a row a pair."""
    for kind, flags in found["flags"].items():
        names = [f"{length}, {limit:g}" for length, limit, _ in flags]
        epochs = [str(epoch) if epoch % 5 == 0 else "" for epoch in range(1, len(flags[0][2]) + 1)]
        cells = [
            [Cell(float(raised), "", f"epoch {epoch}: {'flag' if raised else 'none'}") for epoch, raised in line]
            for line in (enumerate(row[2], 1) for row in flags)
        ]
        title = f"flags, {kind} C"
        yield title, draw_cells(title, EPOCH, Axis("window, limit"), epochs, names, cells, scale=(0.0, 1.0))


def _line(title: str, across: Axis, up: Axis, series: Sequence[Series]) -> Panel:
    return title, draw_lines(title, across, up, series)


def render(found: dict[str, Any]) -> list[str]:
    """What the page says of the figures."""
    base, status = found["spec"]["base"], found["status"]
    setting = (
        f"{base['examples']:,} images of MNIST, {base['epochs']} epochs, σ = {base['sigma']:g}, batches of "
        f"{base['batch_size']}, n = {base['width']} and C = {base['clip']:g} where nothing else is said, one seed. "
        f"Every ε is the publication's, which is {status}."
    )
    return [
        *(*wrap(setting.replace(",", " ", 1)), ""),
        *_show(
            "budget.svg", "The ε that is claimed against σ, for three δ: 100 epochs in batches of 20, as its ε imply"
        ),
        *_show("threshold.svg", "‖W‖ and C = t·‖W‖ over epochs; accuracy against the width n, and against t"),
        *(*wrap(_tell_lost(found)), ""),
        *_show("stopping.svg", "Accuracy, the deviation that is watched, and the epochs at which each flag is raised"),
        *(*wrap(_tell_stops(found)), ""),
        *(*wrap("What a threshold costs: the vector of Table 1 at a low and at a high C."), ""),
        *table(
            (
                *("C", "vector", "clipped to", "cut off (length)", "published deviation of the noise"),
                *(f"Cσ at σ = {TABLE_SIGMA:g}", f"Cσ√n at σ = {TABLE_SIGMA:g}"),
            ),
            (_list_threshold(clip, said) for clip, said in THRESHOLDS.items()),
        ),
    ]


def _list_threshold(clip: float, said: float) -> tuple[str, ...]:
    found = compare_threshold(clip, TABLE_SIGMA)
    shown = f"{found['vector']}", f"{[round(x, 1) for x in found['clipped']]}", f"{found['lost']:.2f}", f"{said:g}"
    return f"{clip:g}", *shown, f"{clip * TABLE_SIGMA:g}", f"{found['noise']:.2f}"


def _show(name: str, told: str) -> list[str]:
    return [f"![{told}](pictures/sanitize/{name})", "", f"*{told}.*", ""]


def _tell_lost(found: dict[str, Any]) -> str:
    """How far the accuracy falls between two epochs."""
    falls = [
        100 * (before - after)
        for kind in KINDS
        for before, after in pairwise(found["convergence"][kind]["accuracy"])
        if after < before
    ]
    clip, noise = found["spec"]["base"]["clip"], found["convergence"]["static"]["spread"][-1]
    return (
        f"From one epoch to the next the accuracy falls by up to {max(falls):.1f} points and comes back: a whole digit "
        f"is taken for another. The noise in each number (deviation {noise:.1f}) is {noise / clip:.0f} times C, so the "
        "head's outputs differ by hundredths, and a small change of it decides about a digit. The last epoch therefore "
        "says little here."
    )


def _tell_stops(found: dict[str, Any]) -> str:
    """What the flags with the paper's settings would have done."""
    told = []
    for kind, settings in (("static", (10, 1.2e-4)), ("adaptive", (5, 2e-5))):
        curve = found["convergence"][kind]
        after, accuracy = next(stop[2:4] for stop in curve["stops"] if tuple(stop[:2]) == settings)
        named = f"With {'a static' if kind == 'static' else 'an adaptive'} C the published flag ({settings[0]} epochs, "
        named += f"{settings[1]:g}) "
        told.append(
            f"{named}is never raised in {len(curve['accuracy'])} epochs."
            if after is None
            else f"{named}stops after {after} epochs at {100 * accuracy:.1f} %, the last epoch has "
            f"{100 * curve['accuracy'][-1]:.1f} % and the best {100 * max(curve['accuracy']):.1f} %."
        )
    return " ".join(told)


def rewrite(page: str, found: dict[str, Any]) -> str:
    """The page with what is made between its two marks."""
    before, rest = page.split(BEGIN)
    return "\n".join([before + BEGIN, "", *render(found), END]) + rest.split(END)[1]
