"""BLT, buffered linear Toeplitz noise: p buffers represent a full Toeplitz matrix.

Dvijotham et al. 2024 (single participation), McMahan et al. 2024 (several).
C has the coefficients c₀ = 1, cₜ = Σⱼ ωⱼ θⱼ^(t−1). The noise streams with p buffers sⱼ (zero at first):
nₜ = zₜ − Σⱼ ωⱼ sⱼ, then sⱼ ← θⱼ sⱼ + nₜ. With u = √ω, C⁻¹ is again of this form, from the eigenvalues θ̂ⱼ of
diag(θ) − uuᵀ and ω̂ⱼ = (vⱼᵀu)²: its coefficients are 1, −Σⱼ ω̂ⱼ θ̂ⱼ^(t−1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from scipy.special import expit

from hush._internal.validate import positive_int
from hush.errors import InvalidInputError
from hush.matrix_factorization import sensitivity
from hush.matrix_factorization.cache import cached
from hush.matrix_factorization.sensitivity import Array, participations
from hush.matrix_factorization.strategy import Solution, freeze
from hush.matrix_factorization.toeplitz import LowerToeplitz
from hush.matrix_factorization.workloads import Workload


@dataclass(frozen=True, eq=False)
class BLT(LowerToeplitz):
    """T steps with decays 0 ≤ θⱼ < 1 and weights ωⱼ > 0, Σω ≤ 1: the coefficients of C then fall from 1 towards 0."""

    steps: int
    theta: Array
    omega: Array

    def __post_init__(self) -> None:
        positive_int(steps=self.steps)
        object.__setattr__(self, "theta", freeze(np.atleast_1d(self.theta)))
        object.__setattr__(self, "omega", freeze(np.atleast_1d(self.omega)))
        if self.theta.ndim != 1 or self.theta.shape != self.omega.shape or not self.theta.size:
            raise InvalidInputError("a BLT needs as many decays θ as weights ω, at least one")
        if not (np.all(self.theta >= 0) and np.all(self.theta < 1)):
            raise InvalidInputError("every decay θ of a BLT must be at least 0 and below 1")
        if not (np.all(self.omega > 0) and self.omega.sum() <= 1):
            raise InvalidInputError("the weights ω of a BLT must be above 0 and add up to at most 1")

    @property
    def buffers(self) -> int:
        """p: parameter-sized vectors held while streaming."""
        return len(self.theta)

    @property
    def bands(self) -> None:
        """C is dense."""
        return

    @property
    def restarts(self) -> None:
        """The noise never restarts."""
        return

    @cached_property
    def inverse(self) -> tuple[Array, Array]:
        """θ̂, ω̂ of C⁻¹ (its coefficients are 1, −Σ ω̂ⱼ θ̂ⱼ^(t−1))."""
        return _inverse_parameters(self.theta, self.omega)

    @cached_property
    def column(self) -> Array:
        """First column of C, length T."""
        return freeze(_column(self.theta, self.omega, self.steps))

    @cached_property
    def inverse_column(self) -> Array:
        """First column of C⁻¹, length T."""
        decay, weight = self.inverse
        return freeze(_column(decay, -weight, self.steps))

    def same_order(self, per_epoch: int) -> float:
        """The first batch of an epoch has the largest; exact, because the coefficients fall."""
        positive_int(per_epoch=per_epoch)
        return self.separated(-(-self.steps // per_epoch), per_epoch)

    def separated(self, times: int, apart: int) -> float:
        """Exact: the pattern 0, apart, 2·apart, … is the worst for falling coefficients."""
        return sensitivity.toeplitz_separated(self.column, times, apart)

    def first(self, steps: int) -> BLT:
        """The same buffers over fewer steps."""
        return BLT(steps, self.theta, self.omega)


def _inverse_parameters(theta: Array, omega: Array) -> tuple[Array, Array]:
    """θ̂, ω̂ of the inverse: eigenvalues of diag(θ) − uuᵀ and squared overlaps with u = √ω."""
    u = np.sqrt(omega)
    values, vectors = np.linalg.eigh(np.diag(theta) - np.outer(u, u))
    return values, (vectors.T @ u) ** 2


def _column(decay: Array, weight: Array, steps: int) -> Array:
    result = np.zeros(steps)
    lag = np.arange(steps - 1, dtype=np.float64)
    for base, share in zip(decay, weight, strict=True):
        result[1:] += share * np.power(base, lag)
    result[0] = 1.0
    return result


# The best BLT for a number of buffers and a participation pattern, in time that hardly depends on T.
#
# McMahan et al. 2024: minimise rmse · sensitivity over (θ, ω). Both are sums of exponentials, so for prefix sums both
# have closed forms: the noise in the prefix sums has the Toeplitz coefficients bₜ = 1/C(1) + Σⱼ ω̂ⱼ/(1 − θ̂ⱼ) · θ̂ⱼᵗ,
# all terms positive, and Σₜ (T − t) rᵗ is elementary. Other workloads sum their series, O(T·p) a step.

_MOST_BUFFERS = 8
_WORTH = 0.005  # one more buffer must lower the error by this share


def optimal_blt(
    workload: Workload, buffers: int | None = None, times: int = 1, apart: int | None = None, *, rtol: float = 1e-11
) -> Solution[BLT]:
    """The best BLT for at most `times` participations at least `apart` steps apart.

    `buffers` None: as many as reduce the error by at least half a percent each.
    """
    positive_int(times=times)
    if buffers is not None:
        positive_int(buffers=buffers)
    if not workload.toeplitz:
        raise InvalidInputError("a BLT needs a constant learning rate: use optimal_banded instead")
    apart = min(apart or workload.steps, workload.steps)
    question = {"workload": workload, "buffers": buffers, "times": times, "apart": apart, "rtol": rtol}
    stored = cached("blt", question, lambda: _solve(workload, buffers, times, apart, rtol))
    structure = BLT(workload.steps, stored["theta"], stored["omega"])
    return Solution.of(structure, workload, structure.separated(times, apart), stored)


def _solve(workload: Workload, buffers: int | None, times: int, apart: int, rtol: float) -> dict[str, Array]:
    """From one buffer up, each search started from the quadrature and from the last optimum with one buffer split."""
    loss = _loss(workload, times, apart)
    last = best = _descend(loss, [_quadrature(workload.steps, 1)], rtol)
    for count in range(2, (buffers or _MOST_BUFFERS) + 1):
        last = _descend(loss, [_quadrature(workload.steps, count), *_split(last.x)], rtol)
        if buffers is not None or last.fun < best.fun + 2 * math.log1p(-_WORTH):
            best = last
        elif len(last.x) - len(best.x) >= 4:  # two more buffers did not pay either
            break
    theta, omega = _parameters(best.x)
    order = np.argsort(-theta)
    return {"theta": theta[order], "omega": omega[order], "iterations": np.array(float(best.nit))}


def _parameters(free: Array) -> tuple[Array, Array]:
    """θ by its logit, ω by its logarithm."""
    logit, log = np.split(free, 2)
    return expit(logit), np.exp(log)


def _loss(workload: Workload, times: int, apart: int) -> Callable[[Array], float]:
    steps = workload.steps
    plain = workload == Workload(steps)

    def loss(free: Array) -> float:
        theta, omega = _parameters(free)
        if omega.sum() > 1:
            return 1e3 + float(omega.sum())
        squared = squared_sensitivity(theta, omega, steps, times, apart)
        error = prefix_mean_square(theta, omega, steps) if plain else BLT(steps, theta, omega).rmse(workload) ** 2
        return math.log(error) + math.log(squared)

    return loss


def _descend(loss: Callable[[Array], float], starts: list[Array], rtol: float) -> OptimizeResult:
    """The best of L-BFGS from every start; derivatives by differences on both sides."""
    half = len(starts[0]) // 2
    bounds = [(-8.0, 21.0)] * half + [(-30.0, 0.0)] * half  # 1 − θ down to 1e-9
    options = {"maxiter": 1000, "maxcor": 20, "ftol": rtol, "gtol": 0.0, "maxfun": 10**6}
    found = [minimize(loss, x, jac="3-point", method="L-BFGS-B", bounds=bounds, options=options) for x in starts]
    return min(found, key=lambda result: float(result.fun))


def _split(free: Array) -> list[Array]:
    """Every buffer in turn replaced by two of half its weight, a little faster and a little slower."""
    logit, log = np.split(free, 2)
    result = []
    for index in range(len(logit)):
        moved, halved = logit.copy(), log.copy()
        moved[index] -= 1.0
        halved[index] -= math.log(2)
        result.append(np.concatenate([moved, [logit[index] + 1.0], halved, [halved[index]]]))
    return result


def _quadrature(steps: int, buffers: int) -> Array:
    """The square root has coefficients ∫ θᵗ dθ / (π√(θ(1 − θ))): a buffer for each of p logarithmic bins of 1 − θ."""
    edges = np.concatenate([[0.0], float(max(steps, 4)) ** -np.linspace(1, 0, buffers + 1)[1:]])
    middle = float(max(steps, 4)) ** -np.linspace(1, 0, 2 * buffers + 1)[1::2]
    mass = np.diff(np.arcsin(np.sqrt(edges))) * 2 / math.pi
    omega = mass * (1 - middle)
    omega *= min(1.0, 0.5 / omega.sum())  # c₁ of the square root is ½
    return np.concatenate([np.log((1 - middle) / middle), np.log(omega)])


def prefix_mean_square(theta: Array, omega: Array, steps: int) -> float:
    """‖A C⁻¹‖_F² / T for prefix sums: Σ_{i,j} hᵢhⱼ Σₜ (T − t)(θ̂ᵢθ̂ⱼ)ᵗ / T, the pole 1 of weight 1/C(1) included."""
    decay, weight = _inverse_parameters(theta, omega)
    poles = np.append(decay, 1.0)
    share = np.append(weight / (1 - decay), 1 / (1 + float(np.sum(omega / (1 - theta)))))
    return float(share @ _triangular(np.outer(poles, poles), steps) @ share) / steps


def _triangular(r: Array, steps: int) -> Array:
    """Σ_{t<T} (T − t) rᵗ, by its series in 1 − r where the closed form would cancel."""
    T = float(steps)
    x = 1 - r
    near = x * T < 1e-3
    safe = np.where(near, 0.5, r)
    closed = (T - safe * (1 - np.power(safe, T)) / (1 - safe)) / (1 - safe)
    log = -np.log1p(-np.where(near, x, 0.0))
    series = T * (T + 1) / 2 - log * (T - 1) * T * (T + 1) / 6 + log**2 * T**2 * (T**2 - 1) / 24
    return np.asarray(np.where(near, series, closed))


def squared_sensitivity(theta: Array, omega: Array, steps: int, times: int, apart: int) -> float:
    """‖Σ_{j<k} C[:, j·b]‖² in O(T/b · p²): within one stretch of b steps the sum is again p exponentials.

    In stretch m column j = m newly starts (if m < k); the l-th before it has decayed by θ^(l·b), and g adds those up.
    """
    count = participations(steps, times, apart)
    stretch = np.arange(-(-steps // apart))
    fresh = (stretch < count).astype(np.float64)
    oldest = np.minimum(stretch, count - 1) if count else stretch
    decay = np.power(theta, apart)
    # older columns: l from max(m − k + 1, 1) to m
    first = np.maximum(stretch - count + 1, 1)[:, None]
    number = np.where(stretch < count, oldest, count)[:, None]
    g = np.power(decay, first) * _geometric(decay, number)
    at_start = fresh + (g / theta) @ omega
    length = np.minimum(apart, steps - stretch * apart) - 1
    weights = omega * (fresh[:, None] + g)
    ratio = np.outer(theta, theta)
    inner = np.array([_geometric(ratio, float(length[0])), _geometric(ratio, float(length[-1]))])
    total = float(np.sum(at_start**2))
    total += float(np.einsum("mi,ij,mj->", weights[:-1], inner[0], weights[:-1]))
    return total + float(weights[-1] @ inner[1] @ weights[-1])


def _geometric(r: Array, count: Array | float) -> Array:
    """1 + r + … + r^(count − 1) for 0 ≤ r < 1."""
    log = np.log(np.maximum(r, 1e-300))
    return np.asarray(np.expm1(count * log) / np.expm1(log))
