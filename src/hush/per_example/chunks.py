"""How a step's examples are laid out while they are summed, and the bound on the rounding of their sum.

Floating point breaks two assumptions of the proof. One more example changes the rounding of every later addition, and
it changes the shape of the matrix products that compute all other gradients. Both are bounded by giving every step a
public number of *places*: the examples of a batch take distinct random places (derived from the secret), so that one
more example takes a free place and no other example moves. Places are cut into *chunks*, whose gradients are computed
together, and chunks into *blocks* of at most :data:`BLOCK` places, which are summed in the gradients' own type, in
halves; sums across blocks use float64. One more example changes one block. ``per_example/ARITHMETIC.md`` has the
derivation.

In *rigorous* arithmetic, the default, a step computes all places, with zeros in the empty rows: the number of rows
never changes. In *fast* arithmetic it computes the actual examples only, and nothing is proven about rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.deterministic
from torch import Tensor

from hush._internal.validate import choice
from hush.data_source import Source, tensors_of, to_each
from hush.errors import HushError, InvalidInputError, UnsupportedModelError
from hush.randomness import Secret, generator, seeded, streams
from hush.sampling import Room

Mode = Literal["rigorous", "fast"]
MODES = ("rigorous", "fast")
BLOCK = 400  # places summed in the gradients' own type
HALF = 200  # places per matrix product; the two halves are added
UNIT = 2.0**-24  # unit roundoff of float32: the largest relative error of one rounding
DOUBLE = 2.0**-53  # unit roundoff of float64
FINISH = 1e-9  # allowance for operations done once on the float64 sum: a query's finish, and adding the noise
SHARE = 1e-5  # share of δ for batches with more examples than places


def check_mode(mode: str) -> None:
    """Raise for an unknown arithmetic, and for the name that earlier versions used."""
    if mode == "default":
        raise InvalidInputError(
            "arithmetic 'default' no longer exists: use 'rigorous' (a proven ε), or 'fast' (the same computation as "
            "'default' had, whose ε is claimed and not proven)"
        )
    choice(MODES, arithmetic=mode)


def charge(places: int) -> float:
    """Excess distance between the computed sums of two neighbours, in clip norms, for blocks of ``places``.

    A sum of h float32 products in any order of additions rounds addend j at most d_j times. The squares of these depths
    sum to at most h² + h(h + 1)(2h + 1)/6 (sequential additions, plus the products); adding two such halves increases
    every depth by one. By Cauchy and Schwarz, coordinate by coordinate, a sum over n addends of norm at most one clip
    has an error of at most u·√(n·Σd²) clips, and the sums of two neighbours differ by twice that. There are at most as
    many blocks as places, so no addend of the float64 sum is rounded more often than there are places.
    """
    return max(_bound_rounding(min(places, most)) for most in (HALF, BLOCK)) + 4.0 * DOUBLE * places**2 + FINISH


def _bound_rounding(n: int) -> float:
    parts = -(-n // HALF)
    deep = -(-n // parts) + parts - 1
    squares = parts * (deep**2 + deep * (deep + 1) * (2 * deep + 1) / 6)
    return 2.0 * UNIT * math.sqrt(n * squares) / (1.0 - deep * UNIT)


@dataclass(frozen=True)
class Chunk:
    """Examples computed together: their positions in the batch, their places, and where sums are cut."""

    chosen: Tensor  # positions in the batch, in the order of the places
    places: Tensor  # place of every row; in rigorous arithmetic also of empty rows
    blocks: tuple[tuple[int, ...], ...]  # the bounds of each block's parts, as rows of the chunk
    empty: Tensor | None = None  # True for a row that is not an example: a constant with weight zero

    def fill_empty(self, rows: Tensor) -> Tensor:
        """The examples' rows with zeros at the empty places."""
        if self.empty is None:
            return rows
        out = rows.new_zeros(len(self.empty), *rows.shape[1:])
        out[~self.empty.to(out.device)] = rows
        return out


