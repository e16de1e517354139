"""One model on several processes: each sums its share of a step's examples, and all of them take the same step.

    torchrun --nproc-per-node 4 -m hush train …

or in a loop of one's own, in two more lines: ``ranks = hush.init_distributed()`` and ``plan.start(…, ranks=ranks)``.

Why the guarantee is that of one process, as the same object:

1. *The sums.* A step's examples take places (`hush.per_example.chunks`) by the secret that all processes share, places
are cut
   into pieces, and piece j is the work of process j mod W. So every example of the batch is summed on one process, by
   the rows, the parameters and the public state that all of them have: digests of plan, data and weights are compared
   before the first step, and checksums of secret, step, microbatch, parameters, buffers and public state ride along
   with every step's sums (`hush.distributed.consistency`). So the sum over processes is the sum over the batch, with
   the bounds that the query declares.
2. *Its rounding.* What processes add to each other is float64. `hush.per_example.chunks.charge` lets every addend of
the
   float64 sum be rounded as often as there are places. With W processes the addends are the blocks that hold a place,
   of which there are at most as many as places; a process without any adds zeros, which rounds nothing; and in any
   order of additions an addend is rounded at most once for each other addend. So the charge holds for every W.
3. *One sum.* Coordinates are cut among the processes; each adds its slice in the order of the ranks and sends copies of
   the result. All processes hold the same bits because they are copies, whatever the library or the network does.
4. *One noise.* Rank 0 draws the secret and all noise derives from it, so each process adds the same vector, and it is
   in the release once. Rank 0 alone decides, before any noise is drawn: its ledger covers the step and its record says
   that this noise has met no other sum. The others wait for this verdict; without it nobody takes the step.
5. *What is released* are the parameters of rank 0. They are a function of its sums and its noise, as on one process. If
   another process came to other parameters (another processor, another library), the checksums differ at the next
   step, before its noise is drawn, and the run stops.

What the processes tell each other is private: sums without noise, and the secret. The network between them must be
trusted, as the machines are; torch.distributed does not encrypt.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hush._internal.tensors import Layout, Named, Sums
from hush.errors import HushError, InvalidInputError

# What goes into a step and comes out of it, and who shares it or stands beside it.

MICROBATCH = 400  # places of a piece, a third of them empty at batch 256: more activations fall out of the cache


@dataclass(frozen=True)
class Batch:
    """The examples of one step of one run. Which they are, and how many, is private."""

    step: int
    indices: Tensor = field(repr=False)
    run: object = field(repr=False)


@dataclass(frozen=True)
class Record:
    """What happened in a step. ``private`` (loss, batch size, clipped examples) must never be released."""

    step: int
    private: Named

    def numbers(self) -> dict[str, float]:
        """The private figures as plain numbers, for a file marked private."""
        return {name: float(value) for name, value in self.private.items()}


class ProcessGroup(Protocol):
    """How several processes share the examples of a step; each of them adds the same noise and takes the same step."""

    @property
    def rank(self) -> int:
        """This process."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    def total(self, sums: Sums) -> Sums:
        """The sums over all processes, the same bits on each."""
        ...

    def hear(self, value: Any) -> Any:
        """What process 0 says, on every process: plain data, as JSON has it."""
        ...

    def hear_bytes(self, said: bytes) -> bytes:
        """The same for bytes."""
        ...

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The parts of all processes one after the other; that of process r has ``sizes[r]`` numbers."""
        ...


@dataclass(frozen=True)
class SingleProcess:
    """One process."""

    rank: int = 0
    world: int = 1

    def total(self, sums: Sums) -> Sums:
        """The sums as they are."""
        return sums

    def hear(self, value: Any) -> Any:
        """What this process says."""
        return value

    def hear_bytes(self, said: bytes) -> bytes:
        """What this process says."""
        return said

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The only part."""
        return part


class Stopped(HushError):
    """Process 0 has stopped the run; why is what process 0 says."""


def on_rank_zero(ranks: ProcessGroup, action: Callable[[], Any]) -> Any:
    """What ``action`` gives on process 0, which alone does it, as JSON has it; where it fails there, all stop."""
    if ranks.world == 1:
        return action()
    if ranks.rank:
        told = ranks.hear(None)
        if told["failed"]:
            raise Stopped("process 0 has stopped this run, and says why")
        return told["value"]
    try:
        value = action()
    except BaseException:
        ranks.hear({"failed": True})
        raise
    ranks.hear({"failed": False, "value": value})
    return value


class NoiseReuseGuard(Protocol):
    """Sees to it that the noise of a step never meets two different sums (`hush.checkpointing`)."""

    def meets(self, sums: Sums) -> bool:
        """Called with the next step's channels before their noise is drawn. False where the run has a fresh secret
        now, so that the sums are to be made anew."""
        ...

    def releasing(self) -> None:
        """Called before weights are released."""
        ...


PATIENCE = 1800.0  # seconds without an answer after which a process counts as lost
MESSAGE = 1000  # bytes that fit into one message; a longer one takes a second
LENGTH = 8  # bytes that say how long a message is


