"""Training one model on several processes: each sums its share of a step's examples, and all take the same step.

    torchrun --nproc-per-node 4 -m hush train …

In your own training loop it takes two lines: ``ranks = hush.init_distributed()`` and ``plan.start(…, ranks=ranks)``.

Why the guarantee is the same as on one process:

1. *The sums.* The examples of a step are put in an order by the secret that all processes share, and cut into
   chunks (`hush.per_example.chunks`); process j mod W computes chunk j. So every example of the batch is summed on one
   process, from the same rows, parameters and public state: digests of plan, data and weights are compared before the
   first step, and checksums of secret, step, microbatch, rows per chunk, parameters, buffers and public state are sent
   with every step's sums (`hush.distributed.consistency`). So the sum over processes is the sum over the batch, with
   the bounds that the query declares.
2. *Its rounding.* Blocks are chunks of one process, whose boundaries do not depend on the batch, so one more example
   changes two blocks for every W. Processes add float64 numbers, and `hush.per_example.chunks.charge` includes the
   additions of 1024 processes; more are refused. All processes compare a digest of the check of their arithmetic.
3. *One sum.* Coordinates are divided among the processes; each adds its slice in the order of the ranks and sends
   copies of the result. All processes hold the same bits because they are copies, whatever the library or the network
   does.
4. *One noise.* Rank 0 draws the secret and all noise derives from it, so each process adds the same vector, and it is
   in the release once. Before any noise is drawn, rank 0 alone checks that its ledger covers the step and that its sum
   log has no other sum for this noise. The other ranks wait for the result; without it no rank takes the step.
5. *What is released* are the parameters of rank 0. They are a function of its sums and its noise, as on one process. If
   another process computes other parameters (another processor, another library), the checksums differ at the next
   step, before its noise is drawn, and the run stops.

The messages between processes are private: sums without noise, and the secret. The network must be trusted like the
machines; torch.distributed does not encrypt.
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

from hush._internal.settings import MICROBATCH as MICROBATCH
from hush._internal.tensors import Layout, Named, Sums
from hush.errors import InvalidInputError, LostRank, Stopped

# Types of a step's input and output, and of the process group and guard that a run uses.


@dataclass(frozen=True)
class Batch:
    """The examples of one step of one run. Their indices and their number are private."""

    step: int
    indices: Tensor = field(repr=False)
    run: object = field(repr=False)


@dataclass(frozen=True)
class Record:
    """The result of a step. ``private`` (loss, batch size, clipped examples) must never be released."""

    step: int
    private: Named

    def numbers(self) -> dict[str, float]:
        """The private metrics as plain numbers, for a file marked private."""
        return {name: float(value) for name, value in self.private.items()}


class ProcessGroup(Protocol):
    """How several processes share the examples of a step; each of them adds the same noise and takes the same step."""

    @property
    def rank(self) -> int:
        """This process."""
        ...

    @property
    def world(self) -> int:
        """The number of processes."""
        ...

    def all_reduce(self, sums: Sums) -> Sums:
        """The sums over all processes, the same bits on each."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Broadcast plain data (JSON types) from process 0 to every process."""
        ...

    def broadcast_bytes(self, said: bytes) -> bytes:
        """Broadcast bytes from process 0."""
        ...

    def all_gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The parts of all processes, concatenated; that of process r has ``sizes[r]`` numbers."""
        ...


@dataclass(frozen=True)
class SingleProcess:
    """One process."""

    rank: int = 0
    world: int = 1

    def all_reduce(self, sums: Sums) -> Sums:
        """The sums unchanged."""
        return sums

    def broadcast(self, value: Any) -> Any:
        """The value of this process."""
        return value

    def broadcast_bytes(self, said: bytes) -> bytes:
        """The bytes of this process."""
        return said

    def all_gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The only part."""
        return part


