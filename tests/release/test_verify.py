"""`hush verify` names every file that differs from what was released; copied files contain no secret."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hush.checkpointing import SECRETS, read_secrets
from hush.cli import main
from hush.errors import FormatError, HushError, InvalidInputError
from hush.release.folder import UNSIGNED, digest_files
from hush.release.load import load
from hush.release.predict import predict_file
from hush.release.verify import verify as verify_release

FEW = ("--batch-size", "20", "--steps", "3", "--noise-multiplier", "2")
FILES = ("PRIVACY.md", "model.json", "model.safetensors", "privacy.html", "privacy.json", "schema.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    lines = ["age,town,sick", *(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(80))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    data = ("--data", str(folder / "rows.csv"), "--target", "sick", "--public", "classes")
    assert main(["train", *data, *FEW, "--out", str(folder / "run"), "--keep-secret"]) == 0
    return folder / "run"


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return Path(shutil.copytree(run / "release", tmp_path / "copy"))


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_release_is_verified_by_either_folder(run, capsys) -> None:
    for folder in (run, run / "release"):
        code, out, _ = call(capsys, "verify", folder, "--json")
        found = json.loads(out)
        assert (code, found["verified"], found["problems"], found["unchecked"]) == (0, True, [], [])
        assert found["files"] == dict.fromkeys(FILES, "whole")
        assert found["epsilon_recomputed"] == pytest.approx(found["epsilon"], rel=1e-9)
    code, out, _ = call(capsys, "verify", run)
    assert code == 0
    assert "is as it was released" in out
    assert len(out.strip().splitlines()) == 1


@pytest.mark.parametrize("name", FILES)
def test_one_byte_changed_anywhere_is_named(name, copy, capsys) -> None:
    """At the first, the last and seventeen places between, by one bit and by another."""
    whole = (copy / name).read_bytes()
    places = sorted({len(whole) * part // 18 for part in range(18)} | {len(whole) - 1})
    for place in places:
        for bit in (1, 32):
            changed = bytearray(whole)
            changed[place] ^= bit
            (copy / name).write_bytes(changed)
            found = verify_release(copy)
            assert found.problems == (f"{name} was changed",)
    code, out, _ = call(capsys, "verify", copy)
    assert code == 1
    assert f"{name} was changed" in out


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(name, copy) -> None:
    (copy / name).unlink()
    assert verify_release(copy).problems == (f"{name} is missing",)


def test_a_file_too_many_is_named(copy) -> None:
    (copy / "notes.txt").write_text("x")
    assert verify_release(copy).problems == ("notes.txt is no part of the release",)


@pytest.mark.parametrize("left", [FILES, ("model.json",), ("PRIVACY.md",)], ids=["all", "description", "page"])
def test_a_release_inside_a_release_is_not_verified_in_its_place(left, run, tmp_path) -> None:
    outer = Path(shutil.copytree(run / "release", tmp_path / "out" / "release"))
    shutil.copytree(run / "release", outer / "release")
    (outer / "model.json").write_text("{}")
    for name in set(FILES) - set(left):
        (outer / name).unlink()
    found = verify_release(outer)
    assert found.folder == outer
    assert not found.verified
    with pytest.raises(InvalidInputError):
        load(outer)
    assert main(["predict", str(outer), "rows.csv", "--out", str(tmp_path / "p.csv")]) == 2


def rewrite(copy: Path, change) -> None:
    """Change the card, and its digests so that they fit."""
    import hashlib

    from hush.release.folder import UNSIGNED

    card = json.loads((copy / "privacy.json").read_text())
    change(card)
    others = {p.name: p.read_bytes() for p in copy.iterdir() if p.name != "privacy.json"}
    card |= {"digests": digest_files(others), "own_digest": UNSIGNED}
    blank = json.dumps(card).encode()
    signed = blank.replace(UNSIGNED.encode(), hashlib.sha256(blank).hexdigest().encode())
    (copy / "privacy.json").write_bytes(signed)


def boast(card: dict) -> None:
    for claim in (card["guarantee"], card["claims"][0]):
        claim["sentence"] = "(ε = 0.01, δ = 1e-5)-differentially private per example, proven."


def understate(card: dict) -> None:
    for claim in (card["guarantee"], card["claims"][0]):
        claim |= {"epsilon": 0.5, "sentence": "(ε = 0.5, δ = 1e-5)-differentially private per example, proven."}


def halve(card: dict) -> None:
    for claim in (card["guarantee"], card["claims"][0]):
        claim["epsilon"] /= 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda card: None, None),
        (halve, "states another ε than its guarantee"),
        (understate, "the card states ε = 0.5 and its event costs"),
        (boast, "states another ε than its guarantee"),
        (lambda card: card["guarantee"].update(epsilon=0.1), "differ in the first claim"),
        (lambda card: card.update(noise_multiplier=9.0), "differ in the noise multiplier"),
        (lambda card: card.update(steps_taken=99), "more steps taken"),
        (lambda card: card["accounting"]["event"]["events"][0].update(count=1), "the card's event differs"),
        (lambda card: card["accounting"].update(delta=0.5), "the card states ε ="),
        (lambda card: card["accounting"].update(event={"kind": "system"}), "ε cannot be computed from the card"),
        (lambda card: card.pop("plan"), "lacks a required entry"),
    ],
)
def test_a_card_that_contradicts_itself_is_named(change, sentence, copy) -> None:
    rewrite(copy, change)
    found = verify_release(copy)
    assert found.verified == (sentence is None)
    assert sentence is None or any(sentence in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *((entry, value) for entry in ("status", "epsilon", "adjacency") for value in ("certain", [], {})),
        ("status", None),
        ("delta", "1e-5"),
        ("epsilon", -1),
    ],
)
def test_a_guarantee_that_no_card_has_is_named(entry, value, copy) -> None:
    rewrite(copy, lambda card: [claim.update({entry: value}) for claim in (card["guarantee"], card["claims"][0])])
    assert any("guarantee cannot be read" in problem for problem in verify_release(copy).problems)


@pytest.mark.parametrize("given", ["proven", None, [], {}])
def test_a_card_whose_guarantee_is_something_else_is_named(given, copy) -> None:
    rewrite(copy, lambda card: card.update(guarantee=given, claims=[given]))
    assert not verify_release(copy).verified


@pytest.mark.parametrize("name", ["../outside.txt", "a" * 5000, "notes.txt"])
def test_no_file_is_read_by_a_name_that_no_release_has(name, copy) -> None:
    """A card with a digest that fits does not make a file outside of the folder a part of the release."""
    import hashlib

    from hush.release.folder import UNSIGNED

    (copy.parent / "outside.txt").write_text("theirs")
    card = json.loads((copy / "privacy.json").read_text())
    card["digests"][name] = hashlib.sha256(b"theirs").hexdigest()
    blank = json.dumps({**card, "own_digest": UNSIGNED}).encode()
    signed = blank.replace(UNSIGNED.encode(), hashlib.sha256(blank).hexdigest().encode())
    (copy / "privacy.json").write_bytes(signed)
    assert any(f"'{name}'" in problem for problem in verify_release(copy).problems)


def test_weights_of_another_network_are_named(copy) -> None:
    told = json.loads((copy / "model.json").read_text())
    told["architecture"]["arguments"]["features"] += 7
    (copy / "model.json").write_text(json.dumps(told))
    rewrite(copy, lambda card: None)
    assert any("do not belong together" in problem for problem in verify_release(copy).problems)


def test_a_release_of_a_hush_without_digests_is_refused(copy) -> None:
    card = json.loads((copy / "privacy.json").read_text())
    for entry in ("digests", "own_digest"):
        del card[entry]
    (copy / "privacy.json").write_text(json.dumps(card))
    with pytest.raises(InvalidInputError, match="digests"):
        verify_release(copy)


def test_no_secret_is_in_what_may_be_copied(run) -> None:
    """Neither its bytes nor its digits, in any file of the release."""
    (secret,) = read_secrets(run / "private" / SECRETS)
    for path in (run / "release").iterdir():
        content = path.read_bytes()
        assert secret.key not in content
        assert secret.key.hex().encode() not in content.lower()


def test_the_secret_of_a_finished_run_is_deleted(run, tmp_path, capsys) -> None:
    kept = max((run / "private").glob("checkpoint-*"))
    train = (
        "train",
        "--problem",
        "breast-cancer-logistic",
        "--batch-size",
        64,
        "--steps",
        2,
        "--out",
        tmp_path / "run",
    )
    assert kept.exists()
    first = call(capsys, *train, "--json")
    assert first[0] == 0, first[2]
    assert not list((tmp_path / "run" / "private").glob("checkpoint-*"))
    assert not (tmp_path / "run" / "private" / SECRETS).exists()
    again = call(capsys, "train", "--out", tmp_path / "run", "--resume", "--json")
    assert again[0] == 0, again[2]
    assert json.loads(again[1]) == {**json.loads(first[1]), "resumed_from": 2}
    code, out, err = call(capsys, "train", "--out", tmp_path / "run", "--resume", "--steps", 9)
    assert (code, out) == (2, "")
    assert "is finished and its secret was deleted" in err
    shutil.rmtree(tmp_path / "run" / "release")
    code, _, err = call(capsys, "train", "--out", tmp_path / "run", "--resume")
    assert code == 0
    assert "its release is missing" in err


@pytest.mark.parametrize("name", ["thesis.tex", "privacy.json/thesis.tex"])
def test_what_hush_did_not_write_is_never_replaced(name, tmp_path, capsys) -> None:
    theirs = tmp_path / "run" / "release" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    for more in ((), ("--overwrite",)):
        code, out, err = call(capsys, "train", "--steps", 1, "--out", tmp_path / "run", *more)
        assert (code, out) == (2, "")
        assert f"holds '{name.split('/')[0]}'" in err
        assert len(err.strip().splitlines()) == 1
    assert theirs.read_text() == "years of work"


# Crafted and damaged releases: a verdict or an error type of hush, no other exception, no long wait. The damage comes
# from a fixed seed; HUSH_FUZZ=5000 makes more of it. A failing case is printed with its number, and
# HUSH_FUZZ_ONLY=number repeats it alone.


CASES = int(os.environ.get("HUSH_FUZZ", "150"))
ONLY = os.environ.get("HUSH_FUZZ_ONLY")
WEIGHTS = "model.safetensors"
DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    5,
    10**30,
    10**400,
    1e308,
    -1e-320,
    "",
    "x",
    "\x1b[31m",
    "os:system",
    "../../x",
    [],
    [0],
    [[]],
    ["x", 1, None],
    [64] * 100_000,
    {},
    {"x": 1},
    DEEP,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A release of a table, one of images, one of a regression and one with a sanitisation layer; rows for each."""
    root = tmp_path_factory.mktemp("crafted")
    lines = ["age,town,sick", *(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(80))]
    (root / "rows.csv").write_text("\n".join(lines) + "\n")
    few = ("--batch-size", "20", "--steps", "2", "--noise-multiplier", "2")
    data = ("--data", str(root / "rows.csv"))
    calls = {
        "table": (*data, "--target", "sick", "--model", "mlp", "--public", "classes"),
        "number": (*data, "--target", "age", "--task", "regression", "--target-range", "0", "100"),
        "images": ("--problem", "digits-mlp"),
        "sanitized": ("--problem", "digits-sanitized", "--method", "sanitize", "--accept-claimed"),
    }
    for name, call in calls.items():
        assert main(["train", *call, *few, "--out", str(root / "runs" / name)]) == 0
        shutil.copytree(root / "runs" / name / "release", root / name)
    return root


