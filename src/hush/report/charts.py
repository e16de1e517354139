"""The charts of a store's report, in the order of the page.

A chart is a function of the groups of runs that yields figures, with the id, heading and first words of its section
in the decorator `chart`. To add one, write it here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hush.bench.selection_cost import read_number
from hush.report.page import Chart, Section
from hush.report.rows import Row
from hush.report.summary import Group, Setting, format_mean, format_metric, group_settings, order_epsilon
from hush.report.svg import Axis, Cell, Dot, Series, draw_cells, draw_dots, draw_lines

MOST_POINTS = 60  # of a curve; more are thinned, the last always among them
SANITIZED = ("sanitize", "sanitize-once", "label-rr")
NAMES = {"batch_size": "batch size, examples", "epochs": "epochs, passes"}
MOST_CLASSES = 40
Draw = Callable[[Sequence[Group]], Iterator[Chart]]
CHARTS: list[tuple[str, str, str, Draw]] = []  # id, heading and first words of a section, and what draws it


def chart(id: str, title: str, say: str) -> Callable[[Draw], Draw]:
    """Give the figures of a function a section of the report, after those above it."""

    def register(draw: Draw) -> Draw:
        CHARTS.append((id, title, say, draw))
        return draw

    return register


def list_sections(groups: Sequence[Group]) -> list[Section]:
    """Every chart under its heading; one without figures is left out."""
    found = [
        Section(id, title, say, tuple(chart for chart in draw(groups) if chart.svg)) for id, title, say, draw in CHARTS
    ]
    return [section for section in found if section.charts]


def place_figure(
    groups: Sequence[Group], title: str, svg: str, columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> Chart:
    """A figure that filters find by its groups, which have one problem."""
    methods, epsilons = (tuple(dict.fromkeys(getattr(g, name) for g in groups)) for name in ("method", "epsilon"))
    problem = groups[0].problem if groups else ""
    return Chart(title, svg, columns, tuple(rows), "", problem, methods, epsilons)


def _look(groups: Sequence[Group]) -> dict[str, int]:
    """A colour and a marker for each method, the same in every figure."""
    return {method: number for number, method in enumerate(sorted({g.method for g in groups}))}


def _measure_axis(metric: str, part: str = "test") -> Axis:
    """The axis of a figure of merit."""
    return (
        Axis(f"{part} accuracy, %", percent=True)
        if metric == "accuracy"
        else Axis(f"{part} loss (log scale)", log=True)
    )


@chart(
    "utility",
    "Utility against ε",
    "Mean over seeds of the best setting; bars are one standard deviation. A dashed line with hollow marks is a "
    "claimed ε, a dotted one with crosses a refuted one: neither is a guarantee.",
)
def draw_utility(groups: Sequence[Group]) -> Iterator[Chart]:
    """Mean and spread of the best setting over ε, a picture for each problem."""
    look = _look(groups)
    for problem, some in _split(groups, lambda g: g.problem):
        drawn = [g for g in some if g.chosen is not None and g.chosen.mean is not None]
        numbers = [order_epsilon(g.epsilon)[0] for g in drawn if g.epsilon not in ("none", "unknown")]
        if not numbers:
            continue
        metric = drawn[0].metric
        series = [
            _utility_line(method, own, numbers, look[method]) for method, own in _split(drawn, lambda g: g.method)
        ]
        rows = tuple(
            (g.problem, g.method, g.epsilon, g.status, _mean(g), g.chosen.spread if g.chosen else None, _seeds(g))
            for g in drawn
        )
        title = f"Utility against ε on {problem}"
        svg = draw_lines(title, Axis("ε, no unit (log scale)", log=True), _measure_axis(metric), series)
        columns = ("problem", "method", "epsilon", "status", f"mean_test_{metric}", "spread", "seeds")
        yield place_figure(drawn, title, svg, columns, rows)


def _utility_line(method: str, groups: Sequence[Group], numbers: Sequence[float], look: int) -> Series:
    """A method over ε; one without ε is a level line."""
    if all(g.epsilon == "none" for g in groups):
        text = f"{method}, not private: {format_mean(groups[0])}"
        ends = dict.fromkeys((min(numbers), max(numbers)))
        return Series(method, [Dot(x, _mean(groups[0]), text) for x in ends], "none", method, look=look)
    points = [
        Dot(order_epsilon(g.epsilon)[0], _mean(g), _describe_group(g), (g.chosen.spread or 0.0) if g.chosen else 0.0)
        for g in groups
    ]
    return Series(method, points, groups[0].status, method, look=look)


@chart(
    "heat-batch",
    "Learning rate × batch size",
    "Mean over seeds of the best other settings in each cell. The frame with a star is the best cell by the part that "
    "chooses; hatched cells have diverged or failed; ! marks a cell some of whose runs did. For a loss its log₁₀ is "
    "shown, and darker is less.",
)
def draw_over_batches(groups: Sequence[Group]) -> Iterator[Chart]:
    """The metric over learning rate × batch size."""
    return _draw_heatmaps(groups, "batch_size")


@chart("heat-epochs", "Learning rate × epochs", "As above, over the number of epochs.")
def draw_over_epochs(groups: Sequence[Group]) -> Iterator[Chart]:
    """The metric over learning rate × epochs."""
    return _draw_heatmaps(groups, "epochs")


def _draw_heatmaps(groups: Sequence[Group], name: str) -> Iterator[Chart]:
    """The metric over learning rate × ``name``, a picture for each group that varies one of the two."""
    for group in groups:
        rates = sorted({value for row in group.rows if (value := row.number("lr")) is not None})
        others = sorted({value for row in group.rows if (value := row.number(name)) is not None})
        if len(rates) * len(others) >= 2:
            yield _draw_heatmap(group, name, rates, others)


def _draw_heatmap(group: Group, name: str, rates: Sequence[float], others: Sequence[float]) -> Chart:
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
    return place_figure([group], title, svg, named, data)


def _list_rows(group: Group, rate: float, name: str, other: float) -> list[Row]:
    return [row for row in group.rows if row.number("lr") == rate and row.number(name) == other]


def _find(group: Group, rate: float, name: str, other: float) -> Setting | None:
    """The best setting of a cell; None if it is empty."""
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
    dots = f"{at}: {format_metric(setting.mean, group.metric)}{said}{'; the best cell' if best else ''}; run {runs}"
    return Cell(value, label + ("!" if lost else ""), dots, best=best)


def _shade(value: float, metric: str) -> tuple[float, str]:
    """The value of the colour (larger is better) and the text of the cell."""
    if metric == "accuracy":
        return value, f"{100 * value:.1f}"
    power = math.log10(value) if value > 0 else -math.inf
    return (-power if math.isfinite(power) else 0.0), f"{power:.2f}"


def _make_data(group: Group, place: tuple[float, float], setting: Setting | None, name: str) -> tuple[Any, ...]:
    rows = _list_rows(group, place[0], name, place[1])
    outcomes, keys = " ".join(row.outcome for row in rows), " ".join(row.key for row in rows)
    return (*group.place, *place, None if setting is None else setting.mean, outcomes, keys)


@chart("curves", "Accuracy and loss over epochs", "On the test part, of the best run of each method.")
def draw_curves(groups: Sequence[Group]) -> Iterator[Chart]:
    """Test accuracy and loss over epochs, of the best run of each method."""
    for name in ("accuracy", "loss"):
        yield from _draw_over_epochs(groups, f"test_{name}", _measure_axis(name), f"Test {name} over epochs")


@chart(
    "spending",
    "ε over epochs",
    "What the best run of each method had spent after each epoch, where its record says so.",
)
def draw_spending(groups: Sequence[Group]) -> Iterator[Chart]:
    """ε over epochs, of the best run of each method."""
    yield from _draw_over_epochs(groups, "epsilon", Axis("ε so far, no unit"), "ε over epochs")


def _draw_over_epochs(groups: Sequence[Group], name: str, up: Axis, what: str) -> Iterator[Chart]:
    look = _look(groups)
    for (problem, epsilon), some in _split(groups, lambda g: (g.problem, g.epsilon)):
        series, rows = [], []
        for g in some:
            points = [] if g.best is None else _list_points(g.best, name)
            if g.best is None or not points:
                continue
            key = g.best.key
            dots = [Dot(x, y, f"{g.method}, epoch {x:g}: {_notify(y, up)}, run {key}") for x, y in points]
            series.append(Series(g.method, dots, g.status, g.method, look=look[g.method]))
            rows += [(problem, g.method, epsilon, g.status, key, x, y) for x, y in points]
        if series:
            title = f"{what}: {problem}, ε = {epsilon}"
            svg = draw_lines(title, Axis("epoch, passes over the data"), up, series)
            columns = (
                "problem",
                "method",
                "epsilon",
                "status",
                "key",
                "epoch",
                name.replace("epsilon", "epsilon_so_far"),
            )
            yield place_figure(some, title, svg, columns, rows)


def _list_points(row: Row, name: str) -> list[tuple[float, float]]:
    found = [(read_number(point.get("epoch")), read_number(point.get(name))) for point in row.curve]
    points = [(x, y) for x, y in found if x is not None and y is not None]
    every = -(-len(points) // MOST_POINTS) if points else 1
    return points[::-1][::every][::-1]


def read_confusion(record: Any, name: str = "confusion") -> list[list[float]] | None:
    """A square matrix of counts; None if the record does not have one."""
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


@chart(
    "confusion",
    "Confusion matrices",
    "Of the best run of each group: how many of each true class were taken for which. Darker is a larger share of the "
    "true class.",
)
def draw_confusions(groups: Sequence[Group]) -> Iterator[Chart]:
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
        yield place_figure([group], title, svg, columns, data)


@chart("seeds", "Seed by seed", "The test figure of every seed of the best setting; the bar is their mean.")
def draw_seeds(groups: Sequence[Group]) -> Iterator[Chart]:
    """The test figure of every seed of the best setting."""
    look = _look(groups)
    for (problem, epsilon), some in _split(groups, lambda g: (g.problem, g.epsilon)):
        drawn = [g for g in some if g.chosen is not None and len(g.chosen.rows) > 1]
        if not drawn:
            continue
        series, rows = [], []
        for g in drawn:
            found = [(row, row.score("test")) for row in g.chosen.rows] if g.chosen else []
            points = [
                Dot(y, 0.0, f"{g.method}, seed {row.config.get('seed')}: {format_metric(y, g.metric)}, run {row.key}")
                for row, y in found
                if y is not None
            ]
            series.append(Series(g.method, points, g.status, g.method, look=look[g.method]))
            rows += [(problem, g.method, epsilon, row.key, row.config.get("seed"), y) for row, y in found]
        title = f"Seed by seed: {problem}, ε = {epsilon}"
        svg = draw_dots(title, _measure_axis(drawn[0].metric), Axis("method"), series)
        columns = ("problem", "method", "epsilon", "key", "seed", f"test_{drawn[0].metric}")
        yield place_figure(drawn, title, svg, columns, rows)


@chart("settings", "Best learning rate and epochs by batch size", "The best setting at each batch size.")
def draw_best_settings(groups: Sequence[Group]) -> Iterator[Chart]:
    """The learning rate and the epochs of the best setting at each batch size."""
    look = _look(groups)
    for name, axis in (
        ("lr", Axis("best learning rate (log scale)", log=True)),
        ("epochs", Axis("best number of epochs")),
    ):
        for (problem, epsilon), some in _split(groups, lambda g: (g.problem, g.epsilon)):
            series, rows = [], []
            for g in some:
                points = _list_best(g, name)
                dots = [Dot(x, y, f"{g.method}, batch size {x:g}: {y:g} is best") for x, y in points]
                series += [Series(g.method, dots, g.status, g.method, look=look[g.method])] if len(points) > 1 else []
                rows += [(problem, g.method, epsilon, x, y) for x, y in points] if len(points) > 1 else []
            if series:
                title = f"{axis.title.partition(' (')[0].capitalize()} by batch size: {problem}, ε = {epsilon}"
                svg = draw_lines(title, Axis("batch size, examples (log scale)", log=True), axis, series)
                columns = ("problem", "method", "epsilon", "batch_size", f"best_{name}")
                yield place_figure(some, title, svg, columns, rows)


def _list_best(group: Group, name: str) -> list[tuple[float, float]]:
    sign = 1.0 if group.metric == "accuracy" else -1.0
    found = []
    for batch, rows in _split(group.rows, lambda row: row.number("batch_size")):
        settings = [s for s in group_settings(rows) if s.values and s.rows[0].number(name) is not None]
        if batch is not None and settings:
            best = max(settings, key=lambda s: s.score(group.chosen_by, sign))
            found.append((float(batch), best.rows[0].number(name) or 0.0))
    return sorted(found)


@chart(
    "times",
    "Training and inference time",
    "Seconds as recorded, on whatever machine a run was on; the bar is the mean.",
)
def draw_times(groups: Sequence[Group]) -> Iterator[Chart]:
    """Training time of every run, and inference time of one example."""
    kinds = (
        ("train_seconds", "Training time", "training time, s (log scale)"),
        ("inference_seconds", "Inference time", "inference, s an example (log scale)"),
    )
    look = _look(groups)
    for name, what, unit in kinds:
        for problem, some in _split(groups, lambda g: g.problem):
            series, rows = [], []
            for method, own in _split(some, lambda g: g.method):
                found = [(row, row.number(name)) for g in own for row in g.rows]
                points = [Dot(y, 0.0, f"{method}: {y:.3g} s, run {row.key}") for row, y in found if y]
                series.append(
                    Series(
                        method, points[:: -(-len(points) // MOST_POINTS) or 1], own[0].status, method, look=look[method]
                    )
                )
                rows += [(problem, method, row.epsilon_label, row.key, y) for row, y in found if y]
            title = f"{what} on {problem}"
            svg = draw_dots(title, Axis(unit, log=True), Axis("method"), series)
            columns = ("problem", "method", "epsilon", "key", name)
            yield place_figure(some, title, svg, columns, rows)


@chart(
    "sanitized",
    "Noisy activations and labels",
    "Methods that protect features or labels alone. What is claimed of sanitize was refuted by an audit.",
)
def draw_sanitized(groups: Sequence[Group]) -> Iterator[Chart]:
    """Methods that release noisy activations or labels: utility over the noise of the layer."""
    mine = [g for g in groups if g.method in SANITIZED and g.chosen is not None]
    for problem, some in _split(mine, lambda g: g.problem):
        series, rows = [], []
        for (method, share), own in _split(
            [row for g in some for row in g.rows], lambda r: (r.method, r.options.get("threshold_share"))
        ):
            name = f"{method}, threshold {share:g}" if isinstance(share, (int, float)) else method
            found = [(s.rows[0].number("noise_multiplier"), s) for s in group_settings(own)]
            drawn = sorted((x, s.mean, s.rows[0]) for x, s in found if x and s.mean is not None)
            points = [Dot(x, y, f"{name}, σ = {x:g}: {format_metric(y, r.metric)}, run {r.key}") for x, y, r in drawn]
            status = next(g.status for g in some if g.method == method)
            series.append(Series(name, points, status, method))
            rows += [(problem, method, share, status, x, r.number("epsilon"), y) for x, y, r in drawn]
        title = f"Noise of the layer against utility on {problem}"
        across = Axis("noise multiplier σ, no unit (log scale)", log=True)
        svg = draw_lines(title, across, _measure_axis(some[0].metric), series)
        columns = (
            "problem",
            "method",
            "threshold_share",
            "status",
            "noise_multiplier",
            "epsilon",
            f"mean_test_{some[0].metric}",
        )
        yield place_figure(some, title, svg, columns, rows)


def _split(items: Sequence[Any], by: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(by(item), []).append(item)
    return list(found.items())


def _mean(group: Group) -> float:
    value = None if group.chosen is None else group.chosen.mean
    return float("nan") if value is None else value


def _seeds(group: Group) -> int:
    return 0 if group.chosen is None else len(group.chosen.values)


def _describe_group(group: Group) -> str:
    return f"{group.method}, ε = {group.epsilon} ({group.status}): {format_mean(group)}"


def _notify(value: float, axis: Axis) -> str:
    return f"{100 * value:.2f} %" if axis.percent else f"{value:.4g}"
