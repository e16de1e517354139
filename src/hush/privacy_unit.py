"""The unit of privacy: all rows of one person (patient, customer, device) as one example.

Sampling, N, q, the divisor and δ < 1/N count units. When unit u takes part in step t, a set S of at most m of its rows
is chosen, and what it adds to the sum is

    clip(g, c)   with   g = ∇ (1/|S|) Σ_{r ∈ S} loss_r(θ).

**A unit adds at most c, and nobody else's addend depends on it.** S is a function of the run's secret, the step, the
unit's position and how many rows the unit has; g is a function of S, of the unit's own rows, of θ and of the model
randomness of the unit's place. No other unit is an argument of either. Clipping comes last, so ‖clip(g, c)‖ ≤ c
whatever the rows are. Two datasets that differ in one whole unit therefore give sums that differ by one vector of norm
at most c: a unit is to the query what an example is, and every claim about N examples is one about N units. Positions
move when a unit leaves the middle, as those of examples do; choices at different positions are independent and alike,
so the distribution of all of them is that of the data without the unit at its end.

**Clipping each row before the mean is not needed.** A mean of vectors of norm at most c has norm at most c too, so that
clip(mean) and mean(clip) obey the same bound; the first cuts less. A *sum* of m clipped rows has m times the bound.

**The cap looks at no other unit.** m is a public constant. If it were computed from the data (the largest or the median
number of rows), one unit more could change how many rows of everybody else are averaged, and all addends would move at
once. How many rows the unit itself has may decide how many are chosen: that is its own data, behind the same clip.

m changes utility and time, not ε: with m = 1 one row of a unit is looked at each time, with more the mean has less
noise of its own. Every unit takes the room of m rows. The rows that a unit does not have are copies of its own with
weight zero: they add exactly nothing, a copy is finite where the row is, and the shape gives nothing away.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.tensors import Losses, check_losses
from hush.data_source import Source, to_each
from hush.errors import InvalidInputError
from hush.per_example.model_rng.numbers import Places, draw_rows
from hush.randomness import Secret, streams

ROWS_PER_UNIT = 8
"""How many rows of a unit are averaged at most, by default."""
MOST_ROWS = 4096  # that can be asked for: every unit of a batch takes the room of as many
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


class UnitRows(NamedTuple):
    """The content of n units: every tensor with the dimensions (n, m, …), and the weights (n, m) of the mean."""

    rows: Any
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """Rows by the unit that they belong to: example i is unit i, in the order in which units first appear."""

    rows: Source
    order: NDArray[np.int64]  # the rows, those of one unit side by side and in their own order
    starts: NDArray[np.int64]  # where each unit's begin, and the end of the last
    most: int = ROWS_PER_UNIT

    @staticmethod
    def of(rows: Source, ids: Any, most: int | None = None) -> Units:
        """From one hashable for each row."""
        most = ROWS_PER_UNIT if most is None else most
        validate.positive_int(rows_per_unit=most)
        if most > MOST_ROWS:
            raise InvalidInputError(
                f"rows_per_unit must be at most {MOST_ROWS}, for every unit takes the room of as many rows"
            )
        numbers = number_units(ids)
        if len(numbers) != len(rows):
            raise InvalidInputError(
                "the units are not as many as the rows of the data: give one for each row, in their order"
            )
        order = np.argsort(numbers, kind="stable").astype(np.int64)
        counts = np.bincount(numbers)
        return Units(rows, order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), most)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, indices: Tensor) -> UnitRows:
        """The first rows of each unit, at most m: what they are like. A step takes its own choice (:meth:`at`)."""
        return self.take_chosen(indices, [np.arange(min(count, self.most)) for count in self.count_rows(indices)])

    def at(self, secret: Secret, step: int) -> ChosenRows:
        """The rows that one step takes of each unit."""
        return ChosenRows(self, secret, step)

    def count_rows(self, indices: Tensor) -> NDArray[np.int64]:
        """How many rows these units have."""
        units = indices.cpu().numpy()
        counts: NDArray[np.int64] = self.starts[units + 1] - self.starts[units]
        return counts

    def list_chosen(self, indices: Tensor, chosen: Sequence[NDArray[np.int64]]) -> Tensor:
        """The rows of the data that these are, ``chosen`` counting each unit's own from 0."""
        starts = self.starts[indices.cpu().numpy()]
        places = [start + own for start, own in zip(starts, chosen, strict=True)]
        return torch.from_numpy(self.order[np.concatenate([*places, np.empty(0, np.int64)])])

    def take_chosen(self, indices: Tensor, chosen: Sequence[NDArray[np.int64]]) -> UnitRows:
        """The content of these rows of these units."""
        return spread_rows(self.rows.take(self.list_chosen(indices, chosen)), list(map(len, chosen)), self.most)


