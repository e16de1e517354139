"""The strategy of a noise: its sensitivity, error, bands and restarts, computed without tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from hush._internal.validate import positive_int
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.sensitivity import Array
from hush.matrix_factorization.workloads import Workload, prefix_sums


class Strategy(ABC):
    """A frozen factorisation A = BC, with a column of C for every step; M maps the rows of Z to the noise of the steps.

    The noise of all steps is MZ with Z standard normal, one row per row of C, so G + MZ reveals no more than CG + Z:
    one Gaussian release whose sensitivity is that of C. The proofs rely on these guarantees:

    - inverse: M C = I, so M = C⁻¹ for a square C;
    - first: `first` gives the noise of the first steps, independent of later steps;
    - bands: columns of C at least `bands` steps apart are orthogonal; with 1 all are, and steps are independent;
    - restarts: with r, blocks of r steps from 0, r, 2r, … share no row of Z and no row of C;
    - sensitivity: `single`, `same_order` and `separated` are at least ‖CΔ‖, for every Δ that is zero except in the
      steps in which one example takes part, where its rows have norm at most one;
    - blocks: `block_norms` counts every block of steps once, with at least the largest column norm in it;
    - least: ‖row t of M‖ · sens(C) is at least `least_scale`, and so is ‖row t of M‖ where steps are independent;
    - alike: only where M = I;
    - draws: Z has at most `draws` rows;
    - spread: `inverse_norms` are the norms of the rows of M, `column_norms` those of the columns of C;
    - error: `rmse` is √(‖AM‖²_F / T), and `prefix_variances` are the squared norms of the rows of AM for prefix sums.

    A new strategy defines C, M, its bands, its restarts and `first`. The rest follows from the two matrices; override
    it where a faster or tighter way exists.
    """

    steps: int

    @property
    @abstractmethod
    def bands(self) -> int | None:
        """Number of bands of C (1: independent noise); None if C is dense."""

    @property
    @abstractmethod
    def restarts(self) -> int | None:
        """r if steps r·i … r·(i+1) − 1 are a diagonal block of C for every i (1: independent); None if no r < T is."""

    @abstractmethod
    def first(self, steps: int) -> Strategy:
        """The same noise over its first steps only."""

    @abstractmethod
    def strategy(self) -> Array:
        """C as a matrix with T columns; raises if T is too large."""

    @abstractmethod
    def noise_map(self) -> Array:
        """M as a matrix with T rows; raises if T is too large."""

    @cached_property
    def gram(self) -> Array:
        """X = CᵀC."""
        C = self.strategy()
        return freeze(C.T @ C)

    def column_norms(self) -> Array:
        """‖column t of C‖ for every t: the sensitivity to one unit in step t."""
        return np.asarray(np.sqrt(np.diag(self.gram)))

    def single(self) -> float:
        """Sensitivity when an example takes part once: the largest column norm of C."""
        return sensitivity.single(self.gram)

    def same_order(self, per_epoch: int) -> float:
        """Sensitivity of fixed batches in the same order every epoch: √ of the largest Σ|X_ij| over a batch's steps."""
        return sensitivity.same_order(self.gram, per_epoch)

    def separated(self, times: int, apart: int) -> float:
        """Sensitivity of at most `times` participations at least `apart` steps apart.

        Exact on the diagonal where X is banded, else the two-stage row bound."""
        return sensitivity.separated(self.gram, times, apart)

    def inverse_norms(self) -> Array:
        """‖row t of M‖ for every t: the std of one coordinate of the noise at step t, for Z of unit variance."""
        return np.asarray(np.linalg.norm(self.noise_map(), axis=1))

    def rmse(self, workload: Workload | None = None) -> float:
        """√(‖AM‖_F² / T): root mean square of the noise in the weights (by default in prefix sums), for unit Z."""
        seen = (workload or prefix_sums(self.steps)).accumulate(self.noise_map())
        return float(np.linalg.norm(seen)) / math.sqrt(self.steps)

    def prefix_variances(self) -> Array:
        """Variance of the noise accumulated up to every step, for Z of unit variance: squared row norms of AM."""
        return np.asarray((np.cumsum(self.noise_map(), axis=0) ** 2).sum(axis=1))

    @property
    def draws(self) -> int:
        """The maximum number of rows of Z that the noise of all steps uses."""
        return self.steps

    @property
    def alike(self) -> bool:
        """Whether M = I: the noise of every step is an unscaled row of Z."""
        # with a norm of one on both sides, and MC = I, row t of M is column t of C; and the columns are orthogonal
        ones = self.inverse_norms() == 1.0
        return self.bands == 1 and bool(np.all(ones)) and bool(np.all(self.column_norms() == 1.0))

    @property
    def least_scale(self) -> float:
        """The least noise of a step, relative to σ.

        Where steps are independent and sampled independently, it is the least row norm of M. Elsewhere Z is scaled by
        sens(C), which is at least ‖column t of C‖, and row t of M times column t of C is one: the least noise is at
        least 1. No larger value is claimed, however large the rows of M are.
        """
        return min(1.0, float(self.inverse_norms().min())) if self.bands == 1 else 1.0

    def block_norms(self, length: int) -> dict[float, int]:
        """The largest column norm within each block of ``length`` steps, with the number of blocks that have it."""
        positive_int(length=length)
        starts = np.arange(0, self.steps, length)
        if self.bands != 1:
            return {self.single(): len(starts)}
        norms = np.maximum.reduceat(self.column_norms(), starts)
        if np.all(norms == norms[0]):  # the usual case, of any number of steps
            return {float(norms[0]): len(norms)}
        return dict(Counter(norms.tolist()))


S = TypeVar("S", bound=Strategy)


@dataclass(frozen=True)
class Solution(Generic[S]):
    """The result of a solver: the strategy, its error, and its distance from the optimum.

    `error` = rmse · sensitivity is the expected root mean square of the noise in the weights at σ · clip = 1, for any
    objective. `gap` is the relative duality gap (f − lower bound)/f of the squared objective; None: unknown.
    """

    structure: S
    rmse: float
    sensitivity: float
    gap: float | None = None
    iterations: int = 0

    @staticmethod
    def of(structure: S, workload: Workload, sensitivity: float, stored: Mapping[str, Array]) -> Solution[S]:
        """From the values a solver stores with its matrix: the number of iterations, and the gap if known."""
        gap = float(stored["gap"]) if "gap" in stored else None
        return Solution(structure, structure.rmse(workload), sensitivity, gap, int(stored["iterations"]))

    @property
    def error(self) -> float:
        """rmse · sensitivity."""
        return self.rmse * self.sensitivity


def freeze(values: Array) -> Array:
    """A read-only float64 copy."""
    copy = np.array(values, dtype=np.float64)
    copy.setflags(write=False)
    return copy
