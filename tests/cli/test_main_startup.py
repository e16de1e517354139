"""What the command line answers without torch, numpy, the accountants and the readers of tables."""

from __future__ import annotations

import json
import subprocess
import sys

from hush.cli.main import COMMANDS
from hush.datasets.sources import DATASETS

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "dp_accounting",
    "sklearn",
    "pyarrow",
    "cryptography",
    "requests",
    "pooch",
    "jinja2",
)
PROGRAM = """
import contextlib, io, json, sys
from importlib.machinery import ModuleSpec

heavy, calls = set(json.loads(sys.argv[1])), json.loads(sys.argv[2])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in heavy else None

    def create_module(self, spec):
        raise RuntimeError(f"{spec.name} was imported")

    def exec_module(self, module):
        raise AssertionError

sys.meta_path.insert(0, Blocker())
from hush.cli import main

answers = []
for call in calls:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(call)
    answers.append((code, out.getvalue(), err.getvalue()))
json.dump(answers, sys.stdout)
"""
GROUPS = {
    "data": ("list", "verify", "fetch", "inspect"),
    "ledger": ("show", "budget", "add", "cap", "close"),
    "noise": ("show",),
}
HELP = [["--help"], *([name, "--help"] for name in COMMANDS)]
HELP += [[group, name, "--help"] for group, names in GROUPS.items() for name in names]
MISTAKES = {  # a call, and the value that its error names
    ("train", "--epsilonn", "3"): "--epsilonn",
    ("train", "--epsilon", "three"): "--epsilon",
    ("train", "--beta1", "0.9"): "--set beta1",
    ("train", "--recipe", "digit"): "digits",
    ("train", "--data", "missing.csv", "--target", "y", "--out", "run"): "missing.csv",
    ("tune", "--data", "missing.csv"): "missing.csv",
    ("plan", "--data", "missing.csv"): "missing.csv",
    ("predict", "missing", "rows.csv", "--out", "x.csv"): "missing",
    ("predict", ".", "missing.csv", "--out", "x.csv"): "missing.csv",
    ("evaluate", ".", "missing.csv"): "missing.csv",
    ("verify", "missing"): "missing",
    ("export", "missing"): "missing",
    ("data", "inspect", "missing.csv"): "missing.csv",
    ("data", "fetch", "mnst"): "mnist",
    ("bench", "missing.toml", "--dry-run"): "missing.toml",
    ("report", "missing"): "missing",
    ("ledger", "show", "missing.jsonl"): "missing.jsonl",
    ("train", "--out", "missing", "--resume"): "missing",
    ("train", "--schema", "missing.toml"): "missing.toml",
    ("trian",): "trian",
}


def call_all(calls: list[list[str]], heavy: tuple[str, ...] = HEAVY) -> list[tuple[int, str, str]]:
    """(Exit code, stdout, stderr) of every call, in one process that cannot import ``heavy``."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(heavy), json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [tuple(answer) for answer in json.loads(done.stdout)]


def test_the_blocker_stops_a_command_that_needs_torch() -> None:
    ((code, _, err),) = call_all([["methods"]])
    assert code == 1
    assert "RuntimeError" in err


def test_help_imports_nothing_heavy() -> None:
    for call, (code, out, err) in zip(HELP, call_all(HELP), strict=True):
        assert (code, err) == (0, ""), call
        assert "Usage" in out, call


def test_mistakes_are_found_before_anything_heavy_is_imported() -> None:
    calls = [list(call) for call in MISTAKES]
    for (call, named), (code, out, err) in zip(MISTAKES.items(), call_all(calls), strict=True):
        assert (code, out) == (2, ""), (call, err)
        assert named in err, call


def test_datasets_are_listed_without_anything_heavy() -> None:
    ((code, out, _),) = call_all([["data", "list", "--json"]])
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(DATASETS)


def test_the_version_needs_no_torch() -> None:
    heavy = tuple(name for name in HEAVY if name != "numpy")  # which the description of the noise kernel needs
    ((code, out, _),) = call_all([["--version"]], heavy)
    assert code == 0
    assert out.startswith("hush ")
