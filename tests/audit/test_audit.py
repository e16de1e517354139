"""Audits of plans: user-defined plans, faulty plans that must be refuted, and the file of findings."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from faulty_plans import (
    CalledPoisson,
    LoudCounts,
    Mapped,
    OneLayerUnclipped,
    RealLength,
    Reused,
    Scaled,
    SecretOrder,
    add_float32_noise,
    halve_noise,
    make_crowded_setup,
)
from hush.accounting.guarantee import AuditFinding, Guarantee
from hush.accounting.selection import Trials, fixed_grid, price
from hush.audit.adversaries import (
    Adversary,
    AuditGame,
    Difference,
    FixedPlaces,
    HiddenState,
    LowBits,
    WhiteBox,
    measure_loss,
)
from hush.audit.audit import Scores, add_findings, audit_claims, judge_claim, make_audit_plan, make_audit_setup
from hush.audit.bounds import Verdict
from hush.audit.canary import CanarySetup, make_digits_setup
from hush.audit.one_run import Guesses, bound_epsilon_of
from hush.errors import InvalidInputError
from hush.matrix_factorization.workloads import distances, prefix_sums
from hush.randomness import Secret, normal
from hush.tuning import Choice, select_best


def _losses(model: nn.Module, content: Any) -> Tensor:
    inputs, labels = content
    return nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def test_a_plan_of_ones_own() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0, sampling="same-order")
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    (verdict,) = hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, runs=8, seed=3)
    assert (verdict.runs, verdict.adversary, verdict.status, verdict.verdict) == (
        8,
        "white-box",
        "proven",
        "consistent",
    )
    assert verdict.claimed_epsilon == plan.guarantee().epsilon


def test_what_cannot_be_audited_is_refused() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0, sampling="same-order")
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(hush.NotProvenError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, adversaries=[HiddenState()], runs=8)
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, tuple(column[:4] for column in data), runs=8)


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace"])
def test_one_run_with_many_canaries(adjacency: str) -> None:
    """At ε = 4 the fit is about 4; with a twentieth of the noise all 40 guesses are right."""
    sampling = "same-order" if adjacency != "add-remove" else "poisson"
    plan = hush.make_plan(
        "dp-sgd", examples=208, batch_size=208, steps=2, epsilon=4.0, sampling=sampling, adjacency=adjacency
    )
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    (found,) = hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=200, seed=3)
    assert (found.runs, found.canaries, found.verdict) == (1, 200, "consistent")
    assert found.claimed_epsilon == plan.guarantee().epsilon
    assert 1.5 < found.epsilon_estimate < 8  # 200 scores about ε = 4
    bare = dataclasses.replace(plan, noise=Scaled(plan.noise, 0.05))
    (seen,) = hush.audit_plan(bare, nn.Linear(3, 2), _losses, data, canaries=200, seed=3)
    assert seen.epsilon_lower == bound_epsilon_of(Guesses(200, 40, 40), plan.delta, 0.95)


def test_one_run_needs_room_for_its_canaries() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=1, epsilon=4.0)
    data = torch.randn(8, 3), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(hush.InvalidInputError, match="20"):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=20)
    with pytest.raises(hush.InvalidInputError):
        hush.audit_plan(plan, nn.Linear(3, 2), _losses, data, canaries=4, adversaries=[HiddenState()])


# The findings file: refuted claims only, in the format that Guarantee reads.


REFUTED = Verdict("dp-x", "claimed", 1.0, 1e-5, 2.5, "refuted", "white-box", 1e-9, 1, 100)


def test_only_refuted_claims_are_found_and_earlier_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    add_findings(path, [REFUTED, replace(REFUTED, status="proven", verdict="consistent")])
    add_findings(path, [replace(REFUTED, method="dp-y"), replace(REFUTED, epsilon_lower=1.5)])
    found = [AuditFinding(**entry) for entry in json.loads(path.read_text())]
    assert [(f.method, f.status, f.epsilon_lower) for f in found] == [
        ("dp-x", "claimed", 2.5),
        ("dp-y", "claimed", 2.5),
    ]
    add_findings(path, [replace(REFUTED, epsilon_lower=3.0)])
    assert json.loads(path.read_text())[0]["epsilon_lower"] == 3.0


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    path.write_text('{"a": 1}')
    with pytest.raises(InvalidInputError):
        add_findings(path, [REFUTED])
    assert path.read_text() == '{"a": 1}'


# Faults planted in real plans must be refuted; the same plan without the fault must be consistent. The audit does not
# know which one it is given.


# Runs, of which a quarter chooses the threshold. Where nothing overlaps 26 + 26 that count are needed at ε = 4. Half
# the noise at ε = 10 (600 runs) and the fixed partition (400): simulated scores were refuted in all of 600 trials
# and more; λ-noise: in 0.9 of them with 200 runs, of which there are 300 here.
SEPARATED = 80
OVERLAPPING = 600


def _whole(steps: int = 1, **more: object) -> hush.Plan:
    """All examples in every step: one Gaussian at ε = 4."""
    given = {"examples": 32, "batch_size": 32, "steps": steps, "epsilon": 4.0, "sampling": "same-order"}
    return hush.make_plan("dp-sgd", **{**given, **more})


def _audit(
    plan: hush.Plan, adversary: Adversary, runs: int, setup: CanarySetup | None = None, claim: int = -1, seed: int = 101
) -> Verdict:
    return audit_claims(plan, setup or make_digits_setup(), adversary=adversary, runs=runs, seed=seed).verdicts[claim]


def test_half_the_noise() -> None:
    plan = _whole(epsilon=10.0)
    assert _audit(plan, WhiteBox(), OVERLAPPING).verdict == "consistent"
    found = _audit(halve_noise(plan), WhiteBox(), OVERLAPPING)
    assert found.verdict == "refuted"
    assert found.epsilon_estimate > 15


def test_clipping_left_out_for_one_layer() -> None:
    plan = _whole()
    assert _audit(plan, WhiteBox(), SEPARATED).verdict == "consistent"
    assert _audit(dataclasses.replace(plan, query=OneLayerUnclipped()), WhiteBox(), SEPARATED).verdict == "refuted"


def test_lambda_noise_that_is_too_small_by_the_root_of_the_steps() -> None:
    """What a public benchmark injects: differences of Λ A C⁻¹ Z in the place of C⁻¹ Z. The last step gets the noise
    that all others lack, and a reader of the first eight does not wait for it."""
    plan, reader = (
        hush.make_plan("dp-matrix-me-lambda", examples=32, batch_size=32, steps=16, epsilon=4.0),
        WhiteBox(read=8),
    )
    work = prefix_sums(16).matrix()
    rows = np.linalg.inv(work) @ distances(16, 16) @ work @ plan.noise.structure.noise_map()
    assert _audit(plan, reader, 160).verdict == "consistent"
    assert _audit(dataclasses.replace(plan, noise=Mapped(plan.noise, 1.0, rows)), reader, 300).verdict == "refuted"


def test_poisson_accounting_of_a_fixed_partition() -> None:
    """Batches in the order of the data, of which the canary's comes first: at ε = 4 by coins of 1/128."""
    plan, reader = (
        hush.make_plan("dp-sgd", examples=128, batch_size=1, steps=128, epsilon=4.0),
        FixedPlaces(place=0, read=1),
    )
    assert _audit(plan, reader, 400).verdict == "consistent"
    twin = dataclasses.replace(plan, sampler=CalledPoisson(128, 1, 128))
    assert _audit(twin, reader, 400).verdict == "refuted"


