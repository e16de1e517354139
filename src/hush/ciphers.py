"""AES-256 in counter mode (FIPS 197, SP 800-38A): the random bits behind all noise.

The bytes come from the operating system's libcrypto, which uses the processor's AES instructions; where there is none,
a table-driven numpy version gives the same bytes, slowly.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_ZEROS = bytes(1 << 20)


def keystream(key: bytes, block: int) -> Callable[[int, int], None]:
    """A writer of successive key-stream bytes, from 16-byte block number ``block`` on: ``write(address, bytes)``."""
    library = _libcrypto()
    return _LibraryStream(library, key, block) if library is not None else _TableStream(key, block)


def scattered(key: bytes, starts: NDArray[np.uint64], blocks: int) -> NDArray[np.uint8]:
    """The key-stream bytes of ``blocks`` blocks from each of these block numbers on, one row each."""
    counters = np.zeros((len(starts), blocks, 2), ">u8")
    counters[..., 1] = starts[:, None] + np.arange(blocks, dtype=np.uint64)
    library = _libcrypto()
    if library is None:
        return _encrypted(expanded_key(key), counters[..., 1].reshape(-1).astype(np.uint64)).reshape(len(starts), -1)
    return _encrypted_by_library(library, key, counters.tobytes()).reshape(len(starts), -1)


@cache
def _libcrypto() -> Any:
    """libcrypto with the signatures of the functions used here, or None."""
    if sys.platform == "darwin":  # the system ends a process that opens its own libcrypto by a plain name
        return None
    name = ctypes.util.find_library("crypto")
    try:
        library = ctypes.CDLL(name) if name else None
    except OSError:
        return None
    if library is None or not hasattr(library, "EVP_aes_256_ctr"):
        return None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    library.EVP_CIPHER_CTX_new.restype = pointer
    library.EVP_aes_256_ctr.restype = pointer
    library.EVP_aes_256_ecb.restype = pointer
    library.EVP_CIPHER_CTX_free.argtypes = [pointer]
    library.EVP_EncryptInit_ex.argtypes = [pointer, pointer, pointer, text, text]
    library.EVP_EncryptUpdate.argtypes = [pointer, pointer, ctypes.POINTER(ctypes.c_int), text, ctypes.c_int]
    return library


class _LibraryStream:
    def __init__(self, library: Any, key: bytes, block: int) -> None:
        self.library = library
        self.context = library.EVP_CIPHER_CTX_new()
        counter = block.to_bytes(16, "big")
        if library.EVP_EncryptInit_ex(self.context, library.EVP_aes_256_ctr(), None, key, counter) != 1:
            raise RuntimeError("libcrypto could not start AES-256 in counter mode")

    def __call__(self, address: int, size: int) -> None:
        written = ctypes.c_int()
        for start in range(0, size, len(_ZEROS)):
            part = min(len(_ZEROS), size - start)
            done = self.library.EVP_EncryptUpdate(self.context, address + start, ctypes.byref(written), _ZEROS, part)
            if done != 1 or written.value != part:
                raise RuntimeError("libcrypto could not write AES-256 bytes")

    def __del__(self) -> None:
        self.library.EVP_CIPHER_CTX_free(self.context)


def _encrypted_by_library(library: Any, key: bytes, counters: bytes) -> NDArray[np.uint8]:
    """Each 16-byte counter encrypted by itself: counter mode is no more than this."""
    out, written, context = np.empty(len(counters), np.uint8), ctypes.c_int(), library.EVP_CIPHER_CTX_new()
    try:
        started = library.EVP_EncryptInit_ex(context, library.EVP_aes_256_ecb(), None, key, None)
        for start in range(0, len(counters), len(_ZEROS)):
            part = counters[start : start + len(_ZEROS)] if len(counters) > len(_ZEROS) else counters
            done = library.EVP_EncryptUpdate(context, out.ctypes.data + start, ctypes.byref(written), part, len(part))
            if started != 1 or done != 1 or written.value != len(part):
                raise RuntimeError("libcrypto could not write AES-256 bytes")
    finally:
        library.EVP_CIPHER_CTX_free(context)
    return out


class _TableStream:
    def __init__(self, key: bytes, block: int) -> None:
        self.keys, self.block = expanded_key(key), block

    def __call__(self, address: int, size: int) -> None:
        stream = counter_bytes(self.keys, self.block, -(-size // 16))
        self.block += -(-size // 16)
        ctypes.memmove(address, stream.tobytes(), size)


@cache
def _tables() -> tuple[NDArray[np.uint8], list[Words]]:
    """The S-box, and the four tables that join it with the mixing of columns."""
    power, logarithm, x = np.zeros(256, np.int64), np.zeros(256, np.int64), 1
    for i in range(255):
        power[i], logarithm[x] = x, i
        x ^= (x << 1) ^ (0x11B if x & 0x80 else 0)
    inverse = np.array([0, *(power[(255 - logarithm[v]) % 255] for v in range(1, 256))])
    box = inverse.copy()
    for turn in range(1, 5):
        box ^= (inverse << turn) | (inverse >> (8 - turn))
    box = (box & 0xFF) ^ 0x63
    double = (box << 1) ^ np.where(box & 0x80, 0x11B, 0)
    column = (double << 24) | (box << 16) | (box << 8) | (double ^ box)
    turned = [((column >> (8 * i)) | (column << (32 - 8 * i))) & 0xFFFFFFFF for i in range(4)]
    return box.astype(np.uint8), [t.astype(np.uint32) for t in turned]


def expanded_key(key: bytes) -> Words:
    """The fifteen round keys of AES-256, four words each."""
    box, _ = _tables()
    words = [int.from_bytes(key[4 * i : 4 * i + 4], "big") for i in range(8)]
    constant = 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = ((word << 8) | (word >> 24)) & 0xFFFFFFFF
        if i % 4 == 0:
            word = int.from_bytes(bytes(int(box[b]) for b in word.to_bytes(4, "big")), "big")
        if i % 8 == 0:
            word, constant = word ^ (constant << 24), constant << 1
        words.append(words[-8] ^ word)
    return np.array(words, np.uint32).reshape(15, 4)


def counter_bytes(keys: Words, block: int, count: int) -> NDArray[np.uint8]:
    """The key stream of ``count`` blocks from number ``block`` on (below 2⁶⁴)."""
    return _encrypted(keys, np.uint64(block) + np.arange(count, dtype=np.uint64))


def _encrypted(keys: Words, counters: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Each counter encrypted as a block of its own."""
    box, tables = _tables()
    zero = np.zeros(len(counters), np.uint32)
    low, high = (counters & np.uint64(0xFFFFFFFF)).astype(np.uint32), (counters >> np.uint64(32)).astype(np.uint32)
    state = [word ^ k for word, k in zip((zero, zero, high, low), keys[0], strict=True)]
    for round_key in keys[1:-1]:
        state = [_mixed(tables, state, c) ^ round_key[c] for c in range(4)]
    last = [_joined(box, state, c) ^ keys[-1][c] for c in range(4)]
    return np.stack(last, 1).astype(">u4").view(np.uint8).reshape(-1)