@dataclass(frozen=True, eq=False)
class Singles:
    """Rows that are examples themselves, as a step looks at units: each has one row, which is always chosen."""

    rows: Source
    most: int = 1

    def take(self, indices: Tensor) -> Any:
        """The rows' own content."""
        return self.rows.take(indices)

    def at(self, secret: Secret, step: int) -> Singles:
        """The same at every step."""
        return self

    def list_rows(self, indices: Tensor) -> Tensor:
        """An example's number is its row's."""
        return indices


def as_units(source: Source) -> Units | Singles:
    """Data as every step looks at them, whatever an example is."""
    return source if isinstance(source, Units) else Singles(source)


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """The units with the rows that the secret chooses for one step: a source of its own.

    Of a unit with k > m rows it is a uniformly random set of m, those with the smallest of k random numbers: a pure
    function of (secret, step, position of the unit, k)."""

    units: Units
    secret: Secret
    step: int

    def __len__(self) -> int:
        return len(self.units)

    def take(self, indices: Tensor) -> UnitRows:
        """At most m rows of each unit."""
        return self.units.take_chosen(indices, self.choose(indices))

    def list_rows(self, indices: Tensor) -> Tensor:
        """The rows of the data that :meth:`take` reads, in order."""
        return self.units.list_chosen(indices, self.choose(indices))

    def choose(self, indices: Tensor) -> list[NDArray[np.int64]]:
        """Which of its own rows each unit takes part with, counted from 0 and in their order."""
        counts, most = self.units.count_rows(indices), self.units.most
        chosen = [np.arange(min(count, most)) for count in counts]
        many = np.flatnonzero(counts > most)
        widths = 1 << np.ceil(np.log2(np.maximum(counts[many], 2))).astype(np.int64)
        for width in np.unique(widths).tolist():
            here = many[widths == width]
            for place, own in zip(here, self._choose_among(indices[here], counts[here], width), strict=True):
                chosen[place] = own
        return chosen

    def _choose_among(self, units: Tensor, counts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """Units with at most ``width`` rows; a key for each width, for what a place owns of a stream depends on it."""
        key = self.secret.derive(streams.unit_rows(width), self.step, size=32)
        numbers = draw_rows(key, Places.of(units), width, torch.int64).numpy().copy()
        numbers >>= 1  # leaves the largest number to the rows that are not there
        numbers[np.arange(width) >= counts[:, None]] = np.iinfo(np.int64).max
        smallest = np.argpartition(numbers, self.units.most - 1, axis=1)[:, : self.units.most]
        return np.sort(smallest, axis=1)


def spread_rows(found: Any, counts: Sequence[int], most: int) -> UnitRows:
    """Rows that lie one unit after the other, as (n, m, …): the places that a unit cannot fill repeat its own rows,
    with weight zero; the others have one over their number."""
    own = np.asarray(counts, np.int64).reshape(-1, 1)
    first, place = np.cumsum(own).reshape(-1, 1) - own, np.arange(most)
    where = torch.from_numpy((first + place % np.maximum(own, 1)).reshape(-1))
    weights = torch.from_numpy(np.where(place < own, 1.0 / np.maximum(own, 1), 0.0))
    rows = to_each(lambda t: t[where.to(t.device)].reshape(len(counts), most, *t.shape[1:]), found)
    return UnitRows(rows, weights)


@dataclass(frozen=True, eq=False)
class UnitLosses:
    """The losses of rows, averaged over the rows of each unit; the model and the loss see rows, side by side."""

    losses: Losses
    most: int

    def __call__(self, model: nn.Module, content: UnitRows) -> Tensor:
        """One loss for each unit."""
        found = self.losses(model, flatten(content.rows))
        check_losses(found, content.weights.numel())
        return (found.view(content.weights.shape) * content.weights.to(found.dtype)).sum(1)


def count_rows(losses: Losses) -> int:
    """How many rows the model sees for each example of these losses: 1 where an example is a row."""
    return losses.most if isinstance(losses, UnitLosses) else 1


def flatten(rows: Any) -> Any:
    """(n, m, …) as n·m rows."""
    return to_each(lambda t: t.flatten(0, 1), rows)


def unflatten(rows: Any, most: int) -> Any:
    """n·m rows as (n, m, …)."""
    return to_each(lambda t: t.unflatten(0, (-1, most)) if len(t) else t.reshape(0, most, *t.shape[1:]), rows)


def number_units(ids: Any) -> NDArray[np.int64]:
    """Each row's unit as a number, in the order of first appearance. A row without a unit is refused, and so are names
    that one person may be called by twice: 101 and "101", "101" and "101 " or "101.0"."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iuUS":
        different, first, where = np.unique(ids, return_index=True, return_inverse=True)
        if ids.dtype.kind in "US":
            _check_spellings(different.tolist())
        return np.argsort(np.argsort(first))[where.reshape(-1)].astype(np.int64)
    values = _list_ids(ids)
    seen: dict[Hashable, int] = {}
    try:
        numbers = [seen.setdefault(value, len(seen)) for value in values]
    except TypeError as error:
        raise InvalidInputError("a row's unit must be something hashable: a number or a text for each row") from error
    if any(map(_names_nobody, seen)):
        raise InvalidInputError("some rows have no unit: every row belongs to one, so name it or leave those rows out")
    _check_spellings(seen)
    return np.asarray(numbers, np.int64)


def _names_nobody(value: Any) -> bool:
    return any(map(_names_nobody, value)) if isinstance(value, tuple) else value is None or _differs_from_itself(value)


def _check_spellings(names: Iterable[Any]) -> None:
    """Refuse different names (each once) that look the same on paper: each would be a unit of its own."""
    written: dict[Hashable, Any] = {}
    for name in names:
        if written.setdefault(_write(name), name) is not name:
            raise InvalidInputError(
                "there are two units that differ in how they are written alone, as 101 from '101', '101 ' or '101.0', "
                "and may be one and the same: write every unit in one way, as a number or as a text without spaces "
                "around it"
            )


def _write(name: Any) -> Hashable:
    """A name on paper: a text without what surrounds it, a number without decimals that say nothing."""
    if isinstance(name, tuple):
        return tuple(map(_write, name))
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    found = _WHOLE.fullmatch(text.strip())
    return text.strip() if found is None else found[1]


def _differs_from_itself(value: Any) -> bool:
    """Whether it is a NaN, of whatever type: each would be a unit of its own."""
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # such as a missing value that compares with nothing
        return True


def _list_ids(ids: Any) -> Iterable[Any]:
    if isinstance(ids, (Tensor, np.ndarray)):
        if ids.ndim != 1:
            raise InvalidInputError(
                "the units are one value for each row: a list, or an array or tensor of one dimension"
            )
        return list(ids.tolist())
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidInputError("the units are one value for each row: a list, or an array or tensor of one dimension")
    return ids
