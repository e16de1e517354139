"""`hush train --data`: the user's own files, what is reported about them, and one-sentence errors."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hush import InvalidInputError
from hush.accounting.guarantee import HELD, say_own_data
from hush.cli import main
from hush.cli.prepare import find_device
from hush.datasets.evaluation import Evaluation
from hush.privacy_unit import ROWS_PER_UNIT
from hush.randomness import Secret
from hush.statistics.histogram import FINEST
from hush.statistics.private_metrics import draw_metrics
from hush.tabular.problem import from_files
from hush.tabular.unit_ids import identify
from train_arguments import keep


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(keep(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def table(path: Path, rows: int, seed: int) -> Path:
    """Two numbers and a word that tell the label."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    heights = generator.normal(0, 1, rows) + 2 * labels
    lines = [f"{h:.3f},{w:.3f},{'ab'[y]},{['no', 'yes'][y]}" for h, w, y in zip(heights, -heights, labels, strict=True)]
    path.write_text("\n".join(["height,width,kind,label", *lines]) + "\n")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return table(tmp_path / "mine.csv", 200, 0)


TRAIN = (
    "train",
    "--target",
    "label",
    "--public",
    "classes",
    "--batch-size",
    32,
    "--epochs",
    3,
    "--secret-seed",
    1,
    "--json",
)


def test_a_table_trains_and_says_what_is_public(own: Path, capsys) -> None:
    code, out, err = call(capsys, *TRAIN, "--data", own)
    assert code == 0, err
    assert "mine.csv: 160 rows to train on, 40 to test on" in err
    assert json.loads(out)["epsilon"] == pytest.approx(3.0, rel=1e-3)


def test_what_is_not_kept_is_said(own: Path, capsys) -> None:
    """The data have paid for a model that nobody has, and for a spend that no ledger knows."""
    lost, unknown = "the model was not saved", "nothing was entered in a ledger"
    err = call(capsys, "train", "--epochs", 1, "--problem", "digits-logistic", "--dataset", "mine")[2]
    assert lost in err
    assert unknown in err
    kept = ("--out", own.with_name("run"), "--ledger", own.with_name("spend.jsonl"), "--dataset", "mine")
    err = call(capsys, *TRAIN, "--data", own, *kept)[2]
    assert lost not in err
    assert unknown not in err
    assert main([*map(str, TRAIN), "--data", str(own), "--method", "sgd"]) == 0  # costs nothing
    assert lost not in capsys.readouterr().err


@pytest.mark.parametrize("epsilon", ["0", "inf"])
def test_nothing_is_chosen_for_an_epsilon_that_is_refused(own: Path, capsys, epsilon: str) -> None:
    code, _, err = call(capsys, "train", "--data", own, "--target", "label", "--epsilon", epsilon)
    assert code == 2
    assert "chosen for" not in err


def test_numbers_that_are_no_use_are_called_so(tmp_path: Path, capsys) -> None:
    x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=np.full(100, 9.0) + 0.1 * x[:, 0])
    flags = ("--task", "regression", "--target-range", -10, 10, "--batch-size", 20, "--epochs", 1, "--epsilon", 0.5)
    code, out, err = call(capsys, "train", "--data", tmp_path / "rows.npz", *flags, "--out", tmp_path / "run")
    assert code == 0, err
    assert "Worse than always saying the mean of these rows" in out
    assert "Worse than always" in call(capsys, "evaluate", tmp_path / "run", tmp_path / "rows.npz")[1]


def test_data_beside_a_recipe_wins(own: Path, capsys) -> None:
    out = own.with_name("run")
    code, _, err = call(capsys, *TRAIN, "--data", own, "--recipe", "digits", "--out", out)
    assert code == 0, err
    assert "mine.csv: 160 rows" in err
    assert call(capsys, "train", "--out", out, "--resume")[0] == 0


def test_a_file_of_its_own_to_test_on(own: Path, capsys) -> None:
    other = table(own.with_name("later.csv"), 50, 1)
    code, _, err = call(capsys, *TRAIN, "--data", own, "--test-data", other)
    assert code == 0, err
    assert "mine.csv: 200 rows to train on, 50 to test on" in err


