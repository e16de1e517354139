"""Standard normal vectors from a 256-bit key: AES in counter mode, then the transform of Box and Muller (1958).

Two independent integers k₁, k₂, uniform over b + 1 bits with sign, give √(−ln s)·(cos θ, sin θ) with
s = (k₁² + ¼)/2^{2b} and θ = πk₂/2^b; b is 31 in float32 and 63 in float64, the bits as they lie in memory.

The vector is made in blocks of 2¹⁵ numbers. Block i reads the i-th segment of the key's stream: first all k₁, then all
k₂, which become all cosines, then all sines. A block depends on (key, i) alone, so the vector is the same for any
number of threads. The key of (secret, stream, step) is used for nothing else.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from hush.randomness.cipher import BLOCK_BYTES, Keystream
from hush.randomness.secret import Secret

PAIRS = 1 << 14  # of one block: its buffers stay in the second-level cache, and no operation is split over threads
BLOCK = 2 * PAIRS


def normal(secret: Secret, stream: str, step: int, like: Tensor, start: int = 0) -> Tensor:
    """A flat standard normal vector with the length, type and device of ``like``, keyed by (secret, stream, step).

    On the CPU ``start`` (a multiple of a block) selects the part of a longer vector that begins there. The bits are
    AES-256 in counter mode, so they are cryptographically secure, and the result does not depend on the number of
    threads.
    """
    if like.device.type == "cuda":
        assert start == 0, "the part of a vector is made on the CPU only"
        seed = int.from_bytes(secret.derive(stream, step, size=8), "little", signed=True)
        device_generator = torch.Generator(like.device).manual_seed(seed)
        return torch.randn(like.numel(), generator=device_generator, dtype=like.dtype, device=like.device)
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return normal_of_key(secret.derive(stream, step, size=32), like.numel(), dtype, start).to(like.device, like.dtype)


def normal_of_key(key: bytes, size: int, dtype: torch.dtype, start: int = 0) -> Tensor:
    """``size`` standard normal numbers of a key, in float32 or float64; ``start`` is a multiple of a block."""
    first, stray = divmod(start, BLOCK)
    assert stray == 0, "numbers are made in blocks"
    blocks = -(-size // BLOCK)
    out = torch.empty(blocks, 2, PAIRS, dtype=dtype)
    threads = min(torch.get_num_threads(), blocks // 4)
    if threads < 2:
        _fill(key, out, first)
    else:
        cuts = [blocks * i // threads for i in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            parts = [pool.submit(_fill, key, out[a:b], first + a) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
            for part in parts:
                part.result()
    return out.view(-1)[:size]


def _fill(key: bytes, out: Tensor, first: int) -> None:
    """Fill the blocks from number ``first`` on; every call has its own key stream."""
    bits, block_bytes = 8 * out.element_size() - 1, 2 * PAIRS * out.element_size()
    stream = Keystream(key, first * block_bytes // BLOCK_BYTES)
    integers = torch.empty(2, PAIRS, dtype=torch.int64 if out.dtype == torch.float64 else torch.int32)
    octets = integers.numpy().reshape(-1).view(np.uint8)
    both = out.new_empty(2, PAIRS)
    k, angle = both.unbind()
    quarter, square = out.new_full((), 0.25 / 4.0**bits), 1 / 4.0**bits
    turn = out.new_full((), math.pi / 2.0**bits)
    halves = out.view(-1, PAIRS).unbind()
    for cosine, sine in zip(halves[::2], halves[1::2], strict=True):
        stream.fill(octets)
        both.copy_(integers)
        radius = torch.addcmul(quarter, k, k, value=square, out=k).log_().neg_().sqrt_()
        angle.mul_(turn)
        torch.cos(angle, out=cosine).mul_(radius)
        torch.sin(angle, out=sine).mul_(radius)
