"""The figures of a store that are grids of cells: heatmaps over two settings, and confusion matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hush.report.cells import Cell, draw_cells
from hush.report.drawing import Axis
from hush.report.store_figures import Figure
from hush.report.store_rows import Row, read_number
from hush.report.summary import Group, Setting, group_settings, tell_figure

SECTIONS = {"batch_size": "heat-batch", "epochs": "heat-epochs"}
NAMES = {"batch_size": "batch size, examples", "epochs": "epochs, passes"}
MOST_CLASSES = 40


def draw_heatmaps(groups: Sequence[Group], name: str) -> Iterator[Figure]:
    """The metric over learning rate × ``name``, a picture for each group that varies one of the two."""
    for group in groups:
        rates = sorted({value for row in group.rows if (value := row.number("lr")) is not None})
        others = sorted({value for row in group.rows if (value := row.number(name)) is not None})
        if len(rates) * len(others) < 2:
            continue
        yield _draw_heatmap(group, name, rates, others)


def _draw_heatmap(group: Group, name: str, rates: Sequence[float], others: Sequence[float]) -> Figure:
    found = {(rate, other): _find(group, rate, name, other) for rate in rates for other in others}
    scores = {place: _score(group, s) for place, s in found.items() if s is not None and s.values}
    best = max(scores, key=lambda place: scores[place]) if scores else None
    cells = [
        [_make_cell(group, rate, name, other, found[rate, other], (rate, other) == best) for rate in rates]
        for other in others
    ]
    measure = "accuracy, %" if group.metric == "accuracy" else "log₁₀ of the loss"
    title = f"Test {measure}: {group.method} on {group.problem}, ε = {group.epsilon}"
    columns, rows = [f"{rate:g}" for rate in rates], [f"{other:g}" for other in others]
    svg = draw_cells(title, Axis("learning rate, no unit"), Axis(NAMES[name]), columns, rows, cells)
    named = ("problem", "method", "epsilon", "lr", name, f"mean_test_{group.metric}", "outcomes", "keys")
    data = tuple(_make_data(group, place, found[place], name) for place in found)
    place = group.problem, (group.method,), (group.epsilon,)
    return Figure(SECTIONS[name], title, *place, svg, named, data)


def _list_rows(group: Group, rate: float, name: str, other: float) -> list[Row]:
    return [row for row in group.rows if row.number("lr") == rate and row.number(name) == other]


def _find(group: Group, rate: float, name: str, other: float) -> Setting | None:
    """Of the settings in this cell the best one; None where it is empty."""
    settings = group_settings(_list_rows(group, rate, name, other))
    return max(settings, key=lambda setting: _score(group, setting)) if settings else None


def _score(group: Group, setting: Setting) -> float:
    return setting.score(group.chosen_by, 1.0 if group.metric == "accuracy" else -1.0)


def _make_cell(group: Group, rate: float, name: str, other: float, setting: Setting | None, best: bool) -> Cell:
    at = f"learning rate {rate:g}, {name.replace('_', ' ')} {other:g}"
    if setting is None:
        return Cell(None, "", f"{at}: not run")
    runs = ", ".join(row.key for row in setting.rows)
    lost = [row.outcome for row in setting.rows if row.outcome != "finished"]
    said = f"; {len(lost)} of {len(setting.rows)} {lost[0]}" if lost else ""
    if setting.mean is None:
        word = "diverged" if "diverged" in lost else "failed"
        return Cell(None, word[:4], f"{at}: {word}; run {runs}", diverged=True)
    value, label = _shade(setting.mean, group.metric)
    told = f"{at}: {tell_figure(setting.mean, group.metric)}{said}{'; the best cell' if best else ''}; run {runs}"
    return Cell(value, label + ("!" if lost else ""), told, best=best)


def _shade(value: float, metric: str) -> tuple[float, str]:
    """The colour's value, where more is better, and what is written in the cell."""
    if metric == "accuracy":
        return value, f"{100 * value:.1f}"
    power = math.log10(value) if value > 0 else -math.inf
    return (-power if math.isfinite(power) else 0.0), f"{power:.2f}"


def _make_data(group: Group, place: tuple[float, float], setting: Setting | None, name: str) -> tuple[Any, ...]:
    rows = _list_rows(group, place[0], name, place[1])
    outcomes, keys = " ".join(row.outcome for row in rows), " ".join(row.key for row in rows)
    return (*group.place, *place, None if setting is None else setting.mean, outcomes, keys)


def read_confusion(record: Any, name: str = "confusion") -> list[list[float]] | None:
    """A square matrix of counts; None where the record holds none."""
    found = record.get(name)
    if not isinstance(found, list) or not 2 <= len(found) <= MOST_CLASSES:
        return None
    rows = [[read_number(value) for value in row] if isinstance(row, list) else [] for row in found]
    if any(len(row) != len(rows) or None in row for row in rows):
        return None
    return [[value or 0.0 for value in row] for row in rows]


def draw_confusion(title: str, counts: Sequence[Sequence[float]], classes: Sequence[str]) -> str:
    """Counts of true × predicted classes, coloured by their share of the true class."""
    cells = []
    for name, row in zip(classes, counts, strict=True):
        total = sum(row) or 1.0
        cells.append(
            [
                Cell(
                    count / total,
                    f"{count:g}" if count and abs(count) < 1e4 else "",
                    f"'{name}' taken for '{other}': {count:g}, {100 * count / total:.1f} %",
                )
                for other, count in zip(classes, row, strict=True)
            ]
        )
    return draw_cells(title, Axis("predicted class"), Axis("true class"), classes, classes, cells)


def draw_confusions(groups: Sequence[Group]) -> Iterator[Figure]:
    """The confusion matrix of each group's best run."""
    for group in groups:
        counts = None if group.best is None else read_confusion(group.best.record)
        if group.best is None or counts is None:
            continue
        given = group.best.record.get("class_names")
        fits = isinstance(given, list) and len(given) == len(counts)
        classes = [str(name) for name in given] if fits and given is not None else [str(i) for i in range(len(counts))]
        title = f"Confusion: {group.method} on {group.problem}, ε = {group.epsilon}"
        svg = draw_confusion(title, counts, classes)
        data = tuple((group.best.key, name, *row) for name, row in zip(classes, counts, strict=True))
        columns = ("key", "true class", *(f"predicted {name}" for name in classes))
        yield Figure("confusion", title, group.problem, (group.method,), (group.epsilon,), svg, columns, data)
