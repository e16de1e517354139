"""Whether the processes that share a run stand at the same place: compared before the first step, and at every step.

Before the first step digests of plan, data and weights are compared, under the run's secret, and how a batch is cut. At
every step a checksum of what a sum depends on (parameters, buffers, the query's public state) and of what decides who
is summed where (secret, step, microbatch) rides along with the sums: with another one of these, an example could be
summed by two processes, which is twice its bound. Each process puts its own into a place of its own, so that the
float64 sum over all processes is the list of them, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hush.digests import VARYING, digest_data, digest_weights
from hush.errors import Refused
from hush.identity import NoIdentity
from hush.mechanism import Mechanism
from hush.named import Sums, trainable
from hush.queries import Preparing
from hush.randomness import Secret
from hush.source import Source
from hush.stepping import Ranks

STANDING = "standing"


def check_shareable(plan: Mechanism, ranks: Ranks) -> None:
    """Refuse what several processes cannot share."""
    if ranks.world > 1 and isinstance(plan.query, Preparing):
        raise Refused(
            f"method '{plan.method}' releases rows before its first step, which several processes do not share: train "
            "in one process, without torchrun"
        )


def find_shards(ranks: Ranks, device: torch.device) -> Ranks | None:
    """The processes among which the coordinates of noise are cut, where there are several."""
    if device.type == "cuda":
        raise Refused("noise is made in slices on the CPU only: leave noise_shards out")
    return ranks if ranks.world > 1 else None


def check_same_run(ranks: Ranks, plan: Mechanism, model: nn.Module, source: Source, secret: Secret, **cut: int) -> None:
    """Refuse, on every process, where plan, weights, data or how work is ``cut`` are not the same on all of them."""
    if ranks.world > 1:
        numbers = {name: str(number) for name, number in cut.items()}
        check_same(ranks, _digest_run(plan, model, source, secret) | numbers)


def check_same(ranks: Ranks, own: Mapping[str, str]) -> None:
    """Refuse, on every process, where ``own`` (digests by what they are of) is not the same on all of them."""
    first = ranks.hear(dict(own))
    differs = torch.tensor([float(first.get(what) != found) for what, found in own.items()], dtype=torch.float64)
    counts = ranks.total({"differs": {"": differs}})["differs"][""]
    names = [what for what, count in zip(own, counts.tolist(), strict=True) if count]
    if names:
        raise Refused(
            f"the processes of this run do not have the same {' and '.join(names)}, and what they sum would not be one "
            "batch: give all of them the same files, options, seed and libraries"
        )


def _digest_run(plan: Mechanism, model: nn.Module, source: Source, secret: Secret) -> dict[str, str]:
    data = digest_data(source, secret, lambda text: None)
    if data.startswith(VARYING):
        raise Refused(
            "the data differ from one reading to the next, so that nobody can see whether all processes have the same: "
            "draw at random in the model or its losses, or train in one process"
        )
    try:
        known = plan.fingerprint(trainable(model))
    except NoIdentity:
        known = f"{plan.method} {plan.steps} {plan.sigma!r} {plan.divisor!r}"
    return {"plan": known, "weights": digest_weights(model, secret), "data": data}


def mark_step(secret: Secret, step: int, microbatch: int) -> Tensor:
    """What decides which examples of which batch a process sums, as numbers that say nothing about the secret."""
    return torch.tensor([*secret.derive(STANDING, step), microbatch])


def add_standing(sums: Sums, ranks: Ranks, at: int) -> Sums:
    """The sums with one more channel: where this process stands, as one number in its own place of all."""
    device = next(value.device for named in sums.values() for value in named.values())
    place = torch.zeros(ranks.world, dtype=torch.float64, device=device)
    place[ranks.rank] = at
    return {**sums, STANDING: {"": place}}


def take_standing(sums: Sums, at: int) -> Sums:
    """The sums without that channel; refused where a process stood elsewhere."""
    if bool((sums[STANDING][""] != at).any()):
        raise Refused(
            "the processes of this run have come to different parameters, or to another step, secret or microbatch, so "
            "that what they sum is not one step: run them on machines of one kind with the same libraries, and after "
            "process 0 has restored a checkpoint call share_state on all"
        )
    return {channel: named for channel, named in sums.items() if channel != STANDING}
