"""Which examples take part in a step, and what that says publicly."""

from hush.sampling.participation import (
    CyclicPoissonSampled,
    OnePass,
    Participation,
    PoissonSampled,
    Reshuffled,
    SameOrder,
    Separated,
    WithoutReplacement,
)
from hush.sampling.samplers import CyclicPoisson, FixedSize, Partitioned, Poisson, Room, Sampler, Shuffled, one_pass

__all__ = [
    "CyclicPoisson",
    "CyclicPoissonSampled",
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
