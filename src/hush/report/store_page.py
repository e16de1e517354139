"""The report of a store: the findings, every group of runs, every figure, and the unfinished runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from hush.accounting.guarantee import rounded_down
from hush.report.charts import list_sections
from hush.report.noise_page import draw_noise
from hush.report.page import DownloadTable, Page, TableCell, TableRow
from hush.report.rows import Reading, Row
from hush.report.summary import (
    Group,
    describe_cost,
    describe_findings,
    format_epsilon,
    format_mean,
    format_metric,
    make_groups,
    order_epsilon,
)

COLUMNS = ("problem", "method", "ε", "audited lower bound", "best run", "best setting, mean ± spread", "runs")
SAY = (
    "Best run and best setting are chosen by the validation part, and their test figures are shown. The ε is that of "
    "one run alone; below each best run is what having chosen it costs. A proven ε follows from accounting, a claimed "
    "one is not proven (a paper's formula, or a run in fast arithmetic), a refuted one was measured to be wrong."
)
PUBLIC = (
    "Figures of validation and test rows are exact, and no ε covers them: hand this page on only if those rows are "
    "public."
)


RUNS = (
    "key", "outcome", "problem", "method", "target_epsilon", "epsilon", "delta", "status", "lr", "batch_size", "epochs",
    "steps", "seed", "test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "noise_multiplier",
    "train_seconds", "inference_seconds", "reason",
)  # fmt: skip
CONFIGURED = ("problem", "method", "lr", "batch_size", "epochs", "seed")


def make_store_page(reading: Reading, *, title: str = "") -> Page:
    """The page of everything that was read."""
    groups = make_groups(reading)
    noise, unseen = draw_noise(groups)
    return Page(
        title=title or f"Runs of {reading.name}",
        findings=describe_findings(reading, groups),
        warning=PUBLIC,
        table_title="Overview",
        table_say=SAY,
        table_columns=COLUMNS,
        table=[_make_table_row(group) for group in groups],
        overview=_make_overview(groups),
        sections=[*list_sections(groups), *noise],
        troubles=[_describe_trouble(row) for row in reading.rows if row.outcome != "finished"],
        runs=_make_runs(reading),
        choices=_list_choices(groups),
        notes=[*reading.notes, *unseen, *_describe_choice(groups)],
    )


def _make_table_row(group: Group) -> TableRow:
    badge = group.status if group.status != "unknown" else ""
    bound = "–" if group.audited is None else f"ε ≥ {rounded_down(group.audited.epsilon_lower)}"
    where = "" if group.audited is None else group.audited.describe()
    best = None if group.best is None else group.best.score("test")
    flatters = group.chosen_by == "test" and group.price.runs > 1 and group.best is not None
    by = " (chosen by the test part, which flatters)" if flatters else ""
    counts = [f"{group.count(name)} {name}" for name in ("finished", "diverged", "failed") if group.count(name)]
    cells = (
        TableCell(group.problem),
        TableCell(group.method),
        TableCell(format_epsilon(group), badge=badge),
        TableCell(bound, where),
        TableCell(format_metric(best, group.metric), describe_cost(group) + by),
        TableCell(format_mean(group), _describe_setting(group)),
        TableCell(", ".join(counts)),
    )
    return TableRow(cells, *group.place)


def _describe_setting(group: Group) -> str:
    if group.chosen is None:
        return ""
    row = group.chosen.rows[0]
    names = {"lr": "lr", "batch_size": "batch", "epochs": "epochs", "clip": "clip"}
    shown = [f"{short} {value:g}" for name, short in names.items() if (value := row.number(name)) is not None]
    return ", ".join([*shown, *_list_varied(group, row, names)])


def _list_varied(group: Group, chosen: Row, known: Collection[str]) -> Iterator[str]:
    """Momentum, and the other settings of a run in which the runs of its group differ."""
    given = [{k: v for k, v in {**row.config, **row.options}.items() if k != "options"} for row in group.rows]
    mine = {**chosen.config, **chosen.options}
    for name in sorted({name for one in given for name in one} - {*known, "seed"}):
        value = mine.get(name)
        if len({repr(one.get(name)) for one in given}) > 1 or (name == "momentum" and value):
            yield f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def _make_overview(groups: Sequence[Group]) -> DownloadTable:
    columns = ("problem", "method", "epsilon", "status", "audited_lower_bound", "metric", "best_run", "best_test",
               "mean_test", "spread", "seeds", "runs", "finished", "diverged", "failed", "selection_epsilon",
               "selection_delta", "audit")  # fmt: skip
    rows = []
    for g in groups:
        bound = None if g.audited is None else g.audited.epsilon_lower
        verdict = None if g.audited is None else g.audited.verdict
        best = (None, None) if g.best is None else (g.best.key, g.best.score("test"))
        mean = (None, None, 0) if g.chosen is None else (g.chosen.mean, g.chosen.spread, len(g.chosen.values))
        counts = tuple(g.count(name) for name in ("finished", "diverged", "failed"))
        price = g.price.epsilon, g.price.delta
        rows.append((*g.place, g.status, bound, g.metric, *best, *mean, len(g.rows), *counts, *price, verdict))
    return DownloadTable(columns, tuple(rows), tuple((g.problem, (g.method,), (g.epsilon,)) for g in groups))


def _make_runs(reading: Reading) -> DownloadTable:
    rows = tuple(tuple(_read_cell(row, name) for name in RUNS) for row in reading.rows)
    places = tuple((row.problem, (row.method,), (row.epsilon_label,)) for row in reading.rows)
    return DownloadTable(RUNS, rows, places)


def _read_cell(row: Row, name: str) -> Any:
    """A value as the record has it."""
    if name in ("key", "outcome", "reason"):
        return getattr(row, name)
    if name == "target_epsilon":
        return row.config.get("epsilon")
    found = row.config.get(name, row.options.get(name)) if name in CONFIGURED else row.record.get(name)
    return found if found is None or isinstance(found, (int, float, str)) else str(found)


def _describe_trouble(row: Row) -> dict[str, str]:
    known = row.outcome in ("failed", "diverged")
    words = (row.problem, row.method, row.epsilon_label) if known else ("–", "–", "–")
    return {"key": row.key, "outcome": row.outcome, "reason": row.reason} | dict(
        zip(("problem", "method", "epsilon"), words, strict=True)
    )


def _list_choices(groups: Sequence[Group]) -> tuple[list[str], list[str], list[str]]:
    epsilons = sorted({g.epsilon for g in groups}, key=order_epsilon)
    return sorted({g.problem for g in groups}), sorted({g.method for g in groups}), epsilons


def _describe_choice(groups: Sequence[Group]) -> list[str]:
    notes = [
        "The cost of a choice is that of all runs of its group, whose secrets are their own; the runs of other groups, "
        "if they were looked at too, cost more."
    ]
    if any(g.chosen_by == "test" and len(g.rows) > 1 for g in groups):
        notes.append("Where there is no validation part the test part has chosen: such figures are too good.")
    return notes
