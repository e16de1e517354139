"""Synonyms of options in hints, versions, the default δ and batch size, and the list of methods."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from hush._internal.imports import DISTRIBUTION, read_own_version, read_versions
from hush._internal.noise_kernel import describe
from hush._internal.settings import list_settings
from hush._internal.text import SYNONYMS, translate
from hush._internal.validate import suggest_delta
from hush.cli import app, main
from hush.errors import InvalidInputError, nearest
from hush.methods import PlanConfig, catalogue, find, make_plan, options, purpose

ROOT = Path(__file__).resolve().parents[2]


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_version(capsys) -> None:
    assert call(capsys, "--version") == (0, f"hush {read_own_version()} (noise: {describe()})\n", "")
    assert re.fullmatch(r"\d+\.\d+\.\d+", read_own_version())
    assert list(read_versions("hush", "torch")) == ["hush", "torch"]


def test_the_distribution_has_a_name_of_its_own() -> None:
    told = (ROOT / "pyproject.toml").read_text()
    assert f'name = "{DISTRIBUTION}"' in told
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert not [page for page in pages if re.search(r"install '?hush(\[|'|$)", page.read_text(), re.MULTILINE)]


def test_no_synonym_is_a_name_used_here_for_something_else() -> None:
    others = [other for names in SYNONYMS.values() for other in names]
    assert len(others) == len(set(others))
    assert not set(others) & set(list_settings(PlanConfig))
    of_methods = {key for name in catalogue() for key in options(find(name))}
    assert set(others) & of_methods <= {"eps"}  # Adam's floor, where it is known, and else ε


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("learning_rate", "lr"), ("batch", "batch_size"), ("max_grad_norm", "clip"), ("l2_norm_clip", "clip"),
        ("clipping", "clip"), ("sigma", "noise_multiplier"), ("noise", "noise_multiplier"), ("eps", "epsilon"),
        ("weight-decay", "weight_decay"), ("clpi", "clip"),
    ],
)  # fmt: skip
def test_a_plan_names_the_word_used_here(given, meant) -> None:
    with pytest.raises(InvalidInputError, match=f"has no option '{given}': did you mean '{meant}'"):
        make_plan("dp-sgd", examples=600, batch_size=30, **{given: 1.0})


def test_a_synonym_counts_only_where_its_meaning_is_known() -> None:
    assert translate("--x") == "__x"
    assert nearest("learning_rate", ["clip", "bands"]) == "known: bands, clip"
    assert nearest("optimizer", ["optimiser", "lr"]) == "did you mean 'optimiser'?"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "--learning-rate", "1"), "error: no such option: --learning-rate; did you mean --lr?"),
        (("train", "--max_grad_norm", "1"), "did you mean --clip?"),
        (("train", "--optimizer=adam"), "did you mean --method?"),
        (("train", "--weight-decay", "1"), "options of methods are --set weight_decay=…, see `hush methods`"),
        (("train", "--epochz", "1"), "did you mean --epochs?"),
        (("train", "--xyzzy"), "see `hush train --help`"),
        (
            ("train", "--bogus"),
            "no such option: --bogus; see `hush train --help`; options of methods are --set",
        ),
        (("account", "--sigma", "1"), "did you mean --noise-multiplier?"),
        (("noise", "show", "--eps", "1"), "did you mean --epsilon?"),
        (("train", "--set", "learning_rate=1"), "method 'dp-sgd' has no option 'learning_rate': did you mean 'lr'?"),
        (("train", "--set", "batch=1"), "give it as --batch-size"),
    ],
)
def test_the_shell_names_the_word_used_here(capsys, arguments, told) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert told in err


def test_every_option_of_a_method_is_pointed_to_set(capsys) -> None:
    flags = {name for parameter in get_command(app).commands["train"].params for name in parameter.opts}
    names = {name for method in catalogue() for name in options(find(method))} - {"eps"}
    for name in sorted(name for name in names if f"--{name.replace('_', '-')}" not in flags):
        assert f"--set {name}=…" in call(capsys, "train", f"--{name.replace('_', '-')}", "1")[2]


def test_a_spec_names_the_word_used_here(capsys, tmp_path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'name = "x"\n[[grid]]\nproblem = "digits-mlp"\nmethod = "dp-sgd"\nbatch_size = 64\nepochs = 1\n'
        "epsilon = 3.0\nlearning_rate = [1.0]\nseeds = 1\n"
    )
    code, _, err = call(capsys, "bench", str(spec), "--store", str(tmp_path / "store"), "--dry-run")
    assert code == 2
    for value in ("grid 1, learning_rate", "'dp-sgd'", "'lr'"):
        assert value in err


@pytest.mark.parametrize(("examples", "delta"), [(60, 1e-3), (1000, 1e-4), (1437, 1e-5), (10**6, 1e-7)])
def test_the_delta_that_is_suggested_is_at_most_a_tenth_of_one_in_n(examples, delta) -> None:
    assert suggest_delta(examples) == delta
    assert 0.01 / examples < delta <= 0.1 / examples


def test_train_refuses_a_large_delta_unless_it_is_accepted(capsys) -> None:
    code, _, err = call(capsys, "train", "--epochs", "1", "--delta", "1e-3")
    assert code == 2
    assert "δ = 0.001 is not below 1/N = 0.0007, so it permits releasing a whole record: give --delta 1e-05, or" in err
    code, out, err = call(capsys, "train", "--epochs", "1", "--delta", "1e-3", "--accept-delta", "--json")
    assert code == 0
    assert json.loads(out)["delta"] == 1e-3
    assert "warning: δ = 0.001 is not below 1/N" in err


def test_account_warns_of_a_large_delta(capsys) -> None:
    code, _, err = call(capsys, "account", "--examples", "1000", "--epsilon", "3", "--delta", "1e-3")
    assert code == 0
    assert (
        "warning: δ = 0.001 is not below 1/N = 0.001, so it permits releasing a whole record; 0.0001 would not" in err
    )


@pytest.fixture
def few_rows(tmp_path) -> str:
    rows = [f"{i % 7},{i % 5},{'yes' if i % 7 > i % 5 else 'no'}\n" for i in range(200)]
    (tmp_path / "few.csv").write_text("a,b,y\n" + "".join(rows))
    return str(tmp_path / "few.csv")


def test_the_default_batch_fits_few_rows(capsys, few_rows, tmp_path) -> None:
    given = (
        "train",
        "--data",
        few_rows,
        "--target",
        "y",
        "--public",
        "classes",
        "--method",
        "dp-adam",
        "--epochs",
        "1",
        "--json",
    )
    code, out, err = call(capsys, *given, "--out", str(tmp_path / "run"))
    assert code == 0, err
    assert "batch size 40, a quarter of 160 examples" in err
    assert json.loads(out)["steps"] == 4
    assert json.loads((tmp_path / "run" / "private" / "options.json").read_text())["batch_size"] == 40
    code, _, err = call(
        capsys, *given, "--batch-size", "256", "--out", str(tmp_path / "other")
    )  # what was asked for is not changed
    assert (code, "batch size 256 is larger than the data: 160 examples" in err) == (2, True)


def test_methods_say_what_they_share_once_and_fit_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, "methods")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    told = " ".join(out.split())
    assert told.count("clip_quantile=None") == 1
    assert told.count("beta1=0.9") == 1
    assert re.search("all but sgd, dp-dice, sanitize, [a-z, -]*label-rr clip=1.0", told)
    assert "dp-blt: correlated noise, proven ε" in told
    assert "dp-dice: independent noise, ε proven; that of its paper is refuted" in told
    assert "sgd: no noise, no guarantee" in told


def test_every_method_says_what_it_is_for(capsys) -> None:
    rows = {row["method"]: row for row in json.loads(call(capsys, "methods", "--json")[1])}
    assert set(rows) == {"auto", *catalogue()}
    assert all(row["purpose"].startswith("For ") for row in rows.values())
    assert rows["dp-sgd"]["purpose"] == purpose(find("dp-sgd"))
    noises = {name: row["noise"] for name, row in rows.items()}
    assert {name for name, noise in noises.items() if noise == "independent"} == {
        "dp-sgd", "dp-adam", "dp-adam-bc", "dp-disk", "dp-dice", "sanitize", "sanitize-once", "label-rr",
    }  # fmt: skip
    statuses = {name: row["status"] for name, row in rows.items() if name not in ("sgd", "dp-dice")}
    assert statuses.pop("sanitize") == "refuted"
    assert set(statuses.values()) == {"proven"}


def test_methods_are_shown_by_what_they_protect(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = json.loads(call(capsys, "methods", "--json")[1])
    protected = {row["method"]: row["protects"] for row in rows}
    assert (protected["sgd"], protected["dp-sgd"], protected["auto"]) == ("nothing", "example", "example")
    told = " ".join(call(capsys, "methods")[1].partition("What they protect:")[2].split())
    for what in ("nothing", "features only;", "labels only;", "both: the whole example"):
        assert told.count(what) == 1
    assert told.startswith("nothing sgd, sanitize features only")
    assert "dp-dice" in told.partition("both: the whole example")[2]


@pytest.mark.parametrize(
    "path", ["plan", "train", "account", "noise show", "bench", "methods", "ledger show", "data list"]
)
def test_help_fits_80_columns_and_a_switch_takes_one_line(path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, *path.split(), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "--no-accept" not in out
    assert "<bool>" not in out
