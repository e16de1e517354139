"""Two standard normal numbers from two 64-bit words, by IEEE 754 operations alone: compiled C, or numpy.

The transform is that of Box and Muller (1958), √(−2 ln u)·(cos θ, sin θ). Words a and b give 74 bits of radius,
k = 2¹⁰a + (b mod 2¹⁰) and u = (2k + 1)/2⁷⁵, and 54 bits of angle: q = b >> 62 quarter turns and f in [−½, ½) of a
quarter turn from the other 52. Every operation is binary64, rounded to nearest even on its own (no fused multiply-add,
no function of a mathematical library), or on unsigned 64-bit integers. So a pair of words has one result, on every
processor and at every vector width. F(i) is the double with the bits i, B(x) the bits of x:

    high = F(0x45E0000000000000 | a >> 32)                                              2⁹⁵ + 2⁴³·(a >> 32)
    low  = F(0x4330000000000000 | (a & 0xFFFFFFFF) << 11 | (b & 0x3FF) << 1 | 1)        2⁵² + the last 43 bits of 2k + 1
    x    = (high − (2⁹⁵ + 2⁵²)) + low          the difference is exact: x is 2k + 1, rounded once
    e    = (B(x) − 0x3FE6A09E667F3BCD) >> 52   0 … 75
    m    = F(B(x) − (e << 52))                 x = 2ᵉ·m with m in [√½, √2)
    t    = (2⁵² + 75) − F(0x4330000000000000 | e)                                       75 − e, exact
    s    = (m − 1)/(m + 1),  v = s·s,  p = L₀ + v·(L₁ + … + v·L₇)                       −2 ln m = s·p
    r    = √(t·ln 4 + s·p)
    f    = F(0x3FF0000000000000 | (b >> 10 & (2⁵² − 1))) − 1.5                          exact
    w    = f·f,  sine = f·(S₀ + w·(S₁ + … + w·S₆)),  cosine = C₀ + w·(C₁ + … + w·C₇)
    z₁, z₂ = r·(cosine, sine), r·(−sine, cosine), r·(−cosine, −sine), r·(sine, −cosine)  for q = 0, 1, 2, 3

A noisy value is [S·fine + z·scale]·unit: both products, their sum, [·] rounds half to even, the last product, and the
conversion to the type of the sum.

The coefficients are minimax polynomials, each coefficient rounded and the rest refitted. Relative errors of the
approximations: logarithm 1.2e-18, sine 3.9e-17, cosine 3.9e-19. `hush.accounting.noise_tails` bounds all errors.

`_noise.c` is the compiled form (built by hatch_build.py, loaded without Python's C interface), at three vector widths
on x86. Without it numpy computes the same bits at about a fifth of the speed. A library that was compiled from another
source is not used.
"""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Doubles = NDArray[np.float64]

PAIRS = 1 << 14  # of one block: its buffers stay in the second-level cache
LEVELS = ("baseline", "AVX2", "AVX-512")
SOURCE = Path(__file__).with_name("_noise.c")

LN4 = float.fromhex("0x1.62e42fefa39efp+0")
LOG, SINE, COSINE = (
    tuple(float.fromhex(value) for value in row)
    for row in (
        (
            "-0x1p+2",
            "-0x1.5555555555592p+0",
            "-0x1.999999997ffafp-1",
            "-0x1.24924941d4ea9p-1",
            "-0x1.c71c522049fb6p-2",
            "-0x1.74663a3d939dfp-2",
            "-0x1.39a231c61ee2fp-2",
            "-0x1.2f00c3fe80443p-2",
        ),
        (
            "0x1.921fb54442d18p+0",
            "-0x1.4abbce625be09p-1",
            "0x1.466bc67754ffbp-4",
            "-0x1.32d2ccdfe8d0ap-8",
            "0x1.50782d5e89456p-13",
            "-0x1.e2fe766f665bap-19",
            "0x1.e357bb6294ae5p-25",
        ),
        (
            "0x1p+0",
            "-0x1.3bd3cc9be45dep+0",
            "0x1.03c1f081b5a66p-2",
            "-0x1.55d3c7e3c301bp-6",
            "0x1.e1f5067b5447ap-11",
            "-0x1.a6d1e6f94b3efp-16",
            "0x1.f9c87823cd57ep-22",
            "-0x1.b15c7caf9f5eep-28",
        ),
    )
)


