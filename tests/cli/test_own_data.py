"""`hush train --data`: somebody's own files in the shell, what is said of them, and one sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hush.accounting.guarantee import HELD, say_own_data
from hush.cli import main
from keeping import keep


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
        (("--test-data", "later.csv"), "describe your own data: give it with --data"),
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
