"""The secret is in one file, which is wiped: no other byte that a run or a sweep ever put on the disk holds it."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import pytest

from hush._internal.storage import wipe
from hush.bench.executors import Inline
from hush.bench.spec import read_spec
from hush.bench.store import Store, open_store
from hush.bench.sweep import sweep
from hush.checkpointing import SECRETS, Checkpoints, read_checkpoint, read_secrets
from hush.cli import main
from hush.errors import ResumeError
from hush.run import Run
from hush.training import take_steps
from stopping import STEPS, data, losses, model, plan, resumed, same, start, stopped, straight

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
