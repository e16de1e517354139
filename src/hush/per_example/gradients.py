"""Per-example gradients: exact norms and weighted sums, at nearly the cost of one ordinary gradient.

``per_example_gradients`` runs the model once forward and once backward. The engine only changes the speed:
"functional" (torch.func, the reference) and "book-keeping" (Bu et al. 2022, "Differentially private optimization on
large model at small cost") give the same result.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hush._internal.tensors import Losses, trainable
from hush._internal.validate import choice
from hush.data_source import to_each
from hush.errors import ExamplesNotIndependent, HushError, InvalidInputError, UnsupportedModelError
from hush.per_example.augmentation import Augmented, Point, average_rows, read_batch_size
from hush.per_example.bookkeeping import BookkeepingGradients, record_book_keeping
from hush.per_example.engine import (
    CheckedLosses,
    EngineChoice,
    SpotChecks,
    compute_one_by_one,
    reads_by_torch_func,
    record_automatic,
    verdict_of,
)
from hush.per_example.functional import record_functional, record_one_by_one, recording
from hush.per_example.isolation import EngineComparison, keeping_generator
from hush.per_example.model_checks import ModelStateGuard, check_model, to_group_norm
from hush.per_example.model_rng import (
    NotPerExample,
    bookmark_draws,
    drawing,
    draws_shared,
    model_randomness,
    probe_rng,
)
from hush.per_example.reads import Read, ReadChecks, ReadLog, checking_reads, current_checks, logging_to, watching_reads
from hush.per_example.result import (
    EmptyGradients,
    GradientWarning,
    MaterializedGradients,
    PerExampleGradients,
    fit_to_piece,
    microbatch_scope,
)
from hush.per_example.rounding import exact_products
from hush.per_example.rules import NoLayerRule
from hush.randomness import Secret, streams

__all__ = [
    "Augmented",
    "GradientPath",
    "GradientWarning",
    "Point",
    "PerExampleGradients",
    "ModelStateGuard",
    "SpotChecks",
    "average_rows",
    "check_model",
    "explain",
    "list_kinds",
    "microbatch_scope",
    "per_example_gradients",
    "to_group_norm",
]


def _record_strictly(
    model: nn.Module, losses: Losses, content: Any, n: int, points: Sequence[Point]
) -> PerExampleGradients:
    try:
        return record_book_keeping(model, losses, content, n, points)
    except NoLayerRule as stop:
        raise UnsupportedModelError(
            f"book-keeping cannot handle this model on its own: {stop.why}; use engine='auto'"
        ) from stop


_ENGINES = {
    "auto": record_automatic,
    "book-keeping": _record_strictly,
    "functional": record_functional,
    "one by one": record_one_by_one,
}


def per_example_gradients(
    model: nn.Module, losses: Losses, content: Any, *, engine: str = "auto", points: Sequence[Point] | None = None
) -> PerExampleGradients:
    """Compute the per-example gradients of one batch.

    ``losses(model, content)`` gives one loss per example. With ``points``, gᵢ = Σ_p coefficient_p ∇lossᵢ(params_p), and
    every point uses the same model randomness (dropout): that of each example's place inside
    ``hush.per_example.model_rng.model_randomness``, otherwise torch's generator as seeded by the caller. ``engine``
    only changes the speed.
    """
    choice(_ENGINES, engine=engine)
    spot = losses if isinstance(losses, CheckedLosses) else None
    losses = losses.losses if isinstance(losses, CheckedLosses) else losses
    n = read_batch_size(content)
    if n == 0:
        params = trainable(model)
        like = next(iter(params.values()))
        return EmptyGradients(like.new_zeros(0), {name: p.detach() for name, p in params.items()})
    own = _Recording(model, losses, list(points or [Point()]), engine)
    with probe_rng(model, losses, lambda few: _draw_all(model, losses, few), content, n):
        return fit_to_piece(own.record(content, n, spot))


@dataclass(frozen=True)
class _Recording:
    """Records batches of a model with a loss, points and an engine; in a run it also logs what a batch reads."""

    model: nn.Module
    losses: Losses
    points: Sequence[Point]
    engine: str

    @property
    def inner(self) -> Losses:
        """The losses of one view."""
        return self.losses.losses if isinstance(self.losses, Augmented) else self.losses

    def record(self, content: Any, n: int, spot: CheckedLosses | None) -> PerExampleGradients:
        """The gradients of a batch; raises if the batch's values decide what is computed."""
        checks, before = current_checks(), torch.get_rng_state()
        logs = (None, None) if checks is None else (checks.start_log(), checks.start_log())
        points = self._draw(content, logs[0])
        if isinstance(self.losses, Augmented) and (spot or (checks is not None and checks.deciding)):
            draw = partial(_draw_views, self.losses, points=[Point()])
            whose = spot or CheckedLosses(self.losses, 0, (0.0, 0.5))  # before the first step, of synthetic rows
            whose.check_views(draw, content, n, points[: self.losses.views], before)
        start = torch.get_rng_state()
        tape = self._compute(content, n, points, logs[1])
        if checks is not None and self._is_alone(content, n, checks, logs, before):
            torch.set_rng_state(start)
            tape = self._compute(content, n, points, None)
        if spot:
            spot.check(EngineComparison(self.model, self.inner, content, n, points), tape, start)
        return tape

    def _draw(self, content: Any, log: ReadLog | None) -> list[Point]:
        if not isinstance(self.losses, Augmented):
            return list(self.points)
        with logging_to(log), watching_reads():
            return _draw_views(self.losses, content, self.points)

    def _compute(self, content: Any, n: int, points: Sequence[Point], log: ReadLog | None) -> PerExampleGradients:
        with logging_to(log), exact_products():
            return _ENGINES[self.engine](self.model, self.inner, content, n, points)

    def _is_alone(
        self, content: Any, n: int, checks: ReadChecks, logs: tuple[ReadLog | None, ...], before: Tensor
    ) -> bool:
        """Whether this batch read other values than empty rows do, so that its examples are computed separately.

        Only synthetic inputs may decide this: with real data, values would decide how examples are computed, so a
        batch that reads other values stops the run. The first synthetic batch has no empty row yet, and only decides
        that there are reads."""
        view_log, model_log = logs
        assert view_log is not None
        assert model_log is not None
        if not (view_log.reads or model_log.reads):
            hidden = checks.deciding and reads_by_torch_func(self.model, self.inner)
            if hidden:
                compute_one_by_one(self.model, self.inner, READ.format("values of its examples"))
            return hidden
        known, checks.found = checks.found, True
        if checks.deciding and not known:
            return False
        empty = checks.usual.get(n) if checks.constant else None
        empty_views, empty_model = empty or self._list_empty_reads(content, n, checks, before)
        if view_log.find_difference(empty_views):
            raise ExamplesNotIndependent(_explain_read(view_log.find_difference(empty_views), "augmentation"))
        name = model_log.find_difference(empty_model)
        if name and not (checks.deciding and self.engine == "auto"):
            raise ExamplesNotIndependent(_explain_read(name, "model or its loss"))
        if name:
            compute_one_by_one(self.model, self.inner, READ.format(f"values of its batch ('{name}')"))
        return bool(name)

    def _list_empty_reads(
        self, content: Any, n: int, checks: ReadChecks, before: Tensor
    ) -> tuple[list[Read], list[Read]]:
        """The reads of a batch of empty rows with the same size, weights and random numbers."""

        def blank(content: Any) -> Any:
            return None if content is None else to_each(torch.zeros_like, content)

        points = [replace(point, content=blank(point.content)) for point in self.points]
        own, empty, logs = replace(self, points=points), blank(content), (ReadLog(True), ReadLog(True))
        with keeping_generator(before) as rewind:
            rewind()
            own._compute(empty, n, own._draw(empty, logs[0]), logs[1])
        found = logs[0].reads, logs[1].reads
        checks.hidden |= any(log.hidden for log in logs)
        if checks.deciding:
            checks.tried.append(([], []) if draws_shared() else found)
        elif checks.constant:
            checks.usual[n] = found
        return found


