"""Problems by name: data, model, loss and metric together.

A problem is one module in ``hush.problems.known`` with a function ``problem(*, seed, validation, data_dir)``; its name
is the module's name with dashes, its summary the first line of the module's docstring. There is no list to edit. A
problem of one's own is a function somewhere else, named ``package.module:factory``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from hush.errors import BadInput, nearest
from hush.problems import known
from hush.problems.evaluate import Evaluation, evaluate, evaluate_problem
from hush.problems.factory import called_with, factory
from hush.problems.own import from_files
from hush.problems.problem import Problem, cross_entropy

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
    return [(name, _summary(importlib.import_module(module))) for name, module in sorted(_modules().items())]


def load(name: str = DEFAULT, *, seed: int = 0, validation: float = 0.0, data_dir: str | Path | None = None) -> Problem:
    """The problem of that name, or of ``package.module:factory``, with its data read and checked.

    ``seed`` and ``validation`` (a fraction of the training rows) decide the validation part; ``data_dir`` is where the
    datasets lie (default: the environment variable HUSH_DATA, then the cache, then a download)."""
    if not 0 <= validation < 1:
        raise BadInput(f"validation must be a fraction of at least 0 and below 1, got {validation}")
    options = {"seed": seed, "validation": validation, "data_dir": None if data_dir is None else Path(data_dir)}
    if ":" in name:
        found = called_with(factory(name), options)
        if not isinstance(found, Problem):
            raise BadInput(f"'{name}' returned {type(found).__name__} where a hush.problems.Problem was expected")
        return found
    if name not in _modules():
        raise BadInput(f"unknown problem '{name}': {nearest(name, _modules())}")
    module = importlib.import_module(_modules()[name])
    shipped: Problem = called_with(module.problem, options)
    return replace(shipped, name=name, summary=_summary(module))


def _modules() -> dict[str, str]:
    found = pkgutil.iter_modules(known.__path__, known.__name__ + ".")
    return {m.name.rsplit(".", 1)[1].replace("_", "-"): m.name for m in found if ".known._" not in m.name}


def _summary(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").splitlines()[0].rstrip(".")
