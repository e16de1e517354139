"""Two pages of a run: the public page contains nothing private, the private page everything."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hush.cli import main
from hush.release.folder import read_json
from hush.report.page import render_report
from hush.report.run_page import make_private_page, make_released_page
from pages import MOST_BYTES, read_charts

TRAIN = [
    "train",
    "--problem",
    "digits-mlp",
    "--epsilon",
    "3",
    "--epochs",
    "2",
    "--batch-size",
    "128",
    "--secret-seed",
    "5",
]


def train(out: Path, *more: str) -> Path:
    assert main([*TRAIN, "--out", str(out), *more]) == 0
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run") / "run")


def list_numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return {number for item in value for number in list_numbers(item)}
    return {float(value)} if isinstance(value, (int, float)) and not isinstance(value, bool) else set()


def spell(number: float) -> set[str]:
    """How a page might show a number, in three digits or more."""
    texts = {repr(number), *(f"{number:.{digits}g}" for digits in (4, 5, 6)), f"{100 * number:.2f}"}
    return {text for text in texts if len(text.replace(".", "").strip("0")) > 3}


def list_shown(page: str) -> set[str]:
    """The numbers that a page says; where a line of a drawing lies is none of them."""
    return set(
        re.findall(r"\d+\.\d+(?:e-?\d+)?", re.sub(r"<(?:path|line|rect|circle|g|svg|polyline)\b[^>]*>", "", page))
    )


def test_the_released_page_holds_no_private_number(run: Path) -> None:
    private: set[float] = set()
    for line in (run / "private" / "steps.jsonl").read_text().splitlines():
        told = json.loads(line)
        private |= {told["loss"], told["loss"] / told["examples"], told["clipped"] / told["examples"]}
    private |= list_numbers(json.loads((run / "private" / "figures.json").read_bytes()))
    public = (run / "release" / "privacy.json").read_text()
    secrets = {text for number in private for text in spell(number) if text not in public}
    long = {text for text in secrets if len(re.sub(r"\D", "", text).strip("0")) > 4}  # four digits meet by chance
    assert len(long) > 50
    assert not long & list_shown(render_report(make_released_page(run)))
    page = make_private_page(run)
    assert page is not None
    assert len(secrets & list_shown(render_report(page))) > 20


def test_the_released_page_needs_nothing_but_the_release(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "release", tmp_path / "given")
    assert render_report(make_released_page(tmp_path / "given")) == render_report(make_released_page(run))
    assert make_private_page(tmp_path / "given") is None


def test_the_command_writes_two_files_and_the_private_one_is_closed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["out"] == str(run / "report.html")
    assert told["private"] == str(run / "private" / "report.html")
    assert (run / "private" / "report.html").stat().st_mode & 0o077 == 0
    released, private = (Path(told[name]).read_text() for name in ("out", "private"))
    assert max(len(page.encode()) for page in (released, private)) < MOST_BYTES
    assert read_charts(released).keys() < read_charts(private).keys()
    for word in ("Training loss", "Batch sizes", "Clipped share", "This page is private"):
        assert word in private
        assert word not in released


@pytest.mark.parametrize("trouble", ["read", "written", "read in part"])
def test_the_public_page_needs_no_private_part(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """As for somebody who does not own the data, and for a folder on a disk that is read only."""
    copied = tmp_path / "run"
    shutil.copytree(run, copied)

    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / "private" / "steps.jsonl"))

    if trouble == "read":
        monkeypatch.setattr("hush.report.run_page.make_private_page", refuse)
    elif trouble == "written":
        (copied / "private" / "report.html").unlink(missing_ok=True)  # of another test
        (copied / "private" / "report.html").mkdir()
    else:
        monkeypatch.setattr("hush.report.run_page._read_steps", lambda path: read_json(path.parent / "gone"))
    before = sorted(copied.rglob("*"))
    assert main(["report", str(copied), "--out", str(tmp_path / "elsewhere.html"), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["private"] is None
    assert f"'{copied}/private' cannot be read or written: " in told.err
    assert len(told.err.splitlines()) == 1
    assert (tmp_path / "elsewhere.html").read_text() == render_report(make_released_page(run))
    assert sorted(copied.rglob("*")) == before


def test_the_guarantee_the_plan_and_what_was_spent_are_on_both(run: Path) -> None:
    card = json.loads((run / "release" / "privacy.json").read_bytes())
    for page in (make_released_page(run), make_private_page(run)):
        assert page is not None
        assert page.findings[0] == card["guarantee"]["sentence"]
        rows = [(row.cells[0].text, row.cells[1].text) for row in page.table]
        assert ("query clip", "1") in rows
        assert ("per-example gradients", "book-keeping: Linear") in rows
        spending = next(section for section in page.sections if section.id == "spending").charts[0]
        assert spending.rows[-1][0] == card["steps_taken"]
        assert spending.rows[-1][2] == pytest.approx(card["guarantee"]["epsilon"], rel=1e-6)
        spent = [row[2] for row in spending.rows]
        assert spent == sorted(spent)
        assert {section.id for section in page.sections} >= {"noise", "spending"}


def test_figures_of_public_rows_and_with_noise_may_be_shown(tmp_path: Path) -> None:
    public = make_released_page(train(tmp_path / "public", "--public-test"))
    exact = json.loads((tmp_path / "public" / "private" / "figures.json").read_bytes())
    assert f"{100 * exact['test_accuracy']:.2f} %" in public.findings[1]
    noisy = make_released_page(train(tmp_path / "noisy", "--private-metrics", "0.5"))
    assert "noise" in noisy.findings[1]
    for page in (public, noisy):
        assert [section.id for section in page.sections].count("confusion") == 1


def test_a_run_of_correlated_noise_shows_its_matrices(tmp_path: Path) -> None:
    page = make_released_page(train(tmp_path / "run", "--method", "dp-blt"))
    titles = [chart.title for section in page.sections if section.id == "noise" for chart in section.charts]
    assert len(titles) == 3
    assert any("accounted as a whole" in note for note in page.notes)


def test_a_hostile_card_is_text_or_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "release", tmp_path / "release")
    card = json.loads((tmp_path / "release" / "privacy.json").read_bytes())
    card |= {"dataset": "</title><script>alert(1)</script>", "private_metrics": {"figures": 3}, "accounting": []}
    card |= {"gradients": {"<script>alert": [3, None], "frozen": 2}}
    (tmp_path / "release" / "privacy.json").write_text(json.dumps(card))
    text = render_report(make_released_page(tmp_path))
    assert "<script>alert" not in text
    (tmp_path / "release" / "privacy.json").write_text('{"guarantee": 3}')
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2


def test_other_formats_are_for_stores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--format", "latex"]) == 2
    assert "PRIVACY.md" in capsys.readouterr().err


def test_a_model_that_has_diverged_is_said_to_have(tmp_path: Path) -> None:
    out = train(tmp_path / "run", "--public-test", "--set", "lr=1e30")
    (_, told) = make_released_page(out / "release").findings
    assert told.endswith("numbers that are not finite: training has diverged.")