READ = (
    "it reads {} into Python, where they can decide what is computed for other examples: compute with tensors "
    "(torch.where) instead of Python's if, item and masks"
)


def _explain_read(name: str, where: str) -> str:
    return (
        f"the {where} read a value of a batch into Python ('{name}') that a batch of empty rows does not have, so the "
        "values of one example can decide what is computed for the others, and clipping does not bound that. Nothing "
        "of this step was released, and this run releases nothing more: compute with tensors (torch.where) instead of "
        "Python's if, item and masks, and start a new run"
    )


def _draw_all(model: nn.Module, losses: Losses, content: Any) -> None:
    """Everything that is drawn for a batch, in the order in which an engine draws it."""
    if isinstance(losses, Augmented):
        content = losses.points(content, [Point()])[0].content
        losses = losses.losses
    rewind = bookmark_draws()
    try:
        with recording(model, {}):
            losses(model, content)
    except NoLayerRule:  # it uses the data of packed sequences, so every example is computed alone
        rewind()
        with recording(model, {}, alone=True):
            losses(model, content)


def _draw_views(losses: Augmented, content: Any, points: Sequence[Point]) -> list[Point]:
    try:
        with drawing():
            return losses.points(content, points)
    except NotPerExample as stop:
        raise UnsupportedModelError(
            f"{stop}: augment one copy of the batch at a time, its examples in their own dimension"
        ) from stop


