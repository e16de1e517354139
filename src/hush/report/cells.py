"""Grids of cells as SVG text: heatmaps and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hush.report.drawing import RIGHT, TOP, WIDTH, Axis, name_axes, shorten, text_of, wrap

TURN = 0.6  # of the values' range: above it text is light on dark, in the dark theme the other way round
LOWEST = 130.0  # height of a grid, so that there is room for the name beside it


@dataclass(frozen=True)
class Cell:
    """A cell of a grid: a value, or none and a reason that is hatched over it."""

    value: float | None
    label: str
    text: str
    best: bool = False
    diverged: bool = False


def draw_cells(
    title: str,
    across: Axis,
    down: Axis,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    scale: tuple[float, float] | None = None,
) -> str:
    """A grid of cells, coloured by value; the best has a frame and a star, what diverged is hatched.

    ``scale`` is what is palest and what is darkest, for grids that are compared; that of the values otherwise.
    """
    left = 22 + max(30, min(110, 6 * max((min(len(name), 16) for name in rows), default=4)))
    wide = (WIDTH - left - RIGHT) / max(1, len(columns))
    high = max(LOWEST / max(1, len(rows)), 16.0, min(34.0, 300 / max(1, len(rows))))
    bottom = TOP + high * len(rows)
    values = [cell.value for row in cells for cell in row if cell.value is not None]
    low, top = scale or ((min(values), max(values)) if values else (0.0, 1.0))
    parts = []
    for j, row in enumerate(cells):
        for i, cell in enumerate(row):
            share = 0.5 if cell.value is None or top == low else (cell.value - low) / (top - low)
            parts.append(_draw_cell(cell, left + i * wide, TOP + j * high, wide, high, share))
    crowded = max((len(name) for name in columns), default=0) * 6 > wide
    for i, name in enumerate(columns):
        x, y = left + (i + 0.5) * wide, bottom + 14
        place = f'x="{x:.1f}" y="{y:.1f}" class="middle"'
        if crowded:
            place = f'transform="translate({x:.1f} {y:.1f}) rotate(-35)" class="end"'
        parts.append(f"<text {place}>{text_of(shorten(name, 16))}</text>")
    for j, name in enumerate(rows):
        y = TOP + (j + 0.5) * high + 4
        parts.append(f'<text class="end" x="{left - 5}" y="{y:.1f}">{text_of(shorten(name, 16))}</text>')
    under = bottom + (50 if crowded else 34)
    parts.append(name_axes(across, down, left + wide * len(columns) / 2, under, (TOP + bottom) / 2))
    return wrap(title, under + 10, "".join(parts))


def _draw_cell(cell: Cell, x: float, y: float, wide: float, high: float, share: float) -> str:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    if cell.value is None:
        fill, ink = 'fill="var(--paper)"', "var(--ink)"
    else:
        fill = f'fill="var(--high)" fill-opacity="{_shade(share):.2f}"'
        ink = "var(--paper)" if share > TURN else "var(--ink)"
    parts = [f'<rect class="cell" {box} {fill}/>']
    if cell.diverged:
        lines = "".join(f"M{x + k:.1f} {y + high:.1f}l{high:.1f} -{high:.1f}" for k in _spaced(wide - high, 8))
        parts.append(f'<path class="hatch" d="{lines}"/>')
    if cell.best:
        parts.append(
            f'<rect class="best" x="{x + 2:.1f}" y="{y + 2:.1f}" width="{wide - 4:.1f}" height="{high - 4:.1f}"/>'
        )
    if wide > 19 and cell.label:
        shown = ("★ " if cell.best and wide > 40 else "") + cell.label
        parts.append(_draw_ground(shown, x + wide / 2, y + high / 2) if cell.diverged else "")
        at = f'x="{x + wide / 2:.1f}" y="{y + high / 2 + 3.5:.1f}"'
        parts.append(f'<text class="value" style="fill:{ink}" {at}>{text_of(shown)}</text>')
    return f'<g class="pt">{"".join(parts)}<title>{text_of(cell.text)}</title></g>'


def _shade(share: float) -> float:
    """How much of the strong colour: it grows with the share, and leaves out the middle, where no text reads well."""
    return 0.04 + 0.38 * share / TURN if share <= TURN else 0.76 + 0.24 * (share - TURN) / (1 - TURN)


def _draw_ground(shown: str, x: float, y: float) -> str:
    """Plain ground under a label, so that hatching does not run through it."""
    half = 3.2 * len(shown)
    return f'<rect x="{x - half:.1f}" y="{y - 7:.1f}" width="{2 * half:.1f}" height="14" fill="var(--paper)"/>'


def _spaced(length: float, step: float) -> list[float]:
    return [n * step for n in range(max(1, int(length // step) + 1))]
