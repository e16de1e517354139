"""Questions that the published tables were made for, answered by our records, or not while those are missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from published import mnist
from published.mnist import SEEDS, VERSUS, pick_versus
from published.records import list_percent, tell_values, wrap, wrap_item
from published.setups import MANY, MANY_PUBLISHED, METHODS, ONE_PASS, SHORT, list_targets
from published.sweeps import (
    AHEAD,
    ALONE,
    BEHIND,
    LOST,
    OPEN,
    Cell,
    Comparison,
    compare,
    find_cell,
    find_merit,
    read_setup,
)

LEGEND = (
    "Figures are test accuracies in percent, mean ± deviation (seeds); of the VAE, its loss, of which less is better. "
    "After two of them comes the lead of the first with its 95 % interval (Welch's, one comparison at a time: of equal "
    "methods one in twenty is called different, more where the best of several is compared with the rest). *Ahead* or "
    "*behind* is said where the interval leaves out zero, and a loss has to lead by more than it still moves from "
    "epoch to epoch; else the two are *not distinguishable*, which does not mean equal. Of single runs the difference "
    "is "
    "given, and no verdict. Where rates were chosen, the first seed is the run by which the rate was chosen, so its "
    "figure is a little flattered; ▴ or ▾ marks the largest or smallest rate tried, beyond which a better one may lie."
)
NAMES = (
    "P1 and P2 are small convolutional networks, P3 a variational autoencoder (the VAE). SE and ME are noise that is "
    "correlated over steps so that little of it is left in the sums of gradients, in one pass over the data and in "
    "several; SE-λ and ME-λ weigh these sums otherwise, with τ = T the last one √T times as much as every other "
    "([correlated-noise](correlated-noise.md) has them all). DP-FTRL adds noise to the nodes of a tree of "
    "partial sums; node noise is its deviation, in clips. DP-AdamBC takes the noise's share off Adam's second moment, "
    "DiSK filters the noise, DiceSGD brings back what clipping cut off: [choose-a-method](choose-a-method.md). A "
    "normalised clip divides by the clip, so that the learning rate does not depend on it."
)


@dataclass(frozen=True)
class Answer:
    """A question, what there is to say in a few words, and the figures behind that."""

    question: str
    short: str
    metrics: Sequence[str] = ()

    def render(self) -> list[str]:
        """An entry of a list, with a list of the figures in it."""
        inner = [f"  {line}" for text in self.metrics for line in wrap_item(text, 116)]
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
            "Not at the published ε: an audit refutes it. A comparison with proven methods is in "
            "[sanitize](sanitize.md#comparison).",
        ),
    )
    return [
        "## What to believe",
        "",
        *(line for one in answers for line in one.render()),
        "",
        *wrap(LEGEND),
        "",
        *wrap(NAMES),
        "",
    ]


WORDS = {
    AHEAD: "ahead of",
    BEHIND: "behind",
    OPEN: "not distinguishable from",
    ALONE: "single runs only against",
    LOST: "not judged, as a seed diverged, against",
}


def group_verdicts(pairs: Sequence[tuple[str, Comparison]]) -> dict[str, list[str]]:
    """The opponents by what was found of each."""
    grouped: dict[str, list[str]] = {}
    for name, one in pairs:
        grouped.setdefault(one.verdict, []).append(name)
    return grouped


def tell_groups(grouped: dict[str, list[str]], before: str = "") -> str:
    """Of whom a method is what."""
    return ", ".join(f"{said} {before}{join_names(grouped[v])}" for v, said in WORDS.items() if v in grouped)


def give_verdict(pairs: Sequence[tuple[str, Comparison]], before: str = "") -> str:
    """Yes if ahead of every opponent, no if behind one and ahead of none, and of whom it is what."""
    grouped = group_verdicts(pairs)
    told = tell_groups(grouped, before)
    if set(grouped) == {AHEAD}:
        return f"yes ({told})"
    if AHEAD in grouped:
        return f"in part ({told})"
    return f"no ({told})" if BEHIND in grouped else f"not shown ({told})"


def join_names(names: Sequence[str]) -> str:
    """A, B and C."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def tell_missing(cells: Sequence[Cell]) -> str:
    """That there is no answer, and how much is there; or that there can be none."""
    lost = [METHODS[c.method] for c in cells if c.diverged]
    if lost and all(c.complete for c in cells):
        return f"no comparison ({join_names(list(dict.fromkeys(lost)))} diverged at every rate)"
    done = sum(c.complete for c in cells)
    return f"not known yet (all rates are in for {done} of {len(cells)})"


