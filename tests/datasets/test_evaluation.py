"""Evaluation against hand-computed loss, accuracy, confusion matrix and per-class metrics."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from hush.datasets import catalogue, evaluation
from hush.datasets.evaluation import ClassMetrics, evaluate
from hush.datasets.problem import cross_entropy
from hush.errors import InvalidInputError

SCORES = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2], [2, 0, 0]])
LABELS = torch.tensor([0, 1, 2, 2, 2])


def test_by_hand() -> None:
    result = evaluate(nn.Identity(), (SCORES, LABELS), cross_entropy, classes=3, class_names=("a", "b", "c"))
    right = torch.tensor([2.0, 0, 0]).softmax(0)
    expected = -(3 * right[0].log() + 2 * right[1].log()) / 5
    assert result.loss == pytest.approx(float(expected))
    assert result.accuracy == pytest.approx(3 / 5)
    assert result.confusion == ((1, 0, 0), (0, 1, 0), (1, 1, 1))
    assert result.per_class is not None
    third = result.per_class[2]
    assert (third.name, third.examples, third.precision) == ("c", 3, 1.0)
    assert third.recall == pytest.approx(1 / 3)
    assert third.f1 == pytest.approx(1 / 2)
    assert result.per_class[0].precision == 1 / 2


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    whole = evaluate(nn.Identity(), (SCORES, LABELS), cross_entropy, classes=3)
    pieces = evaluate(nn.Identity(), (SCORES, LABELS), cross_entropy, classes=3, batch_size=batch_size)
    assert pieces.confusion == whole.confusion
    assert pieces.loss == pytest.approx(whole.loss)


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    assert evaluate(model, (SCORES, LABELS), cross_entropy, classes=3).accuracy == pytest.approx(3 / 5)
    assert model.training
    assert not model._forward_hooks


def test_a_class_that_never_occurs_has_zeros() -> None:
    result = evaluate(nn.Identity(), (SCORES[:2], LABELS[:2]), cross_entropy, classes=3)
    assert result.per_class is not None
    assert result.per_class[2] == ClassMetrics("2", 0, 0.0, 0.0, 0.0)


def test_the_metric_of_a_problem_without_classes() -> None:
    result = evaluate(nn.Identity(), torch.tensor([[1.0], [3.0]]), lambda model, x: model(x).squeeze(1))
    assert (result.loss, result.accuracy, result.confusion, result.examples) == (2.0, None, None, 2)


def test_plain_data() -> None:
    result = evaluate(nn.Identity(), (SCORES, LABELS), cross_entropy, classes=3)
    again = json.loads(json.dumps(result.to_json()))
    assert again["confusion"][2] == [1, 1, 1]
    assert again["per_class"][1]["name"] == "1"
    assert again["seconds"] >= 0


def test_bad_labels_and_scores() -> None:
    def silent(model: nn.Module, content: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return model(content[0]).sum(1)

    with pytest.raises(InvalidInputError, match="0.*2"):
        evaluate(nn.Identity(), (SCORES, LABELS + 1), silent, classes=3)
    with pytest.raises(InvalidInputError, match=r"scores of shape \(n, 3\) where \(n, 4\) was expected"):
        evaluate(nn.Identity(), (SCORES, LABELS), silent, classes=4)
    with pytest.raises(InvalidInputError):
        evaluation.evaluate_problem(nn.Identity(), catalogue.load(), part="validation")
