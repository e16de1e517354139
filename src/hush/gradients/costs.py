"""The cost model that picks, layer by layer, the cheaper way to a norm.

Per example, for a weight of in × out used at P positions, in nanoseconds of one core:

    held  = P·in·out·a + in·out·b          the gradient is computed, kept, read for the norm and read for the sum
    gram  = P²·(in + out)·c + P²·d + 2·P·in·out·a    two Gram matrices for the norm, one product of matrices in double
                                                     precision for the sum

``benchmarks/layer_costs.py`` measures both ways for the convolutions of the benchmarks' models, next to what is picked.
Where holding would cost too much memory, the gradients are computed for the norm and again, summed, for the sum.
The last product is left out of the comparison: where it is large, positions are many and holding has won already.
"""

from __future__ import annotations

MULTIPLY = 0.022  # a: one multiplication in a large product of matrices
HOLD = 1.5  # b: writing, and reading twice, one number of a held gradient
GRAM = 0.040  # c: one multiplication in a small product
ENTRY = 1.0  # d: one entry of the two Gram matrices
ROOM = 1.5  # a gradient is held only up to this many times the size of what it is made of
CHUNK = 1 << 18  # numbers in one temporary of a norm: a megabyte stays in the second-level cache
DOUBLES = 1 << 17  # numbers in one factor of a product in double precision
SHALLOWEST, DEEPEST = 64, 1024  # positions that such a product sums


def held_is_cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether to keep the per-example gradient rather than compare positions."""
    size = inputs * outputs
    gram = positions**2 * ((inputs + outputs) * GRAM + ENTRY)
    return size * HOLD < gram


def chunk_of(numbers_per_example: int, n: int) -> int:
    """How many examples to take at a time so that a temporary stays in the cache."""
    return max(1, min(n, CHUNK // max(1, numbers_per_example)))


def depth_of(width: int) -> int:
    """How many positions of this width a product in double precision takes at a time."""
    return min(DEEPEST, max(SHALLOWEST, DOUBLES // max(1, width)))
