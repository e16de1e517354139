"""The noise protocol, and the noisy gradient that leaves the privacy boundary.

A floating-point sum can reveal its terms: where a value and its noise nearly cancel, the result is finer than the
noise, and its last bits are those of the value (Mironov 2012, "On significance of the least significant bits for
differential privacy"). Noise is therefore drawn and added in float64, and the noisy value is rounded to a public grid
of at most 1/64 of its noise. Every point of the grid then has the probability that the Gaussian gives it: with a
relative error below 4e-12 within 5.7 standard deviations of the value, and with a larger one from there to 10.2, where
the draws end. `hush.accounting.noise_precision` derives what that costs. Everything after the grid is post-processing.
The rounding adds at most 2e-5 to the noise's variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from hush._internal.tensors import Named, State, Sums
from hush.matrix_factorization.sensitivity import Array
from hush.matrix_factorization.strategy import Strategy

Rows = Callable[[int], Tensor]
"""``z(j)``: the j-th row of Z, a flat standard normal vector. It is a pure function, so any row can be recomputed;
every call returns a new tensor, which the noise may change."""


class Noise(Protocol):
    """Turns independent rows Z into the noise of every step. The proofs rely on these guarantees:

    - pure: `draw` is a function of the step, of Z and of the state alone; its result never changes afterwards;
    - map: the noise of steps 0, 1, … from the state of `init` is MZ, for the M of its `structure`;
    - columns: a coordinate of the noise depends on this coordinate of Z alone;
    - spread: ``std(t)`` is ‖row t of M‖;
    - memory: the state does not grow with the steps;
    - resume: the entries of the state without a leading underscore are all that the next step needs;
    - late start: from the state of `init` at step t, as under a fresh secret, rows of Z that belong to earlier steps
      count in full or not at all, and the other rows count as usual;
    - pieces: where `pieces` is true there is no state, and coordinates drawn in parts equal those drawn together.
    """

    @property
    def structure(self) -> Strategy:
        """The strategy: C and M, as far as the plan uses them."""
        ...

    @property
    def pieces(self) -> bool:
        """Whether the coordinates of a step may be drawn in parts."""
        ...

    def init(self, like: Tensor) -> State:
        """The state before the first step, for flat vectors like this one."""
        ...

    def draw(self, step: int, z: Rows, state: State) -> tuple[Tensor, State]:
        """The unscaled noise of one step, and the next state."""
        ...

    def std(self, step: int) -> float:
        """The standard deviation of one coordinate of ``draw(step)``."""
        ...


@runtime_checkable
class NoiseFactory(Protocol):
    """Settings of a noise that is built once the number of steps is known."""

    def build(self, steps: int) -> Noise:
        """The noise of this many steps."""
        ...


class Stream:
    """Base of the noises here: the spread comes from the strategy, and all coordinates are drawn together."""

    structure: Strategy

    @property
    def pieces(self) -> bool:
        return False

    def std(self, step: int) -> float:
        """‖row t of M‖."""
        return float(self._norms[step])

    @cached_property
    def _norms(self) -> Array:
        return self.structure.inverse_norms()


CACHED = 1 << 15  # coordinates at a time: five passes over them stay in the processor's cache


@dataclass(frozen=True)
class NoisyGradient:
    """A step's noisy sums, divided by the plan's public divisor. Everything computed from it is post-processing."""

    step: int
    values: Sums
    std: Mapping[str, float]

    @property
    def gradient(self) -> Named:
        """The private gradient by parameter name."""
        return self.values["gradient"]

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in one coordinate of :attr:`gradient`."""
        return self.std["gradient"]


def add_noise(sums: Iterable[Tensor], noise: Iterable[Tensor], scale: float, spacing: float, divisor: float) -> None:
    """total ← [total + scale · noise] / divisor in place, where [·] rounds to a multiple of ``spacing``.

    ``noise`` yields consecutive parts of one flat vector over all sums. It is not modified: a noise may keep it.
    """
    pieces = iter(noise)
    piece: Tensor | None = None
    for total in sums:
        flat = total.reshape(-1)
        rest = flat
        while len(rest):
            if piece is None or not len(piece):
                piece = next(pieces, None)
                if piece is None:
                    raise RuntimeError("the noise is shorter than the sums")
            count = min(len(rest), len(piece), CACHED)
            value, z = rest[:count], piece[:count].double() * (scale / spacing)
            z.add_(value.to(z.device), alpha=1.0 / spacing)
            value.copy_(z.round_().mul_(spacing / divisor))
            rest, piece = rest[count:], piece[count:]
        if not total.is_contiguous():
            total.copy_(flat.view(total.shape))
    if (piece is not None and len(piece)) or next(pieces, None) is not None:
        raise RuntimeError("the noise is longer than the sums")
