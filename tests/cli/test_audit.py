"""`hush audit`: one method, all methods, resuming, JSON lines, findings and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hush.audit import audit as catalogue_of_audits
from hush.audit.audit import AuditSettings, find_audits, list_audited, make_audit_plan, make_audit_setup, read_audits
from hush.cli import main
from hush.errors import InvalidInputError
from hush.methods import catalogue
from pages import MOST_BYTES, read_charts

FEW = ("--runs", "8", "--seed", "3")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["audit", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_every_method_that_claims_something_can_be_audited() -> None:
    assert set(list_audited()) == set(catalogue()) - {"sgd"}
    for name in list_audited():
        plan = make_audit_plan(name, 4.0, 1e-5)
        assert 3.9 < plan.claims()[-1].epsilon <= 4.0
        assert make_audit_setup(plan).direction


def test_a_method_by_name_says_what_was_claimed_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "--method", "sanitize-once", *FEW)
    assert code == 0
    assert out.startswith("sanitize-once, proven ε = 4 at δ = 1e-5: at least ε = 0 (95 %) was measured by")
    assert out.endswith("consistent\n")


def test_a_factory_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "--method", "hush.methods.independent:dp_sgd", *FEW, "--epsilon", "2", "--json")
    (found,) = map(json.loads, out.splitlines())
    assert code == 0
    assert (found["method"], found["adversary"]) == ("hush.methods.independent:dp_sgd", "white-box")
    assert 1.9 < found["claimed_epsilon"] <= 2


def test_all_goes_on_where_it_was_stopped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "audits.jsonl"
    monkeypatch.setattr(catalogue_of_audits, "list_audited", lambda: ("sanitize-once", "label-rr"))
    code, out, _ = ask(capsys, "--all", *FEW, "--json", "--store", str(store))
    assert code == 0
    assert [json.loads(line)["method"] for line in out.splitlines()] == ["sanitize-once", "label-rr"]
    first, second = store.read_text().splitlines()
    store.write_text(f"{first}\n{second[:40]}")  # broken off while it was written
    made: list[str] = []
    original = catalogue_of_audits.make_audit_plan
    monkeypatch.setattr(
        catalogue_of_audits, "make_audit_plan", lambda name, *more: made.append(name) or original(name, *more)
    )
    code, again, _ = ask(capsys, "--all", *FEW, "--json", "--store", str(store))
    assert (code, made) == (0, ["label-rr"])
    for before, after in zip(map(json.loads, out.splitlines()), map(json.loads, again.splitlines()), strict=True):
        assert {**before, "cpu_seconds": None} == {**after, "cpu_seconds": None}
    assert [entry["comparisons"] for entry in read_audits(store)] == [2, 2]
    code, table, _ = ask(capsys, "--all", *FEW, "--store", str(store))
    assert (code, made) == (0, ["label-rr"])
    assert "label-rr" in table.splitlines()[-2]


def test_other_settings_are_another_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "audits.jsonl"
    ask(capsys, "--method", "label-rr", *FEW, "--store", str(store))
    assert find_audits(store, "label-rr", AuditSettings(runs=8, seed=3))
    assert not find_audits(store, "label-rr", AuditSettings(runs=8, seed=4))
    assert not find_audits(store, "label-rr", AuditSettings(runs=8, seed=3, epsilon=1.0))


def test_repetitions_beyond_those_announced_are_allowed_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "audits.jsonl"
    for seed in ("1", "2", "3", "3"):
        given = ("--method", "label-rr", "--runs", "8", "--seed", seed, "--comparisons", "2", "--store", str(store))
        assert ask(capsys, *given)[0] == 0
    assert [entry["comparisons"] for entry in read_audits(store)] == [2, 2, 6]
    assert all(entry["settings"]["comparisons"] == 2 and entry["cpu_seconds"] >= 0 for entry in read_audits(store))


def test_whoever_has_seen_a_verdict_cannot_announce_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one more announced each time, 1 + 1/2 + 1/3 + … of the rate of false alarms would have no end."""
    store = tmp_path / "audits.jsonl"
    for number in ("1", "2", "3"):
        given = ("--method", "label-rr", "--runs", "8", "--seed", number, "--comparisons", number)
        assert ask(capsys, *given, "--store", str(store))[0] == 0
    assert [entry["comparisons"] for entry in read_audits(store)] == [1, 2, 6]


