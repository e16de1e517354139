"""How a step's examples are cut into chunks while they are summed, and the bound on the rounding of their sum.

Floating point breaks two assumptions of the proof. One more example changes the rounding of every later addition, and
it changes the shape of the matrix products that compute all other gradients. In *rigorous* arithmetic, the default,
both are bounded. The examples of a batch are put in a uniformly random secret order, and this order is cut into
*chunks* of one public number of rows; only the last chunk is padded, with rows of zeros. Everything that belongs to a
single example (activations, gradients, norms, clip factors) is computed in its chunk, so always at one shape. A
*block* is at most :data:`BLOCK` rows, which are summed in the gradients' own type: a few consecutive chunks, or a part
of a larger chunk; sums across blocks use float64. One more example takes a random position, and the example that was
there moves to the end: at most two blocks change. ``per_example/ARITHMETIC.md`` has the derivation.

In *fast* arithmetic a chunk is any number of examples, and nothing is proven about rounding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import torch.utils.deterministic
from torch import Tensor

from hush._internal.tensors import Named
from hush._internal.validate import choice
from hush.data_source import Source, tensors_of, to_each
from hush.errors import HushError, InvalidInputError, UnsupportedModelError
from hush.randomness import Secret, generator, seeded, streams

Mode = Literal["rigorous", "fast"]
MODES = ("rigorous", "fast")
BLOCK = 192  # rows that are summed in the gradients' own type, at most
MOST = 2 * BLOCK  # rows of a chunk, at most
SIZES = (4, 8, *range(16, BLOCK, 16), *range(BLOCK, MOST + 1, 32))
"""The numbers of rows that a chunk can have, unless the microbatch is smaller."""
FAN = 128  # blocks that are added one after the other in float64 before their sum goes to the next level
PROCESSES = 1024  # processes that can share a run
UNIT = 2.0**-24  # unit roundoff of float32: the largest relative error of one rounding
DOUBLE = 2.0**-53  # unit roundoff of float64
FINISH = 1e-9  # allowance for operations done once on the float64 sum: a query's finish, and adding the noise


def check_mode(mode: str) -> None:
    """Raise for an unknown arithmetic, and for the name that earlier versions used."""
    if mode == "default":
        raise InvalidInputError(
            "arithmetic 'default' no longer exists: use 'rigorous' (a proven ε), or 'fast' (the same computation as "
            "'default' had, whose ε is claimed and not proven)"
        )
    choice(MODES, arithmetic=mode)


def charge(largest: int) -> float:
    """Excess distance between the computed sums of two neighbours, in clip norms, for batches of at most ``largest``.

    The sums of two blocks change (:func:`bound_block`). The float64 sum of the blocks rounds an addend at most
    :func:`count_roundings` times, each by a share 2⁻⁵³ of it, and the addends of a batch have norms that sum to at most
    ``largest`` clips; twice that for two neighbours, and twice for safety.
    """
    return 2.0 * bound_block(BLOCK) + 4.0 * DOUBLE * largest * count_roundings(largest) + FINISH


def bound_block(rows: int) -> float:
    """How far rounding can move apart the computed sums of two blocks of ``rows`` examples, in clip norms.

    A sum of h float32 products in any order of additions rounds addend j at most d_j times. The squares of these depths
    sum to at most h² + h(h + 1)(2h + 1)/6 (sequential additions, plus the products). By Cauchy and Schwarz, coordinate
    by coordinate, a sum over h addends of norm at most one clip has an error of at most u·√(h·Σd²) clips; there are two
    such sums."""
    squares = rows**2 + rows * (rows + 1) * (2 * rows + 1) / 6
    return 2.0 * UNIT * math.sqrt(rows * squares) / (1.0 - rows * UNIT)


def count_roundings(blocks: int) -> int:
    """How often a float64 sum of this many blocks, in levels of `FAN` and then over processes, rounds an addend."""
    levels = 1
    while FAN**levels < blocks:
        levels += 1
    return (FAN + 2) * levels + PROCESSES


@dataclass(frozen=True)
class Chunk:
    """Rows computed together: which examples of the batch they are, and the numbers that key their model randomness."""

    chosen: Tensor  # indices into the batch, in order
    places: Tensor  # the index of every example; of an empty row a number that no example has
    empty: Tensor | None = None  # True for a row that is not an example: a constant with weight zero


@dataclass(frozen=True)
class Cut:
    """How every batch of a run is cut; a function of public numbers only."""

    rows: int  # of a chunk; in fast arithmetic at most
    chunks: int = 1  # of a block, at most
    mode: Mode = "rigorous"

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each block of a chunk: one block, unless a chunk has more rows than a block can have."""
        blocks = 1 if self.mode == "fast" else -(-self.rows // BLOCK)
        return tuple(self.rows * number // blocks for number in range(blocks))

    @staticmethod
    def of(rows: int, microbatch: int, mode: Mode) -> Cut:
        """Chunks of ``rows`` rows; in fast arithmetic of up to ``microbatch``."""
        if mode == "fast":
            return Cut(microbatch, 1, mode)
        return Cut(rows, max(1, min(BLOCK, microbatch) // rows), mode)

    def order(self, secret: Secret, step: int, count: int) -> Tensor:
        """A uniformly random order of ``count`` examples: the example at each position.

        Example j takes a random position up to j, and the example that was there moves to position j (Durstenfeld 1964,
        inside out). So one more example changes the positions of itself and of one other."""
        positions = generator(secret, streams.ROW_ORDER, step).integers(np.arange(1, count + 1)).tolist()
        order: list[int] = []
        for example, position in enumerate(positions):
            order.append(example)
            order[position], order[example] = example, order[position]
        return torch.tensor(order, dtype=torch.int64)

    def cut(self, order: Tensor, rank: int = 0, world: int = 1) -> list[list[Chunk]]:
        """The blocks of one process, each a list of chunks.

        Chunk j belongs to process j mod ``world``. A process without a chunk computes an empty one, which adds zero."""
        if self.mode == "fast":
            return [[chunk] for chunk in self._cut_evenly(order, rank, world)]
        count = max(rank + 1, -(-len(order) // self.rows))
        own = [self._fill(order, number) for number in range(rank, count, world)]
        return [own[low : low + self.chunks] for low in range(0, len(own), self.chunks)]

    def _fill(self, order: Tensor, number: int) -> Chunk:
        positions = torch.arange(number * self.rows, (number + 1) * self.rows)
        chosen, empty = order[number * self.rows : (number + 1) * self.rows], positions >= len(order)
        return Chunk(chosen, torch.cat([chosen, positions[empty]]), empty)

    def _cut_evenly(self, order: Tensor, rank: int, world: int) -> Iterator[Chunk]:
        n = len(order)
        count = world * max(1, -(-n // (self.rows * world)))
        for number in range(rank, count, world):
            low, high = n * number // count, n * (number + 1) // count
            yield Chunk(order[low:high], order[low:high])


# The cost model that chooses the number of rows of a chunk, in nanoseconds of one core. A chunk costs a call of every
# layer and a pass over the weights, whatever it holds; a row costs its multiplications and its pixels. The check before
# the first step counts too. The choice depends on public numbers alone, and changes the speed only.
CALL = 120_000.0  # one parameter of a model: the calls of its layer, forward, backward, norm and sum
WEIGHT = 0.5  # one number of a parameter, read forward and backward
PRODUCT = 0.075  # one multiplication of a row by a matrix
TOKEN = 0.05  # the same for a token
CONVOLVED = 0.003  # one multiplication in a convolution, by the estimate of its positions below, which is a large one
PIXEL = 250.0  # one pixel of a row in all layers between convolutions
WAITING = 2.0  # the time of the check before the first step counts twice, because users wait for it


def list_sizes(microbatch: int) -> tuple[int, ...]:
    """The numbers of rows that a chunk can have if at most ``microbatch`` rows are computed at a time."""
    return tuple(size for size in SIZES if size <= microbatch) or (microbatch,)


def choose_rows(
    shapes: Iterable[Sequence[int]],
    content: Any,
    batch: float,
    microbatch: int,
    *,
    steps: int,
    random: bool,
    moving: bool,
) -> int:
    """The number of rows of a chunk with the least expected cost of all steps, at most what a batch needs.

    ``shapes`` are those of all parameters, frozen ones too; ``content`` is an empty batch, and ``batch`` its expected
    size, which varies if it is ``random``; the check also compares positions if examples are ``moving``. The number of
    positions at which a row uses a weight is estimated from its shape: its tokens, its pixels, or the positions in a
    parameter of shape (1, positions, width)."""
    shapes, rows = list(shapes), [tuple(t.shape[1:]) for t in tensors_of(content)]
    pixels = max((math.prod(row[1:]) for row in rows if len(row) > 1), default=1)
    words = any(not t.is_floating_point() and t.dim() == 2 for t in tensors_of(content))
    tokens = max((row[0] for row in rows if len(row) in (1, 2) and row), default=1) if words else 0
    widths = {shape[1] for shape in shapes if len(shape) == 2}
    placed = [shape[1] for shape in shapes if len(shape) == 3 and shape[0] == 1 and shape[2] in widths]
    tokens = max([tokens, *placed])
    each, fixed = PIXEL * pixels if any(len(shape) > 2 for shape in shapes) else 0.0, 0.0
    linear, convolved = TOKEN * tokens if tokens else PRODUCT, CONVOLVED * max(1, pixels // 4)
    for shape in shapes:
        each += (convolved if len(shape) > 2 else linear) * math.prod(shape)
        fixed += CALL + WEIGHT * math.prod(shape)

    def cost(size: int) -> float:
        trained = steps * (_expect_chunks(batch, size) if random else max(1, -(-batch // size)))
        return (trained + WAITING * _count_passes(size, moving)) * (fixed + size * each)

    sizes, most = list_sizes(microbatch), batch + (4 * math.sqrt(batch) if random else 0)
    enough = next((size for size in sizes if size >= most), sizes[-1])
    return min((size for size in sizes if size <= enough), key=cost)


def _expect_chunks(batch: float, size: int) -> float:
    """The expected number of chunks of a batch whose size is random with mean and variance ``batch``: that of a Poisson
    batch, approximately normal. The j-th chunk is needed by batches of more than (j − 1)·size rows."""
    most = math.ceil((batch + 8 * math.sqrt(batch)) / size)
    return 1.0 + sum(math.erfc((j * size - batch) / math.sqrt(2 * batch)) / 2 for j in range(1, most + 1))


def whole_chunk(rows: int, shift: int = 0) -> Chunk:
    """A chunk of these rows, none empty; with a ``shift``, each row is that many positions further on, cyclically."""
    places = torch.arange(rows).roll(shift)
    return Chunk(places, places, torch.zeros(rows, dtype=torch.bool))


# The check at the start of a run in rigorous arithmetic: the bits of an example do not depend on other rows.
#
# Rigorous arithmetic keeps the number of rows of a chunk fixed. The check tests that, at the same shape and position,
# the *content* of other rows changes nothing; value-dependent kernels, or a model that mixes examples slightly, would
# fail. A chunk of synthetic rows is computed once, and again with some of its rows replaced; everything computed for a
# row that stayed (:class:`RowDigests`) must have the same bits. Every ordered pair of rows is separated for every kind
# of replacement: in some pass the first stays and the second is replaced. Where an example can be added or removed,
# another example changes its position; so the chunk is also computed once for every cyclic shift of its rows, and every
# row must have the same bits at every position. Inputs are synthetic, weights are public or made from them, and no data
# was read: the result may be published, and the engine chosen here (:mod:`hush.per_example.engine`) does not depend on
# who is in a batch.


class RowsNotIndependent(UnsupportedModelError):
    """Bits of a row depend on other rows of its chunk, or on its position."""


KINDS = ("random", "zero", "large", "subnormal", "non-finite")
"""The kinds of rows that replace other rows."""

WORDS = 1 << 16  # size of one temporary of a digest, which stays in the cache
MOVED = 1024  # rows that are compared with themselves at another position, at least
SHIFTS = 16  # shifts where no tensor has numbers after its last whole vector
MORE_SHIFTS = 64  # shifts where one can have, at most
VECTORS = 128  # bytes that a kernel computes together, at most: two vectors of 512 bits


class RowDigests:
    """What was computed for every row of a chunk, in order: a label and 64 bits per row for each tensor.

    A digest holds two sums of a row's 32-bit words, as they are and mixed, times fixed odd weights, modulo 2³²."""

    def __init__(self, rows: int, starts: tuple[int, ...] = (0,)) -> None:
        self.rows, self.starts, self.found = rows, starts, list[tuple[str, Tensor]]()

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
            if hasattr(value, "list_groups"):  # gradients that are not stored
                parts = [
                    _digest_rows(rows.detach(), len(rows))
                    for start, stop in itertools.pairwise((*self.starts, self.rows))
                    for _, rows in value.list_groups(start, stop)
                ]
                self.found.append((label, torch.cat(parts)))
            for field in dataclasses.fields(value):
                if field.name not in ("params", "suspects", "weight", "like"):
                    self.add(label or field.name, getattr(value, field.name))

    def find_changed(self, other: RowDigests, mine: Tensor, theirs: Tensor) -> str | None:
        """The label of the first tensor in which the rows ``mine`` differ from the rows ``theirs`` of the other; None
        if there is none."""
        for (label, one), (other_label, two) in itertools.zip_longest(self.found, other.found, fillvalue=("", None)):
            if one is None or two is None or label != other_label:
                return label or other_label
            if not torch.equal(one[mine], two[theirs]):
                return label
        return None

    def summarize(self) -> str:
        """One digest of everything, to compare between processes."""
        parts = (f"{label}{value.tolist()}" for label, value in self.found)
        return hashlib.blake2b("".join(parts).encode(), digest_size=16).hexdigest()


def _is_mapped(value: Tensor) -> bool:
    """Whether torch.func maps over it; its first dimension is then not the examples."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


_INTEGERS = {1: torch.uint8, 2: torch.int16}


def _digest_rows(value: Tensor, rows: int) -> Tensor:
    """Two sums of each row's 32-bit words times odd weights, modulo 2³². In the second, upper bits are mixed into lower
    ones: the first cannot tell an even number of changed signs, which are 2³¹ each."""
    value = torch.view_as_real(value) if value.is_complex() else value
    flat = value.reshape(rows, -1).contiguous()
    size = flat.element_size()
    words = flat.view(_INTEGERS[size]).to(torch.int32) if size < 4 else flat.view(torch.int32)
    if not words.shape[1]:
        return torch.zeros(rows, 2, dtype=torch.int32)
    multiply = torch.mv if words.is_cpu else _multiply_by_sums  # CUDA has no product of integers
    one, two = (weights.to(words.device) for weights in _make_weights(words.shape[1]))
    parts = torch.split(words, max(1, WORDS // words.shape[1]))
    mixed = [multiply((part >> 15).bitwise_xor_(part), two) for part in parts]
    return torch.stack([multiply(words, one), torch.cat(mixed)], 1).cpu()


def _multiply_by_sums(words: Tensor, weights: Tensor) -> Tensor:
    return (words * weights).sum(1, dtype=torch.int32)


@lru_cache(maxsize=64)
def _make_weights(count: int) -> tuple[Tensor, Tensor]:
    """Two lists of odd 32-bit integers, the same at every call: the halves of splitmix64 of 1, 2, …"""
    z = torch.arange(1, count + 1, dtype=torch.int64) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ ((z >> shift) & (2 ** (64 - shift) - 1))) * factor
    halves = (z ^ ((z >> 31) & (2**33 - 1))).view(torch.int32).view(count, 2) | 1
    return halves[:, 0].contiguous(), halves[:, 1].contiguous()


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


def check_batch_invariance(
    compute: Compute,
    source: Source,
    rows: int,
    device: torch.device,
    *,
    moving: bool,
    params: Named | None = None,
    padding: int = 0,
) -> tuple[int, str]:
    """Raise if another row changes a bit of an example in a chunk of this many rows, or, where examples are ``moving``,
    its position does.

    `compute` adds ``padding`` empty rows. ``params`` are the weights that it uses; meanwhile they are varied, and then
    restored. Returns the number of inputs compared, and a digest of what was computed."""
    below = _try_made_up(compute, source, rows, device)
    smallest = min((p.element_size() for p in (params or {}).values()), default=4)
    remainder = has_remainder(rows + padding, torch.get_num_threads(), min(4, smallest))
    shifts, contents = list_shifts(rows, remainder), list_contents(rows, remainder)
    everybody = torch.arange(rows)
    with varied(params or {}, 0):
        content = synthetic_batch(source, rows, 0, device, below=below)
        first = compute(whole_chunk(rows), content)
        again = compute(whole_chunk(rows), content)
        _compare(first, again, everybody, everybody, "when the same rows are computed again")
        other = synthetic_batch(source, rows, 2, device, below=below)
        compared = rows + sum(_check_kind(compute, first, content, other, rows, kind) for kind in KINDS)
        if moving:
            compared += _check_positions(compute, first, content, rows, shifts)
    for seed in contents if moving else ():
        with varied(params or {}, seed):
            content = synthetic_batch(source, rows, seed, device, below=below)
            compared += _check_positions(compute, compute(whole_chunk(rows), content), content, rows, shifts)
    return compared, first.summarize()


def _check_positions(compute: Compute, first: RowDigests, content: Any, rows: int, shifts: Sequence[int]) -> int:
    """The number of rows compared with themselves at another position."""
    for shift in shifts:
        chunk = whole_chunk(rows, shift)
        found = compute(chunk, to_each(lambda t, shift=shift: t.roll(shift, 0), content))
        _compare(first, found, chunk.places, torch.arange(rows), "with the position of a row")
    return rows * len(shifts)


def list_contents(rows: int, remainder: bool) -> Sequence[int]:
    """Seeds of further contents at which positions are compared.

    The last numbers of a tensor can have another kernel than the others, and for many functions (sigmoid, SiLU, ELU,
    softplus) two kernels agree on most inputs: 2 to 35 % of the results differ. So where tensors can have such a
    ``remainder`` (`has_remainder`), at least `MOVED` rows are compared at another position, which a single content has
    only if a chunk is large."""
    return range(3, 2 + -(-MOVED // rows**2)) if rows > 1 and remainder else ()


def has_remainder(rows: int, threads: int, size: int = 4) -> bool:
    """Whether a tensor with this many rows of numbers of ``size`` bytes, or the part that a thread computes, can have
    numbers that do not fill the vectors of a kernel. torch divides a tensor evenly among some of the threads: as many
    as its size is worth."""
    return rows % (VECTORS // size * math.lcm(*range(1, threads + 1))) > 0


@contextmanager
def varied(params: Named, seed: int) -> Iterator[None]:
    """Within it, every parameter is moved by a tenth of its size, at random; with seed 0 only those that are zero.

    Products with zeros are exact in every kernel, so a layer that begins at zero would hide all that depends on it."""
    before = {name: p.detach().clone() for name, p in params.items()}
    try:
        with seeded(seed):
            for p in params.values():
                size = 0.1 * float(p.detach().double().square().mean().sqrt())
                if p.numel() and (seed or not size) and math.isfinite(size):
                    p.data.add_(torch.randn(p.shape, dtype=p.dtype).to(p.device), alpha=size or 0.1)
        yield
    finally:
        for name, p in params.items():
            p.data.copy_(before[name])


def list_shifts(rows: int, remainder: bool) -> Sequence[int]:
    """The cyclic shifts at which positions are compared, spread over all of them. The first is 1, so that all positions
    are compared with one another, directly or over others."""
    count = min(rows - 1, MORE_SHIFTS if remainder else SHIFTS)
    return [1 + number * (rows - 1) // count for number in range(count)]


def _try_made_up(compute: Compute, source: Source, rows: int, device: torch.device) -> int:
    try:
        return choose_engine(compute, source, rows, device)
    except (HushError, Warning, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"the model or its loss raises {type(error).__name__} on synthetic inputs of the data's shapes and types: "
            "check these, such as those of labels (int64 of shape (n,) for cross entropy). The error may quote data, "
            "so it is not repeated here; in Python it is the cause of this one. The model must accept random numbers "
            "and zeros: they show that an example's arithmetic does not depend on other rows. Fast arithmetic does not "
            "check this, and its ε is claimed and not proven"
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
        stayed = kept.nonzero().squeeze(1)
        _compare(first, found, stayed, stayed, f"with the values of other rows ({kind} ones)")
        compared += len(stayed)
    return compared


def _compare(one: RowDigests, other: RowDigests, mine: Tensor, theirs: Tensor, when: str) -> None:
    changed = one.find_changed(other, mine, theirs)
    if changed is not None:
        raise RowsNotIndependent(
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


@lru_cache(maxsize=64)
def _count_passes(rows: int, moving: bool) -> int:
    """The number of times that a check computes a chunk of this many rows, on one thread."""
    remainder = has_remainder(rows, 1)
    positions = len(list_shifts(rows, remainder)) * (1 + len(list_contents(rows, remainder)))
    return 3 + len(KINDS) * len(separate_rows(rows)) + (positions if moving else 0)


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
