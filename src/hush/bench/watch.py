"""The training accuracy of every step for nothing: the model's scores are read on their way to the loss.

What is counted here is private.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hush.named import Losses
from hush.source import to_each


class WatchedLosses:
    """The losses of a problem, which count right answers as they pass; the labels are the content's last part."""

    def __init__(self, losses: Losses, classes: int | None) -> None:
        self._losses, self._classes = losses, classes
        self._scores: Tensor | None = None
        self._seen: Any = None
        self._counted: list[tuple[Tensor, int]] = []  # right answers, examples; one entry a forward

    def watch(self, model: nn.Module) -> None:
        """Listen to the model's outputs from now on."""
        if self._classes is not None:
            model.register_forward_hook(lambda module, inputs, output: self._hear(output))

    def __call__(self, model: nn.Module, content: Any) -> Tensor:
        """The losses, unchanged."""
        values = self._losses(model, content)
        if self._classes is not None and model.training:
            self._count(content)
        return values

    def accuracy(self, examples: int) -> float:
        """The share of right answers in a step of so many examples; NaN where they could not be counted.

        Before its first step a run looks at made-up inputs, and an engine at some examples again: what counts comes
        last, and is as many as there are examples."""
        counted, self._counted, self._seen = self._counted, [], None
        right, left = 0, examples
        while counted and left > 0:
            found, size = counted.pop()
            right, left = right + int(found), left - size
        return right / examples if examples and left == 0 else math.nan

    def _hear(self, output: Any) -> None:
        self._scores = output.detach() if isinstance(output, Tensor) else None

    def _count(self, content: Any) -> None:
        """A second gradient at the same examples (DiSK's) is not counted again; inside torch.func nothing can be."""
        scores, self._scores = self._scores, None
        first = _first(content)
        if scores is None or first is self._seen or torch._C._functorch.is_functorch_wrapped_tensor(scores):
            return
        if scores.dim() == 2 and scores.shape[1] == self._classes:
            labels = content[-1]
            self._counted.append(((scores.argmax(1) == labels).sum(), len(labels)))
            self._seen = first


def _first(content: Any) -> Any:
    found: list[Tensor] = []
    to_each(found.append, content)
    return found[0] if found else None
