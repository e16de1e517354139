"""Questions that the published tables were made for, answered by our records, or not while those are missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hush.bench.spec import read_spec
from published import mnist, records
from published.mnist import VERSUS, pick_versus
from published.records import list_percent, tell_values, wrap, wrap_item
from published.setups import MANY, METHODS, ONE_PASS, PROBLEMS, list_targets, read_one_pass
from published.sweeps import Cell, Comparison, compare, find_cell, find_merit, read_cells

LEGEND = (
    "Figures are test accuracies in percent, mean ± deviation (seeds); of the VAE, its loss, of which less is better. "
    "*Ahead* is by more than twice the standard error of the difference; with a single seed, by more than a point (of "
    "a loss, a hundredth)."
)


@dataclass(frozen=True)
class Answer:
    """A question, what there is to say in a few words, and the figures behind that."""

    question: str
    short: str
    figures: Sequence[str] = ()

    def render(self) -> list[str]:
        """An entry of a list, with a list of the figures in it."""
        inner = [f"  {line}" for text in self.figures for line in wrap_item(text, 116)]
        return [*wrap_item(f"**{self.question}** {self.short}"), *inner]


def render_answers() -> list[str]:
    """The part of the page that comes first."""
    answers = (
        answer_accuracy(),
        answer_ftrl(),
        answer_lambda(),
        answer_one_pass(),
        answer_rules(),
        Answer(
            "Can noisy activations replace noisy gradients?",
            "Not at the published ε: an audit refutes it. The table, beside methods with a proof, is in "
            "[sanitize](sanitize.md#beside-each-other).",
        ),
    )
    return ["## What to believe", "", *(line for one in answers for line in one.render()), "", *wrap(LEGEND), ""]


def give_verdict(verdicts: Sequence[str]) -> str:
    """Yes if ahead everywhere, no if nowhere."""
    ahead = verdicts.count("ahead")
    if ahead == len(verdicts):
        return "yes"
    return f"in {ahead} of {len(verdicts)} comparisons" if ahead else "no"


def tell_missing(cells: Sequence[Cell]) -> str:
    """That there is no answer, and how much is there."""
    done, planned = sum(len(c.runs) for c in cells), sum(len(c.trials) for c in cells)
    return f"not known yet ({done} of {planned} runs are in)"


def answer_accuracy() -> Answer:
    """Whether the published accuracies come out."""
    tables = (
        ("Tables I and II (DP-SGD)", mnist.list_dpsgd(0.9)),
        ("Table III (DP-FTRL)", mnist.list_ftrl()),
        ("Table IV (both)", mnist.list_versus(0.9)),
    )
    rows = [row for _, table in tables for row in table]
    bare = [*mnist.list_dpsgd(0.0), *(row for row in mnist.list_versus(0.0) if row.model.startswith("dp-sgd"))]
    good, without = (sum(bool(row.runs) and not row.short for row in some) for some in (rows, bare))
    known = sum(bool(row.runs) for row in rows)
    among = f"the {known} rows that were run, of {len(rows)}," if known < len(rows) else f"{len(rows)} rows"
    short = (
        f"{good} of {among} are within a point of the published accuracy or above it, where DP-SGD has a "
        f"momentum of 0.9, which the publication does not name; without it {without} of DP-SGD's {len(bare)} rows are."
    )
    told = []
    for name, table in tables:
        missing, few = sum(not row.runs for row in table), sum(0 < len(row.runs) < mnist.SEEDS for row in table)
        text = f"{name}: {mnist.tell_agreement(table)}"
        text += f" {missing} of {len(table)} rows are not run yet." if missing else ""
        told.append(text + (f" Rows with fewer than {mnist.SEEDS} seeds so far: {few}." if few else ""))
    return Answer("Do the published accuracies come out?", short, told)


def answer_ftrl() -> Answer:
    """DP-FTRL against DP-SGD at equal ε."""
    verdicts, told = [], []
    for momentum, name in ((0.9, "DP-SGD with momentum 0.9"), (0.0, "DP-SGD without momentum")):
        found = [
            (target, Comparison(list_percent(ftrl), list_percent(sgd)))
            for target in VERSUS
            if (ftrl := pick_versus(target, "dp-ftrl", 0.0)) and (sgd := pick_versus(target, "dp-sgd", momentum))
        ]
        if found:
            each = "; ".join(f"{_tell_pair(one)} at ε = {target:g}" for target, one in found)
            only = f" (at {len(found)} of {len(VERSUS)} ε so far)" if len(found) < len(VERSUS) else ""
            verdicts.append(f"against {name} {give_verdict([one.verdict for _, one in found])}{only}")
            told.append(f"Against {name}: {each}.")
    done, planned = len(records.read("mnist-versus")), len(read_spec(records.SPECS / "mnist-versus.toml").trials)
    short = "; ".join(verdicts).capitalize() + "." if verdicts else "Not known yet."
    short = short.replace("dp-sgd", "DP-SGD") + (f" {done} of {planned} runs are in." if done < planned else "")
    short += " Learning rates and epochs are the published ones: 20 epochs for DP-SGD, 10 for DP-FTRL."
    return Answer("Does DP-FTRL beat DP-SGD at equal ε, both accounted exactly?", short, told)


def _tell_pair(one: Comparison) -> str:
    return f"{tell_values(list(one.first))} against {tell_values(list(one.second))} ({one.verdict})"


def answer_lambda() -> Answer:
    """ME-λ against DP-SGD and ME."""
    cells = read_cells("setup-3-reduced")
    short, told = [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        pairs = _compare_all(here, MANY[-1], MANY[:-1])
        verdict = give_verdict([one.verdict for _, _, one in pairs]) if pairs else tell_missing(here)
        so_far = " so far" if pairs and not all(c.complete for c in here) else ""
        short.append(f"at ε = {target:g} {verdict}{so_far}")
        if pairs:
            each = "; ".join(f"{problem}, against {METHODS[other]}: {_tell_pair(one)}" for problem, other, one in pairs)
            told.append(f"ε = {target:g}. {each}.{_tell_left(here)}")
    return Answer("With noise of the right size, does ME-λ beat DP-SGD and ME?", _join(short), told)


def _join(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _compare_all(cells: Sequence[Cell], method: str, others: Iterable[str]) -> list[tuple[str, str, Comparison]]:
    """A method with others, on every problem and batch where both are known."""
    found = []
    for own in (c for c in cells if c.method == method and c.seeds):
        for other in others:
            cell = find_cell(cells, problem=own.problem, method=other, epsilon=own.epsilon, batch=own.batch)
            if cell is not None and cell.seeds:
                found.append((PROBLEMS[own.problem], other, compare(own, cell)))
    return found


def _tell_left(cells: Sequence[Cell]) -> str:
    missing = sorted({PROBLEMS[c.problem] for c in cells if not c.complete})
    return f" Not all runs are in: {', '.join(missing)}." if missing else ""


def answer_one_pass() -> Answer:
    """SE against DP-SGD in one pass, with SE-λ beside them."""
    cells = read_one_pass()
    short, told = [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        verdicts, each = [], []
        for batch in sorted({c.batch for c in here}):
            sgd, se, aware = (find_cell(here, method=m, batch=batch) for m in ONE_PASS)
            if sgd is not None and se is not None and sgd.seeds and se.seeds:
                one = compare(se, sgd)
                verdicts.append(one.verdict)
                more = f", SE-λ {tell_values(aware.values)}" if aware is not None and aware.seeds else ""
                each.append(f"batch {batch} {_tell_pair(one)}{more}")
        short.append(f"at ε = {target:g} {give_verdict(verdicts) if verdicts else tell_missing(here)}")
        if each:
            told.append(f"ε = {target:g}, SE against DP-SGD: {'; '.join(each)}.{_tell_left(here)}")
    return Answer("In one pass, does SE beat DP-SGD?", _join(short), told)


def answer_rules() -> Answer:
    """Which of five rules is best."""
    cells = read_cells("setup-1-reduced")
    told = []
    for problem in dict.fromkeys(c.problem for c in cells):
        for target in list_targets(cells):
            here = [c for c in cells if c.problem == problem and c.epsilon == target]
            if all(c.complete for c in here) and sum(bool(c.seeds) for c in here) > 1:
                told.append(f"{PROBLEMS[problem]}, ε = {target:g}: {rank(here)}.")
    short = "The best first:" if told else _join([tell_missing(cells)])
    return Answer("Which of five rules for a private step is best over ten epochs?", short, told)


def rank(cells: Sequence[Cell]) -> str:
    """Methods with their figures, the best first, and which of them are level with it."""
    known = [c for c in cells if c.seeds]
    sign = find_merit([run for c in known for run in c.seeds]).sign
    order = sorted(known, key=lambda c: -sign * statistics.mean(c.values))
    level = [METHODS[c.method] for c in order[1:] if compare(order[0], c).verdict == "level"]
    each = ", ".join(f"{METHODS[c.method]} {tell_values(c.values)}" for c in order)
    return each + (f"; level with the first: {', '.join(level)}" if level else "; the first is ahead of all")
