"""C, C⁻¹ and the noise that adds up over steps, of correlated noise, as figures of a report.

A plan is made again from what a record or a card says. It is shown only if its sensitivity is the recorded one, and
only if its matrices are quickly made: a page is no place to solve a factorisation of thousands of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dp_accounting import dp_event

from hush.errors import HushError
from hush.matrices.series import Array
from hush.methods import make_plan
from hush.noise import Independent
from hush.plan import Plan
from hush.report.cells import Cell, draw_cells
from hush.report.drawing import Axis, Point, Series, draw_lines
from hush.report.store_figures import Figure
from hush.report.store_rows import Row
from hush.report.summary import Group

CELLS = 32  # of a matrix, in either direction
MOST_STEPS = 512
POINTS = 60
SAME = 1e-6


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
    """The plan, or None where it cannot be made or is another one by its sensitivity. A method of somebody else's is
    never called for a picture, as that would run whatever code a file names."""
    if not sigma or not delta or not sensitivity or ":" in method:
        return None
    try:
        plan = make_plan(method, **public, delta=delta, noise_multiplier=sigma, accept_claimed=True, **options)
    except (HushError, TypeError, ValueError):
        return None
    return plan if abs(plan.sensitivity / sensitivity - 1) < SAME else None


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
    """Standard deviation of the noise that has added up in a weight, beside independent noise on the same batches."""
    at = np.unique(np.linspace(0, plan.steps - 1, min(plan.steps, POINTS)).astype(np.int64))
    own = plan.noise_std * np.sqrt(plan.noise.structure.prefix_variances()[at])
    lines = [(plan.method, own)]
    if not isinstance(plan.noise, Independent) and isinstance(plan.event(), dp_event.GaussianDpEvent):
        alone = replace(plan, noise=Independent(plan.steps), accept_claimed=True)
        lines.append(("independent noise, same batches", alone.noise_std * np.sqrt(at + 1.0)))
    title = "Noise that adds up in a weight"
    series = [
        Series(
            name, [Point(float(t + 1), float(y), f"{name}, step {t + 1}: {y:.4g}") for t, y in zip(at, ys, strict=True)]
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
