"""Standard normal vectors from a 256-bit key: AES in counter mode, then the transform of Box and Muller (1958).

Two independent integers k₁, k₂, uniform over b + 1 bits with sign, give √(−ln s)·(cos θ, sin θ) with
s = (k₁² + ¼)/2^{2b} and θ = πk₂/2^b. The blocks have a fixed size and a counter of their own, so that the vector is the
same on one thread and on many.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from hush.ciphers import keystream

PAIRS = 1 << 14  # of one block: its buffers stay in the second-level cache, and no operation is split over threads
BLOCK = 2 * PAIRS


def normal_of_key(key: bytes, size: int, dtype: torch.dtype, start: int = 0) -> Tensor:
    """``size`` standard normal numbers of one key, float32 or float64, from number ``start`` on: a whole block's."""
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
    """The blocks from number ``first`` on: random bits into the place of the result, then the transform in place."""
    bits, block_bytes = 8 * out.element_size() - 1, 2 * PAIRS * out.element_size()
    cipher = keystream(key, first * block_bytes // 16)
    integers = torch.empty(2, PAIRS, dtype=torch.int64 if out.dtype == torch.float64 else torch.int32)
    address = integers.data_ptr()
    both = out.new_empty(2, PAIRS)
    k, angle = both.unbind()
    quarter, square = out.new_full((), 0.25 / 4.0**bits), 1 / 4.0**bits
    turn = out.new_full((), math.pi / 2.0**bits)
    halves = out.view(-1, PAIRS).unbind()
    for cosine, sine in zip(halves[::2], halves[1::2], strict=True):
        cipher(address, block_bytes)
        both.copy_(integers)
        radius = torch.addcmul(quarter, k, k, value=square, out=k).log_().neg_().sqrt_()
        angle.mul_(turn)
        torch.cos(angle, out=cosine).mul_(radius)
        torch.sin(angle, out=sine).mul_(radius)
