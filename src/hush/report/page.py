"""A report as one HTML file that works offline: tables, figures with their data, filters, both themes.

Nothing is fetched, and the page's own policy forbids it. Texts are made printable and escaped; the data are in the
page as JSON in which no character can end a script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup
from plotly import graph_objects as go

from hush._internal.text import as_json_data, make_printable
from hush.report.figures import Figure
from hush.report.svg import BASE

UNSAFE: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
Place = tuple[str, tuple[str, ...], tuple[str, ...]]  # problem, methods, epsilons


@dataclass(frozen=True)
class Section:
    """Some figures under one heading."""

    id: str
    title: str
    say: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class TableCell:
    """A cell with a badge before it and small print under it."""

    text: str
    under: str = ""
    badge: str = ""


@dataclass(frozen=True)
class TableRow:
    """A row of the first table, and what filters find it by."""

    cells: tuple[TableCell, ...]
    problem: str = ""
    method: str = ""
    epsilon: str = ""


@dataclass(frozen=True)
class DownloadTable:
    """Data for a download: columns, rows, and what filters find each row by."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Page:
    """Everything that a page shows."""

    title: str
    findings: Sequence[str]
    table_title: str
    table_say: str
    table_columns: Sequence[str]
    table: Sequence[TableRow]
    overview: DownloadTable
    sections: Sequence[Section]
    warning: str = ""
    facts: Sequence[tuple[str, str]] = ()
    troubles: Sequence[dict[str, str]] = ()
    runs: DownloadTable = field(default_factory=DownloadTable)
    choices: tuple[Sequence[str], Sequence[str], Sequence[str]] = ((), (), ())
    notes: Sequence[str] = ()
    table_last: bool = False  # else it comes before the figures

    @property
    def runs_columns(self) -> tuple[str, ...]:
        """Empty where there is no table of runs."""
        return self.runs.columns


def render_report(page: Page) -> str:
    """The whole file."""
    content = {
        "choices": _make_printable(dict(zip(("problem", "method", "epsilon"), page.choices, strict=True))),
        "sections": [
            {"id": section.id, "figures": [_pack_figure(figure) for figure in section.figures]}
            for section in page.sections
        ],
        "overview": _make_printable(vars(page.overview)),
        "runs": _make_printable(vars(page.runs)),
        "style": BASE,
    }
    source = files("hush.report")
    css, js = (source.joinpath(f"report_page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return _template().render(page=page, css=Markup(css), js=Markup(js), data=Markup(embed_json(content)))


def embed_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(as_json_data(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(str.maketrans(UNSAFE))


def _pack_figure(figure: Figure) -> dict[str, Any]:
    told = {name: value for name, value in vars(figure).items() if name not in ("section", "svg")}
    return {**_make_printable(told), "svg": figure.svg}


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


# Pages of plotly's figures that open from disk: one frame, a template for each page's words.

FONT = {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": "#222"}


def render_figures(page: str, figures: Mapping[str, go.Figure], **words: Any) -> str:
    """The page of this name with its figures, each in the element that has its name as id."""
    loader = jinja2.PackageLoader("hush.report", "")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    drawn = {name: json.loads(figure.to_json()) for name, figure in figures.items()}
    return environment.get_template(page).render(figures=drawn, plotly=plotly.offline.get_plotlyjs(), **words)
