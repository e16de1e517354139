"""Questions that the published tables were made for, answered by our records, or not while those are missing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from published import experiments, faults, mnist, sanitisation
from published.blocks import list_tries
from published.mnist import SEEDS, VERSUS, pick_versus
from published.records import link, list_percent, table, tell_values, wrap
from published.setups import MANY, METHODS, ONE_PASS, RULES, SHORT, list_targets
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
    "The interval of a lead is Welch's, one comparison at a time: of equal methods one in twenty is called different, "
    "more where the best of several is compared with the rest. *Ahead* or *behind* is said "
    "where the interval leaves out zero, and a loss has to lead by more than it still moves from "
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


COMPARED = ("", "method", "reached", "against", "reached", "lead", "95 % interval of the lead", "")


@dataclass(frozen=True)
class Answer:
    """A question, what there is to say, where the evidence is, the comparisons behind it, and notes; ``brief`` is what
    the table of answers says where that is less."""

    question: str
    short: str
    evidence: str = ""
    rows: Sequence[tuple[str, ...]] = ()
    notes: Sequence[str] = ()
    brief: str = ""

    def render(self) -> list[str]:
        """What the table of answers leaves out, and the comparisons as a table."""
        told = [*wrap(f"**{self.question}** {self.short}"), ""] if self.brief else []
        shown = table(COMPARED, self.rows) if self.rows else []
        return [*told, *shown, *(line for note in self.notes for line in [*wrap(note), ""])]


def list_answers() -> dict[str, Answer]:
    """Every question, by the part of the page that has its evidence."""
    return {
        "mnist-dpsgd": answer_accuracy(),
        "mnist-ftrl": answer_weights(),
        "mnist-versus": answer_ftrl(),
        "setup-3-reduced": answer_lambda(),
        "setup-2": answer_one_pass(),
        "setup-1-reduced": answer_rules(),
        "building-blocks": answer_tries(),
    }


def render_answers() -> list[str]:
    """The part of the page that comes first."""
    known = list_answers()
    last = known.pop("building-blocks")
    answers = [
        *known.values(),
        Answer(
            "Can noisy activations replace noisy gradients?",
            "Not at the published ε: an audit refutes it.",
            "[comparison](sanitize.md#comparison)",
        ),
        Answer(
            "Which noise did the publication of the sanitisation layer use?",
            sanitisation.tell_reading(),
            "[both readings](#two-readings-of-the-sanitisation-layer)",
        ),
        last,
    ]
    rows = [(f"**{one.question}**", one.brief or one.short, one.evidence) for one in answers]
    return ["## Answers", "", *table(("question", "answer", "evidence"), rows)]


def _shorten(verdict: str) -> str:
    """A verdict without its comparisons."""
    return verdict.partition(" (")[0]


@dataclass(frozen=True)
class Claim:
    """Something that a publication reports, and whether our runs show it; None while they are missing."""

    publication: str
    text: str
    holds: bool | None


def list_claims() -> list[Claim]:
    """What the four publications report."""
    tables = {
        "Tables I and II, with momentum 0.9": mnist.list_dpsgd(0.9),
        "Table III": mnist.list_ftrl(),
        "Table III, published initial weights": mnist.list_initialised(),
        "Table IV, with momentum 0.9": _list_versus(),
    }
    claims = []
    for name, rows in tables.items():
        good = [row for row in rows if row.runs and not row.short]
        claims.append(Claim("000", f"{name}: {len(good)} of {len(rows)} rows", True if good else None))
        claims += [Claim("000", f"{name}: {row.tell_lack()}", False) for row in rows if row.short]
    once, many, five = (read_setup(setup) for setup in ("setup-2", "setup-3", "setup-1"))
    first, second = ONE_PASS[1], ONE_PASS[0]
    claims.append(Claim("002", "setup 2: SE ahead of DP-SGD at ε = 10", _leads(once, first, second, 10)))
    claims.append(
        Claim("002", "setup 2: DP-SGD not behind SE at ε = 1", _not(_leads(once, first, second, 1, some=True)))
    )
    for epsilon in (1, 10):
        leads = [_leads(many, MANY[2], other, epsilon) for other in MANY[:2]]
        holds = None if None in leads else all(leads)
        claims.append(Claim("002", f"setup 3: ME-λ ahead of DP-SGD and ME at ε = {epsilon}", holds))
    beaten = [_leads(five, other, RULES[0], epsilon, some=True) for other in RULES[2:] for epsilon in (1, 10)]
    claims.append(Claim("002", "setup 1: DP-SGD not behind DP-AdamBC, DiSK and DiceSGD", _not(_any(beaten))))
    last = [_leads(five, other, RULES[4], epsilon) for other in RULES[:4] for epsilon in (1, 10)]
    claims.append(Claim("002", "setup 1: DiceSGD last", None if None in last else all(last)))
    for problem, title in sanitisation.PROBLEMS.items():
        for said, adaptive in zip(sanitisation.PUBLISHED[problem], (False, True), strict=False):
            reached = sanitisation.find_best(problem, "published", adaptive=adaptive)
            if said != "–":
                holds = None if reached is None else reached >= float(said) - mnist.NEAR
                ours = sanitisation.tell_reached(problem, "published", adaptive=adaptive)
                kind = "adaptive" if adaptive else "static"
                claims.append(Claim("003", f"{title}, {kind} C: {said} % with noise of Cσ√n (ours {ours})", holds))
    refuted = faults.read_refuted("sanitize")
    claims.append(Claim("003", f"its ε: claimed 1, measured at least {refuted['epsilon_lower']:.2f}", False))
    tries = [list_percent(runs) for _, runs in list_tries()[1:]]
    known = all(len(values) > 1 for values in tries)
    pairs = [("each try is ahead of the one before", 1), ("the fourth is ahead of the third", 3)]
    for text, start in pairs:
        ahead = [Comparison(b, a).verdict == AHEAD for a, b in pairwise(tries[start - 1 :])] if known else []
        claims.append(Claim("004", text, all(ahead) if known else None))
    return claims


def _list_versus() -> list[mnist.Row]:
    return [*mnist.list_versus(0.9), *mnist.list_trees()]


def _leads(cells: Sequence[Cell], first: str, second: str, epsilon: float, *, some: bool = False) -> bool | None:
    """Whether a method is ahead of another on every problem and batch, or on ``some``; None while runs are missing."""
    pairs = _compare_all([c for c in cells if c.epsilon == epsilon], first, [second])
    found = [one.verdict == AHEAD for _, one, _ in pairs if one.reach is not None]
    return None if not found else any(found) if some else all(found)


def _not(found: bool | None) -> bool | None:
    return None if found is None else not found


def _any(found: Sequence[bool | None]) -> bool | None:
    return None if None in found else any(found)


def render_summary() -> list[str]:
    """All publications: what is there of them, what came out and what did not."""
    publications, known = experiments.read_map()
    claims, rows = list_claims(), []
    for number, title in publications.items():
        states = Counter(one.state for one in known if one.publication == number)
        counted = ", ".join(f"{states[state]} {state}" for state in experiments.STATES if states[state])
        told = [
            "; ".join(c.text for c in claims if (c.publication, c.holds) == (number, holds)) or "–"
            for holds in (True, False)
        ]
        rows.append((f"[{number}]({link(experiments.name_section(number))}): {title}", counted, *told))
    return ["## What came out", "", *table(("publication", "tables and figures", "came out", "did not"), rows)]


def answer_tries() -> Answer:
    """Which try is best, all as published."""
    question, evidence = "Does the fourth of four tries win?", "[four tries](#four-tries-at-one-small-network)"
    tries = [(name, list_percent(runs)) for name, runs in list_tries()[1:] if runs]
    if len(tries) < 4:
        return Answer(question, "Not known yet.", evidence)
    best = max(tries, key=lambda found: statistics.mean(found[1]))
    last, reached = tries[-1][1], statistics.mean(tries[-1][1])
    if best is tries[-1]:
        return Answer(question, f"Yes: {tell_values(last)}.", evidence)
    one = Comparison(last, best[1])
    brief = f"No: {reached:.1f} %, where try {best[0].partition(':')[0]} has {statistics.mean(best[1]):.1f} %."
    return Answer(question, brief, evidence, [list_pair("ε = 1", tries[-1][0], best[0], one)])


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
    rows = [row for _, listed in tables for row in listed]
    bare = [*mnist.list_dpsgd(0.0), *mnist.list_versus(0.0)]
    good, without = (sum(bool(row.runs) and not row.short for row in some) for some in (rows, bare))
    above = [row for row in rows if (row.difference or 0.0) > mnist.NEAR]
    known = sum(bool(row.runs) for row in rows)
    among = f"the {known} rows that were run, of {len(rows)}," if known < len(rows) else f"{len(rows)} rows"
    short = (
        f"{good} of {among} are within a point of the published accuracy or above it: "
        f"{good - len(above)} within a point, {len(above)} more than a point above{_tell_quieter(above)}. DP-SGD has a "
        f"momentum of 0.9 for this, which the publication does not name; without it {without} of its {len(bare)} rows "
        "come out."
    )
    brief = f"{good} of {known} rows, DP-SGD with momentum 0.9; without momentum {without} of its {len(bare)}."
    return Answer(
        "Do the published accuracies of Tables I to IV come out?",
        short,
        f"[tables]({link(experiments.name_section('000'))})",
        brief=brief if known else "Not known yet.",
    )


def answer_weights() -> Answer:
    """What the published initial weights change in Table III."""
    own = {row.noise: row for row in mnist.list_ftrl()}
    short, rows = [], []
    for row in mnist.list_initialised():
        one = Comparison(list_percent(row.runs), list_percent(own[row.noise].runs))
        lead = f"{row.difference:+.2f}".replace("-", "−")
        short.append(f"{row.noise} has {tell_values(list_percent(row.runs))}, {lead} against the publication")
        rows.append(list_pair(row.noise, "published initial weights", "torch's", one))
    told = f"{short[0][:1].upper()}{'; '.join(short)[1:]}." if short else "Not known yet."
    question = "Does Table III come out with the published initial weights?"
    return Answer(question, told, "[Table III](#dp-ftrl-on-mnist-table-iii)", rows)


def _tell_quieter(above: Sequence[mnist.Row]) -> str:
    """How many of the rows are of Table IV's DP-FTRL, whose noise is less than what was printed."""
    count = sum(row.model.startswith("dp-ftrl") for row in above)
    return f" (of these {count} with less noise than printed, as exact accounting allows)" if count else ""


