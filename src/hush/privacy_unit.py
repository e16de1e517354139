"""The privacy unit: all rows of one person (patient, customer, device) as one example.

Sampling, N, q, the divisor and δ < 1/N count units. When unit u participates in step t, a set S of at most m of its
rows is chosen, and its contribution to the sum is

    clip(g, c)   with   g = ∇ (1/|S|) Σ_{r ∈ S} loss_r(θ).

**A unit contributes at most c, and no other contribution depends on it.** S is a function of the run's secret, the
step, the unit's position and its number of rows; g is a function of S, of the unit's own rows, of θ and of the model
randomness of the unit's place. Neither depends on another unit. Clipping comes last, so ‖clip(g, c)‖ ≤ c for any rows.
Two datasets that differ in one whole unit therefore give sums that differ by one vector of norm at most c: for the
query a unit is the same as an example, and every claim about N examples is one about N units. Positions shift when a
unit in the middle is removed, as those of examples do; choices at different positions are independent and identically
distributed, so their joint distribution is the same as if the last unit had been removed.

**Clipping each row before averaging is not needed.** A mean of vectors of norm at most c has norm at most c too, so
clip(mean) and mean(clip) have the same bound; the first cuts less. A *sum* of m clipped rows has m times the bound.

**The cap does not depend on the data.** m is a public constant. If it were computed from the data (the largest or the
median number of rows), one more unit could change how many rows of every other unit are averaged, and all contributions
would change at once. The unit's own number of rows may decide how many are chosen: it is covered by the same clip norm.

m changes utility and time, not ε: with m = 1 one row of a unit is used each time; with a larger m the mean has less
variance. Every unit takes the space of m rows. Missing rows are copies of the unit's own rows with weight zero: they
add exactly nothing, a copy is finite if the row is, and the shape reveals nothing.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, time
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal import validate
from hush._internal.settings import ROWS_PER_UNIT as ROWS_PER_UNIT
from hush._internal.tensors import Losses, check_losses
from hush.data_source import Source, to_each
from hush.errors import InvalidInputError
from hush.per_example.model_rng.numbers import Places, draw_rows
from hush.randomness import Secret, streams

"""Largest number of rows of a unit that are averaged, by default."""
MOST_ROWS = 4096  # upper limit of rows_per_unit: every unit of a batch takes the space of that many rows
NOBODY = "some rows have no unit: every row belongs to one, so name it or leave those rows out"
_VOID = (
    "units cannot be values of numpy's type void (records or raw bytes): give one number or text for each row, or a "
    "tuple of them"
)
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


class UnitRows(NamedTuple):
    """The content of n units: every tensor with the dimensions (n, m, …), and the weights (n, m) of the mean."""

    rows: Any
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """Rows grouped by unit: example i is unit i, in order of first appearance."""

    rows: Source
    order: NDArray[np.int64]  # the row numbers, grouped by unit, in their original order within a unit
    starts: NDArray[np.int64]  # where each unit begins in ``order``, and the end of the last
    most: int = ROWS_PER_UNIT

    @staticmethod
    def of(rows: Source, ids: Any, most: int | None = None) -> Units:
        """Build from one hashable per row."""
        most = ROWS_PER_UNIT if most is None else most
        validate.positive_int(rows_per_unit=most)
        if most > MOST_ROWS:
            raise InvalidInputError(
                f"rows_per_unit must be at most {MOST_ROWS}, because every unit takes the space of that many rows"
            )
        numbers = number_units(ids)
        if len(numbers) != len(rows):
            raise InvalidInputError(
                "the number of units differs from the number of rows: give one unit per row, in the order of the rows"
            )
        order = np.argsort(numbers, kind="stable").astype(np.int64)
        counts = np.bincount(numbers)
        return Units(rows, order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), most)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, indices: Tensor) -> UnitRows:
        """The first rows of each unit, at most m, as a sample of their shape. A step chooses its own (:meth:`at`)."""
        return self.take_chosen(indices, [np.arange(min(count, self.most)) for count in self.count_rows(indices)])

    def at(self, secret: Secret, step: int) -> ChosenRows:
        """The units with the rows chosen for one step."""
        return ChosenRows(self, secret, step)

    def count_rows(self, indices: Tensor) -> NDArray[np.int64]:
        """The number of rows of each unit."""
        units = indices.cpu().numpy()
        counts: NDArray[np.int64] = self.starts[units + 1] - self.starts[units]
        return counts

    def list_chosen(self, indices: Tensor, chosen: Sequence[NDArray[np.int64]]) -> Tensor:
        """The row numbers in the data; ``chosen`` counts each unit's own rows from 0."""
        starts = self.starts[indices.cpu().numpy()]
        places = [start + own for start, own in zip(starts, chosen, strict=True)]
        return torch.from_numpy(self.order[np.concatenate([*places, np.empty(0, np.int64)])])

    def take_chosen(self, indices: Tensor, chosen: Sequence[NDArray[np.int64]]) -> UnitRows:
        """The content of these rows of these units."""
        return spread_rows(self.rows.take(self.list_chosen(indices, chosen)), list(map(len, chosen)), self.most)


