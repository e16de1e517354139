"""The page of `hush noise show`: a plan's noise as pictures, in one file that works offline."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from dp_accounting import dp_event
from numpy.typing import NDArray

from hush._internal.text import make_printable
from hush.errors import HushError, InvalidInputError
from hush.matrix_factorization import Dense, Diagonal
from hush.matrix_factorization.sensitivity import Array
from hush.methods import make_plan
from hush.noise import Independent
from hush.plan import Plan
from hush.randomness import Secret, normal, streams
from hush.report.figures import Figure
from hush.report.page import FONT, render_figures
from hush.report.rows import Row
from hush.report.summary import Group
from hush.report.svg import Axis, Cell, Dot, Series, draw_cells, draw_lines

# C, C⁻¹ and the noise that adds up over steps, of correlated noise, as figures of a report.
#
# A plan is made again from what a record or a card says. It is shown only if its sensitivity is the recorded one, and
# only if its matrices are quickly made: a page is no place to solve a factorisation of thousands of steps.

CELLS = 32  # of a matrix, in either direction
MOST_STEPS = 512
POINTS = 60
SAME_NOISE_FIGURES = 1e-6


def draw_noise(groups: Sequence[Group]) -> tuple[list[Figure], list[str]]:
    """The noise of each correlated method, once for a problem, and what is to be said of those not shown."""
    figures: list[Figure] = []
    notes: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for group in groups:
        row = group.best
        if row is None or row.record.get("accountant") != "gdp" or group.status == "none":
            continue
        identity = (group.method, row.number("steps"), row.number("sensitivity"))
        if identity in seen:
            continue
        seen.add(identity)
        steps = row.number("steps") or 0
        if steps > MOST_STEPS:
            notes.append(
                f"the noise of {group.method} over {steps:.0f} steps on {group.problem} is not drawn here: "
                "`hush noise show` does"
            )
            continue
        plan = _make_again(row)
        if plan is not None:
            figures += [_place(group, *drawn) for drawn in view_plan(plan)]
    return figures, notes


def _place(group: Group, title: str, svg: str, columns: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> Figure:
    named = f"{title}: {group.method} on {group.problem}"
    return Figure("noise", named, group.problem, (group.method,), (group.epsilon,), svg, columns, rows)


def _make_again(row: Row) -> Plan | None:
    """The plan of a record, with its σ."""
    facts = {"examples": row.number("examples"), "batch_size": row.number("batch_size"), "steps": row.number("steps")}
    if None in facts.values():
        return None
    public: dict[str, Any] = {name: int(value or 0) for name, value in facts.items()}
    for name in ("epochs", "sampling", "sample_rate", "average"):
        if row.config.get(name) is not None:
            public[name] = row.config[name]
    if "epochs" in public:
        del public["steps"]
    return rebuild_plan(
        row.method, public, row.options, row.number("noise_multiplier"), row.number("delta"), row.number("sensitivity")
    )


def rebuild_plan(
    method: str,
    public: Mapping[str, Any],
    options: Mapping[str, Any],
    sigma: float | None,
    delta: float | None,
    sensitivity: float | None,
) -> Plan | None:
    """The plan, or None if it cannot be made or has another sensitivity. A third-party method is never called for a
    chart, because that would run any code that a file names."""
    if not sigma or not delta or not sensitivity or ":" in method:
        return None
    try:
        plan = make_plan(method, **public, delta=delta, noise_multiplier=sigma, accept_claimed=True, **options)
    except (HushError, TypeError, ValueError):
        return None
    return plan if abs(plan.sensitivity / sensitivity - 1) < SAME_NOISE_FIGURES else None


def view_plan(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...], tuple[tuple[Any, ...], ...]]]:
    """(title, picture, columns, data) of the noise that adds up and, where it is correlated, of C and C⁻¹."""
    yield _draw_accumulated(plan)
    if isinstance(plan.noise, Independent) or plan.steps > MOST_STEPS:
        return
    structure = plan.noise.structure
    C, inverse = structure.strategy(), structure.noise_map()
    square = C.shape[0] == C.shape[1]
    drawn = "normal vector" if square else "node of the tree"
    yield _draw_matrix("C, what is released with independent noise", C, "step", drawn)
    yield _draw_matrix("C⁻¹, how noise is mixed" if square else "From nodes to noise", inverse, drawn, "step")


def _draw_accumulated(plan: Plan) -> tuple[str, str, tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Standard deviation of the accumulated noise in a weight, compared with independent noise on the same batches."""
    at = np.unique(np.linspace(0, plan.steps - 1, min(plan.steps, POINTS)).astype(np.int64))
    own = plan.noise_std * np.sqrt(plan.noise.structure.prefix_variances()[at])
    lines = [(plan.method, own)]
    if not isinstance(plan.noise, Independent) and isinstance(plan.event(), dp_event.GaussianDpEvent):
        alone = replace(plan, noise=Independent(plan.steps), accept_claimed=True)
        lines.append(("independent noise, same batches", alone.noise_std * np.sqrt(at + 1.0)))
    title = "Noise that adds up in a weight"
    series = [
        Series(
            name,
            [Dot(float(t + 1), float(y), f"{name}, step {t + 1}: {y:.4g}") for t, y in zip(at, ys, strict=True)],
        )
        for name, ys in lines
    ]
    svg = draw_lines(title, Axis("step, number"), Axis("noise, in lr × clip / batch"), series)
    rows = tuple((int(t) + 1, *(float(ys[i]) for _, ys in lines)) for i, t in enumerate(at))
    return title, svg, ("step", *(name for name, _ in lines)), rows


