"""Other releases on the same data, beside training: a noisy histogram before it, noisy figures after it.

A plan that carries them (``Mechanism.beside``) is accounted as one release: its event is the training's composed with
theirs, so whoever sees the model and all of them is within the one (ε, δ). The composition is adaptive in either order:
what comes later may look at what was released before, as long as its event is fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event

from hush.errors import BadInput, Refused
from hush.identity import Scope
from hush.privacy import event_json
from hush.privacy.accounting import ADJACENCIES, Adjacency
from hush.privacy.leaves import DpEvent, Profile, name_event
from hush.validate import one_of


@dataclass(frozen=True)
class Beside:
    """One such release: what it is, in words that follow "the model and"; its event, which is written for the
    sensitivity of its adjacency; and the part of δ that the event does not know, at any ε."""

    name: str
    event: DpEvent
    adjacency: Adjacency
    lost: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of(ADJACENCIES, adjacency=self.adjacency)
        if not self.name.strip():
            raise BadInput("a release beside training needs a name in words, such as 'a noisy histogram of the ages'")
        if not 0 <= self.lost < 1:
            raise BadInput(f"the δ that '{self.name}' loses must lie between 0 and 1, got {self.lost}")
        if event_json.to_json(self.event) is None:
            raise BadInput(
                f"the event of '{self.name}' must be one of dp-accounting's that can be written down, such as "
                f"GaussianDpEvent(σ), not {name_event(self.event)}"
            )

    def declared(self, scope: Scope) -> dict[str, Any]:
        """Its fields, the event as plain data."""
        return {
            "name": self.name,
            "event": event_json.to_json(self.event),
            "adjacency": self.adjacency,
            "lost": self.lost,
            "assumptions": self.assumptions,
        }

    def to_json(self) -> dict[str, Any]:
        """For the privacy card."""
        return {"name": self.name, "event": name_event(self.event), "adjacency": self.adjacency, "delta": self.lost}


def check_beside(releases: Sequence[Beside], event: Any, adjacency: Adjacency) -> None:
    """Refuse releases that cannot be composed with an event under an adjacency."""
    for release in releases:
        if release.adjacency != adjacency:
            raise Refused(
                f"{release.name} is accounted under '{release.adjacency}' adjacency and training under '{adjacency}': "
                f"account for both under one of them, such as adjacency '{adjacency}'"
            )
    if releases and isinstance(event, Profile):
        raise Refused(
            f"this method's proof is an event of its own, which cannot be composed with {name_all(releases)}: use "
            "dp-sgd or another method whose query is a plain sum, or leave them out"
        )


def compose_beside(event: DpEvent, releases: Sequence[Beside]) -> DpEvent:
    """The event of training together with these releases."""
    return dp_event.ComposedDpEvent([event, *(release.event for release in releases)]) if releases else event


def name_all(releases: Sequence[Beside]) -> str:
    """The releases in words: "a, b and c"."""
    names = [release.name for release in releases]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def lose_beside(releases: Sequence[Beside]) -> float:
    """δ that their events do not know."""
    return math.fsum(release.lost for release in releases)
