"""A privacy card as it is read back: its guarantee, its curve, and the few facts about the plan that are told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hush.errors import BadInput, HushError
from hush.printable import dump_json
from hush.privacy.guarantee import Guarantee, Protects
from hush.privacy.tradeoff import Curve, curve_of_guarantee, curve_of_points

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
            raise BadInput(f"not a privacy card as hush writes it: {', '.join(NUMBERS)} must be numbers")
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
        raise BadInput(f"not a privacy card as hush writes it: {type(error).__name__} {error}") from error
