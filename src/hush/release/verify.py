"""Verify a release: its files by their digests, its weights by its description, and its ε by recomputation.

This finds accidents, and edits of one file that left the others unchanged. It is not a signature: a person who rewrites
every file can rewrite the digests too. To rule that out, compare the card's own digest with one from another source.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hush.accounting import accountant, events
from hush.accounting.events import name_event
from hush.accounting.guarantee import WHAT, Guarantee, rounded_up
from hush.errors import HushError, InvalidInputError
from hush.release.folder import CARD, MODEL, NAMES, WEIGHTS, find_release, is_own_digest, read_description, read_json
from hush.release.load import build_empty, read_weights

State = Literal["whole", "changed", "missing", "extra", "unknown"]
CLOSE = 1e-5  # the largest relative difference between the ε of one event on two machines


@dataclass(frozen=True)
class Verification:
    """The result of a verification: ``files`` has the state of every file, ``problems`` describes what is wrong, and
    ``unchecked`` what could not be checked and why. ``epsilon`` is the card's, ``recomputed`` that of its event."""

    folder: Path
    files: Mapping[str, State]
    problems: tuple[str, ...]
    unchecked: tuple[str, ...]
    epsilon: float | None
    recomputed: float | None
    digest: str | None
    unit: str | None = None
    protects: str | None = None

    @property
    def verified(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def sentence(self) -> str:
        """The result in one sentence."""
        if self.problems:
            return f"'{self.folder}' is not as it was released: {'; '.join(self.problems)}."
        left = "" if not self.unchecked else f"; not checked: {', '.join(self.unchecked)}"
        spent = "" if self.recomputed is None else f", and ε = {self.recomputed:.6g} follows from the card's event"
        return f"'{self.folder}' is as it was released: every file has the digest that its card names{spent}{left}."

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "release": str(self.folder),
            "verified": self.verified,
            "files": dict(self.files),
            "problems": list(self.problems),
            "unchecked": list(self.unchecked),
            "epsilon": self.epsilon,
            "epsilon_recomputed": self.recomputed,
            "unit": self.unit,
            "protects": self.protects,
            "card_digest": self.digest,
            "sentence": self.sentence(),
        }


def verify(directory: str | Path) -> Verification:
    """Check the release in a folder, a run's or a release's: every file's digest, the weights against the description,
    the card against its plan, and ε, which is recomputed from the card's event.

    >>> found = hush.verify("run/release")  # doctest: +SKIP
    >>> found.verified, found.problems  # doctest: +SKIP
    (True, ())
    """
    folder = find_release(directory)
    card, problems = _read_card(folder)
    files = _check_files(folder, card, trusted=not problems)
    problems += [_say_state(name, state) for name, state in sorted(files.items()) if _say_state(name, state)]
    unchecked: list[str] = []
    recomputed = None
    if not problems:
        problems += _check_model(folder, unchecked)
        unread = _check_plan(card)
        problems += unread
        recomputed = None if unread else _recompute(card, problems, unchecked)
    stated, digest = card.get("guarantee"), card.get("own_digest")
    said = stated if isinstance(stated, dict) else {}
    shown = digest if isinstance(digest, str) else None
    about = (said.get("unit"), said.get("protects", "example")) if said else (None, None)
    found = (folder, files, tuple(problems), tuple(unchecked))
    return Verification(*found, said.get("epsilon"), recomputed, shown, *about)


