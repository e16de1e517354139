"""The weights before the published layer give a record away; those before released rows do not move.

The canary is one record with a pixel that is zero in every other one. Without it the first layer's weights of that
pixel never move. The attacker knows all other records, the initial weights and the released model, and says "there"
if the weights moved by more than a threshold that is fixed beforehand. Of (ε, δ)-privacy follows TPR ≤ e^ε·FPR + δ, so
what is counted refutes every ε below ln((TPR − δ)/FPR), with Clopper and Pearson's bounds of both at 99.99 %.
"""

from __future__ import annotations

import math

import torch
from networks import data, losses, network, plan
from scipy import stats

from hush.training import take_steps

RUNS, DELTA, DOUBT = 60, 1e-5, 1e-4
PIXEL, CANARY = 0, 11


def released_weights(method: str, *, there: bool, number: int, sigma: float) -> torch.Tensor:
    """How far the weights of the canary's pixel are from where they began, in a model that was released."""
    features, labels = data()
    features[:, PIXEL] = 0.0
    features[CANARY] = 0.0
    if there:
        features[CANARY, PIXEL] = 0.1
    model = network(method)
    before = model[0].weight.detach()[:, PIXEL].clone()
    p = plan(method, noise_multiplier=sigma, steps=5, delta=DELTA)
    run = p.start(model, losses, (features, labels), secret=2 * number + there)
    for _ in take_steps(run):
        pass
    return model[0].weight.detach()[:, PIXEL] - before


def refuted_epsilon(method: str, threshold: float, sigma: float, runs: int = RUNS) -> float:
    """Every ε below this one is refuted with 99.99 % confidence; −∞ where the attack shows nothing."""
    says = {True: 0, False: 0}
    for there in says:
        shifts = [released_weights(method, there=there, number=k, sigma=sigma) for k in range(runs)]
        says[there] = sum(float(shift.norm()) > threshold for shift in shifts)
    least = stats.beta.ppf(DOUBT / 2, says[True], runs - says[True] + 1) if says[True] else 0.0
    most = stats.beta.ppf(1 - DOUBT / 2, says[False] + 1, runs - says[False]) if says[False] < runs else 1.0
    return math.log((least - DELTA) / most) if least > DELTA else -math.inf


def test_the_published_layer_gives_a_record_away() -> None:
    sigma = 8.0
    (claim,) = plan("sanitize", noise_multiplier=sigma, steps=5, delta=DELTA).claims()
    assert claim.epsilon < 0.6
    assert refuted_epsilon("sanitize", 0.0, sigma) > 1.5 > 2 * claim.epsilon


def test_frozen_layers_give_nothing_away() -> None:
    once = "sanitize-once"
    moved = [released_weights(once, there=there, number=k, sigma=8.0) for there in (True, False) for k in range(3)]
    assert all(torch.equal(shift, torch.zeros_like(shift)) for shift in moved)
    assert refuted_epsilon(once, 0.0, 8.0, 10) == -math.inf  # a single "there" would make it finite
