"""Charts as SVG text: lines with error bars, bands and bars, dots in rows, grids of cells, matrices. Every point has
a title that describes it.

All texts are escaped here. Colours are CSS variables, so that one chart serves both themes; a chart in its own file
gets those of the light one. Kinds of ε differ in dash, marker and label, not in colour alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from markupsafe import escape

from hush._internal.text import make_printable

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44  # margins of the plot in its picture
COLOURS = 8
CROWDED = 14  # points of a line, from which on its markers are small
MOST_NAMED = 46  # characters of a name in a legend
PAIRED = 19  # characters of a name, up to which a legend has two columns
MOST_MARKS = 7  # of an axis; more are thinned
DASHES = ("", "6 4", "2 4", "9 3 2 3")

LIGHT = {
    "ink": "#1d2329",
    "soft": "#59636e",
    "paper": "#ffffff",
    "line": "#d3d8de",
    "high": "#1f4e79",
    **{
        f"s{n}": colour
        for n, colour in enumerate(
            ("#1f5fa8", "#b3401f", "#2e7d4f", "#7b4fa6", "#8a6100", "#0f7c86", "#a8326e", "#55606b")
        )
    },
}  # the page's variables in its light theme
BASE = """
text{fill:var(--ink);font:11px system-ui,-apple-system,'Segoe UI',Arial,sans-serif}
.name{font-size:12px;text-anchor:middle}.grid{stroke:var(--line);stroke-width:.7}
.axis{stroke:var(--soft);fill:none}.spot{fill:none;pointer-events:all}.curve{fill:none;stroke-width:2}.mark{stroke-width:1.8}
.cell{stroke:var(--paper);stroke-width:1}.hatch{stroke:var(--soft);stroke-width:1.4}
.best{fill:none;stroke:var(--ink);stroke-width:2.5}.entries{stroke-width:1;shape-rendering:crispEdges}
.value{font-size:10px;text-anchor:middle;pointer-events:none}.end{text-anchor:end}.middle{text-anchor:middle}
"""


@dataclass(frozen=True)
class Axis:
    """The title with its unit, and the scale; ``percent`` shows shares in %, ``marks`` are ticks in the place of round
    values (of an axis across), and ``holds`` are values that always lie on the axis."""

    title: str
    log: bool = False
    percent: bool = False
    marks: tuple[float, ...] = ()
    holds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dot:
    """A point, half the length of its error bar, and its title."""

    x: float
    y: float
    text: str = ""
    spread: float = 0.0


@dataclass(frozen=True)
class Series:
    """A line; ``status`` decides dash and marker, filters select it by ``method``. Without ``dots`` the points
    are seen under the pointer only."""

    name: str
    points: Sequence[Dot]
    status: str = "proven"
    method: str = ""
    dots: bool = True
    line: bool = True
    look: int | None = None  # its colour and marker; its place among the series by default
    dash: int | None = None  # of `DASHES`; by its status by default
    width: float = 2.0
    area: bool = False  # y ± spread is shaded between two lines, in place of error bars on one
    bar: float = 0.0  # the width of a bar up to each point, in units of x, in place of a line

    @property
    def dashes(self) -> str:
        """The attribute of its line, empty for a solid one."""
        dash = {"claimed": 1, "refuted": 2}.get(self.status, 0) if self.dash is None else self.dash % len(DASHES)
        return f' stroke-dasharray="{DASHES[dash]}"' if dash else ""


@dataclass(frozen=True)
class Scale:
    """From values to places in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    ticks: tuple[float, ...] = field(default=())

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def text_of(value: object) -> str:
    """Text that is safe inside SVG and HTML."""
    return str(escape(make_printable(value)))


