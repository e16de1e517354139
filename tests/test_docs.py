"""The pages: code blocks that can be run as they stand are taken from the page and run, links lead somewhere, and
methods and functions that are named exist."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hush
import hush.datasets
from hush import matrix_factorization
from hush.cli import main
from hush.datasets import catalogue as table
from hush.methods import catalogue, correlated
from replay import sensitivities

ROOT = Path(__file__).resolve().parents[1]
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
    loader, data, row = blocks("extend.md", "py")
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
    assert "wine" in table_with_wine.list_datasets_read()


def test_own_data(here: Path, capsys) -> None:
    table, module = blocks("own-data.md", "python")
    exec(table, {})
    (here / "mine.py").write_text(module)
    (here / "patients.toml").write_text(*blocks("own-data.md", "toml"))
    for command in commands("own-data.md"):
        assert main([*command, "--epochs", "2"]) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    shown = (DOCS / "own-data.md").read_text()
    assert all(line in shown for line in said.err.splitlines())
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