def test_a_fixed_partition_in_a_secret_order_is_found_where_there_is_little_noise() -> None:
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=1, steps=40, epsilon=8.0)
    quiet = dataclasses.replace(plan, sampler=SecretOrder(8, 1, 40), noise=Scaled(plan.noise, 0.1))
    scores = audit_claims(quiet, make_digits_setup(), adversary=FixedPlaces(), runs=20, seed=101).scores
    assert scores.inside.min() > scores.outside.max()


@pytest.mark.skipif("HUSH_LONG" not in os.environ, reason="takes minutes: HUSH_LONG=1 runs it")
def test_poisson_accounting_of_a_fixed_partition_in_a_secret_order() -> None:
    """32 batches, ten epochs, and nobody knows the place: the likelihood is averaged over all of them."""
    plan = hush.make_plan("dp-sgd", examples=32, batch_size=1, steps=320, epsilon=8.0)
    twin = dataclasses.replace(plan, sampler=SecretOrder(32, 1, 320))
    assert _audit(plan, FixedPlaces(), 40).verdict == "consistent"
    assert _audit(twin, FixedPlaces(), 240).verdict == "refuted"


def test_a_count_with_less_noise_than_was_accounted() -> None:
    """Adaptive clipping whose noise is nearly all spent on the count of unclipped examples: an adversary who reads only
    the gradient hardly sees the canary."""
    plan = hush.make_plan("dp-sgd", examples=8, batch_size=8, steps=2, epsilon=4.0, clip_quantile=0.5, count_noise=0.8)
    setup = make_audit_setup(plan)
    assert setup.alone
    held = audit_claims(plan, setup, adversary=WhiteBox(), runs=200, seed=101).verdicts[0]
    assert held.verdict == "consistent"
    assert 2.5 < held.epsilon_estimate < 6
    twin = dataclasses.replace(plan, query=LoudCounts(plan.query.query, plan.query.quantile, 0.8))
    assert _audit(twin, WhiteBox(), SEPARATED, setup).verdict == "refuted"
    blind = _audit(twin, WhiteBox(), 100, dataclasses.replace(setup, alone=False))
    assert blind.epsilon_estimate < 2.5


