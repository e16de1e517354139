"""A model is handed over: whoever has the release alone predicts, evaluates, verifies and exports, by the README's
commands in a fresh folder, after everything that it was trained with is gone."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import hush
from hush.cli import main

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


def read(path: Path) -> list[dict[str, str]]:
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

    found = read(receiver / "predictions.csv")
    assert list(found[0]) == ["row", "prediction", "probability_no", "probability_yes"]
    assert [row["row"] for row in found] == [str(number) for number in range(1, 31)]
    rows = read(receiver / "new.csv")
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
    found = read(receiver / "predictions.csv")
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
    again = read(receiver / "again.csv")
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
    assert [row["prediction"] for row in read(receiver / "predictions.csv")] == given_module.names


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
    found = read(Path("predictions.csv"))
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
