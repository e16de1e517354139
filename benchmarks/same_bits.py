"""Train a few steps of every method from fixed secrets, and say whether two trees of hush give the same bits.

    PYTHONPATH=BEFORE/src python benchmarks/same_bits.py --out before.json
    PYTHONPATH=AFTER/src python benchmarks/same_bits.py --out after.json --compare before.json

Every case is trained twice from the same start: from a secret of 32 given bytes, and from a seed, which binds the
plan's fingerprint; both are stopped half way and go on from a checkpoint in another model. What is kept of a case is
the SHA-256 of its final weights, σ, every claim and the fingerprint; floats are written in hexadecimal. To these come
what `hush train` releases, what `hush account --json` says about every method, and the keys of the runs of every spec
in ``specs/``.

Bits depend on the processor and on the versions of others' packages: compare two trees on one machine, never a stored
file. Call this file itself both times, for it reads the specs that lie beside it. Ends with 1 where something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hush

# Names inside hush, which may move; everything else here is exported by `hush` itself.
from hush.bench.spec import read_spec
from hush.checkpointing import Checkpoints
from hush.cli import main as command_line
from hush.methods import catalogue
from hush.training import take_steps

SPECS = Path(__file__).resolve().parents[1] / "specs"
ROWS, BATCH, EPOCH = 400, 64, 7  # ⌈400/64⌉ steps an epoch
STEPS, STOP = 2 * EPOCH, 5
SEED = 7
COMMON = {"examples": ROWS, "batch_size": BATCH, "steps": STEPS}

Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {
    "sgd": ("sgd", {}),
    "dp-sgd": ("dp-sgd", {}),
    "dp-sgd momentum": ("dp-sgd", {"momentum": 0.9, "weight_decay": 1e-3, "clip_mode": "normalised"}),
    "dp-sgd per layer": ("dp-sgd", {"per_layer": True, "average": "tail:0.5"}),
    "dp-sgd adaptive clip": ("dp-sgd", {"clip_quantile": 0.5}),
    "dp-sgd schedule": ("dp-sgd", {"noise_end": 0.5, "average": "ema:0.9"}),
    "dp-sgd fast": ("dp-sgd", {"arithmetic": "fast"}),
    "dp-sgd counted": ("dp-sgd", {"counted": True, "accountant": "rdp"}),
    "dp-sgd fixed size": ("dp-sgd", {"sampling": "fixed-size"}),
    "dp-sgd shuffled": ("dp-sgd", {"sampling": "shuffled"}),
    "dp-sgd same order": ("dp-sgd", {"sampling": "same-order"}),
    "dp-adam": ("dp-adam", {}),
    "dp-adam fast": ("dp-adam", {"arithmetic": "fast", "clip_mode": "automatic"}),
    "dp-adam-bc": ("dp-adam-bc", {"lr": 1e-2}),
    "dp-disk": ("dp-disk", {}),
    "dp-dice": ("dp-dice", {}),
    "dp-ftrl": ("dp-ftrl", {}),
    "dp-ftrl restart": ("dp-ftrl", {"restart": True, "honaker": True, "momentum": 0.9}),
    "dp-matrix-se": ("dp-matrix-se", {"steps": EPOCH}),
    "dp-matrix-se-lambda": ("dp-matrix-se-lambda", {"steps": EPOCH}),
    "dp-matrix-me": ("dp-matrix-me", {"momentum": 0.9}),
    "dp-matrix-me-lambda": ("dp-matrix-me-lambda", {}),
    "dp-bandmf": ("dp-bandmf", {"bands": 3}),
    "dp-bisr": ("dp-bisr", {"bands": 4}),
    "dp-blt": ("dp-blt", {}),
}


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))


def dropout() -> nn.Module:
    """Two layers with a draw between them."""
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 10))


def cnn() -> nn.Module:
    """A convolution, a normalisation within each example, a fully connected layer."""
    image = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*image, nn.Flatten(), nn.Linear(54, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "dropout": dropout, "cnn": cnn}


def losses(model: nn.Module, content: Any) -> Tensor:
    """One loss an example."""
    return cross_entropy(model(content[0]), content[1], reduction="none")


def rows() -> tuple[Tensor, Tensor]:
    """The first of the embedded digits."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[:ROWS], dtype=torch.float32) / 16, torch.tensor(labels[:ROWS])


def plan_of(case: str) -> hush.Plan:
    """A case's plan, calibrated to ε = 3 where it is private."""
    method, options = CASES[case]
    private = {} if method == "sgd" else {"epsilon": 3.0}
    return hush.make_plan(method, **{**COMMON, **private, **options})


def built(model: str, seed: int) -> nn.Module:
    """The model with the weights of a public seed."""
    torch.manual_seed(seed)
    return MODELS[model]()


def given_secret(case: str, model: str) -> hush.Secret:
    """Thirty-two bytes, the same in every tree."""
    return hush.Secret(hashlib.sha256(f"same bits\0{case}\0{model}".encode()).digest())


def trained(plan: hush.Plan, model: str, secret: hush.Secret | int) -> hush.Run:
    """The run at its end, resumed once from a checkpoint, with other weights and a secret of its own to be replaced."""
    with tempfile.TemporaryDirectory() as directory:
        first, kept = plan.start(built(model, 0), losses, rows(), secret=secret), Checkpoints(directory)
        kept.begin(first)
        steps = take_steps(first, checkpoints=kept, every=1)
        for _ in range(STOP):
            next(steps)
        steps.close()
        kept.close()
        run, kept = plan.start(built(model, 99), losses, rows()), Checkpoints(directory)
        saved = kept.newest().saved
        assert saved is not None
        assert saved.step == STOP
        kept.restore(run, saved)
        for _ in take_steps(run, checkpoints=kept, every=3):
            pass
        kept.close()
    assert run.next == plan.steps
    return run


