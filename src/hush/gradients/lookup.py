"""Book-keeping rule of embeddings: a row of the table per token.

gᵢ has the sum of b_ip in row t for all positions p with token t; its norm is that of the sums per distinct token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from hush.gradients.layers import applied, opened
from hush.gradients.tape import squares
from hush.gradients.terms import ROUNDING, Weights
from hush.gradients.watched import Entry, entry_of, handles, plain, refuse


@dataclass(frozen=True)
class Lookup:
    """tokens of shape (n, P) and gradients b of shape (n, P, width), zero at padding."""

    tokens: Tensor
    b: Tensor
    table: torch.Size

    def hidden(self) -> Tensor:
        """Of the sum over the positions of one token."""
        return squares(self.b).mul_(ROUNDING * torch.finfo(self.b.dtype).eps * self.b.shape[1])

    def rows(self, start: int, stop: int) -> Tensor:
        """The whole tables of a few examples."""
        m = stop - start
        where = self.tokens[start:stop] + self.table[0] * torch.arange(m, device=self.tokens.device)[:, None]
        flat = self.b.new_zeros(m * self.table[0], self.table[1])
        return flat.index_add_(0, where.flatten(), self.b[start:stop].flatten(0, 1)).view(m, *self.table)

    def squares(self) -> Tensor:
        """‖gᵢ‖² over each example's distinct tokens."""
        n = self.tokens.shape[0]
        where = self.tokens + self.table[0] * torch.arange(n, device=self.tokens.device)[:, None]
        distinct, place = torch.unique(where.flatten(), return_inverse=True)
        sums = self.b.new_zeros(len(distinct), self.table[1]).index_add_(0, place, self.b.flatten(0, 1))
        owner = torch.div(distinct, self.table[0], rounding_mode="floor")
        return self.hidden().index_add_(0, owner, squares(sums))

    def weighted(self, weights: Weights) -> Tensor:
        """Add every weighted position to its token's row."""
        out = self.b.new_zeros(self.table)
        return out.index_add_(0, weights.rows(self.tokens).flatten(), weights.scale(self.b).flatten(0, 1))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor, table: Tensor, padding: int | None, entry: Entry) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.padding, ctx.entry = padding, entry
        return F.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        (tokens,) = ctx.saved_tensors
        flat, b = tokens.reshape(tokens.shape[0], -1), gy.reshape(gy.shape[0], -1, gy.shape[-1])
        if ctx.padding is not None:
            b = b.masked_fill((flat == ctx.padding)[:, :, None], 0)
        ctx.entry.leave(Lookup(flat, b, ctx.entry.value.shape))
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
    session = opened(input, weight, least=1)
    entry = entry_of(weight)
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    return applied(_Embedding, session.anchor, input, plain(weight), padding, entry)
