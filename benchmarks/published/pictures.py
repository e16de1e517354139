"""Pictures of docs/reproduction.md from the records: curves over epochs, confusion matrices, learning rates."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Sequence

import hush
from hush.report.svg import WIDTH, Axis, Dot, Series, draw_cells, draw_lines, make_standalone, text_of
from hush.report.svg import Cell as Square
from published import mnist, sanitisation
from published.blocks import PLAIN, list_tries
from published.mnist import Row
from published.records import Record, epsilon, pick, read
from published.setups import MANY, METHODS, ONE_PASS, PROBLEMS, RULES
from published.sweeps import Cell, find_merit, find_rate, read_cells, read_setup

FLOOR = 0.8  # of MNIST's accuracies: what is below is before the first useful epoch, and would squeeze the rest
EPOCHS, ACCURACY = Axis("epoch"), Axis("test accuracy, %", percent=True)
MISTAKES = (0.0, 10.0)  # percent: the colours of all confusion matrices
LOSS = Axis("test loss")
PUBLISHED_LOOK = 7  # grey: of a published figure
ROOM = 7  # learning rates that an axis can name
HEADING = 24  # height of a panel's title
Panel = tuple[str, str]


def draw_all() -> dict[str, str]:
    """Every picture whose records are there: its file's name and its SVG."""
    once, many, rules = (read_setup(f"setup-{number}") for number in (2, 3, 1))
    found = {
        "curves-plain": (_curves_plain(), 2),
        "epsilon-dpsgd": (_epsilons(mnist.list_dpsgd(0.9)), 2),
        "epsilon-ftrl": (_epsilons(mnist.list_ftrl()), 2),
        "heatmap-setup-2": (_heatmaps(read_cells("setup-2")), 3),
        "curves-sanitize": (_curves_sanitize(), 2),
        "axes-sanitize": (_axes_sanitize(), 2),
        "curves-blocks": (_curves_blocks(), 2),
        "curves-dpsgd": (_curves_dpsgd(), 2),
        "confusion-dpsgd-mlp": (_confusions(mnist.list_dpsgd(0.9)[:3]), 3),
        "confusion-dpsgd-lenet": (_confusions(mnist.list_dpsgd(0.9)[3:]), 3),
        "curves-ftrl": (_curves_ftrl(), 2),
        "confusion-ftrl": (_confusions(mnist.list_ftrl()), 2),
        "curves-versus": (_curves_versus(), 2),
        "confusion-versus": (_confusions(_list_versus()), 3),
        "rates-setup-2": (_rates(once, ONE_PASS), 2),
        "rates-setup-3": (_rates(many, MANY), 2),
        "curves-setup-3": (_curves_chosen(many, MANY), 2),
        "rates-setup-1": (_rates(rules, RULES), 2),
        "curves-setup-1": (_curves_chosen(rules, RULES), 2),
    }
    return {f"{name}.svg": arrange(panels, columns) for name, (panels, columns) in found.items() if panels}


def arrange(panels: Sequence[Panel], columns: int) -> str:
    """Charts beside and below each other, each under its title, as one file."""
    columns = min(columns, len(panels))
    parts, top = [], 0.0
    for start in range(0, len(panels), columns):
        line = panels[start : start + columns]
        for place, (title, svg) in enumerate(line):
            x = place * WIDTH
            parts.append(f'<text class="name" x="{x + WIDTH / 2:.0f}" y="{top + 17:.0f}">{text_of(title)}</text>')
            parts.append(svg.replace("<svg ", f'<svg x="{x}" y="{top + HEADING:.0f}" ', 1))
        top += HEADING + max(_find_height(svg) for _, svg in line)
    size = f'viewBox="0 0 {columns * WIDTH} {top:.0f}" width="{columns * WIDTH}" height="{top:.0f}"'
    told = text_of("; ".join(title for title, _ in panels))
    inside = f'<g class="all">{"".join(parts)}</g>'
    return make_standalone(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{told}">{inside}</svg>\n'
    )


def _find_height(svg: str) -> float:
    found = re.search(r' height="(\d+)"', svg)
    return float(found[1]) if found else 0.0