def test_parts_of_a_table_train_as_the_whole(own: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and in mapped files, with a resume: the same figures to the last bit."""
    header, *lines = own.read_text().splitlines(keepends=True)
    parts = own.with_name("parts")
    parts.mkdir()
    for place in range(4):
        (parts / f"{place}.csv").write_text(header + "".join(lines[50 * place : 50 * (place + 1)]))
    monkeypatch.setenv("HUSH_CACHE", str(own.with_name("cache")))
    results = []
    for data, long in ((own, False), (parts, False), (parts / "*.csv", False), (parts / "*.csv", True)):
        with monkeypatch.context() as patched:
            patched.setattr("hush.tabular.rows.MAPPED", 0 if long else 1 << 28)
            out = own.with_name(f"run{len(results)}")
            code, said, err = call(capsys, *TRAIN, "--data", data, "--out", out)
            assert code == 0, err
            results.append({name: json.loads(said)[name] for name in ("test_loss", "test_auc", "epsilon")})
            assert call(capsys, "train", "--out", out, "--resume")[0] == 0
    assert results == [results[0]] * 4
    assert not list(own.with_name("cache").rglob("*.npy"))


def test_a_test_file_may_lack_a_class(tmp_path: Path, capsys) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(60) % 4)
    np.savez(tmp_path / "test.npz", x=x[:30], y=np.arange(30) % 3)
    flags = ("--data", tmp_path / "train.npz", "--test-data", tmp_path / "test.npz", "--epochs", 1, "--json")
    code, _, err = call(capsys, "train", "--batch-size", 10, *flags)
    assert code == 0, err
    assert "60 rows to train on, 30 to test on" in err


def test_a_test_file_is_labelled_by_the_array_that_training_took(tmp_path: Path, capsys) -> None:
    """Without a target, training takes what is called labels; the test file has a y too, which is something else."""
    x, labels = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 4
    np.savez(tmp_path / "train.npz", x=x, labels=labels)
    np.savez(tmp_path / "test.npz", x=x, labels=labels, y=np.full(60, 3))
    flags = ("--data", tmp_path / "train.npz", "--test-data", tmp_path / "test.npz", "--epochs", 1, "--json")
    code, said, err = call(capsys, "train", "--batch-size", 10, *flags)
    assert code == 0, err
    assert np.sum(json.loads(said)["test_confusion"], axis=1).tolist() == [15, 15, 15, 15]
    np.savez(tmp_path / "test.npz", x=x, y=labels)  # one that has labels by another name alone
    assert call(capsys, "train", "--batch-size", 10, *flags)[0] == 0


def test_public_ranges_are_read_and_assumed(own: Path, capsys) -> None:
    card = own.with_name("run")
    code, _, err = call(capsys, *TRAIN, "--data", own, "--public", "ranges+categories", "--out", card)
    assert code == 0, err
    said = " ".join(p.read_text() for p in (card / "release").glob("*.json"))
    assert "the ranges of the columns, read off the rows, are public anyway" in said
    told = json.loads((card / "release" / "privacy.json").read_text())["guarantee"]
    assert HELD in told["scope"]
    assert HELD not in told["assumptions"]
    assert say_own_data("example") in told["assumptions"]


def test_a_run_on_own_data_goes_on_with_its_own_files(own: Path, capsys) -> None:
    other, out = table(own.with_name("later.csv"), 50, 1), own.with_name("run")
    first = call(capsys, *TRAIN, "--data", own, "--test-data", other, "--out", out, "--keep-secret")
    again = call(capsys, "train", "--out", out, "--resume", "--json")
    assert (first[0], again[0]) == (0, 0), again[2]
    assert "200 rows to train on, 50 to test on" in again[2]
    assert json.loads(first[1])["test_accuracy"] == json.loads(again[1])["test_accuracy"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--test-data", "mine.csv"), "describe your own data: give it with --data"),
        (("--public", "ranges"), "describe your own data: give it with --data"),
        (("--data", "mine.csv", "--test-data", "none.csv"), "there is no file or folder 'none.csv'"),
        (("--data", "empty"), "'empty' holds neither .csv/.parquet files nor class folders of images"),
        (("--data", "empty", "--task", "regression"), "'empty' holds neither .csv/.parquet files nor class folders"),
        (("--data", "mine.csv", "--public", "names"), "unknown public fact 'names'"),
        (("--data", "mine.csv", "--problem", "digits"), "not both"),
        (("--data", "arrays.npz", "--public", "ranges"), "is no table"),
        (("--data", "split.npz", "--test-data", "arrays.npz"), "brings its own test rows"),
        (("--data", "arrays.npz", "--test-data", "split.npz"), "has a training and a test part of its own"),
        (("--data", "mine.csv", "--test-data", "arrays.npz"), "'arrays.npz' has no"),
    ],
)
def test_bad_requests_are_one_sentence(own: Path, capsys, monkeypatch, flags, sentence) -> None:
    monkeypatch.chdir(own.parent)
    rows = {"x": np.zeros((8, 3), np.float32), "y": np.arange(8) % 2}
    own.with_name("empty").mkdir()
    np.savez(own.with_name("arrays.npz"), **rows)
    np.savez(
        own.with_name("split.npz"), **{f"{key}_{part}": v for key, v in rows.items() for part in ("train", "test")}
    )
    arguments = (
        TRAIN
        if "mine.csv" in flags
        else tuple(a for a in TRAIN if a not in ("--target", "label", "--public", "classes"))
    )
    code, out, err = call(capsys, *arguments, *flags)
    assert (code, out) == (2, ""), err
    assert sentence in err
    assert err.count("error:") == 1


@pytest.mark.parametrize(
    ("labels", "more", "noted"),
    [
        (1 + np.arange(60) % 3, (), True),
        (np.arange(60) % 3, (), False),
        (1 + np.arange(60) % 3, ("--schema", "named.json"), False),
        (1.5 + np.arange(60) % 3, ("--task", "regression", "--target-range", 0, 9), False),
    ],
    ids=["from 1", "from 0", "named", "numbers"],
)
@pytest.mark.parametrize("shape", [(60, 3), (60, 1, 8, 8)], ids=["features", "images"])
def test_labels_that_are_counted_from_1_are_told_to_their_owner_alone(
    tmp_path, capsys, monkeypatch, shape, labels, more, noted
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", x=np.random.default_rng(0).random(shape, np.float32), y=labels)
    (tmp_path / "named.json").write_text(json.dumps({"classes": ["none", "a", "b", "c"]}))
    flags = ("--batch-size", 8, "--steps", 1, "--model", "logistic", "--out", "run", "--json")
    code = main([str(a) for a in ("train", "--data", "rows.npz", *flags, *more)])
    told = capsys.readouterr()
    assert code == 0, told.err
    said = "no row has label 0: are the labels counted from 1?"
    assert (said in told.err) == noted
    assert said not in told.out
    released = "".join(path.read_text(errors="replace") for path in (tmp_path / "run" / "release").iterdir())
    assert "counted from 1" not in released


# Bad tables, schemas and options: one sentence, exit code 2, and no cell of the data quoted.


MARK = "Qz7Secret"
HEAD = "height,kind,label"
ROWS = tuple(f"{i % 5}.5,{'ab'[i % 2]},{'yes' if i % 2 else 'no'}" for i in range(60))
MARKED = f"1.5,{MARK},yes"
GOOD = "\n".join([HEAD, *ROWS, MARKED]) + "\n"
SHORT = ("--batch-size", "8", "--steps", "1")
LABEL = ("--target", "label", "--public", "classes")


@dataclass(frozen=True)
class Case:
    """A table, a schema in TOML, flags, and words of the one sentence that must be said."""

    sentence: str
    table: str | bytes = GOOD
    schema: str | None = None
    flags: Sequence[str] = LABEL
    name: str = "rows.csv"


def add(column: str, cells: Sequence[str]) -> str:
    """The good table with one column more, whose cells come again and again."""
    lines = GOOD.splitlines()
    more = [f'{line},"{cells[place % len(cells)]}"' for place, line in enumerate(lines[1:])]
    return "\n".join([f"{lines[0]},{column}", *more]) + "\n"


def labelled(cells: Sequence[str]) -> str:
    """The good table with other labels."""
    lines = [",".join(line.split(",")[:2]) for line in GOOD.splitlines()[1:]]
    return "\n".join([HEAD, *(f'{line},"{cells[place % len(cells)]}"' for place, line in enumerate(lines))]) + "\n"


def column(facts: str, name: str = "height") -> str:
    return f"[columns.{name}]\n{facts}\n"


RANGE = "low = 0\nhigh = 9"
REGRESSION = ("--task", "regression", "--target-range", "0", "9")
CASES = {
    # tables
    "an empty file": Case("the first line of 'rows.csv' must name", ""),
    "names alone": Case("holds no rows", HEAD + "\n"),
    "blank lines alone": Case("holds no rows", HEAD + "\n\n\n"),
    "a column without a name": Case("must name every column", GOOD.replace("height,kind", "height,")),
    "a name twice": Case("columns 1 and 2 of 'rows.csv' have the same name", GOOD.replace("height,kind", "a,a")),
    "no first line": Case("has no column 'label'", "\n".join([MARKED, *ROWS])),
    "too many cells": Case("row 62 of 'rows.csv' has 4 cells", GOOD + f"1.5,a,yes,{MARK}\n"),
    "too few cells": Case("row 62 of 'rows.csv' has 2 cells", GOOD + f"1.5,{MARK}\n"),
    "bytes that are no text": Case("is not a text table in UTF-8", GOOD.encode() + b"1.5,\xff\xfe,yes\n"),
    "UTF-16": Case("is not a text table in UTF-8", GOOD.encode("utf-16")),
    "a quote that is not closed": Case("cells where the header has|a quote is not closed", GOOD + f'1.5,"{MARK},yes\n'),
    "a cell without end": Case("a row is longer", GOOD + f"1.5,{MARK * 1_000_000},yes\n"),
    "ten thousand columns": Case("a table may have", ",".join(f"c{i}" for i in range(10_001)) + "\n"),
    "no parquet": Case("is not a whole parquet file", MARK.encode(), name="rows.parquet"),
    "no such file": Case("there is no file or folder", flags=("--data", "none.csv", *LABEL)),
    "a sheet": Case("is none of .csv, .parquet", name="rows.xlsx"),
    "an empty folder": Case("'.'", flags=("--data", ".", *LABEL)),
    # targets
    "no target named": Case("name the column to predict", flags=()),
    "a target that is not there": Case("did you mean 'label'", flags=("--target", "lable")),
    "fractions as labels": Case("holds fractions and looks like a number", labelled(["1.25", "2.5", "7.75"])),
    "decimal commas as labels": Case("holds fractions and looks like a number", labelled(["1,25", "2,5"])),
    "many whole numbers": Case("more than 20 different whole numbers", labelled([str(i) for i in range(50)])),
    "dates as labels": Case("looks like dates", labelled(["2020-01-31", "2021-02-28"])),
    "codes as labels": Case("looks like ids", labelled([f"{MARK}{i}" for i in range(61)])),
    "sentences as labels": Case("looks like free text", labelled([f"the {i} words of {MARK}" for i in range(61)])),
    "one label": Case("has one value only", labelled(["yes"])),
    "a row without a label": Case("has rows without a label", GOOD + "1.5,a,\n"),
    "a label that is no class": Case("row 61 .* is none of the 2 classes", GOOD[:-4] + f"{MARK}\n",
                                     'classes = ["no", "yes"]'),
    "words to predict as numbers": Case("holds text, and a number is to be predicted", flags=(*LABEL, *REGRESSION)),
    "a stray word to predict": Case("to be predicted as a number and holds text",
                                    labelled(["1.5", "2", "3"] * 20 + [MARK]), flags=(*LABEL, *REGRESSION)),
    "a gap to predict": Case("no finite number in row 61", labelled(["1.5", "2", "3"] * 20 + [""]),
                             flags=(*LABEL, *REGRESSION)),
    "a number without a range": Case("regression needs a public range",
                                     labelled(["1.5", "2"]), flags=(*LABEL, "--task", "regression")),
    "classes of a number": Case("a schema with classes is for classification",
                                labelled(["1.5", "2"]), 'classes = ["a", "b"]', (*LABEL, *REGRESSION)),
    # columns
    "thousands or decimals": Case("a comma before three digits", add("price", ["1,234", "5,678"])),
    "points and commas": Case("mixes decimal points and decimal commas", add("price", ["1,5", "1.5"])),
    "slashes": Case("in which either may be the day", add("day", ["3/4/2020", "5/6/2021"])),
    "several formats": Case("dates in several formats", add("day", ["31.1.2020", "2020/02/01"])),
    "two problems": Case("either may be the day.*; 1 more problem: `hush data inspect rows.csv` lists all",
                         add("price", ["1,234"]).replace("height", "when").replace(".5,", "/4/2020,")),
    # schemas against tables
    "text that is said to be a number": Case("holds text", schema=column('kind = "number"', "kind")),
    "gaps that are not provided for": Case("no finite number in row 2", add("w", ["1", ""]), column(RANGE, "w")),
    "a stray word that is not provided for": Case("holds text", add("w", ["1"] * 30 + [MARK]), column(RANGE, "w")),
    "dates of another format": Case("said to be a date written mm/dd/yyyy", add("d", ["31.1.2020"]),
                                    column('format = "mm/dd/yyyy"', "d")),
    "months beyond December": Case("said to be a date written mm/dd/yyyy", add("d", ["31/1/2020"]),
                                   column('format = "mm/dd/yyyy"', "d")),
    "a flag of other words": Case("said to be a flag", schema=column('kind = "flag"', "kind")),
    "a column that is not there": Case("did you mean 'height'", schema=column("low = 0\nhigh = 9", "heigth")),
    # schemas
    "no TOML": Case("is not valid toml", schema="= 3"),
    "an unknown entry": Case("unknown schema entry 'colums'", schema="[colums.a]\nlow = 0"),
    "an unknown fact": Case("did you mean 'low'", schema=column("lo = 0")),
    "an unknown kind": Case("did you mean 'number'", schema=column('kind = "numbre"')),
    "one end": Case("give both low and high", schema=column("low = 0")),
    "a range upside down": Case("not below high", schema=column("low = 9\nhigh = 0")),
    "a range of words": Case("must be a finite number", schema=column('low = "a"\nhigh = "b"')),
    "an endless fill": Case("must be a finite number", schema=column("fill = inf")),
    "half a bucket": Case("whole number", schema=column("buckets = 0.5", "kind")),
    "a million buckets": Case("more than 100000 buckets", schema=column("buckets = 1000000", "kind")),
    "values that are no list": Case("must be a list of words", schema=column('values = "a"', "kind")),
    "the same value twice": Case("must be different", schema=column('values = ["a", "a"]', "kind")),
    "an unknown format": Case("must be one of yyyy-mm-dd", schema=column('kind = "date"\nformat = "yy-m-d"')),
    "a format of a number": Case("'format' of a date", schema=column('kind = "number"\nformat = "dd.mm.yyyy"')),
    "a decimal sign of a date": Case("'decimal' of a number", schema=column('kind = "date"\ndecimal = ","')),
    "an unknown decimal sign": Case("must be '.' or ','", schema=column('decimal = ";"')),
    "missing in words": Case("must be true or false", schema=column('missing = "yes"')),
    "three words of a flag": Case("must be two words", schema=column('kind = "flag"\nvalues = ["a", "b", "c"]')),
    "years before the first": Case("must be years", schema=column('kind = "date"\nlow = -5\nhigh = 2000')),
    "one class": Case("at least two", schema='classes = ["yes"]'),
    "a class twice": Case("must be different", schema='classes = ["yes", "yes"]'),
    "classes that are no list": Case("must be a list of words", schema="classes = 2"),
    "an unknown fact read off": Case("unknown read off", schema='read_off = ["rows"]'),
    "columns that are no table": Case("one table for each column", schema="columns = 3"),
    "a target that is no name": Case("must be the name of a column", schema="target = 3", flags=()),
    # flags
    "an unknown public fact": Case("unknown public fact 'range'", flags=(*LABEL, "--public", "range")),
    "an unknown task": Case("did you mean 'regression'", flags=(*LABEL, "--task", "regresion")),
    "a range upside down to predict": Case("low below high", flags=(*LABEL, "--task", "regression",
                                                                    "--target-range", "9", "0")),
    "a range of classes": Case("add --task regression", flags=(*LABEL, "--target-range", "0", "9")),
    "an unknown model": Case("did you mean 'mlp'", flags=(*LABEL, "--model", "mpl")),
    "a model for images": Case("is for images", flags=(*LABEL, "--model", "lenet")),
    "no rows to test on": Case("there is no file or folder", flags=(*LABEL, "--test-data", "none.csv")),
    "a schema that is not there": Case("none.toml", flags=(*LABEL, "--schema", "none.toml")),
}  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("what", CASES)
def test_one_sentence_and_no_cell(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[what]
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    if "." not in case.flags:
        Path(case.name).write_bytes(case.table if isinstance(case.table, bytes) else case.table.encode())
    data = () if "--data" in case.flags else ("--data", case.name)
    schema = ()
    if case.schema is not None:
        Path("schema.toml").write_text(case.schema)
        schema = ("--schema", "schema.toml")
    code = main(keep(["train", *data, *schema, *case.flags, *SHORT]))
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown.err
    (line,) = shown.err.strip().splitlines()
    assert line.startswith("error: ")
    assert re.search(case.sentence, line), line
    assert MARK.lower() not in line.lower()
    assert "Traceback" not in line


def test_the_good_table_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that none of the others fails for the table's or the flags' sake."""
    (tmp_path / "rows.csv").write_text(GOOD)
    code = main(keep(["train", "--data", tmp_path / "rows.csv", *LABEL, *SHORT, "--secret-seed", "1"]))
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert MARK.lower() not in (shown.out + shown.err).lower()


# `--device`: an available device, and one sentence for others.


QUICK = ["train", "--problem", "digits-logistic", "--epochs", "1", "--json"]


def test_the_cpu_is_there(capsys) -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert main([*QUICK, "--device", "cpu"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("gpu", "unknown device 'gpu': use cpu"), ("meta", "unknown device 'meta'")]
)
def test_what_is_no_device_is_one_sentence(name, said, capsys) -> None:
    assert main([*QUICK, "--device", name]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


@pytest.mark.parametrize("kind", ["cuda", "mps", "cuda:7", "cpu:1"])
def test_a_device_that_is_not_there_is_one_sentence(kind, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 0)
    assert main([*QUICK, "--device", kind]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"device '{kind}' does not exist: this machine has cpu" in line


def test_the_devices_of_the_machine_are_named(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InvalidInputError, match="cuda:0.*cuda:1"):
        find_device("cuda:2")


# `--unit`: the guarantee, the statement and the ledger are per unit, and no unit is in both training and test data.


PATIENTS = 120


def make_rows() -> list[list[object]]:
    random = np.random.default_rng(0)
    rows = []
    for patient in range(PATIENTS):
        for _ in range(1 + patient % 12 if patient % 5 == 0 else 1 + patient % 2):
            a, b = random.normal(size=2)
            rows.append([f"P{patient:04d}", f"{a:.3f}", f"{b:.3f}", "yes" if a + b > 0 else "no"])
    return [rows[i] for i in random.permutation(len(rows))]


@pytest.fixture
def table_units(tmp_path) -> Path:
    path = tmp_path / "visits.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["patient_id", "a", "b", "sick"], *make_rows()])
    return path


@dataclass(frozen=True)
class Said:
    """What a command wrote."""

    stdout: str
    stderr: str


@pytest.fixture
def hush(capsys) -> Callable[..., Said]:
    def call(*arguments: object, code: int = 0) -> Said:
        capsys.readouterr()
        found = main(keep(arguments))
        captured = capsys.readouterr()
        assert found == code, captured.err
        return Said(captured.out, captured.err)

    return call


@pytest.fixture
def train(hush) -> Callable[..., Said]:
    def call(table: Path, *more: object, code: int = 0) -> Said:
        return hush(
            "train",
            "--data",
            table,
            "--target",
            "sick",
            "--public",
            "classes",
            "--epochs",
            2,
            "--json",
            *more,
            code=code,
        )

    return call


def test_everything_says_whose_the_guarantee_is(table_units: Path, tmp_path, train) -> None:
    out, ledger = tmp_path / "run", tmp_path / "ledger.json"
    result = train(table_units, "--unit", "patient_id", "--out", out, "--ledger", ledger, "--dataset", "visits")
    told = json.loads(result.stdout)
    assert told["unit"] == "patient_id"
    assert "differentially private per patient_id" in told["sentence"]
    assert "the number of units (patient_id) is public" in told["sentence"]
    card = json.loads((out / "release" / "privacy.json").read_text())
    assert '"unit": "patient_id"' in json.dumps(card)
    assert f"at most {ROWS_PER_UNIT} of them at a time" in result.stderr
    assert "warning" not in result.stderr


def test_the_plan_is_over_units(table_units: Path, train) -> None:
    problem = from_files(table_units, target="sick", public=("classes",), unit="patient_id")
    assert problem.unit == "patient_id"
    assert problem.owners is not None
    assert problem.examples == len(set(problem.owners.train.tolist())) < PATIENTS
    assert len(problem.train[0]) > problem.examples
    told = json.loads(train(table_units, "--unit", "patient_id", "--batch-size", 30, "--delta", 1e-5).stdout)
    assert told["steps"] == 2 * -(-problem.examples // 30)
    above = 0.999 / PATIENTS  # below 1 over all units, not below 1 over those to train on times their rows
    rows = len(problem.train[0])
    assert 1 / rows < above < 1 / problem.examples
    train(table_units, "--unit", "patient_id", "--delta", above)
    assert "is not below 1/N" in train(table_units, "--delta", above, code=2).stderr


def test_nobody_is_on_two_sides_and_the_unit_is_no_feature(table_units: Path) -> None:
    problem = from_files(table_units, target="sick", public=("classes",), unit="patient_id", validation=0.2)
    assert problem.owners is not None
    whose: dict[tuple[float, ...], int] = {
        (round(float(a), 3), round(float(b), 3)): identify(name)  # type: ignore[arg-type]
        for name, a, b, _ in make_rows()
    }

    def owners(part) -> set[int]:
        return {whose[tuple(round(float(v), 3) for v in row)] for row in part[0]}

    trained, test, held = owners(problem.train), owners(problem.test), owners(problem.validation)
    assert not trained & test
    assert not trained & held
    assert not test & held
    assert len(trained | test | held) == PATIENTS
    assert trained == set(problem.owners.train.tolist())
    assert test == set(problem.owners.test.tolist())
    assert problem.train[0].shape[1] == 2
    assert [c.name for c in problem.schema.features] == ["a", "b"]


def test_one_patient_more_moves_no_other_to_the_test_rows(table_units: Path, tmp_path) -> None:
    lines = table_units.read_text().splitlines()
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("\n".join(line for line in lines if "P0005" not in line) + "\n")
    both = [
        from_files(path, target="sick", public=("classes",), unit="patient_id").owners for path in (table_units, fewer)
    ]
    assert {*both[0].test.tolist()} - {identify("P0005")} == {*both[1].test.tolist()}
    assert {*both[0].train.tolist()} - {identify("P0005")} == {*both[1].train.tolist()}


def test_arrays_have_units_too(tmp_path, hush) -> None:
    rows = make_rows()
    x, y = (
        np.array([[float(r[1]), float(r[2])] for r in rows], np.float32),
        np.array([int(r[3] == "yes") for r in rows]),
    )
    np.savez(tmp_path / "t.npz", data=x, y=y, who=np.array([r[0] for r in rows]))
    result = hush("train", "--data", tmp_path / "t.npz", "--unit", "who", "--epochs", 1, "--json")
    assert json.loads(result.stdout)["unit"] == "who"
    result = hush("train", "--data", tmp_path / "t.npz", "--unit", "y", code=2)
    assert "is to be predicted, and cannot be both that and the unit" in result.stderr
    half = len(x) // 2
    parts = {"x_train": x[:half], "y_train": y[:half], "x_test": x[half:], "y_test": y[half:]}
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=1000 + np.arange(len(x) - half))
    hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, "--json")
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=np.arange(len(x) - half))
    result = hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, code=2)
    assert "are in the data to train on and in the data to test on" in result.stderr
    np.savez(tmp_path / "both.npz", **parts, who=np.arange(half) // 2, who_test=np.arange(len(x) - half) * 1.0)
    result = hush("train", "--data", tmp_path / "both.npz", "--unit", "who", "--epochs", 1, code=2)
    assert "are in the data to train on and in the data to test on" in result.stderr  # of whatever type the ids are


def test_a_table_of_its_own_to_test_on_names_its_units(table_units: Path, tmp_path, train) -> None:
    lines = table_units.read_text().splitlines()
    first = [line for line in lines[1:] if line < "P0080"]
    rest = [line for line in lines[1:] if line >= "P0080"]
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("\n".join([lines[0], *first]) + "\n")
    two.write_text("\n".join([lines[0], *rest]) + "\n")
    train(one, "--unit", "patient_id", "--test-data", two)
    two.write_text("\n".join([lines[0], *rest, first[0]]) + "\n")
    assert "leave them out of one of the two" in train(one, "--unit", "patient_id", "--test-data", two, code=2).stderr


def test_a_column_that_looks_like_an_id_is_named_and_its_values_are_not(table_units: Path, train) -> None:
    said = train(table_units).stderr
    assert said.count("warning") == 1
    assert "--unit patient_id" in said
    assert "P00" not in said
    assert str(PATIENTS) not in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--unit", "patient"], "did you mean 'patient_id'"),
        (["--unit", "sick"], "is to be predicted, and cannot be both that and the unit"),
        (["--unit", "example"], "is the word for a single row"),
        (["--rows-per-unit", "3"], "--rows-per-unit needs a unit"),
        (["--unit", "patient_id", "--rows-per-unit", "0"], "rows_per_unit must be a whole number"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(table_units: Path, more: list[str], said: str, train) -> None:
    result = train(table_units, *more, code=2)
    assert said in result.stderr
    assert "P00" not in result.stderr


def test_a_problem_by_name_has_no_units(tmp_path, hush) -> None:
    assert "describe your own data" in hush("train", "--unit", "x", code=2).stderr
    for who in ("a", "b"):
        (tmp_path / "pictures" / who).mkdir(parents=True)
    result = hush("train", "--data", tmp_path / "pictures", "--unit", "x", code=2)
    assert "no column that says whose they are" in result.stderr


def test_a_run_goes_on_with_its_units(table_units: Path, tmp_path, train, hush) -> None:
    seeds = ("--secret-seed", 5, "--unit", "patient_id", "--rows-per-unit", 2)
    right = json.loads(train(table_units, *seeds, "--out", tmp_path / "right").stdout)
    weights = (tmp_path / "right" / "release" / "model.safetensors").read_bytes()
    again = json.loads(hush("train", "--out", tmp_path / "right", "--resume", "--json").stdout)
    assert again["epsilon"] == right["epsilon"]
    train(table_units, *seeds, "--out", tmp_path / "other")
    assert (tmp_path / "other" / "release" / "model.safetensors").read_bytes() == weights


class _Silent:
    """Noise so small that counts show through."""

    noise_multiplier = 1e-6


def test_a_unit_counts_once_in_figures_with_noise(table_units: Path) -> None:
    """Whatever its rows are: the counts of all cells sum to the number of units, not of rows."""
    problem = from_files(table_units, target="sick", public=("classes",), unit="patient_id")
    assert problem.owners is not None
    rows, units = len(problem.test[0]), len(set(problem.owners.test.tolist()))
    assert rows > units
    shares = np.stack([np.linspace(0, 1, rows), 1 - np.linspace(0, 1, rows)], 1)
    found = Evaluation(rows, 0.0, 0.0, probabilities=shares, labels=problem.test[1].numpy())

    class Release:
        event, lost, adjacency = _Silent(), 0.0, "zero-out"

    drawn = draw_metrics(problem, found, Release(), Secret.from_seed(0, "metrics"))  # type: ignore[arg-type]
    assert abs(np.sum(drawn["noisy_confusion"]) - units) < 1e-2 + rows * FINEST
    assert drawn["figures"]["rows"] == units
    assert drawn["weighed"] == "each patient_id counts 1, whatever its rows"
    assert torch.is_tensor(problem.test[1])


@pytest.mark.parametrize("method", ["dp-sgd", "dp-ftrl", "sgd"])
def test_every_epoch_says_what_was_spent_and_reached(method, capsys) -> None:
    noise = () if method == "sgd" else ("--epsilon", 4.0)
    arguments = ("train", "--problem", "digits-mlp", "--method", method, *noise, "--epochs", 3, "--batch-size", 256)
    code, out, err = call(capsys, *arguments, "--secret-seed", 1)
    assert code == 0
    lines = [line for line in err.splitlines() if line.startswith("epoch ")]
    numbers = [[float(n) for n in re.findall(r"\d+(?:\.\d+)?", line)] for line in lines]
    assert [found[:2] for found in numbers] == [[1, 3], [2, 3], [3, 3]]
    assert f"{numbers[-1][-1]:.2f} %" in out  # the accuracy of the last epoch is that of the model
    spent = [found[2] for found in numbers]
    if noise:
        assert spent[0] < spent[1] < spent[2] <= 4.0
    assert {len(found) for found in numbers} == {5 if noise else 4}
    assert "epoch " not in call(capsys, *arguments, "--json")[2]


def test_many_epochs_are_shown_at_most_twenty_times(capsys) -> None:
    arguments = ("train", "--problem", "digits-logistic", "--epochs", 45, "--batch-size", 719, "--secret-seed", 1)
    shown = [line for line in call(capsys, *arguments)[2].splitlines() if line.startswith("epoch ")]
    assert 10 <= len(shown) <= 20
    assert shown[-1].startswith("epoch 45 of 45: ")
