"""A model that remembers nothing of a record: it is as it was found when the record has passed.

`hush.gradients.swaps` takes away the tensors and numbers that a forward leaves in a model's attributes, and lets whole
numbers count forwards. Here those go too, since one of them ("there was a large record") is enough to reach the next
record's row. What is changed inside a list, an array or an object of the model's cannot be put back: that is refused,
and so are draws from Python's random and from numpy, whose numbers would be shifted for the records that follow.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import Refused

HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
OPAQUE = (nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
DEEP = 6  # objects within objects that are looked into


class Found:
    """A model at one moment."""

    def __init__(self, model: nn.Module) -> None:
        self._kind, self._drawn = type(model).__name__, _read_generators()
        self._attributes = [(name, vars(module), dict(vars(module))) for name, module in model.named_modules()]
        self._inside = [
            (f"{name}.{key.lstrip('_')}".strip("."), value, _mark(value, DEEP))
            for name, _, found in self._attributes
            for key, value in found.items()
            if key not in HOOKS and not _is_fixed(value)
        ]

    def put_back(self) -> None:
        """Every attribute of its modules as it was; refuse what was changed inside of one."""
        for _, attributes, found in self._attributes:
            if len(attributes) != len(found) or any(attributes.get(key) is not value for key, value in found.items()):
                attributes.clear()
                attributes.update(found)
        if _read_generators() != self._drawn:
            raise Refused(
                f"the {self._kind} or its data draw from Python's random or from numpy, so that a record would shift "
                "the numbers of others: draw with torch"
            )
        for place, value, mark in self._inside:
            if _mark(value, DEEP) != mark:
                raise Refused(
                    f"'{place}' of the {self._kind} is not the same after a forward pass, so that a record would be in "
                    "the rows of others, or pass by the layer: keep what a forward computes out of the model"
                )


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """After it, the model is as it was."""
    found = Found(model)
    yield
    found.put_back()


def _read_generators() -> tuple[Any, ...]:
    _, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(keys).tobytes(), *rest


def _is_fixed(value: Any) -> bool:
    """Whether it cannot be changed in place."""
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_is_fixed, value)))


def _mark(value: Any, depth: int) -> Any:
    """Something that is another where the value was changed in place."""
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, PLAIN):
        return type(value), repr(value)
    if isinstance(value, OPAQUE) or depth == 0:
        return id(value)
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes()
    if isinstance(value, type(torch.default_generator)):
        return id(value), value.get_state().numpy().tobytes()
    if hasattr(value, "bit_generator"):  # of numpy
        return id(value), repr(value.bit_generator.state)
    if isinstance(value, Mapping):
        return id(value), [(_mark(key, depth - 1), _mark(each, depth - 1)) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return id(value), [_mark(each, depth - 1) for each in value]
    return id(value), [(key, _mark(each, depth - 1)) for key, each in getattr(value, "__dict__", {}).items()]
