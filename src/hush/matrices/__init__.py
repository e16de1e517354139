"""The mathematics of A = BC, in numpy float64 and without tensors; README.md maps names to symbols."""

from hush.matrices.band_optimum import optimal_banded, optimal_toeplitz
from hush.matrices.banded import Banded
from hush.matrices.blt import BLT
from hush.matrices.blt_optimum import optimal_blt
from hush.matrices.dense import Dense, from_gram
from hush.matrices.multi_epoch import optimal_epochs
from hush.matrices.single_epoch import optimal_single
from hush.matrices.structure import Solution, Structure
from hush.matrices.toeplitz import Toeplitz, identity, inverse_square_root, square_root
from hush.matrices.tree import Tree, TreeStep
from hush.matrices.workloads import Workload, distances, objective, prefix_sums

__all__ = [
    "BLT",
    "Banded",
    "Dense",
    "Solution",
    "Structure",
    "Toeplitz",
    "Tree",
    "TreeStep",
    "Workload",
    "distances",
    "from_gram",
    "identity",
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
