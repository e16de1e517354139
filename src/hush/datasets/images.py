"""Reads a user's images and features: a folder of class folders of images, or .npz arrays.

Pixels are scaled by the range of their type (a byte: 0 … 255), never by the content of the images. Errors quote neither
values nor file names of examples, but the class folder and the number of the image.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hush._internal.storage import explain
from hush._internal.validate import positive_int
from hush.datasets.splits import Arrays
from hush.errors import InvalidInputError, MissingDependencyError
from hush.tabular.columns.category import MOST_CLASSES
from hush.tabular.inspect import NUMBERS

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SUSPECT = 1 << 28  # bytes from which on an array that was packed a hundredfold is not unpacked
_FEATURES = ("x", "features", "data", "images", "x_train")
DEFAULT_LABELS = "y"  # then any of the usual names will do, as releases once said y for all of them
_LABELS = ("y", "labels", "target", "targets", "y_train")


def read_images(root: Path) -> tuple[Arrays, tuple[str, ...]]:
    """((bytes (n, channels, height, width), labels), class names) of ``root``/class/image files."""
    names = list_folders(root)
    if len(names) < 2:
        raise InvalidInputError(f"'{root}' must hold one folder of images per class, and at least two")
    images, labels, first = [], [], None
    for label, name in enumerate(names):
        paths = sorted(p for p in (root / name).iterdir() if p.suffix.lower() in SUFFIXES)
        if not paths:
            raise InvalidInputError(f"the class folder '{root / name}' holds no images")
        for number, path in enumerate(paths, start=1):
            where = f"image {number} of '{root / name}'"
            image = _image(path, where)
            first = first or (where, image.shape)
            if image.shape != first[1]:
                raise InvalidInputError(
                    f"all images must have one size and one number of channels: {first[0]} has {_size(first[1])} "
                    f"and {where} has {_size(image.shape)}"
                )
            images.append(image)
            labels.append(label)
    return (torch.from_numpy(np.stack(images)), torch.tensor(labels)), names


def list_folders(root: Path) -> tuple[str, ...]:
    """The folders in a folder, in order; without any it is none of class folders."""
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if not names:
        raise InvalidInputError(f"'{root}' holds neither .csv/.parquet files nor class folders of images")
    return names


def read_array(path: Path, name: str) -> np.ndarray[Any, Any]:
    """One array of a .npz file."""
    content = _npz(path)
    if name not in content:
        raise InvalidInputError(f"'{path}' has no array '{name}'; it has {', '.join(content) or 'none'}")
    return content[name]


def has_array(path: Path, name: str) -> bool:
    """Whether a file is an .npz with an array of this name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return path.suffix == ".npz" and f"{name}.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


@dataclass(frozen=True)
class NpzDataset:
    """What an .npz file holds: ``parts`` {"train": …, and "test": … if it has one}, the number of ``classes``, and what
    the labels are called, which is the name of their array; those of ``y_train`` are called y."""

    parts: dict[str, Arrays]
    classes: int
    target: str


def read_arrays(path: Path, target: str | None, *, regression: bool = False, unit: str | None = None) -> NpzDataset:
    """The features and labels of a .npz file; nothing is unpickled. In a ``regression`` the labels are numbers, and
    there are no classes.

    The labels are the array named ``target``, or y, labels, target; the features as `_pick_features` says. x_train and
    y_train are understood, and test rows as `_name_test` says. The array ``unit`` is not among them."""
    content = _npz(path)
    label = target or next((name for name in _LABELS if name in content and name != unit), None)
    if label is None or label not in content:
        raise InvalidInputError(
            f"'{path}' has no array of labels '{target or 'y'}'; it has {', '.join(content) or 'none'}"
        )
    feature = _pick_features(content, (label, unit))
    if feature is None:
        others = [name for name in content if name not in (label, unit)]
        raise InvalidInputError(
            f"'{path}' has no array of features 'x'; other than '{label}' it has {', '.join(others) or 'none'}"
        )
    pair = _pair_numbers if regression else _pair
    found = {"train": pair(content[feature], content[label], path)}
    if (names := _name_test(content, feature, label, path)) is not None:
        found["test"] = pair(content[names[0]], content[names[1]], path)
    classes = 0 if regression else 1 + max(int(labels.max()) for _, labels in found.values())
    return NpzDataset(found, classes, "y" if target is None and label == "y_train" else label)


