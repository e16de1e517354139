"""`hush evaluate`: how good a released model is on rows whose labels are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush.cli.console import be_patient, show, show_json, show_table
from hush.cli.predict import ReleaseFolder, TrustCode
from hush.cli.shell import AsJson
from hush.handover import load

if TYPE_CHECKING:
    from hush.figures import Figures, ValueFigures

EXACT = (
    "These figures are exact and not covered by ε: they say something about the rows they were measured on, so keep "
    "them to yourself unless those rows are public."
)
MOST_SHOWN = 20  # classes of which a confusion matrix is shown to people


def evaluate(
    folder: ReleaseFolder,
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="TEST", help="Rows with labels: .csv, .parquet, .npz or a folder of class folders of images."
        ),
    ],
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Measure a released model on rows with labels that it was not trained on.

    Example: `hush evaluate run/release test.csv`
    """
    from hush.figures import Figures  # brings scikit-learn, for which other commands have no use
    from hush.predicting import judge_file

    model = load(folder, trust_code=trust_code)
    with be_patient(f"evaluating on {rows.name}") as tell:
        figures = judge_file(model, rows, tell=tell)
    classes = model.description.classes
    if as_json:
        found = figures.to_json() if isinstance(figures, Figures) else vars(figures)
        show_json({**found, "classes": list(classes), "release": str(model.folder), "covered": False, "note": EXACT})
        return
    if isinstance(figures, Figures):
        _show_classes(figures, classes)
    else:
        _show_values(figures)
    show(EXACT)


def _show_classes(figures: Figures, classes: tuple[str, ...]) -> None:
    show(figures.to_json()["verdict"])
    lines = {
        "rows": f"{figures.rows:g}",
        "accuracy": f"{figures.accuracy:.2%}",
        "accuracy of the commonest class": f"{figures.commonest:.2%}",
        "balanced accuracy": f"{figures.balanced_accuracy:.2%}",
        "AUC": _spell(figures.auc),
        "log-loss": _spell(figures.log_loss),
    }
    _show_lines(lines)
    shown = len(classes) <= MOST_SHOWN
    heads = [f"as {name}" for name in classes] if shown else []
    cells = [
        [name, "–" if recall is None else f"{recall:.2%}", *([f"{count:g}" for count in row] if shown else [])]
        for name, recall, row in zip(classes, figures.recall, figures.confusion, strict=True)
    ]
    show_table("rows of each class, and as what they were predicted", ("class", "recall", *heads), cells)
    if not shown:
        show("the confusion matrix is in --json")


def _show_values(figures: ValueFigures) -> None:
    from hush.figures import NO_USE

    spelt = {"MAE": _spell(figures.mae), "RMSE": _spell(figures.rmse), "R²": _spell(figures.r2)}
    if (figures.r2 or 0.0) < 0:
        show(NO_USE)
    _show_lines({"rows": str(figures.rows), **spelt})


def _show_lines(lines: dict[str, str]) -> None:
    pad = max(map(len, lines))
    for name, value in lines.items():
        show(f"{name:<{pad}}  {value}")


def _spell(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"
