"""The query protocol, and what a query declares about its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from hush._internal.tensors import Losses, Named, State, Sums
from hush.accounting.accountant import Adjacency
from hush.accounting.guarantee import Protects, Status
from hush.noise.base import NoisyGradient
from hush.sampling import Participation

Proof = Literal["sum", "hidden-state", "none"]
"""The kind of proof of a channel:

- ``sum``: a plain sum over the examples of a step;
- ``hidden-state``: a sum that a private state influences; the query makes its own claims;
- ``none``: no bound, no noise and no proof: ordinary training, also on released values (`hush.data_release`).
"""


@dataclass(frozen=True)
class Channel:
    """One vector of a query's output that gets noise.

    ``bound`` is the L2 norm that one example can add to it in exact arithmetic; a plan adds the effect of rounding
    (:func:`hush.per_example.chunks.charge`). ``std`` fixes the noise on this channel's sum; channels without it share
    the rest of the budget, so that Σ (bound/std)² = 1/σ² over all channels.
    """

    bound: float
    proof: Proof = "sum"
    std: float | None = None
    exact: bool = False  # sums without rounding (counts of halves): nothing is charged for arithmetic


@dataclass(frozen=True)
class Claim:
    """A claim by a query with its own proof: an event, and the status of its proof."""

    event: Any  # a dp_accounting DpEvent, or an object with ``delta_of(epsilon)``
    adjacency: Adjacency
    status: Status
    reason: str
    protects: Protects = "example"


@dataclass(frozen=True)
class PlainSumProof:
    """Returned by a query whose channels are all plain sums: the table of `hush.guarantees` makes the claims."""


PLAIN_SUM = PlainSumProof()


@runtime_checkable
class Query(Protocol):
    """Turns a batch into bounded sums: an additive ``piece`` per microbatch or rank, one ``finish`` per step.

    The proofs rely on these guarantees:

    1. When an example is added to a batch or removed, no channel of ``proof="sum"`` changes by more than its ``bound``
       in L2 norm, in exact arithmetic, for any data, parameters and states.
    2. ``piece`` is additive: the sums over the pieces of a batch are the sums of the batch.
    3. An example without a finite gradient adds nothing to any channel.
    4. The output of ``finish`` has exactly the names of ``channels``; nothing else computed from the data leaves the
       query except ``diagnostics``, which are never released.
    5. The public state is computed from releases and updates alone.
    6. The private state influences no channel whose ``proof`` is "sum".
    7. ``channels`` do not change once a plan is made (a run raises an error if they do).
    8. ``claims`` is `PLAIN_SUM` where every channel is a plain sum, and otherwise holds for any private state; a query
       that returns neither is refused.
    """

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The released sums, each with its bound and kind of proof."""
        ...

    def init(self, params: Named) -> tuple[State, State]:
        """The public state (computed from released values only) and the private state (never leaves the query)."""
        ...

    def piece(self, model: nn.Module, losses: Losses, content: Any, public: State) -> Sums:
        """Sums over the examples of one piece; the extra key ``diagnostics`` is private and never released."""
        ...

    def finish(self, sums: Sums, public: State, private: State) -> tuple[Sums, State]:
        """The channels to be noised, from the whole batch's sums, and the next private state."""
        ...

    def observe(self, release: NoisyGradient, update: Named, public: State) -> State:
        """The next public state, from the noisy values."""
        ...

    def claims(
        self, participation: Participation, noise_std: Mapping[str, float], steps: int
    ) -> tuple[Claim, ...] | PlainSumProof:
        """`PLAIN_SUM` if all channels are plain sums; else every claim about the first ``steps`` steps with this noise
        on each channel's sum (error feedback). Empty if nothing is claimed."""
        ...


@runtime_checkable
class HasHiddenState(Protocol):
    """A query with a private state: an example can influence steps in which it does not take part."""

    @property
    def reach(self) -> float:
        """The largest change of a step's sum by one example, in units of its channel's bound."""
        ...
