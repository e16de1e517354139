"""The private directory of a run: its last two checkpoints, its log of steps, and a lock.

A checkpoint is written beside, flushed to the disk and renamed (`hush.files.write_atomic`), under a name that holds its
step; then those before the last two are removed. After a crash at any instant the newest file that is whole is the
newest checkpoint. Everything here is readable by its owner only: it holds the secret, and whoever has that can subtract
the noise.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hush.checkpoint.digest import data_digest, frozen_digest
from hush.checkpoint.file import Saved, Unreadable, read, to_bytes
from hush.checkpoint.tree import revive
from hush.errors import BadInput, Refused
from hush.files import PRIVATE, remove_parts, sync_directory, writable_directory, write_atomic
from hush.plan import Plan, describe
from hush.randomness import Secret
from hush.run import Record, Run

KEEP = 2
LOG = "steps.jsonl"


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, and the newer ones that are damaged, each with what is wrong with it."""

    saved: Saved | None
    damaged: tuple[str, ...] = field(default=())


class Checkpoints:
    """The checkpoints of one run in ``directory``; the directory is locked until `close`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = writable_directory(Path(directory), mode=0o700)
        self.directory.chmod(0o700)
        self._lock = _lock(self.directory)
        remove_parts(self.directory)
        self.name = secrets.token_hex(8)
        self.ledger: dict[str, str] | None = None
        self.at: int | None = None
        self._digests: dict[str, str] = {}
        self._fixed: dict[str, Any] = {}
        self._lines: list[str] = []

    def close(self) -> None:
        """Let others use the directory."""
        os.close(self._lock)

    def files(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        return sorted(self.directory.glob("checkpoint-*.safetensors"), reverse=True)

    def newest(self) -> Found:
        """The newest checkpoint that is whole."""
        damaged: list[str] = []
        for path in self.files():
            try:
                return Found(read(path), tuple(damaged))
            except Unreadable as error:
                damaged.append(str(error))
        return Found(None, tuple(damaged))

    def begin(self, run: Run) -> None:
        """Start anew: whatever was here goes, and a checkpoint of step 0 keeps the secret from the start."""
        self.discard()
        self.save(run)

    def discard(self) -> None:
        """Remove every checkpoint, and the log."""
        for path in (*self.files(), self.directory / LOG):
            path.unlink(missing_ok=True)
        sync_directory(self.directory)

    def restore(self, run: Run, saved: Saved) -> None:
        """Set a fresh run of the same plan, data and model to where the checkpoint stopped."""
        facts, state = saved.facts, saved.state
        _same_plan(run.plan, facts)
        secret = Secret(bytes.fromhex(state["secret"]["key"]), state["secret"]["origin"])
        if run.secret.origin == "seed" and run.secret.key != secret.key:
            raise Refused(
                "the checkpoint was made with another secret: leave the secret seed out, or give the same one"
            )
        self._digests = _digests(run, secret)
        for what, digest in self._digests.items():
            if digest != facts["digests"][what]:
                raise Refused(
                    f"the checkpoint was made on other {what}: going on would add the same noise to other sums, whose "
                    "difference is free of noise; give what it was made with, or start a new run"
                )
        run.restore(revive(state, run.state(), run.device))
        self.name, self.ledger, self.at = facts["run"], facts["ledger"], saved.step
        for path in self.files():
            if path > saved.path:  # damaged
                path.unlink()
        self._cut_log(saved.step)

    def save(self, run: Run) -> None:
        """A checkpoint of the run as it stands, and the log up to it."""
        if run.ranks.rank != 0:
            return
        self._digests = self._digests or _digests(run, run.secret)
        self._flush_log()
        path = self.directory / f"checkpoint-{run.next:010d}.safetensors"
        write_atomic(path, to_bytes(self._facts(run), run.state()), mode=PRIVATE)
        self.at = run.next
        for old in self.files()[KEEP:]:
            old.unlink()

    def log(self, record: Record) -> None:
        """One private line on this step; it reaches the disk with the next checkpoint."""
        self._lines.append(json.dumps({"step": record.step, **record.numbers()}) + "\n")

    def _facts(self, run: Run) -> dict[str, Any]:
        if not self._fixed:
            self._fixed = {
                "steps": run.plan.steps,
                "fingerprint": run.plan.fingerprint(),
                "plan": describe(run.plan),
                "versions": {name: version(name) for name in ("hush", "torch")},
                "threads": torch.get_num_threads(),
            }
        changing = {"run": self.name, "step": run.next, "ledger": self.ledger, "digests": self._digests}
        return {**self._fixed, **changing}

    def _flush_log(self) -> None:
        if not self._lines:
            return
        content = "".join(self._lines).encode()
        descriptor = os.open(self.directory / LOG, os.O_WRONLY | os.O_CREAT, PRIVATE)
        try:
            start = os.lseek(descriptor, 0, os.SEEK_END)
            try:
                _write(descriptor, content)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, start)
                raise
        finally:
            os.close(descriptor)
        self._lines = []

    def _cut_log(self, step: int) -> None:
        """Leave the lines of the first ``step`` steps: those after are taken again."""
        path = self.directory / LOG
        self._lines = []
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            os.truncate(path, sum(len(line) for line in lines[:step]))


def _digests(run: Run, secret: Secret) -> dict[str, str]:
    return {"data": data_digest(run.source, secret), "frozen weights": frozen_digest(run.model, secret)}


def _same_plan(plan: Plan, facts: dict[str, Any]) -> None:
    if plan.fingerprint() == facts["fingerprint"]:
        return
    differs = _differences(facts["plan"], json.loads(json.dumps(describe(plan))))
    if differs and all(".digest was " in text for text in differs):
        raise Refused(
            "the matrix behind the plan's noise was computed anew and is not the same in its last bits (the cache of "
            f"solved matrices is gone): try again with OMP_NUM_THREADS={facts['threads']}, as the run had"
        )
    listed = "; ".join(differs[:3]) or "a function that has no readable difference"
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    raise Refused(f"the checkpoint belongs to another plan ({listed}{more}): give the plan that it was made with")


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))]
    return [] if before == now else [f"{path} was {before} and is {now}"]


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise BadInput(
            f"another process is training in '{directory.parent}': wait for it, or use another one"
        ) from error
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
