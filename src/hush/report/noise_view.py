"""What there is to see of a plan's noise, as numbers: C, C⁻¹, and the noise that adds up in a weight over steps.

Independent noise at the same (ε, δ) stands beside it twice: on the same batches, and on Poisson batches with
amplification (DP-SGD). Accumulated noise is A C⁻¹Z with A the prefix sums, in units of lr · clip / batch size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hush.errors import BadInput
from hush.matrices import Dense, Diagonal
from hush.matrices.series import Array
from hush.methods import make_plan
from hush.noise import Independent
from hush.plan import Plan
from hush.randomness import Secret, normal

CELLS = 256  # of a picture of a matrix, in either direction
CORNER = 2048  # most steps of a structure that is not kept as a matrix
PATH = 20_000  # most steps for which a sample path is drawn
POINTS = 1500  # of a curve


@dataclass(frozen=True)
class Picture:
    """A matrix with at most 256 cells in either direction: each cell holds the entry of largest size in its block."""

    values: Array
    shape: tuple[int, int]
    block: tuple[int, int]


@dataclass(frozen=True)
class NoiseView:
    """Everything that the page shows."""

    plan: Plan
    independent: Plan  # on the same batches
    poisson: Plan  # on Poisson batches: DP-SGD
    strategy: Picture
    inverse: Picture
    entries: Array  # of C⁻¹ that are not structurally zero
    corner: int | None  # how many steps the matrices show, where it is not all
    steps: NDArray[np.int64]  # of the curves
    accumulated: Array  # standard deviation, at those steps
    each: Array  # standard deviation of the noise of each of those steps
    path_steps: NDArray[np.int64]
    path: Array
    independent_path: Array

    @property
    def errors(self) -> dict[str, float]:
        """Root mean square over all steps of the accumulated noise: of the method, and of independent noise."""
        root = Diagonal(self.plan.steps).rmse()
        return {
            "expected_error": self.plan.noise_std * self.plan.noise.structure.rmse(),
            "independent_error": self.independent.noise_std * root,
            "dp_sgd_error": self.poisson.noise_std * root,
        }


def view_noise(plan: Plan) -> NoiseView:
    """Look at a plan's noise; the plan's ε is what independent noise is calibrated to."""
    if not plan.private:
        raise BadInput(f"method '{plan.method}' adds no noise: there is nothing to show")
    structure, epsilon = plan.noise.structure, plan.guarantee().epsilon
    alone = replace(plan, noise=Independent(plan.steps), method="dp-sgd", accept_claimed=True)
    shown = structure if isinstance(structure, Dense) or plan.steps <= CORNER else structure.first(CORNER)
    C, M = shown.strategy(), shown.noise_map()
    at = _thinned(plan.steps)
    path_steps, path, other = _paths(plan, alone := alone.calibrated(epsilon))
    return NoiseView(
        plan=plan,
        independent=alone,
        poisson=_poisson(plan, epsilon),
        strategy=_picture(C),
        inverse=_picture(M),
        entries=M[M != 0.0],
        corner=None if shown is structure else CORNER,
        steps=at + 1,
        accumulated=plan.noise_std * np.sqrt(structure.prefix_variances()[at]),
        each=plan.noise_std * structure.inverse_norms()[at],
        path_steps=path_steps,
        path=path,
        independent_path=other,
    )


def _poisson(plan: Plan, epsilon: float) -> Plan:
    """DP-SGD on Poisson batches of the same expected size, for as many steps."""
    examples = plan.sampler.examples
    public: dict[str, Any] = {"examples": examples, "batch_size": min(int(plan.divisor), examples), "steps": plan.steps}
    accountant = "auto" if plan.accountant == "gdp" else plan.accountant
    return make_plan("dp-sgd", **public, delta=plan.delta, epsilon=epsilon, accountant=accountant)


def _picture(matrix: Array) -> Picture:
    rows, columns = (-(-size // CELLS) for size in matrix.shape)
    padded = np.pad(matrix, [(0, -matrix.shape[0] % rows), (0, -matrix.shape[1] % columns)])
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    high, low = tiles.max(axis=(1, 3)), tiles.min(axis=(1, 3))
    return Picture(np.where(high >= -low, high, low), (matrix.shape[0], matrix.shape[1]), (rows, columns))


def _thinned(steps: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, steps - 1, min(steps, POINTS)).astype(np.int64))


def _paths(plan: Plan, alone: Plan) -> tuple[NDArray[np.int64], Array, Array]:
    """One weight's accumulated noise, by the stream that training uses; the same normal numbers without correlation."""
    secret, like = Secret.from_seed(0, "noise show"), torch.empty(1, dtype=torch.float64)
    count = plan.steps if plan.steps <= PATH else 0
    noise = plan.noise
    state, drawn = noise.init(like), np.zeros(count)
    for step in range(count):
        value, state = noise.draw(step, lambda j: normal(secret, "noise", j, like), state)
        drawn[step] = float(value)
    plain = np.array([float(normal(secret, "noise", step, like)) for step in range(count)])
    at = _thinned(count) if count else np.zeros(0, dtype=np.int64)
    return at + 1, plan.noise_std * np.cumsum(drawn)[at], alone.noise_std * np.cumsum(plain)[at]
