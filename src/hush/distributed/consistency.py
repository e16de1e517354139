"""Checks that the processes of a run have the same state, before the first step and at every step.

Before the first step, digests of plan, data and weights (under the run's secret) and the partition of a batch are
compared. At every step, a checksum is sent with the sums. It covers what a sum depends on (parameters, buffers, the
query's public state) and what decides which process sums which example (secret, step, microbatch): if these differed,
an example could be summed by two processes, which is twice its bound. Each process writes its checksum at its own
index, so the float64 sum over all processes is exactly the list of checksums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hush._internal.identity import NoIdentity
from hush._internal.tensors import Sums, trainable
from hush.data_source import Source, Tensors
from hush.distributed.group import ProcessGroup
from hush.errors import DistributedError, InvalidInputError
from hush.per_example.chunks import PROCESSES
from hush.privacy_unit import Units
from hush.randomness import Secret, generator, seeded, streams
from hush.randomness.cipher import Octets, compute_tag

if TYPE_CHECKING:
    from hush.plan import Plan


# Digests of a run's data and frozen weights, keyed with its secret: private, and useless without it.
#
# A run resumed on other data would add the same noise to other sums, and the difference of the two would be free of
# noise. So other data is rejected. All data is digested: tensors directly from memory, at ten gigabytes per second;
# any other source by reading every example once, which takes as long as reading an epoch. If two readings give
# different results (augmentation inside the dataset that torch's generator does not control), only the length is known
# here, and the sum log (`hush.checkpointing.sum_log`) detects a change.

Notify = Callable[[str], None]
LOOKED_AT = 256  # examples that are read twice and compared
CHUNK = 256  # examples per read
PATIENCE = 2.0  # seconds before a progress message
VARYING = "changes from one reading to the next"


def digest_data(source: Source, secret: Secret, notify: Notify) -> str:
    """The digest of all data under the run's secret, or `VARYING` with the length if two readings differ."""
    if isinstance(source, Units):
        grouping = _tag(secret, "units", _bytes((source.order, source.starts, source.most)))
        return f"{digest_data(source.rows, secret, notify)}, in units: {grouping}"
    if isinstance(source, Tensors):
        return _tag(secret, "data", (part for tensor in source.tensors for part in _bytes(tensor)))
    if _is_varying(source, secret):
        return f"{VARYING}: {len(source)} examples"
    return _whole(source, secret, notify)


def _is_varying(source: Source, secret: Secret) -> bool:
    """Whether some examples differ from one reading to the next."""
    size = min(LOOKED_AT, len(source))
    chosen = generator(secret, streams.SAMPLED_DIGEST, 0).choice(len(source), size, replace=False, shuffle=False)
    indices = torch.from_numpy(chosen)
    readings = []
    for _ in range(2):
        with seeded(0):
            readings.append(_tag(secret, "examples", _bytes(source.take(indices))))
    return readings[0] != readings[1]


def digest_frozen(model: nn.Module, secret: Secret) -> str:
    """The digest of the parameters that training does not change; they are not in a checkpoint."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return _tag(secret, "frozen", _bytes(frozen))


def digest_weights(model: nn.Module, secret: Secret) -> str:
    """The digest of a model's state, as it is released."""
    return _tag(secret, "weights", _bytes(dict(model.state_dict())))


def _whole(source: Source, secret: Secret, notify: Notify) -> str:
    def parts() -> Iterator[Octets]:
        said = time.monotonic()
        for start in range(0, len(source), CHUNK):
            if time.monotonic() - said > PATIENCE:
                said = time.monotonic()
                notify(f"reading all data once, for its digest: {start} of {len(source)} examples")
            yield from _bytes(source.take(torch.arange(start, min(start + CHUNK, len(source)))))

    with seeded(0):
        return _tag(secret, "data", parts())


def _tag(secret: Secret, purpose: str, parts: Iterator[Octets]) -> str:
    return compute_tag(secret.derive(streams.digest(purpose), 0, size=32), bytes(12), parts).hex()


