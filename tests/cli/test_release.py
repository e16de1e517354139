"""`hush predict`, `evaluate` and `export` on good and bad input: one sentence, exit 2, no file, and no cell quoted."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import hush
from hush.cli import main
from hush.errors import InvalidInputError
from hush.release.predict import write_rows
from hush.tabular import reader
from hush.tabular.problem import from_files

SCHEMA = """
target = "label"
classes = ["no", "yes"]
[columns.age]
low = 0
high = 100
fill = 40
[columns.height]
kind = "number"
[columns.kind]
values = ["a", "b"]
"""
CELL = "hidden-cell-7"
NEW = f"age,height,kind,other\n30,1.5,a,{CELL}\n,2,b,\nNA,-1,{CELL},x\n200,0,,x\n"


def release(directory: Path, task, model: nn.Module, **described) -> Path:
    plan = hush.make_plan("dp-sgd", examples=len(task[0]), batch_size=20, steps=2, epsilon=5, lr=1.0, clip=1.0)
    losses = lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1], reduction="none")  # noqa: E731
    run = plan.start(model, losses, task, secret=1)
    for batch in run.batches():
        run.step(batch)
    return run.release(directory, **described)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with releases of a table, of images and of a module of one's own, and files of rows."""
    root = tmp_path_factory.mktemp("made")
    generator = np.random.default_rng(0)
    lines = [
        f"{generator.integers(0, 100)},{generator.normal():.2f},{'ab'[i % 2]},{['no', 'yes'][i % 2]}"
        for i in range(100)
    ]
    (root / "my.csv").write_text("\n".join(["age,height,kind,label", *lines]) + "\n")
    (root / "my.toml").write_text(SCHEMA)
    problem = from_files(root / "my.csv", schema=root / "my.toml", model="logistic")
    torch.manual_seed(0)
    release(root / "table", problem.train, problem.model(), description=problem.describe())
    np.savez(root / "images.npz", x=generator.integers(0, 256, (60, 6, 6)).astype(np.uint8), y=np.arange(60) % 3)
    pictures = from_files(root / "images.npz", model="mlp")
    release(root / "images", pictures.train, pictures.model(), description=pictures.describe())
    release(root / "own", (torch.rand(60, 3), torch.arange(60) % 2), nn.Linear(3, 2))
    (root / "new.csv").write_text(NEW)
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def probabilities(path: str) -> list[float]:
    return [float(row["probability_yes"]) for row in read(path)]


def test_missing_and_unknown_are_read_as_in_training(here: Path, capsys) -> None:
    code, out, err = call(capsys, "predict", "table", "new.csv", "--out", "p.csv")
    assert code == 0, err
    assert out == "4 rows predicted: p.csv (row, prediction, probability_no, probability_yes)\n"
    Path("same.csv").write_text("kind,height,age\na,1.5,30\nb,2,40\nzzz,-1,40\n?,0,100\n")
    assert call(capsys, "predict", "table", "same.csv", "--out", "q.csv")[0] == 0
    assert read("p.csv") == read("q.csv")
    assert len(set(probabilities("p.csv"))) == 4
    for row in read("p.csv"):
        assert float(row["probability_no"]) + float(row["probability_yes"]) == pytest.approx(1.0, abs=1e-8)
        assert row["prediction"] == max(("no", "yes"), key=lambda name: float(row[f"probability_{name}"]))


def test_labels_are_not_looked_at(here: Path, capsys) -> None:
    rows = NEW.splitlines()
    Path("labelled.csv").write_text("\n".join([rows[0] + ",label", *(row + ",nonsense" for row in rows[1:])]) + "\n")
    assert call(capsys, "predict", "table", "labelled.csv", "--out", "p.csv")[0] == 0
    assert call(capsys, "predict", "table", "new.csv", "--out", "q.csv")[0] == 0
    assert read("p.csv") == read("q.csv")


