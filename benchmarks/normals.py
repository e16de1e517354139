"""Nanoseconds per standard normal number of the generators that were considered for the noise.

    python benchmarks/normals.py

CPU time, the best of ``--rounds`` interleaved rounds over a million float32 numbers, one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hush.randomness import normal_of_key
from hush.randomness.cipher import Keystream

SIZE = 1 << 20


def ziggurat(bits: Any) -> Callable[[], Any]:
    """numpy's float32 ziggurat over one of its bit generators."""
    generator, out = np.random.Generator(bits(1)), np.empty(SIZE, np.float32)
    return lambda: generator.standard_normal(out=out, dtype=np.float32)


def aes(dtype: torch.dtype) -> Callable[[], Any]:
    """hush's own."""
    return lambda: normal_of_key(bytes(range(32)), SIZE, dtype)


def aes_bits() -> Callable[[], Any]:
    """The cipher's bytes alone, four per number."""
    out = np.empty(4 * SIZE, np.uint8)
    return lambda: Keystream(bytes(32), 0).fill(out)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[], Any]] = {
        "hush: AES-256 in counter mode, Box–Muller, float32": aes(torch.float32),
        "hush, float64": aes(torch.float64),
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
