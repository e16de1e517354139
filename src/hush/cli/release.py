"""`hush predict`, `hush evaluate`, `hush verify` and `hush export`: commands for a released model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush._internal.validate import choice
from hush.cli.console import AsJson, delayed_status, show, show_json, show_table
from hush.cli.options import check_exists

if TYPE_CHECKING:
    from hush.statistics.metrics import ClassificationMetrics, RegressionMetrics


MOST_NAMED = 6  # largest number of columns named in a line
ReleaseFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a release, or of the run that wrote it.")]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Import and call the factory of the model's own code that the release names."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]


def predict(
    folder: ReleaseFolder,
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="NEW",
            help="Rows as in training, without labels: .csv, .parquet (or a folder of such), .npz, a folder of images.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File for the predictions: .csv or .parquet.")],
    trust_code: TrustCode = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a released model: classes and their probabilities, or numbers.

    Rows are encoded as in training, including unknown categories and missing values; labels are not needed and not
    read. The output has one line per row, in the order of the rows.

    Example: `hush predict run/release new.csv --out predictions.csv`
    """
    check_exists(folder, "folder")
    check_exists(rows)
    from hush.release.load import load
    from hush.release.predict import predict_file  # imports scikit-learn, which other commands do not need

    model = load(folder, trust_code=trust_code)
    with delayed_status(f"predicting {rows.name}") as notify:
        written = predict_file(model, rows, out, overwrite=overwrite, notify=notify)
    if as_json:
        show_json(
            {"out": str(out), "rows": written.rows, "columns": list(written.columns), "release": str(model.folder)}
        )
        return
    many = len(written.columns) > MOST_NAMED
    named = ", ".join(written.columns[:MOST_NAMED]) + (f" and {len(written.columns) - MOST_NAMED} more" if many else "")
    show(f"{written.rows} row{'s' * (written.rows != 1)} predicted: {out} ({named})")


# `hush evaluate`: the quality of a released model on rows with known labels.

EXACT = (
    "These figures are exact and not covered by ε: they reveal something about the rows they were measured on, so do "
    "not publish them unless those rows are public."
)
MOST_SHOWN = 20  # largest number of classes for which the confusion matrix is printed


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
    check_exists(folder, "folder")
    check_exists(rows)
    from hush.release.load import load
    from hush.release.predict import judge_file
    from hush.statistics.metrics import ClassificationMetrics  # imports scikit-learn, which other commands do not need

    model = load(folder, trust_code=trust_code)
    with delayed_status(f"evaluating on {rows.name}") as notify:
        metrics = judge_file(model, rows, notify=notify)
    classes = model.description.classes
    if as_json:
        found = metrics.to_json() if isinstance(metrics, ClassificationMetrics) else vars(metrics)
        show_json({**found, "classes": list(classes), "release": str(model.folder), "covered": False, "note": EXACT})
        return
    if isinstance(metrics, ClassificationMetrics):
        _show_classes(metrics, classes)
    else:
        _show_values(metrics)
    show(EXACT)


def _show_classes(metrics: ClassificationMetrics, classes: tuple[str, ...]) -> None:
    show(metrics.to_json()["verdict"])
    lines = {
        "rows": f"{metrics.rows:g}",
        "accuracy": f"{metrics.accuracy:.2%}",
        "accuracy of the commonest class": f"{metrics.commonest:.2%}",
        "balanced accuracy": f"{metrics.balanced_accuracy:.2%}",
        "AUC": _spell(metrics.auc),
        "log-loss": _spell(metrics.log_loss),
    }
    _show_lines(lines)
    shown = len(classes) <= MOST_SHOWN
    heads = [f"as {name}" for name in classes] if shown else []
    cells = [
        [name, "–" if recall is None else f"{recall:.2%}", *([f"{count:g}" for count in row] if shown else [])]
        for name, recall, row in zip(classes, metrics.recall, metrics.confusion, strict=True)
    ]
    show_table("confusion matrix: rows of each class by predicted class", ("class", "recall", *heads), cells)
    if not shown:
        show("the confusion matrix is in --json")


def _show_values(metrics: RegressionMetrics) -> None:
    from hush.statistics.metrics import NO_USE

    spelt = {"MAE": _spell(metrics.mae), "RMSE": _spell(metrics.rmse), "R²": _spell(metrics.r2)}
    if (metrics.r2 or 0.0) < 0:
        show(NO_USE)
    _show_lines({"rows": str(metrics.rows), **spelt})


def _show_lines(lines: dict[str, str]) -> None:
    pad = max(map(len, lines))
    for name, value in lines.items():
        show(f"{name:<{pad}}  {value}")


def _spell(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"


# `hush verify`: whether a release is unchanged and consistent.


def verify(
    directory: Annotated[Path, typer.Argument(help="Folder of a release, or of the run that wrote it.")],
    as_json: AsJson = False,
) -> None:
    """Check a release: digests of all files, weights against description, card against plan, ε recomputed.

    Exit code 1 if anything differs. Digests detect accidents and careless edits; they are not a signature."""
    check_exists(directory, "folder")
    from hush.release.verify import verify as verify_release

    found = verify_release(directory)
    if as_json:
        show_json(found.to_json())
    else:
        show(found.sentence())
    if not found.verified:
        raise typer.Exit(1)


# `hush export`: a released model as one file that runs without hush, and its encoding as JSON.


def export(
    folder: ReleaseFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The file to write, by default model.pt2 or model.onnx; its encoding is written next to it, as the "
            "same name with .json added.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="Format of the file: torch or onnx.")] = "torch",
    trust_code: TrustCode = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write the network of a released model, without the encoding of its inputs, as one file that runs without hush.

    It takes encoded inputs, for any number of rows; the JSON file next to it describes how a row is encoded and what
    the outputs are. torch: a .pt2 file of torch.export. onnx: for any ONNX runtime; needs the extra `onnx`.

    Example: `hush export run/release --format onnx --out model.onnx`
    """
    check_exists(folder, "folder")
    from hush.release.export import (  # imports the exporters, which other commands do not need
        FORMATS,
        export_release,
    )
    from hush.release.load import load

    choice(tuple(FORMATS), format=kind)
    out = Path(f"model{FORMATS[kind]}") if out is None else out
    model = load(folder, trust_code=trust_code)
    with delayed_status(f"exporting to {out.name}"):
        composed = export_release(model, out, kind, overwrite=overwrite)
    if as_json:
        show_json({"out": str(out), "encoding": str(composed), "format": kind, "release": str(model.folder)})
    else:
        show(f"exported: {out}; its inputs and outputs are described in {composed}")
