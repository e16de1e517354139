"""What a plan's noise looks like: C, C⁻¹ and the noise that adds up over steps, as the page of `hush noise show` and as
figures of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
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
from hush.report.charts import place_figure
from hush.report.page import MOST_READ, Chart, Page, Section, compare_lines, render_report
from hush.report.rows import Row
from hush.report.summary import Group
from hush.report.svg import Axis, Dot, Series, draw_lines, draw_matrix

Steps: TypeAlias = NDArray[np.int64]
CELLS = 32  # of a picture of a matrix, in either direction
POINTS = 240  # of a curve
STEP = ("step", Axis("step, number"))
ADDED = Axis("noise, in lr × clip / batch")

# Figures of a report. A plan is made again from what a record or a card says. It is shown only if its sensitivity is
# the recorded one, and only if its matrices are quickly made: a page is no place to solve a factorisation of thousands
# of steps.

MOST_STEPS = 512
SAME_NOISE_FIGURES = 1e-6
SIGNS = "Blue is added, red is taken away; small entries are drawn stronger than they are."


def draw_noise(groups: Sequence[Group]) -> tuple[list[Section], list[str]]:
    """The noise of each correlated method, once per problem, and notes on the methods that are not shown."""
    charts: list[Chart] = []
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
        for drawn in () if plan is None else draw_plan(plan):
            title = f"{drawn.title}: {group.method} on {group.problem}"
            charts.append(place_figure([group], title, drawn.svg, drawn.columns, drawn.rows))
    words = f"The noise that adds up in a weight over steps, C and C⁻¹. {SIGNS}"
    return [Section("noise", "Correlated noise", words, tuple(charts))] if charts else [], notes


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


def draw_plan(plan: Plan) -> Iterator[Chart]:
    """The accumulated noise and, if it is correlated, C and C⁻¹."""
    yield _draw_deviation(plan)
    if isinstance(plan.noise, Independent) or plan.steps > MOST_STEPS:
        return
    structure = plan.noise.structure
    yield from _draw_matrices(structure.strategy(), structure.noise_map())


def _draw_deviation(plan: Plan) -> Chart:
    """Standard deviation of the accumulated noise in a weight, compared with independent noise on the same batches."""
    at = _thinned(plan.steps)
    lines = {plan.method: plan.noise_std * np.sqrt(plan.noise.structure.prefix_variances()[at])}
    if not isinstance(plan.noise, Independent) and isinstance(plan.event(), dp_event.GaussianDpEvent):
        alone = replace(plan, noise=Independent(plan.steps), accept_claimed=True)
        lines["independent noise, same batches"] = alone.noise_std * np.sqrt(at + 1.0)
    return compare_lines("Noise that adds up in a weight", STEP, ADDED, *_list_lines(at + 1, lines))


def _list_lines(steps: Steps, lines: Mapping[str, Array]) -> tuple[list[int], dict[str, list[float]]]:
    return steps.tolist(), {name: [float(f"{y:.6g}") for y in values] for name, values in lines.items()}


def _draw_matrices(C: Array, inverse: Array, say: tuple[str, str] = ("", "")) -> Iterator[Chart]:
    square = C.shape[0] == C.shape[1]
    drawn = "normal vector" if square else "node of the tree"
    yield _draw_matrix("C, what is released with independent noise", C, "step", drawn, say[0])
    title = "C⁻¹, how noise is mixed" if square else "From nodes to noise"
    yield _draw_matrix(title, inverse, drawn, "step", say[1])


def _draw_matrix(title: str, matrix: Array, across: str, down: str, say: str) -> Chart:
    """Blocks by their entry of largest size."""
    high, wide = (-(-size // CELLS) for size in matrix.shape)
    rows, columns = range(1, matrix.shape[0] + 1, high), range(1, matrix.shape[1] + 1, wide)
    values = reduce_matrix(matrix, high, wide).tolist()
    svg = draw_matrix(title, Axis(f"{across}, number"), Axis(f"{down}, number"), columns, rows, values)
    data = tuple((row, *(float(f"{value:.6g}") for value in line)) for row, line in zip(rows, values, strict=True))
    return Chart(title, svg, (down, *map(str, columns)), data, say)


def reduce_matrix(matrix: Array, high: int, wide: int) -> Array:
    """The entry of largest absolute value in each block of ``size`` rows and columns."""
    padded = np.pad(matrix, [(0, -matrix.shape[0] % high), (0, -matrix.shape[1] % wide)])
    tiles = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    most, least = tiles.max(axis=(1, 3)), tiles.min(axis=(1, 3))
    found: Array = np.where(most >= -least, most, least)
    return found


def _thinned(steps: int, most: int = POINTS) -> Steps:
    return np.unique(np.linspace(0, steps - 1, min(steps, most)).astype(np.int64))


# The page of `hush noise show`.
#
# Independent noise at the same (ε, δ) is compared with it twice: on the same batches, and on Poisson batches with
# amplification (DP-SGD). Accumulated noise is A C⁻¹Z with A the prefix sums, in units of lr · clip / batch size.

CORNER = 2048  # most steps of a structure that is not kept as a matrix
PATH, PATH_POINTS = 20_000, 300  # most steps for which a sample path is drawn, and its points
BINS = 81


@dataclass(frozen=True)
class NoiseView:
    """Everything that the page shows."""

    plan: Plan
    independent: Plan  # on the same batches
    poisson: Plan  # on Poisson batches: DP-SGD
    strategy: Array  # C
    inverse: Array  # C⁻¹
    corner: int | None  # the number of steps that the matrices show; None for all
    steps: Steps  # of the curves
    accumulated: Array  # standard deviation, at those steps
    each: Array  # standard deviation of the noise of each of those steps
    path_steps: Steps
    path: Array
    independent_path: Array

    @property
    def entries(self) -> Array:
        """Those of C⁻¹ that are not structurally zero."""
        found: Array = self.inverse[self.inverse != 0.0]
        return found

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
    """The view of a plan's noise; independent noise for comparison is calibrated to the plan's ε."""
    if not plan.adds_noise:
        raise InvalidInputError(f"method '{plan.method}' adds no noise: there is nothing to show")
    structure, epsilon = plan.noise.structure, plan.guarantee().epsilon
    alone = replace(plan, noise=Independent(plan.steps), method="dp-sgd", accept_claimed=True)
    shown = structure if isinstance(structure, Dense) or plan.steps <= CORNER else structure.first(CORNER)
    at = _thinned(plan.steps)
    path_steps, path, other = _paths(plan, alone := alone.with_epsilon(epsilon))
    return NoiseView(
        plan=plan,
        independent=alone,
        poisson=_poisson(plan, epsilon),
        strategy=shown.strategy(),
        inverse=shown.noise_map(),
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


def _paths(plan: Plan, alone: Plan) -> tuple[Steps, Array, Array]:
    """One weight's accumulated noise, by the stream that training uses; the same normal numbers without correlation."""
    secret, like = Secret.from_seed(0, streams.NOISE_PREVIEW), torch.empty(1, dtype=torch.float64)
    count = plan.steps if plan.steps <= PATH else 0
    noise = plan.noise
    state, drawn = noise.init(like), np.zeros(count)
    for step in range(count):
        value, state = noise.draw(step, lambda j: normal(secret, streams.PREVIEW_ROWS, j, like), state)
        drawn[step] = float(value)
    plain = np.array([float(normal(secret, streams.PREVIEW_ROWS, step, like)) for step in range(count)])
    at = _thinned(count, PATH_POINTS) if count else np.zeros(0, dtype=np.int64)
    return at + 1, plan.noise_std * np.cumsum(drawn)[at], alone.noise_std * np.cumsum(plain)[at]