@dataclass(frozen=True, eq=False)
class Singles:
    """Rows that are themselves examples, with the interface of units: each has one row, which is always chosen."""

    rows: Source
    most: int = 1

    def take(self, indices: Tensor) -> Any:
        """The content of the rows."""
        return self.rows.take(indices)

    def at(self, secret: Secret, step: int) -> Singles:
        """The same for every step."""
        return self

    def list_rows(self, indices: Tensor) -> Tensor:
        """The row numbers, which equal the example numbers."""
        return indices


def as_units(source: Source) -> Units | Singles:
    """The data with the interface of units."""
    return source if isinstance(source, Units) else Singles(source)


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """The units with the rows that the secret chooses for one step, as a source.

    Of a unit with k > m rows, a uniformly random set of m is chosen, those with the smallest of k random numbers: a
    pure function of (secret, step, position of the unit, k)."""

    units: Units
    secret: Secret
    step: int

    def __len__(self) -> int:
        return len(self.units)

    def take(self, indices: Tensor) -> UnitRows:
        """At most m rows of each unit."""
        return self.units.take_chosen(indices, self.choose(indices))

    def list_rows(self, indices: Tensor) -> Tensor:
        """The row numbers that :meth:`take` reads, in order."""
        return self.units.list_chosen(indices, self.choose(indices))

    def choose(self, indices: Tensor) -> list[NDArray[np.int64]]:
        """The chosen rows of each unit, counted from 0 within the unit and in their order."""
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
        """Units with at most ``width`` rows; each width has its own key, because the stream layout depends on it."""
        key = self.secret.derive(streams.unit_rows(width), self.step, size=32)
        numbers = draw_rows(key, Places.of(units), width, torch.int64).numpy().copy()
        numbers >>= 1  # reserves the largest number for missing rows
        numbers[np.arange(width) >= counts[:, None]] = np.iinfo(np.int64).max
        smallest = np.argpartition(numbers, self.units.most - 1, axis=1)[:, : self.units.most]
        return np.sort(smallest, axis=1)


def spread_rows(found: Any, counts: Sequence[int], most: int) -> UnitRows:
    """Rows stored unit after unit, as (n, m, …): missing rows repeat the unit's own with weight zero; the others have
    weight one over their number."""
    own = np.asarray(counts, np.int64).reshape(-1, 1)
    first, place = np.cumsum(own).reshape(-1, 1) - own, np.arange(most)
    where = torch.from_numpy((first + place % np.maximum(own, 1)).reshape(-1))
    weights = torch.from_numpy(np.where(place < own, 1.0 / np.maximum(own, 1), 0.0))
    rows = to_each(lambda t: t[where.to(t.device)].reshape(len(counts), most, *t.shape[1:]), found)
    return UnitRows(rows, weights)


@dataclass(frozen=True, eq=False)
class UnitLosses:
    """The losses of rows, averaged over the rows of each unit; model and loss receive plain rows."""

    losses: Losses
    most: int

    def __call__(self, model: nn.Module, content: UnitRows) -> Tensor:
        """One loss per unit."""
        found = self.losses(model, flatten(content.rows))
        check_losses(found, content.weights.numel())
        return (found.view(content.weights.shape) * content.weights.to(found.dtype)).sum(1)


def count_rows(losses: Losses) -> int:
    """The number of rows that the model receives per example: 1 if an example is a row."""
    return losses.most if isinstance(losses, UnitLosses) else 1


def flatten(rows: Any) -> Any:
    """Reshape (n, m, …) to n·m rows."""
    return to_each(lambda t: t.flatten(0, 1), rows)


def unflatten(rows: Any, most: int) -> Any:
    """Reshape n·m rows to (n, m, …)."""
    return to_each(lambda t: t.unflatten(0, (-1, most)) if len(t) else t.reshape(0, most, *t.shape[1:]), rows)


