"""Checkpoints: atomic, without pickle, readable by their owner only; a resumed run continues to the same bits.

In scope: the files that hold a run's state, secret and sum log, and the guard against adding the same noise to two
different sums. The run directory as a whole is `hush.run_directory`; the charge of a run is in `hush.ledger`.
"""

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
