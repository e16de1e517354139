"""How good a model is on rows it has not been trained on: loss, time, and what `hush.statistics.metrics` makes of its
outputs.

These numbers are of public or held-out rows; on training rows they are not covered by the guarantee.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hush._internal.tensors import Losses
from hush._internal.validate import choice, positive_int
from hush.data_source import as_source
from hush.datasets.problem import Problem, to_units
from hush.errors import InvalidInputError
from hush.statistics.metrics import (
    ClassificationMetrics,
    RegressionMetrics,
    Vector,
    count_confusion,
    judge_classes,
    judge_values,
)

BATCH = 250  # larger ones leave the cache: 1.94 s of CPU against 1.51 for P1's 10 000 test images


@dataclass(frozen=True)
class ClassMetrics:
    """One class: how many examples have it, and precision, recall and F1 of predicting it (0 where undefined)."""

    name: str
    examples: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """The result; ``confusion[i][j]`` counts examples of class i that were predicted as j. Accuracy, confusion and
    per-class figures are None for problems without classes, ``values`` for those that predict no numbers."""

    examples: int
    loss: float
    seconds: float
    accuracy: float | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None
    per_class: tuple[ClassMetrics, ...] | None = None
    values: RegressionMetrics | None = None
    probabilities: Vector | None = field(default=None, repr=False, compare=False)  # a row an example
    labels: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def metrics(self) -> ClassificationMetrics | None:
        """All figures of classes (`hush.statistics.metrics`)."""
        if self.probabilities is None or self.labels is None:
            return None
        return judge_classes(self.probabilities, self.labels)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "examples": self.examples,
            "loss": self.loss,
            "seconds": self.seconds,
            "accuracy": self.accuracy,
            "confusion": None if self.confusion is None else [list(row) for row in self.confusion],
            "per_class": None if self.per_class is None else [vars(metrics) for metrics in self.per_class],
            "values": None if self.values is None else vars(self.values),
        }


def evaluate(
    model: nn.Module,
    data: Any,
    losses: Losses,
    *,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    target_range: tuple[float, float] | None = None,
    batch_size: int = BATCH,
) -> Evaluation:
    """Evaluate in eval mode, ``batch_size`` examples at a time; ``seconds`` is the time the model took.

    With ``classes``, the model's output (one score per class) is intercepted on its way to the loss and its largest
    entry is the prediction; the labels are the last part of the content. With a ``target_range``, the output and the
    last part of the content are numbers mapped from that range (`hush.datasets.problem.to_units`)."""
    positive_int(batch_size=batch_size)
    source = as_source(data)
    total, seconds = 0.0, 0.0
    found: list[Tensor] = []
    truth: list[Tensor] = []
    with _evaluating(model) as outputs:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        for indices in torch.split(torch.arange(len(source)), batch_size):
            content = _move(source.take(indices), device)
            outputs.clear()
            start = time.perf_counter()
            values = losses(model, content)
            total += float(values.double().sum())
            seconds += time.perf_counter() - start
            if classes is not None or target_range is not None:
                found.append(_check_width(outputs[-1], classes or 1).double().cpu())
                truth.append(content[-1].cpu())
    metrics: dict[str, Any] = {}
    if classes is not None:
        metrics = _judge_scores(torch.cat(found), torch.cat(truth), class_names)
    elif target_range is not None:
        ends = [to_units(torch.cat(part).double().reshape(-1), target_range) for part in (found, truth)]
        metrics = {"values": _judge_numbers(*ends)}
    return Evaluation(len(source), total / len(source), seconds, **metrics)


def evaluate_problem(
    model: nn.Module, problem: Problem, *, part: Literal["test", "validation"] = "test", batch_size: int = BATCH
) -> Evaluation:
    """Evaluate on the test or the validation part of a problem."""
    choice(("test", "validation"), part=part)
    data = problem.test if part == "test" else problem.validation
    if data is None:
        raise InvalidInputError("this problem was loaded without a validation part: load it with validation=0.1")
    return evaluate(
        model,
        data,
        problem.losses,
        classes=problem.classes,
        class_names=problem.class_names,
        target_range=problem.target_range,
        batch_size=batch_size,
    )


def list_metrics(evaluation: Evaluation, problem: Problem) -> dict[str, Any]:
    """The exact metrics as fields of a command's answer."""
    fields: dict[str, Any] = {"test_loss": evaluation.loss}
    if evaluation.values is not None:
        values = evaluation.values
        return {**fields, "test_mae": values.mae, "test_rmse": values.rmse, "test_r2": values.r2}
    if problem.target_range is not None:
        return {**fields, "test_mae": None, "test_rmse": None, "test_r2": None}
    metrics = evaluation.metrics
    if problem.metric != "accuracy" or metrics is None:
        return fields
    message, finite = metrics.to_json(), math.isfinite(evaluation.loss)
    return {
        **fields,
        "test_accuracy": evaluation.accuracy,
        "test_commonest_accuracy": metrics.commonest,
        "test_balanced_accuracy": metrics.balanced_accuracy,
        "test_auc": metrics.auc if finite else None,
        "test_log_loss": metrics.log_loss if finite else None,
        "test_recall": dict(zip(problem.classes_by_name, metrics.recall, strict=True)),
        "test_confusion": message["confusion"],
        "verdict": message["verdict"],
    }


def _check_width(output: Tensor, width: int) -> Tensor:
    if output.dim() != 2 or output.shape[1] != width:
        shape = ", ".join(map(str, output.shape[1:]))
        raise InvalidInputError(f"the model gives scores of shape (n, {shape}) where (n, {width}) was expected")
    return output


def _judge_scores(scores: Tensor, labels: Tensor, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Scores that are not finite say nothing: their row has the same probability for every class."""
    shares = scores.softmax(1)
    silent = ~torch.isfinite(shares).all(1)
    shares[silent] = 1.0 / scores.shape[1]
    confusion = count_confusion(shares.numpy(), labels.numpy())
    right, actual, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    per_class = tuple(
        ClassMetrics(
            str(i) if names is None else names[i],
            int(actual[i]),
            _divide(right[i], predicted[i]),
            _divide(right[i], actual[i]),
            _divide(2 * right[i], actual[i] + predicted[i]),
        )
        for i in range(len(confusion))
    )
    return {
        "accuracy": _divide(right.sum(), confusion.sum()),
        "confusion": tuple(tuple(map(int, row)) for row in confusion),
        "per_class": per_class,
        "probabilities": shares.numpy(),
        "labels": labels.numpy(),
    }


def _judge_numbers(found: Tensor, truth: Tensor) -> RegressionMetrics | None:
    """None where the model gives numbers that are not finite: training has diverged."""
    return judge_values(found.numpy(), truth.numpy()) if bool(torch.isfinite(found).all()) else None


def _divide(part: float, of: float) -> float:
    return float(part / of) if of else 0.0


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[list[Tensor]]:
    """Eval mode without gradients, the model's outputs collected; its mode comes back after."""
    outputs: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield outputs
    finally:
        handle.remove()
        model.train(training)


def _move(content: Any, device: torch.device) -> Any:
    if isinstance(content, Tensor):
        return content.to(device)
    return tuple(_move(part, device) for part in content)
