"""Nanoseconds per number of noise: every path of hush's own, and the generators that were considered.

    python benchmarks/normals.py

CPU time, the best of ``--rounds`` interleaved rounds over a million numbers, one thread. "Numbers" are standard normal
numbers from given bits, "added" is a whole release: AES, transform, scale, sum, grid and divisor in one pass.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hush._internal import noise_kernel as kernel
from hush._internal.noise_kernel import PAIRS
from hush.randomness import Secret, add_normal
from hush.randomness.cipher import Keystream

SIZE = 1 << 20


def ziggurat(bits: Any) -> Callable[[], Any]:
    """numpy's float32 ziggurat over one of its bit generators."""
    generator, out = np.random.Generator(bits(1)), np.empty(SIZE, np.float32)
    return lambda: generator.standard_normal(out=out, dtype=np.float32)


def transformed(level: int | None) -> Callable[[], Any]:
    """hush's numbers from given words, by one path."""
    a, b = np.random.default_rng(1).integers(0, 2**64 - 1, (2, SIZE // 2), dtype=np.uint64)
    first, second = np.empty((2, SIZE // 2))
    cuts = [slice(start, start + PAIRS) for start in range(0, SIZE // 2, PAIRS)]

    def fill() -> None:
        for cut in cuts:
            kernel.normals(a[cut], b[cut], first[cut], second[cut], level)

    return fill


def added(level: int | None, dtype: torch.dtype) -> Callable[[], Any]:
    """hush's noise added to sums, with its bits."""
    total, secret = torch.zeros(SIZE, dtype=dtype), Secret(bytes(32))
    return lambda: add_normal(secret, "benchmark", 0, [total], 1.0, 2.0**-7, 256.0, level)


def aes_bits() -> Callable[[], Any]:
    """The cipher's bytes alone, eight per number."""
    out = np.empty(8 * SIZE, np.uint8)
    return lambda: Keystream(bytes(32), 0).fill(out)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    best_level = kernel.best_level()
    paths: dict[str, int | None] = {"numpy": None}
    paths |= {kernel.LEVELS[level]: level for level in range(0 if best_level is None else best_level + 1)}
    ways: dict[str, Callable[[], Any]] = {}
    for name, level in paths.items():
        ways[f"hush, {name}: numbers"] = transformed(level)
        ways[f"hush, {name}: added, float32 sums"] = added(level, torch.float32)
        ways[f"hush, {name}: added, float64 sums"] = added(level, torch.float64)
    ways |= {
        "AES-256 bytes alone": aes_bits(),
        "torch.randn (mt19937, a 32-bit seed)": lambda: torch.randn(SIZE),
        "numpy ziggurat, SFC64": ziggurat(np.random.SFC64),
        "numpy ziggurat, PCG64DXSM": ziggurat(np.random.PCG64DXSM),
        "numpy ziggurat, Philox": ziggurat(np.random.Philox),
    }
    best = dict.fromkeys(ways, math.inf)
    for _ in range(options.rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - start)
    print("| generator | ns per number |\n|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {seconds / SIZE * 1e9:.2f} |")


if __name__ == "__main__":
    main()
