"""Releases before training (noisy ranges of columns, class counts, sanitised features): made once, charged ahead.

A `DataRelease` is a `Beside` (its name, its event, its adjacency) together with what computes the release. To use one:

1. make the plan with ``beside=(part.beside, …)``, so that the plan's event holds it and σ is calibrated for both;
2. start the run, attach its checkpoints and enter it in its ledger (`hush.ledger.run_account.charge`), in the usual
order;
3. ``values = make_releases(run, parts, folder)``, with the run's private directory as ``folder`` where it has one;
4. put the values where training takes them from (they are public), and train.

`make_releases` is the one place where this happens, in this order: **charge, write down, release, keep**. The ledger
is charged for the plan, and with it for every release beside it, before any noise is drawn; so after a crash at
any instant the ledger holds at least what was released. Noise derives from the run's first secret and the part's key.
Before it is drawn, a digest (keyed with the secret) of all that the release is computed from, the noise's scale
included, is written into the folder, and the values after it. A run that goes on reads the values; where a crash came
between the two, the same secret on the same content makes the same bits, which is the same release. On other content
it is refused: the same noise on two sums would show their difference.

Values are tensors by name, as safetensors keeps them: every bit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from dp_accounting import dp_event
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hush._internal.identity import Scope
from hush._internal.storage import PRIVATE, write_atomic
from hush._internal.validate import choice
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.events import DpEvent, Profile, name_event
from hush.errors import InvalidInputError, Refused
from hush.randomness import Secret

# Other releases on the same data, beside training: a noisy histogram before it, noisy figures after it.
#
# A plan that carries them (``Mechanism.beside``) is accounted as one release: its event is the training's composed with
# theirs, so whoever sees the model and all of them is within the one (ε, δ). The composition is adaptive in either
# order: what comes later may look at what was released before, as long as its event is fixed beforehand.


@dataclass(frozen=True)
class ComposedRelease:
    """One such release: what it is, in words that follow "the model and"; its event, which is written for the
    sensitivity of its adjacency; and the part of δ that the event does not know, at any ε."""

    name: str
    event: DpEvent
    adjacency: Adjacency
    lost: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choice(ADJACENCIES, adjacency=self.adjacency)
        if not self.name.strip():
            raise InvalidInputError(
                "a release beside training needs a name in words, such as 'a noisy histogram of the ages'"
            )
        if not 0 <= self.lost < 1:
            raise InvalidInputError(f"the δ that '{self.name}' loses must lie between 0 and 1, got {self.lost}")
        if events.to_json(self.event) is None:
            raise InvalidInputError(
                f"the event of '{self.name}' must be one of dp-accounting's that can be written down, such as "
                f"GaussianDpEvent(σ), not {name_event(self.event)}"
            )

    def declared(self, scope: Scope) -> dict[str, Any]:
        """Its fields, the event as plain data."""
        return {
            "name": self.name,
            "event": events.to_json(self.event),
            "adjacency": self.adjacency,
            "lost": self.lost,
            "assumptions": self.assumptions,
        }

    def to_json(self) -> dict[str, Any]:
        """For the privacy card."""
        return {"name": self.name, "event": name_event(self.event), "adjacency": self.adjacency, "delta": self.lost}


def check_beside(releases: Sequence[ComposedRelease], event: Any, adjacency: Adjacency) -> None:
    """Refuse releases that cannot be composed with an event under an adjacency."""
    for release in releases:
        if release.adjacency != adjacency:
            raise Refused(
                f"{release.name} is accounted under '{release.adjacency}' adjacency and training under '{adjacency}': "
                f"account for both under one of them, such as adjacency '{adjacency}'"
            )
    if releases and isinstance(event, Profile):
        raise Refused(
            f"this method's proof is an event of its own, which cannot be composed with {join_names(releases)}: use "
            "dp-sgd or another method whose query is a plain sum, or leave them out"
        )


def compose_beside(event: DpEvent, releases: Sequence[ComposedRelease]) -> DpEvent:
    """The event of training together with these releases."""
    return dp_event.ComposedDpEvent([event, *(release.event for release in releases)]) if releases else event


def join_names(releases: Sequence[ComposedRelease]) -> str:
    """The releases in words: "a, b and c"."""
    names = [release.name for release in releases]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def extra_delta(releases: Sequence[ComposedRelease]) -> float:
    """δ that their events do not know."""
    return math.fsum(release.lost for release in releases)


Values = Mapping[str, Tensor]
NAMED = "before-{key}.safetensors"
FORMAT = "hush released before training 1"


@dataclass(frozen=True)
class DataRelease:
    """One release before training.

    ``key`` names its noise and its file; a word that no other part of the plan has. ``release(secret)`` draws noise
    from this secret alone and returns what is public. ``content()`` are the bytes of everything private that it looks
    at. ``by_unit`` says whether each unit counts as one, however many rows it has; else each row does."""

    key: str
    beside: ComposedRelease
    release: Callable[[Secret], Values] = field(repr=False)
    content: Callable[[], Iterable[bytes]] = field(repr=False)
    by_unit: bool = False


class HasBeside(Protocol):
    """A plan, as far as it is needed here."""

    @property
    def beside(self) -> tuple[ComposedRelease, ...]:
        """The releases that its event holds."""
        ...

    @property
    def unit(self) -> str:
        """Whose rows are one example; "example" where each row is."""
        ...


class Covered(Protocol):
    """A run, as far as it is needed here."""

    @property
    def next(self) -> int:
        """The step that comes next."""
        ...

    @property
    def plan(self) -> HasBeside:
        """What is accounted."""
        ...

    @property
    def secret(self) -> Secret:
        """What all noise derives from."""
        ...

    def charge(self) -> None:
        """Have the ledger charged for the plan, and all that is released beside it."""
        ...


_met: dict[str, str] = {}  # which content the noise of a secret has met in this process
_made: dict[tuple[str, str], set[str]] = {}  # which parts of a run stood for one and the same entry of its plan


def make_releases(run: Covered, parts: Sequence[DataRelease], folder: Path | None = None) -> dict[str, Values]:
    """The values of every part by its key: charged, made and kept, or read where this run has made them before."""
    if len({part.key for part in parts}) < len(parts):
        raise InvalidInputError(
            "two releases before training have the same key and would share their noise: rename one"
        )
    for part in parts:
        _check_held(run, part)
    return {
        part.key: _make(run, part, None if folder is None else folder / NAMED.format(key=part.key)) for part in parts
    }


def find_releases(folder: Path) -> list[Path]:
    """The files of releases before training, made or begun, in a run's private directory."""
    return sorted(folder.glob(NAMED.format(key="*")))