def average_curves(runs: Sequence[Record], figure: str = "test_accuracy", floor: float = 0.0) -> list[Dot]:
    """Mean and deviation over seeds at every epoch that all of them have, from the first that reaches the floor."""
    points: list[Dot] = []
    for at in zip(*(run["curve"] for run in runs), strict=False):
        values = [point[figure] for point in at]
        mean = statistics.mean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        if points or mean >= floor:
            points.append(Dot(at[0]["epoch"], mean, spread=spread))
    return points


def _panel(title: str, series: Sequence[Series], across: Axis = EPOCHS, up: Axis = ACCURACY) -> list[Panel]:
    drawn = draw_lines(title, across, up, [one for one in series if one.points])
    return [(title, drawn)] if drawn else []


FIGURES = (("test_accuracy", ACCURACY, FLOOR), ("test_loss", LOSS, 0.0))


def _curves_dpsgd() -> list[Panel]:
    panels = []
    for place, (problem, model) in enumerate(mnist.PROBLEMS):
        plain, rows = pick(read("mnist-plain"), problem=problem), mnist.list_dpsgd(0.9)[3 * place : 3 * place + 3]
        for figure, up, floor in FIGURES:
            series = [Series("SGD", average_curves(plain, figure, floor), "none", look=7)]
            for row in rows:
                told = f"{row.noise}, ε = {epsilon(list(row.runs))}"
                series.append(Series(told, average_curves(row.runs, figure, floor)))
            panels += _panel(f"{model}, DP-SGD with momentum 0.9", series, up=up)
    return panels


def _curves_plain() -> list[Panel]:
    """Loss and accuracy over epochs without privacy, and what is taken for what."""
    rows = [row for row in mnist.list_plain() if row.runs]
    curves = [
        panel
        for row in rows
        for figure, up, floor in FIGURES
        for panel in _panel(row.model, [Series("SGD", average_curves(row.runs, figure, floor), "none")], up=up)
    ]
    return [*curves, *_confusions(rows)]


def _epsilons(rows: Sequence[Row]) -> list[Panel]:
    """ε after each epoch, and the accuracy over it."""
    panels = []
    for model in dict.fromkeys(row.model for row in rows):
        spent, reached = [], []
        for row in (row for row in rows if row.model == model and row.runs):
            known = {point["epoch"]: find_epsilon(row.runs[0], point) for point in row.runs[0]["curve"]}
            spent.append(Series(row.noise, [Dot(epoch, value) for epoch, value in known.items()]))
            both = [(known[dot.x], dot) for dot in average_curves(row.runs)]
            reached.append(Series(row.noise, [Dot(x, dot.y, spread=dot.spread) for x, dot in both]))
        panels += _panel(f"{model}: ε so far", spent, up=Axis("ε", log=True))
        panels += _panel(f"{model}: accuracy over ε", reached, Axis("ε", log=True))
    return panels


def find_epsilon(run: Record, point: Record) -> float:
    """ε at a point of a run of DP-SGD: as recorded, or by the same accountant where an older run left it out."""
    if point.get("epsilon") is not None:
        return float(point["epsilon"])
    config = run["config"]
    sizes = (run["examples"], config["batch_size"], run["steps"], run["noise_multiplier"], config["delta"])
    return _account(config["method"], *sizes).guarantee(round(point["epoch"] / config["epochs"] * run["steps"])).epsilon


@functools.cache
def _account(method: str, examples: int, batch: int, steps: int, sigma: float, delta: float) -> hush.Plan:
    sizes = {"examples": examples, "batch_size": batch, "steps": steps, "noise_multiplier": sigma, "delta": delta}
    return hush.make_plan(method, **sizes, arithmetic="fast")


def _heatmaps(cells: Sequence[Cell]) -> list[Panel]:
    """Test accuracy by learning rate and batch size."""
    panels = []
    for target in sorted({cell.epsilon for cell in cells}):
        for method in ONE_PASS:
            here = sorted((c for c in cells if (c.method, c.epsilon) == (method, target)), key=lambda c: c.batch)
            runs = [{find_rate(run): 100 * run["test_accuracy"] for run in cell.finished} for cell in here]
            rates = sorted({rate for found in runs for rate in found})
            squares = [[_square(found.get(rate), f"{rate:g}") for rate in rates] for found in runs]
            title = f"{METHODS[method]}, ε = {target:g}"
            names = [f"{rate:g}" for rate in rates]
            if rates:
                across, down = Axis("learning rate"), Axis("batch")
                panels.append((title, draw_cells(title, across, down, names, [f"{c.batch}" for c in here], squares)))
    return panels


