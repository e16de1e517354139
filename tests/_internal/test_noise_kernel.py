"""Two normal numbers from two words: one definition, the same bits from numpy and from every level of the kernel."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from hush._internal import noise_kernel as kernel
from hush.randomness import Secret, add_normal, normal, normal_of_key
from hush.randomness.normals import BLOCK, PAIRS

ROOT = Path(__file__).parents[2]
LEVELS: list[int | None] = [None, *range((kernel.best_level() if kernel.best_level() is not None else -1) + 1)]

VECTORS = """
0000000000000000 0000000000000000 0x1.cd72d7b1611e2p+2 -0x1.cd72d7b1611e3p+2
0000000000000000 ffffffffffffffff 0x1.aa4532ddfed65p+2 -0x1.aa4532ddfed6bp+2
ffffffffffffffff ffffffffffffffff 0x0.0p+0 -0x0.0p+0
8000000000000000 4000000000000000 0x1.aa4499161cd48p-1 0x1.aa4499161cd47p-1
0123456789abcdef fedcba9876543210 0x1.21745d25d87f2p+1 -0x1.3216f01088636p+1
fedcba9876543210 0123456789abcdef 0x1.18e5ade0ef761p-4 -0x1.09a19a6d63de0p-4
0000000000000001 2000000000000000 0x1.2d6a5194d35e1p+3 0x0.0p+0
9e3779b97f4a7c15 bf58476d1ce4e5b9 -0x1.68d6257abc1c2p-1 -0x1.5d6a269d40e72p-1
"""

# √(−2 ln u)·(cos θ, sin θ) of the exact u and θ, by mpmath with 200 bits
EXACT = [
    (0xA00641A9F1E54A8B, 0xCC0CBDF921A6195E, -0.4559188542693388284903, -0.8554763509340327413774),
    (0x0000000000E5AFCD, 0x77CA95C71E7C3921, -4.113366493932552504274, 6.224862470780352870846),
    (0x0000000000000001, 0x4D93887AD103DC48, 4.112415314634882838953, 8.466053736370476027345),
    (0xFFFFFFFFD56A2742, 0x4746E6A257735285, 0.000005018810614229678825319, 0.000007230063580704765734019),
    (0xFFFFFFFFFFFFFFFF, 0x413F221FB82F3EF0, 1.161641338744403796651e-10, 1.23499290073440952006e-10),
    (0x8000000000000000, 0x71F08551FD8EC592, -0.5018275244667949543485, 1.065111964446658035107),
    (0x01591126E9A1AC70, 0x812A131F7A67F71E, -2.355063474422359860254, 2.224164698747572603519),
    (0xD23C068F7FF206DD, 0x8DB200A19521888D, -0.5653400731682897534888, 0.2725776562729557178728),
]


def transform(a, b, level):
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    first, second = np.empty(len(a)), np.empty(len(a))
    kernel.normals(a, b, first, second, level)
    return first, second


@pytest.mark.parametrize("level", LEVELS)
def test_vectors_to_the_bit(level) -> None:
    rows = [line.split() for line in VECTORS.split("\n") if line]
    found = np.stack(transform(*(np.array([int(row[i], 16) for row in rows], np.uint64) for i in (0, 1)), level), 1)
    expected = np.array([[float.fromhex(value) for value in row[2:]] for row in rows])
    assert (found.view(np.uint64) == expected.view(np.uint64)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_errors_are_within_what_is_charged(level) -> None:
    """The bound of `hush.accounting.noise_tails`, without its terms for the two lattices, which u and θ are here."""
    a, b, *exact = (list(column) for column in zip(*EXACT, strict=True))
    found, radius = transform(a, b, level), np.hypot(*exact)
    bound = np.minimum(2.0**-53 * (10.1 * radius + 1 / radius), 2.0**-26)
    for made, wanted in zip(found, exact, strict=True):
        assert (np.abs(made - np.array(wanted)) <= bound).all()
        assert (np.abs(made * (1 + 2.0**-48) - np.array(wanted)) > bound).any()  # the bound is not idle


def corners(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """A quarter each: uniform, far tail, next to u = 1, angles next to the ends of a quarter turn; with single bits."""
    draw = np.random.default_rng(5)
    a, b = (draw.integers(0, 2**64 - 1, pairs, dtype=np.uint64, endpoint=True) for _ in range(2))
    shifts, q = draw.integers(0, 64, pairs, dtype=np.uint64), pairs // 4
    a[q : 2 * q] >>= shifts[q : 2 * q]
    a[2 * q : 3 * q] |= ~(np.uint64(2**64 - 1) >> shifts[2 * q : 3 * q])
    b[3 * q :] = (b[3 * q :] & np.uint64(0xC0000000000003FF)) | (
        np.where(shifts[3 * q :] % 2, 2**62 - 1024, 0).astype(np.uint64)
        ^ (b[3 * q :] >> shifts[3 * q :] << np.uint64(10)) & np.uint64(0x3FFFFFFFFFFFFC00)
    )
    ends = np.array([0, 1, 2**10, 2**32 - 1, 2**32, 2**63, 2**64 - 1, *(1 << i for i in range(64))], np.uint64)
    grid = np.array(np.meshgrid(ends, ends)).reshape(2, -1)
    a[: grid.shape[1]], b[: grid.shape[1]] = grid
    return a, b


@pytest.mark.skipif(kernel.best_level() is None, reason="no compiled kernel here: python hatch_build.py")
def test_every_level_gives_the_bits_of_numpy() -> None:
    a, b = corners(1_000_000)
    expected = [part.view(np.uint64) for part in transform(a, b, None)]
    assert all(np.isfinite(part.view(np.float64)).all() for part in expected)
    for level in LEVELS[1:]:
        for made, wanted in zip(transform(a, b, level), expected, strict=True):
            assert (made.view(np.uint64) == wanted).all(), kernel.LEVELS[level or 0]


def test_digest_of_a_long_vector() -> None:
    """Any path on any machine: recorded from the compiled kernel, equal to numpy's."""
    made = normal_of_key(bytes(range(32)), 5 * BLOCK + 77, torch.float64)
    found = hashlib.sha256(made.numpy().astype("<f8").tobytes()).hexdigest()
    assert found == "16e2e63c2349f0b8b264a6130cd217ea761db5bd01d409b55975aae5e2502031"


