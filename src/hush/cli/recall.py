"""The options that a run was begun with, read back from its private part and checked: the file may be damaged."""

from __future__ import annotations

import inspect
import json
import types
import typing
from pathlib import Path
from typing import Any

from hush.errors import BadInput


def read_options(path: Path, command: Any) -> dict[str, Any]:
    """The kept options, each of a type that the command takes; an error names a damaged file."""
    kinds = typing.get_type_hints(inspect.unwrap(command))
    try:
        found = {name: _from_json(value) for name, value in json.loads(path.read_bytes()).items()}
        for name, value in found.items():
            if name in kinds and not _is_a(value, kinds[name]):
                raise ValueError(name)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"'{path}' is damaged: remove it, and give the run's own options beside --resume") from error
    return found


def _from_json(value: Any) -> Any:
    return Path(value["path"]) if isinstance(value, dict) else value


def _is_a(value: Any, hint: Any) -> bool:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, list):
        return list[str] in parts and all(isinstance(item, str) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int in parts or float in parts
    return any(isinstance(part, type) and type(value) is part for part in parts) or (
        isinstance(value, Path) and Path in parts
    )
