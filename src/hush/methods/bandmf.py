"""The numbers of bands that fit a setting, and the one with the smallest expected error.

With w bands the data splits into w groups that take turns, q = L·w/N in a group: more bands cancel more noise and
amplify less (Choquette-Choo et al. 2023). The error is σ · sens(C) · rmse(A C⁻¹) at the setting's (ε, δ).
"""

from __future__ import annotations

from typing import Any

from dp_accounting import dp_event

from hush.accounting import accountant as accounting
from hush.accounting import calibration
from hush.errors import InvalidInputError
from hush.matrix_factorization import best_banded, prefix_sums
from hush.methods.config import PlanConfig

BANDS = (1, 2, 4, 8, 16, 32, 64, 128)
USUAL = 8  # bands if no ε is given


def best_bands(setting: PlanConfig) -> int:
    """The number of bands with the smallest expected error at the setting's ε; 8 where no ε is given."""
    possible = possible_bands(setting)
    epsilon = setting.epsilon
    if epsilon is None:
        return max(w for w in possible if w <= USUAL)
    return min(possible, key=lambda w: _error(setting, epsilon, w))


def cyclic_rate(setting: PlanConfig, bands: int) -> float:
    """q in a group: L·w/N, so that the expected batch is L."""
    rate = setting.batch_size * bands / setting.examples
    if rate > 1:
        most = setting.examples // setting.batch_size
        raise InvalidInputError(f"{bands} bands need groups of at least a batch: at most {most} bands fit this setting")
    return rate


def epochs(setting: PlanConfig) -> int:
    """How often an example takes part in fixed batches: ⌈T/b⌉."""
    return -(-setting.total_steps // setting.per_epoch)


def possible_bands(setting: PlanConfig) -> list[int]:
    """Powers of two for which a group holds at least a batch and there is a step for every group."""
    most = min(setting.examples // setting.batch_size, setting.total_steps)
    return [w for w in BANDS if w <= most]


def _error(setting: PlanConfig, epsilon: float, bands: int) -> float:
    structure = best_banded(prefix_sums(setting.listed_steps), bands)
    rate, visits = cyclic_rate(setting, bands), -(-setting.total_steps // bands)

    def event(sigma: float) -> Any:
        return dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma)), visits
        )

    accountant = accounting.default_accountant(event(1.0))
    sigma = calibration.smallest_sigma(event, epsilon, setting.delta, accountant=accountant)
    return sigma * structure.single() * structure.rmse()
