"""How good the model of `hush train` is: what the person at the keyboard sees, and what of it may be released.

Exact figures of held-out rows go to stdout and to ``private/figures.json``. Into the release go exact figures of rows
that were declared public (`--public-test`), or counts with noise that the plan's event holds (`--private-metrics`).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hush import validate
from hush.artefact.folder import CARD, WEIGHTS, digest_files, pack_weights, read_json
from hush.beside import Beside
from hush.cli.console import say
from hush.cli.keeper import Keeper
from hush.errors import BadInput
from hush.figures import NO_USE, Counts, from_counts
from hush.files import PRIVATE, write_atomic
from hush.plan import Plan
from hush.printable import as_json_data, dump_json
from hush.private_figures import ASSUMPTIONS, CountNoise, add_count_noise, calibrate_counts, noise_stds
from hush.problems import Evaluation, Problem
from hush.run import Run

NAME = "figures with noise of the held-out rows"
SHARE = (
    0.1  # of δ, at which the ε of these figures is meant; what they cost together with training is accounted exactly
)
FIGURES, METRICS, NOTES = "figures.json", "private_metrics.json", "columns.json"  # in the private part of a run
FEW = 3  # classes whose recall is told
DIVERGED = "the model gives numbers that are not finite: training has diverged"


def plan_metrics(plan: Plan, task: Problem, epsilon: float, total: float | None) -> Plan:
    """The plan with figures of so much ε beside it, and σ such that both stay within the ``total`` ε, if there is one.

    Rows without units are split by their position, so that one more or less would move others from one part to the
    other. The two are composed, also where units are split by their identity: no parallel composition is claimed."""
    validate.positive(private_metrics=epsilon)
    if task.classes is None:
        raise BadInput(f"--private-metrics counts classes, and '{task.name}' has none: leave it out")
    if total is not None and epsilon >= total:
        raise BadInput(
            f"--private-metrics {epsilon:g} leaves nothing of --epsilon {total:g} for training: give less to the "
            "figures, or more in all"
        )
    noise = calibrate_counts(epsilon, SHARE * plan.delta, classes=task.classes, adjacency=plan.neighbours)
    release = Beside(NAME, noise.event, plan.neighbours, noise.lost, ASSUMPTIONS)
    both = replace(plan, beside=(*plan.beside, release))
    return both if total is None else both.calibrated(total)


def make_fields(evaluation: Evaluation, task: Problem) -> dict[str, Any]:
    """The exact figures as fields of the command's answer."""
    fields: dict[str, Any] = {"test_loss": evaluation.loss}
    if evaluation.values is not None:
        values = evaluation.values
        return {**fields, "test_mae": values.mae, "test_rmse": values.rmse, "test_r2": values.r2}
    if task.target_range is not None:
        return {**fields, "test_mae": None, "test_rmse": None, "test_r2": None}
    figures = evaluation.figures
    if task.metric != "accuracy" or figures is None:
        return fields
    told, finite = figures.to_json(), math.isfinite(evaluation.loss)
    return {
        **fields,
        "test_accuracy": evaluation.accuracy,
        "test_commonest_accuracy": figures.commonest,
        "test_balanced_accuracy": figures.balanced_accuracy,
        "test_auc": figures.auc if finite else None,
        "test_log_loss": figures.log_loss if finite else None,
        "test_recall": dict(zip(task.classes_by_name, figures.recall, strict=True)),
        "test_confusion": told["confusion"],
        "verdict": told["verdict"],
    }


def keep_figures(keeper: Keeper, fields: dict[str, Any]) -> None:
    """The exact figures in the private part of the run."""
    if keeper.checkpoints is not None:
        _write(keeper.checkpoints.directory / FIGURES, fields)


def keep_notes(keeper: Keeper, task: Problem) -> None:
    """How many values of the table are missing, in the private part of the run."""
    if keeper.checkpoints is not None and task.notes is not None:
        _write(keeper.checkpoints.directory / NOTES, {"columns": list(task.notes.private)})


def choose_released(
    run: Run, task: Problem, evaluation: Evaluation, keeper: Keeper, *, public: bool, fields: dict[str, Any]
) -> dict[str, Any]:
    """What the card says of how good the model is: nothing, unless test rows are public or the plan pays for noise."""
    if public:
        figures: dict[str, Any] = as_json_data({**fields, "rows": evaluation.examples})
        return {"test_figures": figures}
    release = next((release for release in run.plan.beside if release.name == NAME), None)
    if release is None:
        return {}
    return {"private_metrics": _release_once(run, task, evaluation, keeper, release)}


def _release_once(
    run: Run, task: Problem, evaluation: Evaluation, keeper: Keeper, release: Beside
) -> dict[str, Any] | None:
    """The noisy figures of a run are drawn once. They are on the disk before anybody sees them; a run that is reported
    again shows the same ones, for other noise on the same counts would be a second release."""
    if keeper.checkpoints is None:
        return _draw(task, evaluation, release)
    path, weights = keeper.checkpoints.directory / METRICS, digest_files({WEIGHTS: pack_weights(run.model)})[WEIGHTS]
    resumed = keeper.resumed_from is not None  # a run that is new has drawn nothing
    before = _read(path) if resumed else None
    if resumed and before is None and (released := _find_released(keeper.release, weights)) is not None:
        return released
    if before is not None and before["run"] == keeper.checkpoints.name:
        if before["weights"] == weights:
            found: dict[str, Any] = before["metrics"]
            return found
        say("the figures with noise were drawn for other weights of this run and are paid for once: none are released")
        return None
    metrics = _draw(task, evaluation, release)
    _write(path, {"run": keeper.checkpoints.name, "weights": weights, "metrics": metrics})
    return metrics