@cache
def load() -> Any:
    """The compiled kernel, from the installed package or the build folder of a source tree; None without one."""
    try:
        digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    except OSError:
        return None
    for path in (SOURCE.with_suffix(".so"), SOURCE.parents[3] / "build" / f"hush-noise-{digest[:16]}.so"):
        try:
            library = ctypes.CDLL(str(path))
            library.hush_source.restype = ctypes.c_char_p
            if library.hush_source() == digest.encode():
                return _declare(library)
        except (OSError, AttributeError):  # not there, for another processor, or another library
            continue
    return None


def _declare(library: Any) -> Any:
    pointer, size, real = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
    library.hush_normals.argtypes = [ctypes.c_int, pointer, pointer, size, pointer, pointer]
    library.hush_add.argtypes = [
        ctypes.c_int,
        pointer,
        pointer,
        size,
        size,
        pointer,
        pointer,
        pointer,
        real,
        real,
        real,
    ]
    library.hush_normals.restype = library.hush_add.restype = None
    return library


@cache
def best_level() -> int | None:
    """The highest level of the compiled kernel on this processor (an index of `LEVELS`); None without a kernel."""
    library = load()
    return None if library is None else int(library.hush_level())


def describe() -> str:
    """Which code computes the noise; the numbers are the same for all of them."""
    level = best_level()
    return "numpy (no compiled kernel)" if level is None else f"compiled kernel, {LEVELS[level]}"


def normals(a: Words, b: Words, first: Doubles, second: Doubles, level: int | None) -> None:
    """Write the two numbers of each pair of words; numpy computes them if ``level`` is None."""
    if level is None:
        _transform(a, b, first, second)
    else:
        load().hush_normals(level, a.ctypes.data, b.ctypes.data, len(a), first.ctypes.data, second.ctypes.data)


def round_into(sums: NDArray[Any], z: Doubles, fine: float, scale: float, unit: float) -> None:
    """sums ← [sums·fine + z·scale]·unit in place, by numpy; z is overwritten."""
    z *= scale
    z += sums * fine if sums.dtype == np.float64 else sums.astype(np.float64) * fine
    np.rint(z, out=z)
    z *= unit
    sums[...] = z


def _transform(a: Words, b: Words, first: Doubles, second: Doubles) -> None:
    """The transform in numpy, operation by operation; the two outputs serve as its scratch space too."""
    one = np.uint64
    bits = a >> one(32)
    bits |= one(0x45E0000000000000)
    x = bits.view(np.float64)
    x -= 2.0**95 + 2.0**52
    low = a & one(0xFFFFFFFF)
    low <<= one(11)
    rest = b & one(0x3FF)
    rest <<= one(1)
    low |= rest
    low |= one(0x4330000000000001)
    x += low.view(np.float64)
    np.subtract(bits, one(0x3FE6A09E667F3BCD), out=low)
    low >>= one(52)  # e
    np.left_shift(low, one(52), out=rest)
    bits -= rest  # x is m now
    low |= one(0x4330000000000000)
    t = low.view(np.float64)
    np.subtract(2.0**52 + 75, t, out=t)
    t *= LN4
    np.add(x, 1.0, out=first)
    x -= 1.0
    x /= first  # s
    np.multiply(x, x, out=first)  # v
    _horner(first, LOG, second)
    second *= x
    t += second
    np.sqrt(t, out=t)
    low ^= b & one(0x8000000000000000)  # r with the sign of b
    np.right_shift(b, one(10), out=rest)
    rest &= one(0xFFFFFFFFFFFFF)
    rest |= one(0x3FF0000000000000)
    f = rest.view(np.float64)
    f -= 1.5
    np.multiply(f, f, out=x)  # w
    _horner(x, SINE, second)
    second *= f
    _horner(x, COSINE, first)
    odd = (b & one(1 << 62)).astype(bool)
    np.copyto(f, second)  # the sine
    np.copyto(second, first, where=odd)
    np.negative(f, out=f)
    np.copyto(first, f, where=odd)
    first *= t
    second *= t


def _horner(x: Doubles, coefficients: tuple[float, ...], out: Doubles) -> None:
    """c₀ + x·(c₁ + x·(…)): product, then sum."""
    np.multiply(x, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        out += coefficient
        out *= x
    out += coefficients[0]