def _bytes_of(state: list[Words], column: int) -> list[Words]:
    """The bytes that the shift of rows brings into one column."""
    return [(state[(column + i) % 4] >> np.uint32(24 - 8 * i)) & np.uint32(0xFF) for i in range(4)]


def _mixed(tables: list[Words], state: list[Words], column: int) -> Words:
    a, b, c, d = (table[byte] for table, byte in zip(tables, _bytes_of(state, column), strict=True))
    return a ^ b ^ c ^ d


def _joined(box: NDArray[np.uint8], state: list[Words], column: int) -> Words:
    a, b, c, d = (box[byte].astype(np.uint32) for byte in _bytes_of(state, column))
    word: Words = (a << np.uint32(24)) | (b << np.uint32(16)) | (c << np.uint32(8)) | d
    return word


Piece = tuple[int, int]
"""Bytes in memory: an address and a size."""

_GET_TAG = 0x10  # EVP_CTRL_AEAD_GET_TAG
_MOST = 1 << 30  # bytes in one call: its length is a C int


def tagger(key: bytes) -> Callable[[bytes, Iterable[Piece]], bytes]:
    """``tag(nonce, pieces)``: sixteen bytes that no other content has, but with a probability of about its length over
    2¹²⁸ for whoever does not know the key. It is GMAC (SP 800-38D) with AES-256, over all pieces one after the other.

    A universal hash at ten gigabytes a second where the processor multiplies polynomials; where there is no libcrypto,
    BLAKE2b with the key, at one.
    """
    library = _libcrypto()
    if library is None or not hasattr(library, "EVP_aes_256_gcm"):
        return _BlakeTagger(key)
    return _LibraryTagger(library, key)


class _BlakeTagger:
    def __init__(self, key: bytes) -> None:
        self.key = key

    def __call__(self, nonce: bytes, pieces: Iterable[Piece]) -> bytes:
        total = hashlib.blake2b(nonce, key=self.key, digest_size=16)
        for address, size in pieces:
            total.update((ctypes.c_char * size).from_address(address))
        return total.digest()


class _LibraryTagger:
    def __init__(self, library: Any, key: bytes) -> None:
        self.library = library
        pointer, number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)
        library.EVP_aes_256_gcm.restype = pointer
        library.EVP_EncryptFinal_ex.argtypes = [pointer, pointer, number]
        library.EVP_CIPHER_CTX_ctrl.argtypes = [pointer, ctypes.c_int, ctypes.c_int, pointer]
        self.context = library.EVP_CIPHER_CTX_new()
        self.length, self.out = ctypes.c_int(), ctypes.create_string_buffer(16)
        self._must(library.EVP_EncryptInit_ex(self.context, library.EVP_aes_256_gcm(), None, key, None))

    def __call__(self, nonce: bytes, pieces: Iterable[Piece]) -> bytes:
        library, length = self.library, ctypes.byref(self.length)
        self._must(library.EVP_EncryptInit_ex(self.context, None, None, None, nonce))
        for address, size in pieces:
            for start in range(0, size, _MOST):
                where, part = ctypes.c_char_p(address + start), min(_MOST, size - start)
                self._must(library.EVP_EncryptUpdate(self.context, None, length, where, part))
        self._must(library.EVP_EncryptFinal_ex(self.context, self.out, length))
        self._must(library.EVP_CIPHER_CTX_ctrl(self.context, _GET_TAG, 16, self.out))
        return self.out.raw

    def _must(self, done: int) -> None:
        if done != 1:
            raise RuntimeError("libcrypto could not compute a GMAC")

    def __del__(self) -> None:
        self.library.EVP_CIPHER_CTX_free(self.context)