def _draw_matrix(
    title: str, matrix: Array, across: str, down: str
) -> tuple[str, str, tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Blocks by their entry of largest size; the colour is the square root of its size, the sign is in the title."""
    high, wide = (-(-size // CELLS) for size in matrix.shape)
    cells, rows = [], []
    for top in range(0, matrix.shape[0], high):
        blocks = [matrix[top : top + high, left : left + wide] for left in range(0, matrix.shape[1], wide)]
        values = [float(block.flat[np.abs(block).argmax()]) for block in blocks]
        rows.append((top + 1, *values))
        cells.append(
            [
                Cell(abs(v) ** 0.5, "", f"{down} {top + 1}, {across} {i * wide + 1}: {v:.4g}")
                for i, v in enumerate(values)
            ]
        )
    columns = [str(left + 1) for left in range(0, matrix.shape[1], wide)]
    every = max(1, len(columns) // 4)
    names = [name if i % every == 0 else "" for i, name in enumerate(columns)]
    down_every = max(1, len(rows) // 8)
    sides = [str(row[0]) if i % down_every == 0 else "" for i, row in enumerate(rows)]
    svg = draw_cells(title, Axis(f"{across}, number"), Axis(f"{down}, number"), names, sides, cells)
    return title, svg, (down, *columns), tuple(rows)


# What there is to see of a plan's noise, as numbers: C, C⁻¹, and the noise that adds up in a weight over steps.
#
# Independent noise at the same (ε, δ) stands beside it twice: on the same batches, and on Poisson batches with
# amplification (DP-SGD). Accumulated noise is A C⁻¹Z with A the prefix sums, in units of lr · clip / batch size.

CELLS_NOISE_VIEW = 256  # of a picture of a matrix, in either direction
CORNER = 2048  # most steps of a structure that is not kept as a matrix
PATH = 20_000  # most steps for which a sample path is drawn
POINTS_NOISE_VIEW = 1500  # of a curve


@dataclass(frozen=True)
class Picture:
    """A matrix with at most 256 cells in either direction: each cell holds the entry of largest size in its block."""

    values: Array
    shape: tuple[int, int]
    block: tuple[int, int]


@dataclass(frozen=True)
class NoiseView:
    """Everything that the page shows."""

    plan: Plan
    independent: Plan  # on the same batches
    poisson: Plan  # on Poisson batches: DP-SGD
    strategy: Picture
    inverse: Picture
    entries: Array  # of C⁻¹ that are not structurally zero
    corner: int | None  # how many steps the matrices show, where it is not all
    steps: NDArray[np.int64]  # of the curves
    accumulated: Array  # standard deviation, at those steps
    each: Array  # standard deviation of the noise of each of those steps
    path_steps: NDArray[np.int64]
    path: Array
    independent_path: Array

    @property
    def errors(self) -> dict[str, float]:
        """Root mean square over all steps of the accumulated noise: of the method, and of independent noise."""
        root = Diagonal(self.plan.steps).rmse()
        return {
            "expected_error": self.plan.noise_std * self.plan.noise.structure.rmse(),
            "independent_error": self.independent.noise_std * root,
            "dp_sgd_error": self.poisson.noise_std * root,
        }


def view_noise(plan: Plan) -> NoiseView:
    """Look at a plan's noise; the plan's ε is what independent noise is calibrated to."""
    if not plan.adds_noise:
        raise InvalidInputError(f"method '{plan.method}' adds no noise: there is nothing to show")
    structure, epsilon = plan.noise.structure, plan.guarantee().epsilon
    alone = replace(plan, noise=Independent(plan.steps), method="dp-sgd", accept_claimed=True)
    shown = structure if isinstance(structure, Dense) or plan.steps <= CORNER else structure.first(CORNER)
    C, M = shown.strategy(), shown.noise_map()
    at = _thinned(plan.steps)
    path_steps, path, other = _paths(plan, alone := alone.with_epsilon(epsilon))
    return NoiseView(
        plan=plan,
        independent=alone,
        poisson=_poisson(plan, epsilon),
        strategy=_picture(C),
        inverse=_picture(M),
        entries=M[M != 0.0],
        corner=None if shown is structure else CORNER,
        steps=at + 1,
        accumulated=plan.noise_std * np.sqrt(structure.prefix_variances()[at]),
        each=plan.noise_std * structure.inverse_norms()[at],
        path_steps=path_steps,
        path=path,
        independent_path=other,
    )


def _poisson(plan: Plan, epsilon: float) -> Plan:
    """DP-SGD on Poisson batches of the same expected size, for as many steps."""
    examples = plan.sampler.examples
    public: dict[str, Any] = {"examples": examples, "batch_size": min(int(plan.divisor), examples), "steps": plan.steps}
    accountant = "auto" if plan.accountant == "gdp" else plan.accountant
    return make_plan("dp-sgd", **public, delta=plan.delta, epsilon=epsilon, accountant=accountant)


def _picture(matrix: Array) -> Picture:
    rows, columns = (-(-size // CELLS_NOISE_VIEW) for size in matrix.shape)
    padded = np.pad(matrix, [(0, -matrix.shape[0] % rows), (0, -matrix.shape[1] % columns)])
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    high, low = tiles.max(axis=(1, 3)), tiles.min(axis=(1, 3))
    return Picture(np.where(high >= -low, high, low), (matrix.shape[0], matrix.shape[1]), (rows, columns))


def _thinned(steps: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, steps - 1, min(steps, POINTS_NOISE_VIEW)).astype(np.int64))


def _paths(plan: Plan, alone: Plan) -> tuple[NDArray[np.int64], Array, Array]:
    """One weight's accumulated noise, by the stream that training uses; the same normal numbers without correlation."""
    secret, like = Secret.from_seed(0, streams.NOISE_PREVIEW), torch.empty(1, dtype=torch.float64)
    count = plan.steps if plan.steps <= PATH else 0
    noise = plan.noise
    state, drawn = noise.init(like), np.zeros(count)
    for step in range(count):
        value, state = noise.draw(step, lambda j: normal(secret, streams.PREVIEW_ROWS, j, like), state)
        drawn[step] = float(value)
    plain = np.array([float(normal(secret, streams.PREVIEW_ROWS, step, like)) for step in range(count)])
    at = _thinned(count) if count else np.zeros(0, dtype=np.int64)
    return at + 1, plan.noise_std * np.cumsum(drawn)[at], alone.noise_std * np.cumsum(plain)[at]


OWN, SAME, POISSON = "#1f4e79", "#c0504d", "#7f7f7f"


def render_page(view: NoiseView) -> str:
    """The whole page."""
    figures = {
        "strategy": _matrix(view.strategy, *_names(view, "C")),
        "inverse": _matrix(view.inverse, *_names(view, "inverse")),
        "histogram": _histogram(view.entries),
        "accumulated": _accumulated(view),
        "each": _each(view),
    }
    return render_figures(
        "noise_page.html",
        figures,
        view=view,
        plan=view.plan,
        method=make_printable(view.plan.method),
        guarantee=make_printable(view.plan.guarantee().sentence()),
        gain=_gain(view),
        tree=view.strategy.shape[0] != view.strategy.shape[1],
        reduced=max(view.strategy.block + view.inverse.block) > 1,
        **view.errors,
    )


def _shown(view: NoiseView) -> str:
    """The method's name inside a figure, whose texts may hold tags."""
    return html.escape(make_printable(view.plan.method))


def _gain(view: NoiseView) -> str:
    errors = view.errors
    own = errors["expected_error"]
    return f"{_times(errors['independent_error'] / own)} independent noise on the same batches, and " + (
        f"{_times(errors['dp_sgd_error'] / own)} DP-SGD, which gains from Poisson sampling"
    )


def _times(ratio: float) -> str:
    if 0.995 < ratio < 1.005:
        return "as much as"
    return f"{ratio:.3g} times less than" if ratio > 1 else f"{1 / ratio:.3g} times more than"


def _names(view: NoiseView, which: str) -> tuple[str, str]:
    drawn = "independent normal vector z" if view.strategy.shape[0] == view.strategy.shape[1] else "node of the tree"
    return ("step", drawn) if which == "C" else (drawn, "step")


def _matrix(picture: Picture, across: str, down: str) -> go.Figure:
    """Square roots of the entries' sizes as colours, so that small ones are seen; true values on hover and scale."""
    values = picture.values.astype(np.float32)
    top = float(np.abs(values).max()) or 1.0
    ticks = _ticks(float(values.min()), float(values.max()), top)
    heat = go.Heatmap(
        z=_root(values),
        x=np.arange(values.shape[1]) * picture.block[1] + 1,
        y=np.arange(values.shape[0]) * picture.block[0] + 1,
        customdata=values,
        hovertemplate=f"{across} %{{x}}, {down} %{{y}}<br>%{{customdata:.4g}}<extra></extra>",
        colorscale=[[0, "#8c2d2a"], [0.25, "#dd8a80"], [0.5, "#ffffff"], [0.75, "#7fa8d1"], [1, "#123a66"]],
        zmid=0.0,
        zmin=-(top**0.5),
        zmax=top**0.5,
        colorbar={"tickvals": [_root(t) for t in ticks], "ticktext": [f"{t:g}" for t in ticks], "thickness": 12},
    )
    figure = go.Figure(heat, _layout(across, down, height=430))
    figure.update_yaxes(autorange="reversed", constrain="domain", showgrid=False)
    figure.update_xaxes(constrain="domain", showgrid=False)
    if picture.shape[0] == picture.shape[1]:
        figure.update_yaxes(scaleanchor="x")
    return figure


def _root(value: Any) -> Any:
    return np.sign(value) * np.sqrt(np.abs(value))


def _ticks(low: float, high: float, top: float) -> list[float]:
    """Round values from zero outwards, as many as the scale has room for."""
    sizes = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    kept = [0.0]
    for size in sorted(sizes):
        if size <= top and size**0.5 - kept[-1] ** 0.5 > 0.12 * top**0.5:
            kept.append(size)
    return [t for t in [-t for t in reversed(kept[1:])] + kept if 1.02 * low <= t <= 1.02 * high]


def _histogram(entries: Array) -> go.Figure:
    counts, edges = np.histogram(entries, bins=81)
    bars = go.Bar(
        x=(edges[1:] + edges[:-1]) / 2,
        y=counts,
        width=np.diff(edges),
        marker={"color": OWN, "line": {"width": 0}},
        hovertemplate="near %{x:.3g}: %{y} entries<extra></extra>",
    )
    figure = go.Figure(bars, _layout("value of the entry", "number of entries, log scale", height=360))
    figure.update_yaxes(type="log", dtick=1)
    return figure


def _accumulated(view: NoiseView) -> go.Figure:
    steps = view.steps.astype(np.float64)
    same, sampled = view.independent.noise_std * np.sqrt(steps), view.poisson.noise_std * np.sqrt(steps)
    curves = [
        _band(steps, same, SAME),
        _band(steps, view.accumulated, OWN),
        _line(steps, same, SAME, "independent noise on the same batches: ± standard deviation"),
        _line(steps, -same, SAME),
        _line(steps, sampled, POISSON, "DP-SGD on Poisson batches: ± standard deviation", "dash"),
        _line(steps, -sampled, POISSON, dash="dash"),
        _line(steps, view.accumulated, OWN, f"{_shown(view)}: ± standard deviation"),
        _line(steps, -view.accumulated, OWN),
    ]
    if len(view.path):
        curves += [
            _line(view.path_steps, view.independent_path, SAME, "one weight, independent noise", width=1),
            _line(view.path_steps, view.path, OWN, f"one weight, {_shown(view)}", width=1),
        ]
    figure = go.Figure(curves, _layout("step", "accumulated noise, in lr × clip / batch size", height=480))
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.16, "yanchor": "top", "x": 0})
    return figure


