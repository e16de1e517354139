"""Exported models: the same numbers in a process without hush, and an encoding that its JSON fully describes."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hush
from hush.datasets.models import mlp, small_cnn
from hush.errors import InvalidInputError, MissingDependencyError
from hush.release.description import Architecture, Description, describe_table
from hush.release.export import FORMATS, describe_pixels, export_program, export_release
from hush.tabular.columns import Category, Encoder, Number, describe_columns
from hush.tabular.rows import read_table
from hush.tabular.schema import Schema

COLUMNS = (
    Category("ward", values=("north", "south", "east")),
    Number("age", low=0, high=110),
    Number("income"),
    Category("town", buckets=7),
    Number("pressure", low=60.5, high=220.1, fill=120),
    Number("weight", fill=-3.5),
)
ROWS = [
    {"ward": "north", "age": "54", "income": "1e3", "town": "Zürich", "pressure": "130", "weight": "70.1"},
    {"ward": " east ", "age": "-3", "income": "-0.02", "town": "", "pressure": "", "weight": "NA"},
    {"ward": "moon", "age": "200", "income": "0", "town": "Bern", "pressure": "60.6", "weight": " ? "},
    {"ward": "south", "age": "109.99", "income": "3141592", "town": "ward", "pressure": "220.1", "weight": "1e-9"},
]

WITHOUT_HUSH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hush":
            raise ImportError("no hush in this process")

sys.meta_path.insert(0, Blocked())
try:
    import hush
except ImportError:
    pass
else:
    sys.exit("hush could be imported")
import numpy
file, inputs, outputs = sys.argv[1:]
x = numpy.load(inputs)
if file.endswith(".pt2"):
    import torch
    y = torch.export.load(file).module()(torch.from_numpy(x)).detach().numpy()
else:
    import onnxruntime
    (y,) = onnxruntime.InferenceSession(file).run(None, {"inputs": x})
numpy.save(outputs, y)
"""


def run_without_hush(file: Path, inputs: np.ndarray) -> np.ndarray:
    """What an exported file computes in a process in which every import of hush fails."""
    given, found = file.with_name("in.npy"), file.with_name("out.npy")
    np.save(given, inputs)
    command = [sys.executable, "-I", "-W", "ignore", "-c", WITHOUT_HUSH, file, given, found]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(found)


def encode(row: dict[str, str], encoding: dict) -> np.ndarray:
    """A row to encoded inputs from what the JSON says alone, in plain numpy."""
    one, missing = np.float32, set(encoding["missing"]["words"])
    cells: dict = {}
    for column in encoding["columns"]:
        text = row[column["name"]].strip()
        if column["kind"] == "number":
            cells[column["name"]] = one(column["fill"] if text.lower() in missing else text)
        else:
            cells[column["name"]] = text
    out = np.zeros(encoding["shape"][0], dtype=np.float32)
    for block in encoding["blocks"]:
        x, at, function = cells[block["column"]], block["at"], block["function"]
        if function == "range":
            low, high = one(block["low"]), one(block["high"])
            out[at] = one(2) * (min(max(x, low), high) - low) / (high - low) - one(1)
        elif function == "asinh":
            out[at] = np.arcsinh(x) / one(4)
        elif function == "tanh":
            out[at] = np.tanh(x)
        elif function in ("sin", "cos"):
            wave = {"sin": np.sin, "cos": np.cos}[function]
            for place, k in enumerate(block["waves"]):
                out[at + place] = wave(one(k) * np.arcsinh(one(10) * x))
        elif function == "listed":
            out[at + (block["values"].index(x) if x in block["values"] else len(block["values"]))] = 1
        else:
            digest = hashlib.blake2b(x.encode(), digest_size=8).digest()
            out[at + int.from_bytes(digest, "little") % block["buckets"]] = 1
    return out


def read(path: Path) -> Tensor:
    """The rows as hush reads them: numbers and codes."""
    lines = [",".join([*ROWS[0], "y"])] + [",".join([*row.values(), "no"]) for row in ROWS]
    path.write_text("\n".join(lines) + "\n")
    rows, _ = read_table(path, Schema((*COLUMNS, Category("y")), "y", ("no", "yes")))
    return rows


def test_the_encoding_can_be_written_from_its_json(tmp_path: Path) -> None:
    encoding = json.loads(json.dumps(describe_columns(COLUMNS)))
    found = np.stack([encode(row, encoding) for row in ROWS])
    mine = Encoder(COLUMNS)(read(tmp_path / "rows.csv")).numpy()
    assert found.shape == mine.shape == (4, 1 + 1 + 2 * 8 + 4 + 7)
    np.testing.assert_allclose(found, mine, rtol=0, atol=2e-6)
    assert found[:, -11:].tolist() == mine[:, -11:].tolist()


