"""Releases before training (ranges of columns, class counts, sanitised features, randomised labels): made once, charged
first.

A `DataRelease` is a `ComposedRelease` (name, event, adjacency) with the function that computes it. To use one:

1. make the plan with ``composed=(part.composed, …)``, so that its event includes the release and σ fits both;
2. start the run, attach its checkpoints and enter it in its ledger (`hush.ledger.run_account.charge`), as usual;
3. ``values = make_releases(run, parts, folder)``, with the run's private directory as ``folder`` if it has one;
4. pass the values (they are public) to training.

`make_releases` works in this order: **charge, record, release, save**. The ledger is charged for the plan, with all its
composed releases, before any noise is drawn; so after a crash at any time the ledger holds at least what was released.
Noise derives from the run's first secret and the part's key. Before it is drawn, a digest (keyed with the secret) of
everything that the release is computed from, including the scale of the noise, is written to the folder; the values
follow. A resumed run reads the values. If a crash came between the two, the same secret on the same content gives the
same bits, which is the same release. Other content raises an error: the same noise on two sums would reveal their
difference.

Values are tensors by name, saved as safetensors, bit for bit.

A plan whose ``trains_on`` is set adds no noise to sums: its run trains on released values in place of the data, and its
guarantee is the event of that release (`PrivatisedData`). The values are drawn before the first step, in the order
above. Training after that is post-processing: it needs no bound, no noise and no sum log, and a resumed run reads the
values.
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
from torch import Tensor, nn

from hush._internal.identity import IdentityScope
from hush._internal.storage import PRIVATE, write_atomic
from hush._internal.tensors import Losses
from hush._internal.validate import choice
from hush.accounting import events
from hush.accounting.accountant import ADJACENCIES, Adjacency
from hush.accounting.events import DpEvent, Profile, name_event
from hush.accounting.noise_tails import Tails
from hush.clipping.base import Claim
from hush.data_source import Source
from hush.errors import FormatError, InvalidInputError, NotProvenError, ResumeError, RunStateError
from hush.randomness import Secret, streams

# Other releases on the same data, composed with training: a noisy histogram before it, noisy metrics after it.
#
# A plan with such releases (``Plan.composed``) is accounted as one release: its event is training composed with
# them, so the model and all of them together satisfy one (ε, δ). The composition is adaptive in either order: a later
# release may depend on earlier ones as long as its event is fixed in advance.


@dataclass(frozen=True)
class ComposedRelease:
    """One such release: ``name`` completes "the model and …", ``event`` is written for the sensitivity of its
    adjacency, and ``lost`` is δ that the event does not include, at any ε."""

    name: str
    event: DpEvent
    adjacency: Adjacency
    lost: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choice(ADJACENCIES, adjacency=self.adjacency)
        if not self.name.strip():
            raise InvalidInputError(
                "a composed release needs a descriptive name, such as 'a noisy histogram of the ages'"
            )
        if not 0 <= self.lost < 1:
            raise InvalidInputError(f"the δ that '{self.name}' loses must lie between 0 and 1, got {self.lost}")
        if events.to_json(self.event) is None:
            raise InvalidInputError(
                f"the event of '{self.name}' must be a dp-accounting event that can be serialized, such as "
                f"GaussianDpEvent(σ), not {name_event(self.event)}"
            )

    def declared(self, scope: IdentityScope) -> dict[str, Any]:
        """Its fields, with the event as plain data."""
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


def check_composed(releases: Sequence[ComposedRelease], event: Any, adjacency: Adjacency) -> None:
    """Raise for releases that cannot be composed with an event under an adjacency."""
    for release in releases:
        if release.adjacency != adjacency:
            raise NotProvenError(
                f"{release.name} is accounted under '{release.adjacency}' adjacency and training under '{adjacency}': "
                f"account for both under one of them, such as adjacency '{adjacency}'"
            )
    if releases and isinstance(event, Profile):
        raise NotProvenError(
            f"this method is proven by a custom event, which cannot be composed with {join_names(releases)}: use "
            "dp-sgd or another method whose query is a plain sum, or leave them out"
        )


def compose_releases(event: DpEvent, releases: Sequence[ComposedRelease]) -> DpEvent:
    """The event of training composed with these releases."""
    return dp_event.ComposedDpEvent([event, *(release.event for release in releases)]) if releases else event


def join_names(releases: Sequence[ComposedRelease]) -> str:
    """The names of the releases: "a, b and c"."""
    names = [release.name for release in releases]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def extra_delta(releases: Sequence[ComposedRelease]) -> float:
    """δ that the events of these releases do not include."""
    return math.fsum(release.lost for release in releases)


Values = Mapping[str, Tensor]
NAMED = "before-{key}.safetensors"
FORMAT = "hush released before training 2"


@dataclass(frozen=True)
class DataRelease:
    """One release before training.

    ``key`` names its noise and its file and is unique in the plan. ``release(secret)`` draws noise from this secret
    only and returns the public values. ``content()`` returns the bytes of all private input. ``by_unit`` says whether
    each unit counts once, however many rows it has; otherwise each row counts."""

    key: str
    composed: ComposedRelease
    release: Callable[[Secret], Values] = field(repr=False)
    content: Callable[[], Iterable[bytes]] = field(repr=False)
    by_unit: bool = False


class PrivatisedData(Protocol):
    """What a run trains on in place of the data (``Plan.trains_on``), as far as it is known before there are data."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of its claims."""
        ...

    def claims(self, sigma: float, steps: int) -> tuple[Claim, ...]:
        """Every claim about the release with noise multiplier ``sigma`` and ``steps`` steps of training on it."""
        ...

    def find_tails(self, sigma: float, numbers: int) -> Tails | None:
        """Where the noise on the ``numbers`` values of one record is truncated; None without Gaussian noise."""
        ...

    def bind(self, model: nn.Module, losses: Losses, source: Source, sigma: float) -> TrainingData:
        """What a run of this model trains on. Nothing is read of a record or released here."""
        ...


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The data and losses of a run with ``Plan.trains_on``. ``numbers`` values of one record get noise."""

    losses: Losses
    source: Source
    numbers: int = 1
    after_step: tuple[Callable[[Any], None], ...] = ()


@dataclass(eq=False)
class ReleasedData:
    """A data source that holds released values in place of a part of every record.

    ``put(content, values, indices)`` puts the values of these records into their content. The values are drawn before
    the first step, from the run's first secret."""

    part: DataRelease
    source: Source
    put: Callable[[Any, Values, Tensor], Any]
    _cached_batch: tuple[bytes, Values] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Tensor) -> Any:
        """Released values with what is public of these records."""
        if self._cached_batch is None and len(indices):
            raise RunStateError(f"{self.part.composed.name} is drawn by the first step of a run: call run.step")
        values = {} if self._cached_batch is None else self._cached_batch[1]
        return self.put(self.source.take(indices), values, indices)

    @property
    def drawn(self) -> bool:
        """Whether the values were drawn."""
        return self._cached_batch is not None

    def draw(self, run: Covered, folder: Path | None) -> Values:
        """Charge, draw and save the values, or read those that this run has drawn before."""
        secret = run.secret.first
        if self._cached_batch is None or self._cached_batch[0] != secret.key:
            self._cached_batch = secret.key, self._find(run, secret, folder)
        return self._cached_batch[1]

    def save(self, secret: Secret, folder: Path) -> None:
        """Save values that were drawn from this secret before the run had a private directory."""
        if self._cached_batch is not None and self._cached_batch[0] == secret.key:
            path = folder / NAMED.format(key=self.part.key)
            _write(path, secret, _digest(secret, self.part), self._cached_batch[1])

    def _find(self, run: Covered, secret: Secret, folder: Path | None) -> Values:
        path = None if folder is None else folder / NAMED.format(key=self.part.key)
        if run.next == 0:
            return _make(run, self.part, secret, path, {})
        kept = None if path is None else _read(path)
        if kept is None or kept.noise != secret.name or kept.values is None:
            raise ResumeError(
                f"the run is at step {run.next} and its {self.part.composed.name} is missing from "
                f"'{path or 'its checkpoints'}': restore the file, or start a new run"
            )
        return kept.values