def number_units(ids: Any) -> NDArray[np.int64]:
    """Each row's unit as a number, in the order of first appearance. A row without a unit is refused, and so are names
    that one person may be called by twice: values of several kinds, objects that are equal to themselves only, "101"
    and "101 " or "101.0", "Anna" and "anna". Floating-point numbers that do not tell all whole numbers apart are
    refused too: two persons may have become one."""
    ids = _to_array(ids)
    if isinstance(ids, Tensor) and ids.is_floating_point():
        _refuse_merged(bool((ids.abs() >= 2.0 / torch.finfo(ids.dtype).eps).any()))
    elif isinstance(ids, np.ndarray) and ids.dtype.kind in "fc":
        if np.isnan(ids).any():  # also what a column of integers has for a missing one
            raise InvalidInputError(NOBODY)
        _refuse_merged(bool((np.abs(ids) >= 2.0 / np.finfo(ids.dtype).eps).any()))
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iuUS":
        different, first, where = np.unique(ids, return_index=True, return_inverse=True)
        if ids.dtype.kind in "US":
            _check_names(different.tolist())
        return np.argsort(np.argsort(first))[where.reshape(-1)].astype(np.int64)
    values = list(map(_to_scalar, _list_ids(ids)))
    seen: dict[Hashable, int] = {}
    try:
        numbers = [seen.setdefault(value, len(seen)) for value in values]
    except TypeError as error:
        raise InvalidInputError("a row's unit must be something hashable: a number or a text for each row") from error
    _check_names(seen, values)
    return np.asarray(numbers, np.int64)


def _to_scalar(value: Any) -> Any:
    """A tensor without dimensions, whose hash is its identity, as the number of numpy that has its precision."""
    if isinstance(value, np.void):
        raise InvalidInputError(_VOID)
    if not isinstance(value, Tensor):
        return value
    try:
        return value.detach().cpu().numpy().reshape(())[()]
    except (TypeError, ValueError, RuntimeError) as error:  # several values, or a type that numpy does not have
        raise InvalidInputError(
            f"a unit is a tensor of shape {tuple(value.shape)} and type {value.dtype}, which is no number of numpy: "
            "give one number or text for each row"
        ) from error


def _to_array(ids: Any) -> Any:
    """Columns of other libraries (pandas, pyarrow, …) as numpy arrays. One by one, a column may give scalars of its own
    library, which hide a missing value, or numbers of Python, which hide how coarse the column's are."""
    if isinstance(ids, np.ma.MaskedArray):
        if np.ma.is_masked(ids):
            raise InvalidInputError(NOBODY)
        return ids.data
    try:
        return np.asarray(ids) if hasattr(ids, "to_numpy") or isinstance(ids, (memoryview, array)) else ids
    except ValueError as error:  # a value that numpy would round
        raise InvalidInputError(f"units cannot be read exactly: {error}; give whole numbers or text") from error


def _names_nobody(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return not value.strip()
    if (parts := _split(value)) is not None:
        return any(map(_names_nobody, parts))
    return value is None or _differs_from_itself(value)


def _split(value: Any) -> tuple[Any, ...] | None:
    """The parts of a key of several parts; None for any other."""
    if isinstance(value, (tuple, frozenset)):
        return tuple(value)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in fields(value) if field.compare)
    return None


_KINDS: dict[type, str] = {
    **dict.fromkeys((int, float, np.float64), "number"),  # which Python compares exactly
    **dict.fromkeys((str, np.str_), "str"),
    **dict.fromkeys((bytes, np.bytes_), "bytes"),
    **dict.fromkeys((bool, np.bool_), "bool"),
}


def _find_kind(value: Any) -> tuple[Hashable, str]:
    """What a unit's name is: a key, equal only for values that are equal if they name the same, and its description,
    which does not hold the value."""
    kind: Any = type(value)
    if (known := _KINDS.get(kind)) is not None:
        return known, known
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, np.integer):
        return "number", "number"
    if isinstance(value, np.generic):
        return (kind, value.dtype), str(value.dtype)
    if isinstance(value, Enum):  # each of its values is one object
        return kind, name
    if isinstance(value, Tensor) or kind.__eq__ is object.__eq__ or kind.__hash__ is object.__hash__:
        raise InvalidInputError(
            f"units of type {name} are equal to themselves only, so every object would be a unit of its own: give a "
            "number or a text for each row"
        )
    if (found := _split(value)) is not None:
        parts = list(map(_find_kind, found))
        parts = sorted(set(parts), key=str) if isinstance(value, frozenset) else parts
        return (kind, *(key for key, _ in parts)), f"{name} of ({', '.join(said for _, said in parts)})"
    if isinstance(value, (datetime, time)):
        zoned = value.tzinfo is not None
        return (kind, zoned), f"{name} {'with' if zoned else 'without'} a time zone"
    return (kind, str(getattr(value, "type", ""))), name  # a scalar of pyarrow has a type


