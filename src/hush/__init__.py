"""Train neural networks on private data, and say truthfully how private the result is."""

from hush.accounting.guarantee import Guarantee
from hush.audit.audit import audit_plan
from hush.clipping import ClippedSum
from hush.distributed.group import Batch, Record, init_distributed
from hush.errors import HushError, InvalidInputError, Refused
from hush.ledger.book import Ledger
from hush.methods import make_plan
from hush.noise import Independent
from hush.optimizers import SGD, Adam, TorchOptim
from hush.per_example.model_checks import to_group_norm
from hush.plan import Plan
from hush.randomness import Secret
from hush.release.description import Architecture, Description, Inputs
from hush.release.load import Predictions, load
from hush.run import Run
from hush.sampling import FixedSize, Partitioned, Poisson, Shuffled
from hush.training import train

__all__ = [
    "SGD",
    "Adam",
    "Architecture",
    "InvalidInputError",
    "Batch",
    "ClippedSum",
    "Description",
    "FixedSize",
    "Guarantee",
    "HushError",
    "Independent",
    "Inputs",
    "Ledger",
    "Partitioned",
    "Plan",
    "Poisson",
    "Predictions",
    "Record",
    "Refused",
    "Run",
    "Secret",
    "Shuffled",
    "TorchOptim",
    "audit_plan",
    "init_distributed",
    "load",
    "make_plan",
    "to_group_norm",
    "train",
]
