"""Queries: the only code that sees data. A query turns a batch into sums with a bound on each example's contribution.

>>> from hush import clipping
>>> query = clipping.ClippedSum(clip=1.0, mode="normalised")
>>> query.channels["gradient"].bound  # how much one example can move the sum
1.0

In scope: clipping rules and other aggregates with bounded sensitivity. Computing per-example gradients is
`hush.per_example`; cutting a batch into microbatches is `hush.aggregation`.
"""

from hush.clipping.adaptive import Adaptive, Quantile
from hush.clipping.base import (
    PLAIN_SUM,
    Channel,
    Claim,
    HasHiddenState,
    PlainSumProof,
    Proof,
    Query,
)
from hush.clipping.clipped import ClipMode, ClippedSum, Clipping, clip_factors, total_norms
from hush.clipping.error_feedback import ErrorFeedback
from hush.clipping.two_point import TwoPoint
from hush.clipping.unclipped import PlainSum

__all__ = [
    "PLAIN_SUM",
    "Adaptive",
    "Channel",
    "Claim",
    "ClipMode",
    "ClippedSum",
    "Clipping",
    "ErrorFeedback",
    "HasHiddenState",
    "PlainSum",
    "PlainSumProof",
    "Proof",
    "Quantile",
    "Query",
    "TwoPoint",
    "clip_factors",
    "total_norms",
]
