"""Method auto: its recommendation follows from the errors, it runs what it recommends, and shows the reason."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hush.cli import console, main
from hush.errors import InvalidInputError, NotProvenError
from hush.methods import PlanConfig, SGDOptions, choose_candidate, explain_choice, make_plan, recommend
from hush.methods.auto import MARGIN, Candidate
from hush.methods.bandmf import best_bands, possible_bands

SMALL = {"examples": 400, "batch_size": 20, "epochs": 2.0}


@pytest.fixture(scope="module")
def candidates():
    return recommend(PlanConfig(**SMALL, epsilon=4.0))


def test_the_smallest_error_comes_first_and_dp_sgd_competes(candidates) -> None:
    errors = [c.error for c in candidates]
    assert errors == sorted(errors)
    methods = {c.method for c in candidates}
    assert methods == {"dp-sgd", "dp-bandmf", "dp-ftrl", "dp-bisr", "dp-blt", "dp-matrix-me"}
    assert sum(c.method == "dp-bandmf" for c in candidates) == len(possible_bands(PlanConfig(**SMALL))) - 1


def test_every_figure_is_that_of_a_plan_that_can_be_run(candidates) -> None:
    """σ · sens · ‖AM‖_F/√T, from the matrices themselves."""
    A = np.tril(np.ones((40, 40)))
    for candidate in candidates:
        plan = make_plan(candidate.method, **SMALL, epsilon=4.0, **candidate.options)
        assert plan.guarantee().epsilon <= 4.0
        assert plan.sigma == candidate.sigma
        M = np.eye(40) if candidate.method == "dp-sgd" else plan.noise.structure.noise_map()
        error = plan.noise_std * np.linalg.norm(A @ M) / math.sqrt(40)
        assert candidate.error == pytest.approx(error, rel=1e-6)


LOOSE = {"examples": 400, "batch_size": 10, "epochs": 1.0, "epsilon": 20.0}


def test_auto_is_the_best_candidate() -> None:
    best = recommend(PlanConfig(**LOOSE))[0]
    plan = make_plan("auto", **LOOSE, lr=0.125, clip=0.5)
    assert best.method == plan.method == "dp-matrix-se"
    assert plan.sigma == best.sigma
    assert plan.optimizer.lr == 0.125
    assert plan.query.channels["gradient"].bound == 0.5
    named = make_plan(plan.method, **LOOSE, lr=0.125, clip=0.5, **best.options)
    assert plan.fingerprint() == named.fingerprint()


def test_dp_sgd_is_left_only_for_a_clear_gain(candidates) -> None:
    """180 steps on digits at ε = 3: dp-matrix-me leaves 1.08 times less noise and is 10 points worse."""
    assert candidates[0].method != "dp-sgd"
    assert choose_candidate(candidates).method == "dp-sgd"
    assert make_plan("auto", **SMALL, epsilon=4.0).method == "dp-sgd"
    for gain, wanted in ((MARGIN * 1.01, "dp-blt"), (MARGIN * 0.99, "dp-sgd"), (0.5, "dp-sgd")):
        pair = Candidate("dp-blt", 1.0, 1.0, 1.0, "same-order"), Candidate("dp-sgd", gain, 1.0, 1.0, "poisson")
        ordered = tuple(sorted(pair, key=lambda c: c.error))
        assert choose_candidate(ordered).method == wanted
        assert explain_choice(ordered).startswith(f"chose {wanted}: ")


def test_one_pass_with_little_privacy_wants_correlation_and_much_privacy_wants_sampling() -> None:
    public = {"examples": 10_000, "batch_size": 100, "epochs": 1.0}
    loose = recommend(PlanConfig(**public, epsilon=100.0))
    strict = recommend(PlanConfig(**public, epsilon=0.1))
    ranks = [[c.method for c in found].index("dp-sgd") / len(found) for found in (loose, strict)]
    assert loose[0].method == "dp-matrix-se"
    assert ranks[1] < ranks[0]
    gains = [next(c for c in found if c.method == "dp-sgd").error / found[0].error for found in (loose, strict)]
    assert gains[0] > 2 * gains[1]


def test_momentum_changes_what_the_model_sees() -> None:
    plain, heavy = (recommend(PlanConfig(**SMALL, epsilon=4.0), SGDOptions(momentum=m))[0] for m in (0.0, 0.9))
    assert heavy.error > 2 * plain.error
    assert make_plan("auto", **SMALL, epsilon=4.0, momentum=0.9).optimizer.momentum == 0.9


def test_weight_decay_leaves_out_what_cannot_have_it() -> None:
    assert "dp-ftrl" not in {
        c.method for c in recommend(PlanConfig(**SMALL, epsilon=4.0), SGDOptions(weight_decay=0.1))
    }


def test_only_what_is_proven_for_the_adjacency_is_a_candidate() -> None:
    found = recommend(PlanConfig(**SMALL, epsilon=4.0, adjacency="add-remove"))
    assert [c.method for c in found] == ["dp-sgd"]
    assert explain_choice(found) == "chose dp-sgd: no other candidate fits this setting."
    assert "dp-bandmf" not in {c.method for c in recommend(PlanConfig(**SMALL, epsilon=4.0, adjacency="replace"))}
    assert {c.method for c in recommend(PlanConfig(**SMALL, epsilon=4.0, accountant="gdp"))} >= {"dp-blt", "dp-ftrl"}


def test_what_is_chosen_can_be_made_with_the_same_clipping() -> None:
    """An adaptive clip has no proof with correlated noise, so that only dp-sgd is left."""
    plan = make_plan("auto", **LOOSE, clip_quantile=0.5)
    assert plan.method == "dp-sgd"
    assert make_plan("auto", **LOOSE, clip_quantile=0.5, clip_mode="normalised").method != "dp-sgd"
    with pytest.raises(InvalidInputError, match="dp-sgd's"):
        make_plan("auto", **LOOSE, noise_end=0.5)


def test_what_fits_nothing_is_refused() -> None:
    with pytest.raises(NotProvenError):
        recommend(PlanConfig(**SMALL, epsilon=4.0, adjacency="add-remove", accountant="gdp"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"noise_multiplier": 1.0}, "compares methods at the same ε"),
        ({"epsilon": 4.0, "sampling": "poisson"}, "chooses the sampling"),
        ({"epsilon": 4.0, "sample_rate": 0.1}, "chooses the sampling"),
        ({"epsilon": -1.0}, "epsilon must be above zero"),
        ({"epsilon": 4.0, "bands": 3}, "has no option 'bands'"),
        ({"epsilon": 4.0, "lr": 0.0}, "lr must be above zero"),
    ],
)
def test_bad_input(changes, sentence) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        make_plan("auto", **SMALL, **changes)


def test_best_bands_have_the_smallest_error_of_all_bands(candidates) -> None:
    best = next(c for c in candidates if c.method == "dp-bandmf")
    assert best_bands(PlanConfig(**SMALL, epsilon=4.0)) == best.options["bands"]
    assert best_bands(PlanConfig(**SMALL)) == 8


def test_tell_hears_every_candidate() -> None:
    heard: list[str] = []
    found = recommend(PlanConfig(**SMALL, epsilon=3.75), notify=heard.append)
    assert len(heard) == len(found)
    assert {"dp-sgd", "dp-bandmf, bands=2", "dp-blt"} <= set(heard)


def test_the_reason(candidates) -> None:
    found = recommend(PlanConfig(**LOOSE))
    plain = next(c for c in found if c.method == "dp-sgd")
    assert explain_choice(found).startswith(f"chose dp-matrix-se: of {len(found)} candidates")
    assert f"{plain.error / found[0].error:.3g} times less than dp-sgd." in explain_choice(found)
    assert explain_choice(candidates).startswith(
        f"chose dp-sgd: the best of {len(candidates)} candidates, {candidates[0].name}"
    )


SHELL = ("--method", "auto", "--epsilon", "4", "--batch-size", "20", "--epochs", "2")


def test_account_shows_the_candidates(capsys, candidates) -> None:
    assert main(["account", "--examples", "400", *SHELL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == choose_candidate(candidates).method
    assert found["epsilon"] <= 4
    assert [c["expected_error"] for c in found["candidates"]] == [c.error for c in candidates]
    assert {"method", "options", "sampling", "noise_multiplier", "sensitivity", "rmse"} <= set(found["candidates"][0])
    assert main(["account", "--examples", "400", *SHELL]) == 0
    said = capsys.readouterr().out
    assert explain_choice(candidates) in said
    assert all(c.method in said for c in candidates)
    assert main(["account", "--examples", "400", "--epsilon", "4", "--json"]) == 0
    assert "candidates" not in json.loads(capsys.readouterr().out)


def test_train_says_what_was_chosen_and_why(capsys) -> None:
    assert main(["train", "--problem", "breast-cancer-logistic", *SHELL, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["method"] in {c["method"] for c in found["candidates"]}
    assert found["status"] == "proven"
    assert captured.err.count("chose ") == 1
    assert f"chose {found['method']}" in captured.err


def test_long_work_is_told_and_short_work_is_not(capsys) -> None:
    patience = console.DelayedStatus("comparing methods")
    patience.update("dp-sgd")
    assert capsys.readouterr().err == ""
    patience.remind()
    patience.update("dp-blt")
    assert capsys.readouterr().err.splitlines() == ["comparing methods: dp-sgd …", "comparing methods: dp-blt …"]
