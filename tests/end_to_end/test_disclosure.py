"""The secret is in one file, which is wiped: no other byte written by a run or a sweep contains it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hush._internal.storage import wipe
from hush._internal.tensors import check_losses
from hush.bench.executors import Inline
from hush.bench.spec import read_spec
from hush.bench.store import Store, open_store
from hush.bench.sweep import sweep
from hush.checkpointing import SECRETS, Checkpoints, read_checkpoint, read_secrets
from hush.cli import main
from hush.clipping import PlainSum
from hush.datasets import catalogue
from hush.errors import HushError, InvalidInputError, ResumeError
from hush.methods import make_plan
from hush.per_example.augmentation import read_batch_size
from hush.privacy_unit import UnitLosses, UnitRows
from hush.run import Run
from hush.training import take_steps
from resumed_runs import STEPS, data, losses, model, plan, resumed, same, start, stopped, straight
from train_arguments import keep

TRAIN = ("train", "--problem", "digits-logistic", "--noise-multiplier", "2", "--epochs", "2", "--batch-size", "128",
         "--checkpoint-every", "2", "--json")  # fmt: skip
SPEC = """
[[grid]]
problem = "digits-logistic"
method = "dp-sgd"
epsilon = 8.0
batch_size = 256
epochs = 1
lr = [0.1, 0.5]
"""


def spell(key: bytes) -> list[bytes]:
    """A secret as it could be written down."""
    return [key, key[::-1], key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key).rstrip(b"="),
            base64.urlsafe_b64encode(key).rstrip(b"="), *(key[i : i + 16] for i in (0, 16))]  # fmt: skip


class Disk:
    """What was on the disk at some time: every file when it was flushed, renamed, cut or removed, and at the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.keys: set[bytes] = set()
        for name in ("unlink", "remove", "replace", "rename", "truncate"):
            monkeypatch.setattr(os, name, self._before(getattr(os, name)))
        flush, clear = os.fsync, shutil.rmtree
        monkeypatch.setattr(os, "fsync", lambda file: (self._note(Path(f"/proc/self/fd/{file}")), flush(file))[1])
        monkeypatch.setattr(
            shutil, "rmtree", lambda path, *a, **k: (self.note_all(Path(path)), clear(path, *a, **k))[1]
        )
        begin = Checkpoints.begin

        def note_run(kept: Checkpoints, run: Run) -> None:
            self.keys.add(run.secret.key)
            begin(kept, run)

        monkeypatch.setattr(Checkpoints, "begin", note_run)

    def _before(self, call):
        def noted(path, *rest, **named):
            if named.get("dir_fd") is None:  # rmtree has noted the others
                self._note(Path(path))
            return call(path, *rest, **named)

        return noted

    def _note(self, path: Path) -> None:
        if path.is_file():
            self.seen.append((os.path.realpath(path), path.read_bytes()))

    def note_all(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            self._note(path)

    def find(self) -> set[str]:
        """The names of the files that held a secret at any time."""
        assert self.keys
        forms = [form for key in self.keys for form in spell(key)]
        return {Path(name).name for name, content in self.seen if any(form in content for form in forms)}


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


def test_of_a_finished_run_only_the_wiped_file_held_it(disk, tmp_path, capsys) -> None:
    assert main([*TRAIN, "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] > 10
    assert disk.find() == {SECRETS}
    assert not (tmp_path / "run" / "private" / SECRETS).exists()
    left = [content for name, content in disk.seen if Path(name).name == SECRETS][-1]
    assert set(left) == {0}  # at the moment of its removal
    disk.seen = []
    disk.note_all(tmp_path)
    assert disk.find() == set()


def test_with_keep_secret_it_is_in_that_file_alone(disk, tmp_path, capsys) -> None:
    assert main([*TRAIN, "--out", str(tmp_path / "run"), "--keep-secret"]) == 0
    disk.note_all(tmp_path)
    assert disk.find() == {SECRETS}
    path = tmp_path / "run" / "private" / SECRETS
    assert path.stat().st_mode & 0o777 == 0o600
    assert {secret.key for secret in read_secrets(path)} == disk.keys


def test_of_a_finished_sweep_only_wiped_files_held_it(disk, tmp_path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    store: Store = open_store(tmp_path / "store")
    sweep(read_spec(tmp_path / "spec.toml"), store, Inline())
    assert len(disk.keys) == 2
    assert disk.find() == {SECRETS}
    wiped = [content for name, content in disk.seen if Path(name).name == SECRETS]
    assert sum(set(content) == {0} for content in wiped) >= 2
    disk.seen = []
    disk.note_all(tmp_path)
    assert disk.find() == set()


class TestResume:
    def test_without_the_secret_it_is_refused(self, tmp_path) -> None:
        stopped(plan(), tmp_path, 3)
        name = read_secrets(tmp_path / SECRETS)[0].name
        (tmp_path / SECRETS).unlink()
        with pytest.raises(ResumeError, match=name):
            resumed(plan(), tmp_path)

    @pytest.mark.parametrize("part", ["key", "origin", "root"])
    def test_another_secret_in_its_place_is_refused(self, part, tmp_path) -> None:
        stopped(plan(), tmp_path, 3)
        line = json.loads((tmp_path / SECRETS).read_text())
        line[part] = {"key": "00" * 32, "origin": "given", "root": "11" * 32}[part]
        (tmp_path / SECRETS).write_text(json.dumps(line) + "\n")
        with pytest.raises(ResumeError):
            resumed(plan(), tmp_path)

    def test_half_a_line_of_a_killed_renewal_is_harmless(self, tmp_path) -> None:
        stopped(plan(), tmp_path, 3)
        with (tmp_path / SECRETS).open("a") as file:
            file.write('{"key": "ab')
        assert same(resumed(plan(), tmp_path), straight(plan()))

    def test_a_checkpoint_names_the_secret_and_does_not_hold_it(self, tmp_path) -> None:
        stopped(plan(), tmp_path, 3)
        (secret,) = read_secrets(tmp_path / SECRETS)
        saved = read_checkpoint(tmp_path / "checkpoint-0000000003.safetensors")
        assert "secret" not in saved.state
        assert saved.facts["secret"] == {"name": secret.name, "first": secret.name, "origin": "seed"}


class TestRenewal:
    """Sums that changed after a kill: the steps from there on have a fresh secret."""

    @staticmethod
    def use_fresh_secret(directory: Path):
        """A run that was killed after step 5, whose last checkpoint is of step 4, and then met other sums."""
        run, kept = start(plan()), Checkpoints(directory)
        kept.begin(run)
        for _ in take_steps(run, checkpoints=kept, every=4):
            if run.next == 5:
                break
        kept.close()
        again, kept = start(plan(), secret=None), Checkpoints(directory)
        saved = kept.newest().saved
        assert saved is not None
        kept.restore(again, saved)
        loss = again._summing.losses
        again._summing.losses = lambda module, content: 1e-3 * loss(module, content)  # below the clip
        kept.notify = lambda text: None
        return again, kept

    def test_the_new_secret_is_durable_before_its_noise_is_drawn(self, tmp_path, monkeypatch) -> None:
        run, kept = self.use_fresh_secret(tmp_path)
        first, known = run.secret, []
        release = run._noising.release
        monkeypatch.setattr(
            run._noising, "release",
            lambda channels, secret, step: (known.append(secret in read_secrets(tmp_path / SECRETS)),
                                            release(channels, secret, step))[1],
        )  # fmt: skip
        kept._noise_guard._notify = lambda text: None
        run.step(run.batch(run.next))
        assert run.secret.key != first.key
        assert known == [True]
        assert read_secrets(tmp_path / SECRETS) == [first, run.secret]
        kept.close()

    def test_a_kill_before_the_checkpoint_of_the_new_secret_goes_on_with_the_old_one(
        self, tmp_path, monkeypatch
    ) -> None:
        run, kept = self.use_fresh_secret(tmp_path)
        kept._noise_guard._notify = lambda text: None
        first = run.secret
        monkeypatch.setattr("hush.checkpointing.checkpoint.write_atomic", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.step(run.batch(run.next))
        monkeypatch.undo()
        kept.close()
        assert len(read_secrets(tmp_path / SECRETS)) == 2
        kept = Checkpoints(tmp_path)
        saved = kept.newest().saved
        assert saved is not None
        assert saved.facts["secret"]["name"] == first.name
        kept.close()
        assert same(resumed(plan(), tmp_path), straight(plan()))

    def test_one_overwrite_wipes_both(self, tmp_path) -> None:
        run, kept = self.use_fresh_secret(tmp_path)
        kept._noise_guard._notify = lambda text: None
        run.step(run.batch(run.next))
        place = (tmp_path / SECRETS).stat().st_ino
        kept.save(run)
        assert (tmp_path / SECRETS).stat().st_ino == place  # no copy of it was ever replaced
        kept.forget_secret()
        assert not (tmp_path / SECRETS).exists()
        assert kept.files() == []
        kept.close()


def test_another_run_in_the_directory_wipes_it(tmp_path) -> None:
    stopped(plan(), tmp_path, STEPS)
    run, kept = plan().start(model(), losses, data(), secret=None), Checkpoints(tmp_path)
    kept.begin(run)
    assert read_secrets(tmp_path / SECRETS) == [run.secret]
    kept.close()


def test_wiping_does_not_follow_a_symlink(tmp_path) -> None:
    other, link = tmp_path / "thesis.txt", tmp_path / "secret.jsonl"
    other.write_bytes(b"not ours")
    link.symlink_to(other)
    wipe(link)
    assert other.read_bytes() == b"not ours"
    assert not link.is_symlink()


# No error, warning or public record quotes a cell of the data or the size of a sampled batch.


MARK = "HIVpositive"
ROWS = [f"{i % 5},{'ab'[i % 2]},{'yes' if i % 2 else 'no'}" for i in range(60)]
HEAD = "height,kind,label"
SCHEMA = {"classes": ["yes", "no"], "columns": {"height": {"low": 0, "high": 9}}}
TABLES = {
    "a label that is no class": [HEAD, *ROWS, f"1,a,{MARK}"],
    "text where a number belongs": [HEAD, *ROWS, f"{MARK},a,yes"],
    "too many cells": [HEAD, *ROWS, f"1,a,yes,{MARK}"],
    "no names": [f"1,{MARK},2", *ROWS],
    "the same name twice": [f"1,{MARK},{MARK}", *ROWS],
    "not UTF-8": [HEAD, *ROWS, f"1,{MARK}\udcff,yes"],
    "a cell that is too long": [HEAD, *ROWS, f"1,{MARK * 1_000_000},yes"],
    "a quote that is not closed": [HEAD, *ROWS, f'1,"{MARK},yes'],
    "a control character": [HEAD, *ROWS, f"1,a,\x1b{MARK}"],
    "a null": [HEAD, *ROWS, f"1,a\x00,{MARK}"],
}


def call(capsys, *arguments: object) -> tuple[int, str]:
    code = main(keep(arguments))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("what", TABLES)
def test_a_bad_table_is_told_without_its_cells(what, tmp_path, capsys) -> None:
    data, schema = tmp_path / "rows.csv", tmp_path / "schema.json"
    data.write_bytes("\n".join(TABLES[what]).encode("utf-8", "surrogateescape"))
    schema.write_text(json.dumps(SCHEMA))
    flags = ("--target", "label", "--public", "classes", "--batch-size", 8, "--steps", 1)
    code, said = call(capsys, "train", "--data", data, "--schema", schema, *flags)
    assert code == 2, said
    assert MARK.lower() not in said.lower()
    assert "0xff" not in said


def test_bad_arrays_are_told_without_their_values(tmp_path, capsys) -> None:
    x = np.zeros((40, 3), np.float32)
    for labels in (np.full(40, 7317), np.full(40, -7317), np.full(40, 7317.5), np.full(40, "7317")):
        np.savez(tmp_path / "a.npz", x=x, y=labels)
        code, said = call(capsys, "train", "--data", tmp_path / "a.npz", "--batch-size", 8, "--steps", 1)
        assert code == 2
        assert "7317" not in said
    np.savez(tmp_path / "a.npz", x=x.reshape(40, 1, 3, 1) + 7317, y=np.arange(40) % 2)
    code, said = call(capsys, "train", "--data", tmp_path / "a.npz", "--batch-size", 8, "--steps", 1)
    assert code == 2
    assert "7317" not in said


def test_bad_images_are_told_without_their_names(tmp_path, capsys) -> None:
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / f"{MARK}.png").write_bytes(b"no image")
    code, said = call(capsys, "train", "--data", tmp_path / "images", "--batch-size", 1, "--steps", 1)
    assert code == 2
    assert MARK not in said
    assert "image 1 of" in said


QUOTING = f'''
import torch
from dataclasses import replace
from hush.datasets.catalogue import load

def of_torch(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: model(content[0]) @ torch.zeros(3, 7))

def of_python(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: float("{MARK}"))

def too_few(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: found.losses(model, content)[:-1])

def a_mean(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)
    return replace(found, losses=lambda model, content: found.losses(model, content).mean())

def two_sizes(seed, validation):
    found = load("breast-cancer-logistic", seed=seed, validation=validation)

    class Uneven:
        def __len__(self):
            return len(found.train[0])

        def take(self, indices):
            return found.train[0][indices], found.train[1][indices][:-1]

    return replace(found, train=Uneven())
'''
EVERYBODY = ("--batch-size", "239", "--sampling", "fixed-size", "--steps", "1", "--noise-multiplier", "1")


@pytest.fixture
def quoting(tmp_path, monkeypatch) -> list[str]:
    (tmp_path / "quoting_problems.py").write_text(QUOTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return [f"quoting_problems:{name}" for name in ("of_torch", "of_python", "too_few", "a_mean", "two_sizes")]


def test_the_size_of_a_batch_is_in_no_message(quoting, capsys) -> None:
    for name in quoting:
        code, said = call(capsys, "train", "--problem", name, *EVERYBODY, "--microbatch", 1000)
        assert code in (1, 2), said
        for told in ("239", "238", MARK, "Traceback"):
            assert told not in said, said
        assert said.count("error:") == 1


def test_the_size_of_a_batch_and_a_cell_are_in_no_public_record(quoting, tmp_path) -> None:
    names = ", ".join(f'"{name}"' for name in quoting)
    text = (
        f'secret_seed = 1\n[[grid]]\nproblem = [{names}]\nmethod = "dp-sgd"\nsampling = "fixed-size"\n'
        "batch_size = 239\nsteps = 1\nnoise_multiplier = 1.0\n"
    )
    (tmp_path / "spec.toml").write_text(text)
    store = open_store(tmp_path / "store")
    assert sweep(read_spec(tmp_path / "spec.toml"), store, Inline()).summary()["failed"] == 5
    for record in store.records():
        record["config"].pop("batch_size")
        record.pop("event", None)  # that of the plan, which has its public batch size
        text = re.sub(r"\d+\.\d+|[0-9a-f]{12,}", "", json.dumps(record))  # seconds and digests hold any digits
        for told in ("239", "238", MARK):
            assert told not in text, record["reason"]


def test_what_the_gradients_say() -> None:
    with pytest.raises(HushError) as caught:
        read_batch_size((torch.zeros(239, 2), torch.zeros(238)))
    assert "23" not in str(caught.value)
    for wrong in (torch.zeros(238), torch.zeros(239, 1), torch.zeros(())):
        with pytest.raises(HushError) as caught:
            check_losses(wrong, 239)
        assert "23" not in str(caught.value)


@pytest.mark.parametrize("change", [lambda v: v[:-1], lambda v: v[:, None], lambda v: v.mean()])
def test_what_plain_sums_and_units_say(change) -> None:
    def losses(model, content):
        return change(model(content[0]).sum(1))

    model, content = nn.Linear(2, 3), (torch.zeros(239, 2), torch.zeros(239))
    units = UnitRows((torch.zeros(239, 1, 2), torch.zeros(239, 1)), torch.ones(239, 1))
    for compute in (
        lambda: PlainSum().piece(model, losses, content, {}),
        lambda: UnitLosses(losses, 1)(model, units),
    ):
        with pytest.raises(InvalidInputError, match="example") as caught:
            compute()
        assert "23" not in str(caught.value)


class Peculiar(nn.Module):
    """Reshapes its batch in a way that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 30))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.tensordot(rows, self.weight, ([1], [1]))
        return scores.clone().reshape(len(rows), 2)


def test_what_is_warned_of_holds_no_size() -> None:
    task = catalogue.load("breast-cancer-logistic")
    plan = make_plan("dp-sgd", examples=len(task.train[0]), batch_size=239, steps=1, noise_multiplier=1.0)
    run = plan.start(Peculiar(), task.losses, task.train, secret=3)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for batch in run.batches():
            run.step(batch)
            assert not any(str(len(batch.indices)) in str(one.message) for one in heard)


def test_the_public_part_of_a_failed_run_is_clean(tmp_path: Path, quoting) -> None:
    text = f'[[grid]]\nproblem = "{quoting[1]}"\nmethod = "sgd"\nbatch_size = 32\nsteps = 1\n'
    (tmp_path / "spec.toml").write_text(text)
    store = open_store(tmp_path / "store")
    sweep(read_spec(tmp_path / "spec.toml"), store, Inline())
    (folder,) = (store.root / "runs").iterdir()
    assert MARK in (folder / "private" / "traceback.txt").read_text()  # for the owner
    for path in folder.iterdir():
        if path.is_file():
            assert MARK not in path.read_text()