def render_page(view: NoiseView) -> str:
    """The whole page."""
    plan, errors = view.plan, view.errors
    steps = f"{plan.steps:,}".replace(",", "\u2009")
    facts = {
        "noise multiplier σ": plan.sigma,
        "sensitivity of C": plan.sensitivity,
        "expected noise in a weight": errors["expected_error"],
        "independent, same batches": errors["independent_error"],
        "DP-SGD, Poisson batches": errors["dp_sgd_error"],
    }
    notes = []
    if view.corner:
        notes.append(
            f"The matrices show the first {view.corner} of {plan.steps} steps, and the histogram counts their entries."
        )
    if max(view.strategy.shape + view.inverse.shape) > CELLS:
        notes.append("Large matrices are drawn in blocks: a cell shows the entry of largest size in its block.")
    page = Page(
        title=f"The noise of {plan.method} over {steps} steps",
        findings=[
            f"At the same ε, the noise that adds up in a weight is {_gain(errors)}.",
            plan.guarantee().sentence(),
        ],
        sections=[
            Section("noise", "The noise over the steps", "Each mark has a title with its numbers.", _draw_all(view))
        ],
        command="hush noise show",
        facts=[(name, f"{value:.4g}") for name, value in facts.items()],
        notes=notes,
    )
    return render_report(page)


