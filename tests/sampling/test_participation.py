"""The properties of each kind of participation."""

from __future__ import annotations

import pytest

from hush.sampling import (
    CyclicPoissonSampled,
    OnePass,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)

# poisson_rate, resampled, fixed_batches, one_gaussian, epoch_steps
TABLE = {
    PoissonSampled(0.1, 20): (0.1, True, False, False, None),
    WithoutReplacement(100, 10, 20): (None, True, False, False, None),
    OnePass(20): (None, False, True, True, None),
    SameOrder(5, 20): (None, False, True, True, 5),
    Separated(4, 5, 20): (None, False, True, True, None),
    Reshuffled(5, 20): (None, False, True, False, 5),
    CyclicPoissonSampled(4, 0.1, 20): (None, False, False, False, None),
}


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: type(kind).__name__)
def test_properties(kind) -> None:
    found = (kind.poisson_rate, kind.resampled, kind.fixed_batches, kind.one_gaussian, kind.epoch_steps)
    assert found == TABLE[kind]
