"""Documentation pages: code blocks run, links resolve, and named methods and functions exist."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import hush
import hush.datasets
from hush import matrix_factorization
from hush.bench.dataframes import _pandas
from hush.cli import main
from hush.datasets import catalogue as table
from hush.datasets import sources
from hush.errors import MissingDependencyError
from hush.methods import catalogue, correlated
from hush.release.export import _need_onnx
from replay import sensitivities

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.md")])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [shlex.split(line.removeprefix("PYTHONPATH=. "))[1:] for line in lines]


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_extend(here: Path, capsys) -> None:
    (here / "mymodule.py").write_text("\n".join(blocks("extend.md", "python")))
    (command,) = commands("extend.md")
    assert main([*command, "--epochs", "1"]) == 0, capsys.readouterr().err
    import mymodule  # type: ignore[import-not-found]

    plan = hush.make_plan("dp-sgd", examples=100, batch_size=10, epochs=1, epsilon=3.0)
    other = replace(plan, method="sign-sgd", optimizer=mymodule.SignSGD(0.01))
    assert other.guarantee().epsilon == plan.guarantee().epsilon


def test_the_recipe_of_a_run_that_is_not_lost(here: Path) -> None:
    (block,) = blocks("nothing-is-lost.md", "python")
    rows = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    plan = hush.make_plan("dp-sgd", examples=24, batch_size=6, steps=4, noise_multiplier=2.0)
    given = {"plan": plan, "model": _linear(), "losses": _losses, "data": (rows, torch.arange(24) % 2)}
    names = dict(given)
    exec(block, names)
    assert names["run"].next == 4
    assert (here / "run" / "release").is_dir()
    private = here / "run" / "private"
    assert not [*private.glob("checkpoint-*"), *private.glob("secret.jsonl")]
    charged = (here / "patients.jsonl").read_bytes()
    names = dict(given)
    with pytest.raises(hush.errors.ResumeError):
        exec(block, names)
    assert "run" not in names
    assert (here / "patients.jsonl").read_bytes() == charged


def test_extend_by_a_query_a_sampler_and_a_noise(here: Path) -> None:
    (here / "myparts.py").write_text("\n".join(blocks("extend.md", "python")))
    import myparts  # type: ignore[import-not-found]

    plan = hush.make_plan("dp-sgd", examples=24, batch_size=6, steps=4, noise_multiplier=2.0, sampling="same-order")
    damped = replace(plan, method="damped", query=myparts.Damped(1.0))
    assert damped.guarantee().epsilon == plan.guarantee().epsilon
    rows = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    other = torch.cat([rows[:-1], -rows[-1:]])
    content, neighbour = ((x, torch.arange(24) % 2) for x in (rows, other))
    moved = [step["gradient"] for step in sensitivities(damped, _linear, _losses, content, neighbour)]
    assert sorted(moved)[:3] == [0, 0, 0]  # one pass: everybody is in one batch of four
    assert 0.1 < max(moved) <= 1.0  # nobody adds more than half the clip
    every = replace(plan, sampler=myparts.FullBatch(24, 4))
    assert every.sampler.indices(None, 0, 24).tolist() == list(range(24))
    assert every.sensitivity == 2.0  # four steps in a row: √4
    halved = replace(plan, noise=myparts.halved(4))
    assert halved.sensitivity == pytest.approx(1.25**0.5)  # one column (1, ½) of C: one pass
    for each in (damped, every, halved):
        run = each.start(_linear(), _losses, content, secret=1)
        for batch in run.batches():
            run.step(batch)
        assert run.next == 4


def _linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def _losses(model, content) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")


def test_extend_by_a_dataset(here: Path, monkeypatch) -> None:
    dataset, loader, data, row = blocks("extend.md", "py")
    defined = dict(vars(sources))
    exec(dataset, defined)
    monkeypatch.setattr(sources, "WINE", defined["WINE"], raising=False)
    (here / "wine.py").write_text(loader)
    monkeypatch.setattr(hush.datasets, "__path__", [*hush.datasets.__path__, str(here)])
    text = Path(table.__file__).read_text()
    for place, added in (("from hush.datasets import ", "wine, "), ("adult.CLASSES)\n", data), ("\n_ROWS = (\n", row)):
        assert text.count(place) == 1
        text = text.replace(place, place + added)
    (here / "table_with_wine.py").write_text(text)
    import table_with_wine  # type: ignore[import-not-found]

    problem = table_with_wine.PROBLEMS["wine-logistic"].load(seed=0, validation=0.0, data_dir=None)
    assert (len(problem.train[0]), len(problem.test[0])) == (143, 35)
    assert sum(p.numel() for p in problem.model().parameters()) == 42
    assert problem.train[0].max() <= 1
    assert table_with_wine.WINE.datasets[0].name == "wine"


def test_own_data(here: Path, capsys) -> None:
    table, module = blocks("own-data.md", "python")
    exec(table, {})
    (here / "mine.py").write_text(module)
    (here / "patients.toml").write_text(*blocks("own-data.md", "toml"))
    for command in commands("own-data.md"):
        assert main([*command, "--epochs", "2"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    shown = (DOCS / "own-data.md").read_text()
    assert all(line in shown for line in said.err.splitlines() if not line.startswith("epoch "))
    assert (here / "patients" / "release" / "privacy.json").is_file()


def test_pytorch(here: Path, capsys) -> None:
    (snippet,) = blocks("pytorch.md", "python")
    found: dict[str, Any] = {}
    exec(snippet, found)
    assert found["run"].next == found["plan"].steps == 30  # ⌈600/64⌉ · 3
    assert capsys.readouterr().out.startswith(
        "(ε = 3, δ = 1e-5)-differentially private per example (adding or removing"
    )
    assert (here / "released" / "privacy.json").is_file()
    (ordinary,) = blocks("pytorch.md", "py")
    there = {**found, "collate": torch.utils.data.default_collate, "epochs": 1}
    exec(ordinary, there)
    assert (here / "model.pt").is_file()


def test_readme(here: Path, capsys) -> None:
    """Its Python is one script; what it writes is there."""
    space: dict[str, Any] = {}
    for block in blocks("../README.md", "python"):
        exec(block, space)
    said = capsys.readouterr().out
    assert said.startswith("(ε = 3, δ = 1e-5)-differentially private per example (zeroing one example's contribution)")
    assert space["result"].guarantee.conditions[1] == "the number of examples is public"
    assert space["run"].spent.epsilon == pytest.approx(space["run"].guarantee.epsilon)
    assert hush.load("run/release", model=torch.nn.Linear(20, 2)).guarantee == space["run"].guarantee
    assert hush.Ledger("spend.jsonl").datasets() == ["patients"]
    assert [len(Path(name).read_text().splitlines()) for name in ("my.csv", "test.csv", "new.csv")] == [601, 301, 301]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of Opacus
def test_the_figures_of_the_readmes_comparison() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    utils = pytest.importorskip("opacus.accountants.utils")
    text = (ROOT / "README.md").read_text()
    own = hush.make_plan("dp-sgd", examples=60_000, batch_size=256, epochs=20, epsilon=3)
    theirs = {"target_epsilon": 3, "target_delta": 1e-5, "sample_rate": 256 / 60_000, "steps": own.steps}
    prv, rdp = (
        utils.get_noise_multiplier(**theirs, accountant=name, epsilon_tolerance=0.001) for name in ("prv", "rdp")
    )
    assert f"| {own.sigma:.4f} | {prv:.4f} (PRV), {rdp:.4f} (RDP) |" in text
    setting = {"examples": 600, "batch_size": 60, "epochs": 1, "noise_multiplier": 1.0}
    shuffled = hush.make_plan("dp-sgd", **setting, sampling="shuffled").guarantee().epsilon
    peer = accountants.PRVAccountant()
    peer.history = [(1.0, 0.1, 10)]
    assert f"| {shuffled:.2f} | {peer.get_epsilon(1e-5):.2f}, " in text
    assert peer.get_epsilon(1e-5) == pytest.approx(hush.make_plan("dp-sgd", **setting).guarantee().epsilon, rel=0.01)


def prose(page: Path) -> str:
    """The page without code: blocks between fences, and what stands in backticks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].strip("`") if "](" not in code[0] else "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: small letters, hyphens for spaces, no punctuation."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path, text: str) -> list[str]:
    """The relative links in ``text`` that lead from ``page`` to no file, or to no heading of it."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, prose(page)) == []


def test_a_broken_link_is_seen() -> None:
    page = DOCS / "index.md"
    text = "[a](speed.md) [b](spede.md) [c](speed.md#memory) [d](speed.md#memories) [e](#hush) [f](#shush) [g](https://x.y)"
    assert broken(page, text) == ["spede.md", "speed.md#memories", "#shush"]


def test_every_page_is_on_the_map() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)", (DOCS / "index.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked
    composed = set(re.findall(r"\]\(([^)#\s]+)", (DOCS / "results" / "README.md").read_text()))
    assert {path.name for path in (DOCS / "results").iterdir()} - {"README.md"} <= composed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_methods_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`(dp-[a-z-]+)[`, ]", page.read_text())) - {"dp-accounting"}
    assert named <= set(catalogue())


def test_the_readme_of_matrices_has_every_correlated_method_and_only_functions_that_exist() -> None:
    text = (ROOT / "src" / "hush" / "matrix_factorization" / "README.md").read_text()
    correlated_ones = {name for name, method in catalogue().items() if method.__module__ == correlated.__name__}
    rows = set(re.findall(r"^\| `(dp-[a-z-]+)`", text, re.MULTILINE))
    assert rows == correlated_ones
    functions = set(re.findall(r"`([A-Za-z_]+)\(", text))
    assert len(functions) > 10
    assert {name for name in functions if not hasattr(matrix_factorization, name)} <= {
        "first",
        "step",
    }  # methods of a structure
    for name in re.findall(r"`\.([a-z_]+)\(", text):
        assert any(
            hasattr(kind, name)
            for kind in (matrix_factorization.Strategy, matrix_factorization.Tree, matrix_factorization.Workload)
        ), name
    files = set(re.findall(r"`([a-z_]+\.py)`", text))
    assert files <= {path.name for path in (ROOT / "src" / "hush" / "matrix_factorization").glob("*.py")}


# The README commands that `.ci/run` runs with the installed wheel, and their requirements.


def commands_readme() -> list[list[str]]:
    spec = importlib.util.spec_from_file_location("readme", ROOT / ".ci" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[list[str]] = module.list_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    return found


def test_a_table_is_trained_predicted_verified_and_exported() -> None:
    handed = next(block for block in commands_readme() if any("hush predict" in command for command in block))
    assert [command.split()[1] for command in handed] == ["train", "predict", "evaluate", "verify", "export"]
    assert "--data" in handed[0]
    assert sum(map(len, commands_readme())) >= 15
    assert all(command.split()[0] in ("hush", "torchrun") for block in commands_readme() for command in block)


def test_the_plain_dependencies_are_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[<>=]", name)[0] for name in project["dependencies"]} == {
        "torch", "numpy", "scipy", "dp-accounting", "cryptography", "safetensors", "pyarrow", "scikit-learn", "typer",
        "rich", "jinja2", "pooch",
    }  # fmt: skip


def test_the_clean_environment_is_part_of_ci() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    for part in ("pip wheel", "--no-deps", "--constraint constraints.txt", ".ci/readme.py README.md"):
        assert part in text


@pytest.mark.parametrize(("need", "extra"), [(_need_onnx, "onnx"), (_pandas, "bench")])
def test_a_missing_package_is_named_with_its_extra(need, extra, monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *given, **more):
        if name.partition(".")[0] in ("onnx", "onnxscript", "pandas"):
            raise ModuleNotFoundError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf"hush-dp\[{extra}\]"):
        need()


# The examples: short, and runnable as they are.


NEEDED = {
    "with_tensorboard.py": ("tensorboard",),
    "with_lightning.py": ("lightning",),
    "with_peft.py": ("transformers", "peft"),
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    for package in NEEDED.get(path.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if path.name == "own_model.py":
        card = json.loads((tmp_path / "runs" / "own_model" / "privacy.json").read_text())
        assert all(text in done.stdout for text in card["guarantee"]["assumptions"])
        assert (card["method"], card["steps_taken"], card["steps"]) == ("dp-sgd", 160, 160)  # ⌈1797/256⌉ · 20
        assert 2.99 < card["guarantee"]["epsilon"] <= 3.0
        weights = load_file(tmp_path / "runs" / "own_model" / "model.safetensors")
        assert {name: tuple(w.shape) for name, w in weights.items()} == {
            "1.weight": (64, 64),
            "1.bias": (64,),
            "3.weight": (10, 64),
            "3.bias": (10,),
        }


@pytest.mark.parametrize("name", NEEDED)
def test_examples_with_other_packages_are_short_and_log_nothing_private(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert len(text.splitlines()) <= 60
    calls = [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert not [call for call in calls if ".private" in call or ".numbers(" in call or ".indices" in call]
    assert any("run.release(" in call for call in calls)


def test_the_example_is_short() -> None:
    imports = (ast.Import, ast.ImportFrom)
    tree = ast.parse((ROOT / "examples" / "own_model.py").read_text())
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, imports)}
    assert len(lines) <= 16
    private = [ast.unparse(node) for node in tree.body if "hush." in ast.unparse(node) or "run." in ast.unparse(node)]
    assert len(private) == 4  # the plan, the loop, the guarantee and the release; start is a method of the plan


# docs/building-blocks.md: its code runs, and its figures can be drawn.


PAGE = ROOT / "docs" / "building-blocks.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("building_blocks", ROOT / "benchmarks" / "building_blocks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_block_runs_after_those_before_it() -> None:
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) >= 8
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["told"].guarantee.private
    assert names["run"].next == names["plan"].steps
    assert 15 < names["naive"].epsilon < 17  # as the page says
    assert 7 < names["better"].epsilon < 8


def test_every_figure_of_the_page_is_drawn_by_the_script(script: ModuleType, tmp_path: Path) -> None:
    norms = json.loads(script.measure(tmp_path, small=True).read_text())
    assert [seen["step"] for seen in norms["seen"]] == [0, 20]
    assert norms["seen"][0]["percentiles"]["5"] < norms["seen"][0]["percentiles"]["95"]
    (tmp_path / "building-blocks.jsonl").write_text((ROOT / "results" / "building-blocks.jsonl").read_text())
    drawn = {path.name for path in script.draw(tmp_path / "out", tmp_path, small=True)}
    shown = set(re.findall(r"pictures/building-blocks/([\w-]+\.svg)", PAGE.read_text()))
    assert shown == drawn
    assert all((ROOT / "docs" / "pictures" / "building-blocks" / name).exists() for name in shown)
    assert all("<svg" in (tmp_path / "out" / name).read_text() for name in drawn)


def test_the_norms_that_the_page_quotes_are_those_that_were_measured() -> None:
    last = json.loads((ROOT / "results" / "building-blocks-norms.json").read_text())["seen"][-1]["percentiles"]
    assert 0.25 < last["50"] < 0.35
    assert 14 < last["95"] < 15.5
