"""Standard normal vectors from a 256-bit key, and noise added to sums.

The bits are AES in counter mode; `hush._internal.noise_kernel` turns them into normal numbers.

A vector is made in blocks of 2¹⁵ numbers. Block i reads the i-th segment of the key's stream, 2¹⁸ bytes: first 2¹⁴
words a, then 2¹⁴ words b, little-endian; it holds the first numbers of all pairs, then the second numbers. A block
depends on (key, i) alone, so the vector is the same for any number of threads. The key of (secret, stream, step) is
used for nothing else. Numbers are made on the CPU and in float64, also for other devices and types: one definition,
the same bits everywhere.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from hush._internal import noise_kernel as kernel
from hush._internal.noise_kernel import PAIRS, Doubles, Words
from hush.randomness.cipher import BLOCK_BYTES, Keystream
from hush.randomness.secret import Secret

BLOCK = 2 * PAIRS
WORD = 8  # bytes


def count_pairs(size: int) -> int:
    """The number of pairs of which a vector of ``size`` numbers has at least one number."""
    blocks, rest = divmod(size, BLOCK)
    return blocks * PAIRS + min(PAIRS, rest)


def normal(secret: Secret, stream: str, step: int, like: Tensor, start: int = 0) -> Tensor:
    """A flat standard normal vector with the length, type and device of ``like``, keyed by (secret, stream, step).

    ``start`` (a multiple of a block) selects the part of a longer vector that begins there. The bits are AES-256 in
    counter mode, so they are cryptographically secure, and the result does not depend on the number of threads.
    """
    made = normal_of_key(secret.derive(stream, step, size=32), like.numel(), torch.float64, start)
    return made.to(like.device, like.dtype)


def normal_of_key(key: bytes, size: int, dtype: torch.dtype, start: int = 0) -> Tensor:
    """``size`` standard normal numbers of a key; ``start`` is a multiple of a block."""
    first, stray = divmod(start, BLOCK)
    assert stray == 0, "numbers are made in blocks"
    out = torch.empty(-(-size // BLOCK), 2, PAIRS, dtype=torch.float64)
    rows, level = out.numpy(), kernel.best_level()

    def fill(block: int, a: Words, b: Words) -> None:
        pairs = len(a)
        kernel.normals(a, b, rows[block, 0, :pairs], rows[block, 1, :pairs], level)

    _each_block(key, size, first, fill)
    return out.view(-1)[:size].to(dtype)


def add_normal(
    secret: Secret,
    stream: str,
    step: int,
    sums: Sequence[Tensor],
    scale: float,
    spacing: float,
    divisor: float,
    level: int | None = -1,
) -> None:
    """total ← [total + scale · z] / divisor in place, where [·] rounds to a multiple of ``spacing``, a power of two.

    z is the vector of (secret, stream, step) over all sums together. The bits are those of `normal` and
    `hush.noise.base.add_noise`, in one pass over the sums. ``level`` is an index of `kernel.LEVELS`, or None for numpy;
    by default the best of this machine.
    """
    level = kernel.best_level() if level == -1 else level
    flats = [_as_flat(total) for total in sums]
    starts = np.array([0, *accumulate(map(len, flats))], np.uint64)
    key, size = secret.derive(stream, step, size=32), int(starts[-1])
    factors = 1.0 / spacing, scale / spacing, spacing / divisor
    add = _add_by_numpy(flats, factors) if level is None else _add_by_kernel(flats, starts, factors, level)
    _each_block(key, size, 0, add)
    for total, flat in zip(sums, flats, strict=True):
        if total.data_ptr() != flat.data_ptr() or total.dtype != flat.dtype:
            total.copy_(flat.view(total.shape))


Adder = Callable[[int, Words, Words], None]


def _as_flat(total: Tensor) -> Tensor:
    """The sum as a contiguous vector on the CPU in float32 or float64, in its own memory where possible."""
    flat = total.detach().reshape(-1).contiguous().cpu()
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.double()


def _add_by_kernel(flats: list[Tensor], starts: Words, factors: tuple[float, float, float], level: int) -> Adder:
    sums = np.array([flat.data_ptr() for flat in flats], np.uint64)
    doubles = np.array([flat.dtype == torch.float64 for flat in flats], np.uint8)
    tables, add = [each.ctypes.data for each in (starts, sums, doubles)], kernel.load().hush_add

    def block_of(block: int, a: Words, b: Words) -> None:
        add(level, a.ctypes.data, b.ctypes.data, block * BLOCK, len(doubles), *tables, *factors)

    block_of.keep = (starts, sums, doubles)  # type: ignore[attr-defined]  # the addresses above are theirs
    return block_of


def _add_by_numpy(flats: list[Tensor], factors: tuple[float, float, float]) -> Adder:
    arrays = [flat.numpy() for flat in flats]
    ends = list(accumulate(map(len, arrays)))

    def block_of(block: int, a: Words, b: Words) -> None:
        z: Doubles = np.zeros((2, PAIRS))
        kernel.normals(a, b, z[0, : len(a)], z[1, : len(a)], None)
        low, row = block * BLOCK, z.reshape(-1)
        for array, end in zip(arrays, ends, strict=True):
            start = end - len(array)
            one, two = max(start, low), min(end, low + BLOCK)
            if one < two:
                kernel.round_into(array[one - start : two - start], row[one - low : two - low], *factors)

    return block_of


def _each_block(key: bytes, size: int, first: int, use: Adder) -> None:
    """Call ``use(i, a, b)`` with the words of block ``first`` + i for all blocks of a vector, in several threads if it
    is long; of a last block that is shorter than its first numbers, with the words that these need."""
    blocks = -(-size // BLOCK)

    def some(low: int, high: int) -> None:
        words = np.empty((2, PAIRS), np.uint64)
        octets, stream = words.reshape(-1).view(np.uint8), Keystream(key, (first + low) * BLOCK * WORD // BLOCK_BYTES)
        for block in range(low, high):
            pairs = min(PAIRS, size - block * BLOCK)
            if pairs == PAIRS:
                stream.fill(octets)
            else:
                stream.fill(octets[: WORD * pairs])
                half = ((first + block) * BLOCK + PAIRS) * WORD // BLOCK_BYTES
                Keystream(key, half).fill(octets[WORD * PAIRS : WORD * (PAIRS + pairs)])
            use(block, words[0, :pairs], words[1, :pairs])

    threads = min(torch.get_num_threads(), blocks // 4)
    if threads < 2:
        some(0, blocks)
        return
    cuts = [blocks * i // threads for i in range(threads + 1)]
    _run_in_threads([partial(some, low, high) for low, high in zip(cuts[:-1], cuts[1:], strict=True)])


def _run_in_threads(parts: Sequence[Callable[[], None]]) -> None:
    """Call all parts, in this thread and in as many others as can be started; raise the first error of a part.

    `threading.Thread.start` waits forever if the new thread runs out of memory before its first line. Here a thread is
    waited for only if it has taken a part."""
    left, errors = list(enumerate(parts)), list[BaseException]()
    ended = [_thread.allocate_lock() for _ in parts]
    for lock in ended:
        lock.acquire()

    def work() -> None:
        while left:
            try:
                number, part = left.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                part()
            except BaseException as error:
                errors.append(error)
            finally:
                ended[number].release()

    for _ in parts[1:]:
        with suppress(MemoryError, RuntimeError):
            _thread.start_new_thread(work, ())
    work()
    for lock in ended:
        lock.acquire()
    if errors:
        raise errors[0]
