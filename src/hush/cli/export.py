"""`hush export`: a released model as one file that runs without hush, and its encoding as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hush.cli.console import be_patient, show, show_json
from hush.cli.predict import Overwrite, ReleaseFolder, TrustCode
from hush.cli.shell import AsJson
from hush.handover import load
from hush.validate import one_of


def export(
    folder: ReleaseFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The file to write, model.pt2 or model.onnx by default; its encoding goes beside it, with .json added "
            "to its name.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="torch or onnx.")] = "torch",
    trust_code: TrustCode = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write the part of a released model that comes after the encoding as one file that runs without hush.

    It takes encoded inputs, for any number of rows; the JSON beside it says how a row is encoded, and what the outputs
    are. torch: a .pt2 of torch.export. onnx: for any ONNX runtime, and needs the extra `onnx`.

    Example: `hush export run/release --format onnx --out model.onnx`
    """
    from hush.exchange import FORMATS, export_release  # brings the exporters, for which other commands have no use

    one_of(tuple(FORMATS), format=kind)
    out = Path(f"model{FORMATS[kind]}") if out is None else out
    model = load(folder, trust_code=trust_code)
    with be_patient(f"exporting to {out.name}"):
        beside = export_release(model, out, kind, overwrite=overwrite)
    if as_json:
        show_json({"out": str(out), "encoding": str(beside), "format": kind, "release": str(model.folder)})
    else:
        show(f"exported: {out}, and what its inputs and outputs are: {beside}")
