"""Every error that hush raises on purpose.

    HushError
    ├── InvalidInputError (ValueError)       a value, option or file that cannot be used
    │   ├── DataError                        a table, column or cell
    │   └── FormatError                      a file written by hush that is damaged or of another version
    ├── NotProvenError                       no proof for this combination: the reason and the remedy
    ├── UnsupportedModelError                model or loss keeps state, has hooks or unsupported layers
    │   └── ExamplesNotIndependent           the gradient of an example depends on the others of its batch
    ├── BudgetExceededError                  the ledger has no room: what fits
    ├── ResumeError                          checkpoint, data or code differ from the run's, or its log is missing
    ├── RunStateError                        a run used in the wrong order, process or thread
    ├── ReleaseError                         a release that does not verify or cannot be written
    ├── DistributedError                     processes disagree
    │   ├── LostRank                         another process is gone or does not answer
    │   └── Stopped                          process 0 stopped the run and says why
    └── MissingDependencyError (ImportError) names the extra to install

A message is one sentence: what is wrong, with the value; then what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HushError(Exception):
    """Base of every error that hush raises on purpose."""


class InvalidInputError(HushError, ValueError):
    """A value, option or file that cannot be used; the message names it and says what was expected."""


class DataError(InvalidInputError):
    """A table, column or cell that cannot be used."""


class FormatError(InvalidInputError):
    """A file written by hush that is damaged or of another version."""


class NotProvenError(HushError):
    """A combination without a proof; the message says the reason and the remedy."""


class UnsupportedModelError(HushError):
    """The model or loss mixes examples, keeps state, has hooks or layers that are not supported."""


class ExamplesNotIndependent(UnsupportedModelError):
    """The gradient of an example depends on the others of its batch: this run takes no further step and releases
    nothing."""


class BudgetExceededError(HushError):
    """The ledger has no room for the run; the message says what fits."""


class ResumeError(HushError):
    """A run that cannot be resumed: its checkpoint, data or code differ, or its log is missing."""


class RunStateError(HushError):
    """A run used in the wrong order, process or thread."""


class ReleaseError(HushError):
    """A release that does not verify or cannot be written."""


class DistributedError(HushError):
    """Processes disagree, or one was lost."""


class Stopped(DistributedError):
    """Process 0 has stopped the run; process 0 says why."""


class LostRank(DistributedError):
    """Another process of this run is gone or does not answer."""


class MissingDependencyError(HushError, ImportError):
    """A package that is not installed; the message names the extra to install."""


def find_nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant: a synonym, or the closest spelling; None if none is close."""
    from hush._internal.text import translate

    names = sorted(known)
    if (meant := translate(name)) in names:
        return meant
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return close[0] if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the known name that was probably meant, or the list of known names."""
    names = sorted(known)
    meant = find_nearest(name, names)
    return f"known: {', '.join(names)}" if meant is None else f"did you mean '{meant}'?"