def seal(folder: Path) -> None:
    """Make the digests on the card fit the files, as somebody would who rewrites all of them."""
    try:
        card = json.loads((folder / "privacy.json").read_bytes())
        others = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "privacy.json" and p.is_file()}
        blank = json.dumps(card | {"digests": digest_files(others), "own_digest": UNSIGNED}).encode()
    except (ValueError, TypeError, RecursionError):
        return
    (folder / "privacy.json").write_bytes(blank.replace(UNSIGNED.encode(), hashlib.sha256(blank).hexdigest().encode()))


def change(folder: Path, name: str, change: Any) -> None:
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    seal(folder)


def save(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def copy_crafted(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "table", tmp_path / "copy"))


def refuse(folder: Path) -> InvalidInputError:
    """The error of loading a release that does not verify either; no large network is built to find that out."""
    with counting_parameters() as built:
        assert not verify_release(folder).verified
        with pytest.raises(InvalidInputError) as caught:
            load(folder)
    assert sum(built) < 10**6
    return caught.value


@contextmanager
def counting_parameters() -> Iterator[list[int]]:
    """The parameters of every linear layer that is built within it."""
    real, built = nn.Linear.__init__, list[int]()

    def note(self: nn.Linear, inputs: int, outputs: int, *given: Any, **more: Any) -> None:
        built.append(inputs * outputs)
        real(self, inputs, outputs, *given, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Linear, "__init__", note)
        yield built


