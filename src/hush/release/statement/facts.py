"""The whole statement, section by section, from a card and the three facts that are not in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

from hush._internal.text import dump_json
from hush.accounting import guarantee
from hush.accounting.guarantee import ACCOUNTING, Guarantee, Protects, rounded_up
from hush.accounting.tradeoff import Curve, Words, best_odds, curve_of_guarantee, curve_of_points, in_words
from hush.errors import HushError, InvalidInputError

# What a statement is made of: plain text in a few kinds of block. A renderer escapes every string of them.


@dataclass(frozen=True)
class Paragraph:
    """One paragraph."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Box:
    """What must not be overlooked: the answer in short, or a warning."""

    kind: ClassVar[str] = "box"
    tone: Literal["good", "plain", "warning"]
    title: str
    text: str


@dataclass(frozen=True)
class Points:
    """A list. ``style``: numbered, or boxes to tick, or neither; ``names`` are said before each point."""

    kind: ClassVar[str] = "points"
    items: tuple[str, ...]
    style: Literal["plain", "numbered", "boxes"] = "plain"
    names: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every point with its name; an empty one where there are no names."""
        return tuple(zip(self.names or ("",) * len(self.items), self.items, strict=True))


@dataclass(frozen=True)
class Table:
    """A small table; ``style``: figures (numbers to compare), facts (two columns: what and value) or files."""

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    style: Literal["figures", "facts", "files"] = "facts"


@dataclass(frozen=True)
class StatementFigure:
    """The trade-off curve, drawn where a page can hold a picture."""

    kind: ClassVar[str] = "picture"
    curve: Curve


@dataclass(frozen=True)
class Signature:
    """Lines to fill in by hand."""

    kind: ClassVar[str] = "signature"
    fields: tuple[str, ...]


Block: TypeAlias = Paragraph | Box | Points | Table | StatementFigure | Signature


@dataclass(frozen=True)
class StatementSection:
    """A heading and the blocks under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Statement:
    """The whole page."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[StatementSection, ...]


# What the page says in the same words wherever it says it: by what two neighbouring datasets differ in, by the part of
# a unit that is protected, and by status.

OTHERWISE = {
    "add-remove": "if that {unit} were not in the data",
    "zero-out": "if that {unit} counted for nothing",
    "replace": "if that {unit} had any other value",
    "features": "if that {unit} had any other features",
    "labels": "if that {unit} had any other label",
}
QUESTION = {
    "add-remove": "it is in the data",
    "zero-out": "it was used",
    "replace": "it has the first value",
    "features": "it has the first set of features",
    "labels": "it has the first label",
}
OTHERS = {
    "add-remove": "those not in the data",
    "zero-out": "those not used",
    "replace": "those with the second value",
    "features": "those with the second set of features",
    "labels": "those with the second label",
}
CASES = {
    "add-remove": "whether one given {unit} is in the training data or not. Anything else about it (say, a "
    "diagnosis) that the files show only because it is in the data is limited by the last two lines of section 3",
    "zero-out": "whether one given {unit} was used or counted for nothing. Anything else about it (say, a "
    "diagnosis) that the files show only because it was used is limited by the last two lines of section 3",
    "replace": "which of two possible values one given {unit} has, in all or in one entry such as a diagnosis",
    "features": "which of two possible sets of features (all that the model looks at) one given {unit} has, in all or "
    "in one entry such as an age. Not its label, which the model is to predict, and not whether it is in the data",
    "labels": "which of two possible labels (what the model is to predict, say a diagnosis) one given {unit} has. Not "
    "its features, which the model looks at, and not whether it is in the data",
}
ALARM = {
    "add-remove": "to accuse is to say “in the data”, a false alarm to say so where it is not, a miss to say “not in "
    "the data” where it is",
    "zero-out": "to accuse is to say “used”, a false alarm to say so where it was not, a miss to say “not used” where "
    "it was",
    "replace": "to accuse is to say “the first value”, a false alarm to say so where it is the second, a miss to say "
    "“the second” where it is the first",
    "features": "to accuse is to say “the first set of features”, a false alarm to say so where it is the second, a "
    "miss to say “the second” where it is the first",
    "labels": "to accuse is to say “the first label”, a false alarm to say so where it is the second, a miss to say "
    "“the second” where it is the first",
}
HALF = {
    "features": (
        "Warning: labels are not protected",
        "Only the features, what the model looks at, are protected. The labels, what it is to predict, and who is in "
        "the data, were taken to be public: the released files may reveal them outright. If they are not public, do "
        "not pass the files on.",
    ),
    "labels": (
        "Warning: features are not protected",
        "Only the labels, what the model is to predict, are protected. All other entries, and who is in the data, were "
        "taken to be public: the released files may reveal them outright. If they are not public, do not pass the "
        "files on.",
    ),
}
WHOSE = {"example": "", "features": "the features of ", "labels": "the labels of "}
CAPTION = "(on the HTML page) shows all tests: none lies below the solid line; those on the dashed line merely guess."
WARNINGS = {
    "claimed": (
        "Warning: not a guarantee",
        "A limit on what this model can reveal is claimed, and it is not proven. It must not be relied on: treat the "
        "released files as if they could reveal any {unit} of the training data.",
    ),
    "refuted": (
        "Warning: the claim is refuted",
        "A limit on what this model can reveal was claimed, and an audit measured that it does not hold. Treat the "
        "released files as if they could reveal any {unit} of the training data.",
    ),
    "none": (
        "Warning: no protection",
        "Nothing limits what this model can reveal. Treat the released files as if they could reveal any {unit} of the "
        "training data.",
    ),
}
NO_LETTERS = (
    "(epsilon) is the number by which such a limit is stated: the smaller it is, the less the result depends on one "
    "unit. Here no value of it is proven.",
    "(delta) is a probability that may come on top of such a limit. Here no value of it is proven.",
)
NO_LIMIT = (
    "No limit on what an attacker can find out is known, so no figures are given. The released files should reach only "
    "those who may see the training data."
)


# A privacy card as it is read back: its guarantee, its curve, and the few facts about the plan that are told.

NUMBERS = ("noise_multiplier", "sensitivity", "noise_std", "divisor", "steps", "steps_taken")


@dataclass(frozen=True)
class Read:
    """A card, with what is computed from it once."""

    card: Mapping[str, Any]
    guarantee: Guarantee
    claims: tuple[Guarantee, ...]
    curve: Curve | None  # of a proven guarantee only: nothing else limits an attacker

    @property
    def proven(self) -> bool:
        """Whether there is anything to rely on."""
        return self.guarantee.private

    @property
    def unit(self) -> str:
        """What one unit of protection is called."""
        return self.guarantee.unit

    @property
    def protects(self) -> Protects:
        """Which part of one unit is protected: all of it, or only its features or its labels."""
        return self.guarantee.protects

    @property
    def asked(self) -> str:
        """What an attacker does not know, as the page's phrases are called: by what neighbours differ in, or by the
        part that is protected where it is a part."""
        return self.guarantee.adjacency if self.protects == "example" else self.protects

    @property
    def whole_unit(self) -> bool:
        """Whether a unit may have more rows than one."""
        return self.unit != "example"

    @property
    def rows_per_unit(self) -> int | None:
        """How many rows of a unit take part at a time at most, where the card says so."""
        found = self.card.get("rows_per_unit")
        return found if isinstance(found, int) else None

    @property
    def examples(self) -> int | None:
        """The number of examples that the plan was made for, where it names one."""
        found = self.part("sampler").get("examples")
        return found if isinstance(found, int) else None

    @property
    def by_event(self) -> bool:
        """Whether the card holds the mechanism itself, or points of its curve, and not only ε and δ."""
        return any(self.card["guarantee"].get(name) is not None for name in ("event_json", "points"))

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the plan (sampler, query, noise), empty where the card does not describe it."""
        plan = self.card.get("plan")
        found = plan.get(name) if isinstance(plan, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def read_card(card: Mapping[str, Any]) -> Read:
    """The card, checked for what the page needs."""
    with as_hush_writes_it():
        guarantee = Guarantee.from_json(card["guarantee"])
        claims = tuple(Guarantee.from_json(claim) for claim in card["claims"])
        if not all(isinstance(card[name], (int, float)) for name in NUMBERS):
            raise InvalidInputError(f"not a privacy card as hush writes it: {', '.join(NUMBERS)} must be numbers")
        return Read(card, guarantee, claims, _find_curve(dump_json(card["guarantee"])) if guarantee.private else None)


@lru_cache(maxsize=4)
def _find_curve(written: str) -> Curve:
    """From the event, or else from the points of its curve, or else from ε and δ alone; the page and its text ask for
    the same one."""
    data = json.loads(written)
    guarantee, points = Guarantee.from_json(data), data.get("points")
    if points is None:
        return curve_of_guarantee(guarantee)
    return curve_of_points([*((float(e), float(d)) for e, d in points), (guarantee.epsilon, guarantee.delta)])


@contextmanager
def as_hush_writes_it() -> Iterator[None]:
    """Whatever is missing in a card or of another kind is said in one sentence."""
    try:
        yield
    except HushError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidInputError(f"not a privacy card as hush writes it: {type(error).__name__} {error}") from error


# What is promised, and how sure it is: who is protected, the best odds of any attacker, and ε and δ in a sentence.

WIDE_RIGHT, WIDE_BELIEF = 0.9, 0.99  # an attacker who may be right so often at 50:50, or so sure, is hardly held back
EXCEPTIONS = (0.01, 0.0001)  # how rare the cases are in which an attacker may become surer than is told
CERTAIN = Decimal(100)
SPACE = "\u00a0"
LONG = 40.0  # ε from which on its factor is told by its length


def summary(read: Read) -> StatementSection:
    """The answer in a box."""
    warnings = _find_weakness(read)
    return StatementSection("In short", (_box(read, weak=bool(warnings)), *warnings))


def tell_who(read: Read) -> StatementSection:
    """Who is protected, against whom and against what."""
    title, unit = "Who is protected, and against what?", read.unit
    if not read.proven:
        text = f"There is no protection that can be relied on. At risk is every {unit} of the "
        return StatementSection(title, (Paragraph(f"{text}training data. {_unit_in_words(read)}"),))
    whose = f"{WHOSE[read.protects]}every {unit}"
    items = (
        f"{whose[0].upper()}{whose[1:]} that was used for training, each alike. {_unit_in_words(read)}",
        "Anybody who gets the released files (named near the end), at any time, with any computer and any other "
        f"information, even if they know every other {unit} and how the training was done.",
        f"Finding out {CASES[read.asked].format(unit=unit)}.",
    )
    return StatementSection(title, (Points(items, names=("Who.", "Against whom.", "Against what.")),))


def tell_odds(read: Read) -> StatementSection:
    """The best odds of any attacker, as sentences, table and picture; then ε and δ."""
    title = f"How sure is it? What it means for one {read.unit}"
    if read.curve is None:
        return StatementSection(title, (Paragraph(NO_LIMIT), _letters(read)))
    words = odds_of(read)
    blocks = (
        StatementFigure(read.curve),
        _tell_attempts(read, read.curve, words),
        Table(words.columns, words.rows, "figures"),
        Paragraph(_tell_row(read, words.rows[1])),
        Paragraph(_origin(read)),
        _letters(read),
    )
    return StatementSection(title, blocks)


def odds_of(read: Read) -> Words:
    """What the card's curve means for one unit."""
    if read.curve is None:
        raise ValueError("nothing limits an attacker")
    return in_words(read.curve, adjacency=read.guarantee.adjacency, unit=read.unit, protects=read.protects)


def one_in(delta: float) -> str:
    """A small probability as "1 in n", never smaller than it is."""
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
    """What makes a proven limit worth little: it covers only features or labels, it is wide, or δ would permit
    publishing a record unchanged."""
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
        "Tests.": f"A test is any way to decide from the files; {ALARM[read.asked]}. {words.sentences[-1]}",
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
        f"The second row means: a person who thinks it {before} likely that {QUESTION[read.asked]} is right "
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


# How it was trained: in words from the plan's parts, then as the numbers that an expert checks.

STATUS = {
    "proven": "proven",
    "claimed": "claimed, not proven: not a guarantee",
    "refuted": "refuted: does not hold",
    "none": "no protection",
}

LAYER = "What one layer of the model makes of the features of each of them was cut down to a fixed largest size, and "
RELEASED = {  # by the kind of query: what is released in place of changes to the model
    "Released": (
        f"{LAYER}random noise was added to it. The layers before that one had not seen these data, and those behind it "
        "were trained on what had noise, and on the labels as they are.",
    ),
    "Hybrid": (
        f"{LAYER}random noise was added to it; the layers behind that one were trained on it, and on the labels as "
        "they are. How each example would change the layers before it was cut down to a fixed largest size and added "
        "up, and random noise was added to the sum.",
    ),
    "Published": (
        f"{LAYER}random noise was added to it. The layers before that one were trained too, without any noise.",
    ),
    "RandomisedLabels": (
        "Each label was replaced, once, by an answer that is drawn at random and is often the label itself. The model "
        "was trained on these answers, and on the features as they are.",
    ),
}


def tell_method(read: Read) -> StatementSection:
    """A description of the mechanism, then the numbers."""
    words = Paragraph(" ".join((*_steps(read), *_influence(read), *_noise(read), *_beside(read))))
    lead = Paragraph("For an expert, the same as numbers; the complete plan is in privacy.json:")
    return StatementSection("How was it done?", (words, lead, Table(("what", "value"), _numbers(read))))


def _name_status(claim: guarantee.Guarantee) -> str:
    return claim.describe_status() if claim.status == "proven" else STATUS[claim.status]


def tell_claims(read: Read) -> tuple[StatementSection, ...]:
    """Every ε that is said about the method, where there are several or none that holds."""
    if read.proven and len(read.claims) < 2:
        return ()
    rows = tuple((_epsilon(claim.epsilon), _name_status(claim), claim.reason or "–") for claim in read.claims)
    text = "Only a value that is proven limits what an attacker can find out. The others are listed to be complete."
    blocks: tuple[Block, ...] = (Paragraph(text), Table(("ε", "status", "reason"), rows, "figures"))
    return (StatementSection("What is said about this method", blocks),)


def _epsilon(value: float) -> str:
    shown = rounded_up(value)
    return "none" if shown == "∞" else shown


def _steps(read: Read) -> tuple[str, ...]:
    steps, taken = read.card["steps"], read.card["steps_taken"]
    said = f"The training took {steps} steps."
    if taken != steps:
        said = f"The training was planned as {steps} steps; {taken} of them were taken, and all are counted."
    return (said, f"At each step {_draw(read.part('sampler'), read.unit)}.")


def _draw(sampler: Mapping[str, Any], unit: str) -> str:
    match sampler.get("kind"):
        case "Poisson":
            return f"a random selection was drawn, every {unit} with a chance of {100 * sampler['rate']:.3g} in 100"
        case "FixedSize":
            return f"a random selection of {sampler['batch_size']} {unit}s was drawn"
        case "Shuffled":
            return f"{sampler['batch_size']} {unit}s were taken, in an order that was reshuffled for every pass"
        case "Partitioned":
            return f"{sampler['batch_size']} {unit}s were taken, in the same order in every pass"
        case "Cyclic":
            return (
                f"one of {sampler['groups']} fixed groups had its turn, and of its {unit}s a random selection was "
                f"drawn, each with a chance of {100 * sampler['rate']:.3g} in 100"
            )
        case _:
            return f"a part of the {unit}s was taken"


def _influence(read: Read) -> tuple[str, ...]:
    if read.guarantee.status == "none":
        return ("How each of them would change the model was added up, without any limit on what one could add.",)
    kind = read.part("query").get("kind")
    if kind in RELEASED:
        return RELEASED[kind]
    rows = "" if not read.whole_unit else ", averaged over its rows"
    if rows and read.rows_per_unit is not None:
        rows += f" (over {read.rows_per_unit} of them, chosen again each time, where it has more)"
    limited = (
        f"For each of them it was computed how it would change the model{rows}, and that change was cut down to a "
    )
    if kind == "Adaptive":
        limited += "largest size, which was adjusted from step to step by counts with noise of their own"
    else:
        limited += "fixed largest size"
    if kind == "ErrorFeedback":
        limited += "; what was cut off was kept and came back in later steps"
    return (f"{limited}. Then the changes were added up.",)


def _noise(read: Read) -> tuple[str, ...]:
    if read.guarantee.status == "none":
        return ("No random noise was added.",)
    if read.part("query").get("kind") in RELEASED:
        return (f"So what one {read.unit} is like is blurred; {_how_well(read)}",)
    noise = read.part("noise")
    plain = noise.get("kind") == "Independent" and noise.get("schedule") is None
    size = ""
    if plain and read.part("query").get("kind") == "ClippedSum":
        size = f", typically {read.card['noise_std']:.3g} times as large as the most that one {read.unit} could add,"
    related = ""
    if noise.get("kind") not in (None, "Independent"):
        related = " The noise of different steps is related, so that part of it cancels as steps add up."
    return (
        f"Random noise{size} was added to the sum before it changed the model.{related}",
        f"So what one {read.unit} added is blurred; {_how_well(read)}",
    )


def _how_well(read: Read) -> str:
    return "section 3 says how well." if read.proven else "how much that hides is not proven."


def _beside(read: Read) -> tuple[str, ...]:
    """What else was released on the same data, and what happened more than once."""
    names = [str(release["name"]) for release in read.card.get("beside") or ()]
    said = [f"Also released, with its own noise: {', '.join(names)}; what is said here covers it too."] if names else []
    if read.guarantee.status == "proven" and read.guarantee.reason:
        said.append(f"{read.guarantee.reason[0].upper()}{read.guarantee.reason[1:]}.")
    return tuple(said)


def _numbers(read: Read) -> tuple[tuple[str, str], ...]:
    card, guarantee = read.card, read.guarantee
    rows = {"method": str(card["method"]), "steps planned and counted": str(card["steps"])}
    if card["steps_taken"] != card["steps"]:
        rows["steps taken"] = str(card["steps_taken"])
    if guarantee.status != "none":
        rows |= {
            "mechanism": str(card["guarantee"]["event"] or "not stated"),
            "accounted by": ACCOUNTING.get(guarantee.accountant, guarantee.accountant),
            "neighbouring data": guarantee.adjacency,
            "noise multiplier σ": f"{card['noise_multiplier']:.6g}",
            "sensitivity of the noise's correlation": f"{card['sensitivity']:.6g}",
            "noise on the sum, in clip units": f"{card['noise_std']:.6g}",
        }
    rows["divisor of the sum"] = f"{card['divisor']:g}"
    rows["versions"] = ", ".join(f"{name} {number}" for name, number in card["versions"].items())
    return tuple(rows.items())


# Where the statement ends: what is not covered, and what it rests on.

EXPLAINED = {
    guarantee.INDEPENDENT_ROWS: (
        "Computers round numbers. The training always computed the same number of rows, and before it began the "
        "program checked on made-up inputs that what is computed for one row is the same whatever the other rows "
        "hold"
    ),
    "the model and its loss treat every example separately": (
        "The network was written for this training. It must compute every record separately from the others; the "
        "program compared some records with the same records computed alone"
    ),
    "the model and its loss keep nothing of one example for another": (
        "The network was written for this training. It must not remember one record while it computes the next; the "
        "program cannot check this"
    ),
    guarantee.SECRET_SEED: (
        "The random numbers follow from a number that a person chose. Anyone who learns it can remove the noise"
    ),
    guarantee.SECRET_GIVEN: (
        "The random numbers follow from a key that was given to the program. Anyone who has it, or sees another "
        "training with it, can remove the noise"
    ),
    guarantee.FIXED: "It was settled beforehand how long to train, and not by watching how well the model did",
    guarantee.BLINDLY: (
        "The training was interrupted and parts of it were run again, for reasons that have nothing to do with the data"
    ),
    guarantee.HOOKED: (
        "The model came with code of its own that sees the data while it is trained. Its author has to confirm "
        "that it keeps nothing"
    ),
    guarantee.UPDATED: (
        "The rule that changes the model in each step was written for this training. It must not look at the data; "
        "the program cannot check this"
    ),
    **{
        guarantee.KEPT.format(kind, "").partition("(")[0]: (
            "A part of the procedure was written for this training. What it does to a single person's share was "
            "declared by its author, and is not checked here"
        )
        for kind in ("sampler", "query", "noise")
    },
    **dict.fromkeys(
        (guarantee.COLLATED, guarantee.TAKEN),
        "The program that puts single records together was written for this training. If it let one record change "
        "another, more could be found out than this page says",
    ),
    guarantee.DRAWN: (
        "The records were changed at random while they were read. Those random numbers must not reveal who else was "
        "read at the same time"
    ),
    **dict.fromkeys(
        (text.partition("{")[0] for text in map(guarantee.say_own_data, ("example", "{}"))),
        "If what is known of one person were also part of another person's record (say, the value of the day before), "
        "that person would count more often than is allowed for here",
    ),
    guarantee.SHAPE: "How long or how large a record is, is the same for all and was settled beforehand",
    guarantee.TRAINED: (
        "The model had been trained before. If that was on the same people's data, it has to be counted too, and this "
        "statement alone says too little"
    ),
}
COUNTED = {
    "add-remove": "The number of examples in privacy.json was given by those who trained the model. It, and whatever "
    "section 5 calls public, is not hidden: it must do no harm if known.",
    "zero-out": "The number of examples, and whatever section 5 calls public, is not hidden: it must be harmless.",
    "replace": "The number of examples, and whatever section 5 calls public, is not hidden: it must be harmless.",
}

NOT_PROTECTED: dict[str, dict[str, str]] = {
    "example": {},
    "features": {"The labels.": "These, and who is in the data, were taken to be public (section 1)."},
    "labels": {"All but the labels.": "That, and who is in the data, was taken to be public (section 1)."},
}


def tell_not_covered(read: Read) -> StatementSection:
    """What no figure on the page covers."""
    if not read.proven:
        return StatementSection("What is not covered?", (Paragraph("Nothing is covered: see section 1."),))
    unit = read.unit
    found = {
        **NOT_PROTECTED[read.protects],
        "Test rows.": "Rows that were held back to test the model are not covered. Figures measured on them (an "
        "accuracy, say) can reveal something of them unless privacy.json says that they have noise: pass none on.",
        "The folder “private”.": "It holds the figures of the training and, until they are deleted, the secret random "
        "numbers. Nothing protects against a person who has it: it must not be handed over.",
        "Other uses of the same data.": f"{_tell_runs(read)}",
        "Choices made beforehand.": "Cleaning the data, choosing columns or trying several settings on the same data "
        "are uses of the data, too. They are covered only where they were counted like a training.",
        "Facts about people in general.": "What the model learns about a group (say, that smokers fall ill more often) "
        "can be applied to a person of that group, whether or not they are in the data.",
        "Others who share a person's data.": f"Protected is one {unit} at a time. What the rest of the data says about "
        "the same person (copies, relatives, the same household) is not hidden.",
        "What is public.": f"{COUNTED[read.guarantee.adjacency].replace('examples', f'{unit}s')}",
        "The law, and the original data.": "Whether the released files count as anonymous, and whether the model is "
        "lawful, fair or accurate, is not answered here; nor who may see the original data, and when they are deleted.",
    }
    return StatementSection("What is not covered?", (Points(tuple(found.values()), names=tuple(found)),))


def tell_assumptions(read: Read) -> StatementSection:
    """Every assumption once."""
    title = "On which conditions does it rest?"
    own = tuple(_explain(text) for text in dict.fromkeys(read.guarantee.assumptions))
    if not read.proven:
        text = "On none: nothing is promised." if not own else "The claim was made on these conditions:"
        blocks: tuple[Block, ...] = (Paragraph(text), *((Points(own, "numbered"),) if own else ()))
        return StatementSection(title, blocks)
    always = (
        "no one can predict the random numbers of the training, which a program computes from a secret; and the secret "
        "(in the folder “private”, until it is deleted) reaches only those who may see the training data anyway",
        "the program works as it is described, and was not altered (its version is in section 6)",
    )
    lead = "The statement holds only if every one of these is true. Ask those who trained the model to confirm them:"
    return StatementSection(title, (Paragraph(lead), Points((*own, *always), "numbered")))


def _explain(text: str) -> str:
    meaning = next((words for start, words in EXPLAINED.items() if text.startswith(start)), None)
    return text if meaning is None else f"{text}. In other words: {meaning}."


def _tell_runs(read: Read) -> str:
    """That other runs add up, and to what, where the card has a ledger's total."""
    ledger = read.card.get("ledger")
    adds = "Every further training or publication on them adds to what can be found out, and needs its own statement."
    if not isinstance(ledger, Mapping):
        return f"{adds} This statement counts this one training only; no ledger (record of uses) is with it."
    return f"{adds} {_tell_total(ledger)}"


def _tell_total(ledger: Mapping[str, Any]) -> str:
    epsilon, status = ledger["epsilon"], ledger["status"]
    if status != "proven" or epsilon is None or not math.isfinite(epsilon):
        return f"For all uses in the ledger (record of uses) together there is no guarantee ({STATUS[status]})."
    whose = f"{WHOSE[ledger.get('protects', 'example')]}one {ledger.get('unit', 'example')}"
    about = "" if whose == "one example" else f" for {whose}"
    pair = f"ε is at most {rounded_up(epsilon)} at δ = {rounded_up(ledger['delta'])}{about}"
    return (
        "Section 3 counts this one only. For all uses that the ledger (record of uses) lists to date together, "
        f"{pair} (proven, if the conditions of each hold and none was planned by another's result)."
    )


MAY_BE_PUBLIC = {
    "example": (),
    "features": ("The labels, and who is in the data, are public, or may become so (section 1).",),
    "labels": ("All entries but the labels, and who is in the data, are public, or may become so (section 1).",),
}


def make_statement(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> Statement:
    """All that the page says, before it is HTML or Markdown."""
    with as_hush_writes_it():
        read = read_card(card)
        facts = (
            ("dataset", dataset or "not named"),
            ("date of this statement", date or "not stated"),
            ("method", str(card["method"])),
            ("protected unit", _name_unit(read) if read.proven else "none"),
            ("status", "proven, on conditions" if read.proven else STATUS[read.guarantee.status]),
        )
        sections = (
            summary(read),
            tell_who(read),
            tell_odds(read),
            tell_not_covered(read),
            tell_assumptions(read),
            tell_method(read),
            *tell_claims(read),
            _tell_files(read, digests),
            _ask_to_sign(read),
        )
        return Statement("Privacy statement for a trained model", facts, sections)


def _name_unit(read: Read) -> str:
    named = f"one {read.unit} (all rows of it)" if read.whole_unit else "one example (one row)"
    return f"{WHOSE[read.protects]}{named}"


def _tell_files(read: Read, digests: Mapping[str, str]) -> StatementSection:
    title = "Which files does it speak of?"
    if not digests:
        return StatementSection(title, (Paragraph("The released files were not named when this page was made."),))
    covered = "It covers these, privacy.json and this page, no matter who gets them, and no others. "
    text = (
        "A digest is a fingerprint: it changes with the file. “hush verify” compares the files with privacy.json; "
        "compare that with this page by eye."
    )
    table = Table(("file", "digest"), tuple(digests.items()), "files")
    return StatementSection(title, (Paragraph(covered * read.proven + text), table))


def _ask_to_sign(read: Read) -> StatementSection:
    proven = (
        *MAY_BE_PUBLIC[read.protects],
        f"It is known whether one person can have more than one {read.unit}, and that is acceptable (section 2).",
        "The odds in section 3 are acceptable for these data.",
        "What section 4 does not cover is dealt with in another way.",
        "Those who trained the model have confirmed section 5 in writing; what no one can confirm there is accepted.",
        "They have confirmed that the data have no other uses, or all are counted and the total is acceptable.",
        "Only the files named above are handed over, nothing of the folder “private”; the digests agree.",
    )
    warned = (
        "I have read the warning in section 1.",
        "Those who receive the files may see the training data.",
        "The folder “private” is not handed over; the digests agree.",
    )
    fields: Block = Signature(("name and office", "place", "date", "signature"))
    text = "My signature confirms that I checked the ticked points or had them confirmed in writing, and nothing else."
    points = Points(proven if read.proven else warned, "boxes")
    return StatementSection("To check and to sign", (points, Paragraph(text), fields))
