"""What rounding can do, and the switches of torch that decide which rounding is done.

Bounds on squared norms and on sums hold for every input (derived in ARITHMETIC.md). u is the unit roundoff of a type:
half the distance from 1 to the next number. A sum of k products, in any order of additions or fused multiply-adds, errs
by at most γ_k Σ|products| with γ_k = k·u/(1 − k·u) (Higham 2002, "Accuracy and stability of numerical algorithms",
chapter 3).

These bounds hold where products of float32 numbers are float32 products: without TF32, without bfloat16 behind the
scenes, without autocast. torch can be told to be faster than that, for every device on its own; within
:func:`exact_products` it is not, and afterwards everything is as it was.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024  # numbers that are squared and summed in their own type; blocks are summed in double precision
SPARE = 8  # roundings beside those of a sum: of its products, of w·b, of the square root, of the final arithmetic
FLOOR = 2.0**-18
"""A squared norm of a sum over positions is at least this share of the square of what the positions could add up to, so
that the rounding of a double precision sum stays negligible beside the clip even where positions cancel."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """u of a type: 2⁻²⁴ for float32, 2⁻⁵³ for float64."""
    return torch.finfo(dtype).eps / 2


def gamma(roundings: int, dtype: torch.dtype) -> float:
    """γ of this many roundings one after the other."""
    share = roundings * unit_roundoff(dtype)
    if share > 0.25:
        raise ValueError(f"{roundings} roundings of {dtype} leave nothing that could be bounded")
    return share / (1 - share)


def underflow(dtype: torch.dtype) -> float:
    """The largest number that can become zero where products and sums of this type are flushed."""
    return torch.finfo(dtype).tiny


def underflow_margin(dtype: torch.dtype) -> float:
    """What is added to ‖a_p‖² so that γ·s covers what vanishes in inner products of up to 2²⁰ blocks."""
    return underflow(dtype) / unit_roundoff(dtype) * 2.0**20


def bound_squares(rows: Tensor, more: float = 0.0, certain: bool = True) -> Tensor:
    """For each row of a tensor of shape (n, …) an upper bound of its squared norm (plus ``more``), in double precision.

    Sums of ``BLOCK`` squares are made in the tensor's own type, which is fast; what they can have lost is added, and so
    is what the squares of tiny numbers can have lost by vanishing. Without ``certain``, the sums as they are."""
    n, size = rows.shape[0], math.prod(rows.shape[1:])
    flat = rows.reshape(n, size)
    whole = size - size % BLOCK if size > BLOCK else size
    if whole == size <= BLOCK:
        found = _norms(flat, 1).double().square_()
    else:
        found = _norms(flat[:, :whole].view(n, -1, BLOCK), 2).double().square_().sum(1)
        if whole < size:
            found += _norms(flat[:, whole:], 1).double().square_()
    if not certain:
        return found
    return found.mul_(1.0 + _allowance(size, rows.dtype)).add_(2 * size * underflow(rows.dtype) + more)


def bound_columns(sides: Tensor, more: float = 0.0) -> Tensor:
    """The same for the columns of matrices (m, size, positions): bounds of shape (m, positions)."""
    size = sides.shape[1]
    found = sum(part.square().sum(1).double() for part in torch.split(sides, BLOCK, 1))
    assert isinstance(found, Tensor)
    return found.mul_(1.0 + _allowance(size, sides.dtype)).add_(2 * size * underflow(sides.dtype) + more)


def _allowance(size: int, dtype: torch.dtype) -> float:
    return gamma(min(size, BLOCK) + SPARE, dtype) + gamma(size // BLOCK + SPARE, torch.float64)


def _norms(rows: Tensor, dim: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=dim)
    return norms


def round_towards_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in another type, never larger in magnitude than they were."""
    near = values.to(dtype)
    if near.dtype == values.dtype:
        return near
    over = near.abs().double() > values.abs().double()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


Switch = tuple[Any, str, tuple[Any, ...]]
"""Who holds it, its name, and the values at which products are exact, the one to set first."""

_IEEE, _IEEE_BY_DEFAULT = ("ieee",), ("ieee", "none")
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class OlderSwitch:
    """The switch of torch before 2.9, which on a processor meant bfloat16 where it said "medium"."""

    @property
    def precision(self) -> str:
        """Of products of float32 matrices."""
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


@functools.cache
def list_switches() -> tuple[Switch, ...]:
    """Every switch of this version of torch that matters on this machine."""
    backends = torch.backends
    holders = [getattr(backends.mkldnn, part, None) for part in ("matmul", "conv", "rnn")]  # since torch 2.9
    found: list[Switch] = [(h, "fp32_precision", _IEEE_BY_DEFAULT) for h in holders if h is not None]
    if not found:
        found.append((OlderSwitch(), "precision", ("highest",)))
    if torch.cuda.is_available():
        found += _of_cuda()
    return tuple(found)


def _of_cuda() -> list[Switch]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found: list[Switch] = []
    if getattr(cudnn, "conv", None) is None:  # before torch 2.9
        found += [(matmul, "allow_tf32", (False,)), (cudnn, "allow_tf32", (False,))]
    else:
        found.append((matmul, "fp32_precision", _IEEE_BY_DEFAULT))
        found += [(getattr(cudnn, part), "fp32_precision", _IEEE) for part in ("conv", "rnn")]
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        found.append((matmul, name, (False,)))
    return found


@contextmanager
def exact_products() -> Iterator[None]:
    """Every product and sum within is computed in the type of its tensors."""
    with ExitStack() as stack:
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for owner, name, exact in list_switches():
            before = getattr(owner, name)
            if before not in exact:
                setattr(owner, name, exact[0])
                stack.callback(setattr, owner, name, before)
        yield
