"""AES-256 in counter mode and as GMAC: published vectors, and the bytes that runs and checkpoints depend on."""

from __future__ import annotations

import hashlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hush.randomness.cipher import Keystream, compute_tag, encrypt_counters

KEY = bytes(range(32))
OTHER = hashlib.blake2b(b"another key", digest_size=32).digest()
NONCE = (77).to_bytes(12, "big")


def stream(key: bytes, block: int, *sizes: int) -> bytes:
    """Successive pieces of one stream, joined."""
    source, pieces = Keystream(key, block), [np.zeros(size, np.uint8) for size in sizes]
    for piece in pieces:
        source.fill(piece)
    return b"".join(piece.tobytes() for piece in pieces)


def scattered(key: bytes, starts: list[int], blocks: int) -> np.ndarray:
    return encrypt_counters(key, np.array(starts, np.uint64), blocks)


def tag(key: bytes, nonce: bytes, *pieces: bytes) -> bytes:
    return compute_tag(key, nonce, (np.array(list(piece), np.uint8) for piece in pieces))


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


class TestPublishedVectors:
    def test_one_block(self) -> None:
        """FIPS 197, appendix C.3; and the zero block under the zero key of NIST's known-answer tests."""
        assert stream(KEY, 0x00112233445566778899AABBCCDDEEFF, 16).hex() == "8ea2b7ca516745bfeafc49904b496089"
        assert stream(bytes(32), 0, 16).hex() == "dc95c078a2408989ad48a21492842087"

    def test_counter_mode(self) -> None:
        """SP 800-38A, F.5.5 CTR-AES256.Encrypt: its "output blocks", and text plus stream."""
        key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
        found = stream(key, 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF, 64)
        assert [found[i : i + 16].hex() for i in range(0, 64, 16)] == [
            "0bdf7df1591716335e9a8b15c860c502",
            "5a6e699d536119065433863c8f657b94",
            "1bc12c9c01610d5d0d8bd6a3378eca62",
            "2956e1c8693536b1bee99c73a31576b6",
        ]
        text = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
        sum_ = bytes(a ^ b for a, b in zip(text, found[:16], strict=True))
        assert sum_.hex() == "601ec313775789a5b7a7f504bbf3d228"

    def test_gmac(self) -> None:
        """McGrew and Viega, "The Galois/Counter Mode of Operation", test case 13: nothing at all. NIST's CAVP file
        gcmEncryptExtIV256.rsp, PTlen 0, AADlen 128, Taglen 128, count 0: one block."""
        assert tag(bytes(32), bytes(12)).hex() == "530f8afbc74536b9a963b4f1c4cb738b"
        key = bytes.fromhex("78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223")
        nonce, content = bytes.fromhex("d79cf22d504cc793c3fb6c8a"), bytes.fromhex("b96baa8c1c75a671bfb2d08d06be5f36")
        assert tag(key, nonce, content).hex() == "3e5d486aa2e30b22e040b85723a06e76"


class TestRecordedBytes:
    """Noise already released and tags in checkpoints are of these bytes. Recorded with OpenSSL's libcrypto 3, called
    without a package between."""

    def test_streams(self) -> None:
        sizes = [0, 1, 15, 16, 17, (1 << 15) + 3, (1 << 20) + 33]
        blocks = [0, 1, 2**32 - 3, 2**64 - 1]
        found = digest(*(stream(k, block, size) for k in (KEY, OTHER) for block in blocks for size in sizes))
        assert found == "0e06f83e7b42d42b3baa2cb002f03e62c745e29ef9ae7e75b39e7c4a217c5b75"

    def test_counters(self) -> None:
        rows = [scattered(key, [5, 3, 1000, 2**40], blocks) for key in (KEY, OTHER) for blocks in (1, 3, 4095)]
        assert [row.shape for row in rows[:3]] == [(4, 16), (4, 48), (4, 65520)]
        assert (
            digest(*(row.tobytes() for row in rows))
            == "e78980cd9986f089ce060854a93a698783429f17825bebb49e59e1b6dae6ad88"
        )

    def test_tags(self) -> None:
        contents = [[], [b""], [b"x"], [b"x" * 15, b"y"], [b"a" * 17, b"", b"b" * ((1 << 15) + 3)]]
        found = digest(*(tag(key, n, *c) for key in (KEY, OTHER) for n in (bytes(12), NONCE) for c in contents))
        assert found == "6a875432f64537c9205a2074fa7e9957ad0317bd13588b41dfb8fb0799bc5189"


def test_a_stream_is_one_from_any_block_on_and_in_any_pieces() -> None:
    whole = stream(KEY, 0, 5120)
    assert stream(KEY, 2, 32) == whole[32:64]
    assert stream(KEY, 0, 16, 0, 1, 31, 5000, 72) == whole
    long = (1 << 20) + 48  # more than one call of the cipher
    assert stream(KEY, 3, long)[-32:] == stream(KEY, 3 + long // 16 - 2, 32)


def test_scattered_rows_are_the_streams() -> None:
    rows = scattered(KEY, [9, 2, 2**32 - 1], 3)
    assert [row.tobytes() for row in rows] == [stream(KEY, block, 48) for block in (9, 2, 2**32 - 1)]
    assert scattered(KEY, [], 3).shape == (0, 48)


def test_nothing_around_a_buffer_is_written() -> None:
    around = np.full(64, 7, np.uint8)
    Keystream(KEY, 0).fill(around[16:33])
    assert around[16:33].tobytes() == stream(KEY, 0, 17)
    assert set(around[:16].tolist()) == set(around[33:].tolist()) == {7}
    Keystream(KEY, 0).fill(around[:0])


def test_a_tag_is_of_all_pieces_one_after_the_other() -> None:
    content = bytes(range(200))
    whole = tag(KEY, NONCE, content)
    assert tag(KEY, NONCE, content[:24], b"", content[24:]) == whole
    assert len({whole, tag(KEY, bytes(12), content), tag(OTHER, NONCE, content), tag(KEY, NONCE, content[1:])}) == 4


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_keys_have_256_bits(size: int) -> None:
    """AES-128 would take sixteen bytes without a word."""
    key = bytes(size)
    for use in (lambda: stream(key, 0, 16), lambda: scattered(key, [0], 1), lambda: tag(key, NONCE)):
        with pytest.raises(AssertionError, match="256"):
            use()


def use_all(number: int) -> str:
    """Everything that starts a cipher, in short pieces, so that other threads come in between."""
    key = hashlib.blake2b(str(number % 3).encode(), digest_size=32).digest()
    pieces = stream(key, number, *[4096] * 20)
    return digest(pieces, scattered(key, [number, 1], 200).tobytes(), tag(key, NONCE, pieces[:5000], pieces[5000:9000]))


def test_threads_share_nothing() -> None:
    expected = [use_all(number) for number in range(24)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(use_all, range(24))) == expected
    assert len(set(expected)) == 24


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_goes_on_with_the_same_bytes() -> None:
    expected = use_all(5)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses none of the threads that are lost in it
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, use_all(5).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == expected
    os.waitpid(child, 0)
    assert use_all(5) == expected