def answer_accuracy() -> Answer:
    """Whether the published accuracies come out."""
    tables = (
        ("Tables I and II (DP-SGD)", mnist.list_dpsgd(0.9)),
        ("Table III (DP-FTRL)", mnist.list_ftrl()),
        ("Table IV (both)", [*mnist.list_versus(0.9), *mnist.list_trees()]),
    )
    rows = [row for _, table in tables for row in table]
    bare = [*mnist.list_dpsgd(0.0), *mnist.list_versus(0.0)]
    good, without = (sum(bool(row.runs) and not row.short for row in some) for some in (rows, bare))
    above = [row for row in rows if (row.difference or 0.0) > mnist.NEAR]
    known = sum(bool(row.runs) for row in rows)
    among = f"the {known} rows that were run, of {len(rows)}," if known < len(rows) else f"{len(rows)} rows"
    short = (
        f"{good} of {among} of Tables I to IV are within a point of the published accuracy or above it: "
        f"{good - len(above)} within a point, {len(above)} more than a point above{_tell_quieter(above)}. DP-SGD has a "
        "momentum of 0.9 for this, which the publication does not name and which was taken because it fits; without it "
        f"{without} of DP-SGD's {len(bare)} rows come out, most of them single runs. A point is a measure of ours; of "
        f"how many runs a published figure is, the publication does not say.{_tell_uncounted()}"
    )
    told = []
    for name, table in tables:
        missing, few = sum(not row.runs for row in table), sum(0 < len(row.runs) < SEEDS for row in table)
        text = f"{name}: {mnist.tell_agreement(table)}"
        text += f" {missing} of {len(table)} rows are not run yet." if missing else ""
        told.append(text + (f" Rows with fewer than {SEEDS} seeds so far: {few}." if few else ""))
    return Answer("Do the published accuracies come out?", short, told)


def _tell_quieter(above: Sequence[mnist.Row]) -> str:
    """How many of the rows are of Table IV's DP-FTRL, whose noise is less than what was printed."""
    count = sum(row.model.startswith("dp-ftrl") for row in above)
    return f" (of these {count} with less noise than printed, as exact accounting allows)" if count else ""


def _tell_uncounted() -> str:
    """Published accuracies that are not of Tables I to IV, and how far from them we are."""
    cells = [c for c in read_setup("setup-3") if c.problem == "cifar10-p1" and c.seeds]
    lacks = [float(MANY_PUBLISHED[int(c.epsilon)][MANY.index(c.method)]) - statistics.mean(c.values) for c in cells]
    many = f"setup 3, at a third of its epochs {min(lacks):.0f} to {max(lacks):.0f} points below, and " if lacks else ""
    return f" Not counted: {many}a layer of noise, whose CIFAR-10 figures do not come out ([sanitize](sanitize.md))."


ESTIMATES = {
    mnist.PLAIN: "by plain sums of nodes, charged for all nodes as published,",
    mnist.READ: "by plain sums, charged for the nodes they read,",
    mnist.BEST: "by the best estimate from all nodes,",
}


def answer_ftrl() -> Answer:
    """DP-FTRL against DP-SGD at equal ε: as published, charged for less, and with a better estimate from the nodes."""
    short, told = [], []
    for kind, name in ESTIMATES.items():
        for momentum, other in ((0.9, "DP-SGD with momentum 0.9"), (0.0, "DP-SGD without momentum")):
            found = [
                (target, Comparison(list_percent(ftrl), list_percent(sgd)))
                for target in VERSUS
                if (ftrl := mnist.TREES[kind](target)) and (sgd := pick_versus(target, "dp-sgd", momentum))
            ]
            if found:
                each = "; ".join(f"{tell_pair(one)} at ε = {target:g}" for target, one in found)
                told.append(f"DP-FTRL {name.rstrip(',')}, against {other}: {each}.")
                if momentum:
                    so_far = "" if len(found) == len(VERSUS) else " so far"
                    short.append(f"{name} {give_verdict([(f'{t:g}', one) for t, one in found], 'it at ε = ')}{so_far}")
    if not short:
        return Answer("Does DP-FTRL beat DP-SGD at equal ε, both accounted exactly?", "Not known yet.")
    end = (
        " Learning rates and epochs are the published ones: 20 epochs for DP-SGD, 10 for DP-FTRL, which has no "
        "momentum and holds nothing out where DP-SGD holds out a tenth. The best estimate is `honaker`, "
        "post-processing: it costs no ε."
    )
    answer = f"Against DP-SGD with momentum 0.9: {'; '.join(short)}.{end}"
    return Answer("Does DP-FTRL beat DP-SGD at equal ε, both accounted exactly?", answer, told)


def tell_pair(one: Comparison) -> str:
    """Both figures and what follows."""
    return f"{tell_values(list(one.first))} against {tell_values(list(one.second))} ({one.notify()})"