def test_rows_in_pieces_give_the_same_file(here: Path, capsys, monkeypatch) -> None:
    assert call(capsys, "predict", "table", "my.csv", "--out", "whole.csv")[0] == 0
    monkeypatch.setattr(reader, "BLOCK", 150)
    lengths = [len(next(iter(piece.values()))) for piece in reader.read_chunks(Path("my.csv"))]
    assert max(lengths) < 20
    assert call(capsys, "predict", "table", "my.csv", "--out", "pieces.csv")[0] == 0
    assert call(capsys, "predict", "table", "my.csv", "--out", "pieces.parquet")[0] == 0
    whole, pieces = read("whole.csv"), read("pieces.csv")
    assert [row["row"] for row in pieces] == [str(number) for number in range(1, 101)]
    assert [row["prediction"] for row in pieces] == [row["prediction"] for row in whole]
    np.testing.assert_allclose(probabilities("pieces.csv"), probabilities("whole.csv"), atol=1e-6)
    import pandas as pd

    frame = pd.read_parquet("pieces.parquet")
    assert list(frame.columns) == list(whole[0])
    assert frame["prediction"].tolist() == [row["prediction"] for row in whole]
    np.testing.assert_allclose(frame["probability_yes"], probabilities("whole.csv"), atol=1e-6)


def test_parts_of_a_table_are_numbered_by_row(here: Path, capsys) -> None:
    Path("parts").mkdir()
    for number in range(2):
        Path("parts", f"{number}.csv").write_text(NEW)
    code, said, err = call(capsys, "predict", "table", "parts", "--out", "p.csv")
    assert code == 0, err
    assert "(row, prediction" in said
    assert [line["row"] for line in read("p.csv")] == [str(n) for n in range(1, 9)]


def test_parquet_rows(here: Path, capsys) -> None:
    import pandas as pd

    pd.DataFrame({"age": [30, None], "height": [1.5, 2.0], "kind": ["a", None]}).to_parquet("new.parquet")
    Path("same.csv").write_text("age,height,kind\n30,1.5,a\n,2,\n")
    assert call(capsys, "predict", "table", "new.parquet", "--out", "p.csv")[0] == 0
    assert call(capsys, "predict", "table", "same.csv", "--out", "q.csv")[0] == 0
    assert read("p.csv") == read("q.csv")


def test_json(here: Path, capsys) -> None:
    code, out, _ = call(capsys, "predict", "table", "new.csv", "--out", "p.csv", "--json")
    assert code == 0
    assert json.loads(out) == {
        "out": "p.csv",
        "rows": 4,
        "columns": ["row", "prediction", "probability_no", "probability_yes"],
        "release": "table",
    }


def test_a_file_is_replaced_only_when_asked(here: Path, capsys) -> None:
    Path("p.csv").write_text("mine")
    code, _, err = call(capsys, "predict", "table", "new.csv", "--out", "p.csv")
    assert code == 2
    assert "'p.csv' is there already: add --overwrite" in err
    assert Path("p.csv").read_text() == "mine"
    assert call(capsys, "predict", "table", "new.csv", "--out", "p.csv", "--overwrite")[0] == 0
    assert len(read("p.csv")) == 4


def test_class_names_of_a_release_do_not_control_the_terminal(here: Path, capsys) -> None:
    """A release may be somebody else's: its class names hold escape codes, and markup of rich."""
    names = ["\x1b[31mred\x07", "[/x]"]
    for name, entry in (("model.json", "classes"), ("schema.json", "classes")):
        path = here / "table" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), entry: names}))
    lines = (here / "my.csv").read_text().replace(",no", f",{names[0]}").replace(",yes", f",{names[1]}")
    (here / "named.csv").write_text(lines)
    code, out, err = call(capsys, "evaluate", "table", "named.csv")
    assert (code, err) == (0, "")
    assert not [c for c in out if ord(c) < 32 and c != "\n"]
    assert "[/x]" in out