class LostRank(HushError):
    """Another process of this run is gone or does not answer."""


@dataclass(frozen=True)
class Distributed:
    """This process among those of a process group of torch.distributed (gloo, or nccl where the model is on CUDA)."""

    rank: int
    world: int
    device: torch.device

    def total(self, sums: Sums) -> Sums:
        """The sums over all processes in float64, the same bits on each: see 3. above."""
        layouts = {channel: Layout.of(named) for channel, named in sums.items()}
        flat = torch.cat([layouts[channel].join(named) for channel, named in sums.items()]).double()
        whole = self._add_up(flat.to(self.device)).to(flat.device)  # numbers on a CPU go through nccl too, and back
        parts = torch.split(whole, [layout.size for layout in layouts.values()])
        return {channel: layouts[channel].split(part) for channel, part in zip(sums, parts, strict=True)}

    def _add_up(self, flat: Tensor) -> Tensor:
        each = -(-len(flat) // self.world)
        mine = flat.new_zeros(self.world * each)
        mine[: len(flat)] = flat
        given = torch.empty_like(mine)
        with self._reaching_others():
            dist.all_to_all_single(given, mine)
            slices = given.view(self.world, each)
            own = slices[0]
            for other in slices[1:]:
                own.add_(other)
            dist.all_gather(list(mine.view(self.world, each).unbind()), own.clone())
        return mine[: len(flat)]

    def gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The parts of all processes one after the other; that of process r has ``sizes[r]`` numbers."""
        padded = part.new_zeros(max(sizes), device=self.device)
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        with self._reaching_others():
            dist.all_gather(parts, padded)
        return torch.cat([own[:size] for own, size in zip(parts, sizes, strict=True)]).to(part.device)

    def hear(self, value: Any) -> Any:
        """What process 0 says, as JSON has it; what others would say is not asked."""
        said = json.dumps(value).encode() if self.rank == 0 else b""
        return json.loads(self.hear_bytes(said))

    def hear_bytes(self, said: bytes) -> bytes:
        """The bytes that process 0 says."""
        first = len(said).to_bytes(LENGTH, "big") + said[:MESSAGE]
        heard = bytes(self._broadcast(_to_octets(first.ljust(LENGTH + MESSAGE, b"\0"))).numpy())
        size = int.from_bytes(heard[:LENGTH], "big")
        if size <= MESSAGE:
            return heard[LENGTH : LENGTH + size]
        rest = _to_octets(said[MESSAGE:]) if self.rank == 0 else torch.empty(size - MESSAGE, dtype=torch.uint8)
        return heard[LENGTH:] + bytes(self._broadcast(rest).numpy())

    def _broadcast(self, octets: Tensor) -> Tensor:
        there = octets.to(self.device)
        with self._reaching_others():
            dist.broadcast(there, 0)
        return there.cpu()

    @contextmanager
    def _reaching_others(self) -> Iterator[None]:
        """An error of the network is that of another process."""
        try:
            yield
        except RuntimeError as error:
            raise LostRank(
                f"process {self.rank} of {self.world} reaches another one no more: it failed (its own message says "
                "why), was killed, or did not answer in time"
            ) from error


def _to_octets(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def find_own_device(device: str | torch.device) -> torch.device:
    """The device of this process where all were told the same: ``cuda`` is a GPU for each that torchrun has started
    on this machine."""
    named = torch.device(device)
    own = os.environ.get("LOCAL_RANK", "")
    return torch.device("cuda", int(own)) if named == torch.device("cuda") and own.isdecimal() else named


def init_distributed(device: str | torch.device = "cpu", *, timeout: float = PATIENCE) -> ProcessGroup:
    """This process as one of those that torchrun started, or alone where it was started by itself.

    ``device`` is where the model is: processes speak through nccl where that is CUDA, and through gloo elsewhere; for
    ``cuda`` it is `find_own_device`. A process that says nothing for ``timeout`` seconds counts as lost. What was
    joined here is left when the program ends, at the latest.
    """
    if not dist.is_available():
        raise InvalidInputError("this torch was built without torch.distributed, so one process is all there is")
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
            return SingleProcess()
        kind = torch.device(device).type
        importlib.import_module("torch.distributed.nn")  # later, its default arguments would hold the group for ever
        atexit.register(shutdown_distributed)
        try:
            dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            raise LostRank(f"the processes of this run did not find each other: {type(error).__name__}") from error
    if dist.get_world_size() == 1:
        return SingleProcess()
    there = find_own_device(device if dist.get_backend() == "nccl" else "cpu")
    return Distributed(dist.get_rank(), dist.get_world_size(), there)


def shutdown_distributed() -> None:
    """Say goodbye to the other processes, where there are any.

    The threads of the group end here. One that outlives the interpreter dies with the whole process where it lets go of
    a tensor (SIGABRT), and torchrun takes a run that is finished for one that failed.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
