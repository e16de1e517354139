"""The executors by name, made of what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hush import validate
from hush.bench.execute import RETRIES, Executor, Inline, Local, count_cores
from hush.bench.ray_cluster import OnRay
from hush.errors import BadInput


@dataclass(frozen=True)
class Wishes:
    """How a sweep is to be carried out; None is what nobody has said."""

    workers: int | None = None
    retries: int | None = None
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None


def make_executor(name: str, wishes: Wishes = Wishes()) -> Executor:
    """The executor of that name; what it has no use for is refused."""
    validate.one_of(tuple(EXECUTORS), executor=name)
    if wishes.workers is not None:
        validate.whole(workers=wishes.workers)
    if wishes.retries is not None:
        validate.not_negative(retries=wishes.retries)
    return EXECUTORS[name](wishes)


def _make_inline(wishes: Wishes) -> Inline:
    _refuse(wishes, "retries", "address", "cpus", "gpus", executor="inline")
    return Inline()


def _make_local(wishes: Wishes) -> Local:
    _refuse(wishes, "address", "cpus", "gpus", executor="local")
    return Local(wishes.workers or count_cores(), RETRIES if wishes.retries is None else wishes.retries)


def _make_ray(wishes: Wishes) -> OnRay:
    cpus, gpus = 1.0 if wishes.cpus is None else wishes.cpus, wishes.gpus or 0.0
    validate.positive(cpus=cpus)
    validate.not_negative(gpus=gpus)
    retries = RETRIES if wishes.retries is None else wishes.retries
    return OnRay(wishes.address, cpus, gpus, wishes.workers, retries)


def _refuse(wishes: Wishes, *names: str, executor: str) -> None:
    for name in names:
        if getattr(wishes, name) is not None:
            raise BadInput(
                f"--{name} means nothing to the executor '{executor}': leave it out, or name another executor"
            )


EXECUTORS: Mapping[str, Callable[[Wishes], Executor]] = {"local": _make_local, "inline": _make_inline, "ray": _make_ray}
