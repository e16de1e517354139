"""Checkpoints: atomic, without pickle, readable by their owner only; a resumed run continues to the same bits."""

from hush.checkpointing.checkpoint import (
    LOG,
    SECRETS,
    Checkpoints,
    InUse,
    LatestCheckpoint,
    OtherVersion,
    Saved,
    Unreadable,
    find_secret,
    read_checkpoint,
    read_secrets,
    share_state,
    wipe_secret,
)

__all__ = [
    "LOG",
    "SECRETS",
    "Checkpoints",
    "InUse",
    "LatestCheckpoint",
    "OtherVersion",
    "Saved",
    "Unreadable",
    "find_secret",
    "read_checkpoint",
    "read_secrets",
    "share_state",
    "wipe_secret",
]
