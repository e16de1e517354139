"""Export a model for programs without hush: one file that computes it, and its encoding as JSON.

The file takes *encoded* inputs and returns the model's outputs: ``torch`` is a program of torch.export (``.pt2``, a zip
of JSON and plain bytes: the example inputs, which torch would pickle, are left out), ``onnx`` a graph that any ONNX
runtime computes. The number of rows is free. The encoding of a row is in a second file
(`hush.tabular.columns.describe_columns`, `describe_pixels`): every formula and its facts, enough to implement it in
any language.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from hush._internal.storage import remove_parts, write_together
from hush._internal.text import dump_json
from hush._internal.validate import choice
from hush.errors import InvalidInputError, MissingDependencyError
from hush.release.description import Description
from hush.release.load import ReleasedModel, load
from hush.release.predict import check_new_file
from hush.tabular.columns import Encoder, describe_columns

ENCODING = "hush encoding 1"
FORMATS = {"torch": ".pt2", "onnx": ".onnx"}
EXAMPLES = 2  # rows to trace with: torch takes 0 and 1 for fixed sizes


def export_release(model: ReleasedModel, out: Path, kind: str, *, overwrite: bool = False) -> Path:
    """Write the part of a released model after its encoding to ``out``, and its inputs and outputs to a JSON file next
    to it, whose path is returned."""
    choice(tuple(FORMATS), format=kind)
    check_new_file(out, overwrite=overwrite)
    partial = out.with_name(f"{out.name}.json")
    check_new_file(partial, overwrite=overwrite)
    if model.folder.resolve() in out.resolve().parents:
        raise InvalidInputError(
            f"'{out}' lies in the release, which holds what was released and nothing else: give another --out"
        )
    network, encoding = _take_apart(model)
    program = export_program(network, encoding["shape"], kind)
    page = {
        "format": ENCODING,
        "file": {"name": out.name, "format": kind, "sha256": hashlib.sha256(program).hexdigest()},
        "inputs": {"name": "inputs", "type": "float32", "shape": ["rows", *encoding["shape"]]},
        "encoding": encoding,
        "outputs": _describe_outputs(model.description),
        "guarantee": model.card["guarantee"]["sentence"],
    }
    for path in (out, partial):
        remove_parts(path.parent, glob.escape(path.name))
    write_together({partial: (dump_json(page, indent=2) + "\n").encode(), out: program})
    return partial


def _take_apart(model: ReleasedModel) -> tuple[nn.Module, dict[str, Any]]:
    """(the network after its encoding, the encoding as JSON data) of a released model."""
    inputs, network = model.description.inputs, model.network
    if inputs is None:
        raise InvalidInputError(
            "this release does not describe its inputs, so it cannot be exported: release the model with a description"
        )
    if inputs.kind == "images" and inputs.low is not None and inputs.high is not None:
        return network, describe_pixels(inputs.shape, inputs.low, inputs.high, inputs.onto)
    if inputs.schema is not None and isinstance(network, nn.Sequential) and isinstance(network[0], Encoder):
        return network[1], describe_columns(inputs.schema.features)
    return network, _describe_numbers(inputs.shape)


def _describe_outputs(description: Description) -> dict[str, Any]:
    if description.task == "classification":
        said = "one score for each class; the prediction is the largest, the probabilities are softmax of the scores"
        return {"task": description.task, "scores": said, "classes": list(description.classes)}
    if description.task == "regression":
        low, high = description.target_range or (-1.0, 1.0)
        said = "low + (output + 1)·(high − low)/2 is the predicted number"
        return {"task": description.task, "values": said, "low": low, "high": high, "target": description.target}
    return {"task": description.task, "values": "what the network gives"}


def export_program(model: nn.Module, shape: Sequence[int], kind: str) -> bytes:
    """The bytes of a file that computes ``model`` in eval mode on float inputs (rows, *shape)."""
    choice(tuple(FORMATS), format=kind)
    if kind == "onnx":
        _need_onnx()
    training = model.training
    model.eval()
    try:
        program = _trace(model, torch.zeros(EXAMPLES, *shape))
    finally:
        model.train(training)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine, and lines of the model's own source
    return _save_torch(program) if kind == "torch" else _save_onnx(program)


def _trace(model: nn.Module, example: Tensor) -> ExportedProgram:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with _silence():
            return torch.export.export(model, (example.to(device),), dynamic_shapes=({0: Dim("rows")},))
    except Exception as error:  # whatever the model's own code does while it is traced
        raise InvalidInputError(
            f"torch.export cannot follow this model for any number of rows ({type(error).__name__}): its code must not "
            "depend on what the inputs hold or on how many rows there are"
        ) from error


def _save_torch(program: ExportedProgram) -> bytes:
    program.example_inputs = None  # else torch pickles them into the file
    file = io.BytesIO()
    with _silence():
        torch.export.save(program, file)
    return file.getvalue()


def _save_onnx(program: ExportedProgram) -> bytes:
    outputs = len(program.graph_signature.user_outputs)
    names = ["outputs"] if outputs == 1 else [f"outputs_{number}" for number in range(outputs)]
    with _silence():
        converted = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["inputs"], output_names=names)
    if converted is None:
        raise InvalidInputError("torch.onnx gave no program for this model: use --format torch")
    return bytes(converted.model_proto.SerializeToString())


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("format onnx needs onnx and onnxscript: pip install 'hush-dp[onnx]'") from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporters' messages about their internals and about packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def describe_pixels(
    shape: Sequence[int], low: float, high: float, onto: tuple[float, float] = (-1.0, 1.0)
) -> dict[str, Any]:
    """The encoding of images (channels, height, width) as JSON data: each pixel's public range mapped ``onto``."""
    return {
        "kind": "images",
        "shape": list(shape),
        "order": "channels (grey, or red, green, blue), height from the top, width from the left",
        "arithmetic": "float32",
        "low": low,
        "high": high,
        "onto": list(onto),
        "pixel": "(x − low)·(onto[1] − onto[0])/(high − low) + onto[0]; an x outside [low, high] is an error",
    }


def _describe_numbers(shape: Sequence[int]) -> dict[str, Any]:
    """The encoding of a model that takes unscaled numbers."""
    return {"kind": "arrays", "shape": list(shape), "arithmetic": "float32", "number": "x as it is"}


def export(
    release: str | Path | ReleasedModel,
    out: str | Path | None = None,
    *,
    format: str = "torch",
    overwrite: bool = False,
    trust_code: bool = False,
) -> Path:
    """Write a release as one file that runs without hush, as `hush export` does; returns its path.

    >>> hush.export("run/release", format="onnx")  # doctest: +SKIP
    PosixPath('model.onnx')

    ``format`` is ``torch`` (torch.export, .pt2) or ``onnx``, which needs the extra ``onnx``. The file takes encoded
    inputs; a JSON file of the same name plus ``.json`` describes the encoding and the outputs. ``out`` is model.pt2 or
    model.onnx unless given."""
    choice(tuple(FORMATS), format=format)
    path = Path(f"model{FORMATS[format]}" if out is None else out)
    model = release if isinstance(release, ReleasedModel) else load(release, trust_code=trust_code)
    export_release(model, path, format, overwrite=overwrite)
    return path
