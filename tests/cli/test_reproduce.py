"""`hush reproduce`: the map of published experiments, its states, and what is run, collected and compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hush.bench.spec import read_spec
from hush.cli import reproduce
from hush.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TINY = """
seed = 0
secret_seed = 1
[[grid]]
problem = "digits-mlp"
method = "dp-sgd"
batch_size = 256
epochs = 1
epsilon = 4.0
lr = [0.5, 1.0]
"""
MAP = """
[publications]
001 = "A tiny one"
[[entry]]
name = "001-table-1"
item = "Table 1"
shows = "two rates"
specs = ["tiny"]
[[entry]]
name = "001-figure-1"
item = "Figure 1"
shows = "nothing"
missing = "not run"
"""


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from published import experiments, page, records

    return SimpleNamespace(experiments=experiments, page=page, records=records)


@pytest.fixture
def tiny(published: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The map of one spec with two runs, in a folder without results."""
    for name in ("results", "specs"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(published.records, name.upper(), tmp_path / name)
    (tmp_path / "specs" / "tiny.toml").write_text(TINY)
    (tmp_path / "map.toml").write_text(MAP)
    monkeypatch.setattr(published.experiments, "MAP", tmp_path / "map.toml")
    monkeypatch.setattr(published.page, "write_page", lambda: [tmp_path / "page.md"])
    return SimpleNamespace(**vars(published), root=tmp_path, results=tmp_path / "results" / "tiny.jsonl")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    assert main(["reproduce", *arguments, "--json"]) == 0
    found: list[dict] = json.loads(capsys.readouterr().out)["experiments"]
    return found


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.repo
def test_the_map_lists_every_experiment_with_a_page_that_shows_it(published, capsys) -> None:
    found = ask(capsys)
    assert len({one["name"] for one in found}) == len(found) >= 35
    assert {one["publication"] for one in found} == {"000", "002", "003", "004"}
    assert {one["state"] for one in found} == {"complete", "reduced", "missing"}
    for one, entry in zip(found, published.experiments.read_map()[1], strict=True):
        assert one["reason"] or one["state"] == "complete", one["name"]
        assert one["page"] or one["state"] == "missing", one["name"]
        assert (one["seconds"] is not None) == bool(entry.data or one["runs"]), one["name"]
        assert bool(one["command"]) == (bool(entry.specs or entry.data) or entry.computed or bool(entry.full))
        full_is_left = bool(entry.full) and one["state"] != "complete" and one["runs"] == one["planned"]
        assert one["command"].endswith(" --full") == full_is_left, one["name"]  # the rest would run nothing
        assert (one["full_seconds"] is not None) <= bool(entry.full), one["name"]
        path, _, place = one["page"].partition("#")
        if place:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            assert place in {slug(heading) for heading in headings}, one["name"]
        for spec in (*entry.specs, *filter(None, [entry.full])):
            assert (ROOT / "specs" / f"{spec}.toml").exists()


def test_states_follow_from_the_records(published, monkeypatch, tmp_path, capsys) -> None:
    with_runs = {one["name"]: one["state"] for one in ask(capsys) if one["planned"]}
    monkeypatch.setattr(published.records, "RESULTS", tmp_path)
    without = {one["name"]: one["state"] for one in ask(capsys) if one["planned"]}
    assert set(without.values()) == {"missing"} != set(with_runs.values())


@pytest.mark.repo
def test_the_pages_are_what_the_records_give(published, monkeypatch, tmp_path, capsys) -> None:
    assert main(["reproduce", "--check"]) == 0
    assert capsys.readouterr().out == ""
    changed = tmp_path / "reproduction.md"
    changed.write_text(published.page.PAGE.read_text().replace("complete", "Complete", 1))
    pictures = tmp_path / "building-blocks"
    pictures.mkdir()
    for path in published.page.BLOCKS.iterdir():
        (pictures / path.name).write_text(path.read_text())
    (pictures / "four-tries.svg").write_text("<svg/>")
    monkeypatch.setattr(published.page, "PAGE", changed)
    monkeypatch.setattr(published.page, "BLOCKS", pictures)
    assert main(["reproduce", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"changed": [str(pictures / "four-tries.svg"), str(changed)]}


def test_what_is_missing_is_run_once_collected_and_rendered(tiny, capsys) -> None:
    (table, figure) = ask(capsys)
    assert (table["state"], table["runs"], table["planned"]) == ("missing", 0, 2)
    assert (figure["state"], figure["command"]) == ("missing", "")
    (dry,) = ask(capsys, "001-table-1", "--dry-run", "--store", str(tiny.root / "store"))
    assert dry["estimated_seconds"]["tiny"] > 0
    assert not tiny.results.exists()
    assert not (tiny.root / "store").exists()

    run = ["001-table-1", "--store", str(tiny.root / "store"), "--workers", "1"]
    (done,) = ask(capsys, *run)
    assert (done["state"], done["runs"], done["written"]) == ("complete", 2, [str(tiny.root / "page.md")])
    records = [json.loads(line) for line in tiny.results.read_text().splitlines()]
    trials = read_spec(tiny.root / "specs" / "tiny.toml").trials
    assert [record["key"] for record in records] == [trial.key for trial in trials]

    tiny.results.write_text(json.dumps(records[0]) + "\n")  # elsewhere, where one of them was collected
    (half,) = [one for one in ask(capsys) if one["planned"]]
    assert (half["state"], half["runs"]) == ("reduced", 1)
    (again,) = ask(capsys, "001-table-1", "--store", str(tiny.root / "other"), "--workers", "1")
    assert (again["state"], again["runs"]) == ("complete", 2)
    assert json.loads(tiny.results.read_text().splitlines()[0]) == records[0]
    other = json.loads(tiny.results.read_text().splitlines()[1])
    assert other["test_accuracy"] == records[1]["test_accuracy"]


def test_a_dry_run_of_the_published_size_keeps_its_time(tiny, capsys) -> None:
    """In the list it is the time of the command that is left, which is the one of the published size."""
    (tiny.root / "map.toml").write_text(MAP.replace('missing = "not run"', 'full = "tiny"\nmissing = "not run"'))
    (one,) = ask(capsys, "001-figure-1", "--full", "--dry-run", "--store", str(tiny.root / "store"))
    kept = json.loads((tiny.root / "results" / "estimates.json").read_text())["tiny"]
    assert kept["1"] == round(one["estimated_seconds"]["tiny"])
    assert kept["64"] <= kept["2"] <= kept["1"]
    (_, figure) = ask(capsys)
    assert (figure["command"], figure["full_seconds"]) == ("hush reproduce 001-figure-1 --full", kept["1"])
    assert main(["reproduce"]) == 0
    assert "published size" in capsys.readouterr().out


def test_nothing_is_run_twice(tiny, monkeypatch, capsys) -> None:
    run = ["001", "--store", str(tiny.root / "store"), "--workers", "1"]
    ask(capsys, *run)
    monkeypatch.setattr(tiny.experiments, "run_bench", None)
    assert ask(capsys, *run)[0]["state"] == "complete"


def test_an_unknown_name_is_refused(published, capsys) -> None:
    assert main(["reproduce", "000-table-9"]) == 2
    assert "000-table-" in capsys.readouterr().err.partition("000-table-9")[2]


def test_a_package_without_a_checkout_says_so(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "__file__", str(tmp_path / "lib" / "hush" / "cli" / "reproduce.py"))
    assert main(["reproduce"]) == 2
    assert str(reproduce.MAP) in capsys.readouterr().err
