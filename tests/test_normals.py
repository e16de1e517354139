"""The noise's bits and their transform."""

import ctypes

import numpy as np
import pytest
import torch
from scipy import stats

from hush import ciphers
from hush.normals import PAIRS, normal_of_key
from hush.randomness import Secret, normal

KEY = bytes(range(32))


def stream(key, block, size):
    buffer = ctypes.create_string_buffer(size)
    ciphers.keystream(key, block)(ctypes.addressof(buffer), size)
    return buffer.raw


@pytest.fixture(params=["library", "tables"])
def implementation(request, monkeypatch):
    if request.param == "tables":
        monkeypatch.setattr(ciphers, "_libcrypto", lambda: None)
    elif ciphers._libcrypto() is None:
        pytest.skip("no libcrypto on this machine")


@pytest.mark.usefixtures("implementation")
def test_the_bytes_are_aes_256_in_counter_mode():
    # AES-256 of the zero block under the zero key: NIST's known-answer tests (GFSbox/KeySbox, all-zero case)
    assert stream(bytes(32), 0, 16).hex() == "dc95c078a2408989ad48a21492842087"
    # the stream is one: from any block on, the same bytes
    assert stream(KEY, 0, 64)[32:] == stream(KEY, 2, 32)


def test_library_and_tables_give_the_same_bytes(monkeypatch):
    ours = bytes(ciphers.counter_bytes(ciphers.expanded_key(KEY), 2**32 - 3, 10))
    assert stream(KEY, 2**32 - 3, 160) == ours


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