@pytest.mark.parametrize(("kind", "size"), [("F4", 1), ("F8_E8M0", 2), ("F8_E4M3", 2), ("U16", 4), ("X", 2), (5, 2)])
def test_weights_of_another_type(kind, size, copy_crafted) -> None:
    save(copy_crafted / WEIGHTS, {"w": {"dtype": kind, "shape": [2], "data_offsets": [0, size]}}, b"\0" * size)
    seal(copy_crafted)
    refuse(copy_crafted)


@pytest.mark.parametrize("shape", [[0], [5, 0, 2], [0, 2**63]])
def test_weights_without_numbers(shape, copy_crafted) -> None:
    save(copy_crafted / WEIGHTS, {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}, b"")
    seal(copy_crafted)
    refuse(copy_crafted)


@pytest.mark.parametrize("at", [5, [], {}, None, "no such layer", "\x1b"])
def test_a_sanitisation_layer_at_no_module(at, copy_crafted) -> None:
    inner = {"inner": "mlp", "arguments": {"widths": [4, 3, 2]}, "at": at, "clip": 1.0}
    change(copy_crafted, "model.json", lambda m: m["architecture"].update(name="sanitized", arguments=inner))
    refuse(copy_crafted)


@pytest.mark.parametrize("sizes", [[64] * 100_000, [[64] * 50_000] * 2])
def test_a_network_of_very_many_layers_is_refused_before_it_is_built(sizes, copy_crafted) -> None:
    change(copy_crafted, "model.json", lambda m: m["architecture"]["arguments"].update(widths=sizes))
    refuse(copy_crafted)


