"""The run directory: everything saved of a run, so that it can be interrupted at any time and resumed.

    run/
      release/   may be published: weights, description, privacy card
      private/   checkpoints, the secret until the run is finished, the sum log, logs of steps, options, exact metrics

`RunDirectory` also holds the run's account in a ledger. `hush.start`, `hush.train` and the command line use it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hush._internal.storage import PRIVATE, remove_parts, remove_temporaries, writable_directory, write_atomic
from hush._internal.text import as_json_data, dump_json
from hush.checkpointing.checkpoint import LOG, Checkpoints, LatestCheckpoint, OtherPlan, describe_difference
from hush.checkpointing.noise_reuse_guard import RELEASES, read_releases
from hush.data_release import find_releases
from hush.errors import FormatError, HushError, InvalidInputError, ReleaseError, ResumeError, RunStateError
from hush.ledger.book import DATASET, Ledger
from hush.ledger.run_account import RunAccount, charge
from hush.matrix_factorization.cache import kept_in
from hush.release.description import Description
from hush.release.folder import (
    CARD,
    PRIVATE_PART,
    RELEASE,
    WEIGHTS,
    check_room,
    digest_files,
    pack_weights,
    read_json,
    was_begun,
)
from hush.run import Run

# The folder of a run: what it holds, and whether a command may begin or resume a run there.

OPTIONS, FINISHED, ENDED = "options.json", "finished.json", "ended.json"  # in the private part of a run
TUNED = "tuned.json"  # in the private part of a folder that `hush tune` writes
METRICS = "private_metrics.json"  # the noisy metrics of the test rows, in the private part of a run
REPLACES = "replaces.json"  # which release of an earlier run this run replaces, as requested by --overwrite
COPIES = 4  # free disk space, in sizes of the release: two checkpoints, one being written, the release
STATED = {"epsilon", "delta", "status", "sentence"}  # the guarantee in the result of a finished run
DAMAGED = "is damaged, so the finished run cannot be reported again: its release has the model and the guarantee"
DAMAGED_METRICS = "'{}' is damaged, and noisy metrics are drawn only once: restore the file"
Notify = Callable[[str], None]
"""Takes one sentence for the operator."""


def _ignore(text: str) -> None: ...


def _check_free(found: LatestCheckpoint, out: Path, resume: bool) -> None:
    """Raise if the folder's run cannot be resumed although it should, or could be although a new run is to begin."""
    if found.saved is None and (damaged := found.damaged or (_find_steps(out / PRIVATE_PART) if resume else ())):
        raise InvalidInputError(
            f"no checkpoint in '{out}' is intact ({'; '.join(damaged)}), so its run cannot be resumed and what it was "
            "charged in its ledger stays spent: start a new run with another --out"
        )
    if resume or found.saved is None:
        return
    step, steps = found.saved.step, int(found.saved.facts["steps"])
    if step < steps and not (out / PRIVATE_PART / ENDED).exists():
        raise ResumeError(
            f"'{out}' holds an unfinished run (step {step} of {steps}): add --resume, or give another --out"
        )


def _find_steps(private: Path) -> tuple[str, ...]:
    """Evidence that steps were taken in a run that is not finished."""
    if (private / FINISHED).exists():
        return ()
    logged = [path.name for path in private.glob(LOG) if path.read_bytes()]
    logged += [path.name for path in private.glob("sums-*") if path.read_bytes().partition(b"\n")[2]]  # after its head
    return (f"all are missing, and '{logged[0]}' shows that steps were taken",) if logged else ()


def _check_is_no_release(out: Path) -> None:
    """Raise if the folder itself is a release: its files would be taken for those of the run."""
    try:
        format = str(read_json(out / CARD).get("format"))
    except InvalidInputError:
        return
    if format.startswith("hush privacy card"):
        raise InvalidInputError(f"'{out}' is itself a release, not a run's folder: give another --out")


