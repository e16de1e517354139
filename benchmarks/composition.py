"""Composed Gaussian releases, whose ε is known exactly: how far from it the PLD of hush and of dp-accounting come.

    python benchmarks/composition.py

T releases with σ = √T are together one release with σ = 1. For plain Gaussians hush would use the exact formula, so its
numerical composition is called directly here. dp-accounting composes by a plain FFT on a grid of the given width.
Distances are relative and without sign: rounding has no sign to rely on, and another processor gives other digits.
"""

from __future__ import annotations

import math

from dp_accounting.pld import privacy_loss_distribution

from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.pld import CountedLeaf, compose, poisson_gaussian

GRIDS = {10**4: (1e-4, 1e-5), 10**6: (1e-4,)}
DELTAS = (1e-5, 1e-8, 1e-10, 1e-12, 1e-13, 1e-15, 1e-30)


def by_hush(steps: int, delta: float) -> float:
    """hush's own composition."""
    pair = poisson_gaussian(1.0, math.sqrt(steps), "remove", delta * 1e-7 / steps)
    return compose([CountedLeaf(pair.grid, pair.width, steps)], delta=delta).epsilon(delta)


def main() -> None:
    """Print one table."""
    print("| T | δ | exact ε | hush | dp-accounting, grid 1e-4 | grid 1e-5 |\n|---|---|---|---|---|---|")
    for steps, grids in GRIDS.items():
        composed = [
            privacy_loss_distribution.from_gaussian_mechanism(
                math.sqrt(steps), value_discretization_interval=grid
            ).self_compose(steps)
            for grid in grids
        ]
        for delta in DELTAS:
            exact = gaussian_epsilon(delta, 1.0)
            others = [other.get_epsilon_for_delta(delta) for other in composed]
            cells = [f"{abs(found / exact - 1):.1e}" for found in (by_hush(steps, delta), *others)]
            cells += ["–"] * (3 - len(cells))
            print(f"| {steps:,} | {delta:.0e} | {exact:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
