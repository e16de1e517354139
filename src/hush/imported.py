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
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise BadInput(f"'{path}' cannot be imported: {error}") from error
    except Exception as error:  # whatever the module's own code raises
        raise BadInput(f"'{path}' cannot be imported: its module stops with {type(error).__name__}") from error
    return found
