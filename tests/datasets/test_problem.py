"""Class weights multiply the loss before clipping: they change the model, not the sensitivity or ε.

Sensitivity: the clipped gradient of w·ℓ is clip(w·g), whose norm is at most c for every w. One example moves the sum by
no more than without weights, so the plan is unchanged.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from hush.clipping import ClippedSum
from hush.datasets import catalogue, evaluation
from hush.datasets.problem import WEIGHTED, Weighted, cross_entropy
from hush.errors import InvalidInputError
from hush.randomness import seeded

CLIP = 0.5


@pytest.fixture
def data() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    with seeded(1):
        return nn.Linear(4, 3), (torch.randn(12, 4), torch.arange(12) % 3)


def test_classes_have_names_or_are_called_by_their_numbers() -> None:
    named = catalogue.load("breast-cancer-logistic")
    assert named.classes_by_name == ("malignant", "benign")
    assert replace(named, class_names=None).classes_by_name == ("0", "1")
    assert replace(named, classes=None, class_names=None).classes_by_name == ()


def test_each_loss_is_times_the_weight_of_its_class(data) -> None:
    model, content = data
    plain, weighted = cross_entropy(model, content), Weighted(cross_entropy, (1.0, 2.0, 0.5))(model, content)
    assert torch.allclose(weighted / plain, torch.tensor([1.0, 2.0, 0.5]).repeat(4))


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1e-3, 1.0, 1e3), (1e6, 1e6, 1e6)])
@pytest.mark.parametrize("mode", ["plain", "normalised"])
def test_no_weight_moves_the_sum_by_more_than_the_bound(data, weights, mode) -> None:
    model, (features, labels) = data
    query, losses = ClippedSum(CLIP, mode), Weighted(cross_entropy, weights)
    for i in range(len(labels)):
        one = query.piece(model, losses, (features[i : i + 1], labels[i : i + 1]), {})["gradient"]
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in one.values()))
        assert norm <= query.channels["gradient"].bound * (1 + 1e-6)


def test_weights_act_before_clipping_and_automatic_clipping_undoes_them(data) -> None:
    model, content = data
    losses = Weighted(cross_entropy, (0.1, 0.1, 0.1))

    def total(query: ClippedSum, of: object) -> torch.Tensor:
        return query.piece(model, of, content, {})["gradient"]["weight"].flatten().double()

    far = ClippedSum(1e6)  # nobody is cut: the sum is a tenth
    assert torch.allclose(total(far, losses), 0.1 * total(far, cross_entropy), rtol=1e-5)
    near = ClippedSum(1e-6)  # everybody is cut, with weights and without
    assert torch.allclose(total(near, losses), total(near, cross_entropy), rtol=1e-3, atol=1e-10)
    automatic = ClippedSum(1.0, "automatic")  # but for γ all that a weight does is gone
    weighted, plain = total(automatic, losses), total(automatic, cross_entropy)
    assert float((weighted - plain).norm()) < 0.1 * float(plain.norm())


def test_a_problem_with_weights_trains_on_them_and_is_tested_without() -> None:
    plain = catalogue.load("breast-cancer-logistic")
    task = plain.with_class_weights((1.0, 3.0))
    assert task.assumptions[-1] == WEIGHTED
    with seeded(0):
        model = task.model()
    ratio = task.training_losses(model, task.train) / plain.training_losses(model, task.train)
    assert sorted(set(ratio.round().tolist())) == [1.0, 3.0]
    assert evaluation.evaluate_problem(model, task).loss == evaluation.evaluate_problem(model, plain).loss


def test_bad_weights() -> None:
    plain = catalogue.load("breast-cancer-logistic")
    with pytest.raises(InvalidInputError, match="2.*3"):
        plain.with_class_weights((1.0, 2.0, 3.0))
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInputError, match="0"):
            plain.with_class_weights((1.0, wrong))
