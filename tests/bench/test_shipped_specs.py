"""The specs that ship: the published experiments and their small twins."""

from __future__ import annotations

from pathlib import Path

import pytest

from hush.bench.spec import check_spec, read_spec
from hush.methods import catalogue

SPECS = Path(__file__).resolve().parents[2] / "specs"
FILES = sorted(SPECS.glob("*.toml"))
PUBLISHED = {"mnist-dpsgd", "mnist-ftrl", "mnist-versus", "mnist-plain", "setup-1", "setup-2", "setup-3"}
PUBLISHED |= {"building-blocks", "sanitize"}  # MECHANISMS.md §11


# MECHANISMS.md §11: the numbers of runs of the published comparison
@pytest.mark.parametrize(("name", "runs"), [("setup-1", 2272), ("setup-2", 60), ("setup-3", 144)])
def test_the_published_comparison_expands_to_its_runs(name, runs) -> None:
    trials = read_spec(SPECS / f"{name}.toml").trials
    assert len(trials) == runs
    assert len({trial.key for trial in trials}) == runs


def test_every_published_experiment_has_a_small_twin() -> None:
    names = {path.stem for path in FILES}
    assert names >= PUBLISHED | {f"{name}-small" for name in PUBLISHED}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_spec_is_valid(path) -> None:
    spec = read_spec(path)
    assert spec.name == path.stem
    assert spec.summary
    missing = sorted({trial.method for trial in spec.trials if ":" not in trial.method} - set(catalogue()))
    if missing:
        pytest.skip(f"no method {', '.join(missing)} in this version")
    check_spec(spec)


def test_the_spec_in_the_documentation_can_be_copied(tmp_path) -> None:
    text = (SPECS.parent / "docs" / "bench.md").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    spec = read_spec(path)
    check_spec(spec)
    assert len(spec.trials) == 19


def test_the_twin_keeps_the_comparison() -> None:
    for name in PUBLISHED - {"building-blocks"}:
        full, small = (read_spec(SPECS / f"{n}.toml").trials for n in (name, f"{name}-small"))
        assert {t.method for t in small} == {t.method for t in full}
        assert len(small) < len(full) or len(full) < 10