def _square(value: float | None, rate: str) -> Square:
    return Square(value, "" if value is None else f"{value:.1f}", f"learning rate {rate}")


def _curves_sanitize() -> list[Panel]:
    """Accuracy over epochs of the sanitisation layer: both readings beside each other, with the published accuracy."""
    panels = []
    found = sanitisation.list_panels()
    for problem, noise, batch, settings in found:
        both = [runs for name, _, size, some in found if (name, size) == (problem, batch) for runs in some.values()]
        values = [dot.y for runs in both for dot in average_curves(runs)]
        series = [Series(name, average_curves(runs), "refuted") for name, runs in settings.items()]
        last = max(dot.x for one in series for dot in one.points)
        said = float(sanitisation.PUBLISHED[problem][0]) / 100
        ends = [Dot(min(dot.x for one in series for dot in one.points), said), Dot(last, said)]
        series.append(Series("published, static C, 100 epochs", ends, dots=False, look=PUBLISHED_LOOK))
        up = Axis(ACCURACY.title, percent=True, holds=(min(values), max(values)))
        title = sanitisation.PROBLEMS[problem].removesuffix(", quarter width")
        panels += _panel(f"{title}: {noise}, batch {batch}", series, up=up)
    return panels


def _axes_sanitize() -> list[Panel]:
    """Accuracy on CIFAR-10 with noise of Cσ: over epochs for several t, and against t and the width."""
    shares, widths = sanitisation.list_axes()
    curves = [Series(f"t = {share:g}", average_curves(runs), "refuted") for share, runs in shares.items()]
    shown = [*_panel("CIFAR-10, CNN: several t", curves, Axis("epoch", marks=(1.0, 2.0)))] if len(shares) > 1 else []
    for title, across, found in (("t", "t", shares), ("the width", "n", widths)):
        dots = [Dot(x, average_curves(runs)[-1].y) for x, runs in sorted(found.items())]
        log = Axis(f"{across} (log scale)", log=True, marks=tuple(sorted(found)))
        shown += (
            _panel(f"accuracy against {title}", [Series("after 2 epochs", dots, "refuted")], log)
            if len(dots) > 1
            else []
        )
    return shown


BEST = {"test_accuracy": ("largest", max), "test_loss": ("smallest", min)}


def _curves_blocks() -> list[Panel]:
    """Accuracy and loss of the four tries over their steps, and of training without privacy."""
    found = {name: runs for name, runs in list_tries() if runs}
    panels = []
    for figure, up in (("test_accuracy", ACCURACY), ("test_loss", LOSS)):
        series = [
            Series(name, _in_steps(runs, average_curves(runs, figure)), look=look)
            for look, (name, runs) in enumerate(found.items())
        ]
        panels += _panel("tries at ε = 1", [one for one in series if one.name != PLAIN], Axis("step"), up)
        plain = [Series("batches of 50", one.points, "none", look=0) for one in series if one.name == PLAIN]
        whole = pick(read("building-blocks-full"), method="sgd")
        if whole:
            plain.append(
                Series("all images in every step", _in_steps(whole, average_curves(whole, figure)), "none", look=1)
            )
        word, choose = BEST[figure]
        marks = [choose(one.points, key=lambda dot: dot.y) for one in plain]
        plain.append(Series(f"{word} value of each", [Dot(d.x, d.y) for d in marks], "ring", line=False, look=2))
        panels += _panel("no privacy", plain, Axis("step"), up)
    return panels


def _in_steps(runs: Sequence[Record], points: Sequence[Dot]) -> list[Dot]:
    last = points[-1].x if points else 1.0
    return [Dot(point.x / last * runs[0]["steps"], point.y, spread=point.spread) for point in points]


def _curves_ftrl() -> list[Panel]:
    rows = [row for row in mnist.list_ftrl() if row.runs]
    return [
        panel
        for figure, up, floor in FIGURES
        for panel in _panel(
            "LeNet, DP-FTRL",
            [
                Series(f"{row.noise}, ε = {epsilon(list(row.runs))}", average_curves(row.runs, figure, floor))
                for row in rows
            ],
            up=up,
        )
    ]


