"""ME: the best strategy when batches repeat in the same order every epoch (Choquette-Choo et al. 2023).

Minimise f(X) = tr(G X⁻¹), G = WᵀW with W = A or Λ_τ A, over X = CᵀC with Σ_{i,j∈π} |X_ij| ≤ 1 for the b patterns
π = {r, r + b, …}. It is enough to look where X_ij = 0 for i ≠ j in one pattern: there the optimum has
X⁻¹GX⁻¹ = U with U zero between patterns and, within one, a constant diagonal v_r. U is positive semidefinite, so
|U_ij| ≤ v_r, which makes U a multiplier of the absolute values too (and of the true sensitivity for vectors, whose
multipliers are the positive semidefinite blocks of constant diagonal). Hence any such U gives the lower bound
tr((U^½ G U^½)^½)² / Σ v_r, and the gap reported here is against it.

Solved by Newton's method: the Hessian D ↦ X⁻¹DU + UDX⁻¹, with U cut to its pattern blocks, is inverted by conjugate
gradients with its diagonal as preconditioner, in single precision; iterates, line search and certificate are in double.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, eigvalsh
from scipy.linalg.lapack import dpotrf, dpotri

from hush.errors import HushError
from hush.matrices.cache import cached
from hush.matrices.dense import Dense, from_gram
from hush.matrices.sensitivity import same_order
from hush.matrices.series import Array
from hush.matrices.structure import Solution
from hush.matrices.workloads import Workload, objective
from hush.validate import whole

_NEWTON = 100
_GRADIENTS = 300  # most conjugate-gradient steps for one Newton step
Single = NDArray[np.float32]


def optimal_epochs(
    workload: Workload, per_epoch: int, tau: int | None = None, *, rtol: float = 1e-7
) -> Solution[Dense]:
    """The strategy of least expected error for the same batches every `per_epoch` steps; τ given: ME-λ.

    `rtol` bounds the estimated relative distance of the squared objective from its optimum; `gap` certifies it.
    """
    whole(per_epoch=per_epoch)
    question = {"workload": workload, "per_epoch": per_epoch, "tau": tau, "rtol": rtol}
    stored = cached("multi-epoch", question, lambda: _solve(workload, per_epoch, tau, rtol))
    structure = Dense(stored["C"])
    return Solution(
        structure,
        rmse=structure.rmse(workload),
        sensitivity=structure.same_order(per_epoch),
        gap=float(stored["gap"]),
        iterations=int(stored["iterations"]),
    )


def _solve(workload: Workload, per_epoch: int, tau: int | None, rtol: float) -> dict[str, Array]:
    W = objective(workload, tau)
    problem = _Problem.of(W.T @ W, min(per_epoch, workload.steps), tau)
    X, iterations = _newton(problem, rtol)
    gap = problem.gap(X)
    plain = np.empty_like(X)
    plain[np.ix_(problem.order, problem.order)] = X
    return {"C": from_gram(plain).C, "gap": np.array(gap), "iterations": np.array(float(iterations))}


@dataclass(frozen=True)
class _Problem:
    """f(X) = tr(GX⁻¹) over the free entries with trace one a pattern, in an order that puts each pattern together."""

    G: Array
    order: NDArray[np.int64]
    pattern: NDArray[np.int64]
    free: Array  # 1 where an off-diagonal entry may differ from zero
    per_epoch: int

    @staticmethod
    def of(G: Array, per_epoch: int, tau: int | None) -> _Problem:
        steps = np.arange(len(G))
        G = G / np.max(np.diag(G))  # the scale of A must not matter to single precision
        order = np.argsort(steps % per_epoch, kind="stable")
        pattern = steps[order] % per_epoch
        free = pattern[:, None] != pattern
        if tau is not None:  # G is block diagonal in blocks of τ; by symmetry so is the best X
            block = order // tau
            free &= block[:, None] == block
        return _Problem(G[np.ix_(order, order)], order, pattern, free.astype(np.float64), per_epoch)

    def totals(self, diagonal: NDArray[np.floating[Any]]) -> Array:
        """Sum over each pattern."""
        return np.asarray(np.bincount(self.pattern, diagonal, self.per_epoch), dtype=np.float64)

    def normalised(self, X: Array) -> Array:
        """X scaled to trace one in every pattern."""
        scale = 1 / np.sqrt(self.totals(np.diag(X)))[self.pattern]
        return np.asarray(scale[:, None] * X * scale)

    def slices(self) -> list[tuple[int, int, int]]:
        """(start, patterns, length) for the patterns of k steps and for those of k − 1."""
        steps = len(self.G)
        longest, extra = -(-steps // self.per_epoch), steps % self.per_epoch or self.per_epoch
        parts = [(0, extra, longest), (extra * longest, self.per_epoch - extra, longest - 1)]
        return [part for part in parts if part[1]]

    def blocks(self, U: Array) -> list[Array]:
        """The diagonal blocks of U over each pattern, stacked for patterns of equal length."""
        result = []
        for start, count, length in self.slices():
            end = start + count * length
            part = U[start:end, start:end].reshape(count, length, count, length)
            result.append(np.ascontiguousarray(part[np.arange(count), :, np.arange(count), :]))
        return result

    def start(self) -> Array:
        """The single-participation form of X, no entries inside a pattern, as far from its diagonal as it pays."""
        half = np.diag(self.G) ** 0.25
        values, vectors = eigh(half[:, None] * self.G * half)
        scaled = vectors * np.maximum(values, 0.0) ** 0.25 / half[:, None]
        full = scaled @ scaled.T
        diagonal, rest = np.diag(np.diag(full)), full * self.free
        best, least = self.normalised(diagonal), math.inf
        for share in np.linspace(0.0, 1.0, 11):
            candidate = self.normalised(diagonal + share * rest)
            inverse = _inverse(candidate)
            if inverse is None or (value := float(np.vdot(self.G, inverse))) > least:
                break
            best, least = candidate, value
        return best

    def gap(self, X: Array) -> float:
        """1 − (lower bound)/(f · true sensitivity²)."""
        inverse = _inverse(X)
        if inverse is None:
            raise HushError("the multi-epoch solver ended at a matrix that is not positive definite")
        ordered = np.empty_like(X)
        ordered[np.ix_(self.order, self.order)] = X
        value = float(np.vdot(self.G, inverse)) * same_order(ordered, self.per_epoch) ** 2
        half = np.zeros_like(X)
        price = 0.0
        for (start, _, length), stack in zip(self.slices(), self.blocks(inverse @ self.G @ inverse), strict=True):
            for index, block in enumerate(stack):
                diagonal = np.diag(block)
                price += (mean := float(diagonal.mean()))
                scale = np.sqrt(mean / diagonal)
                values, vectors = np.linalg.eigh(scale[:, None] * block * scale)
                at = slice(start + index * length, start + (index + 1) * length)
                half[at, at] = vectors * np.sqrt(np.maximum(values, 0.0))
        spectrum = eigvalsh(half.T @ self.G @ half)
        return max(0.0, 1 - float(np.sqrt(np.maximum(spectrum, 0.0)).sum()) ** 2 / price / value)


def _newton(problem: _Problem, rtol: float) -> tuple[Array, int]:
    X = problem.start()
    for iteration in range(1, _NEWTON + 1):
        inverse = _inverse(X)
        if inverse is None:
            raise HushError("the multi-epoch solver met a matrix that is not positive definite")
        weighted = problem.G @ inverse
        value = float(np.trace(weighted))
        U = inverse @ weighted
        system = _System.of(problem, inverse, (U + U.T) / 2)
        distance = system.estimate() / value
        if distance < rtol:
            return problem.normalised(X), iteration
        step, slope = system.solve(max(min(0.5, distance ** (1 / 3)), 1e-3))
        moved = _search(problem.G, X, step, value, slope)
        if moved is None:  # rounding hides any further progress; the certificate says how good it is
            return problem.normalised(X), iteration
        X = moved
    raise HushError(f"the multi-epoch solver did not settle in {_NEWTON} Newton steps")


def _search(G: Array, X: Array, step: Array, value: float, slope: float) -> Array | None:
    """The first of X + step, X + step/2, … that is positive definite and lowers f enough."""
    for halvings in range(40):
        length = 0.5**halvings
        moved = X + length * step
        inverse = _inverse(moved)
        if inverse is not None and float(np.vdot(G, inverse)) < value + 1e-4 * length * slope:
            return moved
    return None


@dataclass(frozen=True)
class _System:
    """The Newton system at one X: residual, Hessian and its diagonal, on the free entries with zero trace a pattern."""

    problem: _Problem
    inverse: Single
    blocks: list[Single]
    free: Single
    scale: Single  # free entries of 1/diagonal of the Hessian
    diagonal: Single  # the same on the diagonal of X
    residual: Single
    exact: Array

    @staticmethod
    def of(problem: _Problem, inverse: Array, U: Array) -> _System:
        outer = np.outer(np.diag(inverse), np.diag(U))
        hessian = outer + outer.T
        exact = problem.free * U
        counts = problem.totals(np.ones(len(U)))
        np.fill_diagonal(exact, np.diag(U) - (problem.totals(np.diag(U)) / counts)[problem.pattern])
        return _System(
            problem=problem,
            inverse=inverse.astype(np.float32),
            blocks=[block.astype(np.float32) for block in problem.blocks(U)],
            free=problem.free.astype(np.float32),
            scale=(problem.free / hessian).astype(np.float32),
            diagonal=(1 / np.diag(hessian)).astype(np.float32),
            residual=exact.astype(np.float32),
            exact=exact,
        )

    def estimate(self) -> float:
        """Squared length of the gradient in the preconditioner's metric: of the order of the distance to the best."""
        return float(np.vdot(self.residual, self.precondition(self.residual)))

    def precondition(self, R: Single) -> Single:
        """Divide by the Hessian's diagonal, keeping zero trace on every pattern."""
        Z = R * self.scale
        weighted = np.diag(R) * self.diagonal
        share = self.problem.totals(weighted) / self.problem.totals(self.diagonal)
        np.fill_diagonal(Z, weighted - share[self.problem.pattern] * self.diagonal)
        return Z

    def hessian(self, D: Single) -> Single:
        """X⁻¹DU + UDX⁻¹ with U cut to its blocks, projected onto the free entries."""
        product = np.empty_like(D)
        for (start, count, length), block in zip(self.problem.slices(), self.blocks, strict=True):
            columns = D[:, start : start + count * length].reshape(len(D), count, length).transpose(1, 0, 2)
            product[:, start : start + count * length] = (columns @ block).transpose(1, 0, 2).reshape(len(D), -1)
        half = self.inverse @ product
        both = half + half.T
        diagonal = np.diag(both).copy()
        both *= self.free
        counts = self.problem.totals(np.ones(len(D)))
        np.fill_diagonal(both, diagonal - (self.problem.totals(diagonal) / counts)[self.problem.pattern])
        return both

    def solve(self, tolerance: float) -> tuple[Array, float]:
        """The Newton step to a relative tolerance by conjugate gradients, and its slope (negative)."""
        D = np.zeros_like(self.residual)
        R = self.residual.copy()
        Z = self.precondition(R)
        direction = Z.copy()
        energy = first = float(np.vdot(R, Z))
        for _ in range(_GRADIENTS):
            image = self.hessian(direction)
            length = energy / float(np.vdot(direction, image))
            D += np.float32(length) * direction
            R -= np.float32(length) * image
            Z = self.precondition(R)
            before, energy = energy, float(np.vdot(R, Z))
            if energy < tolerance**2 * first:
                break
            direction = Z + np.float32(energy / before) * direction
        step = (D.astype(np.float64) + D.T) / 2
        return step, -float(np.vdot(self.exact, step))


def _inverse(X: Array) -> Array | None:
    """X⁻¹ by Cholesky; None if X is not positive definite."""
    factor, failed = dpotrf(X, lower=1)
    if failed:
        return None
    half = np.tril(dpotri(factor, lower=1)[0])
    return np.asarray(half + np.tril(half, -1).T)
