"""Train neural networks on private data, and say truthfully how private the result is."""

from hush.artefact import Architecture, Description, Inputs
from hush.audit.own_plan import audit_plan
from hush.errors import BadInput, HushError, Refused
from hush.gradients import to_group_norm
from hush.handover import Predictions, load
from hush.loop import train
from hush.methods import make_plan
from hush.noise import Independent
from hush.plan import Plan
from hush.privacy.guarantee import Guarantee
from hush.queries import ClippedSum
from hush.randomness import Secret
from hush.ranks import join_ranks
from hush.rules import SGD, Adam, TorchOptim
from hush.run import Run
from hush.sampling import FixedSize, Partitioned, Poisson, Shuffled
from hush.stepping import Batch, Record

__all__ = [
    "SGD",
    "Adam",
    "Architecture",
    "BadInput",
    "Batch",
    "ClippedSum",
    "Description",
    "FixedSize",
    "Guarantee",
    "HushError",
    "Independent",
    "Inputs",
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
    "join_ranks",
    "load",
    "make_plan",
    "to_group_norm",
    "train",
]
