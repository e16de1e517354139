"""A problem: data, model, loss and metric, and what about the data is taken to be public."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from hush.artefact.description import STATE_ONLY, Architecture, Description, Inputs, describe_table
from hush.data.schema import Schema
from hush.data.splits import Arrays, Split, hold_out
from hush.named import Losses

Metric = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Problem:
    """Everything a run needs besides the method. ``assumptions`` go into the guarantee: what it takes to be public.

    ``architecture`` and ``inputs`` say how ``model`` is built and what an example is, for whoever receives the released
    model; without them the weights are released alone, and loaded into a module that their reader brings."""

    name: str
    summary: str
    train: Any
    test: Any
    validation: Any | None
    model: Callable[[], nn.Module]
    losses: Losses
    metric: Metric = "accuracy"
    classes: int | None = None
    class_names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    schema: Schema | None = None
    architecture: Architecture = STATE_ONLY
    inputs: Inputs | None = None

    def describe(self) -> Description:
        """What is said publicly about a model of this problem when it is released."""
        classes = () if self.classes is None else self.class_names or tuple(map(str, range(self.classes)))
        inputs = self.inputs if self.schema is None else describe_table(self.schema)
        return Description(
            "classification" if classes else "other",
            self.architecture,
            inputs,
            classes,
            None if self.schema is None else self.schema.target,
        )


def cross_entropy(model: nn.Module, content: tuple[Tensor, Tensor]) -> Tensor:
    """−log softmax(model(x))_y, one number per example."""
    features, labels = content
    return functional.cross_entropy(model(features), labels, reduction="none")


def make_classification(
    split: Split,
    model: Callable[[], nn.Module],
    *,
    classes: int,
    seed: int,
    validation: float,
    assumptions: tuple[str, ...] = (),
    class_names: tuple[str, ...] | None = None,
) -> Problem:
    """A classification problem from a split, with a validation part of its training rows when asked for. The
    caller gives it a name."""
    train, held = hold_out_validation(split.train, validation, seed)
    return Problem(
        name="",
        summary="",
        train=train,
        test=split.test,
        validation=held,
        model=model,
        losses=cross_entropy,
        classes=classes,
        class_names=class_names,
        assumptions=assumptions,
    )


def hold_out_validation(train: Arrays, fraction: float, seed: int) -> tuple[Arrays, Arrays | None]:
    """(training part, validation part or None), deterministic by seed."""
    if fraction == 0:
        return train, None
    return hold_out(train, fraction, seed=seed)
