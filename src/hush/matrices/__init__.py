"""The mathematics of A = BC, in numpy float64 and without tensors; README.md maps names to symbols."""

from hush.matrices.band_optimum import optimal_banded, optimal_toeplitz
from hush.matrices.banded import Banded
from hush.matrices.blt import BLT
from hush.matrices.blt_optimum import optimal_blt
from hush.matrices.dense import Dense, from_gram
from hush.matrices.diagonal import Diagonal, drop_first
from hush.matrices.multi_epoch import optimal_epochs
from hush.matrices.single_epoch import optimal_single
from hush.matrices.structure import Solution, Structure
from hush.matrices.toeplitz import Toeplitz, inverse_square_root, square_root
from hush.matrices.tree import Tree, TreeStep
from hush.matrices.workloads import Workload, distances, objective, prefix_sums

__all__ = [
    "BLT",
    "Banded",
    "Dense",
    "Diagonal",
    "Solution",
    "Structure",
    "Toeplitz",
    "Tree",
    "TreeStep",
    "Workload",
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