def test_evaluate_gives_the_figures_of_the_predictions(here: Path, capsys) -> None:
    code, out, err = call(capsys, "evaluate", "table", "my.csv", "--json")
    assert code == 0, err
    metrics = json.loads(out)
    assert call(capsys, "predict", "table", "my.csv", "--out", "p.csv")[0] == 0
    pairs = [(row["label"], said["prediction"]) for row, said in zip(read("my.csv"), read("p.csv"), strict=True)]
    names = ("no", "yes")
    assert metrics["confusion"] == [[pairs.count((true, said)) for said in names] for true in names]
    assert metrics["accuracy"] == sum(true == said for true, said in pairs) / 100
    assert metrics["commonest"] == 0.5
    assert {"balanced_accuracy", "auc", "log_loss", "recall", "verdict", "classes", "note"} <= metrics.keys()
    code, out, _ = call(capsys, "evaluate", "table", "my.csv")
    assert code == 0
    assert metrics["verdict"] in out
    assert "exact and not covered by ε" in out


def test_a_class_that_the_test_rows_lack(here: Path, capsys) -> None:
    Path("test.csv").write_text("age,height,kind,label\n1,1,a,no\n2,2,b,no\n")
    code, out, err = call(capsys, "evaluate", "table", "test.csv", "--json")
    assert code == 0, err
    metrics = json.loads(out)
    assert metrics["recall"][1] is None
    assert metrics["auc"] is None
    assert call(capsys, "evaluate", "table", "test.csv")[0] == 0


def release_arrays(directory: Path, target: str | None = None, **content: np.ndarray) -> dict:
    """A release of a model that was trained on these arrays, and its description."""
    np.savez(directory.with_suffix(".npz"), **content)
    problem = from_files(directory.with_suffix(".npz"), target=target, model="logistic")
    release(directory, problem.train, problem.model(), description=problem.describe())
    return json.loads((directory / "model.json").read_text())


PIXELS = np.random.default_rng(3).integers(0, 256, (60, 6, 6)).astype(np.uint8)
DIGIT, UNRELATED = np.arange(60) % 3, np.zeros(60, dtype=np.int64)


def count_labels(capsys, *arguments: object) -> list[int]:
    code, out, err = call(capsys, "evaluate", *arguments, "--json")
    assert code == 0, err
    return [sum(row) for row in json.loads(out)["confusion"]]


@pytest.mark.parametrize("x", [PIXELS, PIXELS[:, 0] / 255], ids=["images", "flat"])
def test_labels_come_from_the_array_that_was_trained_on(tmp_path: Path, monkeypatch, capsys, x) -> None:
    monkeypatch.chdir(tmp_path)
    assert release_arrays(Path("run"), "digit", x=x, digit=DIGIT, y=UNRELATED)["target"] == "digit"
    assert count_labels(capsys, "run", "run.npz") == [20, 20, 20]
    np.savez("without.npz", x=x, y=UNRELATED)
    code, _, err = call(capsys, "evaluate", "run", "without.npz")
    assert code == 2
    assert "has no array of labels 'digit'; it has x, y" in err
    assert call(capsys, "predict", "run", "without.npz", "--out", "p.csv")[0] == 0


@pytest.mark.parametrize("x", [PIXELS, PIXELS[:, 0] / 255], ids=["images", "flat"])
@pytest.mark.parametrize("label", ["labels", "y_train", "digit"])
def test_features_of_any_name(tmp_path: Path, monkeypatch, capsys, x, label: str) -> None:
    monkeypatch.chdir(tmp_path)
    target = "digit" if label == "digit" else None
    description = release_arrays(Path("run"), target, **{"feats": x, label: DIGIT})
    assert description["target"] == ("y" if label == "y_train" else label)
    assert count_labels(capsys, "run", "run.npz") == [20, 20, 20]
    assert call(capsys, "predict", "run", "run.npz", "--out", "p.csv")[0] == 0
    np.savez("alone.npz", feats=x)
    assert call(capsys, "predict", "run", "alone.npz", "--out", "q.csv")[0] == 0
    assert read("p.csv") == read("q.csv")
    assert len(hush.load("run").predict("run.npz").names) == 60


