"""The only code that sees data: what it releases, and the bound on what one example adds to it."""

from hush.queries.clipped import ClipMode, ClippedSum, clip_factors, total_norms
from hush.queries.plain import PlainSum
from hush.queries.query import Channel, Claim, OwnClaims, Proof, Query

__all__ = [
    "Channel",
    "Claim",
    "ClipMode",
    "ClippedSum",
    "OwnClaims",
    "PlainSum",
    "Proof",
    "Query",
    "clip_factors",
    "total_norms",
]