def _name_test(
    content: Mapping[str, np.ndarray[Any, Any]], feature: str, label: str, path: Path
) -> tuple[str, str] | None:
    """The arrays of the test rows and of their labels: the same names with _test, or x_test and y_test, unless y_test
    belongs to a y that is not asked for."""
    own = f"{feature.removesuffix('_train')}_test", f"{label.removesuffix('_train')}_test"
    rows = next((name for name in (own[0], "x_test") if name in content), None)
    labels = next((name for name in (own[1], "y_test") if name in content), None)
    if rows is None or labels is None:
        return None
    if labels != own[1] and ("y" in content or "y_train" in content):
        raise InvalidInputError(
            f"'{path}' has test rows '{rows}' and no '{own[1]}' for them: add their labels, or leave the rows out"
        )
    return rows, labels


def _pick_features(content: Mapping[str, np.ndarray[Any, Any]], excluded: Collection[str | None]) -> str | None:
    """The name of the array of features: x, features, data or images; or the only other one; or the only one with two
    or more dimensions and no usual name of labels. Training and prediction use the same rule."""
    others = [name for name in content if name not in excluded and not name.endswith("_test")]
    if (usual := next((name for name in _FEATURES if name in others), None)) is not None:
        return usual
    wide = [name for name in others if content[name].ndim > 1]
    choices = (others, wide, [name for name in wide if name not in _LABELS])
    return next((some[0] for some in choices if len(some) == 1), None)


def _pair_numbers(features: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], path: Path) -> Arrays:
    _check_shapes(features, targets, path)
    if features.dtype.kind not in "fiub" or targets.dtype.kind not in "fiub":
        raise InvalidInputError(f"'{path}' needs numbers; it has {features.dtype} and {targets.dtype}")
    values = targets.astype(np.float64)
    if not np.isfinite(values).all():
        raise InvalidInputError(f"the numbers to predict in '{path}' hold values that are not finite (NaN or infinity)")
    _check_finite(features, path)
    return _tensor(features), torch.from_numpy(values)


def _check_shapes(features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], path: Path) -> None:
    if features.ndim < 2 or labels.ndim != 1 or len(features) != len(labels) or not len(labels):
        raise InvalidInputError(
            f"'{path}' needs features (n, …) and labels (n,); it has {features.shape} and {labels.shape}"
        )


def _check_finite(features: np.ndarray[Any, Any], path: Path) -> None:
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        raise InvalidInputError(f"the features of '{path}' hold values that are not finite (NaN or infinity)")


def read_unlabelled(path: Path, target: str | None) -> Tensor:
    """The features of an .npz of arrays, with or without labels, which are called ``target``."""
    content = _npz(path)
    name = _pick_features(content, (target,))
    if name is None:
        raise InvalidInputError(f"'{path}' has no array of features 'x'; it has {', '.join(content) or 'none'}")
    if content[name].ndim < 2 or content[name].dtype.kind not in "fiub" or not len(content[name]):
        raise InvalidInputError(f"'{path}' needs features (n, …) that are numbers")
    return _tensor(content[name])


def list_images(path: Path) -> list[Path]:
    """One image, or all images in a folder and the folders in it, in the order of their names; hidden folders are left
    out, as in training."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    paths = [p for p in paths if p == path or not _is_hidden(p.relative_to(path).parent)]
    if not paths:
        raise InvalidInputError(f"'{path}' holds no images")
    return paths


def _is_hidden(folder: Path) -> bool:
    return any(name.startswith(".") for name in folder.parts)


def iterate_images(root: Path, paths: Sequence[Path], *, at_a_time: int = 256) -> Iterator[Tensor]:
    """Bytes (n, channels, height, width) of these images, some at a time; errors give an image's number in ``root``."""
    shape: tuple[int, ...] | None = None
    for start in range(0, len(paths), at_a_time):
        some = enumerate(paths[start : start + at_a_time], start=start + 1)
        images = [_image(path, f"image {number} of '{root}'") for number, path in some]
        shape = shape or images[0].shape
        if any(image.shape != shape for image in images):
            raise InvalidInputError(f"all images in '{root}' must have one size and one number of channels")
        yield torch.from_numpy(np.stack(images))


def read_image_files(path: Path) -> tuple[Tensor, list[str]]:
    """(bytes (n, channels, height, width), names) of one image, or of all images in a folder and the folders in it."""
    paths = list_images(path)
    names = [str(p.relative_to(path)) if p != path else p.name for p in paths]
    return torch.cat(list(iterate_images(path, paths))), names


