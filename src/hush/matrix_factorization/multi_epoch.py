"""ME: the best strategy when batches repeat in the same order every epoch (Choquette-Choo et al. 2023).

Minimise f(X) = tr(G X⁻¹), G = WᵀW with W = A or Λ_τ A, over X = CᵀC with Σ_{i,j∈π} |X_ij| ≤ 1 for the b patterns
π = {r, r + b, …}. It is enough to look where X_ij = 0 for i ≠ j in one pattern: there the optimum has
X⁻¹GX⁻¹ = U with U zero between patterns and, within one, a constant diagonal v_r. U is positive semidefinite, so
|U_ij| ≤ v_r, which makes U a multiplier of the absolute values too (and of the true sensitivity for vectors, whose
multipliers are the positive semidefinite blocks of constant diagonal). Hence any such U gives the lower bound
tr((U^½ G U^½)^½)² / Σ v_r, and the gap reported here is against it.

The solver is Newton's method, see `newton.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, eigvalsh
from scipy.linalg.lapack import dpotrf, dpotri

from hush._internal.validate import positive_int
from hush.errors import HushError
from hush.matrix_factorization.cache import cached
from hush.matrix_factorization.dense import Dense, from_gram
from hush.matrix_factorization.sensitivity import Array, same_order
from hush.matrix_factorization.strategy import Solution
from hush.matrix_factorization.workloads import Workload, objective

# Newton's method for the least tr(G X⁻¹) over matrices X with zeros at given places and trace one in every pattern.
#
# At the optimum X⁻¹GX⁻¹ = U has no part in the free directions. The Newton step solves X⁻¹DU + UDX⁻¹ = U there by
# conjugate gradients, with U cut to its blocks within patterns (what remains of it at the optimum). The preconditioner
# is the same equation with X⁻¹ cut to blocks as well, solved exactly. Steps are found in single precision; iterates,
# line search and the certificate are in double.

_NEWTON = 100
_GRADIENTS = 300  # most conjugate-gradient steps for one Newton step
Single = NDArray[np.float32]
Real = NDArray[Any]


@dataclass(frozen=True)
class TraceProblem:
    """f(X) = tr(GX⁻¹) over the free entries with trace one per pattern, ordered by pattern."""

    G: Array
    order: NDArray[np.int64]
    pattern: NDArray[np.int64]
    free: Array  # 1 where an off-diagonal entry may differ from zero
    per_epoch: int

    @staticmethod
    def of(G: Array, per_epoch: int, tau: int | None) -> TraceProblem:
        steps = np.arange(len(G))
        G = G / np.max(np.diag(G))  # the scale of A must not matter to single precision
        order = np.argsort(steps % per_epoch, kind="stable")
        pattern = steps[order] % per_epoch
        free = pattern[:, None] != pattern
        if tau is not None:  # G is block diagonal in blocks of τ; by symmetry so is the best X
            block = order // tau
            free &= block[:, None] == block
        return TraceProblem(G[np.ix_(order, order)], order, pattern, free.astype(np.float64), per_epoch)

    def totals(self, diagonal: Real) -> Array:
        """Sum over each pattern."""
        return np.asarray(np.bincount(self.pattern, diagonal, self.per_epoch), dtype=np.float64)

    def centred(self, D: Real, diagonal: Real) -> Real:
        """D with this diagonal, less its mean over every pattern; in place."""
        counts = self.totals(np.ones(len(D)))
        np.fill_diagonal(D, diagonal - (self.totals(diagonal) / counts)[self.pattern])
        return D

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
        """The single-participation form of X without entries inside a pattern; its off-diagonal entries are scaled by
        the largest share that still lowers f."""
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


def minimise(problem: TraceProblem, rtol: float) -> tuple[Array, int]:
    """The best X to about rtol of f, and the number of Newton steps."""
    X = problem.start()
    for iteration in range(1, _NEWTON + 1):
        inverse = _inverse(X)
        if inverse is None:
            raise HushError("the multi-epoch solver produced a matrix that is not positive definite")
        weighted = problem.G @ inverse
        value = float(np.trace(weighted))
        U = inverse @ weighted
        system = System.of(problem, inverse, (U + U.T) / 2)
        distance = system.estimate() / value
        if distance < rtol:
            return problem.normalised(X), iteration
        step, slope = system.solve(max(min(0.5, distance ** (1 / 3)), 1e-3))
        moved = _search(problem.G, X, step, value, slope)
        if moved is None:  # rounding prevents further progress; the certificate bounds the gap
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
class System:
    """The Newton system at one X: residual, Hessian, preconditioner; on the free entries with zero trace per pattern.

    The preconditioner takes X⁻¹ as its blocks V within patterns: with U = PPᵀ and V = PΛPᵀ, V D U + U D V multiplies
    entry (i, j) of PᵀDP by Λ_i + Λ_j.
    """

    problem: TraceProblem
    inverse: Single
    blocks: list[Single]
    free: Single
    into: list[Single]  # P⁻¹ of every pattern
    rates: Single  # 1/(Λ_i + Λ_j)
    diagonal: Single  # 1/diagonal of the Hessian, for the diagonal of X
    residual: Single
    exact: Array

    @staticmethod
    def of(problem: TraceProblem, inverse: Array, U: Array) -> System:
        exact = problem.centred(problem.free * U, np.diag(U))
        blocks = problem.blocks(U)
        into, values = [], []
        for u, v in zip(blocks, problem.blocks(inverse), strict=True):
            ridge = 1e-9 * np.trace(u, axis1=1, axis2=2).max() / u.shape[1]  # for blocks singular to rounding
            root = np.linalg.inv(np.linalg.cholesky(u + ridge * np.eye(u.shape[1])))
            spectrum, vectors = np.linalg.eigh(root @ v @ np.swapaxes(root, 1, 2))
            into.append((np.swapaxes(vectors, 1, 2) @ root).astype(np.float32))
            values.append(spectrum.ravel())
        rate = np.concatenate(values)
        return System(
            problem=problem,
            inverse=inverse.astype(np.float32),
            blocks=[block.astype(np.float32) for block in blocks],
            free=problem.free.astype(np.float32),
            into=into,
            rates=(1 / (rate[:, None] + rate)).astype(np.float32),
            diagonal=(0.5 / (np.diag(inverse) * np.diag(U))).astype(np.float32),
            residual=exact.astype(np.float32),
            exact=exact,
        )

    def estimate(self) -> float:
        """Squared length of the gradient in the preconditioner's metric: about the distance to the optimum."""
        return float(np.vdot(self.residual, self.precondition(self.residual)))

    def precondition(self, R: Single) -> Single:
        """An approximate inverse of the Hessian, keeping zeros and zero traces."""
        off = R * self.free
        away = [np.swapaxes(block, 1, 2) for block in self.into]
        E = self._rows(self.into, self._rows(self.into, off).T) * self.rates
        Z = self._rows(away, self._rows(away, E).T) * self.free
        weighted = np.diag(R) * self.diagonal
        share = self.problem.totals(weighted) / self.problem.totals(self.diagonal)
        np.fill_diagonal(Z, weighted - share[self.problem.pattern] * self.diagonal)
        return Z

    def _rows(self, blocks: list[Single], D: Single) -> Single:
        """The block-diagonal matrix of these blocks times D."""
        result = np.empty_like(D)
        for (start, count, length), block in zip(self.problem.slices(), blocks, strict=True):
            part = slice(start, start + count * length)
            result[part] = (block @ D[part].reshape(count, length, -1)).reshape(count * length, -1)
        return result

    def hessian(self, D: Single) -> Single:
        """X⁻¹DU + UDX⁻¹ for symmetric D, projected onto the free entries with zero traces."""
        half = self.inverse @ self._rows(self.blocks, D).T
        both = half + half.T
        return self.problem.centred(both * self.free, np.diag(both))

    def solve(self, tolerance: float) -> tuple[Array, float]:
        """The Newton step to a relative tolerance by conjugate gradients, and its slope (negative)."""
        D = np.zeros_like(self.residual)
        R = self.residual.copy()
        Z = self.precondition(R)
        direction = Z.copy()
        energy = first = float(np.vdot(R, Z))
        for _ in range(_GRADIENTS):
            image = self.hessian(direction)
            curvature = float(np.vdot(direction, image))
            if curvature <= 0:  # single precision is exhausted; what has been found so far still descends
                break
            length = energy / curvature
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


def optimal_epochs(
    workload: Workload, per_epoch: int, tau: int | None = None, *, rtol: float = 1e-7
) -> Solution[Dense]:
    """The strategy of least expected error for the same batches every `per_epoch` steps; τ given: ME-λ.

    `rtol` bounds the estimated relative distance of the squared objective from its optimum; `gap` certifies it.
    """
    positive_int(per_epoch=per_epoch)
    question = {"workload": workload, "per_epoch": per_epoch, "tau": tau, "rtol": rtol}
    stored = cached("multi-epoch", question, lambda: _solve(workload, per_epoch, tau, rtol))
    structure = Dense(stored["C"])
    return Solution.of(structure, workload, structure.same_order(per_epoch), stored)


def _solve(workload: Workload, per_epoch: int, tau: int | None, rtol: float) -> dict[str, Array]:
    W = objective(workload, tau)
    problem = TraceProblem.of(W.T @ W, min(per_epoch, workload.steps), tau)
    X, iterations = minimise(problem, rtol)
    gap = problem.gap(X)
    plain = np.empty_like(X)
    plain[np.ix_(problem.order, problem.order)] = X
    return {"C": from_gram(plain).C, "gap": np.array(gap), "iterations": np.array(float(iterations))}
