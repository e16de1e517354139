"""The loop: what it is asked for is checked before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from hush import InvalidInputError, make_plan, train
from hush.checkpointing import Checkpoints


@pytest.mark.parametrize("every", [0, -1, 2.5])
def test_checkpoints_come_after_whole_numbers_of_steps(tmp_path: Path, every: float) -> None:
    plan = make_plan("dp-sgd", examples=20, batch_size=5, steps=2, noise_multiplier=1.0)
    data = (torch.rand(20, 3), torch.arange(20) % 2)
    run = plan.start(torch.nn.Linear(3, 2), lambda m, b: cross_entropy(m(b[0]), b[1], reduction="none"), data, secret=1)
    kept = Checkpoints(tmp_path / "kept")
    kept.begin(run)
    with pytest.raises(InvalidInputError, match="every must be a whole number of at least 1"):
        next(train(run, checkpoints=kept, every=every))  # type: ignore[arg-type]
    assert run.next == 0
    kept.close()
