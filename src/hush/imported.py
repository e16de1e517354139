"""Somebody else's object by the name ``package.module:attribute``, so that nothing needs to be registered."""

from __future__ import annotations

import importlib
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
    return found
