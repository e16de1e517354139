"""The guarantees of Noise and Strategy, one test per guarantee, for every noise of hush."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hush._internal.tensors import State
from hush.guarantees import find_sensitivity
from hush.matrix_factorization import Dense, Strategy, Workload
from hush.noise import DenseNoise, Noise, Rows, make_noise
from hush.randomness import Secret, normal
from noise_structures import PARTICIPATIONS, ROWS, SCALES, STRUCTURES, WORK, T, impulses, measured, patterns

WIDTH = 257
LIKE = torch.empty(WIDTH, dtype=torch.float64)


def rows(seed: int = 4) -> Rows:
    secret = Secret.from_seed(seed)
    return lambda j: normal(secret, "noise/gradient", j, LIKE)


def noise_of(structure: Strategy) -> Noise:
    """In blocks of five steps where it comes in blocks, so that there is more than one."""
    return DenseNoise(structure, memory=5 * WIDTH * 8) if isinstance(structure, Dense) else make_noise(structure)


def drawn(noise: Noise, z: Rows, like: torch.Tensor = LIKE) -> torch.Tensor:
    state, out = noise.init(like), []
    for step in range(T):
        value, state = noise.draw(step, z, state)
        out.append(value)
    return torch.stack(out)


def size_of(state: State) -> int:
    return sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor))


def pure(structure: Strategy) -> None:
    noise, z, state, kept = noise_of(structure), rows(), noise_of(structure).init(LIKE), []
    for step in range(T):
        value, state = noise.draw(step, z, state)
        kept.append((value, value.clone()))
    assert all(torch.equal(value, copy) for value, copy in kept)
    assert torch.equal(torch.stack([copy for _, copy in kept]), drawn(noise_of(structure), rows()))
    assert not torch.equal(drawn(noise, rows(5)), drawn(noise, rows(4)))


def map_(structure: Strategy) -> None:
    M, declared = impulses(make_noise(structure)), structure.noise_map()
    assert np.allclose(M[:, : declared.shape[1]], declared, atol=1e-12)
    assert not M[:, declared.shape[1] :].any()


def columns(structure: Strategy) -> None:
    z, other = rows(4), rows(5)
    mixed = drawn(noise_of(structure), lambda j: torch.cat([z(j)[:100], other(j)[100:]]))
    assert torch.allclose(mixed[:, :100], drawn(noise_of(structure), z)[:, :100], rtol=1e-12, atol=1e-12)
    assert torch.allclose(mixed[:, 100:], drawn(noise_of(structure), other)[:, 100:], rtol=1e-12, atol=1e-12)


def spread(structure: Strategy) -> None:
    noise = make_noise(structure)
    assert np.allclose(np.linalg.norm(impulses(noise), axis=1), [noise.std(t) for t in range(T)], atol=1e-10)


def memory(structure: Strategy) -> None:
    noise, z = noise_of(structure), rows()
    state = noise.init(LIKE)
    most = 5 * WIDTH if isinstance(structure, Dense) else size_of(state)
    for step in range(T):
        _, state = noise.draw(step, z, state)
        assert size_of(state) <= most


def resume(structure: Strategy) -> None:
    noise, z = noise_of(structure), rows()
    for stop in range(T):
        state = noise.init(LIKE)
        for step in range(stop):
            _, state = noise.draw(step, z, state)
        saved = {key: value.clone() for key, value in state.items() if not key.startswith("_")}
        on, _ = noise.draw(stop, z, state)
        again, _ = noise.draw(stop, z, saved)
        assert torch.equal(on, again)


def late_start(structure: Strategy) -> None:
    whole, declared = impulses(make_noise(structure)), structure.noise_map()
    for start in range(1, T):
        late = impulses(make_noise(structure), start)
        before = np.zeros(ROWS, dtype=bool)
        before[: declared.shape[1]] = np.any(declared[:start] != 0.0, axis=0)
        without = np.where(before, 0.0, whole[start:])
        assert np.allclose(late, without, atol=1e-12) or np.allclose(late, whole[start:], atol=1e-12)


def pieces(structure: Strategy) -> None:
    noise, z = make_noise(structure), rows()
    if not noise.pieces:
        assert noise.init(LIKE) or isinstance(noise, DenseNoise) or structure.bands == 1
        return
    for step in range(T):
        together, state = noise.draw(step, z, noise.init(LIKE))
        parts = [noise.draw(step, lambda j, at=at: z(j)[at : at + 100], {})[0] for at in range(0, WIDTH, 100)]
        assert not state
        assert torch.equal(torch.cat(parts), together)


def inverse(structure: Strategy) -> None:
    M, C = structure.noise_map(), structure.strategy()
    assert M.shape == (T, C.shape[0])
    assert np.allclose(M @ C, np.eye(T), atol=1e-10)


def first(structure: Strategy) -> None:
    for steps in range(1, T):
        cut, M = structure.first(steps), structure.noise_map()[:steps]
        assert cut.steps == steps
        width = cut.noise_map().shape[1]
        assert np.allclose(cut.noise_map(), M[:, :width], atol=1e-12)
        assert not M[:, width:].any()
        assert cut.single() <= structure.single() * (1 + 1e-12)
        assert np.allclose(cut.inverse_norms(), structure.inverse_norms()[:steps], atol=1e-12)


def bands(structure: Strategy) -> None:
    C = structure.strategy()
    X, width = C.T @ C, structure.bands
    if width is not None:
        apart = np.abs(np.subtract.outer(np.arange(T), np.arange(T))) >= width
        assert not X[apart].any()
    assert (width == 1) == (np.count_nonzero(X - np.diag(np.diag(X))) == 0)


def restarts(structure: Strategy) -> None:
    period = structure.restarts
    if period is None:
        return
    stretch = np.arange(T) // period
    for matrix in (structure.noise_map(), structure.strategy().T):
        for row in matrix.T:
            assert len(set(stretch[row != 0.0])) <= 1


def sensitivity(structure: Strategy) -> None:
    M, C = impulses(make_noise(structure)), structure.strategy()
    generator = np.random.default_rng(0)
    for participation in PARTICIPATIONS:
        declared, implied = find_sensitivity(participation, structure), measured(M, participation)
        assert implied <= declared * (1 + 1e-9)
        for pattern in patterns(participation):
            shift = np.zeros((T, 3))
            shift[list(pattern)] = generator.normal(size=(len(pattern), 3))
            shift[list(pattern)] /= np.linalg.norm(shift[list(pattern)], axis=1, keepdims=True)
            assert np.linalg.norm(C @ shift) <= declared * (1 + 1e-9)
        if len(C) == T and (C.T @ C >= -1e-12).all() and participation in PARTICIPATIONS[:3]:
            assert implied == pytest.approx(declared, rel=1e-9)  # where no sign can cancel, the formula is exact


def blocks(structure: Strategy) -> None:
    norms = np.linalg.norm(structure.strategy(), axis=0)
    for length in range(1, T + 1):
        found = structure.block_norms(length)
        largest = [norms[start : start + length].max() for start in range(0, T, length)]
        assert sum(found.values()) == len(largest)
        charged = sorted(norm for norm, count in found.items() for _ in range(count))
        assert all(a >= b * (1 - 1e-12) for a, b in zip(charged, sorted(largest), strict=True))
        if structure.bands == 1:
            assert charged == pytest.approx(sorted(largest), rel=1e-12)


def least(structure: Strategy) -> None:
    spreads = np.linalg.norm(structure.noise_map(), axis=1)
    for participation in PARTICIPATIONS:
        scaled = spreads.min() * find_sensitivity(participation, structure)
        assert scaled >= structure.least_scale * (1 - 1e-12)
    if structure.bands == 1:
        assert structure.least_scale == pytest.approx(min(1.0, spreads.min()), rel=1e-12)


def alike(structure: Strategy) -> None:
    assert structure.alike == np.array_equal(structure.noise_map(), np.eye(T))


def spread_of_rows(structure: Strategy) -> None:
    norms = np.linalg.norm(structure.noise_map(), axis=1)
    assert np.allclose(structure.inverse_norms(), norms, rtol=1e-9)
    assert np.allclose(structure.column_norms(), np.linalg.norm(structure.strategy(), axis=0), rtol=1e-9)


def error(structure: Strategy) -> None:
    for workload in (WORK, Workload(T, 0.5, 0.9)):
        seen = workload.matrix() @ structure.noise_map()
        assert structure.rmse(workload) == pytest.approx(np.linalg.norm(seen) / T**0.5, rel=1e-9)
    sums = WORK.matrix() @ structure.noise_map()
    assert np.allclose(structure.prefix_variances(), (sums**2).sum(axis=1), rtol=1e-9)


def draws(structure: Strategy) -> None:
    """Z has at most `draws` rows that any step reads."""
    assert int(np.any(structure.noise_map() != 0, axis=0).sum()) <= structure.draws
    assert structure.draws >= structure.steps


Check = Callable[[Strategy], None]
NOISE: dict[str, Check] = {
    "pure": pure,
    "map": map_,
    "columns": columns,
    "spread": spread,
    "memory": memory,
    "resume": resume,
    "late start": late_start,
    "pieces": pieces,
}
STRUCTURE: dict[str, Check] = {
    "inverse": inverse,
    "first": first,
    "bands": bands,
    "restarts": restarts,
    "sensitivity": sensitivity,
    "blocks": blocks,
    "least": least,
    "alike": alike,
    "draws": draws,
    "spread": spread_of_rows,
    "error": error,
}


@pytest.mark.parametrize(("promises", "kind"), [(NOISE, Noise), (STRUCTURE, Strategy)], ids=["noise", "structure"])
def test_every_promise_has_its_test_in_order(promises: dict[str, Check], kind: type) -> None:
    assert re.findall(r"^ *- ([a-z ]+):", kind.__doc__ or "", re.MULTILINE) == list(promises)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("promise", NOISE)
def test_what_a_noise_promises(promise: str, name: str) -> None:
    NOISE[promise](STRUCTURES[name])


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("promise", STRUCTURE)
def test_what_a_structure_promises(promise: str, name: str) -> None:
    STRUCTURE[promise](STRUCTURES[name])


def test_only_independent_noise_comes_in_pieces() -> None:
    assert {name for name, structure in STRUCTURES.items() if make_noise(structure).pieces} == {
        "independent",
        "schedule",
        "loud",
    }
    assert [make_noise(STRUCTURES["schedule"]).std(t) for t in range(T)] == list(SCALES)


class Half(Dense):
    """Says of noise that is C⁻¹Z that C is half of what it is."""

    def strategy(self) -> np.ndarray:
        return self.C / 2


class Small(Dense):
    """Says that one participation moves it half as much as it does."""

    def single(self) -> float:
        return super().single() / 2


@pytest.mark.parametrize(
    ("kind", "promise"),
    [(Half, "inverse"), (Half, "least"), (Half, "sensitivity"), (Small, "blocks"), (Small, "sensitivity")],
)
def test_a_structure_that_lies_is_caught(kind: type[Dense], promise: str) -> None:
    assert isinstance(STRUCTURES["se"], Dense)
    with pytest.raises(AssertionError):
        STRUCTURE[promise](kind(STRUCTURES["se"].C))
