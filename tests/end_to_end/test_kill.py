"""Training killed anywhere resumes to the same bits, the ledger covers all releases, and no file is corrupt.

Children are forked, so a kill costs no new interpreter. HUSH_KILLS sets the number of kills at random instants.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from hush.checkpointing import Checkpoints
from hush.cli import main
from hush.ledger.book import Ledger
from hush.methods import make_plan
from hush.per_example import chunks
from hush.release.verify import verify as verify_release


@pytest.fixture(scope="module", autouse=True)
def short_start_check_everywhere() -> Iterator[None]:
    """For the runs that fixtures of this file make, too: the number of inputs that were checked is in their cards."""
    every = chunks.separate_rows
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chunks, "KINDS", ("random",))
        patched.setattr(chunks, "separate_rows", lambda rows: every(rows)[:2])
        yield


KILLS = int(os.environ.get("HUSH_KILLS", "8"))
STEPS, EVERY = 60, 5
TRAIN = ["train", "--method", "dp-adam", "--noise-multiplier", "1", "--batch-size", "32", "--steps", str(STEPS)]
TRAIN += ["--problem", "breast-cancer-mlp", "--secret-seed", "5", "--checkpoint-every", str(EVERY), "--json"]


def call(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def training(out: Path) -> list[str]:
    return [*TRAIN, "--out", str(out), "--ledger", str(out.parent / "ledger.jsonl"), "--resume"]


def in_child(work: Callable[[], object]) -> int:
    """Do it in a forked child, silently; its process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        found = work()
        code = found if isinstance(found, int) else 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Minus the signal that ended it, or its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def released_at_least(out: Path) -> int:
    """How many steps are surely known to have been taken: those in the log or in a checkpoint."""
    log = out / "private" / "steps.jsonl"
    lines = log.read_bytes().count(b"\n") if log.exists() else 0
    steps = [int(p.name[11:21]) for p in (out / "private").glob("checkpoint-*.safetensors")]
    return max([lines, *steps])


def check_whole(out: Path) -> None:
    """Every checkpoint opens, the ledger's chain holds and it covers all that was taken."""
    if not (out / "private").is_dir():
        return
    kept = Checkpoints(out / "private")
    found = kept.newest()
    kept.close()
    finished = (out / "private" / "finished.json").exists()
    assert not found.damaged or finished  # the secret is being overwritten
    assert not finished or verify_release(out).verified  # and never before the release is whole
    ledger = out.parent / "ledger.jsonl"
    taken = released_at_least(out)
    if taken:
        spends = list(Ledger(ledger).spends().values())
        assert len(spends) == 1
        assert spends[0].steps >= taken


