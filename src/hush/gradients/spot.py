"""Spot checks: at steps that only the secret knows, a few examples of the batch are compared with themselves alone.

The comparison of the first batch cannot see a model that begins to mix its examples later (a flag, a warm-up, a memory
of features). A check takes the tape that the step made anyway and computes `PICKED` of its examples once more, alone,
so it costs about one recording of so few examples by the reference; docs and benchmarks say how much. Which steps and
which examples are a pure function of (secret, step, piece): a resumed run repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush.errors import Refused
from hush.gradients.automatic import engine_of
from hush.gradients.comparison import Case, in_float64, unmixed, unnoticed
from hush.gradients.engine import BookTape
from hush.gradients.tape import Tape
from hush.named import Losses
from hush.randomness import Secret, generator

PICKED = 2  # examples of one check
FIRST = 2  # steps after the first comparison that are always checked
RATE = 1 / 200  # of all later pieces: the share of time is this times the cost of a check in steps


class Mixing(Refused):
    """Examples met that were taken to be independent: this run takes no further step and releases nothing."""


@dataclass(frozen=True)
class Inspected:
    """Losses whose recording is checked: ``picks`` says where in the batch, from 0 to 1."""

    losses: Losses
    step: int
    picks: tuple[float, ...]

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The losses themselves."""
        return self.losses(model, content)

    def check(self, case: Case, tape: Tape, start: Tensor) -> None:
        """Refuse a tape whose examples are not what they are alone; ``start`` is torch's generator before it."""
        book, engine = engine_of(case.model, case.losses)
        if case.n < 2 or not (isinstance(tape, BookTape) or engine == "one by one"):
            return  # torch.func gives every example a batch of its own
        which = torch.tensor(sorted({int(pick * case.n) for pick in self.picks}))
        with unnoticed(start) as drawn:
            random = not torch.equal(start, torch.get_rng_state())

            def different(case: Case) -> bool:
                drawn()
                return not unmixed(case, case.booked(book), which, engine, random, drawn)

            if unmixed(case, tape, which, engine, random, drawn):
                return
            if in_float64(case, different, lambda: True):
                raise Mixing(self._why())

    def _why(self) -> str:
        return (
            f"at step {self.step} the examples of a batch meet in the model or its loss: what an example adds depends "
            "on the others, so clipping does not bound it. Nothing of this step was released, and this run releases "
            "nothing more: if they met earlier, its weights are not covered by the guarantee. Let forward and losses "
            "treat every example by itself, and start a new run"
        )


@dataclass(frozen=True)
class Watch:
    """The spot checks of one run."""

    secret: Secret
    rate: float = RATE
    first: int = FIRST

    def over(self, losses: Losses, step: int, piece: int) -> Losses:
        """The losses of one piece of one step: as they are, or inspected."""
        draws = generator(self.secret, f"spot check/{piece}", step).random(1 + PICKED)
        if draws[0] < self.rate or (piece == 0 and step <= self.first):
            return Inspected(losses, step, tuple(float(d) for d in draws[1:]))
        return losses
