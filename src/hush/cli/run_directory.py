"""What `hush train` keeps so that a run can be stopped or killed and goes on: checkpoints, ledger, its own options."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hush._internal.storage import PRIVATE, remove_parts, remove_temporaries, writable_directory, write_atomic
from hush._internal.text import as_json_data, dump_json
from hush.checkpointing import Checkpoints, LatestCheckpoint
from hush.checkpointing.checkpoint import LOG, OtherPlan, tell_difference
from hush.cli.console import say
from hush.cli.options import KEEPING, write_settings
from hush.data_release import find_releases
from hush.errors import HushError, InvalidInputError, Refused
from hush.ledger.book import DATASET, Ledger
from hush.ledger.run_account import RunAccount, charge
from hush.matrix_factorization.cache import kept_in
from hush.methods.config import list_settings, option
from hush.release.folder import CARD, PAGE, PRIVATE_PART, RELEASE, WEIGHTS, check_room, read_json, was_begun
from hush.run import Run
from hush.training import EVERY

# The folder of a run: what it holds, and whether a command may begin or go on there.

OPTIONS, FINISHED, ENDED = "options.json", "finished.json", "ended.json"  # in the private part of a run
BEFORE = (PAGE, CARD, WEIGHTS)  # where earlier versions of hush put a release: into the run's folder itself


def check_free(found: LatestCheckpoint, out: Path, resume: bool) -> None:
    """Refuse a folder whose run cannot go on, though it should, or could go on, though another one is to begin."""
    if found.saved is None and (damaged := found.damaged or (_find_steps(out / PRIVATE_PART) if resume else ())):
        raise InvalidInputError(
            f"no checkpoint in '{out}' is whole ({'; '.join(damaged)}), so its run cannot go on and what its "
            "ledger reserved stays spent: start anew with another --out"
        )
    if resume or found.saved is None:
        return
    step, steps = found.saved.step, int(found.saved.facts["steps"])
    if step < steps and not (out / PRIVATE_PART / ENDED).exists():
        raise InvalidInputError(
            f"'{out}' holds an unfinished run (step {step} of {steps}): add --resume, or give another --out"
        )


def _find_steps(private: Path) -> tuple[str, ...]:
    """What says that steps were taken in a run that is not finished."""
    if (private / FINISHED).exists():
        return ()
    logged = [path.name for path in private.glob(LOG) if path.read_bytes()]
    logged += [path.name for path in private.glob("sums-*") if path.read_bytes().partition(b"\n")[2]]  # after its head
    return (f"all are gone, and '{logged[0]}' says that steps were taken",) if logged else ()


def list_released(out: Path) -> list[Path]:
    """What is there of a release."""
    return [path for path in (out / RELEASE, *legacy_release_files(out)) if path.exists()]


def legacy_release_files(out: Path) -> list[Path]:
    """The files of a release that lies in the run's folder itself: those of hush, by their card, and of nobody else."""
    try:
        written = str(read_json(out / CARD).get("format")).startswith("hush privacy card")
    except InvalidInputError:
        written = False
    return [out / name for name in BEFORE] if written else []


def is_finished(found: LatestCheckpoint, out: Path) -> bool:
    """By the checkpoint of its last step, or by its answer where that is gone."""
    done = found.saved is not None and found.saved.step >= int(found.saved.facts["steps"])
    return done or any((out / PRIVATE_PART / name).exists() for name in (FINISHED, ENDED))


def check_not_lost(out: Path) -> None:
    """A folder with a released model and no run: training anew would put another model in its place."""
    private = out / PRIVATE_PART
    if list_released(out) and not any(private.glob("checkpoint-*")) and not (private / FINISHED).exists():
        raise InvalidInputError(
            f"the run in '{out}' cannot go on, as its private part is gone and only what it released is left: train "
            "anew with another --out"
        )


def remove_empty_dirs(out: Path, there: bool) -> None:
    """Remove what a refused command has made, while its lock is held: folders that hold something stay."""
    with suppress(OSError):
        if not (out / PRIVATE_PART / "matrices").exists():
            (out / PRIVATE_PART / "lock").unlink()
            (out / PRIVATE_PART).rmdir()
        if not there:
            out.rmdir()


