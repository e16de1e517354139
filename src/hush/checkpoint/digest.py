"""Which data and which frozen weights a run is on, as digests keyed with its secret: private, and useless without it.

A run that went on with other data would add the same noise to other sums, and the difference of the two would be free
of noise. So other data is refused. Tensors are digested whole; of other sources the length and some examples, if those
are the same when they are read twice.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from hush.checkpoint.file import tensor_bytes
from hush.randomness import Secret, generator, seeded
from hush.source import Source, Tensors, to_each

LOOKED_AT = 256


def data_digest(source: Source, secret: Secret) -> str:
    """The digest of the data, under the run's secret."""
    total = _hash(secret, "data")
    total.update(str(len(source)).encode())
    if isinstance(source, Tensors):
        for tensor in source.tensors:
            _add(total, tensor)
        return total.hexdigest()
    total.update(_some(source, secret))
    return total.hexdigest()


def frozen_digest(model: nn.Module, secret: Secret) -> str:
    """The digest of the parameters that training does not change; they are not in a checkpoint."""
    total = _hash(secret, "frozen")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            total.update(f"\0{name}".encode())
            _add(total, parameter)
    return total.hexdigest()


def _some(source: Source, secret: Secret) -> bytes:
    """A digest of a few examples, or of nothing where they change from one reading to the next (augmentation)."""
    size = min(LOOKED_AT, len(source))
    chosen = generator(secret, "digest", 0).choice(len(source), size, replace=False, shuffle=False)
    first, second = (_of(source, torch.from_numpy(chosen), secret) for _ in range(2))
    return first if first == second else b""


def _of(source: Source, indices: Tensor, secret: Secret) -> bytes:
    total = _hash(secret, "examples")
    with seeded(0):
        to_each(lambda tensor: _add(total, tensor), source.take(indices))
    digest: bytes = total.digest()
    return digest


def _hash(secret: Secret, purpose: str) -> hashlib.blake2b:
    return hashlib.blake2b(key=secret.derive(f"digest/{purpose}", 0, size=32), digest_size=16)


def _add(total: Any, tensor: Tensor) -> None:
    total.update(f"\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    total.update(tensor_bytes(tensor))
