"""The sanitisation layer's figures, drawn from results/sanitize-figures.json for docs/sanitize.md.

    python benchmarks/sanitize_figures.py results/sanitize-figures.json --store DIR    # the runs, once
    python benchmarks/sanitize_pictures.py                                             # docs/pictures/sanitize/*.svg

Every ε here is the paper's claim, which an audit refuted: lines of ε are drawn as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hush.report.cells import Cell, draw_cells
from hush.report.drawing import Axis, Point, Series, draw_lines
from published.pictures import arrange

ROOT = Path(__file__).resolve().parents[1]
DATA, PICTURES = ROOT / "results" / "sanitize-figures.json", ROOT / "docs" / "pictures" / "sanitize"
EPOCH, ACCURACY = Axis("epoch"), Axis("test accuracy, %", percent=True)
Panel = tuple[str, str]


def draw_all(found: dict[str, Any]) -> dict[str, str]:
    """Every picture: its file's name and its SVG."""
    return {
        "budget.svg": arrange([_draw_budget(found)], 1),
        "threshold.svg": arrange([*_draw_norms(found), *_draw_accuracies(found)], 2),
        "stopping.svg": arrange([*_draw_convergence(found), *_draw_flags(found)], 2),
    }


def _draw_budget(found: dict[str, Any]) -> Panel:
    rows = sorted(found["epsilon_by_sigma_and_delta"], key=lambda row: row[1])
    series = [
        Series(f"δ = {delta:g}", [Point(sigma, epsilon) for sigma, _, epsilon in some], found["status"])
        for delta, some in groupby(rows, key=lambda row: row[1])
    ]
    return _line(f"claimed ε, {found['spec']['base']['epochs']} epochs", Axis("σ"), Axis("ε", log=True), series)


def _draw_norms(found: dict[str, Any]) -> Iterator[Panel]:
    for place, (title, name) in enumerate((("norm of W", "‖W‖"), ("threshold C = t·‖W‖", "C"))):
        series = [
            Series(f"t = {share}", [Point(epoch, pair[place]) for epoch, pair in enumerate(pairs, 1)])
            for share, pairs in found["norm_and_clip_by_share"].items()
        ]
        yield _line(title, EPOCH, Axis(name), series)


def _draw_accuracies(found: dict[str, Any]) -> Iterator[Panel]:
    by_width = [
        Series(f"{kind} C", [Point(*pair) for pair in pairs]) for kind, pairs in found["accuracy_by_width"].items()
    ]
    yield _line("accuracy against width", Axis("n"), ACCURACY, by_width)
    by_share = Series("adaptive C", [Point(*pair) for pair in found["accuracy_by_share"]])
    yield _line("accuracy against t", Axis("t"), ACCURACY, [by_share])


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


def _list_points(values: Sequence[float]) -> Iterator[Point]:
    return (Point(epoch, value) for epoch, value in enumerate(values, 1))


def _list_stops(stops: Sequence[Sequence[Any]]) -> Iterator[Point]:
    """Each epoch at which some flag is first raised, once."""
    for epoch, accuracy in sorted({(after, accuracy) for _, _, after, accuracy, _ in stops if after is not None}):
        said = [f"window {length}, limit {limit:g}" for length, limit, after, *_ in stops if after == epoch]
        yield Point(epoch, accuracy, "; ".join(said))


def _draw_flags(found: dict[str, Any]) -> Iterator[Panel]:
    """For each window and limit which epochs are flagged: a row a pair."""
    for kind, flags in found["flags"].items():
        names = [f"{length}, {limit:g}" for length, limit, _ in flags]
        epochs = [str(epoch) for epoch in range(1, len(flags[0][2]) + 1)]
        cells = [
            [Cell(float(raised), "", f"epoch {epoch}: {'flag' if raised else 'none'}") for epoch, raised in line]
            for line in (zip(epochs, row[2], strict=True) for row in flags)
        ]
        title = f"flags, {kind} C"
        yield title, draw_cells(title, EPOCH, Axis("window, limit"), epochs, names, cells, scale=(0.0, 1.0))


def _line(title: str, across: Axis, up: Axis, series: Sequence[Series]) -> Panel:
    return title, draw_lines(title, across, up, series)


if __name__ == "__main__":
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, svg in draw_all(json.loads(DATA.read_text())).items():
        (PICTURES / name).write_text(svg)
    print(PICTURES)
