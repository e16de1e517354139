"""One run as a text that travels to another process, and its answer as a text that comes back.

Both are JSON: what is unpacked on either side is plain data, never an object. The process that gets an errand checks
first that it is of the same versions, and that it works on the same store.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hush.bench.execute import Job, attempt
from hush.bench.meeting import Meeting, NotShared
from hush.bench.run import Conditions
from hush.bench.store import DISK, Store
from hush.bench.trial import Trial
from hush.errors import BadInput
from hush.files import NoLocks
from hush.version import read_versions

SAME = ("hush", "dp-accounting")
DONE, BUSY, MET, FULL, REFUSED = "done", "busy", "met", "full", "refused"


class Unfit(BadInput):
    """A process that cannot do the work that is sent to it: of other versions, or without the device."""


@dataclass(frozen=True)
class Terms:
    """What all errands of a sweep share: where a run happens, and the ``met`` nodes that are known to share the
    store."""

    device: str
    threads: int
    meeting: Meeting
    met: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Answer:
    """How an errand ended: the run is ``done`` (by whomever), somebody else is ``busy`` with it, the node was ``met``
    for the first time and has run nothing, the disk is ``full`` (``text`` is the error's number), or the worker has
    ``refused`` (``text`` says why)."""

    end: str
    text: str = ""

    def to_text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Answer:
        """Back from its text."""
        return Answer(**json.loads(text))


def write_errand(job: Job, trial: Trial, terms: Terms) -> str:
    """The errand of one run of a job."""
    errand = {
        "versions": read_versions(*SAME),
        "trial": asdict(trial),
        "key": trial.key,
        "weights": job.settings.weights,
        "checkpoint_seconds": job.settings.checkpoint_seconds,
        "device": terms.device,
        "threads": terms.threads,
        "meeting": {"name": terms.meeting.name, "token": terms.meeting.token, "met": sorted(terms.met)},
        "store": str(job.store),
    }
    return json.dumps(errand)


def run_errand(text: str, node: str) -> str:
    """Do what the errand says, on this node. What makes every errand fail here is an answer; any other error is for the
    driver to count."""
    try:
        return _do(json.loads(text), node).to_text()
    except (Unfit, NotShared, NoLocks) as error:
        return Answer(REFUSED, str(error)).to_text()
    except OSError as error:
        if error.errno in DISK:
            return Answer(FULL, str(error.errno)).to_text()
        raise


def _do(errand: dict[str, Any], node: str) -> Answer:
    check_versions(errand["versions"], node)
    store, met = Store(Path(errand["store"])), errand["meeting"]
    if node not in met["met"]:
        Meeting(store.locks.directory, met["name"], met["token"]).attend(node)
        return Answer(MET, node)
    trial = Trial(**errand["trial"])
    if trial.key != errand["key"]:
        raise Unfit(f"node {node} takes run {errand['key']} for another one: give all nodes the same hush")
    _check_device(errand["device"], node)
    torch.set_num_threads(errand["threads"])
    conditions = Conditions(errand["device"], errand["weights"], errand["checkpoint_seconds"])
    return Answer(DONE if attempt(trial, store, conditions) or store.has(trial.key) else BUSY)


def check_versions(wanted: dict[str, str], node: str) -> None:
    """Refuse to work for another version: the same run would not be the same."""
    for name, found in read_versions(*SAME).items():
        if found != wanted.get(name):
            raise Unfit(
                f"node {node} (process {os.getpid()}) has {name} {found} and this sweep {wanted.get(name)}: install "
                "the same version on all nodes"
            )


def _check_device(device: str, node: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise Unfit(f"node {node} was to run on a GPU and its torch sees none: leave --gpus out, or repair that node")
