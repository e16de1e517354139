"""The private directory of a run: its secret, its last two checkpoints, its step log, its sum log and a lock.

A checkpoint is written to a temporary file, flushed to disk and renamed (`hush._internal.storage.write_atomic`). Its
name contains its step. Then all checkpoints except the last two are removed. After a crash at any time, the newest
complete file is the newest checkpoint. Only the owner can read these files.

The secret is in one file, ``secret.jsonl``, and nowhere else on disk: with it the noise can be subtracted. A
checkpoint names its secret by public digests. The file is created before the first step and only appended to (one line
per secret, durable before any noise is drawn from it), so a single overwrite erases every secret of the run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from hush._internal.identity import NoIdentity, digest
from hush._internal.imports import read_versions
from hush._internal.storage import (
    PRIVATE,
    append_durably,
    remove_parts,
    sync_directory,
    try_lock,
    unlock,
    wipe,
    writable_directory,
    write_atomic,
)
from hush._internal.tensors import Named, State, trainable
from hush.checkpointing.noise_reuse_guard import ReleaseRecorder, begin_guard, resume_guard
from hush.checkpointing.tree import flatten, revive, unflatten
from hush.data_source import Tensors
from hush.distributed.consistency import VARYING, Notify, digest_data, digest_frozen
from hush.distributed.group import Record
from hush.errors import InvalidInputError, ResumeError
from hush.privacy_unit import as_units
from hush.randomness import Secret
from hush.run import Run

# One checkpoint as bytes: a safetensors file whose metadata holds JSON and a digest of everything.
#
# Any safetensors reader opens it. The digest is BLAKE2b over the JSON and over every tensor's name, type, shape and
# bytes, so a file that was cut short, partly overwritten or damaged on disk is never mistaken for a checkpoint.

FORMAT = "hush checkpoint 5"
MOST_THREADS = 4096


class Unreadable(InvalidInputError):
    """A file that is damaged or is not a checkpoint; the message says which."""


class OtherVersion(Unreadable):
    """A complete checkpoint in the format of another version of hush."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and verified: facts about its run, and the run's state."""

    path: Path
    facts: dict[str, Any]
    state: State

    @property
    def step(self) -> int:
        """The number of steps that the run had taken."""
        return int(self.state["step"])

    @property
    def metrics(self) -> State | None:
        """The private metrics that the checkpoint carries."""
        return self.state.get(METRICS)


def to_bytes(facts: dict[str, Any], state: State) -> bytes:
    """The file's content."""
    tensors: Named = {}
    text = json.dumps({"format": FORMAT, **facts, "state": flatten(state, tensors)}, allow_nan=False)
    plain = _unshare({name: value.cpu().contiguous() for name, value in tensors.items()})
    return save(plain, metadata={"hush": text, "digest": digest_content(text, plain)})


