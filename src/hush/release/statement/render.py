"""The privacy statement for a data-protection officer: what a privacy card means, without mathematics.

The page is a function of the card's JSON and three more facts (dataset, date, digests of the released files), so it
can be rendered again from any card. This package does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from hush._internal.text import make_printable
from hush.release.statement.curve import draw_curve
from hush.release.statement.facts import (
    Block,
    Box,
    Paragraph,
    Points,
    Signature,
    StatementFigure,
    StatementSection,
    Table,
    make_statement,
)

# The statement as one HTML page that prints on two sides of A4 and needs no network.


def render_privacy_page(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> str:
    """The statement for a data-protection officer, from a card's JSON, as a page."""
    statement = make_statement(card, dataset=dataset, date=date, digests=digests)
    return _template().render(statement=statement, draw_curve=draw_curve)


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    """Whatever the page shows is escaped, and made printable first."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_finalize)
    return environment.from_string(
        files("hush.release.statement").joinpath("privacy_page.html").read_text(encoding="utf-8")
    )


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else make_printable(value)


# The statement as Markdown: PRIVACY.md.

INTERPRETED = re.compile(r"([\\`*_\[\]<>|~&#])")
MARKS = {"plain": "- ", "numbered": "1. ", "boxes": "- [ ] "}


def render_privacy_text(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> str:
    """The statement for a data-protection officer, from a card's JSON, as Markdown."""
    statement = make_statement(card, dataset=dataset, date=date, digests=digests)
    lines = [f"# {statement.title}", "", *_table(("", ""), statement.facts)]
    for number, section in enumerate(statement.sections, 1):
        lines += _section(number, section)
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: object) -> str:
    """Text that stays text: on one line, and no link, picture, tag, cell or heading begins in it."""
    shown = INTERPRETED.sub(r"\\\1", " ".join(make_printable(text).split()))
    shown = shown.replace("://", ":\\//").replace("www.", "www\\.")
    return re.sub(r"^([-+=]|\d+(?=[.)]\s))", r"\\\1" if shown[:1] in ("-", "+", "=") else r"\1\\", shown)


def _section(number: int, section: StatementSection) -> Iterator[str]:
    yield from ("", f"## {number}. {escape_markdown(section.title)}")
    for block in section.blocks:
        lines = list(_lines(block))
        if lines:
            yield from ("", *lines)


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield escape_markdown(text)
        case Box(_, title, text):
            yield f"> **{escape_markdown(title)}.** {escape_markdown(text)}"
        case Points():
            yield from _points(block)
        case Table(columns, rows):
            yield from _table(columns, rows)
        case StatementFigure():
            return
        case Signature(fields):
            yield from _table(fields, (("<br>",) * len(fields),), escaped=True)


def _points(block: Points) -> Iterator[str]:
    for number, (name, item) in enumerate(block.pairs, 1):
        mark = f"{number}. " if block.style == "numbered" else MARKS[block.style]
        yield f"{mark}{f'**{escape_markdown(name)}** ' if name else ''}{escape_markdown(item)}"


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], *, escaped: bool = False) -> Iterator[str]:
    yield _row(columns)
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(row)} |" if escaped else _row(row) for row in rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(escape_markdown(cell) for cell in cells)} |"


def page_of_card(card: Mapping[str, Any]) -> str:
    """The HTML page of a card that names dataset, date and digests itself."""
    return render_privacy_page(card, **_named(card))


def text_of_card(card: Mapping[str, Any]) -> str:
    """The Markdown of a card that names dataset, date and digests itself."""
    return render_privacy_text(card, **_named(card))


def _named(card: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dataset": str(card.get("dataset") or ""),
        "date": str(card.get("date") or ""),
        "digests": card.get("digests") or {},
    }