def _is_finished(found: LatestCheckpoint, out: Path) -> bool:
    """Whether the run is finished, by the checkpoint of its last step or by its saved result."""
    done = found.saved is not None and found.saved.step >= int(found.saved.facts["steps"])
    return done or any((out / PRIVATE_PART / name).exists() for name in (FINISHED, ENDED))


def _check_not_lost(out: Path) -> None:
    """Raise for a folder with a released model and no run: a new run would replace the model."""
    private = out / PRIVATE_PART
    if (out / RELEASE).exists() and not any(private.glob("checkpoint-*")) and not (private / FINISHED).exists():
        raise InvalidInputError(
            f"the run in '{out}' cannot be resumed, because its private part is missing and only its release is left: "
            "start a new run with another --out"
        )


def _check_own_release(found: LatestCheckpoint, out: Path) -> None:
    """Raise `ResumeError` if the folder holds a release that the run to be resumed did not write and was not asked to
    replace."""
    card = out / RELEASE / CARD
    if found.saved is None or not card.is_file() or _digest_card(card) == _read_replaced(out / PRIVATE_PART):
        return
    private, first = out / PRIVATE_PART, found.saved.facts["secret"]["first"]
    written = any(line["noise"] == first for line in read_releases(private / RELEASES))
    without_noise = _is_finished(found, out) and not any(private.glob("sums-*"))  # such a run keeps no list of releases
    if not written and not without_noise:
        raise ResumeError(
            f"'{out / RELEASE}' was not written by the run in '{out}', which would replace it: move it away, then "
            "resume"
        )


def _digest_card(card: Path) -> str:
    return hashlib.sha256(card.read_bytes()).hexdigest()


def _read_replaced(private: Path) -> str | None:
    path = private / REPLACES
    return None if not path.is_file() else str(read_json(path).get("card"))


def _remove_empty_dirs(out: Path, there: bool) -> None:
    """Remove the empty folders that a refused command created, while its lock is held."""
    with suppress(OSError):
        if not (out / PRIVATE_PART / "matrices").exists():
            (out / PRIVATE_PART / "lock").unlink()
            (out / PRIVATE_PART).rmdir()
        if not there:
            out.rmdir()