def test_one_noise_for_two_runs() -> None:
    plan = _whole()
    assert _audit(plan, Difference(), SEPARATED).verdict == "consistent"
    assert (
        _audit(dataclasses.replace(plan, noise=Reused(plan.noise, 1.0)), Difference(), SEPARATED).verdict == "refuted"
    )


def test_division_by_the_real_length_of_a_batch() -> None:
    """One example more makes the mean of all others smaller too: it moves by two clips and not by one."""
    plan = hush.make_plan("dp-sgd", examples=32, batch_size=32, steps=1, epsilon=10.0)
    setup = make_crowded_setup()
    assert _audit(plan, WhiteBox(), OVERLAPPING, setup).verdict == "consistent"
    twin = dataclasses.replace(plan, query=RealLength(expected=32.0))
    assert _audit(twin, WhiteBox(), OVERLAPPING, setup).verdict == "refuted"


def test_float32_noise_without_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the canary seven runs of ten release a value that is finer than its sum with the canary could be; on the
    grid no value is, whoever is there."""
    plan = _whole(steps=4)
    on_grid = audit_claims(plan, make_digits_setup(), adversary=LowBits(), runs=40, seed=101)
    assert on_grid.verdicts[0].verdict == "consistent"
    assert not on_grid.scores.inside.any()
    assert not on_grid.scores.outside.any()

    def add_in_float32(secret, stream, step, sums, scale, spacing, divisor) -> None:
        like = torch.empty(sum(total.numel() for total in sums), dtype=torch.float64)
        add_float32_noise(sums, [normal(secret, stream, step, like)], scale, spacing, divisor)

    monkeypatch.setattr("hush.noise_addition.add_normal", add_in_float32)
    assert _audit(plan, LowBits(), 300).verdict == "refuted"


def test_error_feedback_as_published() -> None:
    """A huge gradient fills the memory of DiceSGD, and comes back in every later step: its claimed ε does not hold, and
    its proven one does."""
    plan = make_audit_plan("dp-dice", 4.0, 1e-5)
    proven, claimed = audit_claims(plan, make_audit_setup(plan), runs=SEPARATED, seed=101).verdicts
    assert (proven.status, proven.verdict) == ("proven", "consistent")
    assert (claimed.status, claimed.verdict, claimed.adversary) == ("claimed", "refuted", "hidden-state")
    assert claimed.claimed_epsilon < 4


def test_the_sanitisation_layer_as_published() -> None:
    """The weights that read a pixel of the canary's own move if and only if it is there."""
    plan = make_audit_plan("sanitize", 4.0, 1e-5)
    setup = make_audit_setup(plan)
    audit = audit_claims(plan, setup, runs=SEPARATED, seed=101)
    (found,) = audit.verdicts
    assert (found.status, found.verdict, found.adversary) == ("claimed", "refuted", "feature-canary")
    assert audit.scores.outside.max() == 0 < audit.scores.inside.min()


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [("sanitize-once", 4.0), ("label-rr", 1.0)],
)
def test_released_rows_and_answers_show_what_they_may_and_no_more(method: str, epsilon: float) -> None:
    """With a quarter of the noise they show more, and the claim that is made for all of it is refuted."""
    plan = make_audit_plan(method, epsilon, 1e-5)
    found = audit_claims(plan, make_audit_setup(plan), runs=160, seed=101)
    (verdict,) = found.verdicts
    assert (verdict.adversary, verdict.verdict) == ("released-values", "consistent")
    twin = dataclasses.replace(plan, sigma=plan.sigma / 4)
    caught = audit_claims(twin, make_audit_setup(twin), runs=160, seed=101).scores
    assert judge_claim(found.claims[0], caught, "released-values").verdict == "refuted"


