"""What a correlation of noise over steps says about itself, without tensors: sensitivity, error, bands, restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hush.errors import Refused
from hush.matrices.series import Array
from hush.matrices.workloads import Workload
from hush.validate import whole


class Structure(ABC):
    """A frozen factorisation A = BC. The noise of step t is row t of MZ; MC = I, so M = C⁻¹ for a square C."""

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
    def single(self) -> float:
        """Sensitivity when an example takes part once: the largest column norm of C."""

    @abstractmethod
    def same_order(self, per_epoch: int) -> float:
        """Sensitivity of fixed batches in the same order every epoch of `per_epoch` steps."""

    @abstractmethod
    def separated(self, times: int, apart: int) -> float:
        """Sensitivity of at most `times` participations at least `apart` steps apart."""

    @abstractmethod
    def inverse_norms(self) -> Array:
        """‖row t of M‖ for every t: the std of one coordinate of the noise at step t, for Z of unit variance."""

    @abstractmethod
    def rmse(self, workload: Workload | None = None) -> float:
        """√(‖AM‖_F² / T): root mean square of the noise the model sees (by default in prefix sums), for unit Z."""

    @abstractmethod
    def first(self, steps: int) -> Structure:
        """The same noise over its first steps only."""

    @abstractmethod
    def strategy(self) -> Array:
        """C as a matrix with T columns, for looking at and testing; refused when T is too large."""

    @abstractmethod
    def noise_map(self) -> Array:
        """M as a matrix with T rows, for looking at and testing; refused when T is too large."""

    def per_epoch(self, per_epoch: int) -> float:
        """Sensitivity within an epoch of reshuffled batches: the largest column norm, if noise restarts each epoch."""
        whole(per_epoch=per_epoch)
        one_epoch = per_epoch >= self.steps
        if not one_epoch and (self.restarts is None or per_epoch % self.restarts):
            raise Refused(
                f"batches reshuffled every {per_epoch} steps need independent noise or noise that restarts "
                "every epoch: use one of these, or keep the same order every epoch"
            )
        return self.single()

    def cyclic(self, groups: int) -> float:
        """Sensitivity of one visit under cyclic Poisson sampling: the largest column norm, if bands ≤ groups."""
        whole(groups=groups)
        if self.bands is None or self.bands > groups:
            shape = "dense" if self.bands is None else f"of {self.bands} bands"
            raise Refused(
                f"cyclic Poisson sampling over {groups} groups is amplified only for noise of at most {groups} bands, "
                f"and this one is {shape}: use more groups or fewer bands"
            )
        return self.single()


S = TypeVar("S", bound=Structure, covariant=True)


@dataclass(frozen=True)
class Solution(Generic[S]):
    """What a solver found: the structure, how good it is, and how far it can be from the best there is.

    `error` = rmse · sensitivity is the expected root mean square of the noise the model sees at σ · clip = 1, whatever
    the objective was. `gap` is the relative duality gap (f − lower bound)/f of the squared objective; None: unknown.
    """

    structure: S
    rmse: float
    sensitivity: float
    gap: float | None = None
    iterations: int = 0

    @property
    def error(self) -> float:
        """rmse · sensitivity."""
        return self.rmse * self.sensitivity


def frozen(values: Array) -> Array:
    """A read-only float64 copy."""
    copy = np.array(values, dtype=np.float64)
    copy.setflags(write=False)
    return copy
