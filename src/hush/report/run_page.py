"""One run as two pages: what may be released, and what must stay private.

The page to release is made from the release alone (its card and its description); nothing of ``private/`` is opened
for it. Training loss, the sizes of batches, the share of clipped gradients and the exact figures of held-out rows are
on the private page, unless the card itself holds them: figures of rows declared public, or figures with noise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import dp_event

from hush._internal.text import make_printable
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, default_accountant, epsilon
from hush.accounting.guarantee import STATUSES, Guarantee, rounded_up
from hush.bench.selection_cost import read_number
from hush.errors import HushError, InvalidInputError
from hush.release.folder import CARD, MODEL, PRIVATE_PART, find_release, read_json
from hush.report.charts import draw_confusion, read_confusion
from hush.report.noise_page import draw_plan, rebuild_plan
from hush.report.page import Chart, DownloadTable, Page, Section, TableCell, TableRow
from hush.report.svg import Axis, Dot, Series, draw_lines

POINTS = 12  # numbers of steps whose ε is computed
STEPS, FIGURES = "steps.jsonl", "figures.json"  # in the private part of a run
MOST = 100  # points of a private curve
SECRET = "This page is private: it holds figures of training rows and of held-out rows that no ε covers."
SHOWN = {"test_accuracy": "test accuracy", "test_balanced_accuracy": "balanced accuracy", "test_auc": "AUC",
         "test_loss": "test loss", "test_mae": "test MAE", "test_rmse": "test RMSE"}  # fmt: skip


def make_released_page(folder: Path) -> Page:
    """The page of a run's release, from the files of the release alone."""
    release = find_release(folder)
    card = read_json(release / CARD)
    guarantee = _read_guarantee(card)
    spending, stated = _draw_spending(card, guarantee)
    noise, seen = _draw_noise(card)
    classes = _read_classes(release)
    sections = [
        Section("spending", "ε by epoch", stated, spending),
        Section("noise", "What the noise looks like", seen, noise),
        Section("confusion", "Confusion matrix", _describe_public(card), _draw_released_confusion(card, classes)),
    ]
    rows = _list_plan(card)
    named = make_printable(card.get("dataset", "unnamed data"))
    return Page(
        title=f"{make_printable(card.get('method', 'A model'))} on {named}",
        findings=[guarantee.sentence(), _describe_figures(card)],
        facts=_list_facts(card, guarantee),
        table_title="The plan",
        table_say="What was run, as the privacy card has it.",
        table_columns=("setting", "value"),
        table=[TableRow((TableCell(name), TableCell(value))) for name, value in rows],
        overview=DownloadTable(("setting", "value"), tuple(rows), tuple(("", ("",), ("",)) for _ in rows)),
        sections=[section for section in sections if section.charts],
        notes=[section.say for section in sections if not section.charts and section.say],
        table_last=True,
    )


def make_private_page(folder: Path) -> Page | None:
    """The same with what is private; None where the folder has no private part."""
    private = folder / PRIVATE_PART
    if not private.is_dir():
        return None
    page = make_released_page(folder)
    steps = _read_steps(private / STEPS)
    charts = read_json(private / FIGURES) if (private / FIGURES).is_file() else {}
    counts = read_confusion(charts, "test_confusion")
    recall = charts.get("test_recall")
    classes = [str(name) for name in recall] if isinstance(recall, dict) else []
    sections = [
        Section("training", "Training, step by step", "On the batches that were trained on.", _draw_steps(steps)),
        Section(
            "held-out",
            "Confusion matrix of the held-out rows",
            "Exact counts.",
            () if counts is None else (_make_confusion("Held-out rows", counts, classes),),
        ),
    ]
    facts = [
        (name, f"{value:.4g}") for key, name in SHOWN.items() if (value := read_number(charts.get(key))) is not None
    ]
    verdict = [str(charts["verdict"])] if isinstance(charts.get("verdict"), str) else []
    return replace(
        page,
        title=f"{page.title}: private page",
        warning=SECRET,
        findings=[page.findings[0], *verdict],
        facts=[*page.facts, *facts],
        sections=[*(section for section in sections if section.charts), *page.sections],
    )


def _read_guarantee(card: Mapping[str, Any]) -> Guarantee:
    stated = card.get("guarantee")
    if not isinstance(stated, dict) or stated.get("status") not in STATUSES:
        raise InvalidInputError(
            f"the {CARD} of this run holds no guarantee: it was not written by hush, or was changed"
        )
    return Guarantee.from_json({name: value for name, value in stated.items() if name not in ("event", "event_json")})


