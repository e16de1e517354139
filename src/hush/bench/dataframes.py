"""A store as tables: one row a run, one row an evaluated epoch, one row a choice.

Things are chosen by the validation part; the test part is only ever reported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hush.bench.store import EPOCHS, Store, check_store
from hush.errors import InvalidInputError, MissingDependencyError

LEFT_OUT = (
    "config",
    "confusion",
    "per_class",
    "class_names",
    "claims",
    "assumptions",
    "versions",
    "machine",
    "format",
    "event",
)


def read_runs(store: str | Path | Store) -> Any:
    """A pandas frame, one row a run: its parameters (problem, method, lr, epsilon …) and its results.

    The ε asked for is ``target_epsilon``, the ε of the guarantee ``epsilon``. Tables inside a record (the confusion
    matrix, every claim) are read by :meth:`Store.record`.
    """
    return _pandas().DataFrame([_row(record) for record in _open(store).records()])


def read_curves(store: str | Path | Store) -> Any:
    """A pandas frame, one row an evaluated epoch of a run: key, step, epoch, ε so far, validation and test figures."""
    opened = _open(store)
    rows: list[dict[str, Any]] = []
    for key in sorted(opened.keys()):
        for line in (opened.folder(key) / EPOCHS).read_text().splitlines():
            rows.append({"key": key, **json.loads(line)})
    return _pandas().DataFrame(rows)


def choose_settings(
    frame: Any, by: Sequence[str] = ("problem", "method", "target_epsilon"), over: Sequence[str] = ("lr",)
) -> Any:
    """For each group ``by``, the setting of ``over`` that is best on the validation part, with its test figures.

    The mean over seeds decides; what did not finish counts as worst. ``spread`` is the standard deviation over seeds.
    """
    pandas = _pandas()
    metric = "accuracy" if "validation_accuracy" in frame and frame["validation_accuracy"].notna().any() else "loss"
    held = f"validation_{metric}"
    if held not in frame or not frame[held].notna().any():
        raise InvalidInputError(
            "nothing can be chosen: these runs have no validation part (validation = 0.1 in the spec)"
        )
    sign = 1.0 if metric == "accuracy" else -1.0
    worst = float("-inf")
    scored = frame.assign(_score=(sign * frame[held]).where(frame["outcome"] == "finished", worst).fillna(worst))
    names = [name for name in (*by, *over) if name in frame]
    settings = scored.groupby(names, dropna=False, sort=False).agg(
        _score=("_score", "mean"),
        validation=(held, "mean"),
        test=(f"test_{metric}", "mean"),
        spread=(f"test_{metric}", "std"),
        runs=("key", "count"),
    )
    rows = settings.reset_index()
    kept = [name for name in by if name in frame]
    best = rows.groupby(kept, dropna=False, sort=False)["_score"].idxmax()
    chosen = rows.loc[best].drop(columns="_score").reset_index(drop=True)
    return chosen.assign(metric=pandas.Series([metric] * len(chosen)))


def _row(record: dict[str, Any]) -> dict[str, Any]:
    config = dict(record["config"])
    options = config.pop("options")
    asked = {f"target_{name}" if name in ("epsilon",) else name: value for name, value in config.items()}
    results = {name: value for name, value in record.items() if name not in LEFT_OUT}
    return {**asked, **options, **results}


def _open(store: str | Path | Store) -> Store:
    if isinstance(store, Store):
        return store
    check_store(Path(store))
    return Store(Path(store))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError("reading a store as a table needs pandas: pip install 'hush-dp[bench]'") from error
    return pandas
