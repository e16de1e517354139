"""Methods with correlated noise: trees and matrix factorisations.

All except dp-bandmf take fixed batches in the same order every epoch (or one pass). Their noise cancels over steps,
which gains more than the amplification by sampling that they lose if ε is large. dp-bandmf has both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hush import matrix_factorization
from hush.errors import InvalidInputError
from hush.matrix_factorization import Strategy, Tree
from hush.matrix_factorization.tree import Complete, Nodes
from hush.methods import bandmf
from hush.methods.config import PlanConfig
from hush.methods.options import ClippingOptions, SGDOptions
from hush.noise import make_noise
from hush.optimizers import FTRL
from hush.plan import Plan
from hush.sampling import CyclicPoisson


def dp_ftrl(
    setting: PlanConfig,
    gradients: ClippingOptions,
    *,
    lr: float = 1.0,
    momentum: float = 0.0,
    restart: bool = False,
    complete: Complete = "none",
    honaker: bool = False,
    nodes: Nodes = "complete",
) -> Plan:
    """DP-FTRL: a binary tree of noise, follow the regularised leader (Kairouz et al. 2021).

    For data that come as a stream, where batches cannot be sampled.

    ``nodes="read"`` counts only the nodes that the estimate reads: the same training for a smaller ε than published.
    """
    tree = Tree(
        setting.listed_steps,
        restart=setting.per_epoch if restart else None,
        complete=complete,
        estimate="honaker" if honaker else "plain",
        nodes=nodes,
    )
    default = "shuffled" if restart else "same-order"
    return _plan(setting, gradients, "dp-ftrl", tree, optimizer=FTRL(lr, momentum), sampler=setting.sampler(default))


def dp_matrix_se(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions) -> Plan:
    """The optimal factorisation for one pass over the data (Denisov et al. 2022); one epoch by default.

    For fixed batches that are seen once: no other noise disturbs the model less.
    """
    setting = _one_pass(setting)
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.optimal_single(work).structure
    return _plan(setting, gradients, "dp-matrix-se", structure, optimizer=descent.optimizer)


def dp_matrix_se_lambda(
    setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, tau: int | None = None
) -> Plan:
    """One pass, optimal for distances of τ steps (Koloskova et al. 2023); the noise is still C⁻¹Z. τ = T by default.

    For one pass, where training forgets noise that is older than τ steps.
    """
    setting = _one_pass(setting)
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.optimal_single(work, tau=setting.listed_steps if tau is None else tau).structure
    return _plan(setting, gradients, "dp-matrix-se-lambda", structure, optimizer=descent.optimizer)


def dp_matrix_me(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions) -> Plan:
    """The optimal factorisation for several epochs in the same order (Choquette-Choo et al. 2023).

    For several epochs, a large ε and at most some two thousand steps.
    """
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.optimal_epochs(work, setting.per_epoch).structure
    return _plan(setting, gradients, "dp-matrix-me", structure, optimizer=descent.optimizer)


def dp_matrix_me_lambda(
    setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, tau: int | None = None
) -> Plan:
    """Several epochs, optimal for distances of τ steps; the noise is still C⁻¹Z. τ = T by default.

    For several epochs, where training forgets noise that is older than τ steps.
    """
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.optimal_epochs(
        work, setting.per_epoch, tau=setting.listed_steps if tau is None else tau
    ).structure
    return _plan(setting, gradients, "dp-matrix-me-lambda", structure, optimizer=descent.optimizer)


def dp_bandmf(
    setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, bands: int | None = None
) -> Plan:
    """Banded noise, amplified by cyclic Poisson sampling (Choquette-Choo et al. 2023); one band is DP-SGD's noise.

    For a large ε and many steps on batches that can be sampled.
    """
    if setting.sampling is not None or setting.sample_rate is not None:
        raise InvalidInputError(
            "dp-bandmf samples fixed groups in turn, at a rate that follows from batch size and bands: leave sampling "
            "and sample rate out, or use dp-sgd for plain Poisson batches"
        )
    chosen = bandmf.best_bands(setting) if bands is None else bands
    structure = matrix_factorization.best_banded(descent.workload(setting.listed_steps), chosen)
    sampler = CyclicPoisson(setting.examples, chosen, bandmf.cyclic_rate(setting, chosen), setting.listed_steps)
    return _plan(setting, gradients, "dp-bandmf", structure, optimizer=descent.optimizer, sampler=sampler)


def dp_bisr(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, bands: int = 32) -> Plan:
    """Banded inverse square root: near-optimal noise without any optimisation (Kalinin et al. 2025).

    For many steps without waiting for an optimisation.
    """
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.inverse_square_root(work, min(bands, setting.listed_steps))
    return _plan(setting, gradients, "dp-bisr", structure, optimizer=descent.optimizer)


def dp_blt(setting: PlanConfig, descent: SGDOptions, gradients: ClippingOptions, *, buffers: int | None = None) -> Plan:
    """Buffered linear Toeplitz noise: a few buffers for any number of steps (McMahan et al. 2024).

    For many steps and a large model: a few buffers of noise are all that is kept.
    """
    work = descent.workload(setting.listed_steps)
    structure = matrix_factorization.optimal_blt(
        work, buffers, times=bandmf.epochs(setting), apart=setting.per_epoch
    ).structure
    return _plan(setting, gradients, "dp-blt", structure, optimizer=descent.optimizer)


def _plan(setting: PlanConfig, gradients: ClippingOptions, method: str, structure: Strategy, **parts: Any) -> Plan:
    parts.setdefault("sampler", setting.sampler("same-order"))
    return gradients.plan(setting, method, noise=make_noise(structure), **parts)


def _one_pass(setting: PlanConfig) -> PlanConfig:
    return replace(setting, epochs=1.0) if setting.epochs is None and setting.steps is None else setting
