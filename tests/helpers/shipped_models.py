"""Small versions of the shipped models, and neighbouring data that try to move a sum by more than one clip norm.

A `Stage` holds one run before its first step, on data that can be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hush.data_source import Tensors
from hush.datasets.models import VAE, Funnel, ResidualBlock, lenet5, logistic, mlp, p1, p2, small_cnn, vae_losses
from hush.distributed.group import ProcessGroup
from hush.errors import Stopped
from hush.methods import make_plan
from hush.plan import Plan
from hush.randomness import Secret
from hush.sampling import Poisson
from hush.tabular.columns import Encoder, Number
from replay import distance

CLIP = 0.5


class Narrow(nn.Module):
    """ResNet-18's blocks, two of them, at its smallest width."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(16, 16), nn.ReLU()]
        blocks = [ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2)]
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Transformer(nn.Module):
    """The transformer of the benchmarks, one layer of width 16 on sequences of 8 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Parameter(0.02 * torch.randn(8, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(x) + self.places).mean(1))


class Recurrent(nn.Module):
    """An LSTM over 8 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cells, self.head = nn.Embedding(20, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(self.tokens(x))[0][:, -1])


class VisionTransformer(nn.Module):
    """Patches of 4 × 4 pixels, places and one layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, 16, 4, 4), nn.Parameter(0.02 * torch.randn(4, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))


class Llama(nn.Module):
    """A block with RMSNorm, causal attention without biases and a gated layer, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.before, self.between = nn.Embedding(20, 16), nn.RMSNorm(16), nn.RMSNorm(16)
        self.attend, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((16, 32), (16, 32), (32, 16)))
        self.head = nn.Linear(16, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        q, k, v = (t.unflatten(2, (2, 8)).transpose(1, 2) for t in self.attend(self.before(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.between(x)
        return self.head((x + self.down(F.silu(self.gate(h)) * self.up(h))).mean(1))


def classes(model: nn.Module, content: Any) -> Tensor:
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def pairs(model: nn.Module, content: Any) -> Tensor:
    """Which of two is the better one: positions that cancel."""
    scores = model(content[0]).squeeze(2)
    return F.softplus(scores[:, 1] - scores[:, 0])


def straight(model: nn.Module, content: Any) -> Tensor:
    """A gradient that is the example itself."""
    return model(content[0]).squeeze(1)


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """One number per example; of several outputs the one that nothing is drawn for."""
    found = model(x)
    return (found[1] if isinstance(found, tuple) else found).flatten(1).sum(1)


def residual(model: nn.Module, content: Any) -> Tensor:
    """A loss with a kink at the label: the sign of a residual is its whole gradient's."""
    return (predict(model, content[0]) - content[1]).abs()


KINKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "residual": lambda found, label: (found - label).abs(),
    "hinge": lambda found, label: torch.relu(label - found),
}
"""Losses of a prediction and a label with a kink where the two are equal."""


COLUMNS = [Number(f"c{i}") for i in range(3)]


@dataclass(frozen=True)
class Shipped:
    """A model, the shape of one input, its losses, and the largest batch that a quick test can afford."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    losses: Callable[[nn.Module, Any], Tensor] = classes
    largest: int = 256
    slow: bool = False  # one kind of neighbours and few rows are enough for a quick test
    words: int = 0  # tokens instead of numbers
    moderate: bool = False  # inputs of very different sizes are left out: a spot check stops the run


def _table() -> nn.Module:
    encoder = Encoder(COLUMNS)
    return nn.Sequential(encoder, *mlp([encoder.width, 8, 10]))


MODELS = {
    "one number": Shipped(lambda: nn.Linear(1, 1, bias=False), (1,), straight, 4_096),
    "logistic": Shipped(lambda: logistic(20, 10), (20,), largest=4_096),
    "mlp": Shipped(lambda: mlp([20, 16, 10], dropout=0.2), (20,), largest=4_096),
    "table": Shipped(_table, (3,), largest=4_096),
    "ranking pairs": Shipped(lambda: nn.Linear(784, 1, bias=False), (2, 784), pairs),
    "lenet": Shipped(lambda: lenet5((1, 12, 12)), (1, 12, 12)),
    "small cnn": Shipped(lambda: small_cnn((1, 8, 8), 10), (1, 8, 8)),
    "p1": Shipped(p1, (3, 32, 32), largest=2, slow=True),
    "p2": Shipped(p2, (1, 28, 28), largest=37, slow=True),
    "p3": Shipped(VAE, (1, 28, 28), vae_losses, largest=2, slow=True),
    "funnel": Shipped(lambda: Funnel(1, 8, width=6), (1, 8, 8)),
    "resnet": Shipped(Narrow, (3, 8, 8), largest=37),
    "transformer": Shipped(Transformer, (8,), words=20),
    "lstm": Shipped(Recurrent, (8,), words=20, largest=37, slow=True),
    "vit": Shipped(VisionTransformer, (1, 8, 8), largest=37, slow=True, moderate=True),
    "llama": Shipped(Llama, (8,), words=20, largest=37, slow=True),
}


@dataclass
class Rows:
    """Data that can be changed under a run: nothing about it is checked."""

    tensors: tuple[Tensor, ...]
    hidden: int = 0  # examples at the end that are not there

    def __len__(self) -> int:
        return len(self.tensors[0]) - self.hidden

    def take(self, indices: Tensor) -> Any:
        return Tensors.take(self, indices)  # type: ignore[arg-type]

    single = False


class Stop(Exception):
    """Thrown where sums would meet their noise."""


@dataclass
class Catching:
    """A witness that keeps the sums and stops the step."""

    sums: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def allows(self, sums: Any) -> bool:
        self.sums = {c: {n: v.detach().clone() for n, v in named.items()} for c, named in sums.items()}
        raise Stop

    def before_release(self) -> None: ...


class Stage:
    """One model before its first step, whose data can be exchanged.

    ``kinked`` names a loss whose kinks are put where rounding decides: between what the run predicts for a row with and
    without the last example if these differ, else half a unit in the last place from the prediction, so that no
    gradient is zero. The biases are such that layers of inputs "at the kink" are rounding errors, where ReLU has its
    kink and pooling has ties."""

    def __init__(
        self,
        shipped: Shipped,
        batch: int,
        arithmetic: str = "rigorous",
        *,
        plan: Plan | None = None,
        seed: int = 0,
        kinked: str = "",
        ranks: ProcessGroup | None = None,
        alone: bool = False,
    ) -> None:
        self.shipped, self.kinked = shipped, kinked
        self.examples = plan.sampler.examples if plan else batch + batch // 8 + 4
        self.plan = plan or make_plan(
            "dp-sgd",
            examples=self.examples,
            sample_rate=batch / self.examples,
            batch_size=batch,
            steps=1,
            noise_multiplier=1.0,
            clip=CLIP,
            arithmetic=arithmetic,
        )
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = shipped.make()
        if kinked:
            for module in self.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            put_at_kink(self.model, self.flat(1))
        self.rows = Rows(self.fresh(0))
        self.catching = Catching()
        self.predicted: list[tuple[Tensor, Tensor]] = []
        losses = self._noting(KINKED[kinked]) if kinked else shipped.losses
        self.run = self.plan.start(self.model, losses, self.rows, secret=self._with_the_last(seed, alone), ranks=ranks)
        self.run.guard_noise(self.catching)

    def _with_the_last(self, first: int, alone: bool) -> Secret:
        """A secret under which the last example takes part, and others too, or no other."""
        sampler = self.plan.sampler
        assert isinstance(sampler, Poisson)
        for seed in range(1000 * first, 1000 * first + 1000):
            secret = Secret.from_seed(seed, "one example more")
            chosen = sampler.indices(secret, 0, self.examples + 1).tolist()
            if self.examples in chosen and alone == (len(chosen) == 1):
                return secret
        raise AssertionError("no such secret")

    def fresh(self, seed: int) -> tuple[Tensor, ...]:
        """Random data, one example more than planned."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            n = self.examples + 1
            x = torch.rand(n, *self.shipped.shape) if self.shipped.losses is vae_losses else None
            x = torch.randint(0, self.shipped.words, (n, *self.shipped.shape)) if self.shipped.words else x
            x = torch.randn(n, *self.shipped.shape) if x is None else x
            return x, torch.zeros(n, dtype=torch.float64) if self.kinked else torch.randint(0, 10, (n,))

    def flat(self, n: int) -> Tensor:
        """Inputs without a structure: all numbers of a row are equal, and all rows; of tokens the first."""
        numbers = torch.zeros(n, *self.shipped.shape)
        return numbers.long() if self.shipped.words else numbers + 0.6

    def _noting(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Any], Tensor]:
        """The losses of a batch; keeps the predictions of rows with their labels."""

        def noted(model: nn.Module, content: Any) -> Tensor:
            found = predict(model, content[0])
            self.predicted.append((_unwrap(content[1]).clone(), _unwrap(found).clone()))  # chunks share their memory
            return loss(found, content[1])

        return noted

    def kink(self, data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same rows with labels between what the run predicts for them with and without the last example."""
        if not self.kinked:
            return data
        numbers, found = torch.arange(1, len(data[0]) + 1, dtype=torch.float64), []
        self.rows.tensors = data[0], numbers
        self.run.check_arithmetic()
        for hidden in (0, 1):
            predictions = torch.full((len(numbers) + 1,), torch.nan)
            self.predicted.clear()
            self.sums(hidden)
            for labels, values in self.predicted:
                predictions[labels.long().flatten()] = values.flatten().float()
            found.append(self._from_all(predictions[1:]))
        one, other = found[0], torch.where(found[1].isnan(), found[0], found[1])
        up = torch.rand(len(one), generator=torch.Generator().manual_seed(0)) < 0.5
        up[-1] = True
        beside = torch.nextafter(one, torch.where(up, torch.inf, -torch.inf))
        return data[0], (one.double() + torch.where(one == other, beside, other).double()) / 2

    def _from_all(self, predictions: Tensor) -> Tensor:
        """The predictions of all processes; each has those of its own chunks, and NaN for the others."""
        if self.run.ranks.world == 1:
            return predictions
        known = self.run.ranks.all_reduce({"": {"": predictions.nan_to_num().double()}})[""][""]
        return torch.where(known == 0, torch.nan, known).float()

    def sums(self, hidden: int) -> dict[str, dict[str, Tensor]]:
        """What would meet the noise, with this many examples left out at the end."""
        self.rows.hidden = hidden
        try:
            self.run.step(self.run.batch(0))
        except (Stop, Stopped):  # of several processes the first has the sums
            return self.catching.sums
        raise AssertionError("the step was not stopped")

    def moved(self, data: tuple[Tensor, ...]) -> float:
        """How far the last example moves a channel's sum, in units of what is charged for."""
        self.rows.tensors = self.kink(data)
        with_it, without = self.sums(0), self.sums(1)
        if self.run.ranks.rank:
            return 0.0
        return max(distance(with_it[name], without[name]) / c.bound for name, c in self.plan.channels.items())


def _unwrap(value: Tensor) -> Tensor:
    """A tensor's own numbers, also where torch.func maps over it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value.detach()


@torch.no_grad()
def put_at_kink(model: nn.Module, x: Tensor) -> None:
    """Choose the biases of linear and convolutional layers so that for ``x`` most of their outputs round to about 0."""

    def centre(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if module.bias is None:
            return output
        dim = 1 if output.dim() > 3 else -1
        middle = output.movedim(dim, 0).flatten(1).median(1).values
        module.bias -= middle.to(module.bias)
        return output - middle.view(-1, *[1] * (output.dim() - 2)) if dim == 1 else output - middle

    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d)) and not hasattr(m, "in_proj_weight")]
    hooks = [m.register_forward_hook(centre) for m in layers[:-1]]
    training = model.training
    try:
        model.eval()(x)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()


def neighbours(data: tuple[Tensor, ...], kind: str, seed: int = 0) -> tuple[Tensor, ...]:
    """The same data, made spiteful; the last row is the one that comes and goes."""
    x, y = data[0].clone(), data[1].clone()
    generator = torch.Generator().manual_seed(seed)
    if kind == "alike":  # every addition is of nearly the same number
        x[:-1] = x[-1]
        y[:-1] = y[-1]
    if not x.is_floating_point():
        return x, y
    each = (len(x), *[1] * (x.dim() - 1))
    if kind == "alike":
        x[:-1] *= 1 + 2.0**-23 * torch.randint(-8, 9, x[:-1].shape, generator=generator)
    elif kind == "powers":
        x *= 2.0 ** torch.randint(-40, 40, each, generator=generator)
    elif kind == "cancelling":  # positions that are one another's opposites but for the last bits
        x = 1e4 * x.sign() * (1 + 2.0**-20 * torch.rand(x.shape, generator=generator))
    elif kind == "lanes":  # the first lanes hide what is in the others
        flat = x.view(len(x), -1)
        flat.copy_(300 * 2.0**-12 * 0.99 * flat.sign())
        flat[:, :16] = 300.0
    elif kind == "bits":  # just within the clip where the gradient is the input: the last bits decide every rounding
        x = 0.999 * CLIP * (1 - 2.0**-24 * torch.randint(0, 2**13, x.shape, generator=generator))
    elif kind == "at the kink":  # layers are rounding errors (`put_at_kink`), and pooling has ties
        x = torch.full_like(x, 0.6) * (1 + 2.0**-23 * torch.randint(-2, 3, x.shape, generator=generator))
        x[-1] = data[0][-1]
    elif kind == "broken":
        x[torch.rand(len(x), generator=generator) < 0.2] = torch.nan
        x[torch.rand(len(x), generator=generator) < 0.2] *= torch.inf
        x[torch.rand(len(x), generator=generator) < 0.2] *= 1e-38
        x[torch.rand(len(x), generator=generator) < 0.2] *= 1e30
        x[-1] = data[0][-1]
    return x, y


KINDS = ("plain", "alike", "powers", "cancelling", "lanes", "broken", "bits", "at the kink")


def mixed(one: tuple[Tensor, ...], other: tuple[Tensor, ...], share: float, seed: int) -> tuple[Tensor, ...]:
    """Some rows of another dataset in the place of one's own."""
    taken = torch.rand(len(one[0]), generator=torch.Generator().manual_seed(seed)) < share
    return tuple(torch.where(taken.view(-1, *[1] * (a.dim() - 1)), b, a) for a, b in zip(one, other, strict=True))


def climb(stage: Stage, tries: int, kinds: tuple[str, ...] = KINDS, seed: int = 0) -> float:
    """The largest movement found: the worst kind of neighbours, then rows of others where that makes it worse."""
    start = stage.fresh(seed)
    few = ("plain", "alike", *(() if stage.shipped.words else ("at the kink",)))
    kinds = tuple(kind for kind in kinds if kind in few) if stage.shipped.words or stage.shipped.moderate else kinds
    found = [(stage.moved(data), data) for data in (neighbours(start, kind, seed) for kind in kinds)]
    best, data = max(found, key=lambda pair: pair[0])
    for number in range(tries):
        new = neighbours(stage.fresh(seed + 1 + number), kinds[number % len(kinds)], number)
        tried = mixed(data, new, 0.5 ** (1 + number % 6), number)
        moved = stage.moved(tried)
        if moved > best:
            best, data = moved, tried
    return best
