"""Kill `hush train` at random instants, and in the moment of releasing, and see that nothing was lost.

Eight settings take turns. A run is killed (`kill -9`) again and again until it is finished; then its weights, card and
log must be, byte for byte, those of a run that nothing happened to, its ledger must have one entry that never covered
less than was taken, and no step may have been taken again with fresh noise. A kill in the moment of releasing ends the
process right before or after one of the system calls that a release is made of, over the release of an earlier run with
another ε: whatever is found there, weights and card must be of one run.

Every finished run adds a line to DIR/kills.jsonl; called again with the same directory the script goes on with what is
missing. It ends with 1 at the first thing that is not as it should be, and leaves the run's directory for a look.

    python benchmarks/kills.py DIR [--kills 300] [--releasing 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from hush.checkpointing import Checkpoints
from hush.cli import main as hush
from hush.ledger.book import Ledger

STEPS = 240
COMMON = ["train", "--problem", "breast-cancer-mlp", "--noise-multiplier", "3", "--json", "--checkpoint-every", "5"]
SETTINGS: dict[str, list[str]] = {
    "adam": ["--method", "dp-adam", "--batch-size", "32", "--steps", str(STEPS)],
    "schedule": ["--method", "dp-sgd", "--batch-size", "32", "--steps", str(STEPS), "--set", "noise_end=0.5"],
    "same-order": ["--method", "dp-sgd", "--batch-size", "32", "--steps", str(STEPS), "--sampling", "same-order"],
    "adaptive": ["--method", "dp-sgd", "--batch-size", "32", "--steps", str(STEPS), "--set", "clip_quantile=0.5"],
    "tree": ["--method", "dp-ftrl", "--batch-size", "32", "--steps", str(STEPS)],
    "banded": ["--method", "dp-bandmf", "--batch-size", "32", "--steps", str(STEPS), "--average", "ema:0.9"],
    "dice": ["--method", "dp-dice", "--batch-size", "32", "--steps", str(STEPS)],
    "disk": ["--method", "dp-disk", "--batch-size", "32", "--steps", str(STEPS), "--microbatch", "9"],
}
RELEASED = ("release/model.safetensors", "release/model.json", "release/privacy.json", "release/PRIVACY.md")
MOST = 8  # kills of one run
CALLS = {"rename": 2, "fsync": 8, "open": 9, "unlink": 6}  # of which a release has about so many


class Broken(Exception):
    """Something was lost; the text says what."""


def expect(holds: bool, what: str) -> None:
    """Stop where it does not hold."""
    if not holds:
        raise Broken(what)


def command(setting: str, out: Path) -> list[str]:
    """The same call whether it begins the run or goes on with it."""
    ledger = ["--ledger", str(out.parent / "ledger.jsonl")]
    return [*COMMON, *SETTINGS[setting], "--secret-seed", "5", "--out", str(out), *ledger, "--resume", "--keep-secret"]


def in_child(work: Callable[[], Any]) -> int:
    """Do it in a forked child, silently; its process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        code = int(work())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Minus the signal that ended it, or its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def taken(out: Path) -> int:
    """How many steps are surely known to have been taken."""
    log = out / "private" / "steps.jsonl"
    lines = log.read_bytes().count(b"\n") if log.exists() else 0
    return max([lines, *(int(p.name[11:21]) for p in (out / "private").glob("checkpoint-*.safetensors"))])


def check_whole(out: Path) -> None:
    """Every checkpoint opens, and the ledger covers all that was taken."""
    if not (out / "private").is_dir():
        return
    kept = Checkpoints(out / "private")
    found = kept.newest()
    kept.close()
    expect(not found.damaged, f"a checkpoint is damaged: {found.damaged}")
    if taken(out):
        spends = list(Ledger(out.parent / "ledger.jsonl").spends().values())
        expect(len(spends) == 1, f"the ledger has {len(spends)} entries")
        expect(spends[0].steps >= taken(out), f"the ledger covers {spends[0].steps} steps and {taken(out)} were taken")


def check_same(out: Path, straight: Path) -> None:
    """The files of a run that nothing happened to, and no less ε."""
    for name in (*RELEASED, "private/steps.jsonl"):
        expect((out / name).read_bytes() == (straight / name).read_bytes(), f"'{name}' differs")
    stated = json.loads((out / "release" / "privacy.json").read_text())["guarantee"]["epsilon"]
    spent = Ledger(out.parent / "ledger.jsonl").total().epsilon
    expect(spent >= stated * (1 - 1e-9), f"the ledger says ε = {spent} and the card {stated}")


def straight_run(store: Path, setting: str) -> tuple[Path, float]:
    """The run that nothing happened to, and how long it takes."""
    out = store / "straight" / setting / "run"
    clock = out.parent / "seconds"
    if not clock.exists():
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir(parents=True)
        start = time.perf_counter()
        expect(ended(in_child(lambda: hush(command(setting, out)))) == 0, f"'{setting}' does not run at all")
        clock.write_text(str(time.perf_counter() - start))
    return out, float(clock.read_text())


