"""No error, warning or public record quotes a cell of the data or the size of a sampled batch."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hush._internal.tensors import check_losses
from hush.bench.executors import Inline
from hush.bench.spec import read_spec
from hush.bench.store import open_store
from hush.bench.sweep import sweep
from hush.cli import main
from hush.clipping import PlainSum
from hush.datasets import catalogue
from hush.errors import HushError, InvalidInputError
from hush.methods import make_plan
from hush.per_example.augmentation import read_batch_size
from hush.privacy_unit import UnitLosses, UnitRows
from keeping import keep

MARK = "HIVpositive"
ROWS = [f"{i % 5},{'ab'[i % 2]},{'yes' if i % 2 else 'no'}" for i in range(60)]
HEAD = "height,kind,label"
SCHEMA = {"classes": ["yes", "no"], "columns": {"height": {"low": 0, "high": 9}}}
TABLES = {
    "a label that is no class": [HEAD, *ROWS, f"1,a,{MARK}"],
    "text where a number belongs": [HEAD, *ROWS, f"{MARK},a,yes"],
    "too many cells": [HEAD, *ROWS, f"1,a,yes,{MARK}"],
    "no names": [f"1,{MARK},2", *ROWS],
    "the same name twice": [f"1,{MARK},{MARK}", *ROWS],
    "not UTF-8": [HEAD, *ROWS, f"1,{MARK}\udcff,yes"],
    "a cell that is too long": [HEAD, *ROWS, f"1,{MARK * 1_000_000},yes"],
    "a quote that is not closed": [HEAD, *ROWS, f'1,"{MARK},yes'],
    "a control character": [HEAD, *ROWS, f"1,a,\x1b{MARK}"],
    "a null": [HEAD, *ROWS, f"1,a\x00,{MARK}"],
}


def call(capsys, *arguments: object) -> tuple[int, str]:
    code = main(keep(arguments))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("what", TABLES)
def test_a_bad_table_is_told_without_its_cells(what, tmp_path, capsys) -> None:
    data, schema = tmp_path / "rows.csv", tmp_path / "schema.json"
    data.write_bytes("\n".join(TABLES[what]).encode("utf-8", "surrogateescape"))
    schema.write_text(json.dumps(SCHEMA))
    flags = ("--target", "label", "--public", "classes", "--batch-size", 8, "--steps", 1)
    code, said = call(capsys, "train", "--data", data, "--schema", schema, *flags)
    assert code == 2, said
    assert MARK.lower() not in said.lower()
    assert "0xff" not in said


def test_bad_arrays_are_told_without_their_values(tmp_path, capsys) -> None:
    x = np.zeros((40, 3), np.float32)
    for labels in (np.full(40, 7317), np.full(40, -7317), np.full(40, 7317.5), np.full(40, "7317")):
        np.savez(tmp_path / "a.npz", x=x, y=labels)
        code, said = call(capsys, "train", "--data", tmp_path / "a.npz", "--batch-size", 8, "--steps", 1)
        assert code == 2
        assert "7317" not in said
    np.savez(tmp_path / "a.npz", x=x.reshape(40, 1, 3, 1) + 7317, y=np.arange(40) % 2)
    code, said = call(capsys, "train", "--data", tmp_path / "a.npz", "--batch-size", 8, "--steps", 1)
    assert code == 2
    assert "7317" not in said


def test_bad_images_are_told_without_their_names(tmp_path, capsys) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / f"{MARK}.png").write_bytes(b"no image")
    code, said = call(capsys, "train", "--data", tmp_path / "images", "--batch-size", 1, "--steps", 1)
    assert code == 2
    assert MARK not in said
    assert "image 1 of" in said


QUOTING = f'''
import torch
from dataclasses import replace
from hush.datasets.catalogue import load

def of_torch(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: model(content[0]) @ torch.zeros(3, 7))

def of_python(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: float("{MARK}"))

def too_few(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: found.losses(model, content)[:-1])

def a_mean(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: found.losses(model, content).mean())

def two_sizes(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)

    class Uneven:
        def __len__(self):
            return len(found.train[0])

        def take(self, indices):
            return found.train[0][indices], found.train[1][indices][:-1]

    return replace(found, train=Uneven())
'''
EVERYBODY = ("--batch-size", "239", "--sampling", "fixed-size", "--steps", "1", "--noise-multiplier", "1")


@pytest.fixture
def quoting(tmp_path, monkeypatch) -> list[str]:
    (tmp_path / "quoting_problems.py").write_text(QUOTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return [f"quoting_problems:{name}" for name in ("of_torch", "of_python", "too_few", "a_mean", "two_sizes")]


def test_the_size_of_a_batch_is_in_no_message(quoting, capsys) -> None:
    for name in quoting:
        code, said = call(capsys, "train", "--problem", name, *EVERYBODY, "--microbatch", 1000)
        assert code in (1, 2), said
        for told in ("239", "238", MARK, "Traceback"):
            assert told not in said, said
        assert said.count("error:") == 1


def test_the_size_of_a_batch_and_a_cell_are_in_no_public_record(quoting, tmp_path) -> None:
    names = ", ".join(f'"{name}"' for name in quoting)
    text = (
        f'secret_seed = 1\n[[grid]]\nproblem = [{names}]\nmethod = "dp-sgd"\nsampling = "fixed-size"\n'
        "batch_size = 239\nsteps = 1\nnoise_multiplier = 1.0\n"
    )
    (tmp_path / "spec.toml").write_text(text)
    store = open_store(tmp_path / "store")
    assert sweep(read_spec(tmp_path / "spec.toml"), store, Inline()).summary()["failed"] == 5
    for record in store.records():
        record["config"].pop("batch_size")
        record.pop("event", None)  # that of the plan, which has its public batch size
        text = re.sub(r"\d+\.\d+|[0-9a-f]{12,}", "", json.dumps(record))  # seconds and digests hold any digits
        for told in ("239", "238", MARK):
            assert told not in text, record["reason"]


def test_what_the_gradients_say() -> None:
    with pytest.raises(HushError) as caught:
        read_batch_size((torch.zeros(239, 2), torch.zeros(238)))
    assert "23" not in str(caught.value)
    for wrong in (torch.zeros(238), torch.zeros(239, 1), torch.zeros(())):
        with pytest.raises(HushError) as caught:
            check_losses(wrong, 239)
        assert "23" not in str(caught.value)


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v[:, None], lambda v: v.mean()])
def test_what_plain_sums_and_units_say(change) -> None:
    def losses(model, content):
        return change(model(content[0]).sum(1))

    model, content = nn.Linear(2, 3), (torch.zeros(239, 2), torch.zeros(239))
    units = UnitRows((torch.zeros(239, 1, 2), torch.zeros(239, 1)), torch.ones(239, 1))
    for compute in (
        lambda: PlainSum().piece(model, losses, content, {}),
        lambda: UnitLosses(losses, 1)(model, units),
    ):
        with pytest.raises(InvalidInputError, match="example") as caught:
            compute()
        assert "23" not in str(caught.value)


class Peculiar(nn.Module):
    """Reshapes its batch in a way that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 30))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.tensordot(rows, self.weight, ([1], [1]))
        return scores.clone().reshape(len(rows), 2)


def test_what_is_warned_of_holds_no_size() -> None:
    task = catalogue.load("breast-cancer-logistic")
    plan = make_plan("dp-sgd", examples=len(task.train[0]), batch_size=239, steps=1, noise_multiplier=1.0)
    run = plan.start(Peculiar(), task.losses, task.train, secret=3)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for batch in run.batches():
            run.step(batch)
            assert not any(str(len(batch.indices)) in str(one.message) for one in heard)


def test_the_public_part_of_a_failed_run_is_clean(tmp_path: Path, quoting) -> None:
    text = f'[[grid]]\nproblem = "{quoting[1]}"\nmethod = "sgd"\nbatch_size = 32\nsteps = 1\n'
    (tmp_path / "spec.toml").write_text(text)
    store = open_store(tmp_path / "store")
    sweep(read_spec(tmp_path / "spec.toml"), store, Inline())
    (folder,) = (store.root / "runs").iterdir()
    assert MARK in (folder / "private" / "traceback.txt").read_text()  # for the owner
    for path in folder.iterdir():
        if path.is_file():
            assert MARK not in path.read_text()
