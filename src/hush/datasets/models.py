"""The models of the literature, as plain ``nn.Module`` objects without layers that mix examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hush._internal import validate
from hush._internal.settings import DropoutPlace
from hush._internal.validate import choice, positive_int
from hush.errors import InvalidInputError, nearest
from hush.release.description import Architecture

GROUPS = 16  # of ResNet-18's GroupNorm
LATENT = 32  # numbers that the autoencoder keeps of an image


def put_channels_last(images: Tensor) -> Tensor:
    """The same images in channels-last memory format: later convolutions and pooling keep it and are up to twice as
    fast on a CPU. With one channel both formats have the same memory, and only the strides differ."""
    if images.shape[1] == 1:
        return images.squeeze(1).unsqueeze(-1).movedim(-1, 1)
    return images.movedim(1, -1).contiguous().movedim(-1, 1)  # torch.func maps this, and not torch's memory_format


class ImageLayers(nn.Sequential):
    """Layers one after the other, for images, which are put in the order in which they are fastest."""

    def forward(self, images: Tensor) -> Tensor:
        """What the last layer gives."""
        values = put_channels_last(images)
        for layer in self:
            values = layer(values)
        return values


def mlp(widths: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Flatten, then linear layers of the given widths with ReLU (and dropout) between them.

    784-512-256-128-10 has 567 434 parameters; the two-layer network 784-128-10 has 101 770."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths[:-2], widths[1:-1], strict=True):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    layers.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*layers)


def projection(features: int, width: int, outputs: int) -> nn.Sequential:
    """A record normalised by its own mean and deviation, projected onto ``width`` random directions, and a linear head.

    The projection (module "3") has coordinates of variance 1 and nothing of any data in it: frozen, it is what
    sanitised features are made by."""
    random = nn.Linear(features, width, bias=False)
    nn.init.normal_(random.weight, std=features**-0.5)
    normalised = nn.LayerNorm(features, elementwise_affine=False)
    head = nn.Linear(width, outputs)
    nn.init.zeros_(head.weight)  # rows under noise move the head by little, and by chance it would begin farther away
    nn.init.zeros_(head.bias)
    return nn.Sequential(Single(), nn.Flatten(), normalised, random, head)


def logistic(features: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression: one linear layer, softmax in the loss."""
    return mlp([features, classes])


def initialise(model: nn.Module) -> nn.Module:
    """Give a model the initial weights of Mehta and Kumar: Kaiming's normal ones for convolutions (He et al. 2015),
    Xavier's uniform ones for linear layers (Glorot and Bengio 2010), biases 0. What is frozen stays."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and module.weight.requires_grad:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


class Single(nn.Module):
    """In front of features that are kept in half precision, so that the model computes in single."""

    def forward(self, features: Tensor) -> Tensor:
        """The same numbers in single precision."""
        return features.float()


def lenet5(shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, the first convolution padded: 61 706 parameters."""
    channels, height, width = shape
    flat = 16 * _area_after(height, width, [(0, 2), (-4, 2)], "lenet")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *mlp([flat, 120, 84, classes]),
    )


def p1() -> nn.Sequential:
    """CIFAR-10: three unpadded 3×3 convolutions 32-64-128, each then max-pool and ReLU, 512-256-128-10: 258 762."""
    return ImageLayers(
        *_build_pooled(3, 32), *_build_pooled(32, 64), *_build_pooled(64, 128), *mlp([512, 256, 128, 10])
    )


def p2() -> nn.Sequential:
    """Fashion-MNIST: two unpadded 3×3 convolutions 32-64, each then max-pool and ReLU, 1600-128-10: 225 034."""
    return ImageLayers(*_build_pooled(1, 32), *_build_pooled(32, 64), *mlp([1600, 128, 10]))


