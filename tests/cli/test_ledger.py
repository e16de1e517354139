"""`hush ledger`: stopped runs, several runs, names, and files that it never changes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from dp_accounting import dp_event

from hush.accounting.guarantee import SECRET_SEED
from hush.cli import main
from hush.errors import NotProvenError
from hush.ledger.book import Ledger
from hush.ledger.run_account import Account
from hush.ledger.total import FIXED, Cost

STEP = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
TRAIN = (
    "train",
    "--problem",
    "breast-cancer-logistic",
    "--batch-size",
    "64",
    "--noise-multiplier",
    "2",
    "--steps",
    "3",
)


def cost(steps: int) -> Cost:
    return Cost("add-remove", "proven", 1e-5, dp_event.SelfComposedDpEvent(STEP, steps))


def account(path: Path, run: str = "a", dataset: str = "default", **more) -> Account:
    return Account(Ledger(path), dataset, run=run, method="dp-sgd", planned=240, cost=cost, per_step=True, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def shown(capsys, path: Path) -> dict:
    code, out, err = call(capsys, "ledger", "show", path, "--json")
    assert code == 0, err
    return json.loads(out)["datasets"][0]


def stop_after_one(capsys, monkeypatch, out: Path, path: Path) -> str:
    """A run of three steps that is interrupted after its first; its name in the ledger."""
    with monkeypatch.context() as patched:
        patched.setattr("hush.cli.train.note_interrupts", lambda: nullcontext(lambda: True))
        assert call(capsys, *TRAIN, "--out", out, "--ledger", path)[0] == 130
    (run,) = shown(capsys, path)["runs"]
    return str(run["run"])


def test_a_run_that_was_stopped_is_charged_with_its_plan(capsys, path, tmp_path, monkeypatch) -> None:
    stop_after_one(capsys, monkeypatch, tmp_path / "run", path)
    found = shown(capsys, path)
    (run,) = found["runs"]
    assert (run["steps"], run["planned"], run["limit"], run["status"]) == (3, 3, 3, "proven")
    assert (found["status"], found["so_far"]) == ("proven", None)
    before = path.read_bytes()
    resumed = json.loads(call(capsys, "train", "--out", tmp_path / "run", "--resume", "--json")[1])
    assert resumed["ledger"]["epsilon"] == found["epsilon"]
    assert path.read_bytes() == before  # it is not charged again


def test_closing_it_as_stopped_blindly(capsys, path, tmp_path, monkeypatch) -> None:
    out = tmp_path / "run"
    name = stop_after_one(capsys, monkeypatch, out, path)
    whole = shown(capsys, path)["epsilon"]
    for given in ((), ("--stopped-blindly",), ("--stopped-blindly", "--out", tmp_path / "other")):
        assert call(capsys, "ledger", "close", path, name, *given)[0] == 2
    code, said, err = call(capsys, "ledger", "close", path, name, "--stopped-blindly", "--out", out, "--json")
    assert code == 0, err
    found = json.loads(said)
    assert found == shown(capsys, path)
    assert (found["epsilon"] < whole, found["status"], found["so_far"]) == (True, "proven", None)
    assert (found["runs"][0]["steps"], found["runs"][0]["stopped_blindly"]) == (1, True)
    assert found["assumptions"][-1] in found["sentence"]
    code, _, err = call(capsys, "train", "--out", out, "--resume")
    assert code == 2
    assert name in err


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_released(capsys, path, tmp_path) -> None:
    call(capsys, "ledger", "budget", path, "--epsilon", 0.5)
    before = path.read_bytes()
    given = ("train", "--problem", "breast-cancer-logistic", "--batch-size", 64, "--steps", 3, "--epsilon", 2)
    code, out, err = call(capsys, *given, "--ledger", path, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert "--fit-budget" in err
    assert path.read_bytes() == before
    assert not (tmp_path / "run").exists()
    fitted = (*given, "--ledger", path, "--out", tmp_path / "run", "--fit-budget", "--json")
    found = json.loads(call(capsys, *fitted)[1])
    assert 0.45 < found["epsilon"] <= 0.5
    assert 0.45 < shown(capsys, path)["epsilon"] <= 0.5
    again = json.loads(call(capsys, *fitted, "--resume")[1])
    assert (again["epsilon"], again["resumed_from"]) == (found["epsilon"], 3)
    assert call(capsys, *given, "--fit-budget")[0] == 2  # which budget?


def test_a_total_of_many_kinds_stops_no_release(capsys, path, tmp_path, monkeypatch) -> None:
    """As with more different releases than an accountant takes, and no accountant that takes any."""

    def refuse(*_: object, **__: object) -> float:
        raise NotProvenError("too many different releases")

    account(path).charge()
    monkeypatch.setattr("hush.ledger.total.epsilon", refuse)
    code, _, err = call(capsys, "ledger", "add", path, "more", "--epsilon", 0.1, "--delta", 1e-6)
    assert code == 0, err
    code, out, err = call(capsys, *TRAIN, "--ledger", path, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["ledger"]["epsilon"] is None
    card = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert (card["ledger"]["epsilon"], card["ledger"]["status"]) == (None, "none")


@pytest.mark.parametrize(
    "given",
    [
        ("ledger", "budget", "PATH", "--epsilon", 1),
        ("ledger", "add", "PATH", "x", "--epsilon", 1, "--delta", 1e-6),
        ("ledger", "cap", "PATH", "--unit", "patient_id", "--rows", 3),
        ("ledger", "close", "PATH", "a", "--stopped-blindly", "--out", "run"),
        ("ledger", "show", "PATH"),
        (*TRAIN, "--ledger", "PATH"),
        TRAIN,
        ("tune", *TRAIN[1:], "--public-test", "--ledger", "PATH"),
    ],
    ids=lambda given: " ".join(map(str, given[:2])),
)
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_dataset(capsys, path, given, name) -> None:
    call(capsys, "ledger", "add", path, "before", "--epsilon", 1, "--delta", 1e-6)
    before = path.read_bytes()
    words = (path if word == "PATH" else word for word in given)
    code, _, err = call(capsys, *words, "--dataset", name)
    assert (code, path.read_bytes()) == (2, before)
    assert f"'{name}'" in err


def test_several_runs_say_what_they_assume(capsys, path) -> None:
    call(capsys, "ledger", "budget", path, "--epsilon", 3)
    for run in "ab":
        account(path, run).charge()
    found = shown(capsys, path)
    assert found["assumptions"] == [FIXED]
    assert found["sentence"].endswith(f"composed as one event; proven, on conditions: {FIXED}")
    assert found["filter"]["holds"] is True
    _, out, _ = call(capsys, "ledger", "show", path)
    assert "the budget also holds by a Rényi filter of order" in out


def test_the_seed_of_a_run_is_in_its_ledger(capsys, path, tmp_path) -> None:
    code, out, err = call(capsys, *TRAIN, "--secret-seed", 7, "--ledger", path, "--json")
    assert code == 0, err
    assert SECRET_SEED in json.loads(out)["ledger"]["assumptions"]
    assert SECRET_SEED in shown(capsys, path)["sentence"]


@pytest.mark.parametrize("dataset", [(), ("--dataset", "others"), ("--dataset", "patient")])
def test_a_budget_is_not_passed_by_under_another_name(capsys, path, dataset) -> None:
    call(capsys, "ledger", "budget", path, "--dataset", "patients", "--epsilon", 0.01)
    before = path.read_bytes()
    code, _, err = call(capsys, *TRAIN, "--ledger", path, *dataset)
    assert code == 2
    assert "--new-dataset" in err
    assert path.read_bytes() == before
    for name in ("Patients", "patients "):
        code, _, err = call(capsys, *TRAIN, "--ledger", path, "--dataset", name)
        assert code == 2
        assert "'patients'" in err
    code, _, err = call(capsys, *TRAIN, "--ledger", path, *dataset, "--new-dataset", "--json")
    assert code == 0, err


@pytest.mark.parametrize("text", ["my notes, and no end of line", "my notes\n"])
def test_a_file_that_is_no_ledger_is_left_alone(capsys, tmp_path, text) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text(text)
    for arguments in (
        ("ledger", "show", notes),
        ("ledger", "budget", notes, "--epsilon", 1),
        ("ledger", "add", notes, "x", "--epsilon", 1, "--delta", 1e-6),
        ("ledger", "close", notes, "x", "--stopped-blindly"),
        (*TRAIN, "--ledger", notes),
    ):
        code, _, err = call(capsys, *arguments)
        assert code == 2
        assert str(notes) in err
        assert notes.read_text() == text
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_name_for_the_ledger(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("ledger", "show", ""), (*TRAIN, "--ledger", ""), ("ledger", "budget", "", "--epsilon", 1)):
        code, _, err = call(capsys, *arguments)
        assert code == 2
        assert "give the ledger's file name" in err


def test_control_characters_never_reach_the_terminal(capsys, path) -> None:
    clear = "\x1b[2J\u202ename\x9b"
    ledger = Ledger(path)
    entry = {"kind": "spend", "dataset": clear, "run": clear, "method": clear, "at": clear}
    entry |= {"steps": 1, "planned": 1, "limit": 1}
    priced = {"adjacency": "add-remove", "status": "proven", "delta": 1e-5, "event": None, "points": [[1e-5, 1.0]]}
    with ledger._chain.locked():
        ledger._chain.append(**entry, **priced, reason=clear, assumptions=[clear])
    for arguments in (("show", path), ("show", path, "--json"), ("show", path, "--dataset", clear + "x")):
        _, out, err = call(capsys, "ledger", *arguments)
        assert not {c for c in out + err if not c.isprintable()} - {"\n"}
    assert json.loads(call(capsys, "ledger", "show", path, "--json")[1])["datasets"][0]["dataset"] == clear
    code, _, err = call(capsys, "ledger", "add", path, clear, "--epsilon", 1, "--delta", 1e-6)
    assert code == 2
    assert "printable characters" in err


def test_units_and_parts_have_totals_of_their_own(capsys, tmp_path) -> None:
    path = str(tmp_path / "spent.jsonl")
    by_hand = ("--epsilon", "0.5", "--delta", "1e-6")
    assert call(capsys, "ledger", "add", path, "rows", *by_hand)[0] == 0
    assert call(capsys, "ledger", "add", path, "people", *by_hand, "--unit", "patient_id")[0] == 0
    found = json.loads(call(capsys, "ledger", "show", path, "--json")[1])["datasets"][0]
    assert [(t["unit"], t["protects"], t["epsilon"]) for t in found["totals"]] == [
        ("example", "example", 1.5),
        ("patient_id", "example", None),
    ]
    assert (found["epsilon"], found["unit"], found["protects"]) == (1.5, "example", "example")
    assert [(run["unit"], run["protects"]) for run in found["runs"]] == [
        ("example", "example"),
        ("patient_id", "example"),
    ]
    code, out, _ = call(capsys, "ledger", "cap", path, "--unit", "patient_id", "--rows", "3")
    assert code == 0
    assert "declared: no " in out
    found = json.loads(call(capsys, "ledger", "show", path, "--json")[1])["datasets"][0]
    assert (found["totals"][1]["epsilon"], found["rows_per_unit"]) == (2.0, {"patient_id": 3})


def test_half_an_example_never_has_a_finite_whole(capsys, tmp_path) -> None:
    path = str(tmp_path / "spent.jsonl")
    half = ("--epsilon", "0.5", "--delta", "1e-6", "--adjacency", "replace", "--protects", "features")
    assert call(capsys, "ledger", "add", path, "half", *half)[0] == 0
    found = json.loads(call(capsys, "ledger", "show", path, "--json")[1])["datasets"][0]
    totals = {total["protects"]: total["epsilon"] for total in found["totals"]}
    assert (found["epsilon"], totals) == (None, {"example": None, "features": 0.5, "labels": None})
    told = " ".join(call(capsys, "ledger", "show", path)[1].split())
    assert "no finite ε is proven at δ = 1e-6 (replace) over 1 spend: one is about features only" in told
    assert "the features of one example: at most ε = 0.5" in told


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("add", "PATH", "x", "--epsilon", "1", "--delta", "1e-6", "--protects", "half"), "protects"),
        (("add", "PATH", "x", "--epsilon", "1", "--delta", "1e-6", "--protects", "labels"), "adjacency replace"),
        (("add", "PATH", "x", "--epsilon", "1", "--delta", "1e-6", "--unit", " "), "a unit needs a name"),
        (("cap", "PATH", "--unit", "example", "--rows", "3"), "one example is one row"),
        (("cap", "PATH", "--unit", "patient_id", "--rows", "0"), "rows"),
        (("budget", "PATH", "--unit", "patient_id"), "give its --epsilon too"),
        (("budget", "PATH", "--epsilon", "1", "--protects", "half"), "protects"),
    ],
)
def test_what_is_no_unit_or_part_is_refused(given, sentence, capsys, tmp_path) -> None:
    path = tmp_path / "spent.jsonl"
    code, _, err = call(capsys, "ledger", *(str(path) if word == "PATH" else word for word in given))
    assert (code, path.exists()) == (2, False)
    assert sentence in err


def test_a_budget_says_what_it_is_for(capsys, tmp_path) -> None:
    path = str(tmp_path / "spent.jsonl")
    assert call(capsys, "ledger", "budget", path, "--epsilon", "1", "--unit", "patient_id")[0] == 0
    code, out, _ = call(capsys, "ledger", "budget", path, "--epsilon", "2")
    assert code == 0
    assert "budget: ε = 2 at δ = 1e-5, for one patient_id" in " ".join(out.split())
    found = json.loads(call(capsys, "ledger", "budget", path, "--json")[1])
    assert found["budget"] == {"epsilon": 2.0, "delta": 1e-5, "unit": "patient_id", "protects": "example"}


def test_every_guarantee_in_json_says_its_unit_and_what_it_protects(capsys, tmp_path) -> None:
    size = ("--examples", "600", "--batch-size", "60", "--epochs", "1")
    found = json.loads(call(capsys, "account", *size, "--noise-multiplier", "2", "--json")[1])
    assert (found["unit"], found["protects"], found["claims"][0]["protects"]) == ("example", "example", "example")
    run, path = str(tmp_path / "run"), str(tmp_path / "spent.jsonl")
    trained = json.loads(call(capsys, *TRAIN, "--out", run, "--ledger", path, "--json")[1])
    assert (trained["ledger"]["unit"], trained["ledger"]["protects"]) == ("example", "example")
    verified = json.loads(call(capsys, "verify", run, "--json")[1])
    assert (verified["verified"], verified["unit"], verified["protects"]) == (True, "example", "example")
    card = json.loads((tmp_path / "run" / "release" / "privacy.json").read_text())
    assert (card["ledger"]["unit"], card["ledger"]["protects"]) == ("example", "example")


def test_datasets_that_are_there_are_named(path: Path, capsys) -> None:
    for name in ("one", "two"):
        account(path, dataset=name).charge()
    assert main(["ledger", "show", str(path), "--dataset", "three"]) == 2
    assert "has no dataset 'three': it has 'one', 'two'" in capsys.readouterr().err
