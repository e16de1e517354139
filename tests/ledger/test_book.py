"""Ledger entries survive concurrent writers and interrupted writes."""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import os
import signal
from pathlib import Path

import pytest
from dp_accounting import dp_event

from hush.accounting import events
from hush.errors import InvalidInputError
from hush.ledger.book import Ledger
from hush.ledger.chain import NoTurns
from ledger_accounts import GAUSS, POISSON, account


class TestEvents:
    @pytest.mark.parametrize(
        "event",
        [
            GAUSS(1.25),
            dp_event.SelfComposedDpEvent(POISSON, 4700),
            dp_event.SampledWithoutReplacementDpEvent(1000, 10, GAUSS(2.0)),
            dp_event.ComposedDpEvent([GAUSS(1.0), dp_event.LaplaceDpEvent(3.0), dp_event.NoOpDpEvent()]),
            dp_event.RandomizedResponseDpEvent(0.3, 10),
            dp_event.RepeatAndSelectDpEvent(POISSON, 10.0, math.inf),
            dp_event.NonPrivateDpEvent(),
        ],
        ids=lambda e: type(e).__name__,
    )
    def test_come_back_as_they_were(self, event):
        text = json.dumps(events.to_json(event), allow_nan=False)
        assert events.from_json(json.loads(text)) == event

    def test_what_cannot_be_rebuilt_is_not_written(self):
        class Own:
            def delta_of(self, epsilon):
                return 0.0

        assert events.to_json(Own()) is None
        assert events.to_json(dp_event.ComposedDpEvent([GAUSS(1.0), Own()])) is None

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            ({"kind": "Popen", "args": "ls"}, "not a privacy event as hush writes it"),
            ({"kind": "Gaussian"}, "not a privacy event as hush writes it"),
            ({"kind": "Gaussian", "noise_multiplier": "ls"}, "a number was expected in a privacy event, got 'ls'"),
            (3, "not a privacy event as hush writes it: 3"),
        ],
    )
    def test_nothing_else_is_built(self, data, sentence):
        with pytest.raises(InvalidInputError, match=sentence):
            events.from_json(data)


def _write(path: str, name: str, count: int) -> None:
    for number in range(count):
        account(Path(path), f"{name}{number}").charge()


def test_processes_at_once_lose_no_entry(path) -> None:
    context = mp.get_context("fork")
    workers = [context.Process(target=_write, args=(str(path), name, 15)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert set(Ledger(path).spends("d")) == {f"{name}{n}" for name in "abcd" for n in range(15)}
    assert len(path.read_text().splitlines()) == 61


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_while_writing_it_has_what_was_charged(path, call, number) -> None:
    """Kill at the n-th write, flush or rename: the ledger stays whole, and has every charge that went through."""
    account(path).charge()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        real, seen = getattr(os, call), 0

        def dying(*arguments, **options):
            nonlocal seen
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(os, call, dying)
        try:
            for run in range(10):
                account(path, str(run)).charge()
                os.write(writer, str(run).encode())
        finally:
            os._exit(3)
    os.close(writer)
    told = b"".join(iter(lambda: os.read(reader, 1), b"")).decode()
    os.close(reader)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert {"a", *told} <= Ledger(path).spends("d").keys()
    account(path, "after").charge()
    assert Ledger(path).spends("d")["after"].steps == 1000


def test_a_full_disk_leaves_the_ledger_whole(path, monkeypatch) -> None:
    account(path).charge()
    before, b = path.read_bytes(), account(path, "b")

    def full(descriptor, content, offset):
        monkeypatch.undo()
        os.pwrite(descriptor, content[:20], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        b.charge()
    assert path.read_bytes() == before
    b.charge()
    assert Ledger(path).spends("d").keys() == {"a", "b"}


def test_lines_are_readable_and_hold_no_more_than_is_public(path) -> None:
    account(path).charge()
    entry = json.loads(path.read_text().splitlines()[1])
    assert set(entry) == {
        *("line", "at", "kind", "dataset", "run", "method", "steps", "planned", "adjacency", "status", "delta"),
        *("event", "points", "limit", "per_step", "previous", "hash"),
    }
    assert (entry["steps"], entry["limit"]) == (1000, 1000)
    assert entry["event"]["event"] == {
        "kind": "PoissonSampled",
        "sampling_probability": 0.01,
        "event": {"kind": "Gaussian", "noise_multiplier": 1.0},
    }


class TestTurns:
    def test_where_locking_fails_nothing_is_written(self, path, monkeypatch):
        account(path).charge()
        before = path.read_bytes()

        def refuse(descriptor, kind):
            raise OSError(37, "No locks available")

        monkeypatch.setattr("fcntl.flock", refuse)
        with pytest.raises(NoTurns, match=r"cannot be locked \(No locks available\).*local disk"):
            account(path, "b")
        assert path.read_bytes() == before

    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_a_line_of_another_writer_in_between_is_noticed(self, path, monkeypatch, moment):
        """The lock does nothing; somebody who read the file before writes right after our own line, or our head."""
        account(path).charge()
        ours, theirs = Ledger(path), Ledger(path)
        monkeypatch.setattr("fcntl.flock", lambda descriptor, kind: None)
        real, done = getattr(os, moment), []

        def and_then_another(*arguments):
            found = real(*arguments)
            if not done:
                done.append(True)
                try:
                    theirs._chain.append(kind="budget", dataset="d", epsilon=9.0, delta=1e-5)
                    done.append("theirs")
                except NoTurns:
                    pass
            return found

        with ours.turn(), theirs._chain.locked():
            monkeypatch.setattr(os, moment, and_then_another)
            try:
                ours._append(kind="budget", dataset="d", epsilon=1.0, delta=1e-5)
                done.append("ours")
            except NoTurns as error:
                assert "does not lock files" in str(error)  # noqa: PT017
        assert len({"ours", "theirs"} & set(done)) <= 1
        text = path.read_text()
        assert ('"epsilon": 1.0' in text) >= ("ours" in done)
        assert ('"epsilon": 9.0' in text) >= ("theirs" in done)


def test_a_ledger_object_sees_what_others_append(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "spend.jsonl"), Ledger(tmp_path / "spend.jsonl", write=False)
    assert one.total("patients").epsilon == 0
    Ledger(tmp_path / "spend.jsonl").add("patients", 1.0, 1e-6, run="another process")
    for ledger in (one, other):
        assert ledger.total("patients").epsilon >= 1
        assert list(ledger.spends("patients")) == ["another process"]
        assert ledger.datasets() == ["patients"]


def test_a_total_of_unknown_data_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spend.jsonl")
    ledger.add("patients", 1.0, 1e-6, run="one")
    with pytest.raises(InvalidInputError, match="patiens"):
        ledger.total("patiens")
    assert ledger.total(" Patients").epsilon >= 1


def test_a_ledger_that_is_read_writes_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path / "spend.jsonl").add("patients", 1.0, 1e-6, run="one")
    before = (tmp_path / "spend.jsonl").read_bytes()
    with pytest.raises(InvalidInputError):
        Ledger(tmp_path / "spend.jsonl", write=False).budget("patients", epsilon=9)
    assert (tmp_path / "spend.jsonl").read_bytes() == before
