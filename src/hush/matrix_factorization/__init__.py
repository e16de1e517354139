"""The mathematics of A = BC, in numpy float64 and without tensors.

README.md says what is in scope and maps names to symbols.
"""

from hush.matrix_factorization.banded import BandedMatrix, best_banded, optimal_banded, optimal_toeplitz
from hush.matrix_factorization.blt import BLT, optimal_blt
from hush.matrix_factorization.dense import Dense, from_gram
from hush.matrix_factorization.identity import Diagonal, drop_first
from hush.matrix_factorization.multi_epoch import optimal_epochs
from hush.matrix_factorization.single_epoch import optimal_single
from hush.matrix_factorization.strategy import Solution, Strategy
from hush.matrix_factorization.toeplitz import Toeplitz, inverse_square_root, square_root
from hush.matrix_factorization.tree import Tree, TreeStep
from hush.matrix_factorization.workloads import Workload, distances, objective, prefix_sums

__all__ = [
    "BLT",
    "BandedMatrix",
    "Dense",
    "Diagonal",
    "Solution",
    "Strategy",
    "Toeplitz",
    "Tree",
    "TreeStep",
    "Workload",
    "best_banded",
    "distances",
    "drop_first",
    "from_gram",
    "inverse_square_root",
    "objective",
    "optimal_banded",
    "optimal_blt",
    "optimal_epochs",
    "optimal_single",
    "optimal_toeplitz",
    "prefix_sums",
    "square_root",
]