@contextmanager
def _corrupt_as_input_error(path: Path) -> Iterator[None]:
    """Raise `InvalidInputError` for a file with a valid digest that lacks the entries hush writes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, HushError):
            raise
        raise InvalidInputError(
            f"'{path}' holds a checkpoint that this version of hush did not write: start a new run in another folder"
        ) from error


@dataclass
class RunDirectory:
    """The files and the ledger account of a run; without ``--out`` only the ledger is written."""

    out: Path | None
    resume: bool
    checkpoints: Checkpoints | None = None
    found: LatestCheckpoint | None = None
    account: RunAccount | None = None
    resumed_from: int | None = None
    begun: bool = False
    overwrite: bool = False
    ledger: Path | None = None
    dataset: str | None = None
    new_dataset: bool = False
    notify: Notify = _ignore
    _stack: ExitStack | None = None
    flags: Mapping[str, str] = field(default_factory=dict)  # the flag of each setting in ``options``, for messages

    @property
    def release(self) -> Path | None:
        """The folder that may be published."""
        return None if self.out is None else self.out / RELEASE

    @property
    def replaces(self) -> bool:
        """Whether an existing release is replaced: that of a run to be overwritten, or of this run."""
        return self.overwrite or self.resume

    def read_finished(self, options: bytes) -> dict[str, Any] | None:
        """The saved result of the finished run in this folder, if its secret is deleted and it is requested again."""
        if not self.resume or self.checkpoints is None:
            return None
        path, before = self.checkpoints.directory / FINISHED, self.checkpoints.directory / OPTIONS
        if not path.exists():
            return None
        if before.exists() and read_json(before) != json.loads(options):
            raise InvalidInputError(
                f"the run in '{self.out}' is finished and its secret was deleted, so it cannot continue with other "
                "options: train with another --out"
            )
        found = read_json(path)
        if not isinstance(found.get("steps"), int) or not found.keys() >= STATED:
            raise FormatError(f"'{path}' {DAMAGED}")
        self.notify(
            f"the run in '{self.out}' is finished ({found['steps']} steps): reporting it again, nothing is spent"
        )
        if self.release is not None and not self.release.is_dir():
            self.notify(f"its release is missing and cannot be written again: '{self.release}'")
        return {**found, "resumed_from": found["steps"]}

    def finish(self, answer: dict[str, Any], *, keep_secret: bool) -> None:
        """After the release is complete: save the result, then delete the secret."""
        if self.out is None or self.checkpoints is None:
            return
        if keep_secret:
            if answer.get("stopped"):  # a run that stopped early has no checkpoint of its last step to mark it finished
                described = (dump_json(answer["stopped"]) + "\n").encode()
                write_atomic(self.checkpoints.directory / ENDED, described, mode=PRIVATE)
            self.notify(f"the secret is kept as requested: '{self.checkpoints.directory}' can subtract the noise")
            return
        write_atomic(
            self.checkpoints.directory / FINISHED, (dump_json(as_json_data(answer)) + "\n").encode(), mode=PRIVATE
        )
        self.checkpoints.forget_secret()

    def attach(self, run: Run, options: bytes = b"{}\n") -> None:
        """Begin the run, or restore it, and enter it in its ledger."""
        if self.checkpoints is not None and self.found is not None and self.found.saved is not None and self.resume:
            with _corrupt_as_input_error(self.found.saved.path), self._name_options(options):
                _use_same_machinery(self.found.saved.facts, self.notify)
                self.checkpoints.restore(run, self.found.saved)
            self.resumed_from = run.next
            (self.checkpoints.directory / ENDED).unlink(missing_ok=True)
        elif self.resume:
            self.notify(f"nothing to resume in '{self.out}': starting from the beginning")
        self._enter(run)
        if self.checkpoints is not None and self.resumed_from is None:
            self.checkpoints.attach(run)  # may raise, so it comes before anything of the earlier run is replaced
            for name in (FINISHED, ENDED, TUNED):
                (self.checkpoints.directory / name).unlink(missing_ok=True)
            self._note_replaced()
            write_atomic(self.checkpoints.directory / OPTIONS, options, mode=PRIVATE)
            self.checkpoints.begin(run)
            self.begun = True
        self._say_where(run)

    def _note_replaced(self) -> None:
        """Save which release this run may replace when it finishes, so that this survives a kill and a resume."""
        assert self.checkpoints is not None
        assert self.release is not None
        card, note = self.release / CARD, self.checkpoints.directory / REPLACES
        note.unlink(missing_ok=True)
        if self.overwrite and card.is_file():
            write_atomic(note, (dump_json({"card": _digest_card(card)}) + "\n").encode(), mode=PRIVATE)

    def check_release(self, run: Run, description: Description | None = None, dataset: str = "") -> None:
        """Raise before the first noisy value if anything would prevent this run from being released."""
        if self.out is None:
            return
        size = run.check_release(description=description, dataset=dataset)
        free = shutil.disk_usage(self.out).free
        if free < COPIES * size:
            raise ReleaseError(
                f"the disk of '{self.out}' has {free} bytes left and the run needs at least {COPIES * size}: free some "
                "space, or give another --out"
            )

    @contextmanager
    def _name_options(self, options: bytes) -> Iterator[None]:
        """If the plan differs because options differ, name these options in the error."""
        try:
            yield
        except OtherPlan as error:
            assert self.checkpoints is not None
            differs = _compare_options(self.checkpoints.directory / OPTIONS, options, self.flags)
            if not differs:
                raise
            raise ResumeError(
                f"the run in '{self.out}' was begun with other options ({'; '.join(differs)}), which make a different "
                "plan: leave them out, or train with another --out"
            ) from error

    def _enter(self, run: Run) -> None:
        path = self.ledger
        before = None if self.checkpoints is None else self.checkpoints.ledger
        if path is None and before is not None:
            path = Path(before["path"])
            if not path.exists():
                raise InvalidInputError(
                    f"this run is entered in the ledger '{path}', which is missing: give its path with --ledger"
                )
        if path is None:
            return
        named = self.dataset or (before["dataset"] if before is not None else DATASET)
        self.account = charge(run, Ledger(path), named, self.checkpoints, new_dataset=self.new_dataset)

    def _say_where(self, run: Run) -> None:
        for damage in self.found.damaged if self.found is not None and self.resume else ():
            self.notify(f"{damage}: using the checkpoint before it")
        if self.resumed_from is None:
            return
        if run.next == run.plan.steps:
            self.notify(f"the run in '{self.out}' is finished ({run.next} steps): reporting it again, nothing is spent")
        else:
            self.notify(f"resuming at step {run.next} of {run.plan.steps}")

    def keep_matrices(self) -> AbstractContextManager[None]:
        """Within it, solved matrices are saved with the run: solving them again could change their last bits."""
        return nullcontext() if self.checkpoints is None else kept_in(self.checkpoints.directory / "matrices")

    def save(self, run: Run) -> None:
        """Write a checkpoint now."""
        if self.checkpoints is not None and self.checkpoints.at != run.next:
            self.checkpoints.save(run)

    def forget_unless_begun(self, run: Run) -> None:
        """Free the directory if the first step of a new run was refused, because nothing was spent.

        It is not freed if noise was drawn before training: that noise must not be added to other data."""
        if self.checkpoints is None or find_releases(self.checkpoints.directory):
            return
        if self.begun and run.next == 0 and self.account is None:
            self.checkpoints.discard()

    def describe_resume(self) -> str:
        """What was saved and which command resumes the run, as the second half of a sentence."""
        if self.checkpoints is None:
            return "nothing was saved, because there is no --out"
        command = f"hush train --out {shlex.quote(str(self.out))} --resume"
        if self.checkpoints.at is None:
            return "nothing was saved yet"
        if not self.checkpoints.files():
            return f"nothing is left of the run, because '{self.out}' was deleted or moved while it was running"
        if not self.checkpoints.resumable:
            return f"everything is saved up to step {self.checkpoints.at}, but this run cannot be resumed"
        return f"everything is saved up to step {self.checkpoints.at}, resume with: {command}"

    def follow(self, run: Run, every: int, stack: ExitStack) -> None:
        """Log every step of the run and write a checkpoint every ``every`` steps; ``stack`` is closed with the run."""
        self._stack, run.directory = stack, self
        if self.checkpoints is not None:
            checkpoints = self.checkpoints
            run.after_step(lambda record: checkpoints.log(run, record, every))

    def save_if_whole(self, run: Run) -> None:
        """Write a checkpoint now, unless a step was interrupted."""
        with suppress(RunStateError):
            self.save(run)

    def publish(
        self,
        run: Run,
        *,
        description: Description | None = None,
        dataset: str = "",
        metrics: Mapping[str, Any] | None = None,
        keep_secret: bool = False,
    ) -> Path:
        """Write the release, delete the secret and close the directory."""
        if self.release is None:
            raise InvalidInputError("this run has no directory: give the folder of the release")
        shown = {**(metrics or {}), **self.total_for_card()}
        named = dataset or self.dataset or ""
        path = run.release(self.release, description=description, overwrite=self.replaces, dataset=named, metrics=shown)
        guarantee = run.guarantee
        stated = {"steps": run.plan.steps, "epsilon": guarantee.epsilon, "delta": guarantee.delta}
        self.finish({**stated, "status": guarantee.status, "sentence": guarantee.sentence()}, keep_secret=keep_secret)
        self.close()
        return path

    def close(self) -> None:
        """Unlock the directory."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def save_private(self, name: str, value: Any) -> None:
        """Save plain data in the private part of the run."""
        if self.checkpoints is not None:
            content = (dump_json(as_json_data(value), indent=2) + "\n").encode()
            write_atomic(self.checkpoints.directory / name, content, mode=PRIVATE)

    def release_metrics(self, run: Run, draw: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The noisy metrics of a run, which ``draw`` draws from the run's secret; at most one release of a run.

        They are saved before they are shown, and a repeated report reads them: other noise on the same counts would be
        a second release. Raises `ResumeError` if the run has released metrics that are missing."""
        if self.checkpoints is None:
            return draw()
        path, weights = self.checkpoints.directory / METRICS, digest_files({WEIGHTS: pack_weights(run.model)})[WEIGHTS]
        resumed = self.resumed_from is not None  # a new run has drawn nothing
        before = _read_metrics(path) if resumed else None
        if resumed and before is None and (released := _find_released(self.release, weights)) is not None:
            return released
        if before is not None and before["run"] == self.checkpoints.name:
            if before["weights"] == weights:
                found: dict[str, Any] = before["metrics"]
                return found
            self.notify(
                "the noisy metrics were drawn for other weights of this run and are paid for once: none are released"
            )
            return None
        if resumed:
            self._refuse_second_release(run, path)
        metrics = draw()
        self.save_private(METRICS, {"run": self.checkpoints.name, "weights": weights, "metrics": metrics})
        return metrics

    def check_metrics_kept(self, run: Run) -> None:
        """Raise `ResumeError` before a resumed run takes a step if it has released noisy metrics that are missing."""
        if self.checkpoints is None or self.resumed_from is None:
            return
        path = self.checkpoints.directory / METRICS
        if not path.exists() and (self.release is None or not (self.release / CARD).is_file()):
            self._refuse_second_release(run, path)

    def _refuse_second_release(self, run: Run, path: Path) -> None:
        if any(line["noise"] == run.secret.first.name for line in read_releases(path.with_name(RELEASES))):
            raise ResumeError(
                f"this run has released its noisy metrics and '{path}' is missing, so they would be released a second "
                "time: restore the file, or the release"
            )

    def total_for_card(self) -> dict[str, Any]:
        """What the card reports of all that the ledger records on these data: public numbers, without its path."""
        if self.account is None:
            return {}
        total = self.account.total()
        about = {"unit": total.scope.unit, "protects": total.scope.protects}
        spent = {"epsilon": total.epsilon, "delta": total.delta, "status": total.status, **about}
        return {"ledger": as_json_data(spent)}  # an infinite ε is null

    def summarize_ledger(self) -> dict[str, Any] | None:
        """The ledger's total for the dataset, as JSON fields."""
        if self.account is None:
            return None
        ledger, dataset = self.account.ledger, self.account.dataset
        total = self.account.total()
        with ledger.as_read():
            total = ledger.total(dataset) if ledger.budget(dataset) else total
        return {
            "path": str(ledger.path),
            "dataset": dataset,
            "epsilon": total.epsilon,
            "delta": total.delta,
            "unit": total.scope.unit,
            "protects": total.scope.protects,
            "status": total.status,
            "assumptions": list(total.assumptions),
            "sentence": f"dataset '{dataset}' so far: {total.sentence()}",
        }


@contextmanager
def open_search(out: Path | None) -> Iterator[None]:
    """Lock the folder of a search and check that it is writable before anything is charged; raise if it holds a
    release or a run. A mark file names the search; it is removed if the search gives no release."""
    if out is None:
        yield
        return
    _check_is_no_release(out)
    check_room(out / RELEASE, overwrite=True)  # files that hush did not write are never replaced
    there = out.exists()
    writable_directory(out)
    checkpoints = Checkpoints(out / PRIVATE_PART)
    mark = checkpoints.directory / TUNED
    try:
        remove_temporaries(out / RELEASE)
        if (out / RELEASE).exists():
            raise InvalidInputError(
                f"'{out}' already holds a release, which a search never replaces: give another folder with --out"
            )
        if any(path.name not in ("lock", "matrices", TUNED) for path in checkpoints.directory.iterdir()):
            raise InvalidInputError(f"'{out}' holds a run, which a search never replaces: give another --out")
        write_atomic(mark, (dump_json({"written_by": "hush tune"}) + "\n").encode(), mode=PRIVATE)
        yield
    finally:
        if not (out / RELEASE).exists():
            mark.unlink(missing_ok=True)
        if not was_begun(out):
            _remove_empty_dirs(out, there)
        checkpoints.close()


@contextmanager
def open_run_directory(
    out: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    ledger: Path | None = None,
    dataset: str | None = None,
    new_dataset: bool = False,
    notify: Notify = _ignore,
    flags: Mapping[str, str] | None = None,
) -> Iterator[RunDirectory]:
    """Open the folder before anything expensive starts; raise rather than overwrite a run, unless it is finished and
    ``overwrite`` is set."""
    shared: dict[str, Any] = {"ledger": ledger, "dataset": dataset, "new_dataset": new_dataset, "notify": notify}
    shared["flags"] = flags or {}
    if out is None:
        if resume:
            raise InvalidInputError("--resume needs the --out of the run to resume")
        yield RunDirectory(None, False, **shared)
        return
    if resume:
        if (out / PRIVATE_PART / TUNED).exists():
            raise ResumeError(
                f"'{out}' was written by hush tune, and a search cannot be resumed: train with another --out"
            )
        _check_not_lost(out)
    _check_is_no_release(out)
    check_room(out / RELEASE, overwrite=True)  # files that hush did not write are never replaced
    there = out.exists()
    writable_directory(out)
    checkpoints = Checkpoints(out / PRIVATE_PART)
    checkpoints.notify = notify
    try:
        remove_parts(out)
        remove_temporaries(out / RELEASE)
        if (checkpoints.directory / FINISHED).exists():
            checkpoints.forget_secret()  # a kill between writing the result and deleting the secret leaves it behind
        found = checkpoints.newest()
        with _corrupt_as_input_error(out):
            _check_free(found, out, resume)
            if resume:
                _check_own_release(found, out)
        if not resume and not overwrite and (_is_finished(found, out) or (out / RELEASE).exists()):
            raise ResumeError(f"'{out}' holds a finished run: add --overwrite to replace it, or give another --out")
        yield RunDirectory(out, resume, checkpoints, found, overwrite=overwrite, **shared)
    finally:
        if not was_begun(out):
            _remove_empty_dirs(out, there)
        checkpoints.close()


def _find_released(release: Path | None, weights: str) -> dict[str, Any] | None:
    """The metrics in an existing release of the same weights, even if the private part is missing."""
    if release is None or not (release / CARD).is_file():
        return None
    card = read_json(release / CARD)
    digests, found = card.get("digests"), card.get("private_metrics")
    same = isinstance(digests, dict) and digests.get(WEIGHTS) == weights
    return found if same and isinstance(found, dict) else None


def _read_metrics(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path) if path.exists() else None
    except InvalidInputError as error:
        raise InvalidInputError(DAMAGED_METRICS.format(path)) from error
    if found is not None and not found.keys() >= {"run", "weights", "metrics"}:
        raise InvalidInputError(DAMAGED_METRICS.format(path))
    return found


def _compare_options(path: Path, options: bytes, flags: Mapping[str, str]) -> list[str]:
    """The flags of the options that differ from those the run was started with; none if the file is unreadable."""
    try:
        before, now = read_json(path), json.loads(options)
    except InvalidInputError:
        return []
    return [
        describe_difference(flag, before[name], now[name])
        for name, flag in flags.items()
        if name in before and name in now and before[name] != now[name]
    ]


def _use_same_machinery(facts: dict[str, Any], notify: Notify) -> None:
    """Settings that decide the last bits of a sum: set the number of threads, report a different torch version."""
    if facts["threads"] != torch.get_num_threads():
        torch.set_num_threads(facts["threads"])
        notify(f"using {facts['threads']} threads, as the run did before, to reproduce the same bits")
    before, now = facts["versions"]["torch"], version("torch")
    if before != now:
        notify(
            f"the run began with torch {before} and resumes with {now}: its bits may differ from an uninterrupted run"
        )
