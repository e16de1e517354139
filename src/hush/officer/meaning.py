"""What is promised, and how sure it is: who is protected, the best odds of any attacker, and ε and δ in a sentence."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from hush.officer.blocks import Box, Paragraph, Picture, Points, Section, Table
from hush.officer.phrases import (
    ALARM,
    CAPTION,
    CASES,
    HALF,
    NO_LETTERS,
    NO_LIMIT,
    OTHERS,
    OTHERWISE,
    QUESTION,
    WARNINGS,
    WHOSE,
)
from hush.officer.reading import Read
from hush.privacy.guarantee import rounded_up
from hush.privacy.odds import Words, best_odds, in_words
from hush.privacy.tradeoff import Curve

WIDE_RIGHT, WIDE_BELIEF = 0.9, 0.99  # an attacker who may be right so often at 50:50, or so sure, is hardly held back
EXCEPTIONS = (0.01, 0.0001)  # how rare the cases are in which an attacker may become surer than is told
CERTAIN = Decimal(100)
SPACE = "\u00a0"
LONG = 40.0  # ε from which on its factor is told by its length


def sum_up(read: Read) -> Section:
    """The answer in a box."""
    warnings = _find_weakness(read)
    return Section("In short", (_box(read, weak=bool(warnings)), *warnings))


def tell_who(read: Read) -> Section:
    """Who is protected, against whom and against what."""
    title, unit = "Who is protected, and against what?", read.unit
    if not read.proven:
        text = f"Nobody is protected in a way that could be relied on. What is at stake is every {unit} of the "
        return Section(title, (Paragraph(f"{text}training data. {_unit_in_words(read)}"),))
    whose = f"{WHOSE[read.protects]}every {unit}"
    items = (
        f"{whose[0].upper()}{whose[1:]} that was used for training, each alike. {_unit_in_words(read)}",
        "Anybody who gets the released files (named near the end), at any time, with any computer and any other "
        f"information, even if they know every other {unit} and how the training was done.",
        f"Finding out {CASES[read.asked].format(unit=unit)}.",
    )
    return Section(title, (Points(items, names=("Who.", "Against whom.", "Against what.")),))


def tell_odds(read: Read) -> Section:
    """The best odds of any attacker, as sentences, table and picture; then ε and δ."""
    title = f"How sure is it? What it means for one {read.unit}"
    if read.curve is None:
        return Section(title, (Paragraph(NO_LIMIT), _letters(read)))
    words = odds_of(read)
    blocks = (
        Picture(read.curve),
        _tell_attempts(read, read.curve, words),
        Table(words.columns, words.rows, "figures"),
        Paragraph(_tell_row(read, words.rows[1])),
        Paragraph(_origin(read)),
        _letters(read),
    )
    return Section(title, blocks)


def odds_of(read: Read) -> Words:
    """What the card's curve means for one unit."""
    if read.curve is None:
        raise ValueError("nothing limits an attacker")
    return in_words(read.curve, adjacency=read.guarantee.adjacency, unit=read.unit, protects=read.protects)


def one_in(delta: float) -> str:
    """A small probability as "1 in so many", never smaller than it is."""
    if delta == 0:
        return "0"
    return f"1 in {_grouped(int(1 / Decimal(repr(delta))))}"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", SPACE)


def _box(read: Read, *, weak: bool) -> Box:
    if not read.proven:
        title, text = WARNINGS[read.guarantee.status]
        return Box("warning", title, text.format(unit=read.unit))
    return Box(
        "plain" if weak else "good",
        f"Proven: what the released files can reveal about {WHOSE[read.protects]}any one {read.unit} is limited, if "
        "section 5 holds",
        f"{odds_of(read).sentences[0]} It follows by mathematics from the training if all of section 5 is true, and "
        "does not cover what section 4 lists.",
    )


def _find_weakness(read: Read) -> tuple[Box, ...]:
    """What makes a proven limit worth little: it is for a half of the data, or wide, or δ leaves room for somebody to
    be published outright."""
    found = [Box("warning", *HALF[read.protects])] if read.proven and read.protects != "example" else []
    even = None if read.curve is None else best_odds(read.curve, 0.5)
    if even is not None and (even.right >= WIDE_RIGHT or even.belief >= WIDE_BELIEF):
        text = (
            f"The limit is proven, but so wide that it rules out little: about some {read.unit}s an attacker may "
            "become nearly certain. Do not rely on it alone."
        )
        found.append(Box("warning", "Warning: a wide limit", text))
    if read.proven and read.examples is not None and read.guarantee.delta * read.examples >= 1:
        text = (
            f"It leaves out a probability of {one_in(read.guarantee.delta)} (section 3, last line), and there are "
            f"{_grouped(read.examples)} {read.unit}s: such a limit would hold even if some of them were published as "
            "they are. Ask for a smaller one."
        )
        found.append(Box("warning", "Warning: the limit leaves too much out", text))
    return tuple(found)


