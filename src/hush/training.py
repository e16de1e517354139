"""The training loop, whole: draw a batch, take a step, keep what must not be lost, hand out a record."""

from __future__ import annotations

from collections.abc import Iterator

from hush._internal import validate
from hush.checkpointing import Checkpoints
from hush.distributed.group import Record
from hush.run import Run

EVERY = 50


def train(run: Run, *, checkpoints: Checkpoints | None = None, every: int = EVERY) -> Iterator[Record]:
    """Take every step that remains, with a checkpoint every ``every`` steps and after the last; what is yielded is
    private."""
    validate.positive_int(every=every)
    run.model.train()
    for batch in run.batches():
        record = run.step(batch)
        if checkpoints is not None:
            checkpoints.log(record)
            if run.next % every == 0 or run.next == run.plan.steps:
                checkpoints.save(run)
        yield record
    run.model.eval()