def draw_lines(title: str, across: Axis, up: Axis, series: Sequence[Series]) -> str:
    """Lines with markers and error bars over two axes, and a legend below."""
    drawable = [_keep_drawable(one, across, up, place) for place, one in enumerate(series)]
    points = [point for one in drawable for point in one.points]
    if not points:
        return ""
    sides = [p.x + side * one.bar / 2 for one in drawable for p in one.points for side in (-1, 1)]
    x = _make_scale([*across.marks, *across.holds, *sides], LEFT, WIDTH - RIGHT, across.log, most=5)
    x = replace(x, ticks=across.marks[:: -(-len(across.marks) // MOST_MARKS) or 1] or x.ticks)
    ends = [p.y + side * p.spread for p in points for side in (-1, 0, 1)] + list(up.holds)
    y = _make_scale([e for e in ends if not up.log or e > 0], HEIGHT - BOTTOM, TOP, up.log, most=6)
    parts = [_draw_frame(x, y, across, up)]
    parts += [_draw_series(one.look or 0, one, x, y) for one in drawable]
    legend, extra = _draw_legend([(one.look or 0, one) for one in drawable if one.name])
    return wrap(title, HEIGHT + extra, "".join(parts) + legend)


def draw_dots(title: str, across: Axis, down: Axis, series: Sequence[Series]) -> str:
    """A row of dots for each series, at the points' x; a bar marks their mean."""
    kept = [_keep_drawable(one, across, Axis(""), place) for place, one in enumerate(series)]
    drawable = [one for one in kept if one.points]
    if not drawable:
        return ""
    left = 22 + max(40, min(120, 6 * max(min(len(one.name), 19) for one in drawable)))
    bottom = TOP + 24 * len(drawable)
    x = _make_scale([p.x for one in drawable for p in one.points], left, WIDTH - RIGHT, across.log, most=5)
    grid = "".join(f"M{x.at(t):.1f} {TOP}V{bottom}" for t in x.ticks)
    parts = [
        f'<path class="grid" fill="none" d="{grid}"/><path class="axis" d="M{left} {TOP}V{bottom}H{WIDTH - RIGHT}"/>'
    ]
    parts += [
        f'<text class="middle" x="{x.at(t):.1f}" y="{bottom + 15}">{_describe_tick(t, across)}</text>' for t in x.ticks
    ]
    for number, one in enumerate(drawable):
        y = TOP + 24 * number + 12
        mean = x.at(sum(p.x for p in one.points) / len(one.points))
        dots = "".join(
            f'<g class="pt">{_draw_marker(one.look or 0, one.status, x.at(p.x), y)}<title>{text_of(p.text)}</title></g>'
            for p in one.points
        )
        attributes = f' data-method="{text_of(one.method)}"' if one.method else ""
        parts.append(
            f'<g{attributes}><path class="axis" stroke-width="2" d="M{mean:.1f} {y - 9}v18"/>{dots}'
            f'<text class="end" x="{left - 5}" y="{y + 4}">{text_of(shorten(one.name, 19))}</text></g>'
        )
    parts.append(_name_axes(across, down, (left + WIDTH - RIGHT) / 2, bottom + 34, (TOP + bottom) / 2))
    return wrap(title, bottom + 44, "".join(parts))


def make_standalone(svg: str) -> str:
    """The chart as a standalone file, with the colours of the light theme."""
    ground = f'<style>{BASE}</style><rect width="100%" height="100%" fill="{LIGHT["paper"]}"/><g '
    return re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], svg.replace("<g ", ground, 1))


def _name_axes(across: Axis, down: Axis, middle: float, bottom: float, height: float) -> str:
    """The titles of both axes: centred at ``middle``, at the ``bottom``, and centred at a ``height``."""
    return (
        f'<text class="name x-title" x="{middle:.1f}" y="{bottom:.1f}">{text_of(across.title)}</text>'
        f'<text class="name y-title" transform="translate(13 {height:.1f}) rotate(-90)">{text_of(down.title)}</text>'
    )


def wrap(title: str, height: float, inside: str) -> str:
    """An SVG element around the content."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{text_of(title)}"><g class="all">{inside}</g></svg>'
    )


def _keep_drawable(one: Series, across: Axis, up: Axis, place: int) -> Series:
    def fits(point: Dot) -> bool:
        finite = math.isfinite(point.x) and math.isfinite(point.y)
        return finite and (point.x > 0 or not across.log) and (point.y > 0 or not up.log)

    look = place if one.look is None else one.look
    return replace(one, points=[p for p in one.points if fits(p)], look=look)


def _make_scale(values: Sequence[float], start: float, end: float, log: bool, most: int) -> Scale:
    low, high = min(values), max(values)
    if log:
        low, high = (low / 1.5, high * 1.5) if low == high else (low / 1.08, high * 1.08)
        return Scale(low, high, start, end, True, _log_ticks(low, high, most))
    room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    step = _round_step((high - low + 2 * room) / most)
    ticks = tuple(step * n for n in range(math.ceil((low - room) / step), math.floor((high + room) / step) + 1))
    return Scale(low - room, high + room, start, end, False, ticks)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * 0.999)


@lru_cache(maxsize=256)
def _log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Powers of ten, and 2 and 5 times these if there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) <= most:
            return inside
    every = -(-len(inside) // most)
    return inside[::every]


def _describe_tick(value: float, axis: Axis) -> str:
    if axis.percent:
        return f"{100 * value:.4g}"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def _draw_frame(x: Scale, y: Scale, across: Axis, up: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    grid = "".join(f"M{x.at(t):.1f} {TOP}V{bottom}" for t in x.ticks)
    grid += "".join(f"M{LEFT} {y.at(t):.1f}H{right}" for t in y.ticks)
    words = [
        f'<text class="middle" x="{x.at(t):.1f}" y="{bottom + 15}">{_describe_tick(t, across)}</text>' for t in x.ticks
    ]
    words += [f'<text class="end" x="{LEFT - 5}" y="{y.at(t) + 4:.1f}">{_describe_tick(t, up)}</text>' for t in y.ticks]
    return (
        f'<path class="grid" fill="none" d="{grid}"/><path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
        + "".join(words)
        + _name_axes(across, up, (LEFT + right) / 2, bottom + 34, (TOP + bottom) / 2)
    )


def _draw_series(number: int, one: Series, x: Scale, y: Scale) -> str:
    colour = f"var(--s{number % COLOURS})"
    look = f'class="curve {text_of(one.status)}" stroke="{colour}"{one.dashes}'
    look += f' style="stroke-width:{one.width:g}"' if one.width != 2 else ""
    places = [(x.at(p.x), y.at(p.y), p) for p in one.points]
    size = 1.0 if len(places) <= CROWDED else 0.55
    parts = []
    if one.bar:
        parts = [_draw_bar(colour, point, one.bar, x, y) for point in one.points]
    elif one.area:
        lower, upper = ([(a, y.at(p.y + side * p.spread)) for a, _, p in places] for side in (-1, 1))
        parts.append(f'<polygon fill="{colour}" fill-opacity=".14" points="{_join([*upper, *lower[::-1]])}"/>')
        parts += [f'<polyline {look} points="{_join(edge)}"/>' for edge in (lower, upper) if one.width]
    elif one.line and len(places) > 1:
        parts.append(f'<polyline {look} points="{_join([(a, b) for a, b, _ in places])}"/>')
    for a, b, point in places if not one.bar else ():
        if point.spread and not one.area:
            ends = [y.at(max(point.y - point.spread, y.low)), y.at(min(point.y + point.spread, y.high))]
            parts.append(f'<path d="M{a:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{colour}" stroke-width="1.2"/>')
        if one.dots or point.text:
            top = y.at(point.y + point.spread) if one.area else b
            if one.dots:
                parts.append(_title(_draw_marker(number, one.status, a, top, size), point.text))
            else:
                title = f"<title>{text_of(point.text)}</title>"
                parts.append(f'<circle class="pt spot" cx="{a:.1f}" cy="{top:.1f}" r="4">{title}</circle>')
    attributes = f' data-method="{text_of(one.method)}"' if one.method else ""
    return f"<g{attributes}>{''.join(parts)}</g>"


def _draw_bar(colour: str, point: Dot, width: float, x: Scale, y: Scale) -> str:
    left, right, top = x.at(point.x - width / 2), x.at(point.x + width / 2), y.at(point.y)
    bottom = y.start if y.log else y.at(max(0.0, y.low))
    box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{max(0.0, bottom - top):.1f}"'
    return _title(f'<rect class="mark" {box} fill="{colour}" fill-opacity=".5" stroke="none"/>', point.text)


def _title(inside: str, text: str) -> str:
    """A point that can be read."""
    return f'<g class="pt">{inside}<title>{text_of(text)}</title></g>' if text else f'<g class="pt">{inside}</g>'


def _join(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _draw_marker(number: int, status: str, x: float, y: float, size: float = 1.0) -> str:
    """Filled for a proven ε, hollow for a claimed one, a cross for a refuted one, a ring around what is recommended;
    the shape is the series'."""
    colour = f"var(--s{number % COLOURS})"
    fill = "var(--paper)" if status in ("claimed", "unknown") else colour
    look = f'class="mark" fill="{fill}" stroke="{colour}"'
    if status == "ring":
        return f'<circle class="mark" fill="none" stroke="var(--ink)" cx="{x:.1f}" cy="{y:.1f}" r="{8 * size:.1f}"/>'
    if status == "refuted":
        r = 4 * size
        cross = f"M{x - r:.1f} {y - r:.1f}L{x + r:.1f} {y + r:.1f}M{x + r:.1f} {y - r:.1f}L{x - r:.1f} {y + r:.1f}"
        return f'<path {look} d="{cross}"/>'
    if number % 4 == 1:
        r = 3.5 * size
        return f'<rect {look} x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:.1f}" height="{2 * r:.1f}"/>'
    r = 5 * size
    if number % 4 == 2:
        return f'<path {look} d="M{x:.1f} {y - r:.1f}l{r:.1f} {1.7 * r:.1f}h{-2 * r:.1f}z"/>'
    if number % 4 == 3:
        return f'<path {look} d="M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l{-r:.1f} {r:.1f}l{-r:.1f} {-r:.1f}z"/>'
    return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="{0.76 * r:.1f}"/>'


def _draw_legend(named: Sequence[tuple[int, Series]]) -> tuple[str, int]:
    """One entry a line, or two where names are short; how much taller it makes the picture."""
    names = [shorten(one.name, MOST_NAMED) + _name_status(one.status) for _, one in named]
    pairs = len(named) > 4 and max(map(len, names)) <= PAIRED
    parts = []
    for place, ((number, one), name) in enumerate(zip(named, names, strict=True)):
        row, column = divmod(place, 2) if pairs else (place, 0)
        x, y = (24 if pairs else 14) + column * 180, HEIGHT + 11 + 17 * row
        colour = f"var(--s{number % COLOURS})"
        kind = f'class="curve {text_of(one.status)}" stroke="{colour}"{one.dashes}'
        line = f'<path {kind} style="stroke-width:{one.width:g}" d="M{x} {y - 4}h26"/>' if one.line else ""
        if one.area or one.bar:
            shade = f'fill="{colour}" fill-opacity="{".5" if one.bar else ".2"}"'
            line = f'<rect x="{x}" y="{y - 9}" width="26" height="10" {shade}/>{line if one.width and one.area else ""}'
        mark = _draw_marker(number, one.status, x + 13, y - 4) if one.dots and not one.bar else ""
        attributes = f' data-method="{text_of(one.method)}"' if one.method else ""
        parts.append(f'<g{attributes}>{line}{mark}<text x="{x + 33}" y="{y}">{text_of(name)}</text></g>')
    rows = -(-len(named) // 2) if pairs else len(named)
    return "".join(parts), 17 * rows + (7 if named else 0)


def _name_status(status: str) -> str:
    return {"proven": "", "": "", "ring": "", "none": " (not private)"}.get(status, f" ({status})")


def shorten(name: str, most: int) -> str:
    """A name shortened to this number of characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


# Grids of cells as SVG text: heatmaps and matrices.

TURN = 0.6  # of the values' range: above it text is light on dark, in the dark theme the other way round
LOWEST = 130.0  # smallest height of a grid, with room for the name at its side


@dataclass(frozen=True)
class Cell:
    """A cell of a grid: a value, or None and a reason, which is drawn hatched."""

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

    ``scale`` is the value of the palest and of the darkest colour, for grids that are compared; by default the range of
    the values.
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
    parts.append(_name_axes(across, down, left + wide * len(columns) / 2, under, (TOP + bottom) / 2))
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
    """The share of the strong colour: it grows with ``share`` and skips the middle, where text is hard to read."""
    return 0.04 + 0.38 * share / TURN if share <= TURN else 0.76 + 0.24 * (share - TURN) / (1 - TURN)


def _draw_ground(shown: str, x: float, y: float) -> str:
    """Plain ground under a label, so that hatching does not run through it."""
    half = 3.2 * len(shown)
    return f'<rect x="{x - half:.1f}" y="{y - 7:.1f}" width="{2 * half:.1f}" height="14" fill="var(--paper)"/>'


def _spaced(length: float, step: float) -> list[float]:
    return [n * step for n in range(max(1, int(length // step) + 1))]


def draw_matrix(
    title: str, across: Axis, down: Axis, columns: Sequence[int], rows: Sequence[int], values: Sequence[Sequence[float]]
) -> str:
    """The entries of a matrix: one colour for positive, one for negative, and none for zero entries.

    The colour is the square root of an entry's size, so that small ones are seen; titles hold the values.
    ``columns`` and ``rows`` are the numbers of its columns and rows.
    """
    wide = WIDTH - LEFT - RIGHT
    high = min(wide, max(wide * len(rows) / len(columns), 130))
    flat = [value for row in values for value in row]
    top = max(map(abs, flat)) or 1.0
    signs = []
    for sign, colour in ((1, "s0"), (-1, "s1")):
        cells = "".join(
            f'<path d="M{i} {j + 0.5}h1" opacity="{math.sqrt(abs(value) / top):.2f}">'
            f"<title>row {rows[j]}, column {columns[i]}: {value:.3g}</title></path>"
            for j, row in enumerate(values)
            for i, value in enumerate(row)
            if value * sign > 0
        )
        signs.append(f'<g stroke="var(--{colour})">{cells}</g>')
    scaled = f"translate({LEFT} {TOP}) scale({wide / len(columns):.4f} {high / len(rows):.4f})"
    parts = [f'<g class="entries" transform="{scaled}">{"".join(signs)}</g>']
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}h{wide}v{high:.1f}h-{wide}z"/>')
    for i in range(0, len(columns), max(1, len(columns) // 5)):
        x = LEFT + (i + 0.5) * wide / len(columns)
        parts.append(f'<text class="middle" x="{x:.1f}" y="{TOP + high + 15:.1f}">{columns[i]}</text>')
    for j in range(0, len(rows), max(1, len(rows) // 8)):
        y = TOP + (j + 0.5) * high / len(rows) + 4
        parts.append(f'<text class="end" x="{LEFT - 5}" y="{y:.1f}">{rows[j]}</text>')
    parts.append(_name_axes(across, down, LEFT + wide / 2, TOP + high + 34, TOP + high / 2))
    ticks = pick_ticks(min(flat), max(flat), top)
    for number, tick in enumerate(ticks):
        x, y = LEFT + 36 * number, TOP + high + 46
        look = f'fill="var(--{"s1" if tick < 0 else "s0"})" fill-opacity="{math.sqrt(abs(tick) / top):.2f}"'
        parts.append(f'<rect class="grid" x="{x}" y="{y:.1f}" width="30" height="10" {look}/>')
        parts.append(f'<text class="middle" x="{x + 15}" y="{y + 22:.1f}">{tick:g}</text>')
    return wrap(title, TOP + high + 76, "".join(parts))


def pick_ticks(low: float, high: float, top: float) -> list[float]:
    """Round values from zero outwards, at most nine of them, apart from each other in the colours of a matrix."""
    kept = [0.0]
    for size in (digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)):
        if size <= top and math.sqrt(size / top) - math.sqrt(kept[-1] / top) > 0.24:
            kept.append(size)
    return [t for t in [-t for t in reversed(kept[1:])] + kept if 1.02 * low <= t <= 1.02 * high]