@contextmanager
def corrupt_as_input_error(path: Path) -> Iterator[None]:
    """A file with a digest that fits and without the entries that hush writes was written by somebody else."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, HushError):
            raise
        raise InvalidInputError(
            f"'{path}' holds a checkpoint that this hush did not write: start anew elsewhere"
        ) from error


@dataclass(frozen=True, kw_only=True)
class KeepingOptions:
    """What is kept of a run, and where its spend is entered."""

    out: Path | None = field(
        default=None,
        metadata=option("Folder of the run: release/ in it may be copied, private/ may not.", KEEPING, saved=False),
    )
    resume: bool = field(
        default=False,
        metadata=option("Go on with the run in --out, with its own options.", KEEPING, flag="--resume", saved=False),
    )
    overwrite: bool = field(
        default=False,
        metadata=option("Replace the finished run in --out.", KEEPING, flag="--overwrite", saved=False),
    )
    keep_secret: bool = field(
        default=False,
        metadata=option(
            "Keep what can subtract the noise when the run is finished; else it is deleted.",
            KEEPING,
            flag="--keep-secret",
        ),
    )
    checkpoint_every: int = field(default=EVERY, metadata=option("Steps between two checkpoints.", KEEPING))
    ledger: Path | None = field(
        default=None, metadata=option("File in which the spend on the data is entered.", KEEPING, saved=False)
    )
    dataset: str | None = field(
        default=None,
        metadata=option("The data's name in the ledger; 'default' if not given.", KEEPING, saved=False),
    )
    fit_budget: bool = field(
        default=False,
        metadata=option(
            "Lower --epsilon to what the ledger's budget has left, where it is less.",
            KEEPING,
            flag="--fit-budget",
            saved=False,
        ),
    )
    new_dataset: bool = field(
        default=False,
        metadata=option(
            "Needed where the ledger has a budget and does not know the name yet.", KEEPING, flag="--new-dataset"
        ),
    )


def warn_not_saved(given: KeepingOptions) -> None:
    """After the data have paid: what is lost, as nobody said where it should be kept."""
    if given.out is None:
        say("the model was not kept, and training it again costs as much again: give --out DIR to keep it")
    if given.ledger is None and not given.resume and (given.dataset is not None or given.new_dataset):
        say("nothing was entered in a ledger: give --ledger FILE beside the name of the data")


@dataclass
class RunDirectory:
    """The side of a run that must not be lost; without ``--out`` nothing is kept but the ledger."""

    out: Path | None
    resume: bool
    checkpoints: Checkpoints | None = None
    found: LatestCheckpoint | None = None
    account: RunAccount | None = None
    resumed_from: int | None = None
    begun: bool = False
    overwrite: bool = False

    @property
    def release(self) -> Path | None:
        """The folder that may be copied."""
        return None if self.out is None else self.out / RELEASE

    @property
    def replaces(self) -> bool:
        """Whether a release that is there gives way: that of a run that is to be overwritten, or of this very run."""
        return self.overwrite or self.resume

    def recall_finished(self, given: KeepingOptions) -> dict[str, Any] | None:
        """What the finished run in this folder answered, if its secret is gone and it is asked for again."""
        if not self.resume or self.checkpoints is None:
            return None
        path, options = self.checkpoints.directory / FINISHED, self.checkpoints.directory / OPTIONS
        if not path.exists():
            return None
        if options.exists() and options.read_bytes() != write_settings(given):
            raise InvalidInputError(
                f"the run in '{self.out}' is finished and its secret was deleted, so it cannot go on with other "
                "options: train anew with another --out"
            )
        found = read_json(path)
        say(f"the run in '{self.out}' is finished ({found['steps']} steps): reporting it again, nothing is spent")
        if self.release is not None and not self.release.is_dir():
            say(f"its release is not there any more, and cannot be written again: '{self.release}'")
        return {**found, "resumed_from": found["steps"]}

    def finish(self, answer: dict[str, Any], *, keep_secret: bool) -> None:
        """After the release is whole: write down the answer, then delete the secret."""
        if self.out is None or self.checkpoints is None:
            return
        for path in legacy_release_files(self.out) if self.replaces else ():
            path.unlink(missing_ok=True)
        if keep_secret:
            if answer.get("stopped"):  # before its last step, by which a finished run is known
                told = (dump_json(answer["stopped"]) + "\n").encode()
                write_atomic(self.checkpoints.directory / ENDED, told, mode=PRIVATE)
            say(f"the secret is kept, as asked: whoever has '{self.checkpoints.directory}' can subtract the noise")
            return
        write_atomic(
            self.checkpoints.directory / FINISHED, (dump_json(as_json_data(answer)) + "\n").encode(), mode=PRIVATE
        )
        self.checkpoints.forget_secret()

    def attach(self, run: Run, given: KeepingOptions) -> None:
        """Begin the run, or set it to where it stopped, and enter it in its ledger."""
        if self.checkpoints is not None and self.found is not None and self.found.saved is not None and self.resume:
            with corrupt_as_input_error(self.found.saved.path), self._name_options(given):
                _use_same_machinery(self.found.saved.facts)
                self.checkpoints.restore(run, self.found.saved)
            self.resumed_from = run.next
            (self.checkpoints.directory / ENDED).unlink(missing_ok=True)
        elif self.resume:
            say(f"nothing to resume in '{self.out}': starting from the beginning")
        self._enter(run, given)
        if self.checkpoints is not None and self.resumed_from is None:
            self.checkpoints.attach(run)  # before anything of the run that was here is replaced: this may refuse
            for name in (FINISHED, ENDED):
                (self.checkpoints.directory / name).unlink(missing_ok=True)
            write_atomic(self.checkpoints.directory / OPTIONS, write_settings(given), mode=PRIVATE)
            self.checkpoints.begin(run)
            self.begun = True
        self._say_where(run)

    @contextmanager
    def _name_options(self, given: KeepingOptions) -> Iterator[None]:
        """A plan that is another one because of options that are others is refused by their names."""
        try:
            yield
        except OtherPlan as error:
            assert self.checkpoints is not None
            differs = _compare_options(self.checkpoints.directory / OPTIONS, given)
            if not differs:
                raise
            raise Refused(
                f"the run in '{self.out}' was begun with other options ({'; '.join(differs)}), and going on with these "
                "would be another plan: leave them out, or train anew with another --out"
            ) from error

    def _enter(self, run: Run, given: KeepingOptions) -> None:
        path = given.ledger
        before = None if self.checkpoints is None else self.checkpoints.ledger
        if path is None and before is not None:
            path = Path(before["path"])
            if not path.exists():
                raise InvalidInputError(
                    f"this run is entered in the ledger '{path}', which is gone: give it with --ledger"
                )
        if path is None:
            return
        named = given.dataset or (before["dataset"] if before is not None else DATASET)
        self.account = charge(run, Ledger(path), named, self.checkpoints, new_dataset=given.new_dataset)

    def _say_where(self, run: Run) -> None:
        for damage in self.found.damaged if self.found is not None and self.resume else ():
            say(f"{damage}: going back to the checkpoint before it")
        if self.resumed_from is None:
            return
        if run.next == run.plan.steps:
            say(f"the run in '{self.out}' is finished ({run.next} steps): reporting it again, nothing is spent")
        else:
            say(f"resuming at step {run.next} of {run.plan.steps}")

    def keep_matrices(self) -> AbstractContextManager[None]:
        """Within it, solved matrices are kept with the run: computed anew they would differ in their last bits."""
        return nullcontext() if self.checkpoints is None else kept_in(self.checkpoints.directory / "matrices")

    def save(self, run: Run) -> None:
        """A checkpoint now."""
        if self.checkpoints is not None and self.checkpoints.at != run.next:
            self.checkpoints.save(run)

    def forget_unless_begun(self, run: Run) -> None:
        """Where the first step of a new run was refused, nothing was spent: its directory is free again, unless noise
        was drawn before training, which must meet these data alone."""
        if self.checkpoints is None or find_releases(self.checkpoints.directory):
            return
        if self.begun and run.next == 0 and self.account is None:
            self.checkpoints.discard()

    def how_to_go_on(self, run: Run) -> str:
        """Half a sentence on what was kept and what to type."""
        if self.checkpoints is None:
            return "nothing was kept, as there is no --out"
        command = f"hush train --out {shlex.quote(str(self.out))} --resume"
        if self.checkpoints.at is None:
            return "nothing was kept yet"
        if not self.checkpoints.files():
            return f"nothing is left of the run, as '{self.out}' was deleted or moved under it"
        if not self.checkpoints.resumable:
            return f"all is kept up to step {self.checkpoints.at}, but this run cannot be resumed"
        return f"all is kept up to step {self.checkpoints.at}, go on with: {command}"

    def total_for_card(self) -> dict[str, Any]:
        """What the card says of all that the ledger records on these data: public numbers, not where it lies."""
        if self.account is None:
            return {}
        total = self.account.total()
        about = {"unit": total.scope.unit, "protects": total.scope.protects}
        spent = {"epsilon": total.epsilon, "delta": total.delta, "status": total.status, **about}
        return {"ledger": as_json_data(spent)}  # an infinite ε is null

    def sum_up_ledger(self) -> dict[str, Any] | None:
        """What the ledger says of the dataset now, as JSON fields."""
        if self.account is None:
            return None
        ledger, dataset = self.account.ledger, self.account.dataset
        total = ledger.total(dataset) if ledger.budget(dataset) else self.account.total()
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
def open_keeper(out: Path | None, *, resume: bool, overwrite: bool = False) -> Iterator[RunDirectory]:
    """Open the folder before anything expensive starts, and refuse to overwrite a run unless it is finished and that
    was asked for."""
    if out is None:
        if resume:
            raise InvalidInputError("--resume needs the --out of the run that is to go on")
        yield RunDirectory(None, False)
        return
    if resume:
        check_not_lost(out)
    check_room(out / RELEASE, overwrite=True)  # what hush did not write is never replaced
    there = out.exists()
    writable_directory(out)
    checkpoints = Checkpoints(out / PRIVATE_PART)
    checkpoints.tell = say
    try:
        remove_parts(out)
        remove_temporaries(out / RELEASE)
        if (checkpoints.directory / FINISHED).exists():
            checkpoints.forget_secret()  # where a kill came between the two
        found = checkpoints.newest()
        with corrupt_as_input_error(out):
            check_free(found, out, resume)
        if not resume and not overwrite and (is_finished(found, out) or list_released(out)):
            raise InvalidInputError(
                f"'{out}' holds a finished run: add --overwrite to replace it, or give another --out"
            )
        yield RunDirectory(out, resume, checkpoints, found, overwrite=overwrite)
    finally:
        if not was_begun(out):
            remove_empty_dirs(out, there)
        checkpoints.close()


def _compare_options(path: Path, given: KeepingOptions) -> list[str]:
    """The options that were others when the run was begun, as they are typed; none where nobody knows any more."""
    try:
        before, now = read_json(path), json.loads(write_settings(given))
    except InvalidInputError:
        return []
    known = {name: found.option.flag for name, found in list_settings(type(given)).items()}
    return [
        tell_difference(known[name] or f"--{name.replace('_', '-')}", before[name], now[name])
        for name in known
        if name in before and name in now and before[name] != now[name]
    ]


def _use_same_machinery(facts: dict[str, Any]) -> None:
    """What decides the last bits of a sum: the number of threads (set), and the version of torch (reported)."""
    if facts["threads"] != torch.get_num_threads():
        torch.set_num_threads(facts["threads"])
        say(f"using {facts['threads']} threads, as the run did, so that it goes on to the same bits")
    before, now = facts["versions"]["torch"], version("torch")
    if before != now:
        say(f"the run began with torch {before} and goes on with {now}: its bits may differ from an unbroken run's")
