"""Keys and generators: reproducible from a run's secret, and different for every purpose."""

from __future__ import annotations

import hashlib

import pytest
import torch

from hush.errors import UnsupportedModelError
from hush.randomness import Counter, Secret, generator, public_seeds, seeded, streams

KEY = bytes(range(32))
OTHER = hashlib.blake2b(b"another key", digest_size=32).digest()
CPU = torch.device("cpu")


def test_recorded_keys() -> None:
    """Noise already released came from these."""
    secret = Secret.from_seed(3, "a plan")
    assert secret.key.hex() == "86d0c6f63b5f2e07ec17eb5a37e1f6fb7dbc5bafbd76cb7d26676f45f6640c02"
    assert secret.derive("noise/gradient", 4).hex() == "93c713364370e5b086a58c3a4d5d8fa9"
    whole = "fc30fe123cbb38c4dff2e476d5ed50abd7ad76efb59ad6ab1bc04806f517b0aa"
    assert secret.derive("noise/gradient", 4, size=32).hex() == whole
    assert secret.name == "4a8dcc9e56c9ea2fdbd367bc9eb6de35"
    child = "4b076c8c1f98f31cfe31699026e87a2f0d030ac9a321c99251f506273e90d741"
    assert secret.child("part").key.hex() == child


def test_keys_are_blake2b_of_stream_and_step() -> None:
    expected = hashlib.blake2b(b"noise/gradient\x0012", key=KEY, digest_size=32).digest()
    assert Secret(KEY).derive("noise/gradient", 12, size=32) == expected
    streams = [("a", 1), ("a", 11), ("a1", 1), ("b", 1), ("", 1)]
    assert len({Secret(key).derive(*where) for where in streams for key in (KEY, OTHER)}) == 10


def test_only_the_fixed_order_stays_the_first_secrets() -> None:
    later = Secret(KEY, "system", OTHER)
    assert later.derive(streams.ORDER, 0).hex() == "b543f5841ff5d9b054f6b30952b4735b"
    assert later.derive(streams.ORDER, 0) == Secret(OTHER).derive(streams.ORDER, 0)
    assert later.derive("sample", 0).hex() == "7f8aab131e6132573b416cf57dea790b"
    assert later.derive("sample", 0) == Secret(KEY).derive("sample", 0)
    assert later.first == Secret(OTHER)
    assert later.renewed().first == later.first
    assert later.renewed().key not in (KEY, OTHER)


def test_a_secret_is_not_printed_and_comes_back_from_json() -> None:
    later = Secret(KEY, "seed", OTHER)
    assert repr(later) == "Secret(origin='seed', key hidden)"
    assert Secret.from_json(later.to_json()) == later


def test_recorded_generators() -> None:
    """Philox and SeedSequence, whose bits numpy promises to keep."""
    raw = generator(Secret.from_seed(3, "a plan"), "sample", 2).bit_generator.random_raw(2)
    assert raw.tolist() == [10888850052054401274, 13855688695735878701]
    assert public_seeds(12345, 3) == (959183449, 1457248422, 642571064)
    assert public_seeds(12345, 2) == public_seeds(12345, 3)[:2]
    assert public_seeds(12345, 0) == ()


def test_a_public_seed_leaves_the_callers_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    with seeded(7):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(7):
        assert torch.equal(torch.rand(3), first)


def test_the_counter_counts_and_sees_what_was_drawn_without_it() -> None:
    before = torch.get_rng_state()
    with Counter.counting(CPU) as counter:
        assert [counter.take() for _ in range(3)] == [0, 1, 2]
        rewind = counter.bookmark()
        assert counter.take() == 3
        rewind()
        assert counter.take() == 3
        torch.rand(1)
        with pytest.raises(UnsupportedModelError):
            counter.take()
    assert torch.equal(torch.get_rng_state(), before)
