"""The folder of a run: what it holds, and whether a command may begin or go on there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hush.artefact.folder import CARD, PAGE, PRIVATE_PART, RELEASE, WEIGHTS, read_json
from hush.checkpoint import Found
from hush.checkpoint.directory import LOG
from hush.errors import BadInput, HushError

OPTIONS, FINISHED, ENDED = "options.json", "finished.json", "ended.json"  # in the private part of a run
BEFORE = (PAGE, CARD, WEIGHTS)  # where earlier versions of hush put a release: into the run's folder itself


def check_free(found: Found, out: Path, resume: bool) -> None:
    """Refuse a folder whose run cannot go on, though it should, or could go on, though another one is to begin."""
    if found.saved is None and (damaged := found.damaged or (_find_steps(out / PRIVATE_PART) if resume else ())):
        raise BadInput(
            f"no checkpoint in '{out}' is whole ({'; '.join(damaged)}), so its run cannot go on and what its "
            "ledger reserved stays spent: start anew with another --out"
        )
    if resume or found.saved is None:
        return
    step, steps = found.saved.step, int(found.saved.facts["steps"])
    if step < steps and not (out / PRIVATE_PART / ENDED).exists():
        raise BadInput(f"'{out}' holds an unfinished run (step {step} of {steps}): add --resume, or give another --out")


def _find_steps(private: Path) -> tuple[str, ...]:
    """What says that steps were taken in a run that is not finished."""
    if (private / FINISHED).exists():
        return ()
    logged = [path.name for path in private.glob(LOG) if path.read_bytes()]
    logged += [path.name for path in private.glob("sums-*") if path.read_bytes().partition(b"\n")[2]]  # after its head
    return (f"all are gone, and '{logged[0]}' says that steps were taken",) if logged else ()


def list_released(out: Path) -> list[Path]:
    """What is there of a release."""
    return [path for path in (out / RELEASE, *list_before(out)) if path.exists()]


def list_before(out: Path) -> list[Path]:
    """The files of a release that lies in the run's folder itself: those of hush, by their card, and of nobody else."""
    try:
        written = str(read_json(out / CARD).get("format")).startswith("hush privacy card")
    except BadInput:
        written = False
    return [out / name for name in BEFORE] if written else []


def is_finished(found: Found, out: Path) -> bool:
    """By the checkpoint of its last step, or by its answer where that is gone."""
    done = found.saved is not None and found.saved.step >= int(found.saved.facts["steps"])
    return done or any((out / PRIVATE_PART / name).exists() for name in (FINISHED, ENDED))


def check_not_lost(out: Path) -> None:
    """A folder with a released model and no run: training anew would put another model in its place."""
    private = out / PRIVATE_PART
    if list_released(out) and not any(private.glob("checkpoint-*")) and not (private / FINISHED).exists():
        raise BadInput(
            f"the run in '{out}' cannot go on, as its private part is gone and only what it released is left: train "
            "anew with another --out"
        )


def leave_no_trace(out: Path, there: bool) -> None:
    """Remove what a refused command has made, while its lock is held: folders that hold something stay."""
    with suppress(OSError):
        if not (out / PRIVATE_PART / "matrices").exists():
            (out / PRIVATE_PART / "lock").unlink()
            (out / PRIVATE_PART).rmdir()
        if not there:
            out.rmdir()


@contextmanager
def as_hush_wrote_it(path: Path) -> Iterator[None]:
    """A file with a digest that fits and without the entries that hush writes was written by somebody else."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, HushError):
            raise
        raise BadInput(f"'{path}' holds a checkpoint that this hush did not write: start anew elsewhere") from error
