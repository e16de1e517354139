"""The privacy statement for a data-protection officer: what a privacy card means, without mathematics.

The page is a function of the card's JSON and three more facts (dataset, date, digests of the released files), so it
can be rendered again from any card: `StatementFacts` computes what is to be said, ``templates/privacy_words.jinja``
holds the words, and ``privacy_page.html`` and ``privacy_page.md`` are the two forms of its blocks. This module does not
import torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cached_property, lru_cache
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from hush._internal.text import dump_json, make_printable
from hush.accounting import guarantee
from hush.accounting.guarantee import ACCOUNTING, Guarantee, Protects, rounded_up
from hush.accounting.tradeoff import Curve, Words, best_odds, curve_of_guarantee, curve_of_points, describe_curve
from hush.errors import HushError, InvalidInputError

NUMBERS = ("noise_multiplier", "sensitivity", "noise_std", "divisor", "steps", "steps_taken")
WIDE_RIGHT, WIDE_BELIEF = 0.9, 0.99  # an attacker who may be right so often at 50:50, or so sure, is hardly held back
EXCEPTIONS = (0.01, 0.0001)  # how rare the cases are in which an attacker may become surer than is stated
SPACE = "\u00a0"
RATES = np.unique(np.concatenate([np.geomspace(1e-4, 0.05, 40), np.linspace(0.0, 1.0, 101)]))  # of false alarms
LONG = 40.0  # ε from which on its factor is given by its length

EXPLAINED = {  # assumptions, by how they begin, in words for everybody
    guarantee.INDEPENDENT_ROWS: (
        "Computers round numbers. The training always computed the same number of rows, and before it began the "
        "program checked on made-up inputs that what is computed for one row is the same whatever the other rows "
        "hold and, where it matters, wherever the row is among them"
    ),
    "the model and its loss treat every example separately": (
        "The network was written for this training. It must compute every record separately from the others; the "
        "program compared some records with the same records computed alone"
    ),
    "the model and its loss use nothing of one example for another": (
        "The network was written for this training. It must not remember or look up one record while it computes "
        "another; the program cannot check this"
    ),
    guarantee.SECRET_SEED: (
        "The random numbers follow from a number that a person chose. Anyone who learns it can remove the noise"
    ),
    guarantee.SECRET_GIVEN: (
        "The random numbers follow from a key that was given to the program. Anyone who has it, or sees another "
        "training with it, can remove the noise"
    ),
    guarantee.PRECISE: (
        "Computers round the noise too, to about 16 digits. It is taken to protect as well as noise that is not "
        "rounded; for this procedure that is not proven"
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


@dataclass(frozen=True)
class StatementFacts:
    """What a statement says: a card and three facts that are not in it, with what is computed from them once."""

    card: Mapping[str, Any]
    dataset: str
    date: str
    digests: Mapping[str, str]
    guarantee: Guarantee
    claims: tuple[Guarantee, ...]
    curve: Curve | None  # of a proven guarantee only: nothing else limits an attacker

    @property
    def proven(self) -> bool:
        """Whether there is anything to rely on."""
        return self.guarantee.private

    @property
    def status(self) -> str:
        """proven, claimed, refuted or none."""
        return self.guarantee.status

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
        found = self.part("sampler")["examples"]
        return found if isinstance(found, int) else None

    @property
    def by_event(self) -> bool:
        """Whether the card holds the mechanism itself, or points of its curve, and not only ε and δ."""
        return any(self.card["guarantee"].get(name) is not None for name in ("event_json", "points"))

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the plan (sampler, query, noise), with None for what the card does not say."""
        plan = self.card.get("plan")
        found = plan.get(name) if isinstance(plan, Mapping) else None
        named = ("kind", "examples", "batch_size", "rate", "groups", "schedule")
        return {**dict.fromkeys(named), **(found if isinstance(found, Mapping) else {})}

    @cached_property
    def odds(self) -> Words:
        """What the curve means for one unit."""
        return self._say_odds(self.unit)

    @property
    def said_to_a_person(self) -> str:
        """The odds in one sentence."""
        return self._say_odds("person").sentences[0]

    def _say_odds(self, unit: str) -> Words:
        if self.curve is None:
            raise ValueError("nothing limits an attacker")
        return describe_curve(self.curve, adjacency=self.guarantee.adjacency, unit=unit, protects=self.protects)

    def list_tests(self, side: float) -> str:
        """The trade-off curve as points of a picture: misses over false alarms, in a square of this side."""
        found = np.asarray(self.curve.beta(RATES)) if self.curve is not None else RATES
        return " ".join(f"{side * a:.1f},{side * (1 - b):.1f}" for a, b in zip(RATES, found, strict=True))

    @property
    def wide(self) -> bool:
        """Whether the limit rules out little."""
        even = None if self.curve is None else best_odds(self.curve, 0.5)
        return even is not None and (even.right >= WIDE_RIGHT or even.belief >= WIDE_BELIEF)

    @property
    def leaves_out(self) -> bool:
        """Whether δ would permit publishing a record unchanged."""
        return self.proven and self.examples is not None and self.guarantee.delta * self.examples >= 1

    @property
    def weak(self) -> bool:
        """Whether a proven limit comes with a warning."""
        return self.protects != "example" or self.wide or self.leaves_out

    @property
    def worst(self) -> list[tuple[str | None, str]]:
        """How sure an attacker becomes, in %, rounded up, and with which chance; None for as good as certain. Certainty
        is made rare and not ruled out: the belief of `best_odds`, at two exceptions."""
        found: list[tuple[str | None, str]] = []
        for exception in EXCEPTIONS:
            if self.curve is None:
                break
            belief = best_odds(self.curve, 0.5, exception=exception).belief
            percent = Decimal(f"{100 * belief:.8f}").quantize(Decimal("0.1"), ROUND_CEILING)
            if percent >= 100:
                return [*found, (None, one_in(exception))]
            found.append((f"{percent:f}", one_in(exception)))
        return found

    @property
    def factor(self) -> str:
        """e^ε as a short number, rounded up."""
        epsilon = self.guarantee.epsilon
        if epsilon > LONG:
            return f"so many times (a number of {math.ceil(epsilon / math.log(10))} digits)"
        factor = math.exp(epsilon) * (1 + 1e-12)
        if factor < 1000:
            return f"{rounded_up(factor)} times"
        unit = 10 ** (math.floor(math.log10(factor)) - 2)
        return f"{_grouped(math.ceil(factor / unit) * unit)} times"

    @property
    def assumptions(self) -> list[str]:
        """Every assumption once, with its meaning where that is known."""
        found = []
        for text in dict.fromkeys(self.guarantee.assumptions):
            meaning = next((words for start, words in EXPLAINED.items() if text.startswith(start)), None)
            found.append(text if meaning is None else f"{text}. In other words: {meaning}.")
        return found

    @property
    def ledger(self) -> Mapping[str, Any] | None:
        """The total of a ledger, where the card has one."""
        found = self.card.get("ledger")
        return found if isinstance(found, Mapping) else None

    @property
    def ledger_proven(self) -> bool:
        """Whether that total is a guarantee."""
        ledger = self.ledger or {}
        epsilon = ledger["epsilon"]
        return ledger["status"] == "proven" and epsilon is not None and math.isfinite(epsilon)

    @property
    def tells_claims(self) -> bool:
        """Whether there are several values of ε, or none that holds."""
        return not self.proven or len(self.claims) > 1

    def list_claims(self, names: Mapping[str, str]) -> list[tuple[str, str, str]]:
        """Every ε that is stated about the method, its status and its reason."""
        rows = []
        for claim in self.claims:
            shown = rounded_up(claim.epsilon)
            named = claim.describe_status() if claim.status == "proven" else names[claim.status]
            rows.append(("none" if shown == "∞" else shown, named, claim.reason or "–"))
        return rows

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """What an expert checks."""
        card = self.card
        rows = {"method": str(card["method"]), "steps planned and counted": str(card["steps"])}
        if card["steps_taken"] != card["steps"]:
            rows["steps taken"] = str(card["steps_taken"])
        if self.status != "none":
            rows |= {
                "mechanism": str(card["guarantee"]["event"] or "not stated"),
                "accounted by": ACCOUNTING.get(self.guarantee.accountant, self.guarantee.accountant),
                "neighbouring data": self.guarantee.adjacency,
                "noise multiplier σ": f"{card['noise_multiplier']:.6g}",
                "sensitivity of the noise's correlation": f"{card['sensitivity']:.6g}",
                "noise on the sum, in clip units": f"{card['noise_std']:.6g}",
            }
        rows["divisor of the sum"] = f"{card['divisor']:g}"
        rows["versions"] = ", ".join(f"{name} {number}" for name, number in card["versions"].items())
        return list(rows.items())


