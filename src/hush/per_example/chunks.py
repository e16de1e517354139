"""Where a step's examples stand while they are summed, and what the rounding of their sum is charged.

Floating point breaks two promises of the proof. One example more changes the rounding of every later addition, and it
changes the shape of the products that compute everybody else's gradient. Both are bounded by giving every step a public
number of *places*: the examples of a batch take distinct places at random (by the secret), so that one example more
takes a free place and nobody moves. Places are cut into *pieces*, whose gradients are computed at a time; pieces into
*blocks* of at most :data:`BLOCK` places, which are summed in the gradients' own type, in halves; what lies between
blocks is summed in float64. One example more changes one block. ``per_example/ARITHMETIC.md`` has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hush._internal.tensors import Sums
from hush.data_source import Source, to_each
from hush.errors import Refused
from hush.per_example.augmentation import read_batch_size
from hush.randomness import Secret, generator, seeded, streams
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
class Chunk:
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
        order = generator(secret, streams.PLACES, step).permutation(self.places)
        return torch.from_numpy(order[:count])

    def sides(self, number: int) -> tuple[int, int]:
        """The first place of a piece, and the one after its last."""
        return self.places * number // self.pieces, self.places * (number + 1) // self.pieces

    def rows(self) -> tuple[int, ...]:
        """The numbers of places that pieces have: one, or two neighbouring ones; the smallest first."""
        sizes = {high - low for low, high in map(self.sides, range(self.pieces))}
        return tuple(sorted(sizes - {0}))

    def cut(self, taken: Tensor, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
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
                yield Chunk(order[first:last], here, rows)
            else:
                everywhere = torch.arange(low, high)
                empty = torch.from_numpy(~np.isin(everywhere.numpy(), here.numpy()))
                rows = tuple(tuple(bound - low for bound in b) for b in blocks)
                yield Chunk(order[first:last], everywhere, rows, empty)


def _cut_blocks(low: int, high: int) -> list[list[int]]:
    """Places low … high−1 cut into blocks, each as the bounds of its parts."""
    sides = _cut_evenly(low, high, BLOCK)
    return [_cut_evenly(a, b, HALF) for a, b in zip(sides[:-1], sides[1:], strict=True)]


def _cut_evenly(low: int, high: int, most: int) -> list[int]:
    parts = max(1, -(-(high - low) // most))
    return [low + (high - low) * i // parts for i in range(parts + 1)]


# What the rows beside an example do to the last bits of its own gradient.
#
# Another number of rows picks other kernels, and everybody's last bits change with it: one example more then moves not
# only its own addend. The default arithmetic lists that as an assumption, with the size it has on the run's own model.
# Rigorous arithmetic keeps the number of rows, and checks here that at the same shape and place no neighbour matters.
# Both look at made-up inputs and at weights that are public, before any data: what is found may be said, and the engine
# that the model gets here (:mod:`hush.per_example.engine`) is not picked by who is in a batch.

Summed = Callable[[Chunk, Any], Sums]
"""The channels of one piece with this content."""


def synthetic_batch(source: Source, rows: int, seed: int, device: torch.device, *, below: int = 1) -> Any:
    """Content of the data's shape that shows nothing of it: standard normal numbers; integers from zero to ``below``
    (not itself), where it holds integers: zero is the one that every table has."""
    with seeded(seed):
        return to_each(lambda t: _random(t, rows, below).to(device), source.take(torch.empty(0, dtype=torch.int64)))


def _random(like: Tensor, rows: int, below: int) -> Tensor:
    shape = (rows, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape).to(like.dtype)
    return torch.randint(0, below, shape).to(like.dtype)


def effect_of_extra_row(
    summed: Summed, source: Source, rows: int, bounds: Mapping[str, float], device: torch.device
) -> float:
    """How far a row that counts for nothing moves the sum over all the others, in units of the bound.

    The largest of a few numbers of rows, among them such at which libraries change their kernels."""
    counts = {count for count in (1, 15, rows // 16 * 16 - 1, rows) if 0 < count <= rows}
    below = _integers(summed, source, max(2, rows), device)

    def shift(count: int) -> float:
        return _shift(summed, synthetic_batch(source, count + 1, 0, device, below=below), bounds)

    return max(map(shift, sorted(counts, reverse=True)))


def _shift(summed: Summed, content: Any, bounds: Mapping[str, float]) -> float:
    rows = read_batch_size(content) - 1
    without = summed(_piece(rows, None), to_each(lambda t: t[:rows], content))
    beside = torch.zeros(rows + 1, dtype=torch.bool)
    beside[-1] = True
    found = summed(_piece(rows + 1, beside), content)
    moved = [_distance(found[channel], without[channel]) / bound for channel, bound in bounds.items()]
    return math.sqrt(sum(m * m for m in moved))


def check_batch_invariance(summed: Summed, source: Source, sizes: Iterable[int], device: torch.device) -> None:
    """Refuse a model in which, at the same shape and place, another row changes a bit of an example's own addend."""
    for rows in sizes:
        example, others = synthetic_batch(source, rows, 0, device), _neighbours(summed, source, rows, device)
        for place in sorted({0, rows // 2, rows - 1}):
            _check_place(summed, example, others, rows, place)


def _check_place(summed: Summed, example: Any, neighbours: Iterable[Any], rows: int, place: int) -> None:
    empty = torch.ones(rows, dtype=torch.bool)
    empty[place] = False
    first: Sums | None = None
    for others in neighbours:
        found = summed(_piece(rows, empty), _beside(example, others, place))
        first = found if first is None else first
        changed = [n for c in found for n, v in found[c].items() if not torch.equal(v, first[c][n])]
        if changed:
            raise Refused(
                f"rigorous arithmetic needs gradients that depend on no other row of the batch, and that of "
                f"'{changed[0]}' does in its last bits: use the default arithmetic, which assumes it"
            )


def _neighbours(summed: Summed, source: Source, rows: int, device: torch.device) -> list[Any]:
    below = _integers(summed, source, rows, device)
    random, other = (synthetic_batch(source, rows, seed, device, below=below) for seed in (1, 2))
    return [random] + [to_each(lambda t, f=factor: _times(t, f), other) for factor in (0.0, 1e4, math.nan)]


def _times(t: Tensor, factor: float) -> Tensor:
    """Integers stay what they may be: as they are, or zero."""
    return (t * factor).to(t.dtype) if t.is_floating_point() or factor == 0 else t


def _integers(summed: Summed, source: Source, rows: int, device: torch.device) -> int:
    """Tokens and labels can be 0; that they can be 1 as well is tried, where an error does no harm to the device.

    This is the first recording of a run: it compares engines on rows that differ."""
    if device.type != "cpu":
        return 1
    try:
        summed(_piece(rows, None), synthetic_batch(source, rows, 1, device, below=2))
    except (IndexError, RuntimeError, ValueError):
        return 1
    return 2


def _beside(example: Any, others: Any, place: int) -> Any:
    rows: list[Tensor] = []
    to_each(lambda t: rows.append(t[place]), example)
    left = iter(rows)

    def put(t: Tensor) -> Tensor:
        t = t.clone()
        t[place] = next(left)
        return t

    return to_each(put, others)


def _piece(rows: int, empty: Tensor | None) -> Chunk:
    everywhere = torch.arange(rows)
    return Chunk(everywhere if empty is None else everywhere[~empty], everywhere, ((0, rows),), empty)


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[n].double() - other[n].double()).square().sum()) for n in one))
