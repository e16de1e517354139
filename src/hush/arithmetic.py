"""Where a step's examples stand while they are summed, and what the rounding of their sum is charged.

Floating point breaks two promises of the proof. One example more changes the rounding of every later addition, and it
changes the shape of the products that compute everybody else's gradient. Both are bounded by giving every step a public
number of *places*: the examples of a batch take distinct places at random (by the secret), so that one example more
takes a free place and nobody moves. Places are cut into *pieces*, whose gradients are computed at a time; pieces into
*blocks* of at most :data:`BLOCK` places, which are summed in the gradients' own type, in halves; what lies between
blocks is summed in float64. One example more changes one block. ``gradients/ARITHMETIC.md`` has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hush.randomness import Secret, generator
from hush.sampling import Room

Mode = Literal["default", "rigorous"]
MODES = ("default", "rigorous")
BLOCK = 400  # places that are summed in the gradients' own type
HALF = 200  # of them in one product; the two halves are added
UNIT = 2.0**-24  # of float32: the largest relative error of one rounding
DOUBLE = 2.0**-53  # of float64
FINISH = 1e-9  # for what is done once to the float64 sum of a step: a query's finish, and the noise's own addition
SHARE = 1e-5  # of δ, for batches with more examples than places


def charge(places: int) -> float:
    """How much farther than by one clip the computed sums of two neighbours can lie apart, with blocks of these places.

    A sum of h float32 products in any order of additions rounds addend j at most d_j times. The squares of these depths
    sum to at most h² + h(h + 1)(2h + 1)/6 (one addition after the other, and the products); where two such halves are
    added, every depth grows by one. By Cauchy and Schwarz, coordinate by coordinate, a sum over n addends of at most
    one clip errs by at most u·√(n·Σd²) clips, and two neighbours' sums by twice that. Between blocks, of which there
    are as many as places at most, no addend of the float64 sum is rounded more often than there are places.
    """
    return max(_bound_rounding(min(places, most)) for most in (HALF, BLOCK)) + 4.0 * DOUBLE * places**2 + FINISH


def _bound_rounding(n: int) -> float:
    parts = -(-n // HALF)
    deep = -(-n // parts) + parts - 1
    squares = parts * (deep**2 + deep * (deep + 1) * (2 * deep + 1) / 6)
    return 2.0 * UNIT * math.sqrt(n * squares) / (1.0 - deep * UNIT)


@dataclass(frozen=True)
class Piece:
    """The examples that are computed at a time: which of the batch they are, their places, and where sums are cut."""

    chosen: Tensor  # positions in the batch, in the order of the places
    places: Tensor  # of every row; in rigorous arithmetic of empty rows too
    blocks: tuple[tuple[int, ...], ...]  # the bounds of each block's parts, as rows of the piece
    empty: Tensor | None = None  # True where a row is no example: a constant of weight zero

    def fill_empty(self, rows: Tensor) -> Tensor:
        """The examples' rows with zeros at the empty places."""
        if self.empty is None:
            return rows
        out = rows.new_zeros(len(self.empty), *rows.shape[1:])
        out[~self.empty.to(out.device)] = rows
        return out


@dataclass(frozen=True)
class Seats:
    """The places of every step of a run, and how they are cut; a function of public numbers alone."""

    places: int
    pieces: int
    mode: Mode = "default"

    @staticmethod
    def of(room: Room, microbatch: int, world: int, mode: Mode) -> Seats:
        """Pieces of at most ``microbatch`` places, the same number for each of ``world`` processes."""
        count = max(1, -(-room.places // microbatch))
        return Seats(room.places, world * -(-count // world), mode)

    def assign(self, secret: Secret, step: int, count: int) -> Tensor:
        """The places of a batch of ``count`` examples: distinct and uniformly random; more than there are stay out.

        Example j of the batch takes place j of one order of all places: the last example can come or go and nobody
        moves. Which order it is does not depend on the data, so that the same is true, in distribution, for any one.
        """
        order = generator(secret, "places", step).permutation(self.places)
        return torch.from_numpy(order[:count])

    def sides(self, number: int) -> tuple[int, int]:
        """The first place of a piece, and the one after its last."""
        return self.places * number // self.pieces, self.places * (number + 1) // self.pieces

    def rows(self) -> tuple[int, ...]:
        """The numbers of places that pieces have: one, or two neighbouring ones; the smallest first."""
        sizes = {high - low for low, high in map(self.sides, range(self.pieces))}
        return tuple(sorted(sizes - {0}))

    def cut(self, taken: Tensor, rank: int = 0, world: int = 1) -> Iterator[Piece]:
        """The pieces of one process, with the examples that took their places."""
        order = torch.argsort(taken)
        places = taken[order]
        for number in range(rank, self.pieces, world):
            low, high = self.sides(number)
            first, last = torch.searchsorted(places, torch.tensor([low, high])).tolist()
            here = places[first:last]
            blocks = _cut_blocks(low, high)
            if self.mode == "default":
                rows = tuple(tuple(torch.searchsorted(here, torch.tensor(b)).tolist()) for b in blocks)
                yield Piece(order[first:last], here, rows)
            else:
                everywhere = torch.arange(low, high)
                empty = torch.from_numpy(~np.isin(everywhere.numpy(), here.numpy()))
                rows = tuple(tuple(bound - low for bound in b) for b in blocks)
                yield Piece(order[first:last], everywhere, rows, empty)


def _cut_blocks(low: int, high: int) -> list[list[int]]:
    """Places low … high−1 cut into blocks, each as the bounds of its parts."""
    sides = _cut_evenly(low, high, BLOCK)
    return [_cut_evenly(a, b, HALF) for a, b in zip(sides[:-1], sides[1:], strict=True)]


def _cut_evenly(low: int, high: int, most: int) -> list[int]:
    parts = max(1, -(-(high - low) // most))
    return [low + (high - low) * i // parts for i in range(parts + 1)]
