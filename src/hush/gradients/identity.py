"""When two loss functions are one: by what they do, not by which object they are.

A lambda written in a training loop is a new object at every step and the same loss each time. Two functions that one
factory made are one code with two closures, and may do different things. So a function is known by its code and by
what it closes over: numbers and text by value, everything else by being the same object.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Hashable
from typing import Any

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


def identity(thing: Any, depth: int = 6) -> Hashable:
    """A key that two things share only if they do the same; below ``depth`` only the same object is the same."""
    if isinstance(thing, _BY_VALUE):
        return type(thing), repr(thing)  # by its text: 0.0 and -0.0, 1 and True are different things
    if depth == 0:
        return Same(thing)
    if isinstance(thing, tuple):
        return type(thing), tuple(identity(each, depth - 1) for each in thing)
    if isinstance(thing, types.FunctionType):
        inside = (_closed_over(thing), thing.__defaults__, _sorted(thing.__kwdefaults__))
        return thing.__code__, identity(inside, depth - 1)
    if isinstance(thing, types.MethodType):
        return identity(thing.__func__, depth - 1), Same(thing.__self__)
    if isinstance(thing, functools.partial):
        return identity((thing.func, thing.args, _sorted(thing.keywords)), depth - 1)
    return Same(thing)


def code_of(thing: Any) -> Hashable:
    """What all functions of one factory share."""
    while isinstance(thing, (types.MethodType, functools.partial)):
        thing = thing.__func__ if isinstance(thing, types.MethodType) else thing.func
    return thing.__code__ if isinstance(thing, types.FunctionType) else Same(thing)


def _closed_over(function: types.FunctionType) -> tuple[Any, ...]:
    """The contents of its cells."""
    cells = function.__closure__ or ()
    return tuple(_EMPTY if cell == types.CellType() else cell.cell_contents for cell in cells)


def _sorted(named: dict[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((named or {}).items(), key=lambda item: item[0]))
