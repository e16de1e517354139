"""Problems by name: data, model, loss and metric together.

Those that come with hush are rows of ``hush.problems.table``. A problem of one's own is a function somewhere else,
named ``package.module:factory``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hush.errors import BadInput, nearest
from hush.imports import call_with, import_factory
from hush.problems.evaluation import Evaluation, evaluate, evaluate_problem
from hush.problems.own_data import from_files
from hush.problems.problem import Problem, cross_entropy

if TYPE_CHECKING:
    from hush.problems.table import Row

DEFAULT = "digits-mlp"

__all__ = [
    "DEFAULT",
    "Evaluation",
    "Problem",
    "cross_entropy",
    "evaluate",
    "evaluate_problem",
    "from_files",
    "load",
    "names",
]


def names() -> list[tuple[str, str]]:
    """Every problem that ships with hush: (name, one-line summary), sorted by name."""
    return sorted((row.name, row.summary) for row in _import_table().values())


def load(name: str = DEFAULT, *, seed: int = 0, validation: float = 0.0, data_dir: str | Path | None = None) -> Problem:
    """The problem of that name, or of ``package.module:factory``, with its data read and checked.

    ``seed`` and ``validation`` (a fraction of the training rows) decide the validation part; ``data_dir`` is where the
    datasets lie (default: the environment variable HUSH_DATA, then the cache, then a download)."""
    if not 0 <= validation < 1:
        raise BadInput(f"validation must be a fraction of at least 0 and below 1, got {validation}")
    place = None if data_dir is None else Path(data_dir)
    if ":" in name:
        found = call_with(import_factory(name), {"seed": seed, "validation": validation, "data_dir": place})
        if not isinstance(found, Problem):
            raise BadInput(f"'{name}' returned {type(found).__name__} where a hush.problems.Problem was expected")
        return found
    if name not in _import_table():
        raise BadInput(f"unknown problem '{name}': {nearest(name, _import_table())}")
    return _import_table()[name].load(seed=seed, validation=validation, data_dir=place)


def _import_table() -> dict[str, Row]:
    """Imported when it is asked for: the loaders bring the libraries that download."""
    from hush.problems.table import PROBLEMS

    return PROBLEMS
