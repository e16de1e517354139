"""Methods are functions ``(setting, *groups, **options) -> Plan``: list them, list the options of one, call one.

An option group is a dataclass that several methods take after the setting (``hush.methods.options``). The caller gives
flat options; their groups and their defaults are read from the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from hush.methods import correlated, independent, sanitized
from hush.methods.config import PlanConfig
from hush.plan import Plan

MODULES = (independent, correlated, sanitized)  # every public function in these is a method
Method = Callable[..., Plan]


def catalogue() -> dict[str, Method]:
    """The methods of hush by name, in the order of their source."""
    return {method.__name__.replace("_", "-"): method for module in MODULES for method in _list_public(module)}


def _list_public(module: Any) -> list[Method]:
    functions = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    public = [f for f in functions if not f.__name__.startswith("_")]
    return sorted(public, key=lambda f: f.__code__.co_firstlineno)


def options(method: Method) -> dict[str, inspect.Parameter]:
    """The options of a method: the fields of its option groups, and its own keyword arguments."""
    hints = get_type_hints(method)
    parameters = inspect.signature(method).parameters.values()
    shared = [option for kind in option_groups(method).values() for option in _fields(kind)]
    own = [p.replace(annotation=hints.get(p.name, Any)) for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return {option.name: option for option in (*shared, *own)}


def purpose(method: Method) -> str:
    """The purpose of a method: the paragraph of its docstring that begins with "For"; empty without one."""
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(method) or "").split("\n\n")]
    return next((text for text in paragraphs if text.startswith("For ")), "")


def call_method(method: Method, setting: PlanConfig, chosen: dict[str, Any]) -> Plan:
    """The method's plan, with its option groups filled from ``chosen``."""
    groups: dict[str, Any] = {}
    for name, kind in option_groups(method).items():
        theirs = {option.name for option in _fields(kind)} & set(chosen)
        groups[name] = kind(**{key: chosen[key] for key in theirs})
        chosen = {key: value for key, value in chosen.items() if key not in theirs}
    return method(setting, **groups, **chosen)


def option_groups(method: Method) -> dict[str, type]:
    """The option groups of a method (such as `ClippingOptions`) by parameter name."""
    hints = get_type_hints(method)
    names = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    return {name: hints[name] for name in names if is_dataclass(hints.get(name))}


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    place = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, place, default=f.default, annotation=hints[f.name]) for f in fields(kind)]