def _refuse_kinds(values: Sequence[Any]) -> None:
    types = set(map(type, values))
    if types <= _KINDS.keys() and len({_KINDS[kind] for kind in types}) < 2:
        return
    kinds = dict(map(_find_kind, values))
    if len(kinds) > 1:
        one, other, *_ = kinds.values()
        raise InvalidInputError(
            f"the units are of two kinds, {one} and {other}, and one unit may be written in both: give all units as "
            "values of one kind, such as text"
        )


def _is_inexact(value: Any) -> bool:
    """Whether a floating-point number does not tell all whole numbers apart."""
    if (parts := _split(value)) is not None:
        return any(map(_is_inexact, parts))
    known = isinstance(value, (float, complex, np.inexact))
    return known and bool(abs(value) >= 2.0 / float(np.finfo(type(value)).eps))


def _refuse_merged(inexact: bool) -> None:
    if inexact:
        raise InvalidInputError(
            "some units are floating-point numbers too large to tell all whole numbers apart, so two of them may have "
            "become one: give whole numbers or text"
        )


def _check_names(names: Iterable[Any], values: Sequence[Any] = ()) -> None:
    """Refuse names (each once) of nobody, of several persons, and those that look the same on paper: each would be a
    unit of its own. ``values`` are the names of all rows, of which those that are equal may be of several kinds."""
    names = list(names)
    if any(map(_names_nobody, names)):
        raise InvalidInputError(NOBODY)
    _refuse_merged(any(map(_is_inexact, names)))
    _refuse_kinds(values)
    written: dict[Hashable, Any] = {}
    for name in names:
        if written.setdefault(_write(name), name) is not name:
            if isinstance(name, bytes):
                raise InvalidInputError(
                    "there are two units of bytes that differ, read as text, only in spaces, case, invisible "
                    "characters or how they are written, and may be one and the same: write every unit in one way, or "
                    "give bytes that are no text as hexadecimal digits, as by id.hex()"
                )
            raise InvalidInputError(
                "there are two units that differ only in how they are written, as 101 from '101', '101 ' or '101.0', "
                "or 'Anna' from 'anna', and may be one and the same: write every unit in one way, or number the units"
            )


def drop_fraction(text: str) -> str:
    """A whole number without a fraction of zeros; any other text as it is."""
    found = _WHOLE.fullmatch(text)
    return text if found is None else found[1]


def strip_id(text: str) -> str:
    """The id without spaces and NULs around it."""
    return text.strip().strip("\x00").strip()


_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u2800]"
)
"""Unicode's Default_Ignorable_Code_Point, which `unicodedata` does not have, and the braille pattern without dots."""


def _drop_invisible(text: str) -> str:
    """The text without what no reader sees: control and format characters (a byte-order mark, a zero-width space, a
    soft hyphen), and what a font shows nothing for (joiners, fillers, variation selectors)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c for c in _IGNORABLE.sub("", text) if unicodedata.category(c) not in ("Cc", "Cf"))


NORMALISATIONS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("surrounding spaces", strip_id),
    ("invisible characters", _drop_invisible),
    ("Unicode form", lambda text: unicodedata.normalize("NFKC", text)),
    ("case", lambda text: unicodedata.normalize("NFKC", text.casefold())),
    ("a trailing '.0'", lambda text: drop_fraction(strip_id(text))),
)
"""Each is applied to what the one before made of an id."""


def normalise_id(text: str) -> str:
    """The id without what may be a difference in spelling alone."""
    for _, change in NORMALISATIONS:
        text = change(text)
    return text


def _write(name: Any) -> Hashable:
    """A name on paper, without what may be a difference in spelling alone."""
    if (parts := _split(name)) is not None:
        return (frozenset if isinstance(name, frozenset) else tuple)(map(_write, parts))
    return normalise_id(name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name))


def _differs_from_itself(value: Any) -> bool:
    """Whether the value is a NaN of any type: each would be a separate unit."""
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # such as a missing value that does not support comparison
        return True


def _list_ids(ids: Any) -> Iterable[Any]:
    if isinstance(ids, (Tensor, np.ndarray)):
        if ids.ndim != 1:
            raise InvalidInputError("units need one value per row: give a list, or a one-dimensional array or tensor")
        if isinstance(ids, np.ndarray) and ids.dtype.kind == "V":
            raise InvalidInputError(_VOID)
        return list(ids.tolist())
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidInputError("units need one value per row: give a list, or a one-dimensional array or tensor")
    return ids