class HasComposedReleases(Protocol):
    """The part of a plan that is needed here."""

    @property
    def composed(self) -> tuple[ComposedRelease, ...]:
        """The releases that its event includes."""
        ...

    @property
    def unit(self) -> str:
        """The privacy unit; "example" if each row is one."""
        ...


class Covered(Protocol):
    """The part of a run that is needed here."""

    @property
    def next(self) -> int:
        """The next step."""
        ...

    @property
    def plan(self) -> HasComposedReleases:
        """The plan that is accounted."""
        ...

    @property
    def secret(self) -> Secret:
        """The root of all noise."""
        ...

    def charge(self) -> None:
        """Charge the ledger for the plan with all its composed releases."""
        ...


_noised_content: dict[str, str] = {}  # the content that each secret's noise was added to in this process
_made: dict[tuple[str, str], set[str]] = {}  # the parts of a run that were made for each entry of its plan


def make_releases(run: Covered, parts: Sequence[DataRelease], folder: Path | None = None) -> dict[str, Values]:
    """The values of every part by key: charged, computed and saved, or read if this run made them before."""
    if len({part.key for part in parts}) < len(parts):
        raise InvalidInputError(
            "two releases before training have the same key and would share their noise: rename one"
        )
    for part in parts:
        _check_held(run, part)
    return {
        part.key: _make(
            run,
            part,
            run.secret.first.child(streams.data_release(part.key)),
            None if folder is None else folder / NAMED.format(key=part.key),
            _noised_content,
        )
        for part in parts
    }


