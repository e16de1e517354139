"""The private directory of a run: its last two checkpoints, its log of steps, its record of sums, and a lock.

A checkpoint is written beside, flushed to the disk and renamed (`hush.files.write_atomic`), under a name that holds its
step; then those before the last two are removed. After a crash at any instant the newest file that is whole is the
newest checkpoint. Everything here is readable by its owner only: it holds the secret, and whoever has that can subtract
the noise.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hush.checkpoint.file import OtherVersion, Saved, Unreadable, read_checkpoint, to_bytes
from hush.checkpoint.tree import revive
from hush.checkpoint.witness import FileWitness, begin_witness, resume_witness
from hush.digests import VARYING, Tell, digest_data, digest_frozen
from hush.errors import BadInput, Refused
from hush.files import (
    PRIVATE,
    append_durably,
    give_back,
    remove_parts,
    sync_directory,
    try_lock,
    wipe,
    writable_directory,
    write_atomic,
)
from hush.identity import NoIdentity, digest
from hush.named import trainable
from hush.randomness import Secret
from hush.run import Run
from hush.source import Tensors
from hush.stepping import Record
from hush.units import as_units
from hush.version import read_versions

KEEP = 2
LOG = "steps.jsonl"


class InUse(BadInput):
    """A private directory that another process has locked."""


class OtherPlan(Refused):
    """A checkpoint of another plan than the one that is to go on."""


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
        self._lock = _lock_directory(self.directory)
        remove_parts(self.directory)
        self.name = secrets.token_hex(8)
        self.ledger: dict[str, str] | None = None
        self.at: int | None = None
        self._digests: dict[str, str] = {}
        self._fixed: dict[str, Any] = {}
        self._lines: list[str] = []
        self._run: Run | None = None
        self._witness: FileWitness | None = None
        self.tell: Tell = _say

    def close(self) -> None:
        """Let others use the directory."""
        self._let_go()
        give_back(self._lock)

    @property
    def resumable(self) -> bool:
        """Whether the plan of the run that is kept here can be identified."""
        return bool(self._fixed.get("fingerprint", True))

    def files(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        return sorted(self.directory.glob("checkpoint-*.safetensors"), reverse=True)

    def newest(self) -> Found:
        """The newest checkpoint that is whole; `OtherVersion` where another version of hush wrote it."""
        damaged: list[str] = []
        for path in self.files():
            try:
                return Found(read_checkpoint(path), tuple(damaged))
            except OtherVersion:
                raise
            except Unreadable as error:
                damaged.append(str(error))
        return Found(None, tuple(damaged))

    def begin(self, run: Run) -> None:
        """Start anew: whatever was here goes, and a checkpoint of step 0 keeps the secret from the start.

        What stays is the record of sums, for a seed can bring a secret back.
        """
        if self._run is not run:
            self.attach(run)
        self.discard()
        self.save(run)
        if not self.resumable:
            self.tell(f"this run can be kept but not resumed: {self._fixed['why']}")

    def discard(self) -> None:
        """Remove every checkpoint, and the log."""
        for path in (*self.files(), self.directory / LOG):
            path.unlink(missing_ok=True)
        sync_directory(self.directory)

    def forget_secret(self) -> None:
        """Of a run that is finished and released: overwrite and remove every checkpoint, and the secret with it. What
        stays is the record of sums, which is keyed with the secret and does not hold it."""
        for path in self.files():
            wipe(path)
        sync_directory(self.directory)

    def restore(self, run: Run, saved: Saved) -> None:
        """Set a fresh run of the same plan, data and model to where the checkpoint stopped."""
        facts, state = saved.facts, saved.state
        _check_names(saved)
        _check_plan(run, facts)
        secret = Secret.from_json(state["secret"])
        if run.secret.origin == "seed" and run.secret.key != secret.first.key:
            raise Refused(
                "the checkpoint was made with another secret: leave the secret seed out, or give the same one"
            )
        self._digests = _check_content(run, secret.first, facts["digests"], self.tell)
        run.restore(revive(state, run.state(), run.device), compared=True)
        self._let_go()
        self._run, self._fixed = run, {}
        if run.plan.private and run.ranks.rank == 0:
            self._witness = resume_witness(run, self.directory, self._digests["data"], self.save, self.tell)
            run.witnessed_by(self._witness)
        self.name, self.ledger, self.at = facts["run"], facts["ledger"], saved.step
        for path in self.files():
            if path > saved.path:  # damaged
                path.unlink()
        self._cut_log(saved.step)

    def save(self, run: Run) -> None:
        """A checkpoint of the run as it stands, and the log up to it; before it, the record of sums."""
        if run.ranks.rank != 0:
            return
        if self._run is not run:
            self.attach(run)
        if self._witness is not None:
            self._witness.flush()
        self._flush_log()
        path = self.directory / f"checkpoint-{run.next:010d}.safetensors"
        write_atomic(path, to_bytes(self._facts(run), run.state()), mode=PRIVATE)
        self.at = run.next
        for old in self.files()[KEEP:]:
            old.unlink()

    def attach(self, run: Run) -> None:
        """Have the run's sums written down here from now on; refused where its secret met other data here."""
        self._let_go()
        self._digests = _digests(run, run.secret.first, self.tell)
        self._run, self._fixed = run, {}
        if run.plan.private and run.ranks.rank == 0:
            self._witness = begin_witness(run, self.directory, self._digests["data"], self.save, self.tell)
            run.witnessed_by(self._witness)

    def _let_go(self) -> None:
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    def log(self, record: Record) -> None:
        """One private line on this step; it reaches the disk with the next checkpoint."""
        self._lines.append(json.dumps({"step": record.step, **record.numbers()}) + "\n")

    def _facts(self, run: Run) -> dict[str, Any]:
        if not self._fixed:
            self._fixed = {
                "steps": run.plan.steps,
                **_identity(run),
                "versions": read_versions("hush", "torch"),
                "threads": torch.get_num_threads(),
            }
        changing = {"run": self.name, "step": run.next, "ledger": self.ledger, "digests": self._digests}
        return {**self._fixed, **changing}

    def _flush_log(self) -> None:
        if not self._lines:
            return
        append_durably(self.directory / LOG, "".join(self._lines).encode(), mode=PRIVATE)
        self._lines = []

    def _cut_log(self, step: int) -> None:
        """Leave the lines of the first ``step`` steps: those after are taken again."""
        path = self.directory / LOG
        self._lines = []
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            os.truncate(path, sum(len(line) for line in lines[:step]))


