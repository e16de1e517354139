"""Splits: a partition, reproducible from a seed, independent of row contents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hush.datasets.splits import hold_out
from hush.errors import InvalidInputError


@given(rows=st.integers(1, 200), fraction=st.floats(0, 0.99), seed=st.integers(0, 1000))
def test_a_split_is_a_partition(rows: int, fraction: float, seed: int) -> None:
    kept, held = hold_out((torch.arange(rows), torch.arange(rows) * 2), fraction, seed=seed)
    assert torch.cat([kept[0], held[0]]).sort().values.tolist() == list(range(rows))
    assert (kept[1] == 2 * kept[0]).all()
    assert len(held[0]) == int(fraction * rows + 1e-9)


def test_the_same_seed_gives_the_same_split_whatever_the_rows() -> None:
    first = hold_out((torch.arange(100),), 0.1, seed=3)
    again = hold_out((torch.arange(100) + 1000,), 0.1, seed=3)
    other = hold_out((torch.arange(100),), 0.1, seed=4)
    assert torch.equal(first[1][0] + 1000, again[1][0])
    assert not torch.equal(first[1][0], other[1][0])


def test_exact_sizes() -> None:
    _, held = hold_out((torch.zeros(60_000),), 0.1, seed=0)
    assert len(held[0]) == 6_000  # 54 000 stay, as in the published runs


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2])
def test_a_fraction_outside_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidInputError, match="0.*1"):
        hold_out((torch.zeros(3),), fraction, seed=0)
