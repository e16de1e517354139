"""Spot checks: at steps that only the secret knows, a few examples of the batch are compared with themselves alone.

The comparison of the first batch cannot see a model that begins to mix its examples later (a flag, a warm-up, a memory
of features). A check takes the tape that the step made anyway and computes `PICKED` of its examples once more, alone:
0.1 to 1.7 steps of time for the models of ``benchmarks/spot_checks.py``, so with one in `PERIOD` at most 1 % of a run.
Which steps and which examples are a pure function of (secret, step): a resumed run repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hush.draws import drawing_only, is_by_place
from hush.errors import Refused
from hush.gradients.automatic import engine_of
from hush.gradients.book_keeping import BookTape
from hush.gradients.comparison import Case, is_unmixed, judge_in_float64, keeping_generator, measure_difference
from hush.gradients.points import Point
from hush.gradients.tape import Tape
from hush.named import Losses
from hush.randomness import Secret
from hush.source import to_each

PICKED = 2  # examples of one check
PERIOD = 192  # one step of every so many is checked: the share of time is a check's cost in steps over this
FIRST = 2  # and the steps up to this one are


FEW = 0.05  # of the numbers of a view that rounding may change


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
        which = torch.tensor(self._pick(case.n))
        with keeping_generator(start) as rewind:
            random = not torch.equal(start, torch.get_rng_state())

            def is_different(case: Case) -> bool:
                rewind()
                return not is_unmixed(case, case.keep_book(book), which, engine, random, rewind)

            if is_unmixed(case, tape, which, engine, random, rewind):
                return
            if judge_in_float64(case, is_different, lambda: True):
                raise Mixing(self._explain())

    def check_views(
        self, draw: Callable[[Any], Sequence[Point]], content: Any, n: int, views: Sequence[Point], start: Tensor
    ) -> None:
        """Refuse an augmentation whose views of an example are others where it is alone; ``draw`` makes the views of a
        content, and ``start`` is torch's generator before those of the batch. Rounding to levels can make much of a
        last bit that another number of rows changes: where few numbers differ, the example is compared once more, in a
        batch of as many copies of it."""
        if n < 2 or not is_by_place():
            return
        with keeping_generator(start) as rewind:
            for place in self._pick(n):
                rewind()
                with drawing_only(torch.tensor([place])):
                    alone = draw(_copy_row(content, place, 1))
                share = _compare_views(views, place, alone, 0)
                rewind()
                if share > FEW or (share and _compare_views(views, place, draw(_copy_row(content, place, n)), place)):
                    raise Mixing(self._explain("in the augmentation"))

    def _pick(self, n: int) -> list[int]:
        return sorted({int(pick * n) for pick in self.picks})

    def _explain(self, where: str = "in the model or its loss") -> str:
        return (
            f"at step {self.step} the examples of a batch meet {where}: what an example adds depends "
            "on the others, so clipping does not bound it. Nothing of this step was released, and this run releases "
            "nothing more: if they met earlier, its weights are not covered by the guarantee. Let forward and losses "
            "treat every example by itself, and start a new run"
        )


def _copy_row(content: Any, place: int, times: int) -> Any:
    """A content of one example, so many times."""
    return to_each(lambda t: t[torch.full((times,), place, device=t.device)], content)


def _compare_views(views: Sequence[Point], place: int, others: Sequence[Point], at: int) -> float:
    """The largest share of numbers in which one row of the views is not the same as a row of others."""
    pairs = zip(views, others, strict=True)
    return max(measure_difference(ours.content, place, theirs.content, at) for ours, theirs in pairs)


@dataclass(frozen=True)
class Watch:
    """The spot checks of one run: one step in each ``period``, at a place that the secret picks, and the first steps.

    So mixing that begins at some step and stays is found before two periods are over."""

    secret: Secret
    period: int = PERIOD
    first: int = FIRST

    def inspect(self, losses: Losses, step: int, piece: int = 0, pieces: int = 1) -> Losses:
        """The losses of one of the pieces of a step: as they are, or inspected."""
        due, place, *picks = self._draw(step // self.period)
        if step > self.first and step % self.period != int(due * self.period):
            return losses
        return Inspected(losses, step, tuple(picks)) if piece == int(place * pieces) else losses

    def _draw(self, block: int) -> list[float]:
        """Numbers from 0 to 1, without 1, for one period."""
        drawn = self.secret.derive("spot check", block, size=4 * (2 + PICKED))
        return [int.from_bytes(drawn[i : i + 4], "little") / 2**32 for i in range(0, len(drawn), 4)]
