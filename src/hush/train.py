"""The training loop, whole: draw a batch, take a step, hand out a record."""

from __future__ import annotations

from collections.abc import Iterator

from hush.run import Record, Run


def train(run: Run) -> Iterator[Record]:
    """Take every step that remains; what is yielded is private."""
    run.model.train()
    for batch in run.batches():
        yield run.step(batch)
    run.model.eval()
