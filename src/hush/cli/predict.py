"""`hush predict`: what a released model says of new rows, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush.cli.console import be_patient, show, show_json
from hush.cli.shell import AsJson
from hush.handover import load

MOST_NAMED = 6  # columns that a line names
ReleaseFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A release's folder, or the run's that wrote it.")]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Import and call the factory of the model's own code, which the release names."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")]


def predict(
    folder: ReleaseFolder,
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="NEW",
            help="Rows as in training, without labels: .csv, .parquet (or a folder of such), .npz, a folder of images.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the predictions go: .csv or .parquet.")],
    trust_code: TrustCode = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a released model: classes and their probabilities, or numbers.

    Rows are read as in training: unknown categories and missing values as there; labels are not needed and not looked
    at. One line for each row, in the rows' order.

    Example: `hush predict run/release new.csv --out predictions.csv`
    """
    from hush.predicting import predict_file  # brings scikit-learn, for which other commands have no use

    model = load(folder, trust_code=trust_code)
    with be_patient(f"predicting {rows.name}") as tell:
        written = predict_file(model, rows, out, overwrite=overwrite, tell=tell)
    if as_json:
        show_json(
            {"out": str(out), "rows": written.rows, "columns": list(written.columns), "release": str(model.folder)}
        )
        return
    many = len(written.columns) > MOST_NAMED
    named = ", ".join(written.columns[:MOST_NAMED]) + (f" and {len(written.columns) - MOST_NAMED} more" if many else "")
    show(f"{written.rows} row{'s' * (written.rows != 1)} predicted: {out} ({named})")
