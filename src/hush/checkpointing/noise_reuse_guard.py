"""Prevents noise reuse: the same noise must never be added to two different sums."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hush._internal.storage import PRIVATE, append_durably
from hush._internal.tensors import Sums
from hush.accounting.guarantee import rounded_up
from hush.checkpointing.sum_log import SumLog, SumLogMissing, find_tags, remove_empty_tags, start_tags, tag_of
from hush.distributed.consistency import Notify, digest_weights
from hush.errors import RunStateError
from hush.guarantees import Replay
from hush.run import Run

RELEASES = "releases.jsonl"


class ReleaseRecorder:
    """Lists what a run in this private directory has released. A run that adds no noise to sums needs no more."""

    def __init__(self, run: Run, directory: Path) -> None:
        self.run, self._path = run, directory / RELEASES

    def allows(self, sums: Sums) -> bool:
        """Sums without noise may be computed again."""
        return True

    def flush(self) -> None:
        """Nothing is held back."""

    def before_release(self) -> None:
        """Before weights are released: append a line that describes the release."""
        run = self.run
        line = {
            "noise": run.secret.first.name,
            "attempt": run.history.current,
            "step": run.next,
            "weights": digest_weights(run.model, run.secret.first),
        }
        if line in read_releases(self._path):
            return
        before = self._path.read_bytes() if self._path.exists() else b"\n"
        gap = b"" if before.endswith(b"\n") else b"\n"  # ends an incomplete line that a crash left
        append_durably(self._path, gap + (json.dumps(line) + "\n").encode(), mode=PRIVATE)

    def close(self) -> None:
        """No file is open."""


class FileNoiseReuseGuard(ReleaseRecorder):
    """The guard of one run in one private directory; ``save`` writes a checkpoint of the run."""

    def __init__(self, run: Run, tags: SumLog, save: Callable[[Run], None], notify: Notify, why: str = "") -> None:
        super().__init__(run, tags.path.parent)
        self.tags = tags
        self._save, self._notify, self._why = save, notify, why

    def allows(self, sums: Sums) -> bool:
        """Log the sums of the run's next step before its noise is drawn.

        Returns False if this noise was already added to other sums. Then the run has a fresh secret, charged and
        saved, and the sums must be recomputed with it (for another batch, because sampling uses the secret too).
        """
        run, content = self.run, tag_of(self.run.secret, self.run.next, sums)
        run.recall(self.tags.attempts)
        known = self.tags.again.get((run.history.current, run.next))
        if known is None and run.next >= run.history.now.taken:
            self.tags.append(run.history.current, run.next, content)
            return True
        if known == content:
            return True
        self._renew()
        return False

    def flush(self) -> None:
        """Flush the sum log to disk before a checkpoint that contains noise is written."""
        self.tags.flush()

    def before_release(self) -> None:
        """The same after the sum log is flushed."""
        self.tags.flush()
        super().before_release()

    def close(self) -> None:
        """Close the file."""
        self.tags.close()

    def _renew(self) -> None:
        run = self.run
        before = run.guarantee.epsilon
        what = self._why or (
            f"the sums of step {run.next + 1} are not those to which its noise was added before (other data, "
            "augmentation, model code, loss, threads, processes or libraries)"
        )
        run.use_fresh_secret()
        self._why = ""
        after = run.guarantee.epsilon
        self._notify(
            f"{what}: continuing with fresh noise; each time a step is taken is charged: ε = {rounded_up(after)} "
            f"instead of {rounded_up(before)}"
        )
        run.charge()
        self.tags.open()
        self._save(run)


def begin_guard(run: Run, directory: Path, data: str, save: Callable[[Run], None], notify: Notify) -> ReleaseRecorder:
    """The guard of a new run. If its secret was used in this directory before (a seed), the noise was already added
    to sums."""
    if not run.plan.adds_noise:
        return ReleaseRecorder(run, directory)
    path = find_tags(directory, run.secret)
    remove_empty_tags(directory)
    if not path.exists():
        tags = start_tags(directory, run.secret, data)
        tags.open()
        return FileNoiseReuseGuard(run, tags, save, notify)
    try:
        tags = SumLog.read(path, run.next)
    except SumLogMissing as lost:
        return _without(run, directory, data, save, notify, str(lost))
    if tags.head["data"] != data:
        raise RunStateError(
            "this secret seed was used in this directory with the same plan on other data: the difference of the two "
            "models would be free of noise; use another secret seed, or none"
        )
    run.recall(tags.attempts)
    return FileNoiseReuseGuard(run, tags, save, notify)


def resume_guard(run: Run, directory: Path, data: str, save: Callable[[Run], None], notify: Notify) -> ReleaseRecorder:
    """The guard of a run that resumes from a checkpoint."""
    if not run.plan.adds_noise:
        return ReleaseRecorder(run, directory)
    path = find_tags(directory, run.secret)
    try:
        tags = SumLog.read(path, run.next)
        _check(run, tags, path.with_name(RELEASES))
    except SumLogMissing as lost:
        return _without(run, directory, data, save, notify, str(lost))
    run.recall(tags.attempts)
    return FileNoiseReuseGuard(run, tags, save, notify)


def _check(run: Run, tags: SumLog, releases: Path) -> None:
    """A sum log must cover every checkpoint and every release of its run; raises `SumLogMissing` if it does not."""
    wanted = [(number, attempt.taken) for number, attempt in enumerate(run.history.attempts)]
    wanted += [(line["attempt"], line["step"]) for line in read_releases(releases) if line["noise"] == _name(run)]
    for number, taken in wanted:
        known = tags.attempts[number] if number < len(tags.attempts) else Replay()
        begun_at = run.history.attempts[number].start if number < len(run.history.attempts) else 0
        if known.taken < taken and taken > begun_at:
            raise SumLogMissing("is shorter than it was")
    if tags.head["noise"] != _name(run):
        raise SumLogMissing("belongs to another secret")


def _without(
    run: Run, directory: Path, data: str, save: Callable[[Run], None], notify: Notify, how: str
) -> FileNoiseReuseGuard:
    """It is unknown to which sums the noise was added: every planned step counts as taken, and none is repeated."""
    seen = [r["attempt"] for r in read_releases(directory / RELEASES) if r["noise"] == _name(run)]
    unknown = max(seen, default=0) + 1 - len(run.history.attempts)  # if the list of releases has more attempts
    starts = [*(a.start for a in run.history.attempts), *([0] * unknown)]
    whole = [Replay(first, run.plan.steps) for first in starts]
    run.recall(whole)
    tags = start_tags(directory, run.secret, data, whole)
    why = f"the log of sums to which the noise was added ('{tags.path.name}') {how}"
    return FileNoiseReuseGuard(run, tags, save, notify, why)


def _name(run: Run) -> str:
    return run.secret.first.name


def read_releases(path: Path) -> list[dict[str, Any]]:
    """The logged releases; an incomplete line is skipped, because its weights were not written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append({"noise": "", "attempt": 0, "step": 0, **json.loads(line)})
        except (ValueError, TypeError):
            continue
    return found
