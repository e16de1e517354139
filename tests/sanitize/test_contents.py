"""Batches that are named tuples, and models that catch what is raised within them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from networks import data, plan
from replaced import Model
from torch import nn
from torch.utils.data import Dataset

from hush.training import take_steps

METHODS = ["sanitize", "sanitize-once"]


class Named(NamedTuple):
    features: torch.Tensor
    label: torch.Tensor


class NamedData(Dataset):
    def __init__(self) -> None:
        self.features, self.labels = data()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i) -> Named:
        return Named(self.features[i], self.labels[i])


def losses(model, content):
    return nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")


def named_losses(model, content):
    return losses(model, (content.features, content.label))


def train_weights(method, loss, rows, model=None) -> list[torch.Tensor]:
    model = model or Model(frozen=method == "sanitize-once")
    for _ in take_steps(plan(method).start(model, loss, rows, secret=3)):
        pass
    return list(model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_named_tuples(method) -> None:
    found = train_weights(method, named_losses, NamedData())
    for one, other in zip(found, train_weights(method, losses, data()), strict=True):
        assert torch.equal(one, other)


class Catching(Model):
    """Says of every fault that it was the batch's."""

    def forward(self, x):
        try:
            rows = self.layer(self.front(x))
        except Exception as stop:
            raise RuntimeError("bad batch") from stop
        return self.head(rows)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_catches_exceptions(method) -> None:
    frozen = method == "sanitize-once"
    found = train_weights(method, losses, data(), Catching(frozen=frozen))
    for one, other in zip(found, train_weights(method, losses, data()), strict=True):
        assert torch.equal(one, other)