def test_a_fault_is_not_seen_by_an_adversary_for_another() -> None:
    """A verdict rests on the adversary: half the noise is no matter of low bits."""
    assert (
        _audit(dataclasses.replace(_whole(), noise=Scaled(_whole().noise, 0.5)), LowBits(), 40).verdict == "consistent"
    )


# The best of k private runs, reported with the winner's own ε, discloses more than that ε. Each trial is a run with
# its own secret; the adversary sees the winner's weights and learning rate, which give the winner's noisy sum along
# the canary's direction. Chosen on public rows that resemble the canary, the winner is the maximum of k noisy sums,
# whose spread is smaller than one run's. Chosen on private rows, it is that maximum only if the canary is in the
# data.


RATES = (0.9, 1.0, 1.1)
DELTA = 1e-5
Score = Callable[[AuditGame, Any, bool], float]


def _plan(lr: float, epsilon: float, trials: Trials | None = None) -> hush.Plan:
    """One step on all of four examples; by a search where there are trials."""
    given = {"examples": 4, "batch_size": 4, "steps": 1, "sampling": "same-order", "lr": lr, "delta": DELTA}
    if trials is None:
        return hush.make_plan("dp-sgd", epsilon=epsilon, **given)
    return replace(hush.make_plan("dp-sgd", noise_multiplier=1.0, **given), trials=trials).with_epsilon(epsilon)


def _games(epsilon: float, trials: Trials | None = None, noise: float = 1.0) -> dict[float, AuditGame]:
    plans = {lr: _plan(lr, epsilon, trials) for lr in RATES}
    setup = make_digits_setup()
    return {lr: AuditGame(replace(plan, noise=Scaled(plan.noise, noise)), setup) for lr, plan in plans.items()}


def _on_public_rows(game: AuditGame, model: Any, present: bool) -> float:
    """A public row that looks like the canary; its loss is what is compared."""
    return -measure_loss(game.setup, model)


def _on_private_rows(game: AuditGame, model: Any, present: bool) -> float:
    """The mean loss of the rows that were trained on."""
    return -float(game.setup.losses(model, game.setup.data(game.plan, present)).mean())


@torch.no_grad()
def _try(game: AuditGame, score: Score, secret: Secret, present: bool) -> tuple[float, Any]:
    """A trial: how good it is, and its weights."""
    model = game.run(secret, present=present).model
    return score(game, model, present), {name: value.clone() for name, value in model.state_dict().items()}


