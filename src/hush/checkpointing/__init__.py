"""Checkpoints: atomic, without pickle, readable by their owner only; a resumed run continues to the same bits."""

from hush.checkpointing.checkpoint import (
    LOG,
    Checkpoints,
    InUse,
    LatestCheckpoint,
    OtherVersion,
    Saved,
    Unreadable,
    read_checkpoint,
    share_state,
)

__all__ = [
    "LOG",
    "Checkpoints",
    "InUse",
    "LatestCheckpoint",
    "OtherVersion",
    "Saved",
    "Unreadable",
    "read_checkpoint",
    "share_state",
]