def _read_classes(release: Path) -> list[str]:
    found = read_json(release / MODEL).get("classes") if (release / MODEL).is_file() else None
    return [str(name) for name in found] if isinstance(found, list) else []


def _list_facts(card: Mapping[str, Any], guarantee: Guarantee) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = [("status", guarantee.describe_status())]
    if guarantee.status != "none":
        facts += [("ε", rounded_up(guarantee.epsilon)), ("δ", rounded_up(guarantee.delta))]
    names = {"steps": "steps", "divisor": "expected batch size", "noise_multiplier": "noise multiplier σ"}
    found = [(shown, read_number(card.get(name))) for name, shown in names.items()]
    return facts + [(shown, f"{value:.5g}") for shown, value in found if value is not None]


def _list_plan(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The plan as lines of (path in the plan, value)."""

    def flatten(place: str, value: Any) -> list[tuple[str, str]]:
        if isinstance(value, dict):
            return [line for name, item in value.items() for line in flatten(f"{place} {name}".strip(), item)]
        if isinstance(value, list):
            return [(place, "; ".join(map(str, value)))] if value else []
        return [] if value is None else [(place, f"{value:.6g}" if isinstance(value, float) else str(value))]

    plan, paths = card.get("plan"), card.get("gradients")
    rows = flatten("", plan if isinstance(plan, dict) else {})
    return rows + _describe_paths(paths if isinstance(paths, dict) else {})


def _describe_paths(paths: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which gradient path the modules of the model take, in one line."""
    listed = {make_printable(path): kinds for path, kinds in paths.items() if isinstance(kinds, list)}
    slow = any(path not in ("book-keeping", "frozen") for path in listed)
    said = "; ".join(f"{path}: {', '.join(map(make_printable, kinds))}" for path, kinds in listed.items())
    advice = " (slow: hush.explain says why and what to change)" if slow else ""
    return [("per-example gradients", said + advice)] if said else []


def _describe_figures(card: Mapping[str, Any]) -> str:
    public, noisy = card.get("test_figures"), card.get("private_metrics")
    if isinstance(public, dict) and public.get("test_loss", 0.0) is None:
        return "On test rows that were declared public it gives numbers that are not finite: training has diverged."
    if isinstance(public, dict) and (accuracy := read_number(public.get("test_accuracy"))) is not None:
        return f"On test rows that were declared public its accuracy is {100 * accuracy:.2f} %."
    if isinstance(public, dict) and (loss := read_number(public.get("test_loss"))) is not None:
        return f"On test rows that were declared public its loss is {loss:.4g}."
    if isinstance(noisy, dict) and isinstance(noisy.get("figures"), dict):
        accuracy, std = read_number(noisy["figures"].get("accuracy")), read_number(noisy.get("accuracy_std"))
        if accuracy is not None and std is not None:
            return (
                f"On held-out rows its accuracy is {100 * accuracy:.1f} % ± {100 * std:.1f} %, where ± is the noise "
                "that was added; this is within the ε above."
            )
    return "How good it is on held-out rows was not released."


def _describe_public(card: Mapping[str, Any]) -> str:
    if isinstance(card.get("test_figures"), dict):
        return "Of test rows that were declared public."
    return "Of held-out rows, with noise that the guarantee covers." if card.get("private_metrics") else ""


def _draw_released_confusion(card: Mapping[str, Any], classes: Sequence[str]) -> tuple[Chart, ...]:
    public, noisy = card.get("test_figures"), card.get("private_metrics")
    counts = read_confusion(public, "test_confusion") if isinstance(public, dict) else None
    if counts is None and isinstance(noisy, dict):
        counts = read_confusion(noisy, "noisy_confusion")
    return () if counts is None else (_make_confusion("Released figures", counts, classes),)


def _make_confusion(title: str, counts: list[list[float]], classes: Sequence[str]) -> Chart:
    names = list(classes) if len(classes) == len(counts) else [str(i) for i in range(len(counts))]
    columns = ("true class", *(f"predicted {name}" for name in names))
    rows = tuple((name, *row) for name, row in zip(names, counts, strict=True))
    return Chart(title, draw_confusion(title, counts, names), columns, rows)


def _draw_spending(card: Mapping[str, Any], guarantee: Guarantee) -> tuple[tuple[Chart, ...], str]:
    """ε after some numbers of steps, if the event is a number of equal steps; the precision of the noise of all steps
    is charged from the first one on."""
    accounted, steps = card.get("accounting"), read_number(card.get("steps_taken"))
    if guarantee.status == "none" or not isinstance(accounted, dict) or not steps:
        return (), ""
    try:
        event, delta = events.from_json(accounted.get("event")), read_number(accounted.get("delta"))
    except HushError:
        event, delta = None, None
    event, precision = _split_precision(event)
    same = isinstance(event, dp_event.SelfComposedDpEvent) and event.count == int(steps)
    if not same or delta is None or guarantee.adjacency not in ADJACENCIES:
        return (), "This run is accounted as a whole: after fewer steps it had spent at most the ε above."
    spent = []
    for taken in np.unique(np.linspace(1, int(steps), min(POINTS, int(steps))).astype(int)):
        some = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(event.event, int(taken)), *precision])
        kind = default_accountant(some, guarantee.adjacency)
        spent.append((int(taken), epsilon(some, delta, adjacency=guarantee.adjacency, accountant=kind)))
    rate = _steps_an_epoch(card)
    points = [Dot(t / rate, e, f"step {t}, epoch {t / rate:.3g}: ε = {rounded_up(e)}") for t, e in spent]
    title = "ε by epoch"
    series = [Series("", points, guarantee.status)]
    svg = draw_lines(title, Axis("epoch, passes over the data"), Axis("ε so far, no unit"), series)
    rows = tuple((t, t / rate, e) for t, e in spent)
    said = f"At δ = {rounded_up(guarantee.delta)}, by the accountant of the whole run."
    return (Chart(title, svg, ("step", "epoch", "epsilon"), rows),), said