def read_checkpoint(path: Path) -> Saved:
    """The checkpoint at ``path``, or `Unreadable`."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["hush"]
        if metadata["digest"] != digest_content(text, tensors):
            raise Unreadable(f"'{path.name}' is damaged: its digest does not match its content")
        facts = json.loads(text)
        if (found := facts.pop("format")) != FORMAT:
            raise OtherVersion(
                f"'{path}' is a checkpoint of another version of hush ('{found}'; this one reads '{FORMAT}') and "
                "is not changed: finish the run with that version, or start a new one in another directory"
            )
        state = unflatten(facts.pop("state"), tensors)
        _check_kinds(facts, state)
        return Saved(path, facts, state)
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"'{path.name}' is damaged or cut short ({type(error).__name__})") from error


def _check_kinds(facts: dict[str, Any], state: State) -> None:
    """The digest proves that a file is complete, not that hush wrote it: check the types of the facts that are used."""
    good = (
        isinstance(facts.get("run", ""), str)
        and all(isinstance(facts.get(name, {}), dict) for name in ("versions", "digests", "secret"))
        and all(_is_count(facts.get(name, 1)) for name in ("steps", "step", "threads"))
        and facts.get("threads", 1) <= MOST_THREADS
        and all(_is_count(state.get(name, 1)) for name in ("step", "microbatch", "chunk_rows", "world"))
        and all(isinstance(value, Tensor) for kind in ("params", "buffers") for value in state.get(kind, {}).values())
        and isinstance(state.get("noise", {}), dict)
        and (not facts.get("ledger") or all(isinstance(facts["ledger"][k], str) for k in ("name", "path", "dataset")))
    )
    if not good:
        raise ValueError


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def digest_content(text: str, tensors: Named) -> str:
    """BLAKE2b over the JSON and all tensors."""
    total = hashlib.blake2b(text.encode(), digest_size=32)
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        total.update(_tensor_bytes(value))
    return total.hexdigest()


def _tensor_bytes(value: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy if it is contiguous and on the CPU."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    raw: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(raw)


def _unshare(tensors: Named) -> Named:
    """Give tensors that share memory a copy each: safetensors rejects shared memory."""
    seen: set[int] = set()
    found: Named = {}
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        found[name] = value if whole and place not in seen else value.clone()
        seen.add(place)
    return found


KEEP = 2
LOG = "steps.jsonl"
SECRETS = "secret.jsonl"
METRICS = "metrics"  # in the state of a checkpoint


def _identify_secret(secret: Secret) -> dict[str, str]:
    """What a checkpoint stores about its secret: public digests, by which `find_secret` recognises every part of it."""
    return {"name": secret.name, "first": secret.first.name, "origin": secret.origin}


def find_secret(directory: Path, wanted: dict[str, str]) -> Secret:
    """The secret that a checkpoint names, from its private directory; `ResumeError` if it is missing."""
    path = directory / SECRETS
    for secret in read_secrets(path):
        if _identify_secret(secret) == wanted:
            return secret
    raise ResumeError(
        f"'{path}' does not hold the secret '{wanted['name']}' of the checkpoint, so its steps cannot be continued: "
        "restore the file, or start a new run in another directory"
    )


def read_secrets(path: Path) -> list[Secret]:
    """Every secret in the file; a damaged line is skipped, because no noise is drawn before its line is complete."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            found.append(Secret.from_json(json.loads(line)))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return found


