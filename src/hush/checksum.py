"""What stands for tensors as they are at one moment, to see whether they are the same at another.

The words of 32 bits lie in rows of `WIDTH`, one below the other. With an odd weight rᵢ of every row, the fold is

    Σᵢ rᵢ wᵢⱼ   modulo 2³²,   for every place j in a row.

It is another one wherever one word alone is, or the words of one row are in another order: an odd weight makes no
difference vanish. Where several rows change, a place of it stays the same by an accident of about 2⁻³¹ (more often for
words that all end in zeros), and of two folds with different weights by one of 2⁻⁶². It is one product with a matrix,
hardly slower than a plain sum.

Of the signs alone such a fold knows no more than whether an even number of them changed: 2³¹ times an odd number is
2³¹. So every `EVERY`-th row is folded once more with its upper bits mixed into the lower ones, w ⊕ ⌊w / 2¹⁵⌋. Weights
that are all negated are seen by that; an even number of signs in other rows is not. The weights are public: this sees
what happens, not who looks for a collision.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

WIDTH = 1 << 10
EVERY = 61
_MIX, _TURN, _ALL = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D, (1 << 64) - 1


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number below 2⁵², exact in float64, that two lists of tensors share only if they are the same in every bit, or
    by an accident of about that size."""
    total = 0
    for tensor in tensors:
        for which in (0, 1):
            fold = fold_words(tensor, which).cpu()
            total = (total * _TURN + int((fold * _mix_places(len(fold), which)).sum())) & _ALL
    return ((total * _TURN) & _ALL) >> 12


def fold_words(tensor: Tensor, which: int = 0) -> Tensor:
    """The fold of a tensor with the first or the second list of weights, and that of some of its rows with mixed bits:
    shape (2·`WIDTH`,)."""
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
    """The product with a matrix of whole numbers; a graphics card has none, and gets it by sums."""
    return weights @ rows if rows.is_cpu else multiply_by_sums(weights, rows)


def multiply_by_sums(weights: Tensor, rows: Tensor) -> Tensor:
    """The same without a product of matrices."""
    return (rows * weights[:, None]).sum(0, dtype=rows.dtype)


def _list_words(tensor: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers of 32; a few octets that are too many get zeros beside them."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.element_size() % 4 == 0:
        return flat.view(torch.int32)
    octets = flat.view(torch.uint8)
    filled = octets.new_zeros(-(-len(octets) // 4) * 4)
    filled[: len(octets)] = octets
    return filled.view(torch.int32)


@lru_cache(maxsize=256)
def _weigh_rows(rows: int, which: int, device: torch.device) -> Tensor:
    """The weights of so many rows, of 32 bits."""
    return (_mix_places(rows, which) >> 32).bitwise_or_(1).to(torch.int32).to(device)


@lru_cache(maxsize=16)
def _mix_places(count: int, which: int) -> Tensor:
    """So many odd numbers of 64 bits without any order: one of two lists."""
    places = torch.arange(count, device="cpu") * 2 + (2 + which)
    return (places * _MIX).bitwise_xor_((places * _TURN) >> 29).mul_(_MIX).bitwise_or_(1)
