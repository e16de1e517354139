"""One training step of every engine: ordinary SGD, hush, Opacus, torch.func and jax_privacy.

Each function takes a case and its data and returns a step without arguments; every step fetches its batch from the
data, so that all pay the same for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hush
from hush.datasets.models import ImageLayers
from hush.per_example.engine import FIRST
from hush.per_example.gradients import per_example_gradients
from models import Case

Step = Callable[[], Any]
Data = tuple[Tensor, ...]
LR, CLIP, NOISE = 0.01, 1.0, 1.0


def fetched(data: Data) -> Data:
    """The batch, copied row by row as a sampler's batch is."""
    rows = torch.arange(len(data[0]))
    return tuple(t[rows] for t in data)


def plain(case: Case, data: Data) -> Step:
    """Ordinary SGD."""
    model = case.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        case.losses(model, fetched(data)).mean().backward()
        optimizer.step()

    return step


def hush_run(case: Case, data: Data, *, checked: bool = False) -> Step:
    """hush's own step: sampling, clipping, noise, update, with the whole data as every batch. The first steps of a run
    are all looked at for examples that meet, later ones rarely; those are over here, unless the next is to be
    ``checked``."""
    n = len(data[0])
    options = {"steps": 10**4, "noise_multiplier": NOISE, "lr": LR, "clip": CLIP}
    plan = hush.make_plan("dp-sgd", examples=n, batch_size=n, sample_rate=1.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = plan.start(case.model(), case.losses, data)

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.step(run.batch(run.next))

    for _ in range(1 if checked else FIRST + 1):
        step()
    return step


def torch_func(case: Case, data: Data) -> Step:
    """Per-example gradients by torch.func's vmap, clipped and summed, with torch's noise."""
    model = case.model()
    params = dict(model.named_parameters())

    def step() -> None:
        batch = fetched(data)
        tape = per_example_gradients(model, case.losses, batch, engine="functional")
        norms = torch.stack(list(tape.squared_norms().values())).sum(0).sqrt()
        sums = tape.sum((CLIP / norms).clamp(max=1))
        with torch.no_grad():
            for name, p in params.items():
                p.add_(sums[name].add_(torch.randn_like(p), alpha=NOISE * CLIP), alpha=-LR / len(norms))

    return step


class Criterion:
    """A loss in the form that Opacus wants: of the model's output and a target."""

    def __init__(self, case: Case) -> None:
        self.case, self.reduction = case, "mean"

    def __call__(self, out: Any, target: Any) -> Tensor:
        """The losses of outputs that are already computed."""
        losses = self.case.losses(lambda _: out, target)  # type: ignore[arg-type]
        return losses if self.reduction == "none" else losses.mean()


def opacus(mode: str) -> Callable[[Case, Data], Step]:
    """Opacus' step with one of its engines."""

    def start(case: Case, data: Data) -> Step:
        from opacus import PrivacyEngine

        model = case.model()
        if isinstance(model, ImageLayers):  # Opacus 1.6.0 errs where channels are last in memory
            model = nn.Sequential(*model)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        loader = DataLoader(TensorDataset(*data), batch_size=len(data[0]))
        options = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "poisson_sampling": False}
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=Criterion(case),
            grad_sample_mode=mode,
            **options,
        )
        private, updater, criterion = made[0], made[1], made[2] if mode == "ghost" else Criterion(case)

        def step() -> None:
            updater.zero_grad()
            batch = fetched(data)
            criterion(private(batch[0]), batch).backward()
            updater.step()

        return step

    return start


def jax_privacy(case: Case, data: Data) -> Step:
    """jax_privacy's clipped gradient and Gaussian noise on the same sequential model, compiled."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.clipping import clipped_grad

    model = case.model()
    if not isinstance(model, nn.Sequential):
        raise NotImplementedError("only sequential models are translated to JAX")
    params = [[jnp.asarray(p.detach().numpy()) for p in layer.parameters()] for layer in model]

    def loss(current: Any, batch: Any, key: Any) -> Any:
        x, y = batch
        for i, (layer, own) in enumerate(zip(model, current, strict=True)):
            x = _in_jax(layer, own, x, jax.random.fold_in(key, i))
        scores = jax.nn.log_softmax(x)
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    gradient = clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=1)
    n = len(data[0])

    @jax.jit
    def update(current: Any, batch: Any, key: Any) -> Any:
        model_key, noise_key = jax.random.split(key)
        sums = gradient(current, batch, model_key)
        leaves, spec = jax.tree.flatten(sums)
        keys = jax.random.split(noise_key, len(leaves))
        noisy = [g + NOISE * CLIP * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
        return jax.tree.map(lambda p, g: p - LR / n * g, current, jax.tree.unflatten(spec, noisy))

    state = {"params": params, "key": jax.random.key(0)}

    def step() -> None:
        batch = tuple(jnp.asarray(t.numpy()) for t in fetched(data))
        state["key"], use = jax.random.split(state["key"])
        state["params"] = jax.block_until_ready(update(state["params"], batch, use))

    return step


def _in_jax(layer: nn.Module, own: Any, x: Any, key: Any) -> Any:
    import jax

    if isinstance(layer, nn.Linear):
        return x @ own[0].T + own[1]
    if isinstance(layer, nn.Conv2d):
        padding = [(p, p) for p in layer.padding]
        out = jax.lax.conv_general_dilated(x, own[0], layer.stride, padding)
        return out + own[1][None, :, None, None]
    if isinstance(layer, nn.MaxPool2d):
        window = (1, 1, layer.kernel_size, layer.kernel_size)
        return jax.lax.reduce_window(x, -float("inf"), jax.lax.max, window, window, "VALID")
    if isinstance(layer, nn.ReLU):
        return jax.nn.relu(x)
    if isinstance(layer, nn.Flatten):
        return x.reshape(x.shape[0], -1)
    if isinstance(layer, nn.Dropout):
        return x * jax.random.bernoulli(key, 1 - layer.p, x.shape) / (1 - layer.p)
    raise NotImplementedError(f"{type(layer).__name__} is not translated to JAX")


ENGINES: dict[str, Callable[[Case, Data], Step]] = {
    "plain SGD": plain,
    "hush": hush_run,
    "Opacus hooks": opacus("hooks"),
    "Opacus functorch": opacus("functorch"),
    "Opacus ew": opacus("ew"),
    "Opacus ghost": opacus("ghost"),
    "torch.func": torch_func,
    "jax_privacy": jax_privacy,
}