def weights_of(model: nn.Module) -> str:
    """The SHA-256 of names, types, shapes and bytes of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def outcome(run: hush.Run) -> dict[str, Any]:
    """What must be the same: the weights and everything said about them."""
    claims = [claim.to_json() for claim in run.claims()]
    return {"weights": weights_of(run.model), "steps": run.next, "claims": claims}


def case_of(case: str, model: str) -> dict[str, Any]:
    """One case on one model, from given bytes and from a seed."""
    plan, params = plan_of(case), dict(built(model, 0).named_parameters())
    facts = {"sigma": plan.sigma, "noise_std": plan.noise_std, "fingerprint": plan.fingerprint(params)}
    secret = trained(plan, model, given_secret(case, model))
    return {**facts, "from 32 bytes": outcome(secret), "from a seed": outcome(trained(plan, model, SEED))}


def said(*arguments: str) -> Any:
    """What a command prints as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = command_line(list(arguments))
    if code != 0:
        raise SystemExit(f"hush {' '.join(arguments)} ended with {code}")
    return json.loads(out.getvalue())


def accounts() -> dict[str, Any]:
    """What `hush account --json` says about every method."""
    found = {}
    for method in catalogue():
        if method != "sgd":
            steps = EPOCH if method.startswith("dp-matrix-se") else STEPS
            numbers = ("--examples", str(ROWS), "--batch-size", str(BATCH), "--steps", str(steps), "--epsilon", "3")
            found[method] = said("account", "--method", method, *numbers, "--accept-claimed", "--json")
    return found


def shell() -> dict[str, Any]:
    """The bytes of what `hush train` releases from a secret seed, for embedded data and for a table."""
    found: dict[str, Any] = {"table": table()}
    for method in ("dp-sgd", "dp-adam-bc", "dp-ftrl", "dp-bandmf"):
        with tempfile.TemporaryDirectory() as directory:
            numbers = ("--epochs", "1", "--epsilon", "3", "--seed", "0", "--secret-seed", str(SEED))
            said(
                "train", "--problem", "digits-mlp", "--method", method, *numbers, "--out", f"{directory}/run", "--json"
            )
            release = Path(directory, "run", "release")
            found[method] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release.iterdir()}
            assert "model.safetensors" in found[method], f"{release} holds no weights"
    return found


def table() -> dict[str, str]:
    """The bytes of a release trained on a small CSV file with numbers, a category, a flag and missing cells."""
    with tempfile.TemporaryDirectory() as directory:
        lines = ["age,city,member,income,label"]
        for row in range(300):
            city = ("Oslo", "Lima", "Accra", "")[row % 4]
            lines.append(f"{20 + row % 50},{city},{'yes' if row % 3 else 'no'},{row * 13.5},{'ab'[row * row % 7 % 2]}")
        path = Path(directory, "table.csv")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        numbers = ("--epochs", "1", "--epsilon", "3", "--seed", "0", "--secret-seed", str(SEED))
        said(
            "train", "--data", str(path), "--target", "label", "--public", "classes", *numbers,
            "--out", f"{directory}/run", "--json"
        )  # fmt: skip
        release = Path(directory, "run", "release")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release.iterdir()}


def keys() -> dict[str, Any]:
    """Every spec's runs: their number, a digest of all keys in their order, and the first keys."""
    found = {}
    for path in sorted(SPECS.glob("*.toml")):
        spec = read_spec(path)
        every = [trial.key for trial in spec.trials]
        found[path.name] = {
            "text": hashlib.sha256(path.read_bytes()).hexdigest(),
            "runs": len(every),
            "keys": hashlib.sha256("\n".join(every).encode()).hexdigest(),
            "first": every[:50],
        }
    return found


def exact(value: Any) -> Any:
    """The same data with floats in hexadecimal."""
    if isinstance(value, dict):
        return {str(key): exact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def measure(only: str) -> dict[str, Any]:
    """Everything, or the cases with ``only`` in their name."""
    cases = {}
    for case in CASES:
        if only in case:
            for model in MODELS:
                cases[f"{case}, {model}"] = case_of(case, model)
            print(case, file=sys.stderr)
    whole = {} if only else {"account": accounts(), "train": shell(), "keys": keys()}
    return exact({"cases": cases, **whole})


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Every place where two of these differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            place = f"{path} / {key}" if path else key
            if key not in before or key not in after:
                yield f"{place}: only {'before' if key in before else 'after'}"
            else:
                yield from differences(before[key], after[key], place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (first, second) in enumerate(zip(before, after, strict=True)):
            yield from differences(first, second, f"{path} / {number}")
    elif before != after:
        yield f"{path}: {before} before, {after} after"


def main() -> int:
    """Measure, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result goes (standard output by default)")
    parser.add_argument("--compare", type=Path, help="the result of another tree")
    parser.add_argument("--only", default="", help="the cases with this in their name, and no commands")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HUSH_CACHE"] = cache  # a factorisation that the other tree has kept would hide this tree's own
        found = measure(given.only)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    elif given.compare is None:
        print(text)
    print(f"hush is {Path(hush.__file__).parent}, {len(found['cases'])} cases", file=sys.stderr)
    if given.compare is None:
        return 0
    before = json.loads(given.compare.read_text(encoding="utf-8"))
    if given.only:
        before = {"cases": {name: case for name, case in before["cases"].items() if given.only in name.split(",")[0]}}
    apart = list(differences(before, found))
    print("\n".join(apart) if apart else "the same bits")
    return 1 if apart else 0


if __name__ == "__main__":
    raise SystemExit(main())
