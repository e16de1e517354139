"""Checkpoints: atomic, without pickle, readable by their owner only; a resumed run continues to the same bits."""

from hush.checkpoint.directory import LOG, Checkpoints, Found, InUse
from hush.checkpoint.file import OtherVersion, Saved, Unreadable, read_checkpoint
from hush.checkpoint.sharing import share_state

__all__ = [
    "LOG",
    "Checkpoints",
    "Found",
    "InUse",
    "OtherVersion",
    "Saved",
    "Unreadable",
    "read_checkpoint",
    "share_state",
]
