"""The protocol of the only code that sees data, and what it declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from hush._internal.tensors import Losses, Named, State, Sums
from hush.accounting.accountant import Adjacency
from hush.accounting.guarantee import Protects, Status
from hush.data_source import Source
from hush.noise.base import NoisyGradient
from hush.randomness import Secret
from hush.sampling import Participation

Proof = Literal["sum", "hidden-state", "none", "rows", "coins", "released"]
"""Of a channel: a plain sum; one that a hidden state reaches, whose query makes its claims itself; no proof at all.
``rows`` are single records that the query itself releases with noise (`hush.sanitize`): no part of a step's sums, but
of the budget. ``coins`` are single records released by coins of exact probabilities (randomised response), without
any noise that has tails. ``released`` is made of released rows and of what is public alone: it needs no bound and gets
no noise.
"""

ADDED: tuple[Proof, ...] = ("sum", "hidden-state")  # the kinds of channels to whose sums a run adds noise


@dataclass(frozen=True)
class Channel:
    """One vector that a query gives to be noised.

    ``bound`` is the L2 norm that one example can add to it in exact arithmetic; a plan adds what rounding can add
    (:func:`hush.per_example.chunks.charge`). ``std`` fixes the noise on this channel's sum; a channel without one gets
    what is left of the budget, so that Σ (bound/std)² = 1/σ² over all channels.
    """

    bound: float
    proof: Proof = "sum"
    std: float | None = None
    exact: bool = False  # sums of it have no rounding (counts of halves): nothing is charged for arithmetic


@dataclass(frozen=True)
class Claim:
    """What is said about a query whose proof is its own: an event, and how far it can be trusted."""

    event: Any  # a dp_accounting DpEvent, or an object with ``delta_of(epsilon)``
    adjacency: Adjacency
    status: Status
    reason: str
    protects: Protects = "example"


@dataclass(frozen=True)
class PlainSumProof:
    """Said by a query whose channels are plain sums: the table of `hush.guarantees` makes the claims."""


PLAIN_SUM = PlainSumProof()


@runtime_checkable
class Query(Protocol):
    """Turns a batch into bounded sums. An additive ``piece`` per microbatch or rank, one ``finish`` per step.

    It promises, and what is proven rests on it:

    1. Add an example to a batch, or take one away, and no channel of ``proof="sum"`` moves by more than its ``bound``
       in L2 norm, in exact arithmetic, whatever the data, the parameters and the states are.
    2. ``piece`` is additive: the sums over the pieces of a batch are the sums of the batch.
    3. An example without a finite gradient adds nothing to any channel.
    4. What ``finish`` gives has the names of ``channels`` and no others; nothing else of the data leaves the query but
       ``diagnostics``, which are never released.
    5. The public state is made of releases and updates alone.
    6. The private state reaches no channel whose ``proof`` is "sum".
    7. ``channels`` do not change once a plan is made (a run refuses them where they do).
    8. ``claims`` is `PLAIN_SUM` where every channel is a plain sum, and otherwise holds for whatever the private state
       is; a query that says neither is refused.
    """

    @property
    def channels(self) -> Mapping[str, Channel]:
        """What is released, with its bound and the kind of proof it has."""
        ...

    def init(self, params: Named) -> tuple[State, State]:
        """The public state (made of released values only) and the private state (never leaves the query)."""
        ...

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Sums over the examples of one piece; the extra key ``diagnostics`` is private and never released."""
        ...

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The channels to be noised, from the whole batch's sums, and the next private state."""
        ...

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """The next public state, from what was released."""
        ...

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        """`PLAIN_SUM` of a query whose channels are plain sums; else every claim about the first ``steps`` steps with
        this noise on each channel's sum (error feedback, released rows). Nothing where nothing is claimed."""
        ...


@dataclass(frozen=True)
class Start:
    """What a run starts with. ``secret()`` is the run's at the time it is asked for, ``noise_std`` the noise on each
    channel's sum."""

    model: nn.Module
    losses: Losses
    source: Source
    secret: Callable[[], Secret]
    noise_std: Mapping[str, float]


@runtime_checkable
class NeedsPreparation(Protocol):
    """A query that has to see the model and the data before a run starts: one that releases rows (`hush.sanitize`)."""

    def prepare(self, start: Start) -> tuple[Query, Source]:
        """The query for this model, and the data that it gets in place of the run's. Nothing is released before the
        first step asks for it, so that a ledger is charged first."""
        ...

    def make_ready(self, step: int) -> None:
        """Called before this step is covered by a ledger: whatever can fail without releasing anything fails here."""
        ...

    def recall(self, public: State) -> None:
        """Called when a run goes on from this public state: bring back into the model what it says."""
        ...

    def count_numbers(self, model: nn.Module, source: Source) -> int:
        """How many numbers of one record are released at a time."""
        ...

    def count_releases(self, participation: Participation, steps: int) -> int:
        """How often a record meets noise in so many steps, at most."""
        ...


@runtime_checkable
class HasHiddenState(Protocol):
    """A query whose hidden state carries an example on: it can move a step in which it takes no part."""

    @property
    def reach(self) -> float:
        """How far one example moves the sum of a step at most, in units of its channel's bound."""
        ...
