"""Bounds on rounding errors, and the torch settings that decide how products are rounded.

Bounds on squared norms and on sums hold for every input (derived in ARITHMETIC.md). u is the unit roundoff of a type:
half the distance from 1 to the next number. A sum of k products, in any order of additions or fused multiply-adds, has
an error of at most γ_k Σ|products| with γ_k = k·u/(1 − k·u) (Higham 2002, "Accuracy and stability of numerical
algorithms", chapter 3).

These bounds hold if products of float32 numbers are computed in float32: without TF32, without internal bfloat16,
without autocast. torch has settings for faster products on each device; :func:`exact_products` disables them and
restores them afterwards.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024  # numbers squared and summed in their own type; blocks are summed in double precision
SPARE = 8  # roundings other than those of the sum: of its products, of w·b, of the square root, of the final arithmetic
FLOOR = 2.0**-18
"""Lower bound on the squared norm of a sum over positions, as a share of the square of its largest possible value. It
keeps the rounding of a double precision sum negligible relative to the clip norm even if positions cancel."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """u of a type: 2⁻²⁴ for float32, 2⁻⁵³ for float64."""
    return torch.finfo(dtype).eps / 2


def gamma(roundings: int, dtype: torch.dtype) -> float:
    """γ of this many successive roundings."""
    share = roundings * unit_roundoff(dtype)
    if share > 0.25:
        raise ValueError(f"{roundings} roundings of {dtype} are too many to be bounded")
    return share / (1 - share)


@functools.cache
def underflow(dtype: torch.dtype) -> float:
    """The largest number that can become zero if products and sums of this type are flushed."""
    return torch.finfo(dtype).tiny


def underflow_margin(dtype: torch.dtype) -> float:
    """Added to ‖a_p‖² so that γ·s covers underflow in inner products of up to 2²⁰ blocks."""
    return underflow(dtype) / unit_roundoff(dtype) * 2.0**20


def bound_squares(rows: Tensor, more: float = 0.0, certain: bool = True) -> Tensor:
    """For each row of a tensor (n, …), an upper bound of its squared norm (plus ``more``), in double precision.

    Sums of ``BLOCK`` squares are computed in the tensor's own type, which is fast; the possible rounding and underflow
    errors are added. Without ``certain``, the sums without these additions."""
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


@functools.cache
def _allowance(size: int, dtype: torch.dtype) -> float:
    return gamma(min(size, BLOCK) + SPARE, dtype) + gamma(size // BLOCK + SPARE, torch.float64)


def _norms(rows: Tensor, dim: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=dim)
    return norms


def round_towards_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to another type, without increasing any magnitude."""
    near = values.to(dtype)
    if near.dtype == values.dtype:
        return near
    over = near.abs().double() > values.abs().double()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


# On a CPU, the bits of a matrix product can depend on how its rows lie relative to a cache line, and so on the position
# of an example. Examples that all begin at a multiple of a line have the same bits at every position.

LINE = 64  # bytes


def align(x: Tensor) -> Tensor:
    """The same values, with every example (or row) at a multiple of a cache line."""
    inner = math.prod(x.shape[1:])
    if not x.is_cpu or x.stride(0) * x.element_size() % LINE == 0 and (inner <= 1 or x[:1].is_contiguous()):
        return x
    return empty_aligned(x, x.shape).copy_(x)


def empty_aligned(like: Tensor, shape: Sequence[int], outer: int = 1) -> Tensor:
    """A tensor whose examples begin at multiples of a cache line; or its rows, the entries of ``outer`` dimensions."""
    strides, size, each = [0] * len(shape), 1, LINE // like.element_size()
    for dim in range(len(shape) - 1, -1, -1):
        if dim == outer - 1:
            size = -(-size // each) * each
        strides[dim], size = size, size * shape[dim]
    return like.new_empty_strided(tuple(shape), strides)


Switch = tuple[Any, str, tuple[Any, ...]]
"""The object that holds a setting, its name, and the values at which products are exact; the first is used."""

_IEEE, _IEEE_BY_DEFAULT = ("ieee",), ("ieee", "none")
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class OlderSwitch:
    """The setting of torch before 2.9, where "medium" means bfloat16 on a CPU."""

    @property
    def precision(self) -> str:
        """The precision of products of float32 matrices."""
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


@functools.cache
def list_switches() -> tuple[Switch, ...]:
    """Every setting of this torch version that matters on this machine."""
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


_NOTHING = nullcontext()


def exact_products() -> AbstractContextManager[None]:
    """Within it, every product and sum is computed in the type of its tensors."""
    for device in _AUTOCAST:
        if torch.is_autocast_enabled(device):
            return _switching_off()
    for owner, name, exact in list_switches():
        if getattr(owner, name) not in exact:
            return _switching_off()
    return _NOTHING


@contextmanager
def _switching_off() -> Iterator[None]:
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
