"""Pages made from results: self-contained, they work offline.

>>> hush.write_report("runs/setup-1", "report.html").findings  # a store of `hush bench`  # doctest: +SKIP
>>> hush.write_report("run").private  # the folder of `hush train --out run`  # doctest: +SKIP
PosixPath('run/private/report.html')

In scope: charts and pages drawn from stores, releases, plans and audits. The privacy card of a release, and
its page for people, is `hush.release`. What draws a page is imported when a page is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hush._internal.storage import PRIVATE, check_page, explain, remove_parts, write_atomic, write_page
from hush._internal.validate import choice
from hush.errors import InvalidInputError

NAMES = {"html": "report.html", "markdown": "report.md", "latex": "report.tex"}
_log = logging.getLogger("hush")


@dataclass(frozen=True)
class WrittenReport:
    """The paths of a report and its results.

    ``private`` is the second page of a run, for the owner of the data alone; None for a store. ``findings`` are the
    sentences at the top of the page, and ``counts`` the runs of a store by their outcome."""

    out: Path
    private: Path | None = None
    findings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields of `hush report --json`."""
        fields: dict[str, Any] = {**self.counts, "findings": list(self.findings), "out": str(self.out)}
        return fields if self.counts else {**fields, "private": None if self.private is None else str(self.private)}


def write_report(
    path: str | Path,
    out: str | Path | None = None,
    *,
    format: str = "html",
    audits: str | Path | None = None,
    notify: Callable[[str], None] = _log.warning,
) -> WrittenReport:
    """Write the report of a store of runs or of one run, as `hush report` does.

    Args:
        path: a store of `hush bench`, a file with one record per line, or a run directory. A run has two pages: one
            that may be released, and one in its ``private/``.
        out: the file to write; report.html (.md, .tex) unless given, for a run in its own directory.
        format: ``html``, ``markdown`` (with its figures as files) or ``latex`` (a table); a run is always html.
        audits: a file of `hush audit --store` or `--update`, for a store; audit.jsonl in or next to it unless given.
        notify: called with a sentence if the private page cannot be written.
    """
    choice(tuple(NAMES), format=format)
    source, page = Path(path), None if out is None else Path(out)
    if not source.exists():
        raise InvalidInputError(f"there is no '{source}': name a store, a file of records or the folder of a run")
    run = source.is_dir() and not (source / "store.json").exists()
    if run and audits is not None:
        raise InvalidInputError("audits of methods are shown in the report of a store: leave --audits out")
    if run:
        return _report_run(source, page, format, notify)
    return _report_store(source, page, format, None if audits is None else Path(audits))


def _report_store(source: Path, out: Path | None, format: str, audits: Path | None) -> WrittenReport:
    from hush.report.page import render_report
    from hush.report.paper import render_latex, render_markdown
    from hush.report.rows import OUTCOMES, find_audit_results, read_results
    from hush.report.store_page import make_store_page

    out = out or Path(NAMES[format])
    check_page(out)
    reading = replace(read_results(source), audits=find_audit_results(source, audits))
    counts = {"runs": len(reading.rows), **{name.replace(" ", "_"): reading.count(name) for name in OUTCOMES}}
    if format == "latex":
        write_page(out, render_latex(reading))
        return WrittenReport(out, counts=counts)
    page = make_store_page(reading)
    if format == "markdown":
        text, charts = render_markdown(page, f"{out.stem}_figures")
        for name in charts:
            check_page(out.parent / name)
        for name, svg in charts.items():
            write_page(out.parent / name, svg)
        write_page(out, text)
    else:
        write_page(out, render_report(page))
    return WrittenReport(out, findings=tuple(page.findings), counts=counts)


def _report_run(source: Path, out: Path | None, format: str, notify: Callable[[str], None]) -> WrittenReport:
    from hush.release.folder import PRIVATE_PART
    from hush.report.page import render_report
    from hush.report.run_page import make_released_page

    if format != "html":
        raise InvalidInputError(
            "a run is reported as html; its release holds a PRIVACY.md, and markdown and latex are for stores"
        )
    inside = (source / PRIVATE_PART).is_dir()
    out = out or (source / NAMES[format] if inside else Path(NAMES[format]))
    check_page(out)
    page = make_released_page(source)
    write_page(out, render_report(page))
    private = _report_privately(source, notify) if inside else None
    return WrittenReport(out, private, tuple(page.findings))


def _report_privately(source: Path, notify: Callable[[str], None]) -> Path | None:
    """The page in `private/`; None if that cannot be read or written, as for a user who does not own the data."""
    from hush.release.folder import PRIVATE_PART
    from hush.report.page import render_report
    from hush.report.run_page import make_private_page

    path = source / PRIVATE_PART / NAMES["html"]
    try:
        page = make_private_page(source)
        if page is None:
            return None
        remove_parts(path.parent, path.name)
        write_atomic(path, render_report(page).encode(), mode=PRIVATE)
    except (OSError, InvalidInputError) as error:
        why = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(why, OSError):
            raise
        notify(f"no private page was written, as '{path.parent}' cannot be read or written: {explain(why)}")
        return None
    return path