def check_same(out: Path, straight: Path, stated: dict) -> None:
    """Finished: the same bits, the same ε, one entry, and a log without a gap."""
    first, second = (load_file(p / "release" / "model.safetensors") for p in (out, straight))
    assert first.keys() == second.keys()
    assert all((first[n].numpy().tobytes() == second[n].numpy().tobytes()) for n in first)
    assert (out / "release" / "privacy.json").read_bytes() == (straight / "release" / "privacy.json").read_bytes()
    assert not list((out / "private").glob("checkpoint-*"))
    assert not (out / "private" / "secret.jsonl").exists()  # wiped after the release
    assert (out / "private" / "steps.jsonl").read_bytes() == (straight / "private" / "steps.jsonl").read_bytes()
    left = {p.name for place in (out / "private", out, out.parent) for p in place.iterdir()}
    assert not [name for name in left if name.endswith(".part")]
    spends = Ledger(out.parent / "ledger.jsonl").spends()
    assert [s.steps for s in spends.values()] == [STEPS]
    assert Ledger(out.parent / "ledger.jsonl").total().epsilon >= stated["epsilon"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert call(*training(out)) == 0
    return out


@pytest.fixture
def stated(straight: Path) -> dict:
    return json.loads((straight / "release" / "privacy.json").read_text())["guarantee"]


def finish(out: Path) -> None:
    assert ended(in_child(lambda: main(training(out)))) == 0


def test_killed_at_random_instants(straight, stated, tmp_path) -> None:
    """kill -9 from outside, at any time, again and again; whenever a run is finished another one begins. How far runs
    come until then is up to the machine: those that die at a place that was chosen are below."""
    dice = random.Random(20261115)
    start = time.perf_counter()
    assert ended(in_child(lambda: main(training(tmp_path / "timed" / "run")))) == 0
    length = time.perf_counter() - start
    runs, killed = 0, 0
    while killed < KILLS:
        out = tmp_path / str(runs) / "run"
        out.parent.mkdir()
        while killed < KILLS:
            child = in_child(lambda out=out: main(training(out)))
            time.sleep(dice.uniform(0, 0.9 * length))
            os.kill(child, signal.SIGKILL)
            code = ended(child)
            killed += code == -signal.SIGKILL
            check_whole(out)
            if code == 0 or released_at_least(out) == STEPS:
                break
        finish(out)
        check_whole(out)
        check_same(out, straight, stated)
        runs += 1


def dying_at(call_name: str, number: int, after: bool) -> Callable[[], None]:
    """Make the n-th call of a function of ``os`` the last thing that this process does."""
    real, seen = getattr(os, call_name), 0

    def dying(*arguments, **options):
        nonlocal seen
        seen += 1
        if seen == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return lambda: setattr(os, call_name, dying)


FAULTS = [
    (name, after)
    for name in ("fsync", "replace", "rename", "unlink", "pwrite", "write", "open")
    for after in (False, True)
]


@pytest.mark.parametrize(("name", "after"), FAULTS, ids=[f"{'after' if a else 'before'}-{n}" for n, a in FAULTS])
def test_killed_between_write_flush_and_rename(name, after, straight, stated, tmp_path) -> None:
    """The n-th system call of a kind is the last one, for n = 1, 2, 3 … in turn on one run, until it is finished."""
    out = tmp_path / "run"
    numbers = iter([1, 2, 3, 5, 4, 9, 14, 27, 10**9])
    for number in numbers:
        fault = dying_at(name, number, after)
        code = ended(in_child(lambda fault=fault: (fault(), main(training(out)))[1]))
        assert code in (0, -signal.SIGKILL)
        check_whole(out)
        if code == 0:
            break
    finish(out)
    check_same(out, straight, stated)


@pytest.mark.parametrize(("name", "number"), [("fsync", 5), ("fsync", 9), ("replace", 4), ("pwrite", 2), ("write", 3)])
def test_a_failing_disk_stops_cleanly_and_goes_on(name, number, straight, stated, tmp_path) -> None:
    """The n-th call of a kind fails instead: one sentence, exit 1, and the rest as after a kill."""
    out = tmp_path / "run"

    def work() -> int:
        real, seen = getattr(os, name), 0

        def failing(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == number:
                raise OSError(5, "Input/output error")
            return real(*arguments, **options)

        setattr(os, name, failing)
        return main(training(out))

    assert ended(in_child(work)) == 1
    check_whole(out)
    finish(out)
    check_same(out, straight, stated)


def test_a_torn_write_falls_back(straight, stated, tmp_path) -> None:
    """A disk that lost the end of the newest checkpoint: the one before is used, and said."""
    out = tmp_path / "run"
    fault = dying_at("replace", 12, True)
    assert ended(in_child(lambda: (fault(), main(training(out)))[1])) == -signal.SIGKILL
    newest = max((out / "private").glob("checkpoint-*.safetensors"))
    os.truncate(newest, newest.stat().st_size - 100)
    finish(out)
    check_same(out, straight, stated)


CALLS = ("mkdir", "open", "write", "fsync", "stat", "rename", "close", "unlink", "rmdir")
RELEASING = [(name, after) for name in CALLS for after in (False, True)]
LEAST_KILLS = 50


def released(folder: Path) -> dict[str, bytes] | None:
    """The files of a release; None where there is none."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else None


@pytest.mark.parametrize("overwrite", [False, True], ids=["first", "overwriting"])
def test_killed_while_releasing_there_is_none_or_a_whole_one(overwrite, tmp_path) -> None:
    """The n-th system call of a kind is the last one, for n = 1, 2, 3 … until none is left; over the release of an
    earlier run with less noise, or over none. Then the next release is whole, and nothing lies beside it."""
    torch.manual_seed(0)
    data = torch.randn(30, 4), torch.randint(0, 2, (30,))
    runs = []
    for noise in (0.5, 5.0):
        plan = make_plan("dp-sgd", examples=30, batch_size=10, steps=2, noise_multiplier=noise)
        run = plan.start(torch.nn.Linear(4, 2), lambda m, c: cross_entropy(m(c[0]), c[1], reduction="none"), data)
        for batch in run.batches():
            run.step(batch)
        runs.append(run.release(tmp_path / str(noise)))
    old, new = map(released, runs)
    allowed = [None, new, *([old] if overwrite else [])]
    kills, seen = 0, set()
    for name, after in RELEASING:
        code, number = -signal.SIGKILL, 0
        while code == -signal.SIGKILL:
            number += 1
            out = tmp_path / f"{name}-{after}-{number}" / "out"
            out.parent.mkdir()
            if overwrite:
                shutil.copytree(runs[0], out)
            fault = dying_at(name, number, after)
            code = ended(in_child(lambda fault=fault, out=out: (fault(), run.release(out, overwrite=overwrite), 0)[2]))
            assert code in (0, -signal.SIGKILL)
            assert released(out) in allowed
            seen.add(allowed.index(released(out)))
            kills += code == -signal.SIGKILL
            run.release(out, overwrite=True)
            assert released(out) == new
            assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert kills >= LEAST_KILLS
    assert seen == set(range(len(allowed)))


def test_the_secret_lost_the_block_stays_spent(tmp_path, stated) -> None:
    out, again = tmp_path / "run", tmp_path / "again"
    fault = dying_at("replace", 9, True)
    assert ended(in_child(lambda: (fault(), main(training(out)))[1])) == -signal.SIGKILL
    assert ended(in_child(lambda: main(training(again)))) == 2  # its seed gives the noise of the lost run
    assert ended(in_child(lambda: main([*training(again), "--secret-seed", "6"]))) == 0
    spends = Ledger(tmp_path / "ledger.jsonl").spends()
    assert sorted(s.steps for s in spends.values()) == [STEPS, STEPS]  # each is charged with its whole plan
    assert Ledger(tmp_path / "ledger.jsonl").total().epsilon > 1.2 * stated["epsilon"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_stops_cleanly(number, straight, stated, tmp_path, capfd) -> None:
    out = tmp_path / "run"
    read, write = os.pipe()

    def work() -> int:
        from hush.cli import train

        take = train.take_steps

        def told(run, **how):
            for record in take(run, **how):
                if run.next == 7:
                    os.kill(os.getpid(), number)
                yield record

        train.take_steps = told
        sys.stderr = os.fdopen(write, "w", buffering=1)
        return main(training(out))

    assert ended(in_child(work)) == 130
    os.close(write)
    said = os.read(read, 10_000).decode()
    os.close(read)
    assert "nothing to resume in" in said
    assert "stopped at step 7 of 60" in said
    assert f"resume with: hush train --out {out} --resume" in said
    assert released_at_least(out) == 7
    check_whole(out)
    code = call("train", "--out", out, "--resume", "--json")  # its own options are remembered
    captured = capfd.readouterr()
    assert code == 0
    assert "resuming at step 7 of 60" in captured.err
    assert json.loads(captured.out)["resumed_from"] == 7
    check_same(out, straight, stated)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own, half a megabyte; where mounting is not allowed the test is skipped."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(("left", "copies"), [(1, 0), (12, 0), (12, 4)])
def test_a_full_disk_stops_cleanly_and_goes_on(
    left, copies, small_disk, straight, stated, tmp_path, capfd, monkeypatch
) -> None:
    """Filled up after the first checkpoint, seen before the next step or (copies 0) while writing: one
    sentence; with space again, the same bits."""
    monkeypatch.setattr("hush.run_directory.COPIES", copies)
    out = small_disk / "run"
    fault = dying_at("replace", 9, True)
    assert ended(in_child(lambda: (fault(), main(training(out)))[1])) == -signal.SIGKILL
    ballast = small_disk / "ballast"
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    ballast.write_bytes(b"x" * (free - 1024 * left))
    code = call(*training(out))
    captured = capfd.readouterr()
    assert code == (2 if copies else 1)
    assert captured.out == ""
    assert ("--out" if copies else "--resume") in captured.err.splitlines()[-1]
    assert "Traceback" not in captured.err
    check_whole(out)
    ballast.unlink()
    finish(out)
    check_same(out, straight, stated)


def test_a_read_only_directory_is_refused_before_anything_starts(small_disk, capsys) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code = call("train", "--out", small_disk / "run", "--problem", "no-such-problem")
    assert code == 2
    assert "cannot write to" in capsys.readouterr().err
