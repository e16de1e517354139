"""`hush train` on several processes: process 0 keeps, charges, speaks and releases; the others take the same steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from safetensors.torch import load, save
from torch import Tensor

from hush.before import Values
from hush.checkpoint import share_state
from hush.cli.console import be_silent
from hush.cli.keeper import Keeper, KeepingOptions, open_keeper
from hush.errors import HushError
from hush.ranks import join_ranks, leave_ranks
from hush.run import Run
from hush.stepping import Ranks, Stopped, ask_first


class Interrupted(HushError):
    """Somebody asked the run to stop between two steps."""


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """The processes of this run, of which only process 0 speaks; what another one fails by, it says on stderr."""
    ranks = join_ranks(device)
    if ranks.rank:
        be_silent()
    try:
        yield ranks
    except HushError as error:
        if ranks.rank and not isinstance(error, Stopped):
            sys.stderr.write(f"process {ranks.rank}: error: {error}\n")
        raise
    finally:
        leave_ranks()


def open_first(stack: ExitStack, ranks: Ranks, given: KeepingOptions) -> Keeper:
    """What is kept of the run, open on process 0 until the stack is left; nothing is kept on the others."""
    opened: list[Keeper] = []

    def enter() -> None:
        opened.append(stack.enter_context(open_keeper(given.out, resume=given.resume, overwrite=given.overwrite)))

    ask_first(ranks, enter)
    return opened[0] if opened else Keeper(None, False)


def attach_first(ranks: Ranks, keeper: Keeper, run: Run, given: KeepingOptions) -> None:
    """Begin the run or set it to where it stopped, on process 0 and then, as it stands there, on all."""
    ask_first(ranks, lambda: keeper.attach(run, given))
    share_state(run)


def release_first(ranks: Ranks, release: Callable[[], Mapping[str, Values]]) -> Mapping[str, Values]:
    """What is released before training, by key and name: process 0 charges, makes and keeps it, or reads it where the
    run goes on, and the others hear its values."""
    made: dict[str, Values] = {}
    ask_first(ranks, lambda: made.update(release()))
    if ranks.world == 1:
        return made
    flat = {f"{key}/{name}": value.cpu().contiguous() for key, named in made.items() for name, value in named.items()}
    heard: dict[str, dict[str, Tensor]] = {}
    for text, value in load(ranks.hear_bytes(b"" if ranks.rank else save(flat))).items():
        key, _, name = text.partition("/")
        heard.setdefault(key, {})[name] = value
    return heard


def stop_together(run: Run, keeper: Keeper, asked: Callable[[], bool]) -> None:
    """Have a wish to stop heard by all processes before the same step: as process 0 refuses to cover it."""

    def cover(steps: int) -> None:
        if asked():
            raise Interrupted("as asked")
        if keeper.account is not None:
            keeper.account.cover(steps)

    if run.ranks.world > 1 and run.ranks.rank == 0:
        run.covered_by(cover)
