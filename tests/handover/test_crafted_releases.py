"""Crafted and damaged releases: a verdict or an error of hush's own, never another exception, and never a long wait.

The damage comes from a fixed seed. For more of it: ``HUSH_FUZZ=5000 pytest tests/handover/test_crafted_releases.py``; a
case that fails is printed with its number, and ``HUSH_FUZZ_ONLY=number`` repeats it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hush.cli import main
from hush.errors import FormatError, HushError, InvalidInputError
from hush.release.folder import UNSIGNED, digest_files
from hush.release.load import load
from hush.release.predict import predict_file
from hush.release.verify import verify as verify_release

CASES = int(os.environ.get("HUSH_FUZZ", "150"))
ONLY = os.environ.get("HUSH_FUZZ_ONLY")
WEIGHTS = "model.safetensors"
DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    5,
    10**30,
    10**400,
    1e308,
    -1e-320,
    "",
    "x",
    "\x1b[31m",
    "os:system",
    "../../x",
    [],
    [0],
    [[]],
    ["x", 1, None],
    [64] * 100_000,
    {},
    {"x": 1},
    DEEP,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A release of a table, one of images, one of a regression and one with a sanitisation layer; rows for each."""
    root = tmp_path_factory.mktemp("crafted")
    lines = ["age,town,sick", *(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(80))]
    (root / "rows.csv").write_text("\n".join(lines) + "\n")
    few = ("--batch-size", "20", "--steps", "2", "--noise-multiplier", "2")
    data = ("--data", str(root / "rows.csv"))
    calls = {
        "table": (*data, "--target", "sick", "--model", "mlp", "--public", "classes"),
        "number": (*data, "--target", "age", "--task", "regression", "--target-range", "0", "100"),
        "images": ("--problem", "digits-mlp"),
        "sanitized": ("--problem", "digits-sanitized", "--method", "sanitize", "--accept-claimed"),
    }
    for name, call in calls.items():
        assert main(["train", *call, *few, "--out", str(root / "runs" / name)]) == 0
        shutil.copytree(root / "runs" / name / "release", root / name)
    return root


def seal(folder: Path) -> None:
    """Make the digests on the card fit the files, as somebody would who rewrites all of them."""
    try:
        card = json.loads((folder / "privacy.json").read_bytes())
        others = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "privacy.json" and p.is_file()}
        blank = json.dumps(card | {"digests": digest_files(others), "own_digest": UNSIGNED}).encode()
    except (ValueError, TypeError, RecursionError):
        return
    (folder / "privacy.json").write_bytes(blank.replace(UNSIGNED.encode(), hashlib.sha256(blank).hexdigest().encode()))


def change(folder: Path, name: str, change: Any) -> None:
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    seal(folder)


def save(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "table", tmp_path / "copy"))


def refuse(folder: Path) -> InvalidInputError:
    """The error of loading a release that does not verify either; no large network is built to find that out."""
    with counting_parameters() as built:
        assert not verify_release(folder).verified
        with pytest.raises(InvalidInputError) as caught:
            load(folder)
    assert sum(built) < 10**6
    return caught.value


@contextmanager
def counting_parameters() -> Iterator[list[int]]:
    """The parameters of every linear layer that is built within it."""
    real, built = nn.Linear.__init__, list[int]()

    def note(self: nn.Linear, inputs: int, outputs: int, *given: Any, **more: Any) -> None:
        built.append(inputs * outputs)
        real(self, inputs, outputs, *given, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Linear, "__init__", note)
        yield built


@pytest.mark.parametrize(("kind", "size"), [("F4", 1), ("F8_E8M0", 2), ("F8_E4M3", 2), ("U16", 4), ("X", 2), (5, 2)])
def test_weights_of_another_type(kind, size, copy) -> None:
    save(copy / WEIGHTS, {"w": {"dtype": kind, "shape": [2], "data_offsets": [0, size]}}, b"\0" * size)
    seal(copy)
    refuse(copy)


