"""Objects of other people's code, by the name ``package.module:attribute``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from hush.errors import BadInput


def imported(path: str) -> Any:
    """The object that ``package.module:attribute`` names."""
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"'{path}' cannot be imported: {error}") from error
    if not callable(found):
        raise BadInput(f"'{path}' is not a function or class that can be called")
    return found


def called_with(factory: Any, options: Mapping[str, Any]) -> Any:
    """Call a factory with those of the options that it takes by name."""
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return factory(**options)
    accepted = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return factory(**{name: value for name, value in options.items() if name in accepted})
