"""label-rr: its training data, cost, disclosure and resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from hush.checkpointing import Checkpoints
from hush.data_source import as_source
from hush.datasets.catalogue import load
from hush.datasets.evaluation import evaluate_problem
from hush.datasets.problem import cross_entropy
from hush.errors import BudgetExceededError, InvalidInputError, NotProvenError, ResumeError
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import Secret, seeded
from hush.run import Run
from hush.sanitize.labels import (
    VALUES,
    LabelAnswers,
    ResponseTable,
    bound_growth,
    check_prior,
    choose_sizes,
    dominating_pair,
    draw_integers,
    find_largest_ratio,
    respond,
)
from hush.training import take_steps

N, FEATURES, CLASSES = 120, 5, 4


def _data(seed: int = 0) -> tuple[Tensor, Tensor]:
    with seeded(seed):
        return torch.randn(N, FEATURES), torch.randint(0, CLASSES, (N,))


def _model() -> nn.Module:
    with seeded(1):
        return nn.Sequential(nn.Linear(FEATURES, CLASSES))


def _plan(**options: Any) -> Plan:
    given = {"examples": N, "batch_size": 30, "steps": 8, "epsilon": 1.0, "delta": 1e-5, "lr": 0.1} | options
    return make_plan("label-rr", **given)


def _start(plan: Plan, data: tuple[Tensor, Tensor], secret: Secret | int = 5) -> Run:
    return plan.start(_model(), cross_entropy, data, secret=secret)


def _draw(run: Run) -> Tensor:
    """The answers that a run draws."""
    return run.draw_data()["labels"]


def _weights(run: Run) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 1.0), (0.25, 4.0), (10.0, 0.1)])
def test_epsilon_is_one_over_sigma_for_labels_under_replace(sigma: float, epsilon: float) -> None:
    """At δ = 1e-5 binary randomised response gives back ln(e^ε − δ(1 + e^ε)), a little less than its pure ε."""
    found = make_plan("label-rr", examples=N, batch_size=30, steps=3, noise_multiplier=sigma).guarantee()
    exact = math.log(math.exp(epsilon) - 1e-5 * (1 + math.exp(epsilon)))
    assert exact <= found.epsilon <= epsilon * 1.001
    assert (found.status, found.protects, found.adjacency) == ("proven", "labels", "replace")
    assert "the label of one example changing" in found.sentence()


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 8.0, 30.0])
def test_the_event_is_binary_randomised_response_at_epsilon(epsilon: float) -> None:
    p = dominating_pair(epsilon).noise_parameter
    assert math.log((2 - p) / p) == pytest.approx(epsilon, rel=1e-9)


def test_the_cost_does_not_grow_with_steps() -> None:
    short, long = (_plan(steps=steps, epsilon=None, noise_multiplier=0.5) for steps in (2, 400))
    assert short.guarantee().epsilon == long.guarantee().epsilon


def test_calibration_lands_below_what_was_asked() -> None:
    assert 0.999 < _plan(epsilon=1.0).guarantee().epsilon <= 1.0


def test_training_sees_answers_and_no_label() -> None:
    """The answers are kept with e^ε/(e^ε + 3) of the labels, and other labels with the same answers change nothing."""
    features, labels = torch.randn(20_000, FEATURES), torch.randint(0, CLASSES, (20_000,))
    plan = make_plan("label-rr", examples=20_000, batch_size=100, steps=1, noise_multiplier=0.5)
    run = plan.start(_model(), cross_entropy, (features, labels), secret=3)
    kept = int((_draw(run) == labels).sum())
    chance = math.exp(2) / (math.exp(2) + 3)
    assert stats.binomtest(kept, 20_000, chance).pvalue > 1e-4
    assert stats.binomtest(kept, 20_000, math.exp(2.2) / (math.exp(2.2) + 3)).pvalue < 1e-4  # the twin
    content = run._summing._source.take(torch.arange(10))
    assert torch.equal(content[-1], _draw(run)[:10])


def test_the_gradient_is_that_of_the_answers() -> None:
    data = _data()
    run = _start(_plan(steps=1, batch_size=N), data)
    answers = _draw(run)
    params = list(run.model.parameters())
    expected = torch.autograd.grad(cross_entropy(run.model, (data[0], answers)).sum(), params)
    sums = run._sum(run.batch(0))[1]["gradient"]
    for found, wanted in zip(sums.values(), expected, strict=True):
        assert torch.allclose(found.double(), wanted.double(), atol=1e-4)


def _changed(labels: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, (labels + 1) % CLASSES, labels)


def test_a_label_changes_its_own_answer_only() -> None:
    features, labels = _data()
    where = torch.arange(N) == 7
    one, other = (_draw(_start(_plan(), (features, each))) for each in (labels, _changed(labels, where)))
    assert torch.equal(one[~where], other[~where])
    drawn = [
        _draw(_start(_plan(), (features, each), secret=seed))[7]
        for seed in range(5)
        for each in (labels, _changed(labels, where))
    ]
    assert len({int(answer) for answer in drawn}) > 1


def test_two_stages_are_two_releases_on_disjoint_rows() -> None:
    """The recipe of docs/sanitize.md: a prior of each record, by a model that knows answers of other records only."""
    features, labels = _data()
    priors = np.zeros((N, CLASSES))
    priors[:, 2] = 1.0  # a model that is sure of class 2
    priors[0] = 1 / CLASSES
    found = LabelAnswers(as_source((features, labels)), 1.0, priors).draw(Secret(bytes(range(32))))["labels"]
    assert set(found[1:].tolist()) == {2}
    uniform = LabelAnswers(as_source((features, labels)), 1.0, np.full(CLASSES, 1 / CLASSES))
    assert found[0] == uniform.draw(Secret(bytes(range(32))))["labels"][0]


def test_a_public_prior_narrows_the_answers() -> None:
    run = _start(_plan(prior=[0.5, 0.5, 0.0, 0.0]), _data())
    assert set(_draw(run).tolist()) == {0, 1}
    assert any("prior of the classes" in text for text in run.guarantee.assumptions)


def _reveal(secret: Secret, label: int, sigma: float) -> bool:
    """The attack: the canary alone has feature 0, so that the weights of that feature show which label its answer was
    trained as. It says "label 1" where they moved towards class 1."""
    features, labels = torch.zeros(4, 2), torch.tensor([label, 0, 0, 0])
    features[0, 0] = features[1:, 1] = 1.0
    first = nn.Linear(2, 2)
    nn.init.zeros_(first.weight)
    model = nn.Sequential(first)
    plan = make_plan("label-rr", examples=4, batch_size=4, steps=1, noise_multiplier=sigma)
    run = plan.start(model, cross_entropy, (features, labels), secret=secret)
    list(take_steps(run))
    weight = run.model.get_parameter("0.weight")
    return bool(weight[1, 0] > weight[0, 0])


def test_what_is_told_from_the_weights_stays_within_epsilon() -> None:
    """The lower end of a 99.9 % interval on ln(true positives/false positives) is at most ε = 1 and, so that it could
    be above it, above 1 where the plan has ε = 3."""
    found = {}
    for sigma in (1.0, 1 / 3):
        hits = [
            [_reveal(Secret.from_seed(i, f"{label} {sigma}"), label, sigma) for i in range(250)] for label in (1, 0)
        ]
        true, false = (stats.binomtest(sum(each), 250).proportion_ci(0.998, "exact") for each in hits)
        found[sigma] = math.log(true.low / false.high)
    assert 0 < found[1.0] <= 1.0
    assert found[1 / 3] > 1.0


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path, stop: int) -> None:
    plan = _plan(steps=8)
    whole = _start(plan, _data())
    list(take_steps(whole))
    first = _start(plan, _data())
    kept = Checkpoints(tmp_path / "private")
    kept.begin(first)
    for batch in first.batches():
        first.step(batch)
        if first.next == stop:
            kept.save(first)
            break
    kept.close()
    second = plan.start(_model(), cross_entropy, _data())  # whose secret is another one, until it is restored
    kept = Checkpoints(tmp_path / "private")
    saved = kept.newest().saved
    assert saved is not None
    kept.restore(second, saved)
    list(take_steps(second, checkpoints=kept))
    kept.close()
    assert torch.equal(_weights(second), _weights(whole))
    assert second.guarantee.epsilon == whole.guarantee.epsilon


def test_the_same_coins_never_meet_other_labels(tmp_path: Path) -> None:
    plan, (features, labels) = _plan(), _data()
    run = _start(plan, (features, labels))
    kept = Checkpoints(tmp_path / "private")
    kept.begin(run)
    kept.close()
    other = _start(plan, (features, _changed(labels, torch.arange(N) == 7)))
    kept = Checkpoints(tmp_path / "private")
    saved = kept.newest().saved
    assert saved is not None
    with pytest.raises(ResumeError):
        kept.restore(other, saved)
    kept.close()
    once = Checkpoints(tmp_path / "private")  # and a new run there with the same secret
    run = _start(plan, (features, labels))
    once.begin(run)
    run.step(run.batch(0))
    once.close()
    twice = Checkpoints(tmp_path / "private")
    other = _start(plan, (features, _changed(labels, torch.arange(N) == 7)))
    twice.begin(other)
    with pytest.raises(ResumeError):
        other.step(other.batch(0))
    twice.close()


def test_nothing_is_answered_before_a_ledger_covers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[str] = []

    def watch(labels: Any, epsilon: float, priors: Any, draws: Any) -> Any:
        answered.append("answered")
        return respond(labels, epsilon, priors, draws)

    monkeypatch.setattr("hush.sanitize.labels.respond", watch)
    run = _start(_plan(), _data())

    def refuse() -> None:
        raise BudgetExceededError("nothing is left")

    run.charged_by(refuse)
    with pytest.raises(BudgetExceededError):
        run.step(run.batch(0))
    assert answered == []
    run.charged_by(lambda: None)
    run.step(run.batch(0))
    assert answered == ["answered"]


def _start_with(model: nn.Module, data: Any, **options: Any) -> Callable[[], Run]:
    return lambda: _plan(**options).start(model, cross_entropy, data, secret=1)


@pytest.mark.parametrize(
    ("bad", "error", "sentence"),
    [
        (lambda: _plan(adjacency="zero-out"), NotProvenError, "compared under 'replace', not 'zero-out'"),
        (
            _start_with(_model(), (*_data(), torch.zeros(N))),
            InvalidInputError,
            "3 parts: the last alone would be taken for",
        ),
        (lambda: _plan(prior=[1.0]), InvalidInputError, "one number of at least 0 for each class"),
        (
            _start_with(_model(), _data(), prior=[0.5, 0.5]),
            InvalidInputError,
            "names 2 classes and the model has 4 outputs",
        ),
        (
            _start_with(nn.Sequential(nn.Linear(FEATURES, 1)), _data()),
            InvalidInputError,
            "for each of two or more classes",
        ),
    ],
)
def test_bad_use_gets_a_sentence(bad: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        bad()


def test_labels_that_are_none_of_the_classes_are_refused() -> None:
    features, labels = _data()
    run = _start(_plan(), (features, labels + 2))
    with pytest.raises(InvalidInputError, match="0.*3"):
        run.step(run.batch(0))
    run = _start(_plan(), (features, labels.double()))
    with pytest.raises(InvalidInputError, match="label"):
        run.step(run.batch(0))


@pytest.mark.parametrize(("epsilon", "least"), [(1.0, 0.45), (3.0, 0.88)])
def test_digits_are_learnt_from_randomised_labels(epsilon: float, least: float) -> None:
    problem = load("digits-mlp")
    count = len(as_source(problem.train))
    plan = make_plan("label-rr", examples=count, batch_size=64, epochs=15, epsilon=epsilon)
    with seeded(0):
        model = problem.model()
    run = plan.start(model, problem.training_losses, problem.train, secret=1)
    list(take_steps(run))
    run.model.eval()
    accuracy = evaluate_problem(run.model, problem).accuracy
    assert accuracy is not None
    assert accuracy > least
    assert run.guarantee.epsilon <= epsilon


def test_golden_answers_of_a_run() -> None:
    """The same secret answers alike, now and later."""
    data = (torch.zeros(12, FEATURES), torch.arange(12) % CLASSES)
    plan = make_plan("label-rr", examples=12, batch_size=4, steps=1, noise_multiplier=1.0)
    run = plan.start(_model(), cross_entropy, data, secret=Secret(bytes(range(32))))
    assert _draw(run).tolist() == [0, 3, 3, 0, 0, 3, 0, 3, 0, 1, 0, 1]


# Randomised response with a prior: exact table, distribution of answers, choice of k.


SECRET = Secret.from_seed(3, "a test of randomised response")


@pytest.mark.parametrize(
    ("epsilon", "size", "kept"),
    [(1.0, 10, 0.231969), (3.0, 10, 0.690568), (8.0, 10, 0.996990), (1.0, 2, 0.731059), (0.5, 100, 0.016381)],
)
def test_a_label_is_kept_with_the_published_probability(epsilon: float, size: int, kept: float) -> None:
    """e^ε/(e^ε + k − 1)."""
    table = ResponseTable.of(epsilon, size)
    assert table.own / VALUES == pytest.approx(kept, abs=1e-6)
    assert table.own + (size - 1) * table.other == VALUES


@given(st.floats(1e-10, 100.0), st.integers(1, 300))
def test_no_two_labels_are_told_apart_by_more_than_epsilon(epsilon: float, size: int) -> None:
    """Exactly, from the integers that are drawn by; and hardly less, so that no privacy is wasted."""
    table = ResponseTable.of(epsilon, size)
    rows = table.list_rows()
    assert all(sum(row) == VALUES for row in rows)
    ratio = find_largest_ratio(table)
    assert ratio <= bound_growth(epsilon)
    assert math.log(ratio) <= epsilon
    if size > 1 and 1e-6 < epsilon < 20:
        assert math.log(ratio) >= epsilon * (1 - 1e-5)


def test_the_largest_ratio_sees_every_pair() -> None:
    """A table whose own label has too much, and one whose outside row does not fit."""
    fair = ResponseTable.of(1.0, 3)
    assert find_largest_ratio(ResponseTable(3, fair.own + 2**40, fair.other - 2**39)) > bound_growth(1.0)
    assert find_largest_ratio(ResponseTable(3, VALUES - 2, 1)) == Fraction(VALUES - 2, 1)
    assert find_largest_ratio(ResponseTable(1, VALUES, 1)) == 1  # one answer says nothing


@pytest.mark.parametrize(
    ("prior", "epsilon", "size"),
    [
        # e^ε/(e^ε + k − 1)·(p₁ + … + p_k), by hand; e = 2.71828:
        ([0.25, 0.25, 0.25, 0.25], 1.0, 4),  # 0.25, 0.366, 0.432, 0.475
        ([0.7, 0.1, 0.1, 0.1], 1.0, 1),  # 0.7, 0.585, 0.518, 0.475
        ([0.45, 0.45, 0.05, 0.05], 1.0, 2),  # 0.45, 0.658, 0.547, 0.475
        ([0.05, 0.45, 0.05, 0.45], 5.0, 4),  # 0.45, 0.894, 0.937, 0.980
        ([0.5, 0.5, 0.0, 0.0], 5.0, 2),  # 0.5, 0.993, 0.987, 0.980
    ],
)
def test_k_is_chosen_by_the_prior(prior: list[float], epsilon: float, size: int) -> None:
    assert choose_sizes(epsilon, np.array([prior])).tolist() == [size]


def _count(label: int, prior: list[float], epsilon: float, count: int = 200_000) -> np.ndarray:
    draws = draw_integers(SECRET, f"label {label}", count)
    answers = respond(np.full(count, label), epsilon, np.tile(prior, (count, 1)), draws)
    return np.bincount(answers, minlength=len(prior))


def _expect(label: int, prior: list[float], epsilon: float) -> np.ndarray:
    """The probabilities of the paper's algorithm, written down a second time."""
    best = sorted(range(len(prior)), key=lambda y: -prior[y])
    grow = math.exp(epsilon)
    k = max(range(1, len(prior) + 1), key=lambda k: grow / (grow + k - 1) * sum(prior[y] for y in best[:k]))
    chances = np.zeros(len(prior))
    for y in best[:k]:
        chances[y] = 1 / k if label not in best[:k] else (grow if y == label else 1) / (grow + k - 1)
    return chances


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("prior", [[0.2] * 5, [0.02, 0.4, 0.05, 0.4, 0.13]])
@pytest.mark.parametrize("label", range(5))
def test_answers_have_the_papers_distribution(label: int, prior: list[float], epsilon: float) -> None:
    counts, chances = _count(label, prior, epsilon), _expect(label, prior, epsilon)
    assert counts[chances == 0].sum() == 0
    seen = chances > 0
    expected = chances[seen] * counts.sum()
    assert stats.chisquare(counts[seen], expected).pvalue > 1e-4
    if label in np.flatnonzero(seen):  # a twin that was calibrated to a fifth more is told apart
        twin = _expect(label, prior, epsilon * 1.2)[seen] * counts.sum()
        assert stats.chisquare(counts[seen], twin).pvalue < 1e-4