def _read_winner(setup: CanarySetup, plan: hush.Plan, lr: float, weights: Any) -> float:
    """The winner's noisy sum along the canary's direction: its weights began at zero and took one step."""
    return -float(setup.pick(weights) @ setup.components) * plan.divisor / lr


def _report_grid(games: dict[float, AuditGame], score: Score, seeds: int, secret: Secret, present: bool) -> float:
    """Every rate with so many seeds, and what the best of them shows."""
    best, found = -np.inf, 0.0
    for lr, game in games.items():
        for seed in range(seeds):
            merit, weights = _try(game, score, secret.child(f"{lr}/{seed}"), present)
            if merit > best:
                best, found = merit, _read_winner(game.setup, game.plan, lr, weights)
    return found


def _report_search(games: dict[float, AuditGame], trials: Trials, secret: Secret, present: bool) -> float:
    """What the best of a secret number of trials shows, as `hush tune` runs them; nothing where there is no trial."""
    source = iter(range(10_000))

    def run_trial(candidate: dict[str, Any]) -> tuple[float, Any]:
        return _try(games[candidate["lr"]], _on_public_rows, secret.child(f"trial {next(source)}"), present)

    winner = select_best(trials, {"lr": Choice(RATES)}, run_trial, secret)
    if winner is None:
        return -np.inf
    lr = winner.candidate["lr"]
    return _read_winner(games[lr].setup, games[lr].plan, lr, winner.made)


def _repeat(report: Callable[[Secret, bool], float], times: int) -> Scores:
    secrets = [Secret.from_seed(101, f"report {number}") for number in range(2 * times)]
    seen = [report(secret, number % 2 == 0) for number, secret in enumerate(secrets)]
    return Scores(np.array(seen[::2]), np.array(seen[1::2]))


def _judge(claim: Guarantee, scores: Scores) -> str:
    return judge_claim(claim, scores, "best of a grid").verdict


def test_chosen_on_public_rows_the_winner_shows_more_than_its_own_epsilon_and_no_more_than_all_runs_together() -> None:
    """Fifteen runs of ε = 10 each. That of all of them together is proven by composition."""
    games = _games(10.0)
    own, event = games[1.0].plan.guarantee(), games[1.0].plan.event()
    scores = _repeat(lambda secret, present: _report_grid(games, _on_public_rows, 5, secret, present), 220)
    assert _judge(own, scores) == "refuted"
    whole = price(event, fixed_grid(event, 15), DELTA, adjacency="zero-out").selection
    assert whole.epsilon > 30
    assert _judge(whole, scores) == "consistent"


def test_chosen_on_private_rows_a_few_runs_are_enough() -> None:
    games = _games(1.0)
    scores = _repeat(lambda secret, present: _report_grid(games, _on_private_rows, 5, secret, present), 80)
    assert _judge(games[1.0].plan.guarantee(), scores) == "refuted"


def test_one_run_that_was_not_chosen_shows_no_more_than_its_own_epsilon() -> None:
    games = {1.0: _games(1.0)[1.0]}
    scores = _repeat(lambda secret, present: _report_grid(games, _on_private_rows, 1, secret, present), 80)
    assert _judge(games[1.0].plan.guarantee(), scores) == "consistent"


@pytest.mark.parametrize(("noise", "verdict"), [(1.0, "consistent"), (0.01, "refuted")])
def test_a_search_shows_no_more_than_the_epsilon_that_covers_it(noise: float, verdict: str) -> None:
    """Of a geometric number of trials, four on average, at ε = 1 for all of it; with a hundredth of the noise it is
    seen."""
    trials = Trials(4.0, 1.0, ceiling=1.0)
    games = _games(1.0, trials, noise)
    claim = games[1.0].plan.guarantee()
    assert 0.99 < claim.epsilon <= 1
    assert replace(games[1.0].plan, trials=None).guarantee().epsilon < 0.5  # of the winner alone
    scores = _repeat(lambda secret, present: _report_search(games, trials, secret, present), 56)
    assert _judge(claim, scores) == verdict