def find_releases(folder: Path) -> list[Path]:
    """The files of releases before training, complete or begun, in a run's private directory."""
    return sorted(folder.glob(NAMED.format(key="*")))


def _make(run: Covered, part: DataRelease, secret: Secret, path: Path | None, noised: dict[str, str]) -> Values:
    """Charge, record, release, save. ``noised`` has the content that each secret's noise was added to so far."""
    content = _digest(secret, part)
    kept = None if path is None else _read(path)
    known = kept if kept is not None and kept.noise == secret.name else None
    _check_same(noised.setdefault(secret.name, content) if known is None else known.content, content, part)
    if run.next == 0:
        run.charge()  # also if the values exist: a run may be resumed with another ledger
    elif known is None:
        raise ResumeError(
            f"the run is at step {run.next} but has no saved {part.composed.name}, which is released before training: "
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
    """Check that the plan's event includes one release like this one for each part."""
    made = _made.setdefault((run.secret.first.name, repr(part.composed)), set())
    if len(made | {part.key}) > run.plan.composed.count(part.composed):
        other = "another one like " if made else ""
        raise InvalidInputError(
            f"the plan's event does not include {other}{part.composed.name}: make the plan with "
            "composed=(part.composed,), "
            "once for each part"
        )
    if part.by_unit != (run.plan.unit != "example"):
        raise NotProvenError(
            f"the plan protects one {run.plan.unit}, and {part.composed.name} would count "
            f"{'units' if part.by_unit else 'rows'}: give the units of the rows exactly where the plan has a unit"
        )
    made.add(part.key)


def _check_same(before: str, now: str, part: DataRelease) -> None:
    if before != now:
        raise ResumeError(
            f"the noise of {part.composed.name} was drawn for other data or at another scale, and using it here would "
            "reveal the difference: use the same data and share of ε, or start a new run with another secret"
        )


def _digest(secret: Secret, part: DataRelease) -> str:
    """Digest of the content and of the noise scale: the same draws at two scales would reveal the content."""
    found = hashlib.blake2b(key=secret.derive(streams.RELEASE_CONTENT, 0, size=32), digest_size=32)
    noise = json.dumps([events.to_json(part.composed.event), part.composed.adjacency, part.composed.lost])
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
    header = {"format": FORMAT, "noise": secret.name, "content": content, "made": "no" if values is None else "yes"}
    tensors = {name: value.detach().cpu().contiguous() for name, value in (values or {}).items()}
    write_atomic(path, save(tensors, metadata=header), mode=PRIVATE)


def _read(path: Path) -> _Kept | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = list(file.keys())
            values = {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise InvalidInputError(f"'{path}' is damaged, and it is released only once: start a new run") from error
    if (found := header.get("format", "")) != FORMAT and found.startswith("hush released before training"):
        raise FormatError(
            f"'{path}' was written by another version of hush ('{found}'; this one reads '{FORMAT}'), whose noise this "
            "one cannot repeat: finish the run with that version, or start a new one in another directory"
        )
    if found != FORMAT or not {"noise", "content", "made"} <= header.keys():
        raise InvalidInputError(f"'{path}' is damaged, and it is released only once: start a new run")
    return _Kept(header["noise"], header["content"], values if header["made"] == "yes" else None)
