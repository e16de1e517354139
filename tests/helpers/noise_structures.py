"""Every structure of noise, and the map from Z to the noise as a stream computes it."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from hush.matrix_factorization import (
    BLT,
    BandedMatrix,
    Diagonal,
    Strategy,
    Toeplitz,
    Tree,
    inverse_square_root,
    optimal_banded,
    optimal_epochs,
    optimal_single,
    prefix_sums,
    square_root,
)
from hush.noise import Noise
from hush.sampling import OnePass, Participation, SameOrder, Separated

T = 12
WORK = prefix_sums(T)
SCALES = tuple(0.25 + (t * 5 % T) / T for t in range(T))
STRUCTURES: dict[str, Strategy] = {
    "independent": Diagonal(T),
    "schedule": Diagonal(T, SCALES),
    "loud": Diagonal(T, tuple(4 + scale for scale in SCALES)),
    "one-coefficient": Toeplitz(T, np.ones(1)),
    "one-band": BandedMatrix(1 / np.array(SCALES)[:, None]),
    "bsr-3": square_root(WORK, 3),
    "square-root": square_root(WORK),
    "bisr-4": inverse_square_root(WORK, 4),
    "bandmf-4": optimal_banded(WORK, 4).structure,
    "blt": BLT(T, np.array([0.9, 0.3]), np.array([0.2, 0.3])),
    "tree": Tree(T),
    "tree-restart": Tree(T, restart=4),
    "tree-complete": Tree(T, restart=5, complete="all"),
    "tree-complete-but-last": Tree(T, restart=5, complete="all-but-last"),
    "honaker": Tree(T, estimate="honaker"),
    "honaker-restart": Tree(T, restart=5, complete="all-but-last", estimate="honaker"),
    "tree-read": Tree(T, nodes="read"),
    "pseudo-inverse": Tree(T).pseudo_inverse(),
    "se": optimal_single(WORK).structure,
    "se-lambda": optimal_single(WORK, tau=T).structure,
    "me": optimal_epochs(WORK, 4).structure,
    "me-lambda": optimal_epochs(WORK, 4, tau=4).structure,
}
PARTICIPATIONS: list[Participation] = [
    OnePass(T),
    SameOrder(4, T),
    SameOrder(5, T),
    Separated(2, 4, T),
    Separated(3, 4, T),
]
ROWS = 3 * T + 8


def impulses(noise: Noise, start: int = 0) -> np.ndarray:
    """M from row ``start`` on, by feeding the unit vectors: coordinate j of z(row) is 1 where j = row."""
    like, eye = torch.zeros(ROWS, dtype=torch.float64), torch.eye(ROWS, dtype=torch.float64)
    state, out = noise.init(like), []
    for step in range(start, T):
        drawn, state = noise.draw(step, lambda row: eye[row].clone(), state)
        out.append(drawn.clone())
    return torch.stack(out).numpy()


def patterns(participation: Participation) -> list[tuple[int, ...]]:
    """All sets of steps in which one example may take part."""
    match participation:
        case OnePass():
            return [(t,) for t in range(T)]
        case SameOrder(per_epoch=b):
            return [tuple(range(t, T, b)) for t in range(b)]
        case Separated(times=k, apart=b):
            chosen = itertools.chain.from_iterable(itertools.combinations(range(T), n) for n in range(1, k + 1))
            return [p for p in chosen if all(y - x >= b for x, y in itertools.pairwise(p))]
    raise AssertionError


def measured(M: np.ndarray, participation: Participation) -> float:
    """The sensitivity that the map implies: noise MZ hides a shift u as well as Z hides the shortest w with Mw = u.

    Over signs only (a lower bound that is attained where signs balance), by brute force.
    """
    worst = 0.0
    inverse = np.linalg.pinv(M)
    for pattern in patterns(participation):
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            shift = np.zeros(T)
            shift[list(pattern)] = (1.0, *signs)
            worst = max(worst, float(np.linalg.norm(inverse @ shift)))
    return worst
