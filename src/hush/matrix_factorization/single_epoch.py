"""SE: the best strategy when every example takes part once (Denisov et al. 2022).

Minimise ‖W C⁻¹‖_F over C with unit columns, W = A or Λ_τ A. With G = WᵀW the optimum is X = v^−½ (v^½ G v^½)^½ v^−½ at
the fixed point v = diag((v^½ G v^½)^½), with objective Σv; any v gives the lower bound tr((v^½ G v^½)^½)² / Σv.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from hush.errors import HushError
from hush.matrix_factorization.cache import cached
from hush.matrix_factorization.dense import Dense, from_gram
from hush.matrix_factorization.sensitivity import Array
from hush.matrix_factorization.strategy import Solution
from hush.matrix_factorization.workloads import Workload, objective

_ITERATIONS = 2000
_ACCELERATED = 200  # should the extrapolation not settle by then, the plain fixed point always does
_MEMORY = 10


def optimal_single(workload: Workload, tau: int | None = None, *, rtol: float = 1e-10) -> Solution[Dense]:
    """The strategy of least expected error for one pass over the data; τ given: SE-λ, the objective is Λ_τ A."""
    stored = cached(
        "single-epoch", {"workload": workload, "tau": tau, "rtol": rtol}, lambda: _solve(workload, tau, rtol)
    )
    structure = Dense(stored["C"])
    return Solution.of(structure, workload, structure.single(), stored)


def _solve(workload: Workload, tau: int | None, rtol: float) -> dict[str, Array]:
    """Blocks of W that do not interact (τ < T) are solved one by one, equal ones once."""
    W = objective(workload, tau)
    steps = workload.steps
    X = np.zeros((steps, steps))
    size = steps if tau is None else min(tau, steps)
    known: dict[bytes, tuple[Array, float, float, int]] = {}
    value = bound = 0.0
    most = 0
    for start in range(0, steps, size):
        block = W[start : start + size, start : start + size]
        key = block.tobytes()
        if key not in known:
            known[key] = _fixed_point(block.T @ block, rtol)
        part, primal, dual, iterations = known[key]
        X[start : start + size, start : start + size] = part
        value, bound, most = value + primal, bound + dual, max(most, iterations)
    gap = max(0.0, 1 - bound / value)
    return {"C": from_gram(X).C, "gap": np.array(gap), "iterations": np.array(float(most))}


def _fixed_point(G: Array, rtol: float) -> tuple[Array, float, float, int]:
    """X with unit diagonal minimising tr(G X⁻¹); also that value, a lower bound on it, and the number of iterations."""
    x = 0.5 * np.log(np.diag(G))  # log v
    history: list[tuple[Array, Array]] = []
    for iteration in range(1, _ITERATIONS + 1):
        root = _scaled_root(G, np.exp(x))
        residual = np.log(np.diag(root)) - x
        if np.max(np.abs(np.expm1(residual))) <= rtol:
            break
        accelerated = iteration < _ACCELERATED
        history = [*history[-_MEMORY:], (x, residual)] if accelerated else []
        x = _next(history, x, residual)
    else:
        raise HushError(f"the fixed point did not reach a relative change of {rtol} in {_ITERATIONS} iterations")
    norm = np.sqrt(np.diag(root))
    X = root / np.outer(norm, norm)  # = v^−½ root v^−½ at the fixed point, with the diagonal made exactly one
    np.fill_diagonal(X, 1.0)
    value = float(np.trace(np.linalg.solve(X, G)))
    return X, value, float(np.trace(root)) ** 2 / float(np.exp(x).sum()), iteration


def _next(history: list[tuple[Array, Array]], x: Array, residual: Array) -> Array:
    """Anderson's extrapolation of log v over the last iterates; a plain step of the fixed point without history.

    Scaling v by s scales diag(root)/v by s^−½, so twice the logarithmic residual is the natural step.
    """
    if not history:
        return x + residual
    if len(history) == 1:
        return x + 2 * residual
    points, residuals = (np.diff(np.array(part), axis=0).T for part in zip(*history, strict=True))
    weights = np.linalg.lstsq(residuals, residual, rcond=1e-12)[0]
    return np.asarray(x + 2 * residual - (points + 2 * residuals) @ weights)


def _scaled_root(G: Array, v: Array) -> Array:
    """(v^½ G v^½)^½ for a positive definite G."""
    half = np.sqrt(v)
    values, vectors = eigh(half[:, None] * G * half)
    scaled = vectors * np.sqrt(np.sqrt(np.maximum(values, 0.0)))
    return np.asarray(scaled @ scaled.T)
