"""`hush report`: a store or a run as a page that people look at, or as a text for a paper (`hush.write_report`)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hush.cli.console import AsJson, delayed_status, say, show, show_json


class Format(StrEnum):
    """The format of a report."""

    HTML = "html"
    MARKDOWN = "markdown"
    LATEX = "latex"


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|RUN",
            help="A store of `hush bench`, a file with one record per line, or the folder of `hush train --out`.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default report.html (.md, .tex), for a run in its own folder."),
    ] = None,
    kind: Annotated[
        Format, typer.Option("--format", help="html, markdown (with figures as files) or latex (a table).")
    ] = Format.HTML,
    audits: Annotated[
        Path | None,
        typer.Option(
            help="Audits of these methods, as written by `hush audit --store` or `--update`; by default audit.jsonl in "
            "or next to the store.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report: a page that needs no network. A run has two: one to publish, and one in `private/`.

    Example: `hush report results/mnist-dpsgd.jsonl --out report.html`
    """
    from hush.report import write_report

    with delayed_status(f"reporting {source}"):
        found = write_report(source, out, format=kind.value, audits=audits, notify=say)
    if as_json:
        show_json(found.to_json())
        return
    for sentence in found.findings:
        show(sentence)
    show(f"written: {found.out}")
    if found.private is not None:
        show(f"private, do not publish: {found.private}")