def wipe_secret(directory: Path) -> None:
    """Overwrite and remove the secret of a private directory, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        wipe(directory / SECRETS)
        sync_directory(directory)


class InUse(InvalidInputError):
    """A private directory that another process has locked."""


class OtherPlan(ResumeError):
    """A checkpoint of a plan other than the one to be resumed."""


@dataclass(frozen=True)
class LatestCheckpoint:
    """The newest complete checkpoint, and the newer damaged ones, each with its error."""

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
        self._noise_guard: ReleaseRecorder | None = None
        self.notify: Notify = _say
        self.metrics: Callable[[], State] | None = None  # private metrics of the run so far, kept in its checkpoints

    def close(self) -> None:
        """Release the lock on the directory."""
        self._let_go()
        unlock(self._lock)

    @property
    def resumable(self) -> bool:
        """Whether the plan of the saved run can be identified."""
        return bool(self._fixed.get("fingerprint", True))

    def files(self) -> list[Path]:
        """All checkpoints, newest first."""
        return sorted(self.directory.glob("checkpoint-*.safetensors"), reverse=True)

    def newest(self) -> LatestCheckpoint:
        """The newest complete checkpoint; `OtherVersion` if another version of hush wrote it."""
        damaged: list[str] = []
        for path in self.files():
            try:
                return LatestCheckpoint(read_checkpoint(path), tuple(damaged))
            except OtherVersion:
                raise
            except Unreadable as error:
                damaged.append(str(error))
        return LatestCheckpoint(None, tuple(damaged))

    def begin(self, run: Run) -> None:
        """Start a new run: remove earlier files and write a checkpoint of step 0 with the secret.

        The sum log is kept, because a seed can produce the same secret again.
        """
        if self._run is not run:
            self.attach(run)
        self.discard()
        self.save(run)
        if not self.resumable:
            self.notify(f"this run can be saved but not resumed: {self._fixed['why']}")

    def discard(self) -> None:
        """Remove every checkpoint, the log and the secret."""
        for path in (*self.files(), self.directory / LOG):
            path.unlink(missing_ok=True)
        sync_directory(self.directory)
        wipe_secret(self.directory)

    def forget_secret(self) -> None:
        """For a run that is finished and released: overwrite and remove the secret, then the checkpoints, which hold
        noise. The sum log is kept: it is keyed with the secret and does not contain it."""
        wipe_secret(self.directory)
        for path in self.files():
            wipe(path)
        sync_directory(self.directory)

    def restore(self, run: Run, saved: Saved) -> None:
        """Set a new run of the same plan, data and model to the state of the checkpoint."""
        facts = saved.facts
        _check_names(saved)
        _check_plan(run, facts)
        secret = find_secret(self.directory, facts["secret"])
        kept = {name: value for name, value in saved.state.items() if name != METRICS}
        state = {**kept, "secret": secret.to_json()}
        if run.secret.origin == "seed" and run.secret.key != secret.first.key:
            raise ResumeError(
                "the checkpoint was made with another secret: leave the secret seed out, or give the same one"
            )
        self._digests = _check_content(run, secret.first, facts["digests"], self.notify)
        run.restore(revive(state, run.state(), run.device), compared=True)
        self._let_go()
        self._run, self._fixed = run, {}
        run.keep_in(self.directory)
        if run.plan.has_guarantee and run.ranks.rank == 0:
            self._noise_guard = resume_guard(run, self.directory, self._digests["data"], self.save, self.notify)
            run.guard_noise(self._noise_guard)
        self.name, self.ledger, self.at = facts["run"], facts["ledger"], saved.step
        for path in self.files():
            if path > saved.path:  # damaged
                path.unlink()
        self._cut_log(saved.step)

    def save(self, run: Run) -> None:
        """Write a checkpoint of the run's current state and the step log up to it, after flushing the sum log."""
        if run.ranks.rank != 0:
            return
        if self._run is not run:
            self.attach(run)
        self._write_secret(run.secret)
        if self._noise_guard is not None:
            self._noise_guard.flush()
        self._flush_log()
        path = self.directory / f"checkpoint-{run.next:010d}.safetensors"
        state = {name: value for name, value in run.state().items() if name != "secret"}
        state |= {} if self.metrics is None else {METRICS: self.metrics()}
        write_atomic(path, to_bytes(self._facts(run), state), mode=PRIVATE)
        self.at = run.next
        for old in self.files()[KEEP:]:
            old.unlink()

    def _write_secret(self, secret: Secret) -> None:
        """Append the secret to its file unless it is there; durable when this returns."""
        path = self.directory / SECRETS
        if secret in read_secrets(path):
            return
        before = path.read_bytes() if path.exists() else b"\n"
        gap = b"" if before.endswith(b"\n") else b"\n"  # after an incomplete line that a crash left
        append_durably(path, gap + (json.dumps(secret.to_json()) + "\n").encode(), mode=PRIVATE)
        sync_directory(self.directory)

    def attach(self, run: Run) -> None:
        """Log the run's sums here from now on; an error if its secret was used here with other data."""
        self._let_go()
        self._digests = _digests(run, run.secret.first, self.notify)
        self._run, self._fixed = run, {}
        run.keep_in(self.directory)
        if run.plan.has_guarantee and run.ranks.rank == 0:
            self._noise_guard = begin_guard(run, self.directory, self._digests["data"], self.save, self.notify)
            run.guard_noise(self._noise_guard)

    def _let_go(self) -> None:
        if self._noise_guard is not None:
            self._noise_guard.close()
            self._noise_guard = None

    def log(self, run: Run, record: Record, every: int) -> None:
        """Log one private line about this step, written to disk with the next checkpoint; save a checkpoint after
        ``every`` steps and after the last."""
        self._lines.append(json.dumps({"step": record.step, **record.numbers()}) + "\n")
        if run.next % every == 0 or run.next == run.plan.steps:
            self.save(run)

    def _facts(self, run: Run) -> dict[str, Any]:
        if not self._fixed:
            self._fixed = {
                "steps": run.plan.steps,
                **_identity(run),
                "versions": read_versions("hush", "torch"),
                "threads": torch.get_num_threads(),
            }
        changing = {"run": self.name, "step": run.next, "ledger": self.ledger, "digests": self._digests}
        return {**self._fixed, **changing, "secret": _identify_secret(run.secret)}

    def _flush_log(self) -> None:
        if not self._lines:
            return
        append_durably(self.directory / LOG, "".join(self._lines).encode(), mode=PRIVATE)
        self._lines = []

    def _cut_log(self, step: int) -> None:
        """Keep the lines of the first ``step`` steps: later steps are taken again."""
        path = self.directory / LOG
        self._lines = []
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            os.truncate(path, sum(len(line) for line in lines[:step]))


