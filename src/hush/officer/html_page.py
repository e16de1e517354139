"""The statement as one HTML page that prints on two sides of A4 and needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from hush.officer.picture import draw_curve
from hush.officer.statement import make_statement
from hush.printable import make_printable


def render_privacy_page(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> str:
    """The statement for a data-protection officer, from a card's JSON, as a page."""
    statement = make_statement(card, dataset=dataset, date=date, digests=digests)
    return _template().render(statement=statement, draw_curve=draw_curve)


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    """Whatever the page shows is escaped, and made printable first."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_finalize)
    return environment.from_string(files("hush.officer").joinpath("privacy_page.html").read_text(encoding="utf-8"))


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else make_printable(value)
