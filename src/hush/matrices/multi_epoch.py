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

import numpy as np

from hush.matrices.cache import cached
from hush.matrices.dense import Dense, from_gram
from hush.matrices.newton import TraceProblem, minimise
from hush.matrices.series import Array
from hush.matrices.structure import Solution
from hush.matrices.workloads import Workload, objective
from hush.validate import whole


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
    return Solution.of(structure, workload, structure.same_order(per_epoch), stored)


def _solve(workload: Workload, per_epoch: int, tau: int | None, rtol: float) -> dict[str, Array]:
    W = objective(workload, tau)
    problem = TraceProblem.of(W.T @ W, min(per_epoch, workload.steps), tau)
    X, iterations = minimise(problem, rtol)
    gap = problem.gap(X)
    plain = np.empty_like(X)
    plain[np.ix_(problem.order, problem.order)] = X
    return {"C": from_gram(plain).C, "gap": np.array(gap), "iterations": np.array(float(iterations))}