def test_blocks_follow_each_other_without_a_gap() -> None:
    encoding = describe_columns(COLUMNS)
    ends = [block["at"] + block["count"] for block in encoding["blocks"]]
    assert [block["at"] for block in encoding["blocks"]] == [0, *ends[:-1]]
    assert ends[-1] == encoding["shape"][0] == Encoder(COLUMNS).width
    assert {block["function"] for block in encoding["blocks"]} == encoding["functions"].keys()


def test_pixels_are_mapped_as_said() -> None:
    said = describe_pixels((1, 8, 8), 0, 16, (0.0, 1.0))
    assert said["onto"] == [0.0, 1.0]
    assert said["shape"] == [1, 8, 8]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("images", [False, True])
def test_the_same_logits_without_hush(tmp_path: Path, kind: str, images: bool) -> None:
    torch.manual_seed(3)
    model = small_cnn((1, 8, 8), 3) if images else mlp([33, 16, 3], dropout=0.5)
    shape = (1, 8, 8) if images else (33,)
    file = tmp_path / f"model{FORMATS[kind]}"
    file.write_bytes(export_program(model, shape, kind))
    assert model.training
    inputs = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    with torch.no_grad():
        mine = model.eval()(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(run_without_hush(file, inputs), mine, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run_without_hush(file, inputs[:1]), mine[:1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_release_from_cells_to_logits_without_hush(tmp_path: Path, kind: str) -> None:
    """Text cells are encoded by the JSON alone and computed by the file alone: the logits are those of the release."""
    schema = Schema((*COLUMNS, Category("y")), "y", ("no", "yes"))
    rows = read(tmp_path / "rows.csv")
    torch.manual_seed(2)
    model = nn.Sequential(Encoder(COLUMNS), mlp([Encoder(COLUMNS).width, 8, 2]))
    plan = hush.make_plan("dp-sgd", examples=4, batch_size=2, steps=2, noise_multiplier=1.0, lr=0.1, clip=1.0)
    run = plan.start(model, lambda m, x: m(x[0]).square().sum(1), (rows,), secret=1)
    for batch in run.batches():
        run.step(batch)
    network = Architecture("shipped", "mlp", {"widths": [Encoder(COLUMNS).width, 8, 2]}, encoder=True)
    told = Description("classification", network, describe_table(schema), ("no", "yes"), "y")
    loaded = hush.load(run.release(tmp_path / "release", description=told))
    file = tmp_path / f"model{FORMATS[kind]}"
    page = json.loads(export_release(loaded, file, kind).read_text())
    encoded = np.stack([encode(row, page["encoding"]) for row in ROWS])
    with torch.no_grad():
        logits = loaded(loaded.encode(ROWS)).numpy()
    np.testing.assert_allclose(run_without_hush(file, encoded), logits, rtol=0, atol=5e-6)
    mine = Encoder(COLUMNS)(rows).numpy()
    np.testing.assert_allclose(run_without_hush(file, mine), logits, rtol=0, atol=1e-6)
    assert page["outputs"]["classes"] == ["no", "yes"]
    assert page["guarantee"] == run.guarantee.sentence()
    assert page["file"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_names_no_path_and_no_line_of_source(kind: str) -> None:
    content = export_program(mlp([4, 3, 2]), (4,), kind)
    if kind == "torch":
        content = b"".join(
            map(zipfile.ZipFile(io.BytesIO(content)).read, zipfile.ZipFile(io.BytesIO(content)).namelist())
        )
    assert b"linear" in content
    assert not [said for said in (b"site-packages", b".py", b"/torch/nn", b"return F.") if said in content]


def test_a_torch_file_holds_no_pickle() -> None:
    archive = zipfile.ZipFile(io.BytesIO(export_program(mlp([4, 3, 2]), (4,), "torch")))
    content = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, data in content.items() if data[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")]
    assert [data for name, data in content.items() if "sample_inputs" in name] == [b""]
    for name, data in content.items():
        if name.endswith("_config.json"):
            assert '"use_pickle": true' not in data.decode()


class Peeking(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if float(inputs.sum()) > 0 else -inputs


def test_a_model_whose_code_looks_at_values_is_refused_in_words() -> None:
    with pytest.raises(InvalidInputError):
        export_program(Peeking(), (4,), "torch")


def test_another_format_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        export_program(mlp([4, 3, 2]), (4,), "pickle")


def test_without_onnx_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=r"\[onnx\]"):
        export_program(mlp([4, 3, 2]), (4,), "onnx")