def _each(view: NoiseView) -> go.Figure:
    steps = view.steps.astype(np.float64)
    own = _line(steps, view.each, OWN, view.plan.method)
    same = _line(steps, np.full(len(steps), view.independent.noise_std), SAME, "independent, same batches")
    sampled = _line(steps, np.full(len(steps), view.poisson.noise_std), POISSON, "DP-SGD, Poisson batches", "dash")
    figure = go.Figure([own, same, sampled], _layout("step", "standard deviation, in clips", height=360))
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0})
    return figure


def _line(x: Any, y: Any, color: str, name: str = "", dash: str = "solid", width: float = 2) -> go.Scatter:
    line = {"color": color, "dash": dash, "width": width}
    return go.Scatter(x=x, y=np.asarray(y, np.float32), line=line, name=name, showlegend=bool(name), mode="lines")


def _band(x: Array, size: Array, color: str) -> go.Scatter:
    both, values = np.concatenate([x, x[::-1]]), np.concatenate([size, -size[::-1]]).astype(np.float32)
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    fill = f"rgba({red},{green},{blue},0.10)"
    return go.Scatter(
        x=both, y=values, fill="toself", fillcolor=fill, line={"width": 0}, hoverinfo="skip", showlegend=False
    )


def _layout(across: str, down: str, *, height: int) -> dict[str, Any]:
    axis = {
        "gridcolor": "#e6e6e6",
        "zerolinecolor": "#bbb",
        "linecolor": "#999",
        "ticks": "outside",
        "automargin": True,
    }
    return {
        "font": FONT,
        "height": height,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "xaxis": {"title": {"text": across}, **axis},
        "yaxis": {"title": {"text": down}, **axis},
    }