def _curves_versus() -> list[Panel]:
    panels = []
    for target in mnist.VERSUS:
        shown = {
            "DP-SGD, momentum 0.9": mnist.pick_versus(target, "dp-sgd", 0.9),
            "DP-SGD, no momentum": mnist.pick_versus(target, "dp-sgd", 0.0),
            **{f"DP-FTRL{kind.replace('`', '')}": pick_runs(target) for kind, pick_runs in mnist.TREES.items()},
        }
        curves = {name: average_curves(runs, floor=FLOOR) for name, runs in shown.items()}
        series = [Series(name, points, look=look) for look, (name, points) in enumerate(curves.items())]
        panels += _panel(f"LeNet at ε = {target:g}", series)
    return panels


def _list_versus() -> list[Row]:
    """Table IV's rows by method, so that each line of matrices is one."""
    return [*mnist.list_versus(0.9), *mnist.list_trees()]


def confuse(runs: Sequence[Record]) -> list[list[float]]:
    """The share in percent of each class that is taken for each, over all seeds."""
    summed = [
        [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*(r["confusion"] for r in runs), strict=True)
    ]
    return [[100 * count / sum(row) for count in row] for row in summed]


def _confusions(rows: Sequence[Row]) -> list[Panel]:
    return [(_name(row), _draw_confusion(_name(row), confuse(row.runs))) for row in rows if row.runs]


def _name(row: Row) -> str:
    return f"{row.model}, {row.noise.partition(':')[0]}"


def _draw_confusion(title: str, shares: list[list[float]]) -> str:
    names = [str(digit) for digit in range(len(shares))]
    cells = [
        [
            Square(None if i == j else share, _label(share), f"{names[i]} taken for {names[j]}: {share:.2f} %")
            for j, share in enumerate(line)
        ]
        for i, line in enumerate(shares)
    ]
    return draw_cells(title, Axis("taken for"), Axis("digit"), names, names, cells, scale=MISTAKES)


def _label(share: float) -> str:
    return f"{share:.1f}" if share >= 0.05 else ""


def _measure(cells: Sequence[Cell]) -> tuple[str, Axis]:
    accurate = find_merit([run for cell in cells for run in cell.finished]).figure == "accuracy"
    return ("test_accuracy", ACCURACY) if accurate else ("test_loss", LOSS)


def _split(swept: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """The cells that one panel compares: the same problem, ε and batch size."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(swept, key=lambda c: (c.problem, c.epsilon, c.batch)):
        told = f"{PROBLEMS[cell.problem]}, ε = {cell.epsilon:g}, batch {cell.batch}"
        groups.setdefault(told, []).append(cell)
    return [(told, cells) for told, cells in groups.items() if any(cell.finished for cell in cells)]


def _rates(swept: Sequence[Cell], methods: Sequence[str]) -> list[Panel]:
    """Every run of a sweep's first seed, over its learning rate."""
    panels = []
    for told, cells in _split(swept):
        figure, up = _measure(cells)
        series = [
            Series(
                METHODS[cell.method] + cell.tell_diverged(), _list_rates(cell, figure), look=methods.index(cell.method)
            )
            for cell in cells
        ]
        rates = sorted({float(trial.options["lr"]) for cell in cells for trial in cell.trials})
        gone = [METHODS[cell.method] for cell in cells if cell.diverged]
        told += f"; {', '.join(gone)} diverged at every rate" if gone else ""
        marks = tuple(rates) if len(rates) <= ROOM else ()
        panels += _panel(told, series, Axis("learning rate (log scale)", log=True, marks=marks), up)
    return panels


def _list_rates(cell: Cell, figure: str) -> list[Dot]:
    runs = sorted(cell.finished, key=find_rate)
    return [Dot(find_rate(run), run[figure]) for run in runs]


def _curves_chosen(swept: Sequence[Cell], methods: Sequence[str]) -> list[Panel]:
    """Over epochs, at each method's chosen rate."""
    panels = []
    for told, cells in _split(swept):
        figure, up = _measure(cells)
        series = [
            Series(METHODS[cell.method], average_curves(cell.seeds, figure), look=methods.index(cell.method))
            for cell in cells
            if cell.seeds
        ]
        panels += _panel(told, series, up=up)
    return panels