ESTIMATES = {
    mnist.PLAIN: "by plain sums, charged for all nodes as published:",
    mnist.READ: "by plain sums, charged for the nodes they read:",
    mnist.BEST: "by the best estimate from all nodes:",
}


def answer_ftrl() -> Answer:
    """DP-FTRL against DP-SGD at equal ε: as published, charged for less, and with a better estimate from the nodes."""
    question = "Does DP-FTRL beat DP-SGD at equal ε, both accounted exactly?"
    short, brief, rows = [], [], []
    for kind, name in ESTIMATES.items():
        for momentum, other in ((0.9, "DP-SGD with momentum 0.9"), (0.0, "DP-SGD without momentum")):
            found = [
                (target, Comparison(list_percent(ftrl), list_percent(sgd)))
                for target in VERSUS
                if (ftrl := mnist.TREES[kind](target)) and (sgd := pick_versus(target, "dp-sgd", momentum))
            ]
            rows += [list_pair(f"ε = {target:g}", f"DP-FTRL {name.rstrip(':')}", other, one) for target, one in found]
            if found and momentum:
                so_far = "" if len(found) == len(VERSUS) else " so far"
                verdict = give_verdict([(f"{t:g}", one) for t, one in found], "it at ε = ")
                short.append(f"{name} {verdict}{so_far}")
                brief.append(f"{name} {_shorten(verdict)}{so_far}")
    if not short:
        return Answer(question, "Not known yet.")
    note = (
        "Learning rates and epochs are the published ones: 20 epochs for DP-SGD, 10 for DP-FTRL, which has no momentum "
        "and holds nothing out where DP-SGD holds out a tenth. The best estimate is `honaker`, post-processing."
    )
    evidence = "[Table IV](#dp-sgd-against-dp-ftrl-at-equal-ε-table-iv)"
    told = f"Against DP-SGD with momentum 0.9: {'; '.join(short)}."
    return Answer(question, told, evidence, rows, [note], brief=_join(brief))