def answer_lambda() -> Answer:
    """ME-λ against DP-SGD and ME."""
    cells = read_setup("setup-3")
    short, told = [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        pairs = _compare_all(here, MANY[-1], MANY[:-1])
        verdict = give_verdict([(name, one) for name, one, _ in pairs]) if pairs else tell_missing(here)
        short.append(f"at ε = {target:g} {verdict}{_tell_so_far(here) if pairs else ''}")
        if pairs:
            each = "; ".join(f"against {name} {text}" for name, _, text in pairs)
            told.append(f"ε = {target:g}: {each}.{_tell_left(here)}")
    question = "With noise of the right size and τ = T, does ME-λ beat DP-SGD and ME over ten epochs?"
    return Answer(question, _join(short), told)


def _join(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _compare_all(cells: Sequence[Cell], method: str, others: Iterable[str]) -> list[tuple[str, Comparison, str]]:
    """A method with others, on every problem and batch where both are known: name, comparison, figures."""
    found = []
    for own in (c for c in cells if c.method == method and c.seeds):
        for other in others:
            cell = find_cell(cells, problem=own.problem, method=other, epsilon=own.epsilon, batch=own.batch)
            if cell is not None and cell.seeds:
                one = compare(own, cell)
                found.append((f"{METHODS[other]} on {SHORT[own.problem]}", one, _tell_cells(own, cell, one)))
    return found


def _tell_cells(first: Cell, second: Cell, one: Comparison) -> str:
    return f"{first.tell_values()} against {second.tell_values()} ({one.notify()})"


def _tell_left(cells: Sequence[Cell]) -> str:
    """What a reader of figures would miss: rates that are not run, and methods that diverged at every rate."""
    missing = sorted({SHORT[c.problem] for c in cells if not c.complete})
    lost = [f"{METHODS[c.method]} on {SHORT[c.problem]}" for c in cells if c.diverged]
    told = f" Not all runs are in: {', '.join(missing)}." if missing else ""
    return told + (f" Diverged at every rate: {', '.join(lost)}." if lost else "")


def _tell_so_far(cells: Sequence[Cell]) -> str:
    """Whether rates or seeds are missing."""
    whole = all(c.complete and (c.diverged or len(c.seeds) + c.lost >= SEEDS) for c in cells)
    return "" if whole else " so far"


def answer_one_pass() -> Answer:
    """SE against DP-SGD in one pass, with SE-λ beside them."""
    cells = read_setup("setup-2")
    short, told = [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        pairs, each = [], []
        for batch in sorted({c.batch for c in here}):
            sgd, se, aware = (find_cell(here, method=m, batch=batch) for m in ONE_PASS)
            if sgd is not None and se is not None and sgd.seeds and se.seeds:
                one = compare(se, sgd)
                pairs.append((f"{batch}", one))
                more = f"; SE-λ {_tell_cells(aware, sgd, compare(aware, sgd))}" if aware and aware.seeds else ""
                each.append(f"batch {batch}, SE {_tell_cells(se, sgd, one)}{more}")
        verdict = f"{give_verdict(pairs, 'it at batch ')}{_tell_so_far(here)}" if pairs else tell_missing(here)
        short.append(f"at ε = {target:g} {verdict}")
        if each:
            told.append(f"ε = {target:g}, against DP-SGD: {'; '.join(each)}.{_tell_left(here)}")
    return Answer("In one pass, does SE beat DP-SGD?", _join(short), told)


def answer_rules() -> Answer:
    """Which of five rules is best."""
    cells = read_setup("setup-1")
    short, told = [], []
    for problem in dict.fromkeys(c.problem for c in cells):
        for target in list_targets(cells):
            here = [c for c in cells if c.problem == problem and c.epsilon == target]
            name = f"{SHORT[problem]} at ε = {target:g}"
            if all(c.complete for c in here) and order(here):
                short.append(f"on {name} {lead(here)}{_tell_so_far(here)}")
                told.append(f"{name}: {rank(here)}.{_tell_left(here)}")
            else:
                short.append(f"on {name} {tell_missing(here)}")
    return Answer("Which of five rules for a private step is best over ten epochs?", _join(short), told)


def order(cells: Sequence[Cell]) -> list[Cell]:
    """The best first; those that diverged at every rate are not in it."""
    known = [c for c in cells if c.seeds]
    if not known:
        return []
    sign = find_merit([run for c in known for run in c.seeds]).sign
    return sorted(known, key=lambda c: -sign * statistics.mean(c.values))


def lead(cells: Sequence[Cell]) -> str:
    """The best, and of whom it is ahead."""
    first, *others = order(cells)
    name = METHODS[first.method]
    if not others:
        return f"{name}, the only one that did not diverge at every rate"
    if len(first.seeds) < 2:
        return "not known yet (single runs)"
    told = group_verdicts([(METHODS[c.method], compare(first, c)) for c in others])
    return f"{name} comes first, {'ahead of all' if set(told) == {AHEAD} else tell_groups(told)}"


def rank(cells: Sequence[Cell]) -> str:
    """Methods with their figures, the best first, and how far each is behind it."""
    first, *others = order(cells)
    told = [f"{METHODS[c.method]} {c.tell_values()} ({compare(c, first).notify()})" for c in others]
    return ", ".join([f"{METHODS[first.method]} {first.tell_values()}", *told])
