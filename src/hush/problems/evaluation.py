"""How good a model is on rows it has not been trained on: loss, accuracy, confusion matrix, figures per class, time.

These numbers are of public or held-out rows; on training rows they are not covered by the guarantee.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hush.errors import BadInput
from hush.named import Losses
from hush.problems.problem import Problem
from hush.source import as_source
from hush.validate import one_of, whole

BATCH = 1000


@dataclass(frozen=True)
class ClassFigures:
    """One class: how many examples have it, and precision, recall and F1 of predicting it (0 where undefined)."""

    name: str
    examples: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """The result; ``confusion[i][j]`` counts examples of class i that were predicted as j. Accuracy, confusion and
    per-class figures are None for problems without classes."""

    examples: int
    loss: float
    seconds: float
    accuracy: float | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None
    per_class: tuple[ClassFigures, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        per_class = None if self.per_class is None else [vars(figures) for figures in self.per_class]
        confusion = None if self.confusion is None else [list(row) for row in self.confusion]
        return {**vars(self), "confusion": confusion, "per_class": per_class}


def evaluate(
    model: nn.Module,
    data: Any,
    losses: Losses,
    *,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    batch_size: int = BATCH,
) -> Evaluation:
    """Evaluate in eval mode, ``batch_size`` examples at a time; ``seconds`` is the time the model took.

    With ``classes``, the model's output (one score per class) is caught on its way to the loss and its largest entry
    is the prediction; the labels are the last part of the content."""
    whole(batch_size=batch_size)
    source = as_source(data)
    total, seconds = 0.0, 0.0
    confusion = torch.zeros(classes or 0, classes or 0, dtype=torch.long)
    with _evaluating(model) as outputs:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        for indices in torch.split(torch.arange(len(source)), batch_size):
            content = _move(source.take(indices), device)
            outputs.clear()
            start = time.perf_counter()
            values = losses(model, content)
            total += float(values.double().sum())
            seconds += time.perf_counter() - start
            if classes is not None:
                confusion += _count_confusion(outputs[-1], content[-1], classes)
    figures = {} if classes is None else _compute_figures(confusion, class_names)
    return Evaluation(len(source), total / len(source), seconds, **figures)


def evaluate_problem(
    model: nn.Module, problem: Problem, *, part: Literal["test", "validation"] = "test", batch_size: int = BATCH
) -> Evaluation:
    """Evaluate on the test or the validation part of a problem."""
    one_of(("test", "validation"), part=part)
    data = problem.test if part == "test" else problem.validation
    if data is None:
        raise BadInput("this problem was loaded without a validation part: load it with validation=0.1")
    return evaluate(
        model, data, problem.losses, classes=problem.classes, class_names=problem.class_names, batch_size=batch_size
    )


def _count_confusion(scores: Tensor, labels: Tensor, classes: int) -> Tensor:
    if scores.dim() != 2 or scores.shape[1] != classes:
        shape = ", ".join(map(str, scores.shape[1:]))
        raise BadInput(f"the model gives scores of shape (n, {shape}) where (n, {classes}) was expected")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise BadInput(f"a label lies outside 0 … {classes - 1}")
    pairs = labels.long() * classes + scores.argmax(1)
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes).cpu()


def _compute_figures(confusion: Tensor, names: tuple[str, ...] | None) -> dict[str, Any]:
    right, have, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    per_class = []
    for i in range(len(confusion)):
        hits, of, predicted = int(right[i]), int(have[i]), int(said[i])
        name = str(i) if names is None else names[i]
        per_class.append(
            ClassFigures(name, of, _divide(hits, predicted), _divide(hits, of), _divide(2 * hits, of + predicted))
        )
    return {
        "accuracy": _divide(int(right.sum()), int(confusion.sum())),
        "confusion": tuple(tuple(row) for row in confusion.tolist()),
        "per_class": tuple(per_class),
    }


def _divide(part: int, of: int) -> float:
    return part / of if of else 0.0


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