def _digests(run: Run, secret: Secret, notify: Notify) -> dict[str, str]:
    return {"data": digest_data(run.source, secret, notify), "frozen weights": digest_frozen(run.model, secret)}


def _check_content(run: Run, secret: Secret, before: dict[str, str], notify: Notify) -> dict[str, str]:
    """The digests of data and frozen weights, which must equal those of the checkpoint."""
    now = _digests(run, secret, notify)
    for what, found in now.items():
        if found == before[what]:
            continue
        if what == "data" and _is_unsteady(run, secret, before[what], found, notify):
            notify("the data differ from one reading to the next, so only their sums can be compared")
            continue
        raise ResumeError(
            f"the checkpoint was made on other {what}: resuming would add the same noise to other sums, and their "
            "difference would be free of noise; use the original, or start a new run"
        )
    return before


def _is_unsteady(run: Run, secret: Secret, before: str, now: str, notify: Notify) -> bool:
    """Whether two readings of the data differ; then a digest says nothing about them."""
    if isinstance(as_units(run.source).rows, Tensors) or before.startswith(VARYING) or now.startswith(VARYING):
        return False
    return digest_data(run.source, secret, notify) != now


def _identity(run: Run) -> dict[str, Any]:
    """The identity of the plan, or None and the reason why it has none."""
    try:
        tree = run.plan.identity(trainable(run.model))
    except NoIdentity as error:
        return {"fingerprint": None, "plan": None, "why": str(error)}
    return {"fingerprint": digest(tree), "plan": tree}


def _check_names(saved: Saved) -> None:
    """The names of the run, its ledger and its secret are those that `Checkpoints._facts` writes."""
    ledger, secret = saved.facts["ledger"], saved.facts["secret"]
    of_a_ledger = isinstance(ledger, dict) and all(isinstance(ledger.get(n), str) for n in ("name", "path", "dataset"))
    of_a_secret = isinstance(secret, dict) and all(isinstance(secret.get(n), str) for n in ("name", "first", "origin"))
    if not isinstance(saved.facts["run"], str) or not (ledger is None or of_a_ledger) or not of_a_secret:
        raise InvalidInputError(
            f"'{saved.path}' is not a checkpoint of this hush: start a new run in another directory"
        )


def _check_plan(run: Run, facts: dict[str, Any]) -> None:
    found = _identity(run)
    for which, side in (("the checkpoint's plan", facts), ("this plan", found)):
        if side["fingerprint"] is None:
            raise ResumeError(f"{which} has no identity, so its run cannot be resumed: {side['why']}")
    if found["fingerprint"] == facts["fingerprint"]:
        return
    before, now = dict(facts["plan"]), json.loads(json.dumps(found["plan"]))
    accounted = before.pop("accounted"), now.pop("accounted")
    differs = _differences(before, now) or _differences(*accounted)
    if all(".digest was " in text for text in differs):
        raise ResumeError(
            "the matrix behind the plan's noise was recomputed and differs in its last bits (it is no longer in the "
            f"cache of solved matrices): try again with OMP_NUM_THREADS={facts['threads']}, as the run had"
        )
    more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
    raise OtherPlan(
        f"the checkpoint belongs to another plan ({'; '.join(differs[:3])}{more}): use the plan that it was made with"
    )


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))]
    return [] if before == now else [describe_difference(path, before, now)]


def describe_difference(name: str, before: Any, now: Any) -> str:
    """How a value changed; for two lists of words, only the words that are not in both."""
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
        raise InUse(f"another process is training in '{directory.parent}': wait for it, or use another directory")
    return descriptor


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


# Process 0 reads a checkpoint and broadcasts the restored state to every process of the run.


def share_state(run: Run) -> None:
    """Set the run of every process to the state of process 0; every process must call it. The number of threads is
    included, because it decides the last bits of sums."""
    ranks = run.ranks
    if ranks.world == 1:
        return
    tensors: Named = {}
    shared = None if ranks.rank else {"state": flatten(run.state(), tensors), "threads": torch.get_num_threads()}
    shared = ranks.broadcast(shared)
    plain = _unshare({name: value.cpu().contiguous() for name, value in tensors.items()})
    content = ranks.broadcast_bytes(b"" if ranks.rank else save(plain))
    if ranks.rank:
        torch.set_num_threads(shared["threads"])
        run.restore(revive(unflatten(shared["state"], load(content)), run.state(), run.device), compared=True)
