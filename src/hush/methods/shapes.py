"""Which correlated noise fits a setting: expected error of every candidate at the same (ε, δ).

The error is the root mean square, over steps, of the noise in the prefix sums that the model sees, in clip units:
σ · sens(C) · rmse(A C⁻¹). Independent noise with amplification competes on the same terms. Error says nothing of the
learning rate or of what clipping costs; it ranks the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dp_accounting import dp_event

from hush import matrices, validate
from hush.errors import BadInput, HushError
from hush.matrices import Structure, Workload, identity, prefix_sums
from hush.methods.setting import Setting
from hush.privacy import accounting, calibration

DENSE = 600  # most steps for which the dense optimum is worth its time in a recommendation
BANDS = (1, 2, 4, 8, 16, 32, 64, 128)
TOEPLITZ_BANDS = 2000  # from this many steps on, bands are optimised as a Toeplitz matrix


@dataclass(frozen=True)
class Candidate:
    """One method for a setting, its noise multiplier at (ε, δ), and the error that the model is expected to see."""

    method: str
    sigma: float
    sensitivity: float
    rmse: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """σ · sens · rmse: noise in the prefix sums, in units of the clip."""
        return self.sigma * self.sensitivity * self.rmse


def recommend(setting: Setting, epsilon: float, tell: Callable[[str], None] = lambda name: None) -> list[Candidate]:
    """Every candidate for this setting, the smallest expected error first; ``tell`` hears what is tried next."""
    validate.positive(epsilon=epsilon)
    found = []
    for name, make in _candidates(setting, epsilon):
        tell(name)
        try:
            found.append(make())
        except HushError:
            continue  # it does not fit this setting: too many groups, say
    return sorted(found, key=lambda candidate: candidate.error)


def best_bands(setting: Setting) -> int:
    """The number of bands with the smallest expected error at the setting's ε; 8 where no ε is given."""
    possible = _possible_bands(setting)
    if setting.epsilon is None:
        return max(w for w in possible if w <= 8)
    return min(possible, key=lambda w: _amplified(setting, setting.epsilon or 1.0, w).error)


def banded(workload: Workload, bands: int) -> Structure:
    """The best banded strategy for one visit a cycle: column-normalised, or Toeplitz for very many steps."""
    width = min(bands, workload.steps)
    if width == 1:
        return identity(workload.steps)
    if workload.steps >= TOEPLITZ_BANDS:
        return matrices.optimal_toeplitz(workload, width, times=1, apart=workload.steps).structure
    return matrices.optimal_banded(workload, width).structure


def cyclic_rate(setting: Setting, bands: int) -> float:
    """q in a group: L·w/N, so that the expected batch is L."""
    rate = setting.batch_size * bands / setting.examples
    if rate > 1:
        most = setting.examples // setting.batch_size
        raise BadInput(f"{bands} bands need groups of at least a batch: at most {most} bands fit this setting")
    return rate


def epochs(setting: Setting) -> int:
    """How often an example takes part in fixed batches: ⌈T/b⌉."""
    return -(-setting.total_steps // setting.per_epoch)


def _possible_bands(setting: Setting) -> list[int]:
    most = min(setting.examples // setting.batch_size, setting.total_steps)
    return [w for w in BANDS if w <= most]


def _candidates(setting: Setting, epsilon: float) -> Iterator[tuple[str, Callable[[], Candidate]]]:
    work, times, apart = prefix_sums(setting.total_steps), epochs(setting), setting.per_epoch
    yield "dp-sgd", lambda: _dp_sgd(setting, epsilon)
    for w in _possible_bands(setting)[1:]:
        yield f"dp-bandmf, {w} bands", lambda w=w: _amplified(setting, epsilon, w)  # type: ignore[misc]
    plain: list[tuple[str, Callable[[], Structure], dict[str, Any]]] = [
        ("dp-ftrl", lambda: matrices.Tree(work.steps, estimate="honaker"), {"honaker": True}),
        ("dp-bisr", lambda: matrices.inverse_square_root(work, min(32, work.steps)), {}),
        ("dp-blt", lambda: matrices.optimal_blt(work, None, times=times, apart=apart).structure, {}),
    ]
    if work.steps <= DENSE:
        plain.append(("dp-matrix-me", lambda: matrices.optimal_epochs(work, apart).structure, {}))
    for method, make, options in plain:
        yield method, lambda m=method, s=make, o=options: _fixed(setting, epsilon, m, s(), o)  # type: ignore[misc]


def _dp_sgd(setting: Setting, epsilon: float) -> Candidate:
    sigma = _sampled_sigma(setting, epsilon, setting.rate, setting.total_steps)
    return Candidate("dp-sgd", sigma, 1.0, identity(setting.total_steps).rmse())


def _amplified(setting: Setting, epsilon: float, bands: int) -> Candidate:
    structure = banded(prefix_sums(setting.total_steps), bands)
    visits = -(-setting.total_steps // bands)
    sigma = _sampled_sigma(setting, epsilon, cyclic_rate(setting, bands), visits)
    return Candidate("dp-bandmf", sigma, structure.single(), structure.rmse(), {"bands": bands})


def _fixed(setting: Setting, epsilon: float, method: str, structure: Structure, options: dict[str, Any]) -> Candidate:
    sens = structure.same_order(setting.per_epoch)
    sigma = calibration.smallest_sigma(
        dp_event.GaussianDpEvent, epsilon, setting.delta, adjacency="zero-out", accountant="gdp"
    )
    return Candidate(method, sigma, sens, structure.rmse(), options)


def _sampled_sigma(setting: Setting, epsilon: float, rate: float, count: int) -> float:
    def event(sigma: float) -> Any:
        sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
        return dp_event.SelfComposedDpEvent(sampled, count)

    accountant = accounting.default_accountant(event(1.0))
    return calibration.smallest_sigma(event, epsilon, setting.delta, accountant=accountant)
