"""Extreme and invalid options of `hush account` and `hush ledger`: one sentence, never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hush.cli import main

ACCOUNT = ("account", "--examples", "60000", "--batch-size", "256")


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "flags",
    [
        ("--noise-multiplier", 1e-200, "--steps", 10),
        ("--noise-multiplier", 5e-324, "--steps", 10),
        ("--noise-multiplier", 1e300, "--steps", 10),
        ("--node-noise", 1e-200),
        ("--epsilon", 1e-320),
        ("--epsilon", 1e300),
        ("--epsilon", "inf"),
        ("--epsilon", "nan"),
        ("--steps", 2**63, "--noise-multiplier", 1),
        ("--steps", 10**12, "--epsilon", 1),
        ("--epochs", 1e18, "--noise-multiplier", 1),
        ("--epochs", 1e308, "--noise-multiplier", 1),
        ("--epochs", 1e18, "--epsilon", 1, "--method", "auto"),
        ("--steps", 10**8, "--noise-multiplier", 1, "--method", "dp-ftrl"),
        ("--steps", 10**8, "--noise-multiplier", 1, "--method", "dp-bandmf"),
        ("--sample-rate", 1e-320, "--noise-multiplier", 1, "--steps", 10),
        ("--sample-rate", 0, "--epsilon", 1),
        ("--sample-rate", 1.5, "--epsilon", 1),
        ("--delta", 0, "--epsilon", 1),
        ("--delta", 1, "--epsilon", 1),
        ("--delta", 1e-300, "--epsilon", 1),
        ("--delta", "nan", "--epsilon", 1),
    ],
    ids=str,
)
def test_an_extreme_flag_is_refused_in_one_sentence(capsys, flags) -> None:
    code, out, err = call(capsys, *ACCOUNT, *flags, "--json")
    assert (code, out) == (2, "")
    (sentence,) = [line for line in err.splitlines() if not line.endswith("…")]
    assert sentence.startswith("error: ")


def proven_pairs(value):
    """Every object of a JSON answer that has a status beside an ε."""
    if isinstance(value, dict):
        if "status" in value and "epsilon" in value:
            yield value
        for part in value.values():
            yield from proven_pairs(part)
    elif isinstance(value, list):
        for part in value:
            yield from proven_pairs(part)


def check(code: int, out: str, err: str, arguments: object) -> None:
    assert code in (0, 1, 2), arguments
    assert "Traceback" not in err + out, arguments
    assert not {c for c in out + err if not c.isprintable()} - {"\n"}, arguments
    if code:
        said = [line for line in err.splitlines() if not line.startswith("warning: ") and not line.endswith("…")]
        assert len(said) == 1, (arguments, err)
        assert said[0].startswith("error: "), arguments
        return
    for pair in proven_pairs(json.loads(out)):
        if pair["status"] == "proven":
            assert pair["epsilon"] is not None, arguments
            assert 0 < pair.get("delta", 0.5) < 1, arguments


NUMBERS = (
    "0",
    "1",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "1e-200",
    "1e308",
    "1e-9",
    "0.5",
    "0.999999",
    "2",
    "x",
    "",
)
WHOLE = ("0", "1", "-1", str(2**63), str(2**64), "10", "1e3", "1000000000000", "x", "", "255", "60000", "9" * 400)
WORDS = {
    "--accountant": ("auto", "pld", "rdp", "gdp", "PLD", "", "\x1b[2J"),
    "--adjacency": ("add-remove", "replace", "zero-out", "near", ""),
    "--sampling": ("poisson", "fixed-size", "shuffled", "same-order", "no"),
    "--method": ("dp-sgd", "sgd", "dp-ftrl", "dp-dice", "auto ", "no.such:thing", ":", "x" * 300, "\u202e"),
    "--set": ("clip=1", "clip=nan", "clip", "=", "lr=1e400", "clip=[1]", "x=1", "clip=\x00"),
}


def test_random_calls_of_account_end_in_one_sentence(capsys) -> None:
    draw = random.Random(20)
    for _ in range(250):
        arguments = ["account", "--json"]
        for flag in ("--noise-multiplier", "--epsilon", "--delta", "--epochs", "--sample-rate", "--node-noise"):
            if draw.random() < 0.25:
                arguments += [flag, draw.choice(NUMBERS)]
        for flag, usual in (("--examples", "60000"), ("--batch-size", "256"), ("--steps", "3")):
            if draw.random() < 0.9:
                arguments += [flag, draw.choice(WHOLE) if draw.random() < 0.3 else usual]
        for flag, words in WORDS.items():
            if draw.random() < 0.15:
                arguments += [flag, draw.choice(words)]
        check(*call(capsys, *arguments), arguments)


NAMES = ("default", "d", "", " ", "\x1b[2J", "\u202e", "a\nb", "x" * 300, "D ", "\ud800")


def test_random_calls_of_ledger_end_in_one_sentence(capsys, tmp_path: Path) -> None:
    draw = random.Random(21)
    good, notes = tmp_path / "good.jsonl", tmp_path / "notes.txt"
    notes.write_text("notes")
    main(["ledger", "add", str(good), "first", "--epsilon", "1", "--delta", "1e-6"])
    capsys.readouterr()
    for number in range(250):
        command = draw.choice(["show", "budget", "add", "close"])
        path = draw.choice([good, good, good, notes, tmp_path, tmp_path / "no" / "such", tmp_path / "new", "/dev/null"])
        arguments: list[object] = ["ledger", command, path, "--json"]
        if command in ("add", "close") and draw.random() < 0.95:
            arguments.append(draw.choice([*NAMES, f"run {number}"]))
        for flag in ("--epsilon", "--delta"):
            if draw.random() < (0.9 if command == "add" else 0.3):
                arguments += [flag, draw.choice(NUMBERS)]
        for flag in ("--dataset", "--adjacency", "--status"):
            if draw.random() < 0.2:
                arguments += [flag, draw.choice(NAMES)]
        for flag in ("--new-dataset", "--stopped-blindly"):
            if draw.random() < 0.2:
                arguments.append(flag)
        check(*call(capsys, *arguments), arguments)
    assert notes.read_text() == "notes"
    assert main(["ledger", "show", str(good)]) == 0


def test_random_damage_to_a_ledger_is_told_in_one_sentence(capsys, tmp_path: Path) -> None:
    draw = random.Random(22)
    path = tmp_path / "ledger.jsonl"
    head = path.with_name(path.name + ".head")
    for run in "abc":
        main(["ledger", "add", str(path), run, "--epsilon", "1", "--delta", "1e-6"])
    whole, kept = path.read_bytes(), head.read_bytes()
    capsys.readouterr()
    for _ in range(150):
        path.write_bytes(whole)
        head.write_bytes(kept)
        victim = draw.choice([path, path, head])
        content = bytearray(victim.read_bytes())
        place = draw.randrange(len(content))
        match draw.choice(["flip", "cut", "insert", "zero"]):
            case "flip":
                content[place] ^= 1 << draw.randrange(8)
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = draw.choice([b"\xff", b"\n", b"[" * 5000, b"\x00"])
            case "zero":
                content[place:] = bytes(len(content) - place)
        damaged = bytes(content)
        victim.write_bytes(damaged)
        code, out, err = call(capsys, "ledger", "show", path, "--json")
        check(code, out, err, (victim.name, place))
        if code == 0:
            (found,) = json.loads(out)["datasets"]
            assert found["epsilon"] >= 3 * (1 - 1e-12), (victim.name, place, damaged)
        assert victim.read_bytes() == damaged  # looking changes nothing


class TestOneSentence:
    """Where an exception of Python came through: exit 2, one sentence, and the value that is wrong."""

    def refused(self, capsys, value: str, *arguments: object) -> None:
        code, _, err = call(capsys, *arguments)
        assert code == 2
        assert len(err.strip().splitlines()) == 1
        assert value in err

    def test_a_number_of_weights_beyond_any_float(self, capsys) -> None:
        plan = ("plan", "--examples", 1000, "--batch-size", 10, "--epochs", 1, "--epsilon", 3)
        self.refused(capsys, "parameters", *plan, "--parameters", "1" + "0" * 400)

    @pytest.mark.parametrize("method", ["os:system", "builtins:print", "json:loads"])
    def test_a_function_that_is_no_method(self, capsys, method, tmp_path) -> None:
        for command in (ACCOUNT, ("train", "--steps", 1), ("noise", "show", "--out", tmp_path / "n.html")):
            self.refused(capsys, f"'{method}'", *command, "--method", method)

    @pytest.mark.parametrize("problem", ["json:loads", "os:getcwd", "builtins:int", "os:sep"])
    def test_a_function_that_is_no_problem(self, capsys, problem) -> None:
        self.refused(capsys, f"'{problem}'", "train", "--steps", 1, "--problem", problem)

    def test_a_parquet_file_with_a_name_twice(self, capsys, tmp_path) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        path = tmp_path / "rows.parquet"
        pq.write_table(
            pa.Table.from_arrays([pa.array([1.5, 2.5] * 20)] * 2 + [pa.array(["a", "b"] * 20)], ["x", "x", "y"]), path
        )
        few = ("--steps", 1, "--batch-size", 8, "--out", tmp_path / "run")
        self.refused(capsys, f"'{path}'", "train", "--data", path, "--target", "y", *few)

    @pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[]\n{}\n", b"5\n\n", b"[" * 100_000 + b"\n{}\n"])
    def test_a_file_of_audits_that_is_none(self, capsys, tmp_path, content) -> None:
        path = tmp_path / "audit.jsonl"
        path.write_bytes(content)
        self.refused(capsys, f"'{path}'", "audit", "--method", "dp-sgd", "--runs", 4, "--store", path)

    @pytest.mark.parametrize(
        ("entry", "more"),
        [("steps", ()), ("seconds", ()), ("statement", ()), ("ledger", ()), ("epsilon", ("--json",))],
    )
    def test_an_answer_with_a_missing_entry(self, capsys, tmp_path, entry, more) -> None:
        out = tmp_path / "run"
        few = ("--problem", "breast-cancer-logistic", "--steps", 1, "--batch-size", 64, "--noise-multiplier", 1)
        assert call(capsys, "train", *few, "--out", out)[0] == 0
        path = out / "private" / "finished.json"
        answer = json.loads(path.read_text())
        del answer[entry]
        path.write_text(json.dumps(answer))
        code, _, err = call(capsys, "train", "--out", out, "--resume", *more)
        assert code == 2
        assert "finished.json" in err.strip().splitlines()[-1]


def test_too_little_memory_is_one_sentence(capsys, monkeypatch) -> None:
    def fail(*given: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hush.per_example.chunks.synthetic_batch", fail)
    code, out, err = call(capsys, "train", "--problem", "breast-cancer-logistic", "--steps", 1, "--batch-size", 64)
    assert (code, out) == (1, "")
    assert "--microbatch" in err.splitlines()[-1]
