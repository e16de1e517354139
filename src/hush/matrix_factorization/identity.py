"""Independent noise: C is diagonal, the identity for DP-SGD (Abadi et al. 2016) or 1/sₜ for a public schedule s."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hush._internal.validate import positive, positive_int
from hush.errors import InvalidInputError, NotProvenError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.recursion import Recursion
from hush.matrix_factorization.sensitivity import Array, pad
from hush.matrix_factorization.strategy import Strategy
from hush.matrix_factorization.workloads import Workload, check_dense, prefix_sums


@dataclass(frozen=True)
class Diagonal(Strategy):
    """C = diag(1/scales): the noise of step t is ``scales[t]`` times row t of Z; without scales, all are one."""

    steps: int
    scales: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive_int(steps=self.steps)
        for scale in self.scales or ():
            positive(noise_schedule=scale)
        if self.scales is not None and len(self.scales) != self.steps:
            raise InvalidInputError(f"noise of {self.steps} steps needs {self.steps} scales, got {len(self.scales)}")

    def declared(self, scope: object) -> dict[str, Any]:
        """Under the names that seeded secrets and kept checkpoints are bound to: a plan is the same by any other."""
        if self.scales is None:
            return {"kind": "hush.noise.structure.Identity", "steps": self.steps}
        return {"kind": "hush.noise.structure.Diagonal", "scales": self.scales}

    @property
    def bands(self) -> int:
        return 1

    @property
    def restarts(self) -> int:
        return 1

    def first(self, steps: int) -> Diagonal:
        """The first scales."""
        return Diagonal(steps, None if self.scales is None else self.scales[:steps])

    def single(self) -> float:
        """The column of the step with the least noise."""
        return 1.0 if self.scales is None else 1.0 / min(self.scales)

    def same_order(self, per_epoch: int) -> float:
        """Orthogonal columns: the worst batch's Σ 1/s²."""
        positive_int(per_epoch=per_epoch)
        if self.scales is None:
            return math.sqrt(-(-self.steps // per_epoch))
        weights = self._weights(self.scales)
        return math.sqrt(max(weights[place::per_epoch].sum() for place in range(min(per_epoch, self.steps))))

    def separated(self, times: int, apart: int) -> float:
        """Orthogonal columns: the heaviest pattern of 1/s²."""
        if self.scales is None:
            return math.sqrt(sensitivity.participations(self.steps, times, apart))
        return math.sqrt(float(sensitivity.heaviest(self._weights(self.scales), times, apart)))

    def column_norms(self) -> Array:
        """One over the scales."""
        return np.asarray(1.0 / self.inverse_norms())

    def inverse_norms(self) -> Array:
        """The scales."""
        return np.ones(self.steps) if self.scales is None else np.array(self.scales, dtype=np.float64)

    @property
    def alike(self) -> bool:
        """Whether all scales are one."""
        return self.scales is None or super().alike

    @property
    def least_scale(self) -> float:
        """The least scale, and one at most."""
        return 1.0 if self.scales is None else super().least_scale

    def block_norms(self, length: int) -> dict[float, int]:
        """As in the base class, but without scales no array of T numbers is made."""
        positive_int(length=length)
        return {1.0: -(-self.steps // length)} if self.scales is None else super().block_norms(length)

    def rmse(self, workload: Workload | None = None) -> float:
        """‖A diag(s)‖_F / √T."""
        workload = workload or prefix_sums(self.steps)
        if self.scales is None:
            return math.sqrt(workload.mean_square(pad(np.ones(1), self.steps)))
        return math.sqrt(self._recursion(workload).total() / self.steps)

    def prefix_variances(self) -> Array:
        """Σ s² up to every step."""
        if self.scales is None:
            return np.arange(1.0, self.steps + 1)
        return self._recursion(prefix_sums(self.steps)).seen_variances()

    def strategy(self) -> Array:
        """C, T×T."""
        check_dense(self.steps)
        return np.diag(1.0 / self.inverse_norms())

    def noise_map(self) -> Array:
        """diag(s), T×T."""
        check_dense(self.steps)
        return np.diag(self.inverse_norms())

    def _weights(self, scales: tuple[float, ...]) -> Array:
        return np.asarray(np.array(scales) ** -2.0)

    def _recursion(self, workload: Workload) -> Recursion:
        return Recursion.of(1.0 / self.inverse_norms()[:, None], workload)


def drop_first(structure: Strategy, start: int) -> Diagonal:
    """The noise of the steps from ``start`` on, for independent steps."""
    if structure.bands != 1:
        raise NotProvenError("correlated noise cannot start at a later step: it counts from the first step on")
    left = structure.steps - start
    return Diagonal(left, None if structure.alike else tuple((1.0 / structure.column_norms()[start:]).tolist()))
