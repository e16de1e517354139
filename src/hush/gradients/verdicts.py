"""What is known about a model with a loss, and when two losses are one: by what they do, not by which object they are.

A lambda written in a training loop is a new object at every step and the same loss each time. Two functions that one
factory made are one code with two closures, and may do different things. So a function is known by its code and by
what it closes over: numbers and text by value, everything else by being the same object.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from hush.gradients.book_keeping import Known
from hush.named import Losses

REMEMBERED = 8  # losses of one model whose verdicts are kept, and closures of one function that are compared


@dataclass(eq=False)
class Verdict:
    """What is known about one model with one loss."""

    engine: str = "book-keeping"
    checked: bool = False
    alone: frozenset[str] = frozenset()  # modules that torch.func maps by themselves
    known: Known = field(default_factory=dict)  # which of their inputs hold the examples


@dataclass(eq=False)
class Verdicts:
    """The verdicts of one model: the last few, and how many closures of each function were compared."""

    by_loss: OrderedDict[Hashable, Verdict] = field(default_factory=OrderedDict)
    by_code: OrderedDict[Hashable, tuple[int, Verdict]] = field(default_factory=OrderedDict)

    def of(self, losses: Losses, modes: Hashable) -> Verdict:
        """The verdict of this loss. A new function at every step with something else in its closure is compared
        only so often; from then on it has the verdict of the last one, or of the first that was slow."""
        key, code = (identify_loss(losses), modes), (code_of(losses), modes)
        if key not in self.by_loss:
            times, last = self.by_code.get(code, (0, Verdict()))
            known = times >= REMEMBERED or (last.checked and last.engine != "book-keeping")
            self.by_loss[key] = last if known else Verdict()
            self.by_code[code] = times + 1, self.by_loss[key]
        for table, used in ((self.by_loss, key), (self.by_code, code)):
            table.move_to_end(used)
            if len(table) > REMEMBERED:
                table.popitem(last=False)
        return self.by_loss[key]


_VERDICTS: WeakKeyDictionary[nn.Module, Verdicts] = WeakKeyDictionary()


def verdict_of(model: nn.Module, losses: Losses) -> Verdict:
    """What is known about this model, in the modes that its modules are in, with this loss."""
    modes = tuple(module.training for module in model.modules())
    return _VERDICTS.setdefault(model, Verdicts()).of(losses, modes)


_BY_VALUE = (int, float, complex, str, bytes, bool, type(None))
_EMPTY = object()  # in place of a cell's content while a function is being defined


class Same:
    """One particular object; it is not kept alive where that can be helped, so nothing is held by having been seen."""

    def __init__(self, thing: Any) -> None:
        self._number = id(thing)
        try:
            self._find: Any = weakref.ref(thing)
        except TypeError:
            self._find = lambda: thing

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        thing = self._find()
        return isinstance(other, Same) and thing is not None and thing is other._find()


def identify_loss(thing: Any, depth: int = 6) -> Hashable:
    """A key that two things share only if they do the same; below ``depth`` only the same object is the same."""
    if isinstance(thing, _BY_VALUE):
        return type(thing), repr(thing)  # by its text: 0.0 and -0.0, 1 and True are different things
    if depth == 0:
        return Same(thing)
    if isinstance(thing, tuple):
        return type(thing), tuple(identify_loss(each, depth - 1) for each in thing)
    if isinstance(thing, types.FunctionType):
        inside = (_read_closure(thing), thing.__defaults__, _sort_items(thing.__kwdefaults__))
        return thing.__code__, identify_loss(inside, depth - 1)
    if isinstance(thing, types.MethodType):
        return identify_loss(thing.__func__, depth - 1), Same(thing.__self__)
    if isinstance(thing, functools.partial):
        return identify_loss((thing.func, thing.args, _sort_items(thing.keywords)), depth - 1)
    return Same(thing)


def code_of(thing: Any) -> Hashable:
    """What all functions of one factory share."""
    while isinstance(thing, (types.MethodType, functools.partial)):
        thing = thing.__func__ if isinstance(thing, types.MethodType) else thing.func
    return thing.__code__ if isinstance(thing, types.FunctionType) else Same(thing)


def _read_closure(function: types.FunctionType) -> tuple[Any, ...]:
    """The contents of its cells."""
    cells = function.__closure__ or ()
    return tuple(_EMPTY if cell == types.CellType() else cell.cell_contents for cell in cells)


def _sort_items(named: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((named or {}).items(), key=lambda item: item[0]))
