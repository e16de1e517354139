"""Every page of hush but the privacy statement, as one HTML file that works offline: sentences, facts, figures with
their data, tables, filters, both themes.

A command makes a `Page` and `render_report` writes it. Nothing is fetched, and the page's own policy forbids it. Texts
are made printable and escaped; the data are in the page as JSON in which no character can end a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Any

import jinja2
from markupsafe import Markup

from hush._internal.text import as_json_data, make_printable
from hush.report.svg import BASE, Axis, Dot, Series, draw_lines

UNSAFE: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
MOST_READ = 60  # points of a line in `compare_lines` that show their numbers
Place = tuple[str, tuple[str, ...], tuple[str, ...]]  # problem, methods, epsilons


@dataclass(frozen=True)
class Chart:
    """A chart and its data; filters select it by ``problem``, ``methods`` and ``epsilons``."""

    title: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    say: str = ""
    problem: str = ""
    methods: tuple[str, ...] = ()
    epsilons: tuple[str, ...] = ()


def compare_lines(
    title: str,
    x: tuple[str, Axis],
    up: Axis,
    at: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *more: Series,
    say: str = "",
    looks: Sequence[int] = (0, 1, 7),
    dashes: Sequence[int] = (0, 1, 2),
    dots: bool = False,
) -> Chart:
    """A figure of lines over the same values, of which ``x`` is the name in the data and the axis. Of long lines some
    points can be read."""
    (name, across), every = x, -(-len(at) // MOST_READ)
    series = [
        Series(
            line,
            [
                Dot(a, b, "" if i % every else f"{line}, {name} {a:g}: {b:.4g}")
                for i, (a, b) in enumerate(zip(at, values, strict=True))
            ],
            dots=dots,
            look=look,
            dash=dash,
        )
        for (line, values), look, dash in zip(lines.items(), looks, dashes, strict=False)
    ]
    rows = tuple((a, *(values[i] for values in lines.values())) for i, a in enumerate(at))
    return Chart(title, draw_lines(title, across, up, [*series, *more]), (name, *lines), rows, say)


@dataclass(frozen=True)
class Section:
    """Some figures under one heading."""

    id: str
    title: str
    say: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class TableCell:
    """A cell with a badge before it and small print under it."""

    text: str
    under: str = ""
    badge: str = ""


@dataclass(frozen=True)
class TableRow:
    """A row of the first table, and the values that filters select it by."""

    cells: tuple[TableCell, ...]
    problem: str = ""
    method: str = ""
    epsilon: str = ""


@dataclass(frozen=True)
class DownloadTable:
    """Data for a download: columns, rows, and the values that filters select each row by."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Page:
    """Everything that a page shows."""

    title: str
    findings: Sequence[str]
    sections: Sequence[Section]
    command: str = "hush report"
    table_title: str = ""
    table_say: str = ""
    table_columns: Sequence[str] = ()
    table: Sequence[TableRow] = ()
    overview: DownloadTable = field(default_factory=DownloadTable)
    warning: str = ""
    facts: Sequence[tuple[str, str]] = ()
    troubles: Sequence[dict[str, str]] = ()
    runs: DownloadTable = field(default_factory=DownloadTable)
    choices: tuple[Sequence[str], Sequence[str], Sequence[str]] = ((), (), ())
    notes: Sequence[str] = ()
    table_last: bool = False  # else it comes before the figures

    @property
    def runs_columns(self) -> tuple[str, ...]:
        """Empty if there is no table of runs."""
        return self.runs.columns


def render_report(page: Page) -> str:
    """The whole file."""
    charts = [chart for section in page.sections for chart in section.charts]
    number = count()
    content = {
        "choices": dict(zip(("problem", "method", "epsilon"), page.choices, strict=True)),
        "sections": [
            {"id": section.id, "figures": [_pack_chart(chart, next(number)) for chart in section.charts]}
            for section in page.sections
        ],
        "overview": vars(page.overview),
        "runs": vars(page.runs),
        "style": BASE.replace("\n", ""),
    }
    source = files("hush.report")
    css, js = (source.joinpath(f"report_page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    css += re.sub(r"([^{}]+)\{", lambda found: f"svg {found[1].strip()}{{", BASE)
    data = Markup(embed_json(_make_printable(content)))
    drawn = [Markup(chart.svg) for chart in charts]  # every text in them is escaped
    return _template().render(page=page, css=Markup(css), js=Markup(js), data=data, charts=drawn)


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(as_json_data(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(str.maketrans(UNSAFE))


def _pack_chart(chart: Chart, number: int) -> dict[str, Any]:
    """The SVG is stored separately, where it is not escaped as JSON."""
    return {**{name: value for name, value in vars(chart).items() if name != "svg"}, "svg": f"figure-{number}"}


def _make_printable(value: Any) -> Any:
    """The same data with every text made printable, so that names are the same in data and in tables."""
    if isinstance(value, str):
        return make_printable(value)
    if isinstance(value, dict):
        return {name: _make_printable(item) for name, item in value.items()}
    return [_make_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_finalize)
    return environment.from_string(files("hush.report").joinpath("report_page.html").read_text(encoding="utf-8"))


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else make_printable(value)
