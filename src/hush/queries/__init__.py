"""The only code that sees data: what it releases, and the bound on what one example adds to it."""

from hush.queries.adaptive import Adaptive, Quantile
from hush.queries.clipped import ClipMode, ClippedSum, Clipping, clip_factors, total_norms
from hush.queries.error_feedback import ErrorFeedback
from hush.queries.plain import PlainSum
from hush.queries.query import ADDED, BY_TABLE, ByTable, Channel, Claim, Preparing, Proof, Query, Remembering, Start
from hush.queries.two_point import TwoPoint

__all__ = [
    "ADDED",
    "BY_TABLE",
    "Adaptive",
    "ByTable",
    "Channel",
    "Claim",
    "ClipMode",
    "ClippedSum",
    "Clipping",
    "ErrorFeedback",
    "PlainSum",
    "Preparing",
    "Proof",
    "Quantile",
    "Query",
    "Remembering",
    "Start",
    "TwoPoint",
    "clip_factors",
    "total_norms",
]