def _pair(features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], path: Path) -> Arrays:
    _check_shapes(features, labels, path)
    if features.dtype.kind not in "fiub" or labels.dtype.kind not in "iub":
        remedy = f": {NUMBERS}" if labels.dtype.kind == "f" else ""
        raise InvalidInputError(
            f"'{path}' needs numbers and whole labels; it has {features.dtype} and {labels.dtype}{remedy}"
        )
    if labels.min() < 0:
        raise InvalidInputError(f"'{path}' holds a label below zero: labels count from 0")
    if labels.max() >= MOST_CLASSES:
        raise InvalidInputError(f"'{path}' holds a label of {MOST_CLASSES} or more: labels count the classes from 0")
    _check_finite(features, path)
    return _tensor(features), torch.from_numpy(labels.astype(np.int64))


def _tensor(features: np.ndarray[Any, Any]) -> Tensor:
    if features.ndim == 3:
        features = features[:, None]
    elif features.ndim == 4 and features.shape[-1] in (1, 3) and features.shape[1] not in (1, 3):
        features = np.moveaxis(features, -1, 1)
    keep = features.dtype == np.uint8 and features.ndim > 2
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(features if keep else features.astype(np.float32))
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InvalidInputError("the features hold numbers that are too large for 32 bits")
    return torch.from_numpy(values)


def _npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with path.open("rb") as stream:
            with zipfile.ZipFile(stream) as archive:
                for member in archive.infolist():
                    _check_size(archive, member, path)
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise InvalidInputError(f"'{path}' cannot be read: {explain(error)}") from error
    except InvalidInputError:
        raise
    except (ValueError, TypeError, SyntaxError, AttributeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InvalidInputError(f"'{path}' is not a whole .npz of plain arrays") from error
    except (KeyError, NotImplementedError, RuntimeError, RecursionError, OverflowError, MemoryError) as error:
        raise InvalidInputError(f"'{path}' holds arrays that cannot be read ({type(error).__name__})") from error


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Look at an array's header before anything is unpacked: what it promises must be what the archive holds."""
    with archive.open(member) as stream:
        major, minor = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, kind = read(stream)
        promised = math.prod(shape) * kind.itemsize + stream.tell()
    if kind.hasobject or promised != member.file_size:
        raise InvalidInputError(f"'{path}' is not a whole .npz of plain arrays")
    if member.file_size > SUSPECT and member.file_size > 100 * member.compress_size:
        raise InvalidInputError(
            f"'{path}' would unpack to {member.file_size >> 20} MiB from a hundredth of that: if that is meant, save "
            "it unpacked, by numpy.savez"
        )


def _image(path: Path, where: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("reading images needs pillow: pip install 'hush-dp[files]'") from error
    try:
        with Image.open(path) as image:
            grey = image.mode in ("1", "L", "I;16", "I", "F")
            pixels = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise InvalidInputError(f"{where} is not a whole image") from error
    return pixels[None] if grey else np.moveaxis(pixels, 2, 0)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}×{shape[1]} pixels, {shape[0]} channel{'s' * (shape[0] > 1)}"


# Public views of one image: shifted and mirrored copies, for training on the average of K of them.
#
# De et al., "Unlocking High-Accuracy Differentially Private Image Classification", 2022: the gradients of K views of
# one example are averaged before clipping, so that an example still has one clipped contribution and the privacy cost
# is that of no augmentation at all. A view looks at its own image alone, and draws one number for each image, in the
# first dimension: in a run these come from the secret, the step and the image's place (hush.per_example.model_rng).

View = Callable[[Tensor], Tensor]
"""Images (n, channels, height, width) to as many images of the same size, each from its own."""


def shifted(pixels: int = 4) -> View:
    """Each image moved by up to ``pixels`` in both directions, its edge reflected into the gap."""
    positive_int(pixels=pixels)

    def view(images: Tensor) -> Tensor:
        n, _, height, width = images.shape
        down = torch.randint(-pixels, pixels + 1, (n, 1), device=images.device)
        right = torch.randint(-pixels, pixels + 1, (n, 1), device=images.device)
        rows = _reflected(torch.arange(height, device=images.device) - down, height)
        columns = _reflected(torch.arange(width, device=images.device) - right, width)
        moved = images.gather(2, rows[:, None, :, None].expand_as(images))
        return moved.gather(3, columns[:, None, None, :].expand_as(images))

    return view


def mirrored(images: Tensor) -> Tensor:
    """Each image flipped left to right with probability ½."""
    flip = torch.rand(len(images), device=images.device) < 0.5
    return torch.where(flip[:, None, None, None], images.flip(3), images)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places outside 0 … size − 1 folded back at the ends, without repeating the end itself."""
    period = max(2 * (size - 1), 1)
    folded = places.remainder(period)
    return torch.where(folded < size, folded, period - folded)