def _find_released(release: Path | None, weights: str) -> dict[str, Any] | None:
    """The figures in a release of these very weights that is there, whatever became of the private part."""
    if release is None or not (release / CARD).is_file():
        return None
    card = read_json(release / CARD)
    digests, found = card.get("digests"), card.get("private_metrics")
    same = isinstance(digests, dict) and digests.get(WEIGHTS) == weights
    return found if same and isinstance(found, dict) else None


def _draw(task: Problem, evaluation: Evaluation, release: Beside) -> dict[str, Any]:
    if evaluation.probabilities is None or evaluation.labels is None:
        raise BadInput(f"--private-metrics counts classes, and '{task.name}' has none: leave it out")
    noise = CountNoise(release.event.noise_multiplier, release.lost, release.adjacency)
    units = None if task.owners is None else task.owners.test
    counts = add_count_noise(evaluation.probabilities, evaluation.labels, noise, units=units)
    there = evaluation.examples if units is None else len(np.unique(units))
    known = None if release.adjacency == "add-remove" else there  # else who is there is not hidden
    found = describe_counts(counts, noise, task.classes_by_name, known)
    return found if task.owners is None else {**found, "weighed": f"each {task.unit} counts 1, whatever its rows"}


def describe_counts(counts: Counts, noise: CountNoise, classes: tuple[str, ...], rows: int | None) -> dict[str, Any]:
    """Noisy counts, the noise in them, and every figure that follows from them, as plain data; ``rows`` is the number
    of rows where that is public, or of units where each of them counts 1. The accuracy is a sum over the diagonal, and
    so has the noise of as many cells."""
    matrix, each_bin = noise_stds(noise.sigma, noise.adjacency, counts.histograms.shape[1])
    figures = from_counts(counts, rows=rows)
    return {
        "classes": list(classes),
        "figures": figures.to_json(),
        "accuracy_std": matrix * math.sqrt(len(classes)) / figures.rows,
        "noisy_confusion": counts.confusion.tolist(),
        "noisy_histograms": counts.histograms.tolist(),
        "noise_std": {"confusion": matrix, "histograms": each_bin},
        "noise_multiplier": noise.sigma,
    }


def list_lines(result: dict[str, Any], took: str) -> list[str]:
    """The figures for people; the first line has the figure that counts most, and how long it took."""
    if "test_mae" in result:
        if result["test_mae"] is None:
            return [f"{DIVERGED}  {took}"]
        r2 = "R² does not exist" if result["test_r2"] is None else f"R² {result['test_r2']:.3f}"
        told = f"test MAE {result['test_mae']:.4g}, RMSE {result['test_rmse']:.4g}, {r2}  {took}"
        return [told, *([NO_USE] if (result["test_r2"] or 0.0) < 0 else [])]
    if "test_accuracy" not in result:
        return [f"test loss {math.nan if result['test_loss'] is None else result['test_loss']:.4f}  {took}"]
    if result["test_log_loss"] is None:
        return [f"{DIVERGED}  {took}", *_list_noisy(result)]
    lines = [f"test accuracy {100 * result['test_accuracy']:.2f} %  {took}", _tell_others(result)]
    low = sorted((r, name) for name, r in result["test_recall"].items() if r is not None)[:FEW]
    lines.append("lowest recall: " + ", ".join(f"{100 * recall:.1f} % of '{name}'" for recall, name in low))
    lines += _list_noisy(result)
    useless = result["test_accuracy"] <= result["test_commonest_accuracy"]
    return [*lines, result["verdict"]] if useless else lines


def _tell_others(result: dict[str, Any]) -> str:
    auc = "does not exist" if result["test_auc"] is None else f"{result['test_auc']:.3f}"
    return (
        f"always the commonest class {100 * result['test_commonest_accuracy']:.2f} %, balanced accuracy "
        f"{100 * result['test_balanced_accuracy']:.2f} %, AUC {auc}, log-loss {result['test_log_loss']:.3f}"
    )


def _list_noisy(result: dict[str, Any]) -> list[str]:
    """The figures with noise in one line, where there are any."""
    metrics = result.get("private_metrics")
    if not metrics:
        return []
    figures = metrics["figures"]
    told = (
        f"released with noise: accuracy {100 * figures['accuracy']:.1f} % ± {100 * metrics['accuracy_std']:.1f} % (a "
        f"standard deviation of the noise), always the commonest class {100 * figures['commonest']:.1f} %"
    )
    return [f"{told}; {metrics['weighed']}" if "weighed" in metrics else told]


def _write(path: Path, value: Any) -> None:
    write_atomic(path, (dump_json(as_json_data(value), indent=2) + "\n").encode(), mode=PRIVATE)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' is damaged, and figures with noise are drawn once: they cannot be given") from error
    if not isinstance(found, dict) or not {"run", "weights", "metrics"} <= found.keys():
        raise BadInput(f"'{path}' is damaged, and figures with noise are drawn once: they cannot be given")
    return found
