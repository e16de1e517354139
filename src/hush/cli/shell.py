"""From a dataclass of settings to a command of the shell, and to the file from which a run is resumed.

A command is a function of one object, ``@take(Kind) def command(given: Kind)``. Its options, their help, their order
and their defaults are made from the fields of ``Kind``; what is not given on the command line keeps its default.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from hush.errors import BadInput
from hush.settings import DATA, LENGTH, METHOD, PRIVACY, SettingField, list_settings, option

KEEPING, MACHINE = "Output, resuming and the ledger", "Randomness and memory"
GROUPS = (None, DATA, METHOD, PRIVACY, LENGTH, KEEPING, MACHINE)  # in the order in which help shows them
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Kind = TypeVar("Kind")
Given = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How a command answers."""

    as_json: bool = field(default=False, metadata=option("Print JSON on stdout.", flag="--json", saved=False))


def take(
    kind: type[Kind], *, without: tuple[str, ...] = (), resolve: Callable[[Given], Given] = dict
) -> Callable[[Callable[[Kind], None]], Callable[..., None]]:
    """Make a command of a function of one ``kind``, with an option for each field but those ``without``.

    ``resolve`` gets what was given on the command line and may add what comes from elsewhere.
    """
    known = [found for name, found in list_settings(kind).items() if name not in without]
    parameters = [_parameter(found) for found in sorted(known, key=lambda found: GROUPS.index(found.option.group))]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    def decorate(run: Callable[[Kind], None]) -> Callable[..., None]:
        def command(context: typer.Context, **values: Any) -> None:
            run(kind(**resolve({name: value for name, value in values.items() if _is_given(context, name)})))

        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(found: SettingField) -> inspect.Parameter:
    """The field as typer wants it; without a default it must be given."""
    about = found.option
    flags = () if about.flag is None else (about.flag,)
    shown = typer.Option(*flags, help=about.help, metavar=about.metavar, rich_help_panel=about.group)
    default = inspect.Parameter.empty if found.default is MISSING else found.default
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(found.name, place, default=default, annotation=Annotated[found.hint, shown])


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def write_settings(settings: Any) -> bytes:
    """The settings that a run keeps, as JSON."""
    known = list_settings(type(settings))
    values = {name: getattr(settings, name) for name, found in known.items() if found.option.saved}
    plain = {n: {"path": str(v.resolve())} if isinstance(v, Path) else v for n, v in values.items()}
    return (json.dumps(plain, indent=2) + "\n").encode()


def read_settings(path: Path, kind: type) -> Given:
    """The settings that a run has kept, each of the type of its field; an error names a damaged file."""
    known = list_settings(kind)
    try:
        found = {name: _from_json(value) for name, value in json.loads(path.read_bytes()).items()}
        for name, value in found.items():
            if name in known and not _is_a(value, known[name].hint):
                raise ValueError(name)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"'{path}' is damaged: remove it, and give the run's own options beside --resume") from error
    return {name: value for name, value in found.items() if name in known}


def _from_json(value: Any) -> Any:
    if isinstance(value, list) and value and not any(isinstance(item, str) for item in value):
        return tuple(value)  # a range
    return Path(value["path"]) if isinstance(value, dict) else value


def _is_a(value: Any, hint: Any) -> bool:
    parts = (hint, *typing.get_args(hint))
    if isinstance(value, tuple):
        return tuple[float, float] in parts and len(value) == 2 and all(_is_a(item, float) for item in value)
    if isinstance(value, list):
        return list[str] in parts and all(isinstance(item, str) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int in parts or float in parts
    if isinstance(value, Path):
        return Path in parts
    return type(value) in parts
