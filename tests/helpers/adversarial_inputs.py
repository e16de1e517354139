"""Terms and models with inputs that cancel, vanish or overflow, and what each example adds to a sum."""

import math

import torch
from torch import nn

from hush.clipping import Clipping
from hush.datasets.models import ImageLayers
from hush.per_example.conv import Convolution, Windowed
from hush.per_example.terms import OuterProduct, Recomputed

ROUNDED_ONCE = {torch.float32: 1 + 2.0**-23, torch.float64: 1 + 2.0**-40}  # the sum's own rounding is charged elsewhere


def added(tape, clip=1.0, mode="plain"):
    """The norm of what each example adds to the sum: one weight at a time, the others zero."""
    weights = Clipping(clip, mode).weigh(tape.squared_norms()).weights
    norms = []
    for i in range(len(weights)):
        alone = torch.zeros_like(weights)
        alone[i] = weights[i]
        norms.append(math.sqrt(sum(float(v.double().square().sum()) for v in tape.sum(alone).values())))
    return norms


def convolution(generator, dtype, *, inputs, outputs, side, kernel, stride=1, padding=0, groups=1, transposed=False):
    x = torch.randn(3, inputs, side, side, generator=generator, dtype=torch.float64).to(dtype)
    if transposed:
        weight = torch.zeros(inputs, outputs // groups, kernel, kernel, dtype=dtype)
        rule = Convolution.transpose(2, stride, padding, 0, groups, 1)
    else:
        weight = torch.zeros(outputs, inputs // groups, kernel, kernel, dtype=dtype)
        rule = Convolution.of(2, stride, padding, 1, groups, weight.shape[2:])
    gy = torch.randn(rule.forward(x, weight, None).shape, generator=generator, dtype=torch.float64).to(dtype)
    return Windowed(rule, x, gy, weight)


def put_last(term):
    """The same convolution with its channels last in memory."""
    x, gy = (side.contiguous(memory_format=torch.channels_last) for side in (term.x, term.gy))
    return Windowed(term.rule, x, gy, term.weight)


def outer(generator, dtype, positions, inputs, outputs):
    sides = [torch.randn(3, positions, k, generator=generator, dtype=torch.float64) for k in (inputs, outputs)]
    return OuterProduct(*(t.to(dtype) for t in sides))


TERMS = {
    "outer, one position": lambda g, t: outer(g, t, 1, 300, 70),
    "outer, gram": lambda g, t: outer(g, t, 3, 2500, 40),
    "outer, held": lambda g, t: outer(g, t, 40, 12, 10),
    "outer, again": lambda g, t: Recomputed(*sides_of(outer(g, t, 20, 70, 90))),
    "outer, again in groups": lambda g, t: Recomputed(*sides_of(outer(g, t, 40, 500, 300))),
    "windows, gram": lambda g, t: convolution(g, t, inputs=40, outputs=48, side=4, kernel=3),
    "windows, gram, wide": lambda g, t: convolution(g, t, inputs=2048, outputs=2, side=2, kernel=1),
    "windows, held": lambda g, t: convolution(g, t, inputs=3, outputs=5, side=9, kernel=3, padding=1),
    "windows, strided": lambda g, t: convolution(g, t, inputs=32, outputs=40, side=6, kernel=3, stride=2, padding=1),
    "windows, grouped": lambda g, t: convolution(g, t, inputs=32, outputs=40, side=4, kernel=3, groups=2),
    "windows, transposed": lambda g, t: convolution(
        g, t, inputs=40, outputs=24, side=3, kernel=3, stride=2, transposed=True
    ),
}

TERMS |= {  # a convolution of several groups is not turned
    f"{name}, channels last": lambda g, t, make=make: put_last(make(g, t))
    for name, make in TERMS.items()
    if name.startswith("windows")
}


def sides_of(term):
    return (term.a, term.b) if isinstance(term, OuterProduct) else (term.x, term.gy)


def cancelling(term, kind, generator):
    """The same term with inputs made to cancel, in one of several ways."""
    left, right = (t.clone() for t in sides_of(term))
    spatial = (
        (slice(None), slice(1, None)) if isinstance(term, OuterProduct) else (slice(None), slice(None), slice(1, None))
    )
    first = (slice(None), slice(0, 1)) if isinstance(term, OuterProduct) else (slice(None), slice(None), slice(0, 1))
    if kind == "opposite":  # all positions alike, and the other side sums to almost zero
        left[spatial] = left[first]
        right[:] = right.sign() + 1e-3 * right
    elif kind == "powers":
        left *= 2.0 ** torch.randint(-12, 12, left.shape, generator=generator)
        right *= 2.0 ** torch.randint(-12, 12, right.shape, generator=generator)
    elif kind == "alternating":  # one huge entry beside many that vanish next to it
        left.mul_(2.0**-12 if left.dtype == torch.float32 else 2.0**-26)
        large = left.flatten(1)
        large[:, ::97] = 300.0
        left.copy_(large.view(left.shape))
        right[:] = right.abs() * torch.where(torch.arange(right[0].numel()) % 2 == 0, 1.0, -1.0).view(right[0].shape)
    elif kind == "huge":
        left, right = left * 1e9, right * 1e6
    elif kind == "tiny":
        left, right = left * 1e-20, right * 1e-17
    if isinstance(term, OuterProduct):
        return type(term)(left, right)
    return Windowed(term.rule, left, right, term.weight)


class Tied(nn.Module):
    """One table for reading and writing: terms of two kinds that can cancel."""

    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Embedding(6, 32), nn.Linear(32, 6, bias=False)
        self.write.weight = self.read.weight

    def forward(self, tokens):
        return self.write(self.read(tokens))


class Twice(nn.Module):
    """Every layer used twice, with opposite signs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.scale, self.linear = nn.Parameter(torch.randn(8, 1, 1)), nn.Linear(8, 8)

    def forward(self, x):
        y = self.conv(x) - self.conv(x * (1 + 2.0**-11))
        y = self.norm(y)
        y = y * self.scale - 0.999 * y * self.scale
        y = y.flatten(2).transpose(1, 2)
        return self.linear(y) - self.linear(y * 0.9999)


def wave(model, content):
    """One loss per example."""
    return model(content).flatten(1).sin().sum(1)


def signed(model, content):
    """Positions that count with opposite signs, so that their gradients cancel."""
    out = model(content).flatten(1)
    return (out * torch.where(torch.arange(out.shape[1]) % 2 == 0, 1.0, -1.0).to(out)).sum(1)


def pictures(*shape):
    return lambda dtype: torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def words(dtype):
    return torch.randint(0, 6, (6, 9), generator=torch.Generator().manual_seed(0))


MODELS = {
    "linear": (lambda: nn.Linear(50, 20), pictures(50)),
    "positions": (lambda: nn.Linear(900, 3), pictures(4, 900)),
    "many positions": (lambda: nn.Linear(9, 7), pictures(60, 9)),
    "convolution": (lambda: nn.Conv2d(32, 40, 3), pictures(32, 4, 4)),
    "channels last": (
        lambda: ImageLayers(nn.Conv2d(1, 12, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(12, 9, 3, stride=2)),
        pictures(1, 11, 11),
    ),
    "grouped": (lambda: nn.Conv2d(8, 8, 3, groups=4), pictures(8, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 24, 3, stride=2), pictures(16, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 40), nn.Linear(40, 3)), words),
    "tied": (Tied, words),
    "twice": (Twice, pictures(8, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm(30), pictures(7, 30)),
    "group norm": (lambda: nn.GroupNorm(2, 6), pictures(6, 5, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), pictures(5, 8)),
    "lstm": (lambda: nn.LSTM(6, 5, batch_first=True), pictures(7, 6)),
}


def first_output(losses):
    def found(model, content):
        return losses(lambda c: out[0] if isinstance(out := model(c), tuple) else out, content)

    return found
