"""Data as hush reads it: a length, and the content of any set of indices."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from hush.errors import BadInput


@runtime_checkable
class Source(Protocol):
    """Data with a length that gives the content of some indices.

    What is relied on, for sampling, for a resume and for the digest of the data:

    1. ``len(source)`` is the number of examples, at least 1, and does not change during a run.
    2. ``take(indices)`` is a pure function of the indices. Row j of the content is example ``indices[j]`` and depends
       on no other index: in any order, in any company, at any time it is the same.
    3. Every tensor of the content has the examples in dimension 0, and the same other dimensions in every batch.
    4. No indices give a content of no rows, its other dimensions as always: a Poisson batch can be empty.
    """

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> Any:
        """The content of these examples: what ``losses(model, content)`` receives."""
        ...


@dataclass(frozen=True)
class Tensors:
    """Tensors that share their first dimension; the content is the tuple (or the one tensor) indexed."""

    tensors: tuple[Tensor, ...]
    single: bool = False

    def __post_init__(self) -> None:
        lengths = {len(t) for t in self.tensors}
        if len(lengths) != 1:
            raise BadInput(f"the tensors of a dataset must share their first dimension, got lengths {sorted(lengths)}")
        for place, tensor in enumerate(self.tensors):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise BadInput(f"tensor {place} of the data holds values that are not finite (NaN or infinity)")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Tensor) -> Any:
        """The rows of every tensor."""
        rows = tuple(tensor[indices.to(tensor.device)] for tensor in self.tensors)
        return rows[0] if self.single else rows


@dataclass(frozen=True)
class Collated:
    """A map-style torch Dataset, its items collated by torch's default."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor) -> Any:
        """The collated items; no items give an empty batch of the right shape."""
        if len(indices) == 0:
            return to_each(lambda t: t[:0], default_collate([self.dataset[0]]))
        return default_collate([self.dataset[i] for i in indices.tolist()])


def as_source(data: Any) -> Source:
    """Tensors, a tuple of tensors, or a map-style Dataset, as a Source."""
    if isinstance(data, Tensor):
        source: Source = Tensors((data,), single=True)
    elif isinstance(data, (tuple, list)) and data and all(isinstance(t, Tensor) for t in data):
        source = Tensors(tuple(data))
    elif isinstance(data, Source):
        source = data
    elif isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        source = Collated(data)
    else:
        raise BadInput(
            f"data must be a tensor, a tuple of tensors or a Dataset with a length, got {type(data).__name__}"
        )
    if len(source) == 0:
        raise BadInput("the data holds no examples")
    return source


def to_each(function: Any, content: Any) -> Any:
    """Apply a function to every tensor of a nested content; named tuples and mappings keep their type."""
    if isinstance(content, Tensor):
        return function(content)
    if isinstance(content, Mapping):
        return _mapping_like(content, {key: to_each(function, value) for key, value in content.items()})
    if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        made = [to_each(function, value) for value in content]
        named = isinstance(content, tuple) and getattr(type(content), "_make", None)
        return named(made) if named else tuple(made)
    return content


def _mapping_like(old: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the old one's type (such as a tokenizer's batch, read by attribute as well) with other values."""
    if not isinstance(old, MutableMapping) or type(old) is dict:
        return values
    new = copy.copy(old)
    for key, value in values.items():
        new[key] = value
    return new


def tensors_of(content: Any) -> list[Tensor]:
    """Every tensor of a nested content, in the order of `to_each`."""
    found: list[Tensor] = []
    to_each(found.append, content)
    return found