@dataclass(frozen=True)
class GradientPath:
    """How the per-example gradients of one module's own parameters are computed.

    ``path`` is ``book-keeping`` (fast), ``torch.func`` or ``one by one`` (slow, and ``reason`` says why and what to
    change), or ``frozen`` (nothing to train). ``time`` and ``memory`` are estimated shares of those of all modules."""

    module: str
    kind: str
    path: str
    reason: str = ""
    time: float = 0.0
    memory: float = 0.0


TOGETHER, SAME = "it is computed together with", "for the same reason as"


class GradientPaths(tuple[GradientPath, ...]):
    """The paths of all modules; printed, a table."""

    def __str__(self) -> str:
        head = ("module", "layer", "path", "time", "memory", "why, and what to change")
        cells = [head] + [
            (p.module or "the model", p.kind, p.path, f"{p.time:.0%}", f"{p.memory:.0%}", p.reason) for p in self
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def explain(model: nn.Module, losses: Losses, batch: Any) -> GradientPaths:
    """Which gradient path every module with parameters takes, why, and its share of time and memory.

    >>> print(hush.explain(model, losses, (x[:8], y[:8])))  # doctest: +SKIP
    module  layer   path          time  memory  why, and what to change
    0       Linear  book-keeping  100%  100%

    The path is a matter of speed: the gradients are the same. A copy of the model is recorded on ``batch`` (two
    examples or more; made-up ones are enough), so nothing is trained and no run is influenced. Raises
    `hush.errors.ExamplesNotIndependent` if the loss of an example depends on others.
    """
    copied = copy.deepcopy(model)
    check_model(copied)
    if read_batch_size(batch) < 2:
        raise InvalidInputError("a batch of two examples or more is needed to compare the gradient paths")
    with keeping_generator(), warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        _decide_as_a_run(copied, losses, batch)
        times, memory = _measure_gradients(copied, losses, batch)
    paths = _list_paths(copied, verdict_of(copied, losses))
    return GradientPaths(
        replace(path, time=times.get(path.module, 0.0), memory=memory.get(path.module, 0.0)) for path in paths
    )


def list_kinds(model: nn.Module, losses: Losses) -> dict[str, list[str]]:
    """The kinds of modules that take each gradient path, as far as earlier recordings decided it: by synthetic inputs
    if no other were recorded."""
    while isinstance(losses, (Augmented, CheckedLosses)):
        losses = losses.losses
    verdict, found = verdict_of(model, losses), dict[str, set[str]]()
    for path in _list_paths(model, verdict) if verdict.checked else ():
        found.setdefault(path.path, set()).add(path.kind)
    return {path: sorted(kinds) for path, kinds in found.items()}


def _list_paths(model: nn.Module, verdict: EngineChoice) -> list[GradientPath]:
    """The path of every module with parameters; a reason that several have is given once."""
    rows = {n: m for n, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None}
    paths, given = [], dict[str, str]()
    for path in (_find_path(name, rows, verdict) for name in rows):
        first = given.setdefault(path.reason, path.module)
        same = path.reason and first != path.module and not path.reason.startswith(TOGETHER)
        paths.append(replace(path, reason=f"{SAME} {first or 'the model'}") if same else path)
    return paths


def _decide_as_a_run(model: nn.Module, losses: Losses, batch: Any) -> None:
    """Choose the engine as a run does: with the checks of what the model reads, on small and large inputs, with the
    model's random numbers by place, and with an empty row once it reads."""
    checks = ReadChecks(deciding=True)
    with checking_reads(checks):
        for factor in (1.0, 1.0, 1e4):
            content = to_each(lambda t, f=factor: t * f if t.is_floating_point() else t, batch)
            added = checks.found
            if added:
                content = to_each(lambda t: torch.cat([t, torch.zeros_like(t[:1])]), content)
            places, device = torch.arange(read_batch_size(content)), next(model.parameters()).device
            try:
                with model_randomness(Secret.from_seed(0, streams.BATCH_EFFECT), 0, places, device):
                    per_example_gradients(model, losses, content)
            except Exception as error:
                if isinstance(error, HushError) or not added:
                    raise
                raise UnsupportedModelError(
                    f"the model reads values of its batch into Python, and raises {type(error).__name__} "
                    f"('{str(error).partition(chr(10))[0][:200]}') for a batch with a row of zeros, which every chunk "
                    "of a run then has: let it accept such a row, or compute with tensors (torch.where) instead of "
                    "Python's if, item and masks"
                ) from error


def _measure_gradients(model: nn.Module, losses: Losses, batch: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Shares of time and memory by module: of its forward pass, of the backward pass by the time of the forward pass,
    and of the norms and sums of its parameters; and of what is kept for them."""
    watch = _Stopwatch()
    with watch.on(model):
        start = time.process_time()
        tape = per_example_gradients(model, losses, batch)
        backward = time.process_time() - start - sum(watch.seconds.values())
    trained = sum(watch.seconds[name] for name in watch.trained) or 1.0
    found = {name: own + (name in watch.trained) * backward * own / trained for name, own in watch.seconds.items()}
    kept: dict[str, float] = {}
    for name, gradients in _split(tape).items():
        start, owner = time.process_time(), name.rpartition(".")[0]
        gradients.squared_norms()
        gradients.sum(torch.ones_like(tape.losses))
        found[owner] = found.get(owner, 0.0) + time.process_time() - start
        kept[owner] = kept.get(owner, 0.0) + _count_numbers(gradients)
    return _share(found), _share(kept)


def _split(tape: PerExampleGradients) -> dict[str, Any]:
    """The gradients of each parameter as a result of their own."""
    if isinstance(tape, BookkeepingGradients):
        terms = tape.terms
        return {n: BookkeepingGradients(tape.losses, {n: p}, {n: terms[n]}) for n, p in tape.params.items()}
    assert isinstance(tape, MaterializedGradients)
    return {name: MaterializedGradients(tape.losses, {name: g}) for name, g in tape.gradients.items()}


def _count_numbers(value: Any) -> int:
    """How many numbers the tensors of terms have."""
    if isinstance(value, Tensor):
        return value.numel()
    if is_dataclass(value):
        value = [getattr(value, each.name) for each in fields(value) if each.name not in ("weight", "like", "params")]
    elif isinstance(value, dict):
        value = list(value.values())
    return sum(map(_count_numbers, value)) if isinstance(value, (list, tuple)) else 0


def _share(amounts: dict[str, float]) -> dict[str, float]:
    total = sum(amounts.values()) or 1.0
    return {name: amount / total for name, amount in amounts.items()}


@dataclass(eq=False)
class _Stopwatch:
    """The CPU time of every module's forward pass without the modules inside it, and which have a backward pass."""

    seconds: dict[str, float] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    running: list[list[float]] = field(default_factory=list)  # start, and the time of the modules inside

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Measure within it."""
        handles: list[Any] = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._start))
            handles.append(module.register_forward_hook(partial(self._stop, name), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _start(self, module: nn.Module, args: Any) -> None:
        self.running.append([time.process_time(), 0.0])

    def _stop(self, name: str, module: nn.Module, args: Any, out: Any) -> None:
        start, inside = self.running.pop()
        whole = time.process_time() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + whole - inside
        if self.running:
            self.running[-1][1] += whole
        if any(isinstance(t, Tensor) and t.requires_grad for t in pytree.tree_leaves(out)):
            self.trained.add(name)


def _find_path(name: str, rows: dict[str, nn.Module], verdict: EngineChoice) -> GradientPath:
    """The path of one of the modules in ``rows``; the reason is given once, at the module that causes it."""
    kind = type(rows[name]).__name__
    if not any(p.requires_grad for p in rows[name].parameters(recurse=False)):
        return GradientPath(name, kind, "frozen")
    owners = [each for each in verdict.alone if f"{name}.".startswith(f"{each}.")]
    if verdict.engine == "book-keeping" and not owners:
        return GradientPath(name, kind, "book-keeping")
    owner = owners[0] if verdict.engine == "book-keeping" else ""
    inside = {key: why for key, why in verdict.reasons.items() if not owner or f"{key}.".startswith(f"{owner}.")}
    cause = next(iter(inside), "")
    reason = inside.get(cause, "")
    if name != cause and cause in rows:
        reason = f"{TOGETHER} {cause or 'the model'}"
    return GradientPath(name, kind, "one by one" if verdict.engine == "one by one" else "torch.func", reason)
