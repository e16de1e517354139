"""Checksums of tensors: the formula, and that every bit and every position counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hush._internal.tensors import EVERY, WIDTH, _mix_places, _weigh_rows, checksum, fold_words, multiply_by_sums

CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(1)
LARGE = torch.randn(WIDTH, WIDTH, generator=GENERATOR)


def by_hand(tensor: Tensor, which: int) -> list[int]:
    """Σ rᵢ wᵢⱼ modulo 2³², by numpy's unsigned numbers."""
    octets = tensor.contiguous().numpy().tobytes()
    words = np.frombuffer(octets + bytes(-len(octets) % 4), np.uint32)
    rows = -(-len(words) // WIDTH)
    places = np.pad(words, (0, rows * WIDTH - len(words))).reshape(rows, WIDTH)
    weights = _weigh_rows(rows + 1, which, CPU).numpy().astype(np.uint32)
    fold = (places * weights[:rows, None]).sum(0, dtype=np.uint32)
    some = places[: len(words) // WIDTH][::EVERY].astype(np.int32)
    mixed = (some ^ (some >> 15)).astype(np.uint32)
    return (
        np.concatenate([fold, (mixed * weights[: len(mixed), None]).sum(0, dtype=np.uint32)]).astype(np.int32).tolist()
    )


@pytest.mark.parametrize("size", [0, 1, 3, WIDTH - 1, WIDTH, WIDTH + 1, 5 * WIDTH + 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16, torch.uint8, torch.bool])
def test_it_is_the_formula(size: int, dtype: torch.dtype) -> None:
    tensor = (torch.randn(size, generator=GENERATOR) * 50).abs().to(dtype)
    for which in (0, 1):
        assert fold_words(tensor, which).tolist() == by_hand(tensor, which)
        spread = tensor.view(-1, 1).expand(-1, 2)  # not contiguous
        assert fold_words(spread, which).tolist() == by_hand(tensor.repeat_interleave(2), which)


def test_the_weights_are_odd_and_different() -> None:
    both = torch.stack([_weigh_rows(4 * WIDTH, which, CPU) for which in (0, 1)])
    assert bool((both % 2 == 1).all())
    assert len(set(both.flatten().tolist())) > 0.999 * both.numel()
    assert torch.equal(both[:, :WIDTH], torch.stack([_weigh_rows(WIDTH, which, CPU) for which in (0, 1)]))
    assert bool((_mix_places(WIDTH, 0) % 2 == 1).all())


def swapped(at: Tensor, one: int, other: int) -> Tensor:
    new = at.flatten().clone()
    new[[one, other]] = new[[other, one]]
    return new.view_as(at)


ORDERS = {
    "upside down": lambda t: t.flip(0),
    "from the end": lambda t: t.flip(0, 1),
    "rolled": lambda t: t.roll(1),
    "transposed": lambda t: t.t().contiguous(),
    "neighbours": lambda t: swapped(t, 7, 8),
    "one below the other": lambda t: swapped(t, 7, WIDTH + 7),
    "far apart": lambda t: swapped(t, 7, 512 * WIDTH + 7),
}


@pytest.mark.parametrize("order", ORDERS)
def test_another_order_is_seen(order: str) -> None:
    other = ORDERS[order](LARGE)
    for which in (0, 1):
        assert not torch.equal(fold_words(LARGE, which), fold_words(other, which))
    assert checksum([LARGE]) != checksum([other])
    plain = [int(t.view(torch.int32).sum(dtype=torch.int32)) for t in (LARGE, other)]
    assert plain[0] == plain[1]  # a sum without weights sees nothing


@pytest.mark.parametrize("bit", [0, 1, 23, 31])
def test_one_bit_of_one_word_is_in_both_folds(bit: int) -> None:
    before = [fold_words(LARGE, which) for which in (0, 1)]
    for place in (0, WIDTH - 1, WIDTH, LARGE.numel() - 1):
        other = LARGE.flatten().clone()
        other.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 1 << bit
        for which in (0, 1):
            changed = (fold_words(other, which) != before[which])[:WIDTH]
            assert changed.nonzero().flatten().tolist() == [place % WIDTH]
        assert checksum([LARGE]) != checksum([other])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_of_all_weights_are_seen(dtype: torch.dtype) -> None:
    """2³¹ times an odd number is 2³¹: of an even number of rows the first half of the fold sees nothing."""
    weights = LARGE.to(dtype)
    for which in (0, 1):
        before, after = fold_words(weights, which), fold_words(-weights, which)
        assert torch.equal(before[:WIDTH], after[:WIDTH])
        assert not torch.equal(before, after)
    assert checksum([weights]) != checksum([-weights])


def test_orders_of_round_numbers_are_seen() -> None:
    """Words that end in many zeros, in another order of rows: few bits of each place say so, but of many places."""
    halves = torch.randint(-40, 40, (8, WIDTH), generator=GENERATOR).float() / 2
    orders = [halves[torch.tensor([*range(k), *reversed(range(k, 8))])] for k in range(7)]
    assert len({tuple(fold_words(order).tolist()) for order in orders}) == len({checksum([o]) for o in orders}) == 7


def test_a_list_is_more_than_its_parts() -> None:
    one, other = LARGE[0], LARGE[1]
    lists = ([one, other], [other, one], [one], [one, one])
    assert len({checksum(each) for each in lists}) == 4
    assert max(map(checksum, lists)) < 2**52
    assert checksum([one.clone(), other.clone()]) == checksum([one, other])


def test_the_product_that_a_graphics_card_makes_is_the_same() -> None:
    words, weights = LARGE.view(torch.int32), _weigh_rows(WIDTH, 0, CPU)
    assert torch.equal(multiply_by_sums(weights, words), weights @ words)
