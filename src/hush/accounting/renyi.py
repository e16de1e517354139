"""Rényi accounting by dp-accounting, with two unsound cases corrected.

ε = min over α of ε(α) − [ln(δ(α−1)) − α ln(1 − 1/α)]/(α − 1) (Canonne, Kamath and Steinke 2020, with the divergences of
Mironov 2017, Mironov, Talwar and Zhang 2019, Wang, Balle and Kasiviswanathan 2019, Papernot and Steinke 2022).
dp-accounting returns ε = 0 if rounding makes a divergence negative, and does not recognise events with integers inside
a sample. Here every divergence gets a slack larger than its rounding, and events are converted to floats.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from numpy.typing import NDArray

from hush.accounting.events import CountedEvents, find_leaves, name_event, rebuild
from hush.errors import InvalidInputError, NotProvenError

RELATIONS = {
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace": NeighboringRelation.REPLACE_ONE,
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
}
SLACK = 1e-13  # added to every divergence, each step


def find_epsilon(parts: CountedEvents, delta: float, adjacency: str, orders: tuple[float, ...] | None) -> float:
    """ε at δ, the best over the orders."""
    alphas, divergences = _divergences(parts, adjacency, orders)
    return max(float(rdp_privacy_accountant.compute_epsilon(alphas, divergences, delta)[0]), 0.0)


def find_delta(parts: CountedEvents, epsilon: float, adjacency: str, orders: tuple[float, ...] | None) -> float:
    """δ at ε, the best over the orders."""
    alphas, divergences = _divergences(parts, adjacency, orders)
    return float(rdp_privacy_accountant.compute_delta(alphas, divergences, epsilon)[0])


def divergences(event: Any, adjacency: str, orders: tuple[float, ...] | None = None) -> dict[float, float]:
    """The Rényi divergences by order; raises if dp-accounting has none. The δ₂ of finite precision is not in them."""
    parts = find_leaves(event)
    for leaf, _ in parts.others:
        check_leaf(leaf, adjacency)
    if parts.mu == math.inf:
        return dict.fromkeys(orders or rdp_privacy_accountant.DEFAULT_RDP_ORDERS, math.inf)
    alphas, found = _divergences(parts, adjacency, orders)
    return dict(zip(alphas.tolist(), found.tolist(), strict=True))


def check_leaf(leaf: Any, adjacency: str) -> None:
    """Raise on a leaf that dp-accounting's RDP cannot account for under this adjacency."""
    name = name_event(leaf)
    match leaf:
        case dp_event.PoissonSampledDpEvent() if adjacency == "replace":
            raise NotProvenError(
                f"the rdp accountant has no bound for {name} under replace: use accountant 'pld', or add-remove"
            )
        case dp_event.SampledWithoutReplacementDpEvent() if adjacency != "replace":
            raise NotProvenError(
                f"{name} keeps the number of examples fixed: account for it under replace, not {adjacency}"
            )
    accountant = RdpAccountant(neighboring_relation=RELATIONS[adjacency])
    if not accountant.supports(leaf):
        raise NotProvenError(
            f"the rdp accountant cannot account for {name} under {adjacency} adjacency: use accountant 'pld'"
        )


def _divergences(parts: CountedEvents, adjacency: str, orders: tuple[float, ...] | None) -> tuple[Any, Any]:
    alphas = np.asarray(rdp_privacy_accountant.DEFAULT_RDP_ORDERS if orders is None else orders, dtype=np.float64)
    if alphas.ndim != 1 or alphas.size == 0 or not np.all(np.isfinite(alphas)) or float(alphas.min()) <= 1:
        raise InvalidInputError(f"Rényi orders must be finite numbers above 1, got {orders!r}")
    try:
        return alphas, _compute_cached(parts, adjacency, tuple(alphas.tolist()))
    except TypeError:  # an event that holds a list cannot be hashed
        return alphas, _compute(parts, adjacency, tuple(alphas.tolist()))


def _compute(parts: CountedEvents, adjacency: str, alphas: tuple[float, ...]) -> NDArray[np.float64]:
    for leaf, _ in parts.others:
        if isinstance(leaf, dp_event.RepeatAndSelectDpEvent):
            _check_selection(leaf, adjacency, alphas)
    accountant = RdpAccountant(alphas, RELATIONS[adjacency])
    with _quiet():
        accountant.compose(rebuild(parts.ideal))
    steps = sum(count for _, count in parts.others) + 1
    divergences = np.asarray(accountant.rdp, dtype=np.float64)
    # densities that are off by a factor of at most eᵃ on both sides: ∫P̃^α Q̃^(1−α) ≤ e^(a(2α−1)) ∫P^α Q^(1−α)
    orders = np.asarray(alphas)
    imprecise = parts.log_ratio * (2 * orders - 1) / (orders - 1)
    known = np.where(np.isnan(divergences), np.inf, np.maximum(divergences, 0.0))
    return np.asarray(known + SLACK * steps + imprecise)


_compute_cached = lru_cache(maxsize=1024)(_compute)


def _check_selection(leaf: Any, adjacency: str, alphas: tuple[float, ...]) -> None:
    """Raise on a divergence at or below rounding, which dp-accounting's selection takes for no privacy loss."""
    inner = RdpAccountant(alphas, RELATIONS[adjacency])
    with _quiet():
        inner.compose(leaf.event)
    steps = sum(count for _, count in find_leaves(leaf.event).others) + 1
    if float(np.min(inner.rdp)) <= 1e3 * SLACK * steps:
        raise NotProvenError(
            f"the privacy loss of {name_event(leaf.event)} is too small to compute the cost of a selection"
        )
    if not (leaf.mean >= 1 and leaf.shape >= 0 and not math.isnan(leaf.shape)):
        raise InvalidInputError(
            f"a selection needs a mean of at least 1 and a shape of at least 0, got {name_event(leaf)}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence dp-accounting's warnings about orders at which its series does not converge; these are not used."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