def killed_anywhere(store: Path, setting: str, dice: random.Random, most: int) -> dict[str, Any]:
    """One run, killed at random instants until it is finished, at most ``most`` times."""
    straight, length = straight_run(store, setting)
    out = fresh(store)
    kills, at = 0, []
    while kills < min(most, MOST):
        child = in_child(lambda: hush(command(setting, out)))
        time.sleep(dice.uniform(0, 0.9 * length))
        os.kill(child, signal.SIGKILL)
        code = ended(child)
        expect(code in (0, -signal.SIGKILL), f"the run ended with {code}")
        kills += code == -signal.SIGKILL
        check_whole(out)
        at.append(taken(out) if (out / "private").is_dir() else 0)
        if code == 0:
            break
        if at[-1] == max([0, *at[:-1]]):  # it came no further: a machine that is busier than when it was timed
            length *= 1.3
    expect(ended(in_child(lambda: hush(command(setting, out)))) == 0, "the run could not be finished")
    check_whole(out)
    check_same(out, straight)
    return {"kind": "anywhere", "setting": setting, "kills": kills, "at": at}


def read_release(out: Path) -> dict[str, bytes]:
    """The files that may be copied."""
    return {path.name: path.read_bytes() for path in (out / "release").iterdir()}


def killed_releasing(store: Path, setting: str, dice: random.Random) -> dict[str, Any]:
    """A finished run that releases again over another one's release, ended at one system call of the release."""
    straight, _ = straight_run(store, setting)
    other, _ = straight_run(store, next(name for name in SETTINGS if name != setting))
    out = fresh(store)
    shutil.copytree(straight.parent, out.parent, dirs_exist_ok=True)
    shutil.rmtree(out / "release")
    shutil.copytree(other / "release", out / "release")
    call, after = dice.choice(list(CALLS)), dice.random() < 0.5
    number = dice.randint(1, CALLS[call])
    code = ended(in_child(lambda: dying_in_release(call, number, after, command(setting, out))))
    expect(code in (0, -signal.SIGKILL), f"the release ended with {code}")
    if (out / "release").exists():
        found = read_release(out)
        expect(found in [read_release(run) for run in (straight, other)], "the release is of no run, or of two")
    expect(ended(in_child(lambda: hush(command(setting, out)))) == 0, "the release could not be finished")
    check_same(out, straight)
    return {"kind": "releasing", "setting": setting, "kills": int(code != 0), "call": call, "number": number}


def dying_in_release(name: str, number: int, after: bool, arguments: list[str]) -> int:
    """Run it, and end the process at the n-th call of a function of ``os`` within the release."""
    from hush.run import Run

    release, real = Run.release, getattr(os, name)

    def releasing(self: Run, *into: Any, **details: Any) -> Path:
        seen = 0

        def dying(*given: Any, **options: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*given, **options)
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, dying)
        try:
            return release(self, *into, **details)
        finally:
            setattr(os, name, real)

    Run.release = releasing  # type: ignore[method-assign]
    return hush(arguments)


def fresh(store: Path) -> Path:
    """The directory of the run at hand, emptied."""
    shutil.rmtree(store / "at-hand", ignore_errors=True)
    (store / "at-hand").mkdir(parents=True)
    return store / "at-hand" / "run"


def import_everything(store: Path) -> None:
    """Train for two steps in this process, so that no child spends its time importing."""
    out = fresh(store)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        expect(hush([*COMMON, "--steps", "2", "--batch-size", "32", "--out", str(out)]) == 0, "hush train does not run")


def done(log: Path) -> dict[str, int]:
    """How many kills of each kind are behind us."""
    found = {"anywhere": 0, "releasing": 0}
    for line in log.read_text().splitlines() if log.exists() else ():
        entry = json.loads(line)
        found[entry["kind"]] += entry["kills"]
    return found


def main() -> int:
    """Go on until there were enough kills of both kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--releasing", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    store, log = options.directory, options.directory / "kills.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    import_everything(store)
    turn = sum(1 for _ in log.open()) if log.exists() else 0
    while (so_far := done(log)) and (so_far["anywhere"] < options.kills or so_far["releasing"] < options.releasing):
        setting = list(SETTINGS)[turn % len(SETTINGS)]
        dice = random.Random(f"{options.seed} {turn}")
        left = options.kills - so_far["anywhere"]
        releasing = so_far["releasing"] < options.releasing and (left <= 0 or turn // len(SETTINGS) % 2 == 1)
        try:
            found = killed_releasing(store, setting, dice) if releasing else killed_anywhere(store, setting, dice, left)
        except Broken as broken:
            print(f"{setting}, turn {turn} of seed {options.seed}: {broken}; see {store / 'at-hand'}")
            return 1
        with log.open("a") as file:
            file.write(json.dumps(found) + "\n")
        turn += 1
        print(json.dumps(found), flush=True)
    print(json.dumps({"done": done(log), "runs": turn, "settings": len(SETTINGS)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
