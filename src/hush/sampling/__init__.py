"""Samplers: which examples take part in a step, and the participation that this publicly declares.

>>> from hush import sampling
>>> sampling.Poisson(examples=60_000, rate=256 / 60_000, steps=4_700).participation.steps
4700
>>> sampler = sampling.CyclicPoisson(examples=60_000, batch_size=256, groups=8, steps=4_700)

In scope: drawing indices from public numbers and the secret. Reading the data is `hush.data_source`; the proof for a
participation is in `hush.guarantees`.
"""

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
from hush.sampling.samplers import CyclicPoisson, FixedSize, Partitioned, Poisson, Sampler, Shuffled, one_pass

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
    "SameOrder",
    "Sampler",
    "Separated",
    "Shuffled",
    "WithoutReplacement",
    "one_pass",
]