def on_rank_zero(ranks: ProcessGroup, action: Callable[[], Any]) -> Any:
    """The result of ``action`` (JSON types), which only process 0 calls; if it fails there, all processes stop."""
    if ranks.world == 1:
        return action()
    if ranks.rank:
        answer = ranks.broadcast(None)
        if answer["failed"]:
            raise Stopped("process 0 has stopped this run; its own message says why")
        return answer["value"]
    try:
        value = action()
    except BaseException:
        ranks.broadcast({"failed": True})
        raise
    ranks.broadcast({"failed": False, "value": value})
    return value


class NoiseReuseGuard(Protocol):
    """Ensures that the noise of a step is never added to two different sums (`hush.checkpointing`)."""

    def allows(self, sums: Sums) -> bool:
        """Called with the next step's channels before their noise is drawn. Returns False if the run now has a fresh
        secret, so the sums must be recomputed."""
        ...

    def before_release(self) -> None:
        """Called before weights are released."""
        ...


PATIENCE = 1800.0  # seconds without an answer after which a process counts as lost
MESSAGE = 1000  # bytes per message; longer content takes a second message
LENGTH = 8  # bytes that encode the length of a message


@dataclass(frozen=True)
class Distributed:
    """This process in a process group of torch.distributed (gloo, or nccl if the model is on CUDA)."""

    rank: int
    world: int
    device: torch.device

    def all_reduce(self, sums: Sums) -> Sums:
        """The sums over all processes in float64, the same bits on each: see 3. above."""
        layouts = {channel: Layout.of(named) for channel, named in sums.items()}
        flat = torch.cat([layouts[channel].join(named) for channel, named in sums.items()]).double()
        whole = self._add_up(flat.to(self.device)).to(flat.device)  # nccl needs tensors on its device
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

    def all_gather(self, part: Tensor, sizes: list[int]) -> Tensor:
        """The parts of all processes, concatenated; that of process r has ``sizes[r]`` numbers."""
        padded = part.new_zeros(max(sizes), device=self.device)
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        with self._reaching_others():
            dist.all_gather(parts, padded)
        return torch.cat([own[:size] for own, size in zip(parts, sizes, strict=True)]).to(part.device)

    def broadcast(self, value: Any) -> Any:
        """Broadcast plain data (JSON types) from process 0; the data of other processes are ignored."""
        said = json.dumps(value).encode() if self.rank == 0 else b""
        return json.loads(self.broadcast_bytes(said))

    def broadcast_bytes(self, said: bytes) -> bytes:
        """Broadcast bytes from process 0."""
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
        """Report a network error as the failure of another process."""
        try:
            yield
        except RuntimeError as error:
            raise LostRank(
                f"process {self.rank} of {self.world} lost its connection to another process, which failed (its own "
                "message says why), was killed, or did not answer in time"
            ) from error


def _to_octets(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def find_own_device(device: str | torch.device) -> torch.device:
    """The device of this process if all processes get the same option: ``cuda`` is one GPU for each process that
    torchrun has started on this machine."""
    named = torch.device(device)
    own = os.environ.get("LOCAL_RANK", "")
    return torch.device("cuda", int(own)) if named == torch.device("cuda") and own.isdecimal() else named


def init_distributed(device: str | torch.device = "cpu", *, timeout: float = PATIENCE) -> ProcessGroup:
    """The process group that torchrun started, or a single process if there is none.

    ``device`` is where the model is: the backend is nccl for CUDA and gloo otherwise; ``cuda`` is resolved by
    `find_own_device`. A process that does not answer for ``timeout`` seconds counts as lost. The group is destroyed
    when the program ends, at the latest.
    """
    if not dist.is_available():
        raise InvalidInputError("this torch was built without torch.distributed: use one process")
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
            return SingleProcess()
        kind = torch.device(device).type
        importlib.import_module("torch.distributed.nn")  # if imported later, its defaults would keep the group alive
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
    """Leave the process group, if there is one.

    The threads of the group end here. A thread that outlives the interpreter aborts the process (SIGABRT) when it frees
    a tensor, and torchrun would report a finished run as failed.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