def _read_card(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The card, and what is wrong with it; a card that was changed is not used."""
    path = folder / CARD
    if not path.is_file():
        return {}, [f"{CARD} is missing"]
    try:
        card = read_json(path)
    except InvalidInputError:
        return {}, [f"{CARD} was changed"]
    if card.get("format") == "hush privacy card 1" and not {"digests", "own_digest"} & card.keys():
        raise InvalidInputError(
            f"'{folder}' was released by a version of hush that wrote no digests, so it cannot be verified: train "
            "again with this version"
        )
    own, digests = card.get("own_digest"), card.get("digests")
    if not isinstance(own, str) or not is_own_digest(path.read_bytes(), own) or not isinstance(digests, dict):
        return {}, [f"{CARD} was changed"]
    strange = sorted(digests.keys() - NAMES)
    if strange:  # such as a path to another folder: no file of that name is read
        return {}, [f"{CARD} names '{strange[0]}', which is not a file of a release"]
    return card, []


def _check_files(folder: Path, card: Mapping[str, Any], *, trusted: bool) -> dict[str, State]:
    there = {path.name for path in folder.iterdir()}
    if not trusted:
        return dict.fromkeys(sorted(there - {CARD}), "unknown")
    digests: Mapping[str, Any] = card["digests"]
    found: dict[str, State] = dict.fromkeys(there - digests.keys(), "extra")
    for name, digest in digests.items():
        path = folder / name
        if not path.is_file():
            found[name] = "missing"
        else:
            found[name] = "whole" if hashlib.sha256(path.read_bytes()).hexdigest() == digest else "changed"
    return dict(sorted({**found, CARD: "whole"}.items()))


def _say_state(name: str, state: State) -> str:
    words = {"changed": "was changed", "missing": "is missing", "extra": "is no part of the release"}
    return f"{name} {words[state]}" if state in words else ""


def _check_model(folder: Path, unchecked: list[str]) -> list[str]:
    """Check that the weights fit the network that the description names."""
    try:
        description = read_description(folder)
        weights = read_weights(folder)
        if description.architecture.source != "shipped":
            unchecked.append(f"whether {WEIGHTS} fits the network, as that is third-party code")
            return []
        build_empty(description, weights, folder)
    except InvalidInputError as error:
        return [f"{MODEL} and {WEIGHTS} do not belong together ({error})"]
    return []


def _check_plan(card: Mapping[str, Any]) -> list[str]:
    """Check that numbers stated twice in the card are equal, and that no more steps were taken than accounted for."""
    try:
        plan, guarantee = card["plan"], card["guarantee"]
        read = Guarantee.from_json(guarantee)
        pairs = {
            "method": (card["method"], plan["method"]),
            "noise multiplier": (card["noise_multiplier"], plan["sigma"]),
            "number of steps": (card["steps"], plan["steps"]),
            "δ": (guarantee["delta"], plan["delta"]),
            "unit": (read.unit, plan.get("unit", "example")),
            "first claim": (guarantee, card["claims"][0]),
        }
        wrong = [f"the card and its plan differ in the {name}" for name, (one, other) in pairs.items() if one != other]
        if guarantee["status"] != "none" and f"(ε = {rounded_up(read.epsilon)}, " not in guarantee["sentence"]:
            wrong.append("the card's sentence states another ε than its guarantee")
        if read.protects != "example" and f"{WHAT[read.protects]}one " not in guarantee["sentence"]:
            wrong.append("the card's sentence names more than its guarantee protects")
        if card["steps_taken"] > card["steps"]:
            wrong.append("the card states more steps taken than accounted for")
    except InvalidInputError as error:
        return [f"the card's guarantee cannot be read ({error})"]
    except (KeyError, TypeError, IndexError, AttributeError):
        return ["the card lacks a required entry"]
    return wrong


def _recompute(card: Mapping[str, Any], problems: list[str], unchecked: list[str]) -> float | None:
    """ε of the card's event by the card's accountant; an ε that differs is a problem."""
    stated = card["guarantee"]
    if stated["status"] == "none":
        unchecked.append("ε, as the card states no guarantee")
        return None
    accounted = card.get("accounting")
    if not isinstance(accounted, dict) or accounted.get("event") is None:
        unchecked.append("ε, as its event cannot be rebuilt from a file")
        return None
    try:
        event = events.from_json(accounted["event"])
        found = accountant.epsilon(
            event, accounted["delta"], adjacency=stated["adjacency"], accountant=stated["accountant"]
        )
    except (HushError, KeyError, TypeError, ValueError) as error:
        problems.append(f"ε cannot be computed from the card ({error})")
        return None
    if name_event(event) != stated["event"]:
        problems.append("the card's event differs from the one that its guarantee names")
    said = math.inf if stated["epsilon"] is None else float(stated["epsilon"])
    if accounted["delta"] > stated["delta"] or not math.isclose(found, said, rel_tol=CLOSE):
        problems.append(f"the card states ε = {stated['epsilon']} and its event costs {found:.6g}")
    return found