@pytest.mark.parametrize("shape", [[0], [5, 0, 2], [0, 2**63]])
def test_weights_without_numbers(shape, copy) -> None:
    save(copy / WEIGHTS, {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, b"")
    seal(copy)
    refuse(copy)


@pytest.mark.parametrize("at", [5, [], {}, None, "no such layer", "\x1b"])
def test_a_sanitisation_layer_at_no_module(at, copy) -> None:
    inner = {"inner": "mlp", "arguments": {"widths": [4, 3, 2]}, "at": at, "clip": 1.0}
    change(copy, "model.json", lambda m: m["architecture"].update(name="sanitized", arguments=inner))
    refuse(copy)


@pytest.mark.parametrize("sizes", [[64] * 100_000, [[64] * 50_000] * 2])
def test_a_network_of_very_many_layers_is_refused_before_it_is_built(sizes, copy) -> None:
    change(copy, "model.json", lambda m: m["architecture"]["arguments"].update(widths=sizes))
    refuse(copy)


def test_a_schema_with_very_many_inputs_is_refused_before_it_is_built(copy) -> None:
    columns = {f"c{i}": {"kind": "category", "buckets": 100_000} for i in range(2000)}
    change(copy, "schema.json", lambda s: s.update(columns=columns))
    change(copy, "model.json", lambda m: m["inputs"].update(shape=[2000]))
    refuse(copy)


def test_a_schema_that_does_not_fit_the_network_is_no_release(copy) -> None:
    """The weights are those of the network, and the network does not take what the schema gives."""
    change(copy, "schema.json", lambda s: s["columns"]["age"].update(low=0, high=100, waves=False))
    assert isinstance(refuse(copy), FormatError)


def test_classes_that_do_not_fit_the_network_are_no_release(copy) -> None:
    for name in ("schema.json", "model.json"):
        change(copy, name, lambda s: s.update(classes=["a", "b", "c"]))
    assert isinstance(refuse(copy), FormatError)


def damage(chance: random.Random, folder: Path) -> None:
    """Some bytes of a file, or some entry of it at any depth with digests that fit."""
    path = chance.choice(sorted(folder.iterdir()))
    if path.suffix == ".json" and chance.random() < 0.75:
        value = json.loads(path.read_text())
        _replace(chance, value)
        path.write_text(json.dumps(value))
    elif path.name == WEIGHTS and chance.random() < 0.6:
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        _replace(chance, header)
        save(path, header, content[8 + size :])
    else:
        out = bytearray(path.read_bytes())
        place = chance.randrange(len(out))
        if chance.random() < 0.4:
            del out[place:]
        else:
            out[place : place + chance.choice((0, 1, 9))] = bytes(chance.randrange(256) for _ in range(4))
        path.write_bytes(out)
    if chance.random() < 0.9:
        seal(folder)


def _replace(chance: random.Random, value: Any) -> None:
    """Replace, remove or add one entry, at any depth."""
    while True:
        keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inside = value[key]
        if isinstance(inside, (dict, list)) and inside and chance.random() < 0.75:
            value = inside
            continue
        if chance.random() < 0.2:
            del value[key]
        elif isinstance(value, dict) and chance.random() < 0.1:
            value[chance.choice(("x", "", "\x1b", "__class__"))] = chance.choice(ODD)
        else:
            value[key] = chance.choice(ODD)
        return


def attack(number: int, made: Path, folder: Path) -> None:
    chance = random.Random(f"release {number}")
    name = chance.choice(("table", "number", "images", "sanitized"))
    shutil.copytree(made / name, folder)
    for _ in range(chance.choice((1, 1, 2, 4))):
        with suppress(ValueError, struct.error):  # what is damaged already cannot be crafted
            damage(chance, folder)
    for use in (verify_release, lambda place: _predict(place, made)):
        with suppress(HushError):
            found = use(folder)
            json.dumps(found.to_json() if found is not None else {})


def _predict(folder: Path, made: Path) -> None:
    model = load(folder)
    inputs = model.description.inputs
    if inputs is not None and inputs.kind != "table":
        model.predict(torch.zeros(2, *inputs.shape))
    out = folder.parent / f"{folder.name}.csv"
    predict_file(model, made / "rows.csv", out, overwrite=True)


@pytest.mark.parametrize("part", range(3))
def test_any_damage_ends_with_a_verdict_or_an_error_of_hush(part, made, tmp_path) -> None:
    numbers = range(part, CASES, 3) if ONLY is None else [int(ONLY)] if part == 0 else []
    wrong = []
    for number in numbers:
        try:
            attack(number, made, tmp_path / str(number))
        except Exception as error:
            if ONLY is not None:
                raise
            wrong.append(f"{number}: {type(error).__name__} {str(error)[:200]}")
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    assert not wrong, "\n".join(wrong)