def read_facts(
    card: Mapping[str, Any], *, dataset: str = "", date: str = "", digests: Mapping[str, str] | None = None
) -> StatementFacts:
    """The facts of a card, checked for what the page needs."""
    with _as_hush_writes_it():
        stated = Guarantee.from_json(card["guarantee"])
        claims = tuple(Guarantee.from_json(claim) for claim in card["claims"])
        if not all(isinstance(card[name], (int, float)) for name in NUMBERS):
            raise InvalidInputError(f"not a privacy card as hush writes it: {', '.join(NUMBERS)} must be numbers")
        curve = _find_curve(dump_json(card["guarantee"])) if stated.private else None
        return StatementFacts(card, dataset, date, digests or {}, stated, claims, curve)


@lru_cache(maxsize=4)
def _find_curve(written: str) -> Curve:
    """From the event, or else from the points of its curve, or else from ε and δ alone; the page and its text ask for
    the same one."""
    data = json.loads(written)
    stated, points = Guarantee.from_json(data), data.get("points")
    if points is None:
        return curve_of_guarantee(stated)
    return curve_of_points([*((float(e), float(d)) for e, d in points), (stated.epsilon, stated.delta)])


@contextmanager
def _as_hush_writes_it() -> Iterator[None]:
    """Whatever is missing in a card or of another kind is an error of one sentence."""
    try:
        yield
    except HushError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, jinja2.TemplateError) as error:
        raise InvalidInputError(f"not a privacy card as hush writes it: {type(error).__name__} {error}") from error


