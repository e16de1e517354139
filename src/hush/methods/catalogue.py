"""Every method that comes with hush, by name."""

from __future__ import annotations

import inspect
from typing import Any

from hush.methods import correlated, independent
from hush.methods.groups import Method

MODULES = (independent, correlated)  # every public function in these is a method


def catalogue() -> dict[str, Method]:
    """Every method that comes with hush, by name, in the order of their modules."""
    return {method.__name__.replace("_", "-"): method for module in MODULES for method in _made_in(module)}


def _made_in(module: Any) -> list[Method]:
    functions = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    public = [f for f in functions if not f.__name__.startswith("_")]
    return sorted(public, key=lambda f: f.__code__.co_firstlineno)
