"""What the rows beside an example do to the last bits of its own gradient.

Another number of rows picks other kernels, and everybody's last bits change with it: one example more then moves not
only its own addend. The default arithmetic lists that as an assumption, with the size it has on the run's own model.
Rigorous arithmetic keeps the number of rows, and checks here that at the same shape and place no neighbour matters.
Both look at made-up inputs and at weights that are public, before any data: what is found may be said, and the engine
that the model gets here (:mod:`hush.gradients.automatic`) is not picked by who is in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hush.arithmetic import Piece
from hush.errors import Refused
from hush.gradients.points import read_batch_size
from hush.named import Sums
from hush.randomness import seeded
from hush.source import Source, to_each

Summed = Callable[[Piece, Any], Sums]
"""The channels of one piece with this content."""


def made_up(source: Source, rows: int, seed: int, device: torch.device, *, below: int = 1) -> Any:
    """Content of the data's shape that shows nothing of it: standard normal numbers; integers from zero to ``below``
    (not itself), where it holds integers: zero is the one that every table has."""
    with seeded(seed):
        return to_each(lambda t: _random(t, rows, below).to(device), source.take(torch.empty(0, dtype=torch.int64)))


def _random(like: Tensor, rows: int, below: int) -> Tensor:
    shape = (rows, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape).to(like.dtype)
    return torch.randint(0, below, shape).to(like.dtype)


def shift_of_one_row_more(
    summed: Summed, source: Source, rows: int, bounds: Mapping[str, float], device: torch.device
) -> float:
    """How far a row that counts for nothing moves the sum over all the others, in units of the bound.

    The largest of a few numbers of rows, among them such at which libraries change their kernels."""
    counts = {count for count in (1, 15, rows // 16 * 16 - 1, rows) if 0 < count <= rows}
    below = _integers(summed, source, max(2, rows), device)

    def shift(count: int) -> float:
        return _shift(summed, made_up(source, count + 1, 0, device, below=below), bounds)

    return max(map(shift, sorted(counts, reverse=True)))


def _shift(summed: Summed, content: Any, bounds: Mapping[str, float]) -> float:
    rows = read_batch_size(content) - 1
    without = summed(_piece(rows, None), to_each(lambda t: t[:rows], content))
    beside = torch.zeros(rows + 1, dtype=torch.bool)
    beside[-1] = True
    found = summed(_piece(rows + 1, beside), content)
    moved = [_distance(found[channel], without[channel]) / bound for channel, bound in bounds.items()]
    return math.sqrt(sum(m * m for m in moved))


def check_neighbours(summed: Summed, source: Source, sizes: Iterable[int], device: torch.device) -> None:
    """Refuse a model in which, at the same shape and place, another row changes a bit of an example's own addend."""
    for rows in sizes:
        example, others = made_up(source, rows, 0, device), _neighbours(summed, source, rows, device)
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
    random, other = (made_up(source, rows, seed, device, below=below) for seed in (1, 2))
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
        summed(_piece(rows, None), made_up(source, rows, 1, device, below=2))
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


def _piece(rows: int, empty: Tensor | None) -> Piece:
    everywhere = torch.arange(rows)
    return Piece(everywhere if empty is None else everywhere[~empty], everywhere, ((0, rows),), empty)


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[n].double() - other[n].double()).square().sum()) for n in one))