def small_cnn(shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    """For images of any size from 4×4: two padded 3×3 convolutions 32-64, max-pool and ReLU, 128, out."""
    channels, height, width = shape
    flat = 64 * _area_after(height, width, [(0, 2), (0, 2)], "cnn")
    return ImageLayers(*_build_pooled(channels, 32, 1), *_build_pooled(32, 64, 1), *mlp([flat, 128, classes]))


def _build_pooled(inputs: int, outputs: int, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _area_after(height: int, width: int, stages: list[tuple[int, int]], model: str) -> int:
    """Height × width after stages that change both by (added, divided)."""
    sides = [height, width]
    for added, divided in stages:
        sides = [(side + added) // divided for side in sides]
    if min(sides) < 1:
        raise InvalidInputError(f"images of {height}×{width} are too small for the model '{model}'")
    return sides[0] * sides[1]


def build_funnel(inputs: int, width: int) -> list[nn.Module]:
    """Linear layers ``inputs``-8n-4n-2n-n, each followed by a ReLU, down to the public ``width`` n.

    The noise of a sanitisation layer has the standard deviation Cσ√n, so a narrow layer is a quiet one; the funnel lets
    the network get there without throwing away most of what it knows in one step."""
    validate.positive_int(inputs=inputs, width=width)
    widths = [inputs, 8 * width, 4 * width, 2 * width, width]
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return [layer for before, after in pairs for layer in (nn.Linear(before, after), nn.ReLU())]


class Funnel(nn.Module):
    """The network of the sanitisation experiments: convolutions, then ever narrower layers down to a public width n.

    Images (c, s, s) pass three 3×3 convolutions 32-64-128 with max-pooling, fully connected layers 8n, 4n, 2n, n, and a
    linear head. ``body`` ends at the penultimate layer, a ReLU of width n, where activations are sanitised; ``head``
    sees nothing but what ``body`` gives."""

    def __init__(self, channels: int, side: int, *, width: int = 50, classes: int = 10) -> None:
        super().__init__()
        flat = 128 * (side // 8) ** 2
        stages = (*_build_stage(channels, 32), *_build_stage(32, 64), *_build_stage(64, 128))
        self.body = ImageLayers(*stages, nn.Flatten(), *build_funnel(flat, width))
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """One score per class."""
        scores: Tensor = self.head(self.body(images))
        return scores


def _build_stage(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]  # the same as ReLU first, for less


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str = "group") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = _build_norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = _build_norm(norm, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _build_norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(convolutions + shortcut)."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


def _build_norm(norm: str, channels: int) -> nn.Module:
    return nn.GroupNorm(GROUPS, channels) if norm == "group" else nn.BatchNorm2d(channels)


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images with GroupNorm: 11 173 962 parameters.

    A 3×3 stem, eight blocks 64-128-256-512, global average pooling (``body`` ends here, width 512), linear head. He et
    al., "Deep Residual Learning", 2016; Wu and He, "Group Normalization", 2018. The usual BatchNorm computes with the
    statistics of the whole batch, so one example would change the gradients of all the others and no clipping could
    bound its effect; GroupNorm normalises every example by itself and has as many parameters. ``norm="batch"`` exists
    for published methods without a proof. ``width`` is that of the stem (a multiple of 16; ``body`` ends
    at 8·width): at 16 it has 701 466 parameters."""

    def __init__(self, classes: int = 10, *, width: int = 64, norm: str = "group") -> None:
        super().__init__()
        positive_int(width=width)
        choice(("group", "batch"), norm=norm)
        if width % GROUPS:
            raise InvalidInputError(f"the width of ResNet-18 must be a multiple of {GROUPS}, its groups, got {width}")
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = zip(widths[:-1], widths[1:], (1, 2, 2, 2), strict=True)
        blocks = [
            b for i, o, stride in stages for b in (ResidualBlock(i, o, stride, norm), ResidualBlock(o, o, 1, norm))
        ]
        stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), _build_norm(norm, width), nn.ReLU()]
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """One score per class for images (n, 3, 32, 32)."""
        scores: Tensor = self.head(self.body(images))
        return scores


class VAE(nn.Module):
    """P3: the variational autoencoder of the optimizer comparisons, on 28×28 images in [0, 1]: 1 875 265 parameters.

    Convolutions 32-64-128-256 (3×3, stride 2), 1024-512-(32, 32), and the mirror image back. Kingma and Welling,
    "Auto-Encoding Variational Bayes", 2014: z = μ + e^{s/2} ξ, ξ standard normal, one draw a step. In eval mode z = μ,
    so that an evaluation has one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *_build_down(1, 32),
            *_build_down(32, 64),
            *_build_down(64, 128),
            *_build_down(128, 256),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(),
        )
        self.mean = nn.Linear(512, LATENT)
        self.log_variance = nn.Linear(512, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, 512),
            nn.ReLU(),
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Unflatten(1, (256, 2, 2)),
            _build_up(256, 128, 1),
            nn.ReLU(),
            _build_up(128, 64, 0),
            nn.ReLU(),
            _build_up(64, 32, 1),
            nn.ReLU(),
            _build_up(32, 1, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(reconstruction, μ, s) of images (n, 1, 28, 28)."""
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def vae_losses(model: nn.Module, content: tuple[Tensor, ...]) -> Tensor:
    """‖x − x̂‖² + ½ Σ (μ² + e^s − s − 1), one number per example; labels, if any, are not used."""
    images = content[0]
    rebuilt, mean, log_variance = model(images)
    error = (rebuilt - images).square().flatten(1).sum(1)
    losses: Tensor = error + 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
    return losses


def _build_down(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]


def _build_up(inputs: int, outputs: int, output_padding: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=output_padding)


# The architectures that come with hush, by name: what a released description may ask for without anybody's trust.


def linear(features: int, classes: int) -> nn.Sequential:
    """A linear model on features that may be kept in half precision."""
    return nn.Sequential(Single(), logistic(features, classes))


def sanitized(
    inner: str,
    arguments: Mapping[str, Any],
    at: str,
    clip: float,
    nonnegative: bool = False,
    dropout: float = 0.0,
    dropout_place: DropoutPlace = "after",
) -> nn.Module:
    """A shipped architecture with a sanitisation layer behind its module ``at``; a run gives the layer its noise, and
    without one it only clamps."""
    from hush.sanitize.layer import Sanitize, insert  # which only these networks need

    layer = Sanitize(clip, 1.0, floor=0.0 if nonnegative else None, dropout=dropout, place=dropout_place)
    return insert(build_shipped(Architecture("shipped", inner, arguments)), at, layer)


SHIPPED: Mapping[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "logistic": logistic,
    "linear": linear,
    "projection": projection,
    "sanitized": sanitized,
    "lenet": lenet5,
    "cnn": small_cnn,
    "p1": p1,
    "p2": p2,
    "funnel": Funnel,
    "resnet18": ResNet18,
    "vae": VAE,
}


def shipped(name: str, **arguments: Any) -> Architecture:
    """One of `SHIPPED`, with arguments in plain data."""
    return Architecture("shipped", name, arguments)


MOST_VALUES = 1000  # arguments of an architecture: a list of widths makes as many layers, before weights are compared


def _count_values(value: Any) -> int:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else None
    return 1 if inside is None else sum(map(_count_values, inside))


def build_shipped(architecture: Architecture) -> nn.Module:
    """The network, with fresh weights; a name or an argument that is not known is refused."""
    if architecture.name not in SHIPPED:
        raise InvalidInputError(
            f"the description names the architecture '{architecture.name}', which does not come with hush: "
            f"{nearest(architecture.name, SHIPPED)}"
        )
    factory = SHIPPED[architecture.name]
    if _count_values(architecture.arguments) > MOST_VALUES:
        raise InvalidInputError(
            f"the architecture '{architecture.name}' has more than {MOST_VALUES} numbers as arguments: give fewer"
        )
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in architecture.arguments.items()}
    try:
        inspect.signature(factory).bind(**arguments)
        return factory(**arguments)
    except InvalidInputError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, LookupError, AttributeError, MemoryError) as error:
        raise InvalidInputError(f"the arguments of the architecture '{architecture.name}' do not fit it") from error
