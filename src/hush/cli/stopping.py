"""How a command is stopped from outside: by a signal between two steps, or by the operating system."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interruption(Exception):
    """Somebody ended a command, which has a sentence of its own for it: what is kept, and how to go on."""


@contextmanager
def say_when_interrupted(sentence: str) -> Iterator[None]:
    """Within it, Ctrl-C ends the command with this sentence."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interruption(sentence) from error


@contextmanager
def note_interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a question to be asked between steps; a second one ends at once."""
    asked = False

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain_os_error(error: OSError) -> str:
    """What the operating system refused, in a few words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on the disk (free some first)"
    return f"{error.strerror or error}" + (f" ('{error.filename}')" if error.filename else "")
