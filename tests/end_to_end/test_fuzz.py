"""Random calls with extreme options and damaged files: an exit code, one sentence, never a traceback.

The calls come from a fixed seed. For more of them: ``HUSH_FUZZ=5000 pytest tests/end_to_end/test_fuzz.py``; a failing
call is printed with its number, and ``HUSH_FUZZ_ONLY=number`` repeats it alone.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from hush.checkpointing.checkpoint import digest_content
from hush.cli import main
from train_arguments import keep

CALLS = int(os.environ.get("HUSH_FUZZ", "320"))
ONLY = os.environ.get("HUSH_FUZZ_ONLY")
NUMBERS = ("0", "-1", "1", "2", "0.5", "nan", "inf", "-inf", "1e-200", "1e-320", "5e-324", "1e200", "1e308", "1e400")
WHOLE = ("0", "-1", "1", "2", "9223372036854775808", "1" + "0" * 30, "1.5", "x", "", "1e3", "٣")
WORDS = (
    "",
    "x",
    "none",
    "poisson",
    "fixed-size",
    "same-order",
    "\x1b[31m",
    "a:b",
    "os:getcwd",
    "🙂",
    "[/b]",
    "%s",
    "{}",
)
METHODS = ("dp-sgd", "dp-adam", "dp-ftrl", "dp-blt", "dp-bisr", "dp-matrix-me", "dp-disk", "dp-dice", "sgd", "auto")
FLAGS: dict[str, tuple[str, ...]] = {
    "--epsilon": (*NUMBERS, "3", "1e-9", "1e6"),
    "--delta": (*NUMBERS, "1e-5"),
    "--noise-multiplier": (*NUMBERS, "1e-9", "1e9"),
    "--node-noise": NUMBERS,
    "--epochs": ("0", "-1", "nan", "inf", "1e18", "1e308", "1e-9", "0.1", "x"),
    "--steps": WHOLE,
    "--batch-size": (*WHOLE, "64", "400"),
    "--sample-rate": NUMBERS,
    "--sampling": WORDS,
    "--adjacency": (*WORDS, "add-remove", "replace", "zero-out"),
    "--accountant": (*WORDS, "pld", "rdp", "gdp"),
    "--method": (*METHODS, *WORDS),
    "--set": (
        "lr=1e308",
        "clip=0",
        "clip=nan",
        "lr",
        "=",
        "momentum=-1",
        "lr=true",
        "x=1",
        "bands=0",
        "lr=[1]",
        "lr={}",
    ),
}
TRAINING = {
    "--lr": NUMBERS,
    "--clip": NUMBERS,
    "--clip-mode": (*WORDS, "plain", "automatic", "normalised"),
    "--microbatch": (*WHOLE, "64"),
    "--validation": NUMBERS,
    "--average": (*WORDS, "ema:0.9", "ema:2", "tail:0", "tail:x", "ema:nan", "tail:1e400"),
    "--seed": WHOLE,
    "--secret-seed": WHOLE,
    "--checkpoint-every": WHOLE,
    "--augment": (*WORDS, "shift", "shift+mirror"),
    "--views": WHOLE,
    "--recipe": WORDS,
    "--problem": (*WORDS, "digits-mlp", "breast-cancer-mlp"),
}
SCHEMAS: tuple[Any, ...] = (
    {"range": 5},
    {"range": [0, "x"]},
    {"range": [1, 0]},
    {"range": {"low": 0}},
    {"range": [0, 10**400]},
    {"classes": 5},
    {"classes": ["a"]},
    {"classes": [["a"], "b"]},
    {"classes": ["a", "a"]},
    {"classes": []},
    {"columns": 5},
    {"columns": {"a": 5}},
    {"columns": {"a": {"low": "x", "high": 2}}},
    {"columns": {"a": {"low": 0, "high": 1e308}}},
    {"columns": {"a": {"low": 1.0, "high": 1.0000000001}}},
    {"columns": {"a": {"buckets": 10**12}}},
    {"columns": {"a": {"buckets": "x"}}},
    {"columns": {"a": {"values": 5}}},
    {"columns": {"a": {"values": [{}]}}},
    {"columns": {"a": {"kind": 5}}},
    {"columns": {"a": {"kind": []}}},
    {"columns": {"a": {"fill": "x"}}},
    {"columns": {"b": {"kind": "ignore"}, "a": {"kind": "ignore"}}},
    {"target": 5},
    {"target": ["y"]},
    {"x": 1},
    [],
    5,
    None,
)
SPEC = """[[grid]]
problem = "breast-cancer-logistic"
method = "dp-sgd"
batch_size = 64
steps = 1
noise_multiplier = 1.0
"""


def flags(chance: random.Random, known: dict[str, tuple[str, ...]], most: int = 3) -> list[str]:
    chosen = chance.sample(sorted(known), chance.randint(0, most))
    return [part for flag in chosen for part in (flag, chance.choice(known[flag]))]


def damaged(chance: random.Random, content: bytes) -> bytes:
    """The bytes with some changed, cut off, or put in."""
    out = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(out) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(out):
            out[place] = chance.randrange(256)
        elif kind == 1:
            del out[place:]
        elif kind == 2:
            out[place:place] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 400))))
        else:
            del out[place : place + chance.randrange(20)]
    return bytes(out)


def table(chance: random.Random, folder: Path) -> Path:
    rows = [f"{i % 5},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(40)]
    path = folder / "rows.csv"
    odd = ("", "nan", "1e400", "1e39", "x" * 200_000, '"', "\x00", "٣", "1_0", "-0", "\u2028", "=1+1", "🙂")
    rows[chance.randrange(40)] = ",".join(chance.choice((*odd, "1")) for _ in range(chance.choice((3, 3, 3, 2, 4))))
    text = "\n".join([chance.choice(("a,b,y", "a,b,y", "a,a,y", "a,,y", "a;b;y", "y", "")), *rows])
    content = text.encode()
    path.write_bytes(damaged(chance, content) if chance.random() < 0.3 else content)
    return path


def arrays(chance: random.Random, folder: Path) -> Path:
    path = folder / "rows.npz"
    x: Any = chance.choice(
        (
            np.zeros((20, 3)),
            np.zeros((20, 1, 9, 9), np.uint8),
            np.full((20, 2), 1e300),
            np.zeros((20, 0)),
            np.zeros((0, 3)),
            np.zeros(20),
            np.zeros((20, 2), complex),
            np.array([["a", "b"]] * 20),
            np.zeros((20, 2), "datetime64[s]"),
            np.zeros((20, 2), [("a", "f4")]),
            np.full((20, 2), np.nan),
            np.zeros((20, 2, 2, 2, 2)),
            np.float16(np.ones((20, 2))),
            np.ones((20, 4), bool),
        )
    )
    y: Any = chance.choice(
        (
            np.arange(20) % 2,
            np.full(20, 2_000_000_000),
            np.arange(20, dtype=np.uint64) + 2**63,
            np.arange(20) - 10,
            np.arange(20) % 2 == 0,
            np.zeros(20),
            np.array(3),
            np.zeros((20, 1), int),
        )
    )
    np.savez(path, x=x, **{chance.choice(("y", "y", "labels", "z")): y})
    if chance.random() < 0.4:
        path.write_bytes(damaged(chance, path.read_bytes()))
    elif chance.random() < 0.3:
        header = (
            f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({chance.choice((2 * 10**12, 10**30, -1))}, 1), }}"
        )
        text = header.ljust(117) + "\n"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
            file.writestr("y.npy", b"")
    return path


def own_data(chance: random.Random, folder: Path) -> list[str]:
    path = (table if chance.random() < 0.5 else arrays)(chance, folder)
    said = ["train", "--data", str(path), "--steps", "1", "--batch-size", "8", "--epsilon", "3"]
    said += ["--target", chance.choice(("y", "y", "y", "z", "\x1b"))] if chance.random() < 0.8 else []
    said += ["--model", chance.choice(("mlp", "cnn", "lenet", "x", "os:getcwd", "torch.nn:Identity", "a.b:c"))] * (
        chance.random() < 0.3
    )
    if chance.random() < 0.5:
        schema = folder / chance.choice(("s.json", "s.toml"))
        content = json.dumps(chance.choice(SCHEMAS)).encode()
        schema.write_bytes(chance.choice((content, content, content, damaged(chance, content), b"[" * 5000)))
        said += ["--schema", str(schema)]
    said += ["--public", chance.choice(("ranges", "categories", "ranges+categories", "x", ""))] * (
        chance.random() < 0.2
    )
    return said


def resumed(chance: random.Random, folder: Path, run: Path) -> list[str]:
    """A run whose private part was damaged, cleverly or not."""
    out = folder / "run"
    shutil.copytree(run, out)
    options, newest = out / "private" / "options.json", sorted((out / "private").glob("checkpoint-*"))[-1]
    kind = chance.randrange(4)
    if kind == 0:
        options.write_bytes(damaged(chance, options.read_bytes()))
    elif kind == 1:
        values = json.loads(options.read_text())
        values[chance.choice(sorted(values))] = chance.choice((None, [], {}, "x", -1, 1e308, True, [1], {"path": "x"}))
        options.write_text(json.dumps(values))
    elif kind == 2:
        newest.write_bytes(damaged(chance, newest.read_bytes()))
    else:
        _crafted(chance, newest)
        for other in (out / "private").glob("checkpoint-*"):
            if other != newest:
                other.unlink()
    return ["train", "--out", str(out), "--resume"]


def _crafted(chance: random.Random, path: Path) -> None:
    """A checkpoint with a digest that fits, and an entry that does not."""
    with safe_open(path, "pt") as file:
        text = file.metadata()["hush"]
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    facts = json.loads(text)
    place = chance.choice((facts, facts["state"]))
    name = chance.choice(sorted(place))
    if chance.random() < 0.3:
        del place[name]
    else:
        place[name] = chance.choice((None, 5, -1, "x", [], {}, 10**30, {"$": "tensor", "name": "no"}, {"$": "new"}))
    if chance.random() < 0.3:
        tensors.pop(chance.choice(sorted(tensors)))
    text = json.dumps(facts)
    save_file(tensors, path, {"hush": text, "digest": digest_content(text, tensors)})


def bench(chance: random.Random, folder: Path) -> list[str]:
    lines = SPEC.splitlines()
    key = chance.choice(
        ("batch_size", "steps", "epochs", "seeds", "lr", "clip", "epsilon", "method", "problem", "delta", "x", "seed")
    )
    odd = ("0", "-1", "inf", "nan", "1e308", "1e-320", "[]", "[1, 'a']", "{}", "'x'", "true", "1979-05-27", "9" * 30)
    value = chance.choice((*odd, "9" * 5000, "[" * 3000, "'\\u0007'", "[[1]]", "1e18", " " * 6000))
    new = f"{key} = {value}"
    if chance.random() < 0.5:
        lines = [line for line in lines if not line.startswith(key)]
    lines.insert(chance.choice((0, len(lines))), new)
    top = ("validation", "evaluate_every", "secret_seed", "seed", "weights", "name")
    if chance.random() < 0.3:
        lines.insert(0, f"{chance.choice(top)} = {chance.choice(odd)}")
    content = "\n".join(lines).encode()
    path = folder / "spec.toml"
    path.write_bytes(damaged(chance, content) if chance.random() < 0.3 else content)
    more = ["--dry-run"] if chance.random() < 0.5 else ["--store", str(folder / "store"), "--executor", "inline"]
    return ["bench", str(path), *more, *(["--workers", chance.choice(WHOLE)] if chance.random() < 0.2 else [])]


def handed_over(chance: random.Random, folder: Path, run: Path) -> list[str]:
    """Commands on a release and commands that write pages, with senseless paths and values."""
    rows = table(chance, folder)
    (folder / "mine.html").write_text("mine")
    place = chance.choice((run, run, run / "release", run / "private", rows, folder, folder / "none"))
    out = chance.choice(
        (".", "/", "", "\x1b.html", "mine.html", "mine.csv", "new.csv", "new.html", "a/b.html", "/dev/null")
    )
    into = ["--out", str(folder / out) if out and out[0] not in "./" else out] if chance.random() < 0.8 else []
    known = {"--parameters": (*WHOLE, "1" + "0" * 400), "--examples": (*WHOLE, "640")}
    known |= {flag: FLAGS[flag] for flag in ("--epsilon", "--delta", "--epochs", "--batch-size", "--method")}
    return chance.choice(
        (
            ["verify", str(place)],
            ["predict", str(place), str(rows), *into],
            ["evaluate", str(place), str(chance.choice((rows, folder, run)))],
            ["export", str(place), "--format", chance.choice(("torch", "x", "")), *into],
            ["report", str(place), "--format", chance.choice(("html", "latex", "markdown", "x")), *into],
            ["plan", "--examples", "640", "--epochs", "1", "--epsilon", "3", *flags(chance, known), *into],
            ["audit", "--method", chance.choice((*WORDS, "sgd")), "--runs", "4", "--page", *(into[1:] or ["x.html"])],
        )
    )


def made(number: int, folder: Path, run: Path) -> list[str]:
    """The call of that number; what it needs is written into the folder."""
    chance = random.Random(f"hush {number}")
    if number % 4 == 3:
        return handed_over(chance, folder, run)
    kind = chance.choice(
        ("train", "train", "data", "data", "data", "resume", "bench", "bench", "noise", "noise", "other")
    )
    if kind == "train":
        base = ["train", "--problem", "breast-cancer-logistic", "--steps", "1", "--batch-size", "64"]
        return [*base, *flags(chance, FLAGS | TRAINING), *(["--json"] if chance.random() < 0.5 else [])]
    if kind == "data":
        return own_data(chance, folder)
    if kind == "resume":
        return resumed(chance, folder, run)
    if kind == "bench":
        return bench(chance, folder)
    if kind == "noise":
        known = {k: v for k, v in FLAGS.items() if k != "--sample-rate"} | {"--examples": (*WHOLE, "640")}
        return ["noise", "show", "--steps", "8", "--out", str(folder / "n.html"), *flags(chance, known), "--json"]
    first = chance.choice((["methods"], ["problems"], ["data", "list"], ["data", "verify"], ["data"], ["noise"], []))
    return [*first, *(chance.choice((*WORDS, "--json", "--help", "-x")) for _ in range(chance.randrange(3)))]


def proven(value: Any) -> list[Any]:
    """Every object in some JSON whose status is "proven"."""
    if isinstance(value, dict):
        return [value] * (value.get("status") == "proven") + [p for item in value.values() for p in proven(item)]
    return [p for item in value for p in proven(item)] if isinstance(value, list) else []


def check(call: list[str], code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    assert "HUSH_TRACEBACK=1" not in err
    assert err.count("error:") == (code == 2 and "error:" in err) or code == 1
    if code == 2 and "bench" not in call:
        assert not err or err.strip().splitlines()[-1].startswith("error: ")
    assert not [c for c in out + err if ord(c) < 32 and c != "\n"]
    if code == 0 and "--json" in call and "--help" not in call:
        for found in proven(json.loads(out)):
            assert found["epsilon"] is not None
            assert math.isfinite(found["epsilon"])
            assert 0 < found.get("delta", 0.5) < 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps, to be damaged."""
    out = tmp_path_factory.mktemp("fuzz") / "run"
    flags = ["--problem", "breast-cancer-logistic", "--steps", "3", "--batch-size", "64", "--noise-multiplier", "1"]
    assert (
        main(["train", *flags, "--method", "dp-adam", "--checkpoint-every", "2", "--keep-secret", "--out", str(out)])
        == 0
    )
    return out


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_any_call_ends_with_a_code_and_a_sentence(part, run, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HUSH_DATA", raising=False)
    monkeypatch.delenv("HUSH_TRACEBACK", raising=False)
    numbers = range(part, CALLS, PARTS) if ONLY is None else [int(ONLY)] if part == 0 else []
    wrong: list[str] = []
    for number in numbers:
        folder = tmp_path / str(number)
        folder.mkdir()
        call = made(number, folder, run)
        capsys.readouterr()
        code = main(keep(call))
        shown = capsys.readouterr()
        try:
            check(call, code, shown.out, shown.err)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{number}: {call} -> {code}\n{shown.err[-300:]}\n{str(error)[:200]}")
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)