def sums_of(kind: str) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = {"odd": [(3, 5), (1,), (0,), (257,), (7, 11, 13)], "long": [(2 * BLOCK + 5,), (PAIRS - 3,), (40_001,)]}
    made = [torch.randn(shape, generator=draw, dtype=torch.float64) * 30 for shape in shapes.get(kind, shapes["odd"])]
    match kind:
        case "float32":
            return [part.float() for part in made]
        case "mixed":
            return [part.float() if i % 2 else part for i, part in enumerate(made)]
        case "strided":
            return [part.repeat(2, 1)[::2] if part.ndim == 2 else part.repeat_interleave(3)[::3] for part in made]
        case "large":
            return [part * 2.0**50 for part in made]  # beyond 2^52 units of the grid
        case "bfloat16":
            return [part.bfloat16() for part in made]
        case "long":
            return [made[0].float(), made[1], made[2].float()]
    return made


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["odd", "float32", "mixed", "strided", "large", "bfloat16", "long"])
def test_one_pass_gives_what_numbers_and_additions_give(kind: str, level) -> None:
    secret, scale, spacing, divisor = Secret(b"7" * 32), 1.7, 2.0**-6, 48.0
    sums = sums_of(kind)
    z = normal(secret, "test", 3, torch.empty(sum(map(torch.numel, sums)), dtype=torch.float64)).numpy()
    flat = np.concatenate([part.double().reshape(-1).numpy() for part in sums])
    expected = np.rint(flat * (1 / spacing) + z * (scale / spacing)) * (spacing / divisor)
    add_normal(secret, "test", 3, sums, scale, spacing, divisor, level)
    for part, wanted in zip(sums, np.split(expected, np.cumsum([part.numel() for part in sums])[:-1]), strict=True):
        assert torch.equal(part.reshape(-1), torch.from_numpy(wanted).to(part.dtype))


def test_threads_add_the_same_noise() -> None:
    found, threads = [], torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            sums = [torch.zeros(9 * BLOCK + 3), torch.zeros(100)]
            add_normal(Secret(b"8" * 32), "test", 0, sums, 1.0, 2.0**-7, 1.0)
            found.append(torch.cat(sums))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("level", LEVELS)