def _make(run: Covered, part: DataRelease, path: Path | None) -> Values:
    secret = run.secret.first.child(f"before {part.key}")
    content = _digest(secret, part)
    kept = None if path is None else _read(path)
    known = kept if kept is not None and kept.noise == secret.name else None
    _check_same(_met.setdefault(secret.name, content) if known is None else known.content, content, part)
    if run.next == 0:
        run.charge()  # also where the values are kept: a run may go on with a ledger that it did not begin with
    elif known is None:
        raise Refused(
            f"the run is at step {run.next} and nothing is kept of {part.beside.name}, which comes before training: "
            "start a new run"
        )
    if known is not None and known.values is not None:
        return known.values
    if path is not None:
        _write(path, secret, content, None)
    values = part.release(secret)
    if path is not None:
        _write(path, secret, content, values)
    return values


def _check_held(run: Covered, part: DataRelease) -> None:
    """The plan's event holds as many releases like this one as there are parts that it stands for."""
    made = _made.setdefault((run.secret.first.name, repr(part.beside)), set())
    if len(made | {part.key}) > run.plan.beside.count(part.beside):
        other = "another one like " if made else ""
        raise Refused(
            f"the plan's event does not hold {other}{part.beside.name}: make the plan with beside=(part.beside,), once "
            "for each part"
        )
    if part.by_unit != (run.plan.unit != "example"):
        raise Refused(
            f"the plan protects one {run.plan.unit}, and {part.beside.name} would count "
            f"{'units' if part.by_unit else 'rows'}: give the units of the rows exactly where the plan has a unit"
        )
    made.add(part.key)


def _check_same(before: str, now: str, part: DataRelease) -> None:
    if before != now:
        raise Refused(
            f"the noise of {part.beside.name} was drawn for other data or at another scale, and here it would show the "
            "difference: give the data and the share of ε that it was drawn for, or start a new run with another secret"
        )


def _digest(secret: Secret, part: DataRelease) -> str:
    """Of what is released, and of how much noise it gets: the same draws at two scales would give it away."""
    found = hashlib.blake2b(key=secret.derive("before content", 0, size=32), digest_size=32)
    noise = json.dumps([events.to_json(part.beside.event), part.beside.adjacency, part.beside.lost])
    for piece in chain((noise.encode(),), part.content()):
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.hexdigest()


@dataclass(frozen=True)
class _Kept:
    noise: str
    content: str
    values: Values | None


def _write(path: Path, secret: Secret, content: str, values: Values | None) -> None:
    told = {"format": FORMAT, "noise": secret.name, "content": content, "made": "no" if values is None else "yes"}
    tensors = {name: value.detach().cpu().contiguous() for name, value in (values or {}).items()}
    write_atomic(path, save(tensors, metadata=told), mode=PRIVATE)


def _read(path: Path) -> _Kept | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
            names = list(file.keys())
            values = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"'{path}' is damaged, and what it holds is released once: start a new run") from error
    if told.get("format") != FORMAT or not {"noise", "content", "made"} <= told.keys():
        raise InvalidInputError(f"'{path}' is damaged, and what it holds is released once: start a new run")
    return _Kept(told["noise"], told["content"], values if told["made"] == "yes" else None)
