"""`hush data inspect`, and a hospital's table from rows to predictions."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest
import torch

import hush
from hush.cli import main
from hush.tabular.schema import read_schema
from patients import write_patients
from schemas import infer_schema

KINDS = {
    "patient_id": "id",
    "visit_date": "date",
    "birth_date": "date",
    "age": "number",
    "sex": "category",
    "smoker": "flag",
    "ward": "category",
    "diagnosis": "category",
    "crp": "number",
    "creatinine": "number",
    "heart_rate": "number",
    "prior_admissions": "number",
    "note": "text",
    "y": "flag",
}
BAD = "price;day;q 'x';y\n" + "1,234;3/4/2020;MARKed;1.5\n" * 60


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_patients(tmp_path_factory.mktemp("patients") / "patients.csv")


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_hospitals_table(patients: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "schema.toml"
    code, shown, said = call(capsys, "data", "inspect", patients, "--target", "y", "--out", out, "--json")
    assert code == 0, said
    found = json.loads(shown)
    assert {column["column"]: column["kind"] for column in found["columns"]} == KINDS
    assert found["problems"] == []
    assert "crp: 642 of 8000 cells are empty and 105 hold no number" in said  # the owner's terminal alone
    assert "642" not in shown
    assert "--unit patient_id protects all rows of one together" in said
    written = out.read_text()
    assert written.startswith("# Written by `hush data inspect`, which looked at private rows")
    schema = tomllib.loads(written)
    assert schema["read_off"] == ["kinds"]
    assert schema["columns"]["birth_date"] == {"kind": "date", "format": "dd.mm.yyyy"}
    assert schema["columns"]["crp"] == {"kind": "number", "missing": True}
    for value in ("medicine", "I50", "pending", "palliative", "642"):
        assert value not in written + shown


def test_values_only_where_they_are_public(patients: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "schema.toml"
    flags = ("--target", "y", "--out", out, "--public", "ranges+categories")
    assert call(capsys, "data", "inspect", patients, *flags)[0] == 0
    schema = tomllib.loads(out.read_text())
    assert schema["read_off"] == ["kinds", "ranges", "categories"]
    assert schema["classes"] == ["0", "1"]
    assert "palliative" in schema["columns"]["ward"]["values"]
    assert schema["columns"]["prior_admissions"]["low"] == 0


def test_a_schema_that_was_written_trains_and_says_where_it_is_from(patients: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "schema.toml"
    assert call(capsys, "data", "inspect", patients, "--target", "y", "--out", out)[0] == 0
    few = ("--batch-size", 64, "--steps", 2, "--noise-multiplier", 1, "--out", tmp_path / "run", "--json")
    code, shown, said = call(capsys, "train", "--data", patients, "--schema", out, *few)
    assert code == 0, said
    assert "(kinds were read off the rows)" in json.loads(shown)["sentence"]
    assert infer_schema(patients, None, read_schema(out)).features == infer_schema(patients, "y", {}).features


def test_it_trains_and_predicts_with_no_flag_but_target_and_epsilon(patients: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    flags = ("--target", "y", "--public", "classes", "--epsilon", 8, "--secret-seed", 1, "--out", run, "--json")
    code, shown, said = call(capsys, "train", "--data", patients, *flags)
    assert code == 0, said
    assert json.loads(shown)["test_auc"] > 0.72  # 0.79 for a logistic regression without privacy
    assert "note              text      free text: not used" in said
    assert any(
        "105 hold no number" in line for line in json.loads((run / "private" / "columns.json").read_text())["columns"]
    )
    for path in (run / "release").rglob("*"):
        assert b"105 hold" not in path.read_bytes()
    model = hush.load(run / "release")
    with patients.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    few = [{name: cell for name, cell in row.items() if name not in ("y", "note", "patient_id")} for row in rows[:50]]
    from_memory, from_file = model.predict(few), model.predict(patients)
    assert from_memory.probabilities is not None
    assert from_file.probabilities is not None
    assert torch.allclose(from_memory.probabilities, from_file.probabilities[:50], atol=1e-6)
    assert from_file.probabilities.isfinite().all()


def test_every_problem_at_once(tmp_path: Path, capsys) -> None:
    (tmp_path / "rows.csv").write_text(BAD)
    out = tmp_path / "s.toml"
    code, shown, said = call(capsys, "data", "inspect", tmp_path / "rows.csv", "--target", "y", "--out", out, "--json")
    assert code == 1, said
    found = json.loads(shown)
    for problem, words in zip(
        found["problems"], ("looks like a number", "comma before three digits", "either may be the day"), strict=True
    ):
        assert words in problem
    assert [column["column"] for column in found["columns"] if column["problem"]] == ["price", "day"]
    assert tomllib.loads(out.read_text())["columns"] == {"q 'x'": {"kind": "category", "missing": True}}
    assert '# [columns."price"]' in out.read_text()
    code, shown, _ = call(capsys, "data", "inspect", tmp_path / "rows.csv")
    assert code == 1
    assert shown.count("problem: ") == 2
    assert "MARK" not in shown


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("none.csv",), "there is no table 'none.csv'"),
        (("rows.csv", "--out", "rows.csv"), "must end in .toml"),
        (("rows.csv", "--out", "there.toml"), "is there already"),
        (("rows.csv", "--public", "names"), "unknown public fact 'names'"),
        (("rows.csv", "--task", "guessing"), "unknown task 'guessing'"),
        (("rows.csv", "--schema", "none.toml"), "cannot be read"),
    ],
)
def test_bad_requests_are_one_sentence(tmp_path: Path, capsys, monkeypatch, flags, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text(BAD)
    Path("there.toml").write_text("")
    code, shown, said = call(capsys, "data", "inspect", *flags)
    assert (code, shown) == (2, "")
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("unit", "words"),
    [("y", "cannot be both"), ("gappy", "every row must belong to a unit")],
)
def test_a_unit_that_cannot_be_one(tmp_path: Path, capsys, unit: str, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("gappy,x,y\n" + "1,2.5,a\n,3.5,b\n" * 40)
    code, shown, _ = call(capsys, "data", "inspect", path, "--target", "y", "--unit", unit, "--json")
    assert code == 1
    assert any(words in problem for problem in json.loads(shown)["problems"])


def test_a_column_that_is_not_there_is_bad_input(capsys, tmp_path: Path) -> None:
    (tmp_path / "ok.csv").write_text("x,y\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(40)))
    for given in (("--target", "nope"), ("--target", "y", "--unit", "nope"), ("--unit", "nope")):
        out = tmp_path / "schema.toml"
        code, shown, said = call(capsys, "data", "inspect", tmp_path / "ok.csv", *given, "--out", out)
        assert (code, shown, out.exists()) == (2, "", False)
        assert "has no column 'nope'" in said