def test_flushing_subnormal_numbers_changes_nothing(level) -> None:
    """Some code turns the flag on in the thread that adds the noise."""
    found = []
    try:
        for flag in (False, True):
            torch.set_flush_denormal(flag)
            sums = [torch.zeros(BLOCK + 9), torch.linspace(-1, 1, 999, dtype=torch.float64)]
            add_normal(Secret(b"9" * 32), "test", 0, sums, 1.0, 2.0**-7, 3.0, level)
            found.append([*sums, *map(torch.from_numpy, transform(*corners(20_000), level))])
    finally:
        torch.set_flush_denormal(False)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_moments_and_cells_with_twins_at_the_wrong_scale() -> None:
    """Four million numbers: moments within 4.5 standard errors, χ² over 1 000 cells; twins at a wrong scale."""
    values = normal_of_key(b"a" * 32, 4_000_000, torch.float64).numpy()
    cuts = stats.norm.ppf(np.linspace(0, 1, 1001)[1:-1])

    def largest(z: np.ndarray) -> float:
        errors = {1: 1, 2: 2, 3: 15, 4: 96, 6: 10_170}  # variances of z^k
        means = {1: 0, 2: 1, 3: 0, 4: 3, 6: 15}
        return float(max(abs((z**k).mean() - means[k]) * np.sqrt(len(z) / errors[k]) for k in means))

    def p_value(z: np.ndarray) -> float:
        return float(stats.chisquare(np.bincount(np.searchsorted(cuts, z), minlength=1000)).pvalue)

    assert largest(values) < 4.5 < largest(values * 1.002)
    assert p_value(values) > 1e-4 > p_value(values * 1.01)
    for tail in (4.0, 5.0):
        expected = len(values) * 2 * stats.norm.sf(tail)
        assert 1e-4 < stats.poisson.cdf((np.abs(values) > tail).sum(), expected) < 1 - 1e-4
    whole = values[: len(values) // BLOCK * BLOCK].reshape(-1, 2, PAIRS)
    first, second = whole[:, 0].ravel(), whole[:, 1].ravel()
    for one, two in ((first, second), (first**2, second**2)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 4.5 / np.sqrt(len(one))


@pytest.mark.skipif(
    kernel.load() is None or shutil.which("objdump") is None, reason="needs a compiled kernel and objdump"
)
def test_the_library_fuses_no_multiplication_with_an_addition() -> None:
    text = subprocess.run(["objdump", "-d", kernel.load()._name], check=True, capture_output=True, text=True).stdout
    assert "sqrtpd" in text or "fsqrt" in text
    assert not any(
        f"\t{name}" in text for name in ("vfm", "vfnm", "fmla", "fmls", "fmadd", "fmsub", "fnmadd", "fnmsub")
    )


def compiled(folder: Path, **environment: str) -> Path | None:
    """What hatch_build.py compiles in an environment of its own."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import hatch_build as h; from pathlib import Path; "
    script += "print(h.compile_kernel(Path(sys.argv[2])) or '')"
    command = [sys.executable, "-c", script, str(ROOT), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return Path(done.stdout.strip()) if done.stdout.strip() else None


def test_without_a_compiler_there_is_no_library(tmp_path: Path) -> None:
    assert compiled(tmp_path, CC="no-such-compiler", HUSH_PURE="") is None
    assert compiled(tmp_path, HUSH_PURE="1") is None
    with pytest.raises(subprocess.CalledProcessError):
        compiled(tmp_path, CC="no-such-compiler", HUSH_PURE="0")
    assert list(tmp_path.glob("build/*")) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_of_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compiled(tmp_path, HUSH_PURE="0")
    assert library is not None
    digest = hashlib.sha256(kernel.SOURCE.read_bytes()).hexdigest()
    found = ctypes.CDLL(str(library)).hush_source
    found.restype = ctypes.c_char_p
    assert found() == digest.encode()
    assert digest[:16] in library.name
    own = kernel.SOURCE.read_text()
    try:
        for name, text, usable in (("same", own, True), ("other", own + "\n", False)):
            source = tmp_path / name / "src/hush/_internal/_noise.c"
            source.parent.mkdir(parents=True)
            source.write_text(text)
            shutil.copy(library, source.with_suffix(".so"))
            monkeypatch.setattr(kernel, "SOURCE", source)
            kernel.load.cache_clear()
            assert (kernel.load() is not None) is usable
    finally:
        monkeypatch.undo()
        kernel.load.cache_clear()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_fast_arithmetic_does_not_compile(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compiled(tmp_path, CC="cc -ffast-math", HUSH_PURE="0")