def test_a_schema_with_very_many_inputs_is_refused_before_it_is_built(copy_crafted) -> None:
    columns = {f"c{i}": {"kind": "category", "buckets": 100_000} for i in range(2000)}
    change(copy_crafted, "schema.json", lambda s: s.update(columns=columns))
    change(copy_crafted, "model.json", lambda m: m["inputs"].update(shape=[2000]))
    refuse(copy_crafted)


def test_a_schema_that_does_not_fit_the_network_is_no_release(copy_crafted) -> None:
    """The weights are those of the network, and the network does not take what the schema gives."""
    change(copy_crafted, "schema.json", lambda s: s["columns"]["age"].update(low=0, high=100, waves=False))
    assert isinstance(refuse(copy_crafted), FormatError)


def test_classes_that_do_not_fit_the_network_are_no_release(copy_crafted) -> None:
    for name in ("schema.json", "model.json"):
        change(copy_crafted, name, lambda s: s.update(classes=["a", "b", "c"]))
    assert isinstance(refuse(copy_crafted), FormatError)


def damage(chance: random.Random, folder: Path) -> None:
    """Some bytes of a file, or some entry of it at any depth with digests that fit."""
    path = chance.choice(sorted(folder.iterdir()))
    if path.suffix == ".json" and chance.random() < 0.75:
        value = json.loads(path.read_text())
        _replace(chance, value)
        path.write_text(json.dumps(value))
    elif path.name == WEIGHTS and chance.random() < 0.6:
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        _replace(chance, header)
        save(path, header, content[8 + size :])
    else:
        out = bytearray(path.read_bytes())
        place = chance.randrange(len(out))
        if chance.random() < 0.4:
            del out[place:]
        else:
            out[place : place + chance.choice((0, 1, 9))] = bytes(chance.randrange(256) for _ in range(4))
        path.write_bytes(out)
    if chance.random() < 0.9:
        seal(folder)


def _replace(chance: random.Random, value: Any) -> None:
    """Replace, remove or add one entry, at any depth."""
    while True:
        keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inside = value[key]
        if isinstance(inside, (dict, list)) and inside and chance.random() < 0.75:
            value = inside
            continue
        if chance.random() < 0.2:
            del value[key]
        elif isinstance(value, dict) and chance.random() < 0.1:
            value[chance.choice(("x", "", "\x1b", "__class__"))] = chance.choice(ODD)
        else:
            value[key] = chance.choice(ODD)
        return


def attack(number: int, made: Path, folder: Path) -> None:
    chance = random.Random(f"release {number}")
    name = chance.choice(("table", "number", "images", "sanitized"))
    shutil.copytree(made / name, folder)
    for _ in range(chance.choice((1, 1, 2, 4))):
        with suppress(ValueError, struct.error):  # what is damaged already cannot be crafted
            damage(chance, folder)
    for use in (verify_release, lambda place: _predict(place, made)):
        with suppress(HushError):
            found = use(folder)
            json.dumps(found.to_json() if found is not None else {})


def _predict(folder: Path, made: Path) -> None:
    model = load(folder)
    inputs = model.description.inputs
    if inputs is not None and inputs.kind != "table":
        model.predict(torch.zeros(2, *inputs.shape))
    out = folder.parent / f"{folder.name}.csv"
    predict_file(model, made / "rows.csv", out, overwrite=True)


@pytest.mark.parametrize("part", range(3))
def test_any_damage_ends_with_a_verdict_or_an_error_of_hush(part, made, tmp_path) -> None:
    numbers = range(part, CASES, 3) if ONLY is None else [int(ONLY)] if part == 0 else []
    wrong = []
    for number in numbers:
        try:
            attack(number, made, tmp_path / str(number))
        except Exception as error:
            if ONLY is not None:
                raise
            wrong.append(f"{number}: {type(error).__name__} {str(error)[:200]}")
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    assert not wrong, "\n".join(wrong)
