"""Tensors by parameter name, their layout in a flat vector, and checksums of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hush.errors import InvalidInputError

Named = dict[str, Tensor]
"""Tensors by parameter name."""

Sums = dict[str, Named]
"""Sums over examples, by channel and then by name."""

State = dict[str, Any]
"""A nested dict of tensors, numbers and objects with ``state_dict``. Keys that start with ``_`` are scratch: they are
recomputed from the secret and the step, so checkpoints leave them out."""

Losses = Callable[[nn.Module, Any], Tensor]
"""``losses(model, content)``: one loss per example, shape (n,). ``content`` is the data of n indices.

hush relies on the following:

1. The result has one loss for each of the n examples; any other shape is refused.
2. Loss i depends on example i, on the parameters and on the model randomness of its place, and on no other example. The
   engines are compared on the first batch and at secret steps; where examples mix, the reference computes every example
   alone, or the run is refused.
3. Every use of a trained parameter goes through the model, where its gradient is tracked; another use is refused.
4. Random numbers are drawn with torch; Python's and numpy's generators are refused.
5. Neither the model nor the loss writes into a buffer or a parameter; a run that detects such a write stops with an
   error.
"""


def trainable(model: nn.Module) -> Named:
    """The parameters that training changes, by name, in the model's own order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@dataclass(frozen=True)
class Layout:
    """The positions of named tensors in one flat vector."""

    shapes: tuple[tuple[str, torch.Size], ...]

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, in their order."""
        return Layout(tuple((name, t.shape) for name, t in tensors.items()))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def split(self, flat: Tensor) -> Named:
        """Views of a flat vector, by name."""
        sizes = [math.prod(shape) for _, shape in self.shapes]
        parts = torch.split(flat, sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One new flat vector that holds all of them."""
        return torch.cat([tensors[name].reshape(-1) for name, _ in self.shapes])


def list_tensors(state: Any) -> Iterator[Tensor]:
    """The tensors of a nested state, in order, without scratch."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            if not str(key).startswith("_"):
                yield from list_tensors(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from list_tensors(value)


def copy_into(own: Named, saved: Named) -> None:
    """Copy saved tensors into those of a model; raises if names, shapes or types differ."""
    shapes = [{name: (t.shape, t.dtype) for name, t in named.items()} for named in (own, saved)]
    if shapes[0] != shapes[1]:
        names = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        raise InvalidInputError(f"the saved model differs from this one in {', '.join(names[:3])}")
    for name, value in own.items():
        value.copy_(saved[name])


def check_losses(losses: Any, n: int) -> None:
    """Raise unless there is one loss per example. The message omits the batch size, which is private."""
    if not isinstance(losses, Tensor) or losses.shape != (n,):
        got = f"{losses.dim()} dimensions" if isinstance(losses, Tensor) else repr(type(losses).__name__)
        got = "another number of them" if isinstance(losses, Tensor) and losses.dim() == 1 else got
        raise InvalidInputError(f"losses must return one loss per example, shape (n,), got {got}: {_advise(losses)}")


def _advise(losses: Any) -> str:
    if not isinstance(losses, Tensor) or losses.dim() < 2:
        return "use reduction='none'"
    return "take the mean over the other dimensions" + (", or .squeeze(1)" if losses.shape[1:] == (1,) else "")


# Checksums of tensors, to detect changes between two moments.
#
# The 32-bit words are arranged in rows of `WIDTH`. With an odd weight rᵢ for every row, the fold is
#
#     Σᵢ rᵢ wᵢⱼ   modulo 2³²,   for every column j.
#
# It changes whenever a single word changes, or the words of one row are permuted: multiplication by an odd weight is
# injective modulo 2³². Where several rows change, a column of the fold stays the same with probability about 2⁻³¹ (more
# often for words that all end in zeros), and with two folds of different weights about 2⁻⁶². The fold is one matrix
# product, hardly slower than a plain sum.
#
# For sign bits alone the fold detects only whether an odd number of them changed, because 2³¹ times an odd number is
# 2³¹. Every `EVERY`-th row is therefore folded a second time with its upper bits mixed into the lower ones,
# w ⊕ ⌊w / 2¹⁵⌋. That detects the negation of all weights, but not an even number of changed signs in other rows. The
# weights are public: checksums detect accidents, not deliberate collisions.

WIDTH = 1 << 10
EVERY = 61
_MIX, _TURN, _ALL = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, (1 << 64) - 1


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number below 2⁵², exact in float64, that differs for different tensors except with a probability of about
    2⁻⁵²."""
    total = 0
    for tensor in tensors:
        for which in (0, 1):
            fold = fold_words(tensor, which).cpu()
            total = (total * _TURN + int((fold * _mix_places(len(fold), which)).sum())) & _ALL
    return ((total * _TURN) & _ALL) >> 12


def fold_words(tensor: Tensor, which: int = 0) -> Tensor:
    """The fold of a tensor with the first or second list of weights, then that of some rows with mixed bits; shape
    (2·`WIDTH`,)."""
    words = _list_words(tensor)
    rows, left = divmod(len(words), WIDTH)
    weights = _weigh_rows(rows + 1, which, words.device)
    whole = words[: rows * WIDTH].view(rows, WIDTH)
    fold = _multiply(weights[:rows], whole)
    if left:
        fold[:left] += weights[rows] * words[rows * WIDTH :]
    some = whole[::EVERY]
    return torch.cat([fold, _multiply(weights[: len(some)], some ^ (some >> 15))])


def _multiply(weights: Tensor, rows: Tensor) -> Tensor:
    """An integer matrix product; CUDA has none and computes it by sums."""
    return weights @ rows if rows.is_cpu else multiply_by_sums(weights, rows)


def multiply_by_sums(weights: Tensor, rows: Tensor) -> Tensor:
    """The same product without a matrix multiplication."""
    return (rows * weights[:, None]).sum(0, dtype=rows.dtype)


def _list_words(tensor: Tensor) -> Tensor:
    """The bits of a tensor as 32-bit integers, padded with zero bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.element_size() % 4 == 0:
        return flat.view(torch.int32)
    octets = flat.view(torch.uint8)
    filled = octets.new_zeros(-(-len(octets) // 4) * 4)
    filled[: len(octets)] = octets
    return filled.view(torch.int32)


@lru_cache(maxsize=256)
def _weigh_rows(rows: int, which: int, device: torch.device) -> Tensor:
    return (_mix_places(rows, which) >> 32).bitwise_or_(1).to(torch.int32).to(device)


@lru_cache(maxsize=16)
def _mix_places(count: int, which: int) -> Tensor:
    """``count`` pseudorandom odd 64-bit numbers, from one of two lists."""
    places = torch.arange(count, device="cpu") * 2 + (2 + which)
    return (places * _MIX).bitwise_xor_((places * _TURN) >> 29).mul_(_MIX).bitwise_or_(1)