@pytest.mark.parametrize("said", [None, "y"])
@pytest.mark.parametrize("label", ["y", "labels", "y_train"])
def test_releases_that_do_not_say_which_array_take_the_usual_ones(
    tmp_path: Path, monkeypatch, capsys, said: str | None, label: str
) -> None:
    monkeypatch.chdir(tmp_path)
    description = release_arrays(Path("run"), **{"x": PIXELS, label: DIGIT})
    (Path("run") / "model.json").write_text(json.dumps(description | {"target": said}))
    assert count_labels(capsys, "run", "run.npz") == [20, 20, 20]
    assert call(capsys, "predict", "run", "run.npz", "--out", "p.csv")[0] == 0


def test_hidden_folders_are_not_predicted(here: Path, capsys) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("0/a.png", "1/b.png", ".thumbnails/a.png"):
        (here / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (6, 6), 9).save(here / "folder" / name)
    code, _, err = call(capsys, "predict", "images", "folder", "--out", "p.csv")
    assert code == 0, err
    assert [row["file"] for row in read("p.csv")] == ["0/a.png", "1/b.png"]
    assert count_labels(capsys, "images", "folder") == [1, 1, 0]


@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
def test_rows_that_may_not_be_read_are_not_blamed_on_the_output(tmp_path: Path, out: str) -> None:
    def give_and_fail() -> Iterator[dict[str, list[int]]]:
        yield {"row": [1]}
        raise PermissionError(13, "Permission denied", "rows.csv")

    with pytest.raises(PermissionError, match=r"rows\.csv"):
        write_rows(tmp_path / out, give_and_fail())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "opener"), [("p.csv", "pathlib.Path.open"), ("p.parquet", "pyarrow.parquet.ParquetWriter")]
)
def test_an_output_that_may_not_be_written_is_one_sentence(tmp_path: Path, monkeypatch, out: str, opener: str) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(opener, refuse)
    with pytest.raises(InvalidInputError, match=f"cannot write to '.*{out}': permission denied"):
        write_rows(tmp_path / out, [{"row": [1]}])


def bad_table(name: str, text: str) -> None:
    Path(name).write_text(text)


