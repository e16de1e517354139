"""The noise's bits and their transform."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hush.randomness import BLOCK, Secret, normal, normal_of_key
from hush.randomness.cipher import Keystream
from hush.randomness.normals import PAIRS

KEY = bytes(range(32))


def written_out(key, size, dtype):
    """The construction, number by number, in Python's own double precision."""
    kind, b = (np.int32, 31) if dtype == torch.float32 else (np.int64, 63)
    numbers = []
    for block in range(-(-size // BLOCK)):
        stretch = np.zeros(BLOCK * (b + 1) // 8, np.uint8)
        Keystream(key, block * len(stretch) // 16).fill(stretch)
        k1, k2 = stretch.view(kind).reshape(2, PAIRS).astype(np.float64)
        radius, angle = np.sqrt(-np.log((k1**2 + 0.25) / 4.0**b)), math.pi * k2 / 2.0**b
        numbers += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.concatenate(numbers)[:size]


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-3), (torch.float64, 1e-7)])
def test_the_numbers_are_box_and_mullers_of_the_stream(dtype, off):
    """To the rounding of a logarithm near 0, whose root is taken."""
    found = normal_of_key(KEY, 2 * BLOCK + 9, dtype).double().numpy()
    assert np.abs(found - written_out(KEY, 2 * BLOCK + 9, dtype)).max() < off
    assert np.median(np.abs(found - written_out(KEY, 2 * BLOCK + 9, dtype))) < off / 1e3


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.float32, [-0.90417355, -0.98951381, 0.52769345, 1.00429881, 0.02483569, -0.99259847]),
        (
            torch.float64,
            [1.033433861573, -0.025027453361, 0.959045297432, -0.08161644975, -0.713414561411, -0.022235766072],
        ),
    ],
)
def test_recorded_numbers(dtype, values):
    """The first two of each half of a block and of the next block; the same secret has to go on giving them."""
    found = normal_of_key(KEY, BLOCK + 2, dtype)[[0, 1, PAIRS, PAIRS + 1, BLOCK, BLOCK + 1]]
    assert found.tolist() == pytest.approx(values, abs=1e-6 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_and_not_at_two_thirds_or_three_halves(dtype):
    values = normal_of_key(KEY, 200_000, dtype).numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert stats.kstest(values * 2 / 3, "norm").pvalue < 1e-9
    assert stats.kstest(values * 3 / 2, "norm").pvalue < 1e-9
    # the halves of Box and Muller's pairs are independent: neither values nor squares are correlated (4 deviations)
    cosine, sine = values[:PAIRS].astype(np.float64), values[PAIRS : 2 * PAIRS].astype(np.float64)
    assert abs(np.corrcoef(cosine, sine)[0, 1]) < 4 / PAIRS**0.5
    assert abs(np.corrcoef(cosine**2, sine**2)[0, 1]) < 4 / PAIRS**0.5


def test_one_thread_and_two_give_the_same_bits():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = normal_of_key(KEY, 20 * PAIRS + 7, torch.float32)
        torch.set_num_threads(2)
        two = normal_of_key(KEY, 20 * PAIRS + 7, torch.float32)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)


def test_every_stream_and_step_has_its_own_noise():
    secret, like = Secret.from_seed(1), torch.zeros(100, 3)
    first = normal(secret, "noise", 0, like)
    assert first.shape == (300,)
    assert torch.equal(first, normal(secret, "noise", 0, like))
    for other in (normal(secret, "noise", 1, like), normal(secret, "other", 0, like)):
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 0.25
    assert normal(secret, "noise", 0, torch.zeros(0)).shape == (0,)
    assert normal(secret, "noise", 0, torch.zeros(5, dtype=torch.bfloat16)).dtype == torch.bfloat16