def _unit_in_words(read: Read) -> str:
    unit, row = read.unit, "One example is one row (record, picture) of the training data."
    if read.whole_unit:
        row = f"One {unit} is all rows of the training data that belong to it."
    if not read.proven:
        return row
    if not read.whole_unit:
        return (
            f"{row} Where every person has one row, that is one person. Where a person has several rows, each row is "
            "protected, and the person less well than the figures say: then ask for training with a person's rows as "
            "one."
        )
    most = "" if read.rows_per_unit is None else f", of which at most {read.rows_per_unit} are looked at in one step"
    return (
        f"{row[:-1]}{most}. All that one {unit} contributed counts together as one. Where every person is one "
        f"{unit}, that is one person. Where a person is several of them, each is protected, and "
        "the person less well than the figures say."
    )


def _tell_attempts(read: Read, curve: Curve, words: Words) -> Points:
    """What can be said to a person, the worst that can happen, tests of many, and the picture."""
    who = f"is one {read.unit}" if read.whole_unit else "has one row"
    adjacency = read.guarantee.adjacency
    said = in_words(curve, adjacency=adjacency, unit="person", protects=read.protects).sentences[0]
    found = {
        "In one sentence.": f"To a person who {who} one may say: “{said}”",
        "The worst case.": _tell_worst(read, curve),
        "Tests.": f"A test is any way to tell from the files; {ALARM[read.asked]}. {words.sentences[-1]}",
        "The picture": CAPTION,
    }
    return Points(tuple(found.values()), names=tuple(found))


def _tell_worst(read: Read, curve: Curve) -> str:
    """That certainty is made rare and not ruled out: the belief of `best_odds`, at two exceptions."""
    told = []
    for exception in EXCEPTIONS:
        belief = _percent_up(best_odds(curve, 0.5, exception=exception).belief)
        if belief >= CERTAIN:
            told.append(f"they become as good as certain with a chance that may be more than {one_in(exception)}")
            break
        told.append(f"they come to think it more than {belief:f} % likely with a chance of at most {one_in(exception)}")
    return (
        "An attacker becomes nearly certain. That is made rare, not ruled out: if they think it 50:50 that "
        f"{QUESTION[read.asked]}, {', and '.join(told).replace(', and they come to think it', ', and')}."
    )


def _percent_up(share: float) -> Decimal:
    """In hundredths, to one decimal, rounded up."""
    return Decimal(f"{100 * share:.8f}").quantize(Decimal("0.1"), ROUND_CEILING)


def _tell_row(read: Read, row: tuple[str, ...]) -> str:
    before, without, right, accusing, after = row
    return (
        f"The second row in words: somebody who thinks it {before} likely that {QUESTION[read.asked]} is right "
        f"{without} times in 100 without the files, by always saying no, and at most {right} times with them. If they "
        f"accuse only 1 in 100 of {OTHERS[read.asked]}, at most {accusing} in 100 of their accusations are right. "
        f"Afterwards they think it at most {after} likely, but for at most 1 case in 100."
    )


def _origin(read: Read) -> str:
    source = "the exact method that was run" if read.by_event else "the two numbers below alone"
    wide = "" if read.by_event else " The true ones may be far lower."
    return (
        f"All these figures are upper limits, computed from {source} and rounded up.{wide} Chance here is that of the "
        "random numbers of the training: “1 in 100” means in 1 of 100 such trainings, on average."
    )


def _letters(read: Read) -> Points:
    """ε and δ, a sentence each."""
    guarantee, unit = read.guarantee, read.unit
    otherwise = OTHERWISE[read.asked].format(unit=unit)
    if not read.proven:
        return Points(NO_LETTERS, names=("ε", "δ"))
    epsilon = f"here {rounded_up(guarantee.epsilon)}"
    delta = f"here {rounded_up(guarantee.delta)}, that is {one_in(guarantee.delta)}"
    return Points(
        (
            f"(epsilon, {epsilon}) limits how much the result depends on {WHOSE[read.protects]}one {unit}: but for the "
            f"next line, whatever may come out is at most {_factor(read)} as likely as it would be {otherwise}, and "
            "vice versa.",
            f"(delta, {delta}) is added to that limit: what could never happen {otherwise} may happen with this "
            "chance, at most.",
        ),
        names=("ε", "δ"),
    )


def _factor(read: Read) -> str:
    """e^ε in digits that anybody can read, rounded up."""
    epsilon = read.guarantee.epsilon
    if epsilon > LONG:
        return f"so many times (a number of {math.ceil(epsilon / math.log(10))} digits)"
    factor = math.exp(epsilon) * (1 + 1e-12)
    if factor < 1000:
        return f"{rounded_up(factor)} times"
    unit = 10 ** (math.floor(math.log10(factor)) - 2)
    return f"{_grouped(math.ceil(factor / unit) * unit)} times"
