"""The schema of a table, or the first of its problems as an error."""

from __future__ import annotations

from typing import Any

from hush.tabular.inspect import infer
from hush.tabular.schema import Schema


def infer_schema(*args: Any, **options: Any) -> Schema:
    return infer(*args, **options).require()