@dataclass(frozen=True)
class Seats:
    """The places of every step of a run, and how they are cut; a function of public numbers only."""

    places: int
    pieces: int
    mode: Mode = "rigorous"

    @staticmethod
    def of(room: Room, microbatch: int, world: int, mode: Mode) -> Seats:
        """Chunks of at most ``microbatch`` places, the same number for each of ``world`` processes."""
        count = max(1, -(-room.places // microbatch))
        return Seats(room.places, world * -(-count // world), mode)

    def assign(self, secret: Secret, step: int, count: int) -> Tensor:
        """Distinct, uniformly random places for ``count`` examples; examples beyond the number of places are dropped.

        Example j of the batch takes place j of one random order of all places: adding or removing the last example
        moves no other. The order does not depend on the data, so the same holds in distribution for any example.
        """
        order = generator(secret, streams.PLACES, step).permutation(self.places)
        return torch.from_numpy(order[:count])

    def sides(self, number: int) -> tuple[int, int]:
        """The first place of a chunk, and the one after its last."""
        return self.places * number // self.pieces, self.places * (number + 1) // self.pieces

    def rows(self) -> tuple[int, ...]:
        """The sizes that chunks have: one number, or two that differ by one; the smallest first."""
        sizes = {high - low for low, high in map(self.sides, range(self.pieces))}
        return tuple(sorted(sizes - {0}))

    def cut(self, taken: Tensor, rank: int = 0, world: int = 1) -> Iterator[Chunk]:
        """The chunks of one process, with the examples on their places."""
        order = torch.argsort(taken)
        places = taken[order]
        for number in range(rank, self.pieces, world):
            low, high = self.sides(number)
            first, last = torch.searchsorted(places, torch.tensor([low, high])).tolist()
            here = places[first:last]
            blocks = _cut_blocks(low, high)
            if self.mode == "fast":
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


# The check at the start of a run in rigorous arithmetic: the bits of an example do not depend on other rows.
#
# Rigorous arithmetic keeps the number of rows fixed. The check tests that, at the same shape and position, the
# *content* of other rows changes nothing; value-dependent kernels, or a model that mixes examples slightly, would fail.
# A chunk of synthetic rows is computed once, and again with some of its rows replaced; everything computed for a row
# that stayed (:class:`RowDigests`) must have the same bits. Every ordered pair of rows is separated: in some pass the
# first stays and the second is replaced. Inputs are synthetic and weights public, and no data was read: the result may
# be published, and the engine chosen here (:mod:`hush.per_example.engine`) does not depend on who is in a batch.

KINDS = ("random", "zero", "large", "subnormal", "non-finite")
"""The kinds of rows that replace other rows."""

COLUMNS = 1 << 20  # size of one temporary of a digest


class RowDigests:
    """What was computed for every row of a chunk, in order: a label and 64 bits per row for each tensor.

    A digest is the sum of a row's bits, as integers, times fixed random weights, modulo 2⁶⁴."""

    def __init__(self, rows: int) -> None:
        self.rows, self.found = rows, list[tuple[str, Tensor]]()

    def add(self, label: str, value: Any) -> None:
        """Add the tensors of a nested value; keys of a mapping are labels. Tensors without a row per example are
        skipped: they are parameters."""
        if isinstance(value, Tensor):
            if value.dim() and len(value) and len(value) % self.rows == 0 and not _is_mapped(value):
                self.found.append((label, _digest_rows(value.detach(), self.rows)))
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self.add(str(key), part)
        elif isinstance(value, (tuple, list)):
            for part in value:
                self.add(label, part)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                if field.name not in ("params", "suspects"):
                    self.add(label or field.name, getattr(value, field.name))

    def find_changed(self, other: RowDigests, kept: Tensor) -> str | None:
        """The label of the first tensor in which a kept row differs; None if there is none."""
        for (label, one), (other_label, two) in itertools.zip_longest(self.found, other.found, fillvalue=("", None)):
            if one is None or two is None or label != other_label:
                return label or other_label
            if not torch.equal(one[: len(kept)][kept], two[: len(kept)][kept]):  # drops an empty row at the end
                return label
        return None


def _is_mapped(value: Tensor) -> bool:
    """Whether torch.func maps over it; its first dimension is then not the examples."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _digest_rows(value: Tensor, rows: int) -> Tensor:
    value = torch.view_as_real(value) if value.is_complex() else value
    flat = value.reshape(rows, -1)
    total = torch.zeros(rows, dtype=torch.int64)
    if not flat.shape[1]:
        return total
    weights = _make_weights(flat.shape[1]).to(value.device)
    step = max(1, COLUMNS // flat.shape[1])
    for low in range(0, rows, step):
        bits = flat[low : low + step].contiguous().view(_INTEGERS[value.element_size()])
        total[low : low + step] = (bits * weights).sum(1).cpu()
    return total


@lru_cache(maxsize=32)
def _make_weights(count: int) -> Tensor:
    """Odd 64-bit integers, the same at every call: splitmix64 of 1, 2, …"""
    z = torch.arange(1, count + 1, dtype=torch.int64) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & (2 ** (64 - shift) - 1))) * factor
    return (z ^ ((z >> 31) & (2**33 - 1))) | 1


Compute = Callable[[Chunk, Any], RowDigests]
"""Computes the rows of a chunk with this content."""


def synthetic_batch(source: Source, rows: int, seed: int, device: torch.device, *, below: int = 1) -> Any:
    """Random content with the shape of the data: standard normal floats, and integers in [0, ``below``).

    The default for integers is zero, an index that every table has."""
    with seeded(seed):
        return to_each(lambda t: _random(t, rows, below).to(device), source.take(torch.empty(0, dtype=torch.int64)))


def _random(like: Tensor, rows: int, below: int) -> Tensor:
    shape = (rows, *like.shape[1:])
    if like.is_floating_point():
        return torch.randn(shape).to(like.dtype)
    return torch.randint(0, below, shape).to(like.dtype)


def choose_engine(compute: Compute, source: Source, rows: int, device: torch.device) -> int:
    """Make the first recording of a run, which compares engines, on synthetic rows; return the bound on integers.

    Tokens and labels can be 0; whether they can be 1 is tried only where an error leaves the device usable."""
    if device.type == "cpu":
        try:
            compute(whole_chunk(rows), synthetic_batch(source, rows, 1, device, below=2))
        except (IndexError, RuntimeError, ValueError):
            pass
        else:
            return 2
    compute(whole_chunk(rows), synthetic_batch(source, rows, 1, device))
    return 1


def check_batch_invariance(compute: Compute, source: Source, sizes: Iterable[int], device: torch.device) -> int:
    """Raise if another row changes a bit of an example at the same shape and position; return the number of inputs
    compared."""
    compared = 0
    for rows in sizes:
        below = _try_made_up(compute, source, rows, device)
        content = synthetic_batch(source, rows, 0, device, below=below)
        first, everybody = compute(whole_chunk(rows), content), torch.ones(rows, dtype=torch.bool)
        _compare(first, compute(whole_chunk(rows), content), everybody, "when the same rows are computed again")
        other = synthetic_batch(source, rows, 2, device, below=below)
        compared += rows + sum(_check_kind(compute, first, content, other, rows, kind) for kind in KINDS)
    return compared


def _try_made_up(compute: Compute, source: Source, rows: int, device: torch.device) -> int:
    try:
        return choose_engine(compute, source, rows, device)
    except (HushError, Warning, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"the model raises {type(error).__name__} on synthetic inputs of the data's shape, so it cannot be checked "
            "that an example's arithmetic does not depend on other rows: let it accept random numbers and zeros, or "
            "use fast arithmetic, whose ε is claimed and not proven"
        ) from error


def _check_kind(compute: Compute, first: RowDigests, content: Any, other: Any, rows: int, kind: str) -> int:
    """The number of rows compared. A model that fails on rows of this kind never sums any, so it passes."""
    replaced, compared = to_each(lambda t: _make_kind(t, kind), other), 0
    for kept in separate_rows(rows):
        try:
            found = compute(whole_chunk(rows), _replace_rows(content, replaced, kept))
        except (HushError, Warning, MemoryError):
            raise
        except Exception:
            return compared
        _compare(first, found, kept, f"with the values of other rows ({kind} ones)")
        compared += int(kept.sum())
    return compared


def _compare(one: RowDigests, other: RowDigests, kept: Tensor, when: str) -> None:
    changed = one.find_changed(other, kept)
    if changed is not None:
        raise UnsupportedModelError(
            f"rigorous arithmetic needs every example to be computed independently of other rows, but bits of "
            f"'{changed}' change {when}: let the model treat each row separately, or use fast arithmetic, whose ε is "
            "claimed and not proven"
        )


def separate_rows(rows: int) -> list[Tensor]:
    """Masks of the rows that stay, one per pass: for any two rows there is a pass in which the first stays and the
    second does not. The passes of row i are the i-th subset of half of all passes: none of these contains another
    (Spencer 1970, "Minimal completely separating systems"), which takes little more than log₂ passes."""
    if rows < 2:
        return []
    passes = next(m for m in itertools.count(2) if math.comb(m, m // 2) >= rows)
    stays = torch.zeros(passes, rows, dtype=torch.bool)
    for row, chosen in zip(range(rows), itertools.combinations(range(passes), passes // 2), strict=False):
        stays[list(chosen), row] = True
    return [kept for kept in stays if bool(kept.any()) and not bool(kept.all())]


def _make_kind(t: Tensor, kind: str) -> Tensor:
    """Convert random rows to this kind; integers must stay valid: they are kept or become zero."""
    if kind == "zero":
        return torch.zeros_like(t)
    if kind == "random" or not t.is_floating_point():
        return t
    limits = torch.finfo(t.dtype)
    if kind == "large":
        return t * min(1e30, limits.max / 64)
    if kind == "subnormal":
        return t.sign() * limits.tiny / 8
    broken = torch.tensor([math.nan, math.inf, -math.inf], dtype=t.dtype, device=t.device).repeat(-(-len(t) // 3))
    return broken[: len(t)].view(-1, *[1] * (t.dim() - 1)).expand_as(t).clone()


def _replace_rows(content: Any, others: Any, kept: Tensor) -> Any:
    """The kept rows of one content, combined with the rows of another."""
    left = iter(tensors_of(others))

    def put(t: Tensor) -> Tensor:
        mixed = next(left).clone()
        mixed[kept.to(t.device)] = t[kept.to(t.device)]
        return mixed

    return to_each(put, content)


def whole_chunk(rows: int) -> Chunk:
    """A chunk of these rows, none empty, with sums cut as in a step."""
    everywhere = torch.arange(rows)
    blocks = tuple(tuple(b) for b in _cut_blocks(0, rows))
    return Chunk(everywhere, everywhere, blocks, torch.zeros(rows, dtype=torch.bool))


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Within it torch uses deterministic kernels, and raises where it has none."""
    before = torch.get_deterministic_debug_mode()  # torch.use_deterministic_algorithms would import torch's compiler
    settings: Any = torch.utils.deterministic
    filled, tuned = settings.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    settings.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise UnsupportedModelError(
            f"rigorous arithmetic needs deterministic operations: {error}; follow that advice, or use fast arithmetic, "
            "whose ε is claimed and not proven"
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = filled
        torch.backends.cudnn.benchmark = tuned
