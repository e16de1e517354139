"""Products of float32 numbers as float32 products: no TF32, no bfloat16 behind the scenes, no autocast.

The bounds of :mod:`hush.gradients.rounding` hold for additions and fused multiply-adds that round to the type they are
declared in. torch can be told to be faster than that, for every device on its own; within :func:`exact_products` it is
not, and afterwards everything is as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

Switch = tuple[Any, str, tuple[Any, ...]]
"""Who holds it, its name, and the values at which products are exact, the one to set first."""

_IEEE, _IEEE_BY_DEFAULT = ("ieee",), ("ieee", "none")
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class Older:
    """The switch of torch before 2.9, which on a processor meant bfloat16 where it said "medium"."""

    @property
    def precision(self) -> str:
        """Of products of float32 matrices."""
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


@functools.cache
def switches() -> tuple[Switch, ...]:
    """Every switch of this version of torch that matters on this machine."""
    backends = torch.backends
    holders = [getattr(backends.mkldnn, part, None) for part in ("matmul", "conv", "rnn")]  # since torch 2.9
    found: list[Switch] = [(h, "fp32_precision", _IEEE_BY_DEFAULT) for h in holders if h is not None]
    if not found:
        found.append((Older(), "precision", ("highest",)))
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
        for owner, name, exact in switches():
            before = getattr(owner, name)
            if before not in exact:
                setattr(owner, name, exact[0])
                stack.callback(setattr, owner, name, before)
        yield
