"""Factories of other people's code: named ``package.module:attribute``, called with what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hush.errors import BadInput
from hush.imported import imported


def find_factory(path: str) -> Callable[..., Any]:
    """The function or class that ``package.module:attribute`` names."""
    found = imported(path)
    if not callable(found):
        raise BadInput(f"'{path}' is not a function or class that can be called")
    return found  # type: ignore[no-any-return]


def call_with(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a factory with those of the options that it takes by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(**options)
    accepted = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return function(**{name: value for name, value in options.items() if name in accepted})
