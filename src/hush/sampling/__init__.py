"""Which examples take part in a step, and what that says publicly."""

from hush.sampling.participation import (
    CyclicPoisson,
    OnePass,
    Participation,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)
from hush.sampling.samplers import Cyclic, FixedSize, Partitioned, Poisson, Room, Sampler, Shuffled, one_pass

__all__ = [
    "Cyclic",
    "CyclicPoisson",
    "FixedSize",
    "OnePass",
    "Participation",
    "Partitioned",
    "Poisson",
    "PoissonSampled",
    "Reshuffled",
    "Room",
    "SameOrder",
    "Sampler",
    "Separated",
    "Shuffled",
    "WithoutReplacement",
    "one_pass",
]