def test_each_example_has_coins_of_its_own() -> None:
    short, long = draw_integers(SECRET, "labels", 100), draw_integers(SECRET, "labels", 1000)
    assert (short == long[:100]).all()
    assert (long >= 0).all()
    assert (long < VALUES).all()
    assert stats.kstest(long / VALUES, "uniform").pvalue > 1e-3
    assert len(set(long.tolist())) == 1000
    assert not (draw_integers(SECRET, "other", 100) == short).any()
    assert not (draw_integers(Secret.from_seed(4, "another"), "labels", 100) == short).any()


def test_golden_answers() -> None:
    """The same secret gives the same answers, now and later."""
    labels = np.arange(12) % 4
    answers = respond(labels, 1.0, np.full((12, 4), 0.25), draw_integers(SECRET, "labels", 12))
    assert answers.tolist() == [2, 1, 2, 3, 1, 1, 2, 3, 0, 1, 1, 3]


def test_bad_labels_and_priors_get_a_sentence() -> None:
    with pytest.raises(InvalidInputError, match="0.*3"):
        respond(np.array([0, 4]), 1.0, np.full((2, 4), 0.25), np.array([0, 0]))
    with pytest.raises(InvalidInputError, match="0"):
        check_prior([0.0, 0.0])
    with pytest.raises(InvalidInputError, match="2.*3"):
        check_prior([0.5, 0.5], 3)
    with pytest.raises(InvalidInputError, match="epsilon"):
        ResponseTable.of(0.0, 3)
