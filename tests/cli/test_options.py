"""The option names of every command are kept; options built from the fields of a class."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
import typer

import hush.cli
from hush._internal.settings import PRIVACY, ModelSettings, PlanSettings, list_settings, option
from hush.bench.trial import AXES
from hush.cli import app, main
from hush.cli.options import (
    GROUPS,
    MOST_USED,
    CommandOptions,
    Training,
    read_settings,
    recall,
    take,
    write_settings,
)
from hush.errors import InvalidInputError
from hush.methods import PlanConfig, make_plan

PLAN = """--accept-claimed --accountant --adjacency --batch-size --delta --epochs --epsilon --json --method
--no-accept-claimed --node-noise --noise-multiplier --sampling --set --steps"""
OPTIONS = {
    "train": PLAN
    + """ --arithmetic --augment --average --checkpoint-every --clip --clip-mode --data --dataset --ledger --lr
    --microbatch --model --new-dataset --noise-shards --out --problem --public --recipe --resume --sample-rate --schema
    --secret-seed --seed --target --test-data --trust-code --validation --views --accept-delta""",
    "account": f"{PLAN} --examples --sample-rate",
    "noise show": f"{PLAN} --examples --out",
    "plan": """--batch-size --data --delta --epochs --epsilon --examples --json --method --model --out --parameters
    --problem --public --schema --seed --set --target --test-data --validation""",
    "bench": "--address --cpus --dry-run --executor --gpus --json --retries --retry-failed --store --workers",
}
DEFAULTS = {
    "train": {"method": "dp-sgd", "batch_size": 256, "delta": 1e-5, "microbatch": 400, "checkpoint_every": 50},
    "account": {"method": "dp-sgd", "batch_size": 256, "delta": 1e-5, "accountant": "auto", "epochs": None},
    "noise show": {"method": "dp-matrix-me", "batch_size": 100, "examples": 6000, "out": Path("noise.html")},
}


def find_command(path: str):
    command = typer.main.get_command(app)
    for word in path.split():
        command = command.get_command(None, word)
    return command


@pytest.mark.parametrize("path", OPTIONS)
def test_every_option_is_offered(path, capsys, monkeypatch) -> None:
    offered = {name for p in find_command(path).params for name in (*p.opts, *p.secondary_opts)}
    assert set(OPTIONS[path].split()) <= offered
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*path.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    opposites = {name for p in find_command(path).params for name in p.secondary_opts}  # taken, but not shown
    assert not [name for name in set(OPTIONS[path].split()) - opposites if f"{name} " not in shown], shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("path", DEFAULTS)
def test_defaults(path) -> None:
    known = {p.name: p.default for p in find_command(path).params}
    assert {name: known[name] for name in DEFAULTS[path]} == DEFAULTS[path]


def test_help_shows_the_most_used_options_first_and_the_others_by_group(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["train", "--help"])
    shown = capsys.readouterr().out
    first, *groups = re.split("╭─ ", shown)[1:]
    assert [group.split(" ", 1)[0] for group in groups] == list(GROUPS)
    options = re.findall(r"^│ (--[a-z-]+)", first, re.MULTILINE)
    assert options == [f"--{name.replace('_', '-')}" for name in MOST_USED] + ["--help"]
    assert "--delta " in groups[GROUPS.index(PRIVACY)]
    main(["account", "--help"])
    assert "--examples " in re.split("╭─ ", capsys.readouterr().out)[1]  # it must be given


def test_a_field_is_an_option_with_its_help_and_its_default() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Kind(CommandOptions):
        """Do it."""

        hidden = ("inner",)
        rounds: int = field(default=3, metadata=option("How many rounds.", PRIVACY))
        where: Path | None = field(default=None, metadata=option("Where.", PRIVACY, flag="--at"))
        inner: int = field(default=1, metadata=option("Not for the shell.", PRIVACY))

        @classmethod
        def read(cls, given):
            return cls(**{"rounds": 7, **given})

    got = []
    app = typer.Typer(add_completion=False)
    app.command()(take(Kind, got.append))
    app([], standalone_mode=False)
    app(["--rounds", "5", "--at", "there", "--json"], standalone_mode=False)
    app(["--rounds", "3"], standalone_mode=False)  # the default, but given
    assert got == [Kind(rounds=7), Kind(rounds=5, where=Path("there"), as_json=True), Kind(rounds=3)]
    command = typer.main.get_command(app)
    found = {p.name: p for p in command.params}
    assert "inner" not in found
    assert found["rounds"].help == "How many rounds."
    assert command.help == "Do it."


def test_axes_are_the_settings_of_a_plan() -> None:
    assert set(AXES) == {f.name for kind in (PlanSettings, ModelSettings) for f in fields(kind)}
    assert {"arithmetic", "average", "delta"} <= set(AXES)
    assert not {"calibrate", "examples", "counted", "assumptions", "method"} & set(AXES)
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert not [name for name in AXES if f"`{name}`" not in page]
    assert AXES["batch_size"] == (int,)
    assert AXES["adjacency"] == AXES["arithmetic"] == (str,)
    assert set(AXES["epochs"]) == {float, int}


def test_a_plan_from_a_setting_is_the_plan_from_its_names() -> None:
    by_name = make_plan("dp-sgd", examples=600, batch_size=30, epochs=2, epsilon=3.0, lr=0.5, clip=2.0)
    setting = PlanConfig(600, batch_size=30, epochs=2, epsilon=3.0)
    assert make_plan("dp-sgd", setting, lr=0.5, clip=2.0) == by_name
    assert make_plan("dp-sgd", setting, epochs=1, lr=0.5, clip=2.0).steps == 20


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"examples": 600, "batch_size": 30, "epoch": 2}, "did you mean 'epochs'"),
        ({"examples": 600, "batch_size": 30, "clpi": 2.0}, "did you mean 'clip'"),
        ({"examples": 600}, "a plan needs batch_size"),
        ({}, "a plan needs examples and batch_size"),
    ],
)
def test_names_that_a_plan_does_not_know_or_lacks(given, told) -> None:
    with pytest.raises(InvalidInputError, match=told):
        make_plan("dp-sgd", **given)


def test_the_docstring_lists_every_setting() -> None:
    missing = [name for name in list_settings(PlanConfig) if f"``{name}``: " not in (make_plan.__doc__ or "")]
    assert not missing


BEFORE = {  # as the first release writes it
    "recipe": None, "problem": "digits-mlp", "data": None, "target": None, "model": None, "schema": None,
    "test_data": None, "public": None, "method": "dp-adam", "epsilon": 2.0, "delta": 1e-05, "noise_multiplier": None,
    "node_noise": None, "epochs": 1.0, "steps": 7, "batch_size": 64, "lr": 0.1, "clip": 0.5, "clip_mode": None,
    "sampling": None, "sample_rate": None, "accountant": "auto", "adjacency": None, "accept_claimed": False,
    "arithmetic": "fast", "settings": ["beta1=0.8"], "average": None, "augment": None, "views": None,
    "validation": 0.0, "seed": 3, "microbatch": 50, "checkpoint_every": 5, "new_dataset": False,
}  # fmt: skip
ADDED = {
    "accept_delta",
    "device",
    "keep_secret",
    "task",
    "class_weights",
    "target_range",
    "loss",
    "public_test",
    "private_metrics",
    "private_ranges",
    "private_classes",
    "unit",
    "unit_normalise",
    "rows_per_unit",
    "sanitize_at",
    "sanitize_clip",
    "sanitize_width",
    "sanitize_scale",
    "sanitize_dropout",
    "dropout_place",
    "initialisation",
    "stop",
}  # since then


def test_options_of_a_run_are_written_under_the_same_names_and_read_back(tmp_path) -> None:
    path = tmp_path / "private" / "options.json"
    path.parent.mkdir()
    path.write_text(json.dumps(BEFORE | {"schema": {"path": "/public/facts.toml"}}))
    found = Training(**recall({"out": tmp_path, "resume": True, "checkpoint_every": 9, "secret_seed": 5}))
    assert (found.problem, found.method, found.steps, found.seed) == ("digits-mlp", "dp-adam", 7, 3)
    assert (found.settings, found.schema, found.microbatch) == (["beta1=0.8"], Path("/public/facts.toml"), 50)
    assert (found.checkpoint_every, found.secret_seed) == (9, 5)  # given beside --resume
    assert json.loads(write_settings(found)).keys() == BEFORE.keys() | ADDED
    path.write_bytes(write_settings(found))
    assert read_settings(path, Training) == {n: getattr(found, n) for n in BEFORE.keys() | ADDED}


def test_what_is_given_wins_over_a_recipe_and_the_recipe_over_the_run(tmp_path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "options.json").write_text(json.dumps(BEFORE))
    found = Training(**recall({"out": tmp_path, "resume": True, "recipe": "digits", "lr": 4.0}))
    assert (found.lr, found.clip, found.method, found.seed) == (4.0, 1.0, "dp-sgd", 3)


def test_no_command_imports_from_another() -> None:
    rooms = Path(hush.cli.__file__).parent
    shared = {"__init__", "console", "help", "main", "options", "prepare"}
    commands = {path.stem for path in rooms.glob("*.py")} - shared
    assert {"train", "plan", "tune"} < commands
    for path in (rooms / f"{name}.py" for name in commands):
        tree = ast.walk(ast.parse(path.read_text()))
        found = {node.module for node in tree if isinstance(node, ast.ImportFrom)}
        assert not found & {f"hush.cli.{name}" for name in commands}, path


GIVEN = {
    "epsilon": 2.5,
    "delta": 1e-6,
    "noise_multiplier": 1.5,
    "node_noise": 7.0,
    "accountant": "rdp",
    "adjacency": "replace",
    "accept_claimed": True,
    "arithmetic": "rigorous",
    "batch_size": 17,
    "epochs": 2.0,
    "steps": 9,
    "sampling": "fixed-size",
    "sample_rate": 0.01,
    "average": "ema:0.9",
    "sanitize_width": 7,
    "sanitize_scale": "per-number",
}


@pytest.mark.parametrize(
    ("command", "name"),
    [("train", name) for name in GIVEN] + [("account", name) for name in GIVEN if name != "average"],
)
def test_what_is_given_in_the_shell_reaches_the_plan(command, name, monkeypatch) -> None:
    """Nothing is lost between the options and the setting from which the plan is made, which is looked at there."""
    assert set(GIVEN) == {f.name for f in fields(PlanSettings)}
    settings: list[PlanConfig] = []

    def stop(method: str, setting: PlanConfig, **chosen: object) -> None:
        settings.append(setting)
        raise InvalidInputError("far enough")

    monkeypatch.setattr(f"hush.cli.{command}.make_plan", stop)
    flag, value = f"--{name.replace('_', '-')}", GIVEN[name]
    given = [flag] if value is True else [flag, str(value)]
    assert main([command, *(["--examples", "1000"] if command == "account" else []), *given]) == 2
    assert getattr(settings[0], name) == value
    assert settings[0].counted == (command == "train")


@pytest.mark.parametrize("name", ["method", "problem", "model"])
def test_code_that_a_run_names_is_not_run_unless_it_is_trusted(name, tmp_path, monkeypatch, capsys) -> None:
    """Anybody may have written ``options.json``: going on with a run is no reason to import what it names."""
    (tmp_path / "named_by_a_run.py").write_text("raise SystemError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "run"
    (out / "private").mkdir(parents=True)
    (out / "private" / "options.json").write_text(json.dumps(BEFORE | {name: "named_by_a_run:made"}))
    with pytest.raises(InvalidInputError, match="named_by_a_run:made"):
        recall({"out": out, "resume": True})
    assert main(["train", "--out", str(out), "--resume"]) == 2
    assert "named_by_a_run" not in sys.modules
    for said in ({"trust_code": True}, {name: "named_by_a_run:made"}):
        assert recall({"out": out, "resume": True} | said)[name] == "named_by_a_run:made"
    assert "trust_code" not in json.loads(write_settings(Training(trust_code=True)))