def list_pair(where: str, first: str, second: str, one: Comparison, *told: str) -> tuple[str, ...]:
    """A line of a table of comparisons; ``told`` are both figures where they say more than mean and deviation."""
    reached = told or (tell_values(list(one.first)), tell_values(list(one.second)))
    return where, first, reached[0], second, reached[1], *one.cells()


def answer_lambda() -> Answer:
    """ME-λ against DP-SGD and ME."""
    cells = read_setup("setup-3")
    short, brief, rows, notes = [], [], [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        pairs = _compare_all(here, MANY[-1], MANY[:-1])
        verdict = give_verdict([(name, one) for name, one, _ in pairs]) if pairs else tell_missing(here)
        short.append(f"at ε = {target:g} {verdict}{_tell_so_far(here) if pairs else ''}")
        brief.append(f"at ε = {target:g} {_shorten(verdict)}")
        rows += [row for _, _, row in pairs]
        notes += _tell_left(here) if pairs else []
    question = "With noise of the right size and τ = T, does ME-λ beat DP-SGD and ME over ten epochs?"
    evidence = "[setup 3](#many-passes-with-correlated-noise-setup-3-reduced)"
    return Answer(question, _join(short), evidence, rows, notes, _join(brief))


def _join(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _compare_all(
    cells: Sequence[Cell], method: str, others: Iterable[str]
) -> list[tuple[str, Comparison, tuple[str, ...]]]:
    """A method with others, on every problem and batch where both are known: name, comparison, line of a table."""
    found = []
    for own in (c for c in cells if c.method == method and c.seeds):
        for other in others:
            cell = find_cell(cells, problem=own.problem, method=other, epsilon=own.epsilon, batch=own.batch)
            if cell is not None and cell.seeds:
                one = compare(own, cell)
                found.append((f"{METHODS[other]} on {SHORT[own.problem]}", one, _list_cells(own, cell, one)))
    return found


def _list_cells(first: Cell, second: Cell, one: Comparison) -> tuple[str, ...]:
    where = f"{SHORT[first.problem]}, ε = {first.epsilon:g}, batch {first.batch}"
    names = METHODS[first.method], METHODS[second.method]
    return list_pair(where, *names, one, first.tell_values(), second.tell_values())


def _tell_left(cells: Sequence[Cell]) -> list[str]:
    """What a reader of figures would miss: rates that are not run, and methods that diverged at every rate."""
    missing = sorted({SHORT[c.problem] for c in cells if not c.complete})
    lost = [f"{METHODS[c.method]} on {SHORT[c.problem]}" for c in cells if c.diverged]
    told = [f"Not all runs are in: {', '.join(missing)}."] if missing else []
    return told + ([f"Diverged at every rate: {', '.join(lost)}."] if lost else [])


def _tell_so_far(cells: Sequence[Cell]) -> str:
    """Whether rates or seeds are missing."""
    whole = all(c.complete and (c.diverged or len(c.seeds) + c.lost >= SEEDS) for c in cells)
    return "" if whole else " so far"


def answer_one_pass() -> Answer:
    """SE against DP-SGD in one pass, with SE-λ beside them."""
    cells = read_setup("setup-2")
    short, brief, rows, notes = [], [], [], []
    for target in list_targets(cells):
        here = [c for c in cells if c.epsilon == target]
        pairs = []
        for batch in sorted({c.batch for c in here}):
            sgd, *others = (find_cell(here, method=m, batch=batch) for m in ONE_PASS)
            known = [c for c in others if c is not None and c.seeds] if sgd is not None and sgd.seeds else []
            for cell in known:
                one = compare(cell, sgd)
                pairs += [(f"{batch}", one)] if cell.method == ONE_PASS[1] else []
                rows.append(_list_cells(cell, sgd, one))
        verdict = f"{give_verdict(pairs, 'it at batch ')}{_tell_so_far(here)}" if pairs else tell_missing(here)
        short.append(f"at ε = {target:g} {verdict}")
        brief.append(f"at ε = {target:g} {_shorten(verdict)}")
        notes += _tell_left(here) if pairs else []
    evidence = "[setup 2](#one-pass-over-fashion-mnist-setup-2)"
    return Answer("In one pass, does SE beat DP-SGD?", _join(short), evidence, rows, notes, _join(brief))


def answer_rules() -> Answer:
    """Which of five rules is best."""
    cells = read_setup("setup-1")
    short, brief, rows, notes = [], [], [], []
    for problem in dict.fromkeys(c.problem for c in cells):
        for target in list_targets(cells):
            here = [c for c in cells if c.problem == problem and c.epsilon == target]
            name = f"{SHORT[problem]} at ε = {target:g}"
            if all(c.complete for c in here) and order(here):
                short.append(f"on {name} {lead(here)}{_tell_so_far(here)}")
                first, *others = order(here)
                level = [METHODS[c.method] for c in others if compare(first, c).verdict != AHEAD]
                brief.append(f"{name}: {' or '.join([METHODS[first.method], *level])}")
                rows += [_list_cells(c, first, compare(c, first)) for c in others]
                notes += _tell_left(here)
            else:
                short.append(f"on {name} {tell_missing(here)}")
                brief.append(f"{name}: {_shorten(tell_missing(here))}")
    question = "Which of five rules for a private step is best over ten epochs?"
    evidence = "[setup 1](#five-rules-for-a-private-step-setup-1-reduced)"
    return Answer(question, _join(short), evidence, rows, notes, _join(brief))


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
