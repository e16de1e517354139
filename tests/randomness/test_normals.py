"""The random bits of the noise and their transform to normal numbers."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from hush.randomness import BLOCK, Secret, normal, normal_of_key, normals
from hush.randomness.cipher import Keystream
from hush.randomness.normals import PAIRS

KEY = bytes(range(32))
RECORDED = [
    "0x1.475578cac9403p-1",
    "-0x1.098e3f4e2d6c6p+0",
    "-0x1.8711a5ac15b92p-6",
    "-0x1.19d387e76f9b0p-1",
    "-0x1.ba11c8a79105cp-1",
    "-0x1.23330d46776d0p+0",
]


def written_out(key, size):
    """The layout, block by block, with libm's functions."""
    numbers = []
    for block in range(-(-size // BLOCK)):
        segment = np.zeros(8 * BLOCK, np.uint8)
        Keystream(key, block * len(segment) // 16).fill(segment)
        a, b = segment.view("<u8").reshape(2, PAIRS)
        u = (a.astype(np.float64) * 2**10 + (b % 1024) + 0.5) / 2.0**74
        angle = math.pi / 2 * ((b >> 62) + ((b >> 10) % 2**52) / 2.0**52 - 0.5)
        radius = np.sqrt(-2 * np.log(u))
        numbers += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.concatenate(numbers)[:size]


@pytest.mark.parametrize("size", [1, 1001, PAIRS, PAIRS + 1, 2 * BLOCK + 9])
def test_the_numbers_are_box_and_mullers_of_the_stream(size):
    found = normal_of_key(KEY, size, torch.float64).numpy()
    assert len(found) == size
    assert np.abs(found - written_out(KEY, size)).max() < 1e-12


def test_recorded_numbers():
    """The first two of each half of a block and of the next block; the same secret must keep giving them."""
    found = normal_of_key(KEY, BLOCK + 2, torch.float64)[[0, 1, PAIRS, PAIRS + 1, BLOCK, BLOCK + 1]]
    assert [value.hex() for value in found.tolist()] == RECORDED


def test_float32_is_the_double_converted():
    whole = normal_of_key(KEY, BLOCK + 2, torch.float64)
    assert torch.equal(normal_of_key(KEY, BLOCK + 2, torch.float32), whole.float())


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


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def test_one_thread_and_two_give_the_same_bits(two_threads):
    two = normal_of_key(KEY, 20 * PAIRS + 7, torch.float32)
    torch.set_num_threads(1)
    assert torch.equal(normal_of_key(KEY, 20 * PAIRS + 7, torch.float32), two)


def test_without_memory_for_a_thread_the_noise_is_made_in_one(two_threads, no_thread):
    found = normal_of_key(KEY, 20 * PAIRS + 7, torch.float32)
    torch.set_num_threads(1)
    assert torch.equal(normal_of_key(KEY, 20 * PAIRS + 7, torch.float32), found)


@pytest.mark.parametrize("failing", range(3))
def test_an_error_in_any_thread_is_raised(failing):
    done = []

    def part(number):
        done.append(number)
        if number == failing:
            raise MemoryError("full")

    with pytest.raises(MemoryError, match="full"):
        normals._run_in_threads([partial(part, number) for number in range(3)])
    assert sorted(done) == [0, 1, 2]


def test_every_stream_and_step_has_its_own_noise():
    secret, like = Secret.from_seed(1), torch.zeros(100, 3)
    first = normal(secret, "noise", 0, like)
    assert first.shape == (300,)
    assert torch.equal(first, normal(secret, "noise", 0, like))
    for other in (normal(secret, "noise", 1, like), normal(secret, "other", 0, like)):
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 0.25
    assert normal(secret, "noise", 0, torch.zeros(0)).shape == (0,)
    assert normal(secret, "noise", 0, torch.zeros(5, dtype=torch.bfloat16)).dtype == torch.bfloat16