def _split_precision(event: Any) -> tuple[Any, list[events.FinitePrecisionDpEvent]]:
    """The steps, and the event of the precision of their noise if they are composed with it alone."""
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent) else [event]
    precision = [part for part in parts if isinstance(part, events.FinitePrecisionDpEvent)]
    steps = [part for part in parts if part not in precision]
    return (steps[0], precision) if len(steps) == 1 else (event, [])


def _steps_an_epoch(card: Mapping[str, Any]) -> float:
    examples, divisor = _read_examples(card), read_number(card.get("divisor"))
    return examples / divisor if examples and divisor else 1.0


def _read_examples(card: Mapping[str, Any]) -> float | None:
    plan = card.get("plan")
    sampler = plan.get("sampler") if isinstance(plan, dict) else None
    return read_number(sampler.get("examples")) if isinstance(sampler, dict) else None


def _draw_noise(card: Mapping[str, Any]) -> tuple[tuple[Chart, ...], str]:
    """The noise that adds up, from a plan made again, if it is the same by its sensitivity."""
    numbers = [read_number(card.get(name)) for name in ("noise_multiplier", "sensitivity", "divisor", "steps")]
    sigma, sensitivity, divisor, steps = numbers
    examples = _read_examples(card)
    if not sigma or not divisor or not steps or not examples:
        return (), ""
    public = {"examples": int(examples), "batch_size": int(divisor), "steps": int(steps), "counted": True}
    guarantee = card["guarantee"]
    plan = rebuild_plan(str(card.get("method")), public, {}, sigma, read_number(guarantee.get("delta")), sensitivity)
    if plan is None:
        return (), "The noise of this run cannot be drawn from its card alone: `hush noise show` draws a method's."
    return (
        tuple(draw_plan(plan)),
        "Standard deviation of the noise that has added up in a weight, and how it is correlated over steps.",
    )


def _read_steps(path: Path) -> list[dict[str, Any]]:
    """The lines of the training log that can be read."""
    found: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        found += [value] if isinstance(value, dict) else []
    return found


def _draw_steps(steps: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    kinds = (
        ("Training loss", "mean loss of a batch", "loss", True),
        ("Batch sizes", "examples in a batch", "examples", False),
        ("Clipped share", "clipped gradients, share", "clipped", True),
    )
    charts = []
    for title, unit, name, shared in kinds:
        rows = []
        for line in steps:
            step, value, size = (read_number(line.get(key)) for key in ("step", name, "examples"))
            if step is not None and value is not None and (size or not shared):
                rows.append((int(step) + 1, value / size if shared and size else value))
        every = -(-len(rows) // MOST) or 1
        points = [Dot(float(t), y, f"step {t}: {y:.4g}") for t, y in rows[::every]]
        svg = draw_lines(title, Axis("step, number"), Axis(unit), [Series("", points)])
        charts += [Chart(title, svg, ("step", name), tuple(rows))] if svg else []
    return tuple(charts)