def _gain(errors: Mapping[str, float]) -> str:
    own = errors["expected_error"]
    return f"{_times(errors['independent_error'] / own)} independent noise on the same batches, and " + (
        f"{_times(errors['dp_sgd_error'] / own)} DP-SGD, which gains from Poisson sampling"
    )


def _times(ratio: float) -> str:
    if 0.995 < ratio < 1.005:
        return "as much as"
    return f"{ratio:.3g} times less than" if ratio > 1 else f"{1 / ratio:.3g} times more than"


def _draw_all(view: NoiseView) -> tuple[Chart, ...]:
    """The figures of the page, in order."""
    tree = view.strategy.shape[0] != view.strategy.shape[1]
    node = " Each row is a node of the tree; it sums the steps under it." if tree else ""
    matrices = _draw_matrices(
        view.strategy,
        view.inverse,
        (
            "Privacy is that of C times the gradients plus independent noise: the larger a column, the more noise an "
            f"example needs.{node}",
            f"Row t says how the noise of step t is put together from independent normal vectors. {SIGNS} Red left of "
            "the diagonal is noise being taken back.",
        ),
    )
    return (_draw_accumulated(view), *matrices, _draw_histogram(view.entries, tree), _draw_each(view))


def _draw_accumulated(view: NoiseView) -> Chart:
    """The bands of one standard deviation, and one weight as it would go."""
    method, root = make_printable(view.plan.method), np.sqrt(view.steps.astype(np.float64))
    bands = {
        "independent noise on the same batches": view.independent.noise_std * root,
        "DP-SGD on Poisson batches": view.poisson.noise_std * root,
        method: view.accumulated,
    }
    series, every = [], -(-len(view.steps) // MOST_READ)
    for name, look, dash in zip(bands, (1, 7, 0), (2, 1, 0), strict=True):
        said = [(t, size, f"{name}, step {t}: ± {size:.4g}") for t, size in zip(view.steps, bands[name], strict=True)]
        points = [Dot(float(t), 0.0, "" if i % every else text, float(size)) for i, (t, size, text) in enumerate(said)]
        series.append(Series(name, points, dots=False, look=look, dash=dash, area=True))
    paths = {f"one weight, {method}": (view.path, 0), "one weight, independent noise": (view.independent_path, 1)}
    for name, (path, look) in paths.items() if len(view.path) else ():
        walk = [Dot(float(t), float(y)) for t, y in zip(view.path_steps, path, strict=True)]
        series.append(Series(name, walk, dots=False, look=look, width=0.9))
    title = "Noise that adds up in a weight"
    thin = " Thin: one weight as it would really go, both from the same random numbers." if len(view.path) else ""
    say = (
        "Training adds up every step's noise. Independent noise grows as √t; correlated noise takes back at later "
        f"steps what it added before. Shaded: one standard deviation.{thin} The lower it stays, the less the noise "
        "disturbs the model."
    )
    rows = tuple((int(t), *(float(f"{band[i]:.6g}") for band in bands.values())) for i, t in enumerate(view.steps))
    return Chart(title, draw_lines(title, STEP[1], ADDED, series), ("step", *bands), rows, say)


def _draw_histogram(entries: Array, tree: bool) -> Chart:
    counts, edges = np.histogram(entries, bins=BINS)
    title = f"How large the entries of {'that map' if tree else 'C⁻¹'} are"
    middles = (edges[1:] + edges[:-1]) / 2
    found = [(float(x), int(n)) for x, n in zip(middles, counts, strict=True) if n]
    points = [Dot(x, n, f"near {x:.3g}: {n} entries") for x, n in found]
    across, up = Axis("value of the entry"), Axis("number of entries (log scale)", log=True, holds=(0.8,))
    svg = draw_lines(title, across, up, [Series("", points, bar=float(edges[1] - edges[0]))])
    say = "All entries other than zero. Most are small and negative where noise cancels over many steps."
    return Chart(title, svg, ("entry", "number"), tuple(found), say)


def _draw_each(view: NoiseView) -> Chart:
    lines = {
        view.plan.method: view.each,
        "independent, same batches": np.full(len(view.steps), view.independent.noise_std),
        "DP-SGD, Poisson batches": np.full(len(view.steps), view.poisson.noise_std),
    }
    say = "Correlated noise may be larger at each step than independent noise, and still far smaller in the sum."
    up = Axis("standard deviation, in clips", holds=(0.0,))
    return compare_lines("Noise of every single step", STEP, up, *_list_lines(view.steps, lines), say=say)