def one_in(delta: float) -> str:
    """A small probability as "1 in n", never smaller than it is."""
    return "0" if delta == 0 else f"1 in {_grouped(int(1 / Decimal(repr(delta))))}"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", SPACE)


# The two forms.

INTERPRETED = re.compile(r"([\\`*_\[\]<>|~&#])")
MARKS = {"plain": "- ", "boxes": "- [ ] "}


def render_privacy_page(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> str:
    """The statement for a data-protection officer, from a card's JSON, as a page that needs no network."""
    return _render("privacy_page.html", read_facts(card, dataset=dataset, date=date, digests=digests))


def render_privacy_text(card: Mapping[str, Any], *, dataset: str, date: str, digests: Mapping[str, str]) -> str:
    """The same as Markdown: PRIVACY.md."""
    text = _render("privacy_page.md", read_facts(card, dataset=dataset, date=date, digests=digests))
    lines = "\n".join(line.strip(" ") for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip() + "\n"


def page_of_card(card: Mapping[str, Any]) -> str:
    """The HTML page of a card that names dataset, date and digests itself."""
    return render_privacy_page(card, **_named(card))


def text_of_card(card: Mapping[str, Any]) -> str:
    """The Markdown of a card that names dataset, date and digests itself."""
    return render_privacy_text(card, **_named(card))


def _named(card: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: str(card.get(name) or "") for name in ("dataset", "date")}
    return {**named, "digests": card.get("digests") or {}}


def _render(name: str, facts: StatementFacts) -> str:
    with _as_hush_writes_it():
        return _templates(name.endswith(".html")).get_template(name).render(f=facts)


@lru_cache(maxsize=2)
def _templates(page: bool) -> jinja2.Environment:
    """Whatever is shown is made printable and escaped: by the environment on a page, by the blocks in Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hush.release", "templates"),
        autoescape=page,
        finalize=_finalize if page else None,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "one_in": one_in,
        "grouped": _grouped,
        "rounded_up": rounded_up,
        "one_line": lambda text: type(text)(re.sub(r"[ \n]+", " ", text).strip(" ")),
        "markdown": escape_markdown,
        "list_items": _list_items,
    }
    return environment


def _finalize(value: Any) -> Any:
    return value if isinstance(value, Markup) else make_printable(value)


def escape_markdown(text: object) -> str:
    """Text that stays text: on one line, and no link, picture, tag, cell or heading begins in it."""
    shown = INTERPRETED.sub(r"\\\1", " ".join(make_printable(text).split()))
    shown = shown.replace("://", ":\\//").replace("www.", "www\\.")
    return re.sub(r"^([-+=]|\d+(?=[.)]\s))", r"\\\1" if shown[:1] in ("-", "+", "=") else r"\1\\", shown)


def _list_items(text: str, style: str) -> str:
    items = [line for line in text.split("\n") if line.strip()]
    return "\n".join(f"{MARKS.get(style) or f'{number}. '}{item}" for number, item in enumerate(items, 1))
