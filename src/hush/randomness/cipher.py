"""AES-256 (FIPS 197) in counter mode (SP 800-38A) and as GMAC (SP 800-38D), from the `cryptography` package.

Block n of a key's stream is AES_key(n), with n as sixteen big-endian bytes. Blocks of one key differ only in n, so
different purposes need different keys: each key comes from `hush.randomness.Secret.derive`, which takes a stream name
and a step, and no key has two purposes.

A started cipher has a position. It never outlives the call that started it, or the `Keystream` that holds it: threads
and forked processes share keys, but never a position in a stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
"""Contiguous bytes in memory, in one dimension or as the rows of a table."""

BLOCK_BYTES = 16
_ZEROS = memoryview(bytes(1 << 20))
_MOST = 1 << 30  # bytes in one call of the cipher, which takes their number as a C int


class Keystream:
    """The bytes AES_key(block), AES_key(block + 1), …; use it from one thread only.

    Computed as counter-mode encryption of zeros; the 128-bit counter starts at ``block``.
    """

    def __init__(self, key: bytes, block: int) -> None:
        nonce = block.to_bytes(BLOCK_BYTES, "big")
        self._encryptor = Cipher(_aes_256(key), modes.CTR(nonce)).encryptor()

    def fill(self, buffer: Octets) -> None:
        """Write the next bytes of the stream over all of ``buffer``, which may be empty."""
        view = buffer.data
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            written = self._encryptor.update_into(_ZEROS[: len(part)], part)
            assert written == len(part), "counter mode writes as many bytes as it is given"


def encrypt_counters(key: bytes, starts: NDArray[np.uint64], blocks: int) -> Octets:
    """The key-stream bytes of ``blocks`` consecutive blocks from each start (below 2⁶⁴), one row per start.

    Every counter is encrypted directly, which is what counter mode does; one call serves all rows.
    """
    counters = np.zeros((len(starts), blocks, 2), ">u8")
    counters[..., 1] = starts[:, None] + np.arange(blocks, dtype=np.uint64)
    given = counters.reshape(-1).view(np.uint8)
    out = np.empty(len(given) + BLOCK_BYTES - 1, np.uint8)  # the package requires room for a partial block
    written = Cipher(_aes_256(key), modes.ECB()).encryptor().update_into(given.data, out.data)
    assert written == len(given), "every counter is a whole block"
    return out[: len(given)].reshape(len(starts), blocks * BLOCK_BYTES)


def compute_tag(key: bytes, nonce: bytes, pieces: Iterable[Octets]) -> bytes:
    """A tag of sixteen bytes: GMAC with AES-256 and a nonce of twelve bytes, over the concatenation of all pieces.

    Without the key, another content has the same tag with a probability of about its length over 2¹²⁸. GMAC is GCM
    without a text: with H = AES_key(0), the polynomial in H whose coefficients are the content's blocks and its length,
    over GF(2¹²⁸), plus AES_key(nonce ‖ 1). It is a universal hash and processes about ten gigabytes per second where
    the processor multiplies polynomials. Two tags under one key and nonce reveal H, so tags are private.
    """
    assert len(nonce) == 12, "with another length the nonce would be hashed first"
    gcm = Cipher(_aes_256(key), modes.GCM(nonce)).encryptor()
    for piece in pieces:
        view = piece.data
        for start in range(0, len(view), _MOST):
            gcm.authenticate_additional_data(view[start : start + _MOST])
    gcm.finalize()
    return gcm.tag


def _aes_256(key: bytes) -> algorithms.AES:
    assert len(key) == 32, "a key has 256 bits"
    return algorithms.AES(key)
