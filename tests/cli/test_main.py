"""The command line: JSON fields that scripts rely on, and one-sentence errors for bad input."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest

from hush._internal import storage
from hush._internal.settings import list_settings
from hush._internal.storage import MARK, check_page, lock_file, write_page
from hush.accounting.guarantee import SECRET_SEED
from hush.cli import main
from hush.cli.options import Training, read_recipes
from hush.cli.prepare import read_method_options
from hush.errors import InvalidInputError
from synthetic_stores import make_many, write_plainly


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *arguments: str):
    code, out, err = call(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


ACCOUNT = ("account", "--examples", 60000, "--batch-size", 256, "--epochs", 20)


def test_methods(capsys) -> None:
    listed = {row["method"]: row for row in answer(capsys, "methods")}
    assert {"sgd", "dp-sgd", "dp-adam"} <= set(listed)
    assert listed["dp-sgd"]["options"]["clip"] == 1.0
    assert listed["dp-sgd"]["words"] == {"clip_mode": ["plain", "normalised", "automatic"]}
    assert next(iter(listed)) == "auto"
    assert call(capsys, "methods")[0] == 0


@pytest.mark.parametrize("group", ["data", "ledger", "noise"])
def test_a_group_without_a_command_shows_its_help(group: str, capsys) -> None:
    _, out, err = call(capsys, group)
    assert "Usage: hush " + group in out + err
    assert "Missing command" not in out + err


def test_problems(capsys) -> None:
    assert {"digits-mlp", "breast-cancer-mlp"} <= {row["problem"] for row in answer(capsys, "problems")}


def test_the_datasets_and_a_hint_for_a_mistyped_one(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path))
    monkeypatch.delenv("HUSH_DATA", raising=False)
    listed = {row["name"]: row["where"] for row in answer(capsys, "data", "list")}
    assert (listed["digits"], listed["adult"]) == ("inside sklearn", None)
    verified = answer(capsys, "data", "verify")
    assert {row["dataset"] for row in verified} == {"mnist", "fashion-mnist", "cifar-10", "adult"}
    assert {row["status"] for row in verified} == {"missing"}
    code, _, err = call(capsys, "data", "verify", "mnist")
    assert code == 1
    for command in ("verify", "fetch"):
        code, _, err = call(capsys, "data", command, "mnits")
        assert code == 2
        assert "unknown dataset 'mnits': did you mean 'mnist'?" in err


def test_account_has_the_fields_that_scripts_rely_on(capsys) -> None:
    found = answer(capsys, *ACCOUNT, "--delta", 1e-5, "--noise-multiplier", 1.0)
    fields = {"method", "epsilon", "delta", "noise_multiplier", "accountant", "adjacency", "status", "steps"}
    assert fields | {"sample_rate", "sensitivity", "noise_std", "claims"} <= set(found)
    assert round(found["epsilon"], 3) == 1.571  # MECHANISMS.md §3
    assert found["accountant"] == "pld"
    assert found["status"] == "proven"
    assert found["steps"] == 4700
    assert found["sample_rate"] == 256 / 60000
    assert found["claims"][0]["epsilon"] == found["epsilon"]
    assert {"epsilon", "status", "reason"} <= set(found["claims"][0])


# every value of MECHANISMS.md §3 that the shell can give: q, T, σ, accountant, ε
@pytest.mark.parametrize(
    ("rate", "steps", "sigma", "accountant", "epsilon"),
    [(1 / 235, 4700, 1.0, "rdp", 1.757), (1 / 235, 4700, 0.75, "pld", 3.108), (1 / 210, 4200, 0.5, "pld", 13.08)],
)
def test_account_golden(capsys, rate, steps, sigma, accountant, epsilon) -> None:
    flags = ("--sample-rate", rate, "--steps", steps, "--noise-multiplier", sigma, "--accountant", accountant)
    found = answer(capsys, *ACCOUNT, *flags)
    assert round(found["epsilon"], 2 if epsilon > 10 else 3) == epsilon


def test_account_calibrates(capsys) -> None:
    found = answer(capsys, "account", "--examples", 50000, "--batch-size", 256, "--epochs", 250, "--epsilon", 5)
    assert round(found["noise_multiplier"], 3) == 1.218  # MECHANISMS.md §3
    assert found["epsilon"] <= 5


def test_account_for_people(capsys) -> None:
    code, out, _ = call(capsys, *ACCOUNT, "--noise-multiplier", 1.0)
    assert code == 0
    assert "ε = 1.5" in out
    assert "proven" in out


TRAIN = ("train", "--epochs", 1)


def test_train_on_embedded_data(capsys, tmp_path) -> None:
    found = answer(capsys, *TRAIN, "--epsilon", 3, "--lr", 0.5, "--clip", 1.0, "--out", tmp_path / "run")
    for field in (
        "problem",
        "method",
        "epsilon",
        "delta",
        "status",
        "noise_multiplier",
        "steps",
        "test_accuracy",
        "seconds",
    ):
        assert field in found
    assert found["epsilon"] <= 3
    assert found["status"] == "proven"
    assert found["out"] == str(tmp_path / "run")
    assert (tmp_path / "run" / "release" / "model.safetensors").is_file()
    card = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert card["guarantee"]["epsilon"] == found["epsilon"]
    private = tmp_path / "run" / "private"
    assert private.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("problem", ["digits-mlp", "breast-cancer-mlp"])
@pytest.mark.parametrize("method", ["sgd", "dp-sgd", "dp-adam"])
def test_every_method_on_embedded_data(capsys, problem, method) -> None:
    found = answer(capsys, *TRAIN, "--problem", problem, "--method", method, "--batch-size", 64)
    assert found["status"] == ("none" if method == "sgd" else "proven")
    assert 0 <= found["test_accuracy"] <= 1
    assert (found["epsilon"] is None) == (method == "sgd")


def test_the_default_is_a_useful_model(capsys) -> None:
    found = answer(capsys, "train")
    assert found["epsilon"] <= 3.0
    assert found["test_accuracy"] > 0.85


def test_a_secret_seed_reproduces(capsys, tmp_path) -> None:
    runs = []
    for name in ("a", "b"):
        answer(capsys, *TRAIN, "--secret-seed", 5, "--out", tmp_path / name)
        runs.append((tmp_path / name / "release" / "model.safetensors").read_bytes())
    assert runs[0] == runs[1]
    assert SECRET_SEED in (tmp_path / "a" / "release" / "PRIVACY.md").read_text()


def test_set(capsys) -> None:
    found = answer(capsys, *TRAIN, "--method", "dp-adam", "--set", "beta1=0.8", "--set", "lr=0.02")
    assert found["method"] == "dp-adam"


BAD = [
    ((*ACCOUNT, "--epsilon", 0), "epsilon must be above zero, got 0"),
    ((*ACCOUNT, "--epsilon", "nan"), "epsilon must be a finite number"),
    ((*ACCOUNT, "--epsilon", "inf"), "epsilon must be a finite number"),
    ((*ACCOUNT, "--epsilon", 1, "--delta", 1), "delta must lie between 0 and 1"),
    ((*ACCOUNT, "--epsilon", 1, "--delta", 0), "delta must lie between 0 and 1"),
    (("account", "--examples", 100, "--batch-size", 256, "--epsilon", 1), "batch size 256 is larger than the data"),
    ((*ACCOUNT, "--epsilon", 1, "--noise-multiplier", 1), "exactly one of --epsilon, --noise-multiplier and"),
    ((*ACCOUNT,), "exactly one of --epsilon, --noise-multiplier and --node-noise (epsilon=…, noise_multiplier=…"),
    ((*ACCOUNT, "--epsilon", 1, "--adjacency", "foo"), "unknown adjacency 'foo': known: add-remove, replace, zero-out"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "clip=1", "--set", "clip=2"), "'clip' is given twice: leave out one --set"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "momentum=1"), "momentum must be at least 0 and below 1, got 1"),
    ((*ACCOUNT, "--epsilon", 1, "--method", "dp-sdg"), "did you mean 'dp-sgd'"),
    ((*ACCOUNT, "--epsilon", 1, "--accountant", "pdl"), "did you mean 'pld'"),
    ((*ACCOUNT, "--epsilon", 1, "--sampling", "shufled"), "did you mean 'shuffled'"),
    ((*ACCOUNT, "--epsilon", 1, "--sampling", "shuffled", "--sample-rate", 0.01), "use sampling 'poisson'"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "clp=1"), "did you mean 'clip'"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "clip"), "--set takes key=value"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "clip=much"), "option 'clip' takes float"),
    ((*ACCOUNT, "--epsilon", 1, "--set", "clip=-1"), "clip must be above zero"),
    ((*ACCOUNT, "--epsilon", "many"), "--epsilon"),
    ((*ACCOUNT, "--epsilonn", 1), "--epsilonn"),
    (("train", "--problem", "digit-mlp"), "did you mean 'digits-mlp'"),
    (("train", "--method", "sgd", "--epsilon", 1), "adds no noise"),
    (("train", "--method", "sgd", "--clip", 1), "no option 'clip'"),
    (("train", "--clip-mode", "soft"), "unknown clip mode 'soft'"),
    (("train", "--clip", 1, "--set", "clip=2"), "'clip' is given twice: leave out --clip or --set clip"),
    (("train", "--adjacency", "foo"), "unknown adjacency 'foo'"),
    (("train", "--adjacency", "add-remove"), "use zero-out adjacency (the same ε)"),
    (("train", "--adjacency", "add-remove", "--sampling", "fixed-size"), "use replace adjacency, or"),
    (("train", "--out", "/proc/nowhere"), "cannot write to '/proc/nowhere'"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=[" ".join(map(str, a[-4:])) for a, _ in BAD])
def test_bad_input_gets_one_sentence_and_exit_2(capsys, arguments, sentence) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_large_delta_is_warned_of(capsys) -> None:
    code, _, err = call(
        capsys, "account", "--examples", 1000, "--batch-size", 10, "--noise-multiplier", 1, "--delta", 0.01
    )
    assert code == 0
    assert "warning: δ = 0.01 is not below 1/N" in err


def test_the_installed_program(tmp_path) -> None:
    program = Path(sys.executable).with_name("hush")
    done = subprocess.run([program, "account", "--help"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0
    assert "--noise-multiplier" in done.stdout
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "train" in done.stdout


def test_a_recipe_sets_what_flags_leave_open(capsys) -> None:
    found = answer(capsys, "train", "--recipe", "digits", "--steps", 2)
    assert found["steps"] == 2
    assert 2.9 < found["epsilon"] <= 3.0
    code, _, err = call(capsys, "train", "--recipe", "digit")
    assert code == 2
    assert "did you mean 'digits'" in err


def test_every_recipe_names_options_that_exist() -> None:
    known = list_settings(Training)
    for name, settings in read_recipes().items():
        assert set(settings) <= set(known), name
        assert all(
            type(value) in (known[key].hint, *get_args(known[key].hint))
            for key, value in settings.items()
            if key != "settings"
        )
        given = {key: settings.get(key) for key in ("lr", "clip")}
        assert read_method_options(settings["method"], settings.get("settings"), **given)["lr"] == settings["lr"]


def test_what_is_set_beside_a_recipe_wins(capsys) -> None:
    found = answer(capsys, "train", "--recipe", "digits", "--steps", 2, "--set", "clip=2", "--set", "lr=0.5")
    assert found["steps"] == 2


@pytest.mark.parametrize("command", ["plan", "train", "tune"])
def test_ctrl_c_ends_with_a_word(capsys, monkeypatch, command: str) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hush.cli.prepare.load_task", interrupt)
    more = ("--public-test",) if command == "tune" else ()
    assert call(capsys, command, "--problem", "digits-logistic", *more) == (130, "", "interrupted\n")


def test_a_run_that_is_stopped_says_where_and_nothing_else(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("hush.cli.train.note_interrupts", lambda: nullcontext(lambda: True))
    given = ("train", "--problem", "digits-logistic", "--steps", "4", "--out", tmp_path / "run")
    code, out, err = call(capsys, *given)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        f"stopped at step 1 of 4: as requested; everything is saved up to step 1, resume with: hush train --out "
        f"{tmp_path / 'run'} --resume"
    )
    assert "interrupted" not in err


@pytest.mark.parametrize(
    ("command", "writer"),
    [
        (("predict", "run", "rows.csv", "--out", "answers.csv"), "hush.release.predict.predict_file"),
        (("export", "run", "--out", "model.pt2"), "hush.release.export.export_release"),
        (("report", "run", "--out", "page.html"), "hush.report.write_page"),
        (("evaluate", "run", "rows.csv"), "hush.release.predict.judge_file"),
    ],
    ids=["predict", "export", "report", "evaluate"],
)
def test_a_full_disk_is_one_sentence(capsys, monkeypatch, tmp_path, command, writer: str) -> None:
    def fill(*given: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writer, fill)
    assert call(capsys, "train", "--problem", "digits-logistic", "--steps", "1", "--out", "run")[0] == 0
    (tmp_path / "rows.csv").write_text("a\n1\n")
    assert call(capsys, *command) == (1, "", "error: no space is left on the disk (free some first)\n")


def test_the_guarantee_of_the_embedded_digits_fits_three_lines(capsys) -> None:
    code, out, err = call(capsys, "train", "--arithmetic", "rigorous", "--epochs", 1)
    assert code == 0, err
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("(ε = "))
    stated = [lines[first], *itertools.takewhile(lambda line: line.startswith("  "), lines[first + 1 :])]
    assert 2 <= len(stated) <= 3
    assert max(map(len, stated)) <= 120


# Output files named by the user: existing files are not overwritten, partial files are not left.


NOISE = ("noise", "show", "--method", "dp-blt", "--examples", "200", "--batch-size", "10", "--epochs", "2", "--out")
AUDIT = ("audit", "--method", "dp-sgd", "--runs", "20", "--seed", "1", "--page")
PLAN = ("plan", "--examples", "2000", "--batch-size", "64", "--epochs", "1", "--epsilon", "3", "--out")
REPORT = ("report", "store", "--out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    write_plainly(root / "store", make_many(4))
    lines = ["age,town,sick", *(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(80))]
    (root / "rows.csv").write_text("\n".join(lines) + "\n")
    flags = ("--batch-size", "20", "--steps", "2", "--noise-multiplier", "2", "--public", "classes")
    assert main(["train", "--data", str(root / "rows.csv"), "--target", "sick", *flags, "--out", str(root / "r")]) == 0
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (PLAN, "x.html"),
        (NOISE, "x.html"),
        (AUDIT, "x.html"),
        (REPORT, "x.html"),
        (("report", "r", "--out"), "x.html"),
        (("report", "store", "--format", "markdown", "--out"), "x.md"),
        (("report", "store", "--format", "latex", "--out"), "x.tex"),
    ],
    ids=["plan", "noise", "audit", "report", "run", "markdown", "latex"],
)
def test_a_page_replaces_its_own_kind_and_no_file_of_the_user(call, name, here, capsys) -> None:
    own = here / name
    own.write_text("two years of notes")
    assert main([*call, name]) == 2
    assert own.read_text() == "two years of notes"
    assert f"'{name}'" in capsys.readouterr().err
    own.unlink()
    assert main([*call, name]) == 0
    assert MARK in own.read_text()
    assert main([*call, name]) == 0


@pytest.mark.parametrize(
    "call", [PLAN, NOISE, AUDIT, REPORT, ("export", "r", "--out"), ("predict", "r", "rows.csv", "--out")]
)
@pytest.mark.parametrize("out", [".", "store", "/"])
def test_a_folder_is_no_file_to_write(call, out, here, capsys) -> None:
    before = list_files(here)
    assert main([*call, out]) == 2
    assert f"'{out}'" in capsys.readouterr().err
    assert list_files(here) == before


def test_a_picture_of_the_user_is_not_replaced(here, capsys) -> None:
    call = ["report", "store", "--format", "markdown", "--out", "x.md"]
    assert main(call) == 0
    picture = min((here / "x_figures").iterdir())
    picture.write_text("mine")
    (here / "x.md").unlink()
    assert main(call) == 2
    assert picture.read_text() == "mine"
    assert not (here / "x.md").exists()


def test_what_is_not_a_regular_file_is_no_page(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(InvalidInputError, match=str(path)):
            check_page(path)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (REPORT, "x.html"),
        (("predict", "r", "rows.csv", "--out"), "x.csv"),
        (("export", "r", "--out"), "x.pt2"),
        (("export", "r", "--out"), "x.pt2.json"),
    ],
)
def test_what_a_killed_command_left_is_removed_by_the_next(call, name, here) -> None:
    left, other = (here / f".{n}.{'ab' * 6}.part" for n in (name, "y.csv"))
    for path in (left, other):
        path.write_text("half")
    written = here / f".{name}.{'cd' * 6}.part"
    with written.open("w") as file:
        lock_file(file.fileno())
        assert main([*call, name.removesuffix(".json")]) == 0
        assert not left.exists()
        assert written.exists()
    assert other.exists()


@pytest.mark.parametrize("after", range(2))
def test_an_export_to_a_full_disk_leaves_nothing(after, here, monkeypatch) -> None:
    before, synced, real = list_files(here), 0, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal synced
        synced += 1
        if synced > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    assert main(["export", "r", "--out", "m.pt2"]) == 1
    assert list_files(here) == before


def test_write_page_checks_again(tmp_path) -> None:
    path = tmp_path / "page.html"
    check_page(path)
    path.write_text("appeared in between")
    with pytest.raises(InvalidInputError):
        write_page(path, f"<!-- {MARK} -->")
    assert path.read_text() == "appeared in between"
