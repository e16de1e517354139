"""Terms of rows as terms of units: the only part of the engine where an example can have several rows.

A layer adds a term of n·m rows. A unit's gradient is the sum over its m rows (their losses carry the weights of the
mean), so a term treats a unit like a sequence: rows become positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hush.per_example.embedding import Lookup
from hush.per_example.result import Weights
from hush.per_example.terms import Materialized, OuterProduct, RoundingBound, Term, add_doubles, bound_in_chunks


def gather_rows(term: Term, n: int, m: int, like: Tensor) -> Term:
    """The term of n units of m rows each, for a parameter ``like`` this."""
    if m == 1:
        return term
    if isinstance(term, Materialized):
        return Materialized(_add_up(term.values, m))
    if isinstance(term, OuterProduct):
        return OuterProduct(_side_by_side(term.a, m), _side_by_side(term.b, m)).choose_form()
    if isinstance(term, Lookup):
        tokens = term.tokens.reshape(-1, m * term.tokens.shape[1])
        return Lookup.of(tokens, _side_by_side(term.sums, m), term.table)
    return Gathered(term, n, m, like)


def _add_up(rows: Tensor, m: int) -> Tensor:
    """(n·m, …) as (n, …)."""
    return rows.reshape(len(rows) // m, m, *rows.shape[1:]).sum(1)


def _side_by_side(rows: Tensor, m: int) -> Tensor:
    """(n·m, P, width) as (n, m·P, width)."""
    return rows.reshape(-1, m * rows.shape[1], rows.shape[2])


@dataclass(frozen=True)
class Gathered:
    """Any term of n·m rows as that of n units: a unit's rows are summed, in double precision unless they are
    materialized."""

    term: Term
    n: int
    m: int
    like: Tensor

    def rows(self, start: int, stop: int) -> Tensor:
        """The sums over each unit's rows."""
        return _add_up(self.term.rows(start * self.m, stop * self.m), self.m)

    def reach(self) -> RoundingBound:
        """The bound of the rows together, with one more rounding for each."""
        own = self.term.reach()
        return RoundingBound(own.roundings + self.m, own.s.view(-1, self.m).sum(1))

    def bound_squares(self, certain: bool = True) -> Tensor:
        """Computed from the gradients of a few units at a time."""
        return bound_in_chunks([self], self.n, self.m * self.like.numel(), certain)

    def sum(self, weights: Weights) -> Tensor:
        """Rows can cancel, so they are summed in double precision and rounded once."""
        return self.sum_in_double(weights).to(self.like.dtype)

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same in double precision, added to a sum."""
        return add_doubles(total, self.sum_in_double(weights))

    def sum_in_double(self, weights: Weights) -> Tensor:
        """Every row with the weight of its unit."""
        values = weights.values.repeat_interleave(self.m)
        dead = None if weights.dead is None else weights.dead.repeat_interleave(self.m)
        return self.term.sum_in_double(Weights(values, weights.start * self.m, weights.stop * self.m, dead))