def _digests(run: Run, secret: Secret, tell: Tell) -> dict[str, str]:
    return {"data": digest_data(run.source, secret, tell), "frozen weights": digest_frozen(run.model, secret)}


def _check_content(run: Run, secret: Secret, before: dict[str, str], tell: Tell) -> dict[str, str]:
    """The digests of data and frozen weights, which must be those of the checkpoint."""
    now = _digests(run, secret, tell)
    for what, found in now.items():
        if found == before[what]:
            continue
        if what == "data" and _is_unsteady(run, secret, before[what], found, tell):
            tell("the data differ from one reading to the next, so that only their sums can be compared")
            continue
        raise Refused(
            f"the checkpoint was made on other {what}: going on would add the same noise to other sums, whose "
            "difference is free of noise; give what it was made with, or start a new run"
        )
    return before


def _is_unsteady(run: Run, secret: Secret, before: str, now: str, tell: Tell) -> bool:
    """Whether the data would not even be the same in two readings now; then a digest says nothing about them."""
    if isinstance(as_units(run.source).rows, Tensors) or before.startswith(VARYING) or now.startswith(VARYING):
        return False
    return digest_data(run.source, secret, tell) != now


def _identity(run: Run) -> dict[str, Any]:
    """What tells the plan from others; None and the reason where nothing does."""
    try:
        tree = run.plan.identity(trainable(run.model))
    except NoIdentity as error:
        return {"fingerprint": None, "plan": None, "why": str(error)}
    return {"fingerprint": digest(tree), "plan": tree}


def _check_names(saved: Saved) -> None:
    """The run's name and its ledger's are what `Checkpoints._facts` writes."""
    ledger = saved.facts["ledger"]
    of_a_ledger = isinstance(ledger, dict) and all(isinstance(ledger.get(n), str) for n in ("name", "path", "dataset"))
    if not isinstance(saved.facts["run"], str) or not (ledger is None or of_a_ledger):
        raise BadInput(f"'{saved.path}' holds a checkpoint that this hush did not write: start anew elsewhere")


def _check_plan(run: Run, facts: dict[str, Any]) -> None:
    found = _identity(run)
    for which, side in (("the checkpoint's plan", facts), ("this plan", found)):
        if side["fingerprint"] is None:
            raise Refused(f"{which} cannot be told from another, so its run cannot be resumed: {side['why']}")
    if found["fingerprint"] == facts["fingerprint"]:
        return
    before, now = dict(facts["plan"]), json.loads(json.dumps(found["plan"]))
    accounted = before.pop("accounted"), now.pop("accounted")
    differs = _differences(before, now) or _differences(*accounted)
    if all(".digest was " in text for text in differs):
        raise Refused(
            "the matrix behind the plan's noise was computed anew and is not the same in its last bits (the cache of "
            f"solved matrices is gone): try again with OMP_NUM_THREADS={facts['threads']}, as the run had"
        )
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    raise OtherPlan(
        f"the checkpoint belongs to another plan ({'; '.join(differs[:3])}{more}): give the plan that it was made with"
    )


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))]
    return [] if before == now else [tell_difference(path, before, now)]


def tell_difference(name: str, before: Any, now: Any) -> str:
    """How something differs from what it was; of two lists of words, only what is not in both."""
    if not (isinstance(before, list) and isinstance(now, list) and any(isinstance(x, str) for x in (*before, *now))):
        return f"{name} was {_spell(before)} and is {_spell(now)}"
    gone, new = ([_spell(x) for x in one if x not in other] for one, other in ((before, now), (now, before)))
    changes = (("no longer has", gone), ("now has", new))
    parts = [f"{verb} {', '.join(map(repr, words))}" for verb, words in changes if words]
    return f"{name} {' and '.join(parts) or 'is in another order'}"


def _spell(value: Any) -> str:
    if isinstance(value, dict) and value.keys() == {"path"}:
        return f"'{value['path']}'"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _lock_directory(directory: Path) -> int:
    descriptor = try_lock(directory / "lock", mode=PRIVATE)
    if descriptor is None:
        raise InUse(f"another process is training in '{directory.parent}': wait for it, or use another one")
    return descriptor


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