BAD = {
    "no such folder": (("predict", "nowhere", "new.csv"), "there is no folder 'nowhere'"),
    "no release": (("predict", ".", "new.csv"), "'.' holds no release"),
    "no such file": (("predict", "table", "gone.csv"), "there is no file or folder 'gone.csv'"),
    "no such column": (("predict", "table", "short.csv"), "has no column 'height'"),
    "text for a number": (("predict", "table", "text.csv"), "column 'height' of 'text.csv' is said to be a number"),
    "no number and no fill": (("predict", "table", "blank.csv"), "has no finite number in row 2"),
    "no rows": (("predict", "table", "empty.csv"), "'empty.csv' holds no rows"),
    "a row too wide": (("predict", "table", "wide.csv"), "row 1 of 'wide.csv' has 4 cells where the header has 3"),
    "a table for images": (("predict", "images", "new.csv"), "which is for images: give a folder of images"),
    "images for a table": (("predict", "table", "folder"), "which is for a table: give a .csv or .parquet"),
    "images of another size": (
        ("predict", "images", "large.npz"),
        "has the shape (1, 7, 7), and the model's (1, 6, 6)",
    ),
    "a module of one's own": (("predict", "own", "new.csv"), "give it with hush.load(…, model=…)"),
    "a factory without trust": (("predict", "factory", "new.csv"), "is not run unless you trust it"),
    "another ending": (("predict", "table", "new.csv", "--out", "p.xlsx"), "must end in .csv or .parquet"),
    "a folder as output": (("predict", "table", "new.csv", "--out", "folder"), "'folder' is a folder"),
    "no folder for the output": (("predict", "table", "new.csv", "--out", "no/p.csv"), "there is no folder 'no'"),
    "over the rows": (("predict", "table", "new.csv", "--out", "new.csv", "--overwrite"), "cannot take the place"),
    "into the release": (("predict", "table", "new.csv", "--out", "table/p.csv"), "lies in the release"),
    "not whole weights": (("predict", "broken", "new.csv"), "is not a whole file of weights"),
    "no labels": (("evaluate", "table", "new.csv"), "has no column 'label'"),
    "an unknown label": (("evaluate", "table", "labels.csv"), "row 1 of 'labels.csv' has a label that is none of the"),
    "no labels in arrays": (("evaluate", "images", "large.npz"), "has no array of labels 'y'"),
    "another format": (
        ("export", "table", "--format", "pickle", "--out", "m.bin"),
        "unknown format 'pickle': known: onnx, torch",
    ),
    "nothing known of inputs": (("export", "own", "--out", "m.pt2"), "give it with hush.load(…, model=…)"),
    "an export into the release": (("export", "table", "--out", "table/m.pt2"), "lies in the release"),
    "an export over a file": (("export", "table", "--out", "new.csv"), "'new.csv' is there already"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(here: Path, capsys, what: str) -> None:
    bad_table("short.csv", f"age,kind\n1,{CELL}\n")
    bad_table("text.csv", f"age,height,kind\n1,{CELL},a\n")
    bad_table("blank.csv", f"age,height,kind\n1,1,{CELL}\n2,,{CELL}\n")
    bad_table("empty.csv", "age,height,kind\n")
    bad_table("wide.csv", f"age,height,kind\n1,2,{CELL},4\n")
    bad_table("labels.csv", f"age,height,kind,label\n1,2,a,{CELL}\n")
    Path("folder").mkdir()
    np.savez("large.npz", x=np.zeros((3, 7, 7), dtype=np.uint8))
    _make_untrusted(Path("factory"))
    shutil.copytree("table", "broken")
    Path("broken/model.safetensors").write_bytes(b"nonsense")
    arguments, message = BAD[what]
    out = () if arguments[0] == "evaluate" or "--out" in arguments else ("--out", "p.csv")
    before = sorted(Path().rglob("*"))
    code, stdout, err = call(capsys, *arguments, *out)
    assert (code, stdout) == (2, ""), err
    assert message in err
    sentences = [line for line in err.splitlines() if not line.endswith(" …")]  # what is said when it takes long
    assert len(sentences) == 1
    assert sentences[0].startswith("error: ")
    assert CELL not in err
    assert sorted(Path().rglob("*")) == before


def _make_untrusted(directory: Path) -> None:
    """The table's release, described as made by somebody's code."""
    shutil.copytree("table", directory)
    path = directory / "model.json"
    found = json.loads(path.read_text())
    found["architecture"] |= {"source": "factory", "name": "os:getcwd", "arguments": {}}
    path.write_text(json.dumps(found))


def test_a_bad_row_far_down_leaves_no_file(here: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(reader, "ROWS", 5)
    bad_table("late.csv", "age,height,kind\n" + "1,1,a\n" * 22 + "1,,a\n")
    code, _, err = call(capsys, "predict", "table", "late.csv", "--out", "p.csv")
    assert code == 2
    assert "row 23" in err
    assert not list(Path().glob("*p.csv*")) + list(Path().glob(".*.part"))


# A release alone is enough to predict, evaluate, verify and export, by the README's commands in a new folder, after
# the training data are gone.


ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import contextlib, io, json, sys
from hush.cli.main import main
said = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(command)
    if code:
        sys.exit(code)
    said.append(out.getvalue())
print(json.dumps(said))
"""
QUICK = ("--epochs", "4", "--batch-size", "50", "--secret-seed", "1", "--lr", "0.5")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path, word: str) -> list[list[str]]:
    """The commands of the page's first block that names ``word``, without `hush` and without their comments."""
    block = next(block for block in blocks(page, "sh") if word in block)
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines()]


def run_alone(commands: list[list[str]], cwd: Path) -> list[str]:
    """What these commands print in a process of their own, in this folder."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_table(path: Path, rows: int, seed: int, *, labelled: bool = True) -> Path:
    """A number and a word that tell the label; in places a word that training has not seen, and no word."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    heights = generator.normal(0, 1, rows) + 3 * labels
    words = np.where(np.arange(rows) % 10 == 0, ["", "new"][seed % 2], np.array(["a", "b"])[labels])
    lines = [f"{h:.3f},{w}" + f",{['no', 'yes'][y]}" * labelled for h, w, y in zip(heights, words, labels, strict=True)]
    path.write_text("\n".join(["height,kind" + ",label" * labelled, *lines]) + "\n")
    return path


def hand_over(workshop: Path, release: Path, receiver: Path) -> Path:
    """Copy a release to somebody else's folder, and destroy all that it was made from."""
    receiver.mkdir()
    found = Path(shutil.copytree(release, receiver / "release"))
    shutil.rmtree(workshop)
    return found


def read_readme(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_readme_on_a_table(tmp_path: Path, monkeypatch, capsys) -> None:
    workshop, receiver = tmp_path / "workshop", tmp_path / "receiver"
    workshop.mkdir()
    write_table(workshop / "my.csv", 400, 0)
    monkeypatch.chdir(workshop)
    train, *others = commands(ROOT / "README.md", "hush predict")
    assert [command[0] for command in others] == ["predict", "evaluate", "verify", "export"]
    assert main([*train, *QUICK]) == 0, capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    receiver.mkdir()
    release = hand_over(workshop, workshop / "my-run" / "release", receiver / "my-run")
    write_table(receiver / "new.csv", 30, 1, labelled=False)
    write_table(receiver / "test.csv", 200, 2)
    said = dict(zip((command[0] for command in others), run_alone(others, receiver), strict=True))

    found = read_readme(receiver / "predictions.csv")
    assert list(found[0]) == ["row", "prediction", "probability_no", "probability_yes"]
    assert [row["row"] for row in found] == [str(number) for number in range(1, 31)]
    rows = read_readme(receiver / "new.csv")
    mine = hush.load(release).predict(rows)
    assert [row["prediction"] for row in found] == mine.names
    assert mine.probabilities is not None
    shares = [[float(row["probability_no"]), float(row["probability_yes"])] for row in found]
    np.testing.assert_allclose(shares, mine.probabilities.numpy(), atol=1e-6)
    truth = ["yes" if float(row["height"]) > 1.5 else "no" for row in rows]
    assert sum(a == b for a, b in zip(truth, mine.names, strict=True)) >= 24
    assert "where always saying the commonest class gives" in said["evaluate"]
    assert "exact and not covered by ε" in said["evaluate"]
    assert (receiver / "model.pt2").is_file()
    assert json.loads((receiver / "model.pt2.json").read_text())["outputs"]["classes"] == ["no", "yes"]


def write_images(root: Path, each: int, seed: int, classes: tuple[str, ...] = ("dark", "light")) -> Path:
    generator = np.random.default_rng(seed)
    for place, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = generator.integers(0, 100, (8, 8)) + 150 * place
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number:03}.png")
    return root


def test_images(tmp_path: Path, monkeypatch, capsys) -> None:
    workshop, receiver = tmp_path / "workshop", tmp_path / "receiver"
    write_images(workshop / "mine", 100, 0)
    given = ("train", "--data", str(workshop / "mine"), "--epsilon", "8", "--out", str(workshop / "run"))
    assert main([*given, *QUICK]) == 0, capsys.readouterr().err
    hand_over(workshop, workshop / "run" / "release", receiver)
    monkeypatch.chdir(receiver)
    write_images(receiver / "test", 20, 1)
    shutil.copytree(receiver / "test" / "light", receiver / "new")
    assert main(["predict", "release", "new", "--out", "predictions.csv"]) == 0, capsys.readouterr().err
    found = read_readme(receiver / "predictions.csv")
    assert [row["file"] for row in found] == [f"{number:03}.png" for number in range(20)]
    assert sum(row["prediction"] == "light" for row in found) >= 18
    capsys.readouterr()
    assert main(["evaluate", "release", "test", "--json"]) == 0, capsys.readouterr().err
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["rows"] == 40
    assert metrics["accuracy"] >= 0.9
    assert [sum(row) for row in metrics["confusion"]] == [20, 20]
    assert metrics["covered"] is False
    arrays = np.stack([np.asarray(Image.open(path)) for path in sorted((receiver / "new").iterdir())])
    np.savez(receiver / "new.npz", x=arrays)
    assert main(["predict", "release", "new.npz", "--out", "again.csv"]) == 0, capsys.readouterr().err
    again = read_readme(receiver / "again.csv")
    assert [row["probability_dark"] for row in again] == [row["probability_dark"] for row in found]
    assert main(["export", "release", "--format", "torch"]) == 0, capsys.readouterr().err
    assert main(["export", "release", "--format", "torch"]) == 2
    assert "'model.pt2'" in capsys.readouterr().err
    page = json.loads((receiver / "model.pt2.json").read_text())
    facts = page["encoding"]
    encoded = (arrays[:, None].astype(np.float32) - facts["low"]) * (facts["onto"][1] - facts["onto"][0])
    encoded = encoded / (facts["high"] - facts["low"]) + facts["onto"][0]
    assert page["inputs"]["shape"] == ["rows", 1, 8, 8]
    scores = torch.export.load(receiver / "model.pt2").module()(torch.from_numpy(encoded.astype(np.float32)))
    mine = hush.load(receiver / "release")
    with torch.no_grad():
        np.testing.assert_allclose(scores.detach(), mine(mine.encode(receiver / "new")), atol=1e-5)


OWN = """
from torch import nn


def network(features, classes):
    return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, classes))
"""


def test_a_module_of_ones_own_in_the_shell(tmp_path: Path, monkeypatch, capsys) -> None:
    workshop, receiver = tmp_path / "workshop", tmp_path / "receiver"
    workshop.mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "handed_network.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "code")
    write_table(workshop / "my.csv", 200, 0)
    given = (
        "--data",
        str(workshop / "my.csv"),
        "--target",
        "label",
        "--public",
        "classes",
        "--model",
        "handed_network:network",
    )
    assert main(["train", *given, "--out", str(workshop / "run"), *QUICK]) == 0, capsys.readouterr().err
    hand_over(workshop, workshop / "run" / "release", receiver)
    monkeypatch.chdir(receiver)
    write_table(receiver / "new.csv", 30, 1, labelled=False)
    page = ROOT / "docs" / "hand-over.md"
    (command,) = commands(page, "--trust-code")
    sys.modules.pop("handed_network")
    capsys.readouterr()
    assert main([part for part in command if part != "--trust-code"]) == 2
    assert "is not run unless you trust it" in capsys.readouterr().err
    assert "handed_network" not in sys.modules
    assert not (receiver / "predictions.csv").exists()
    assert main(command) == 0, capsys.readouterr().err
    from handed_network import network  # type: ignore[import-not-found]

    width = load_file("release/model.safetensors")["1.0.weight"].shape[1]
    given_module = hush.load("release", model=network(width, 2)).predict("new.csv")
    assert [row["prediction"] for row in read_readme(receiver / "predictions.csv")] == given_module.names


def test_a_module_of_ones_own_in_python(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.rand(300, 6)
    y = (x.sum(1) > 3).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = hush.make_plan("dp-sgd", examples=300, batch_size=50, epochs=3, epsilon=5, lr=1.0, clip=1.0)
    run = plan.start(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1], reduction="none"), (x, y), secret=1)
    for batch in run.batches():
        run.step(batch)
    told = hush.Description("classification", inputs=hush.Inputs("arrays", (6,)), classes=("low", "high"))
    run.release("release", description=told)
    fresh = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    np.savez("new.npz", x=x[:20].numpy())
    found = hush.load("release", model=fresh).predict("new.npz")
    with torch.no_grad():
        assert found.names == [("low", "high")[place] for place in model(x[:20]).argmax(1).tolist()]


def test_plain_torch_and_the_exports_of_the_page(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(blocks(ROOT / "docs" / "own-data.md", "python")[0], {})
    Path("patients.toml").write_text(blocks(ROOT / "docs" / "own-data.md", "toml")[0])
    given = ("--data", "patients.csv", "--schema", "patients.toml", "--model", "logistic", "--out", "run")
    assert main(["train", *given, *QUICK]) == 0, capsys.readouterr().err
    shutil.copytree("run/release", "release")
    space: dict = {}
    exec(*blocks(ROOT / "docs" / "hand-over.md", "python"), space)
    mine = hush.load("release")
    rows = mine.encode("patients.csv")
    assert isinstance(mine.network, nn.Sequential)
    with torch.no_grad():
        inputs, scores = mine.network[0](rows), mine(rows)
        assert torch.equal(space["model"](inputs), scores)
    for command in commands(ROOT / "docs" / "hand-over.md", "hush export"):
        assert main(command) == 0, capsys.readouterr().err
    np.testing.assert_allclose(
        torch.export.load("model.pt2").module()(inputs).detach().numpy(), scores.numpy(), rtol=0, atol=1e-6
    )
    import onnxruntime

    (found,) = onnxruntime.InferenceSession("model.onnx").run(None, {"inputs": inputs.numpy()})
    np.testing.assert_allclose(found, scores.numpy(), rtol=0, atol=1e-6)


def test_numbers(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    sizes = generator.uniform(0, 10, 300)
    lines = [f"{size:.3f},{3 * size + generator.normal():.3f}" for size in sizes]
    Path("my.csv").write_text("\n".join(["size,price", *lines]) + "\n")
    Path("my.toml").write_text(
        'target = "price"\ntarget_range = [0, 30]\n[columns.size]\nlow = 0\nhigh = 10\nwaves = false\n'
    )
    given = ("--data", "my.csv", "--schema", "my.toml", "--task", "regression", "--model", "logistic", "--out", "run")
    assert main(["train", *given, "--epsilon", "8", *QUICK]) == 0, capsys.readouterr().err
    Path("new.csv").write_text("size\n1\n5\n9\n")
    assert main(["predict", "run", "new.csv", "--out", "predictions.csv"]) == 0, capsys.readouterr().err
    found = read_readme(Path("predictions.csv"))
    assert list(found[0]) == ["row", "prediction"]
    values = [float(row["prediction"]) for row in found]
    assert values[0] < values[1] < values[2]
    capsys.readouterr()
    assert main(["evaluate", "run", "my.csv", "--json"]) == 0, capsys.readouterr().err
    metrics = json.loads(capsys.readouterr().out)
    truth = np.array([float(line.split(",")[1]) for line in lines])
    said = hush.load("run").predict("my.csv").values
    assert said is not None
    assert metrics["mae"] == pytest.approx(float(np.abs(said.numpy() - truth).mean()), rel=1e-6)
    assert {"rows", "mae", "rmse", "r2", "note"} <= metrics.keys()
    assert main(["evaluate", "run", "my.csv"]) == 0
    assert "RMSE" in capsys.readouterr().out
    assert main(["export", "run", "--out", "model.pt2"]) == 0, capsys.readouterr().err
    outputs = json.loads(Path("model.pt2.json").read_text())["outputs"]
    raw = torch.export.load("model.pt2").module()(torch.tensor([[-0.8], [0.0], [0.8]])).detach().numpy().ravel()
    np.testing.assert_allclose(outputs["low"] + (raw + 1) * (outputs["high"] - outputs["low"]) / 2, values, atol=1e-4)
