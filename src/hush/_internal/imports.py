"""Imports of third-party objects by the name ``package.module:attribute``, without registration; versions."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hush.errors import HushError, InvalidInputError


def import_object(path: str) -> Any:
    """The object that ``package.module:attribute`` names."""
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InvalidInputError(f"'{path}' cannot be imported: {error}") from error
    except Exception as error:  # whatever the module's own code raises
        raise InvalidInputError(f"'{path}' cannot be imported: its module stops with {type(error).__name__}") from error
    return found


def import_factory(path: str) -> Callable[..., Any]:
    """The function or class that ``package.module:attribute`` names."""
    found = import_object(path)
    if not callable(found):
        raise InvalidInputError(f"'{path}' is not a function or class that can be called")
    return found  # type: ignore[no-any-return]


def call_factory(path: str, options: Mapping[str, Any]) -> Any:
    """What the factory that ``package.module:attribute`` names returns, called with the options that it takes."""
    factory = import_factory(path)
    with explain_errors(path):
        return call_with(factory, options)


@contextmanager
def explain_errors(path: str) -> Iterator[None]:
    """Name the code of others that does not work; what it says is left out, as it may quote the data."""
    try:
        yield
    except (HushError, OSError):
        raise
    except Exception as error:
        raise InvalidInputError(
            f"'{path}' raised {type(error).__name__} when it was called: it is not what was expected, or has an error "
            "(HUSH_TRACEBACK=1 shows where)"
        ) from error


def call_with(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Call a factory with the options that it accepts by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(**options)
    accepted = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return function(**{name: value for name, value in options.items() if name in accepted})


def find_version(path: str) -> str | None:
    """The version of the distribution that provides ``package.module:attribute``, or None."""
    package = path.partition(":")[0].partition(".")[0]
    found = metadata.packages_distributions().get(package)
    return metadata.version(found[0]) if found else None


# Versions of hush and of its dependencies, under the names that files store.

DISTRIBUTION = "hush-dp"  # the installed distribution; it is imported, and called in the shell, as hush
BEFORE = "hush"  # the distribution's name up to 0.1.0, for installations made then


def read_own_version() -> str:
    """The version of the installed hush."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return version(BEFORE)


def read_versions(*names: str) -> dict[str, str]:
    """The installed versions by name; ``hush`` is this project, whatever its distribution is called."""
    return {name: read_own_version() if name == "hush" else version(name) for name in names}
