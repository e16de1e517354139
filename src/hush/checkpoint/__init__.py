"""Checkpoints: atomic, without pickle, readable by their owner only; a resumed run continues to the same bits."""

from hush.checkpoint.directory import Checkpoints, Found
from hush.checkpoint.file import Saved, Unreadable

__all__ = ["Checkpoints", "Found", "Saved", "Unreadable"]