def _bytes(content: Any) -> Iterator[Octets]:
    """The bytes of everything in a nested content, each with its type and shape before it."""
    if isinstance(content, Tensor):
        flat = content.detach().cpu().contiguous().reshape(-1)
        yield _text(f"{content.dtype} {tuple(content.shape)}")
        if flat.numel():
            yield flat.view(torch.uint8).numpy()
    elif isinstance(content, np.ndarray) and not content.dtype.hasobject:
        yield _text(f"{content.dtype.str} {content.shape}")
        yield np.frombuffer(np.ascontiguousarray(content).tobytes(), np.uint8)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield _text(f"key {key!r}")
            yield from _bytes(value)
    elif isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
        yield _text(f"{len(content)} items")
        for value in content:
            yield from _bytes(value)
    else:
        yield _text(repr(content))


def _text(text: str) -> Octets:
    return np.frombuffer(f"\0{text}\0".encode(), np.uint8)


STANDING = streams.CONSISTENCY


def check_shareable(plan: Plan, ranks: ProcessGroup) -> None:
    """Raise an error for a plan that several processes cannot share."""
    if ranks.world > PROCESSES:
        raise DistributedError(f"at most {PROCESSES} processes can share a run, got {ranks.world}: use fewer")
    if ranks.world > 1 and plan.trains_on is not None:
        raise DistributedError(
            f"method '{plan.method}' does not train on sums with noise, which is not supported on several processes: "
            "train in one process, without torchrun"
        )


def find_shards(ranks: ProcessGroup, device: torch.device) -> ProcessGroup | None:
    """The processes among which the coordinates of noise are divided, if there are several."""
    if device.type == "cuda":
        raise InvalidInputError("noise is computed in slices on the CPU only: leave noise_shards out")
    return ranks if ranks.world > 1 else None


def check_same_run(
    ranks: ProcessGroup, plan: Plan, model: nn.Module, source: Source, secret: Secret, **cut: int
) -> None:
    """Raise an error on every process if plan, weights, data or the partition ``cut`` differ between processes."""
    if ranks.world > 1:
        numbers = {name: str(number) for name, number in cut.items()}
        check_same(ranks, _digest_run(plan, model, source, secret) | numbers)


def check_same(ranks: ProcessGroup, own: Mapping[str, str]) -> None:
    """Raise an error on every process if ``own`` (digests by name) differs between processes."""
    first = ranks.broadcast(dict(own))
    differs = torch.tensor([float(first.get(what) != found) for what, found in own.items()], dtype=torch.float64)
    counts = ranks.all_reduce({"differs": {"": differs}})["differs"][""]
    names = [what for what, count in zip(own, counts.tolist(), strict=True) if count]
    if names:
        raise DistributedError(
            f"the processes of this run do not have the same {' and '.join(names)}, so their sums would not belong to "
            "one batch: give all of them the same files, options, seed and libraries"
        )


def _digest_run(plan: Plan, model: nn.Module, source: Source, secret: Secret) -> dict[str, str]:
    data = digest_data(source, secret, lambda text: None)
    if data.startswith(VARYING):
        raise DistributedError(
            "the data differ from one reading to the next, so it cannot be checked that all processes have the same: "
            "draw at random in the model or its losses, or train in one process"
        )
    try:
        known = plan.fingerprint(trainable(model))
    except NoIdentity:
        known = f"{plan.method} {plan.steps} {plan.sigma!r} {plan.divisor!r}"
    return {"plan": known, "weights": digest_weights(model, secret), "data": data}


def mark_step(secret: Secret, step: int, *cut: int) -> Tensor:
    """What decides which examples a process sums (``cut`` is how a batch is cut), as numbers that reveal nothing about
    the secret."""
    return torch.tensor([*secret.derive(STANDING, step), *cut])


def append_checksum(sums: Sums, ranks: ProcessGroup, at: int) -> Sums:
    """The sums with one more channel: the checksum of this process's state, at its own index."""
    device = next(value.device for named in sums.values() for value in named.values())
    place = torch.zeros(ranks.world, dtype=torch.float64, device=device)
    place[ranks.rank] = at
    return {**sums, STANDING: {"": place}}


def split_checksum(sums: Sums, at: int) -> Sums:
    """The sums without that channel; an error if the checksum of a process differs."""
    if bool((sums[STANDING][""] != at).any()):
        raise DistributedError(
            "the processes of this run have different parameters, or a different step, secret or microbatch, so their "
            "sums do not belong to one step: use machines of one kind with the same libraries, and call share_state on "
            "all processes after process 0 has restored a checkpoint"
        )
    return {channel: named for channel, named in sums.items() if channel != STANDING}