def test_what_is_refuted_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = tmp_path / "findings.json"
    given = ("--method", "sanitize", "--epsilon", "1", "--runs", "80", "--seed", "3")
    code, out, _ = ask(capsys, *given, "--update", str(found), "--page", str(tmp_path / "page.html"))
    assert code == 0
    assert out.endswith("refuted\n")
    (entry,) = json.loads(found.read_text())
    assert (entry["method"], entry["status"]) == ("sanitize", "claimed")
    assert entry["epsilon_lower"] > 2 > entry["claimed_epsilon"]
    page = (tmp_path / "page.html").read_text()
    assert "<h1>sanitize: refuted</h1>" in page
    assert len(page.encode()) < MOST_BYTES
    charts = read_charts(page)
    assert set(charts) == {
        "The score of every run",
        "Errors that it made, and errors that were claimed",
        "The bound as runs are added",
    }
    scores = charts["The score of every run"].rows
    assert [sum(row[i] for row in scores) for i in (1, 2)] == [40, 40]


def test_what_cannot_be_asked_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for given, why in (
        ((), "--method NAME, or --all"),
        (("--method", "dp-sgd", "--all"), "--method NAME, or --all"),
        (("--all", "--page", str(tmp_path / "p.html")), "give --method"),
        (("--method", "sgd"), "adds no noise"),
        (("--method", "label-rr", "--runs", "4"), "at least 8 runs"),
        (("--method", "label-rr", "--comparisons", "0"), "comparisons"),
    ):
        code, out, err = ask(capsys, *given)
        assert (code != 0, out) == (True, "")
        assert why in " ".join(err.split())


def test_another_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"method": "dp-sgd"}\n')
    with pytest.raises(InvalidInputError, match="1"):
        read_audits(path)


def test_another_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = tmp_path / "audits.jsonl"
    given = ("--method", "dp-sgd", "--problem", "breast-cancer-logistic", *FEW, "--json", "--store", str(store))
    code, out, err = ask(capsys, *given)
    assert code == 0, err
    (found,) = map(json.loads, out.splitlines())
    assert (found["method"], found["verdict"], found["adversary"]) == ("dp-sgd", "consistent", "white-box")
    assert find_audits(store, "dp-sgd", AuditSettings(runs=8, seed=3, problem="breast-cancer-logistic"))
    assert not find_audits(store, "dp-sgd", AuditSettings(runs=8, seed=3))


def test_another_problem_has_its_own_model_and_rows() -> None:
    plan = make_audit_plan("dp-sgd", 4.0, 1e-5)
    setup = make_audit_setup(plan, "breast-cancer-logistic")
    assert [len(column) for column in setup.rows] == [64, 64]
    assert setup.rows[0].shape[1] == 30
    assert list(setup.direction) == ["canary.weight"]


def test_what_protects_half_a_row_needs_its_own_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, _, err = ask(capsys, "--method", "label-rr", "--problem", "digits-mlp", *FEW)
    assert code == 2
    assert "'label-rr'" in err
    assert "labels" in err
    monkeypatch.setattr(catalogue_of_audits, "list_audited", lambda: ("dp-sgd", "label-rr"))
    given = ("--all", "--problem", "digits-logistic", *FEW, "--json", "--store", str(tmp_path / "audits.jsonl"))
    code, out, err = ask(capsys, *given)
    assert code == 0
    assert [json.loads(line)["method"] for line in out.splitlines()] == ["dp-sgd"]
    assert "audited without --problem: label-rr" in err
    assert ask(capsys, "--method", "dp-sgd", "--problem", "digit-mlp", *FEW)[0] == 2
