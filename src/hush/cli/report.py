"""`hush report`: a store or a run as a page that people look at, or as a text for a paper.

What draws a report is imported inside the functions, because the other commands have no use for it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hush._internal.storage import PRIVATE, check_page, explain, remove_parts, write_atomic, write_page
from hush.cli.console import delayed_status, say, show, show_json
from hush.cli.options import AsJson
from hush.errors import InvalidInputError


class Format(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MARKDOWN = "markdown"
    LATEX = "latex"


NAMES = {Format.HTML: "report.html", Format.MARKDOWN: "report.md", Format.LATEX: "report.tex"}


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|RUN",
            help="A store of `hush bench`, a file with a record a line, or the folder of `hush train --out`.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; report.html (.md, .tex) by default, a run's in its own folder."),
    ] = None,
    kind: Annotated[
        Format, typer.Option("--format", help="html, markdown (figures beside it) or latex (a table).")
    ] = Format.HTML,
    audits: Annotated[
        Path | None,
        typer.Option(
            help="What audits of these methods said, as `hush audit --store` or `--update` writes it; audit.jsonl in "
            "the store or beside it by default.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report: a page that needs no network. A run's has two: one to release, and one in `private/`.

    Example: `hush report results/mnist-dpsgd.jsonl --out report.html`
    """
    if not source.exists():
        raise InvalidInputError(f"there is no '{source}': name a store, a file of records or the folder of a run")
    if audits is not None and _is_run(source):
        raise InvalidInputError("audits of methods are shown in the report of a store: leave --audits out")
    with delayed_status(f"reporting {source}"):
        found = _report_run(source, out, kind) if _is_run(source) else _report_store(source, out, kind, audits)
    if as_json:
        show_json(found)
        return
    for sentence in found.get("findings", ()):
        show(sentence)
    show(f"written: {found['out']}")
    if found.get("private") is not None:
        show(f"private, keep to yourself: {found['private']}")


def _is_run(source: Path) -> bool:
    return source.is_dir() and not (source / "store.json").exists()


def _report_store(source: Path, out: Path | None, kind: Format, audits: Path | None) -> dict[str, Any]:
    from hush.report.page import render_report
    from hush.report.rows import OUTCOMES, find_audits_beside, read_results
    from hush.report.store_page import make_store_page

    out = out or Path(NAMES[kind])
    check_page(out)
    reading = replace(read_results(source), audits=find_audits_beside(source, audits))
    counts = {"runs": len(reading.rows), **{name.replace(" ", "_"): reading.count(name) for name in OUTCOMES}}
    if kind is Format.LATEX:
        from hush.report.paper import render_latex

        write_page(out, render_latex(reading))
        return {**counts, "out": str(out)}
    page = make_store_page(reading)
    if kind is Format.MARKDOWN:
        from hush.report.paper import render_markdown

        text, figures = render_markdown(page, f"{out.stem}_figures")
        for name in figures:
            check_page(out.parent / name)
        for name, svg in figures.items():
            write_page(out.parent / name, svg)
        write_page(out, text)
    else:
        write_page(out, render_report(page))
    return {**counts, "findings": list(page.findings), "out": str(out)}


def _report_run(source: Path, out: Path | None, kind: Format) -> dict[str, Any]:
    """Two files; the one in `private/` is for the owner of the data alone, like all that is there."""
    from hush.release.folder import PRIVATE_PART
    from hush.report.page import render_report
    from hush.report.run_page import make_released_page

    if kind is not Format.HTML:
        raise InvalidInputError(
            "a run is reported as html; its release holds a PRIVACY.md, and markdown and latex are for stores"
        )
    inside = (source / PRIVATE_PART).is_dir()
    out = out or (source / NAMES[kind] if inside else Path(NAMES[kind]))
    check_page(out)
    page = make_released_page(source)
    write_page(out, render_report(page))
    secret = _report_privately(source) if inside else None
    return {"findings": list(page.findings), "out": str(out), "private": None if secret is None else str(secret)}


def _report_privately(source: Path) -> Path | None:
    """The page in `private/`; None where that cannot be read or written, as for somebody who does not own the data."""
    from hush.release.folder import PRIVATE_PART
    from hush.report.page import render_report
    from hush.report.run_page import make_private_page

    secret = source / PRIVATE_PART / NAMES[Format.HTML]
    try:
        page = make_private_page(source)
        if page is None:
            return None
        remove_parts(secret.parent, secret.name)
        write_atomic(secret, render_report(page).encode(), mode=PRIVATE)
    except (OSError, InvalidInputError) as error:
        why = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(why, OSError):
            raise
        say(f"no private page was written, as '{secret.parent}' cannot be read or written: {explain(why)}")
        return None
    return secret
