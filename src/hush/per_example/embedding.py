"""Book-keeping rule of embeddings: a row of the table per token.

gᵢ has the sum of b_ip in row t for all positions p with token t; its norm is that of the sums per distinct token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.per_example.result import Weights
from hush.per_example.rounding import bound_squares
from hush.per_example.rules import Entry, TrackedParameter, apply_layer, entry_of, handles, refuse
from hush.per_example.terms import RoundingBound, Term


@dataclass(frozen=True)
class Lookup:
    """The sums of b over the positions of each token, by example: ``tokens`` (n, P) and ``sums`` (n, P, width).

    An example with fewer distinct tokens than positions has zero sums left over, at the table's first row."""

    tokens: Tensor
    sums: Tensor
    table: torch.Size

    @staticmethod
    def of(tokens: Tensor, b: Tensor, table: torch.Size) -> Lookup:
        """Build from tokens (n, P) and gradients b (n, P, width); rounding errors of a sum stay within its example."""
        n, positions = tokens.shape
        ordered, order = tokens.sort(stable=True)
        place = torch.zeros_like(ordered)
        torch.cumsum(ordered[:, 1:] != ordered[:, :-1], 1, out=place[:, 1:])
        own = torch.zeros_like(ordered).scatter_(1, place, ordered)
        place += positions * torch.arange(n, device=tokens.device)[:, None]
        back = torch.empty_like(place).scatter_(1, order, place)
        sums = b.new_zeros(n * positions, b.shape[2]).index_add_(0, back.flatten(), b.flatten(0, 1))
        return Lookup(own, sums.view(n, positions, -1), table)

    def rows(self, start: int, stop: int) -> Tensor:
        """The dense tables of a few examples."""
        m = stop - start
        where = self.tokens[start:stop] + self.table[0] * torch.arange(m, device=self.tokens.device)[:, None]
        flat = self.sums.new_zeros(m * self.table[0], self.table[1])
        return flat.index_add_(0, where.flatten(), self.sums[start:stop].flatten(0, 1)).view(m, *self.table)

    def reach(self) -> RoundingBound:
        """The addends are the sums themselves."""
        return RoundingBound(0, bound_squares(self.sums).sqrt_())

    def bound_squares(self, certain: bool = True) -> Tensor:
        """‖gᵢ‖² over each example's distinct tokens."""
        return bound_squares(self.sums, certain=certain)

    def sum(self, weights: Weights) -> Tensor:
        """Add every weighted sum to its token's row: one addend per example."""
        return self._add_to_table(weights.rows(self.tokens), weights.scale(self.sums))

    def add_sum(self, total: Tensor | None, weights: Weights) -> Tensor:
        """The same, added to a sum."""
        return self._add_to_table(weights.rows(self.tokens), weights.scale(self.sums), total)

    def sum_in_double(self, weights: Weights) -> Tensor:
        """The same in double precision."""
        scale = weights.values.double().view(-1, 1, 1)
        return self._add_to_table(weights.rows(self.tokens), weights.rows(self.sums) * scale)

    def _add_to_table(self, tokens: Tensor, scaled: Tensor, total: Tensor | None = None) -> Tensor:
        total = scaled.new_zeros(self.table) if total is None else total
        return total.index_add_(0, tokens.flatten(), scaled.flatten(0, 1))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tokens: Tensor, table: Tensor, padding: int | None, entries: tuple[Entry]
    ) -> Tensor:
        ctx.save_for_backward(tokens)
        (ctx.entry,), ctx.padding = entries, padding
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        (tokens,) = ctx.saved_tensors
        flat, b = tokens.reshape(tokens.shape[0], -1), gy.reshape(gy.shape[0], -1, gy.shape[-1])
        ctx.entry.leave(_look_up(flat, b, ctx.padding, ctx.entry))
        return None, None, None, None, None


@handles(F.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """One row of the table per token."""
    if max_norm is not None or scale_grad_by_freq:
        raise refuse("an embedding with max_norm or scale_grad_by_freq has no book-keeping rule", weight)
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    entry = entry_of(weight)
    if entry is None or entry_of(input) is not None or entry.session.holds_examples(entry.name, input):
        return apply_layer(_Embedding, input, (weight,), padding, least=1)
    return TrackedParameter.of(SharedLookup.of(entry, input, padding))


@handles(F.embedding_bag)
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the embeddings of each example's tokens."""
    if max_norm is not None or scale_grad_by_freq or offsets is not None or input.dim() != 2:
        raise refuse(
            "an embedding bag has a book-keeping rule without max_norm, scale_grad_by_freq and offsets only: give it "
            "a matrix with a row of tokens for each example, and padding_idx",
            weight,
        )
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    rows = apply_layer(_Embedding, input, (weight,), padding)
    left = torch.zeros_like(input, dtype=torch.bool) if padding is None else input == padding
    if mode == "max":
        largest = rows.masked_fill(left[:, :, None], -torch.inf).amax(1)
        return largest.masked_fill(left.all(1, keepdim=True), 0)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, :, None]
    total = rows.masked_fill(left[:, :, None], 0).sum(1)
    return total if mode == "sum" else total / (~left).sum(1, keepdim=True).clamp(min=1)


@dataclass(eq=False)
class SharedLookup(Entry):
    """The embeddings of tokens that all examples share, such as those of positions: a parameter of each example, whose
    gradients are added to the table's rows."""

    table: Entry | None = None
    tokens: Tensor | None = None
    padding: int | None = None

    @staticmethod
    def of(table: Entry, tokens: Tensor, padding: int | None) -> SharedLookup:
        """Look the tokens up."""
        value = F.embedding(tokens, table.value)
        return SharedLookup(table.name, value, table.session, table=table, tokens=tokens, padding=padding)

    def leave(self, term: Term) -> None:
        """Add the gradients of every example to the rows of its tokens."""
        assert self.table is not None
        assert self.tokens is not None
        n = self.session.n
        flat = self.tokens.reshape(1, -1).expand(n, -1)
        self.table.leave(_look_up(flat, term.rows(0, n).reshape(n, flat.shape[1], -1), self.padding, self.table))


def _look_up(flat: Tensor, b: Tensor, padding: int | None, entry: Entry) -> Lookup:
    """The term of tokens (n, P) with gradients b (n, P, width)."""
    if padding is not None:
        b = b.masked_fill((flat == padding)[:, :, None], 0)
    return Lookup.of(flat, b, entry.value.shape)
