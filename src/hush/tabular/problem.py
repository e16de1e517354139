"""Your own data as a problem: a table (.csv, .parquet, parts of one), an .npz of arrays, or class folders of images.

Nothing is scaled by a statistic of the rows; what the result takes to be public is in ``Problem.assumptions``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hush._internal.imports import call_with, find_version, import_factory
from hush._internal.settings import TASKS as TASKS
from hush._internal.validate import choice
from hush.accounting.guarantee import HELD, say_own_data
from hush.datasets.images import DEFAULT_LABELS, has_array, list_folders, read_arrays, read_images
from hush.datasets.models import build_shipped, shipped
from hush.datasets.problem import (
    LOSSES,
    Notes,
    PendingClasses,
    PendingLosses,
    Problem,
    make_classification,
    make_regression,
)
from hush.datasets.splits import (
    Arrays,
    Identities,
    Owners,
    Rows,
    Split,
    count_examples,
    find_shape,
    hold_out,
    hold_out_units,
)
from hush.errors import DataError, InvalidInputError, nearest
from hush.randomness import seeded, streams
from hush.release.description import Architecture, Inputs
from hush.tabular.columns import Category, Encoder, Ignored, Number
from hush.tabular.defaults import choose_model
from hush.tabular.inspect import find_target_range, infer, say_target_range, with_range
from hush.tabular.reader import (
    Notify,
    ReadProgress,
    estimate_rows,
    find_parts,
    holds_table,
    is_pattern,
    keep_silent,
    name_table,
)
from hush.tabular.rows import load_rows
from hush.tabular.schema import Schema, mark_pending_ranges, public_columns, read_range, read_schema
from hush.tabular.unit_ids import check_apart, read_owner_array, read_owners

ROW = "example"  # what the unit of privacy is called where it is a row
MOST_RELEASED = 32  # outputs of a model whose classes are released before training
MODELS = ("mlp", "logistic", "lenet", "cnn")
MLP = (128, 64)  # the hidden layers of mlp where their widths are not in its name
EARLIER = "mlp or cnn"  # what a run had that was begun when every table got the same mlp
TEST = 0.2
COUNT = "the number of rows and the order in which they are split are public"
COUNT_UNITS = "the number of units ({unit}) is public, and each one's identity alone decides whether it is held out"
FROM_ONE = (
    "no row has label 0: are the labels counted from 1? The model has a class 0 in any case: subtract 1 from the "
    "labels, or name the classes in a schema"
)


def from_files(
    path: str | Path,
    *,
    target: str | None = None,
    model: str | None = None,
    schema: Mapping[str, Any] | str | Path | None = None,
    public: Collection[str] = (),
    test: float | str | Path = TEST,
    seed: int = 0,
    validation: float = 0.0,
    task: str = TASKS[0],
    target_range: tuple[float, float] | None = None,
    loss: str | None = None,
    private_ranges: bool = False,
    private_classes: bool = False,
    unit: str | None = None,
    unit_normalise: bool = False,
    private_folder: Path | None = None,
    notify: Notify = keep_silent,
) -> Problem:
    """A problem from a file or folder; a table may be in several files, as a folder or a pattern of names.

    ``target``: the column (or array) of labels. ``model``: mlp, or mlp-64-32 with hidden layers of these widths,
    logistic, lenet, cnn or ``package.module:factory``, called with those of (shape, features, classes) that it takes;
    by default cnn for images, for a table's classes as :mod:`hush.tabular.defaults` says, else mlp. ``schema``:
    the public facts, as a dict or a .toml or .json file. ``public``: "ranges", "categories" and "classes" where reading
    them off the rows is harmless. ``test``: a fraction of the rows, the same for every seed, or another file of the
    same kind. ``task``: classification, or regression, whose target is a number with a public ``target_range`` (here or
    in the schema), clamped to it and mapped to [−1, 1]; its ``loss`` is squared (the default) or huber. ``unit``: the
    column (or array) that names the unit of each row, where all rows of one unit are one example; it is no feature, is
    read as exact text, and no unit is both trained and tested on. ``unit_normalise`` makes ids one unit that differ in
    Unicode form, case, spaces, invisible characters or a trailing ".0"; else they are refused. ``notify`` receives
    the progress of reading a long table. Its encoded rows are in a file without a name in ``private_folder``, by
    default that of temporary files. ``private_ranges``: numeric columns without a range await one that is released with
    noise before training (`hush.statistics.releases`). ``private_classes``: so do the classes of a table, where they
    are neither in the schema nor public; without it they have to be one or the other."""
    place, given = Path(path), read_schema(schema)
    if unit == ROW:
        raise InvalidInputError(
            f"'{ROW}' is the word for a single row, and no unit can be called so: rename that column"
        )
    _check_task(task, target_range, loss)
    if target_range is not None:
        given["target_range"] = read_range(target_range, "the target's range")
    if unit_normalise and unit is None:
        raise InvalidInputError("--unit-normalise is about the ids of the column that --unit names: give both")
    asked = _Asked(
        target, given, public, task == "regression", notify, unit, unit_normalise, private_classes, private_folder
    )
    read = _read(place, asked)
    if private_ranges:
        read = _await_ranges(read, place)
    split = _split(read, test, asked)
    examples, tested = count_examples(split.train), count_examples(split.test)
    if read.schema is not None and not read.schema.features:
        raise DataError(
            f"'{place.name}' has no usable column except the target '{read.schema.target}': see what is left out with "
            "`hush data inspect`, or describe the columns in a --schema"
        )
    model = model or _choose_model(read, examples if split.owners is None else split.owners.count)
    shape = find_shape(split.train)

    def build(classes: int, schema: Schema | None) -> tuple[Architecture, Callable[[], nn.Module]]:
        found = _choose_architecture(model, shape, schema, classes)
        return found, _choose_factory(found, schema)

    architecture, network = build(MOST_RELEASED if read.labels else len(read.classes) or 1, read.schema)
    if read.labels and architecture.source != "shipped":
        raise InvalidInputError(
            f"the outputs of '{model}' cannot be matched with classes that are released before training: name the "
            "classes in a schema (classes = […]), or say that they are public (--public classes)"
        )
    base = _make_problem(read, split, network, seed, validation, loss or "squared")
    if read.labels:
        pending = PendingClasses.of(read.labels, MOST_RELEASED, build)
        base = replace(base, pending_classes=pending, losses=PendingLosses(pending.slots, pending.used))
    whose = "" if split.owners is None else f", of {split.owners.count} units ('{unit}')"
    summary = f"{place.name}: {examples} rows to train on{whose}, {tested} to test on"
    described = replace(base, schema=read.schema, architecture=architecture, inputs=read.inputs, notes=read.notes)
    return replace(described, name=name_table(place), summary=summary, target=read.target)


def _check_task(task: str, target_range: tuple[float, float] | None, loss: str | None) -> None:
    choice(TASKS, task=task)
    if loss is not None:
        choice(LOSSES, loss=loss)
    if task != "regression" and (target_range is not None or loss is not None):
        raise InvalidInputError("--target-range and --loss are for numbers to predict: add --task regression")


@dataclass(frozen=True)
class _Asked:
    """The arguments of `from_files`."""

    target: str | None
    given: Mapping[str, Any]
    public: Collection[str]
    regression: bool
    notify: Notify
    unit: str | None
    unit_normalise: bool
    private_classes: bool
    folder: Path | None


@dataclass(frozen=True)
class _Own:
    """The content of a file: its rows, its test rows if any, the columns of a table, and the classes or the target's
    range."""

    rows: Rows
    test: Arrays | None
    schema: Schema | None
    classes: tuple[str, ...]
    assumptions: tuple[str, ...]
    inputs: Inputs | None = None
    target: str | None = None  # the column or array of the labels
    target_range: tuple[float, float] | None = None
    unit: str | None = None
    unit_normalise: bool = False
    whose: Identities | None = None  # of the rows, where they have a unit
    test_whose: Identities | None = None
    notes: Notes | None = None
    labels: tuple[str, ...] = ()  # of a table whose classes are released before training, private


def _make_problem(
    read: _Own, split: Split, network: Callable[[], nn.Module], seed: int, validation: float, loss: str
) -> Problem:
    said = [COUNT_UNITS.format(unit=read.unit) if text == COUNT and read.unit else text for text in read.assumptions]
    shared: dict[str, Any] = {
        "seed": seed,
        "validation": validation,
        "assumptions": (*said, say_own_data(read.unit or ROW), HELD),
    }
    if read.target_range is not None:
        return make_regression(split, network, limits=read.target_range, losses=LOSSES[loss], **shared)
    if read.labels:
        return make_classification(split, network, classes=MOST_RELEASED, **shared)
    return make_classification(split, network, classes=len(read.classes), class_names=read.classes, **shared)


def _read(place: Path, asked: _Asked) -> _Own:
    if not place.exists() and not is_pattern(place):
        raise InvalidInputError(f"there is no file or folder '{place}'")
    table = holds_table(place)
    if (unread := [fact for fact in asked.public if fact != "classes"]) and not table:
        raise InvalidInputError(
            f"only a table's {' and '.join(unread)} are read off its rows, and '{place}' is no table"
        )
    if table:
        return _read_table(place, asked)
    if place.is_dir():
        list_folders(place)
        if asked.regression:
            raise InvalidInputError(
                f"the folders in '{place}' are classes: leave out --task regression, or give an .npz"
            )
        if asked.unit is not None:
            raise InvalidInputError(
                f"the images in '{place}' have no column that says whose they are: use an .npz of arrays"
            )
        return _read_folder(place, asked.given)
    if place.suffix == ".npz":
        return _read_npz(place, asked)
    raise InvalidInputError(f"'{place}' is none of .csv, .parquet, .npz or a folder of class folders of images")


def _await_ranges(read: _Own, place: Path) -> _Own:
    if read.schema is None:
        raise InvalidInputError(f"--private-ranges is for the numeric columns of a table, and '{place}' holds images")
    return replace(read, schema=mark_pending_ranges(read.schema, f"'{place}'"))


def _read_table(place: Path, asked: _Asked) -> _Own:
    """Read a table in two passes, for the columns and for the rows; and in a third for the units of the rows."""
    found = _stat_parts(place)
    progress = ReadProgress(place.name, estimate_rows(find_parts(place)), asked.notify)
    progress.begin("looking at")
    given, public, unit = asked.given, asked.public, asked.unit
    if unit is not None and unit == asked.target:
        raise InvalidInputError(
            f"column '{unit}' of '{place}' is to be predicted, and cannot be both that and the unit"
        )
    how: dict[str, Any] = {"regression": asked.regression, "unit": unit or "", "count": progress.count}
    inferred = infer(place, asked.target, given, public, **how, private_classes=asked.private_classes)
    schema, looked = inferred.require(), inferred.inspection
    if not (asked.regression or asked.private_classes or "classes" in given or "classes" in public):
        raise DataError(
            f"the classes in column '{schema.target}' of '{place}' are values of private rows: name them in the schema "
            "(classes = […]), say that they are public (public=('classes',)), or release them with noise "
            "(private_classes=True)"
        )
    whose = None if unit is None else read_owners(place, unit, normalise=asked.unit_normalise)
    schema = schema if unit is None else _leave_out(schema, unit)
    rows = load_rows(place, replace(schema, classes=inferred.labels or schema.classes), progress, asked.folder)
    if _stat_parts(place) != found:  # rows and their units would no longer belong together
        raise DataError(f"'{place}' changed while it was read: try again when no process writes to it")
    progress.finish(count_examples(rows), len(schema.columns))
    notes = Notes(tuple(looked.count_strays()), tuple(looked.list_repeating()) if unit is None else ())
    own = _Own(rows, None, schema, schema.classes, schema.assumed, target_range=schema.target_range)
    own = replace(own, target=schema.target, unit=unit, whose=whose, notes=notes)
    return replace(own, unit_normalise=asked.unit_normalise, labels=inferred.labels)


def _stat_parts(place: Path) -> list[tuple[str, int, int, int]]:
    """Name, file, size and time of every part."""
    states = [(part, part.stat()) for part in find_parts(place)]
    return [(part.name, state.st_ino, state.st_size, state.st_mtime_ns) for part, state in states]


def _leave_out(schema: Schema, unit: str) -> Schema:
    """The schema with the column of the unit, which is not a feature."""
    left = tuple(Ignored(unit) if column.name == unit else column for column in schema.columns)
    return replace(schema, columns=left)


def _read_folder(root: Path, given: Mapping[str, Any]) -> _Own:
    """``root``/class/image, or ``root``/train/class/image with ``root``/test/class/image."""
    own_test = list_folders(root) == ("test", "train")
    (images, labels), names = read_images(root / "train" if own_test else root)
    test: Arrays | None = None
    if own_test:
        (test_images, test_labels), test_names = read_images(root / "test")
        if test_names != names or test_images.shape[1:] != images.shape[1:]:
            raise InvalidInputError(
                f"'{root}/train' and '{root}/test' differ in their classes or in the size of their images"
            )
        test = (_centre(test_images, given), test_labels)
    said = (COUNT, "the classes (the folders' names), the images' size and their channels are public")
    return _Own((_centre(images, given), labels), test, None, names, said, _describe_images(images, given))


def _read_npz(path: Path, asked: _Asked) -> _Own:
    target, unit = asked.target or "y", asked.unit
    if unit is not None and unit in (target, f"{target}_train"):
        raise InvalidInputError(
            f"the array '{unit}' of '{path}' is to be predicted, and cannot be both that and the unit"
        )
    own = _read_npz_rows(path, asked)
    if unit is None:
        return own
    how: dict[str, Any] = {"normalise": asked.unit_normalise}
    own = replace(own, unit=unit, unit_normalise=asked.unit_normalise)
    own = replace(own, whose=read_owner_array(path, unit, count_examples(own.rows), **how))
    if own.test is None:
        return own
    return replace(own, test_whose=read_owner_array(path, unit, len(own.test[0]), test=True, **how))


def _read_npz_rows(path: Path, asked: _Asked) -> _Own:
    given, regression = asked.given, asked.regression
    read = read_arrays(path, asked.target, regression=regression, unit=asked.unit)
    found, classes, label = read.parts, read.classes, read.target
    limits: tuple[float, float] | None = None
    said: tuple[str, ...] = (COUNT, "the shape of an example and the number of classes are public")
    names: tuple[str, ...] = ()
    if regression:
        own = public_columns(given.get("columns", {})).get(label) or Number(label)
        limits = find_target_range(given, own, f"the array '{label}' of '{path}'")
        said = (COUNT, "the shape of an example is public", say_target_range(limits))
    else:
        names = tuple(map(str, given.get("classes", range(classes))))
        if len(names) < classes:
            raise InvalidInputError(f"'{path}' holds a label that is none of the schema's {len(names)} classes")
    rows, test = found["train"], found.get("test")
    counted = regression or "classes" in given or any(bool((y == 0).any()) for _, y in found.values())
    notes = None if counted else Notes((FROM_ONE,))
    if rows[0].dim() > 2:
        images = {part: (_centre(x, given), y) for part, (x, y) in found.items()}
        inputs = _describe_images(rows[0], given)
        return _Own(images["train"], images.get("test"), None, names, said, inputs, label, limits, notes=notes)
    columns = tuple(with_range(Number(f"x{i}"), given) for i in range(rows[0].shape[1]))
    schema = Schema((*columns, Category(label)), label, names, said, limits)
    return _Own(rows, test, schema, names, said, target=label, target_range=limits, notes=notes)


def _centre(images: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Pixels with their public range mapped to [−1, 1]: bytes have 0 … 255, other numbers [0, 1] or the schema's."""
    low, high = _find_range(images, given)
    values = images.float()
    if float(values.min()) < low or float(values.max()) > high:
        raise InvalidInputError(
            f"pixels must lie in [{low}, {high}], or give their public range in the schema: range = [low, high]"
        )
    return (values - low).mul_(2 / (high - low)).sub_(1)


def _find_range(images: Tensor, given: Mapping[str, Any]) -> tuple[float, float]:
    return given.get("range") or ((0, 255) if images.dtype == torch.uint8 else (0, 1))


def _describe_images(images: Tensor, given: Mapping[str, Any]) -> Inputs:
    low, high = _find_range(images, given)
    return Inputs("images", tuple(images.shape[1:]), float(low), float(high))


def _split(read: _Own, test: float | str | Path, asked: _Asked) -> Split:
    if read.test is not None:
        if isinstance(test, (str, Path)):
            raise InvalidInputError(f"the data brings its own test rows: leave '{test}' out")
        return _with_owners(Split(read.rows, read.test), read, read.test_whose)
    if isinstance(test, (str, Path)):
        if not Path(test).exists() and not is_pattern(Path(test)):
            raise InvalidInputError(f"there is no file or folder '{test}'")
        if read.schema is not None and holds_table(Path(test)):
            progress = ReadProgress(Path(test).name, estimate_rows(find_parts(Path(test))), asked.notify)
            how, schema = read.unit_normalise, replace(read.schema, classes=read.labels or read.schema.classes)
            whose = None if read.unit is None else read_owners(Path(test), read.unit, normalise=how)
            return _with_owners(Split(read.rows, load_rows(Path(test), schema, progress, asked.folder)), read, whose)
        same = read.target is not None and read.target != DEFAULT_LABELS and has_array(Path(test), read.target)
        other = _read(
            Path(test), replace(asked, target=read.target if same else asked.target, public=(), private_classes=False)
        )
        if other.test is not None:
            raise InvalidInputError(f"'{test}' has a training and a test part of its own: give a file with one part")
        known = (
            set(other.classes) <= set(read.classes) if Path(test).suffix == ".npz" else other.classes == read.classes
        )
        if not known or find_shape(other.rows) != find_shape(read.rows) or _list_columns(other) != _list_columns(read):
            raise InvalidInputError(
                f"'{test}' differs from the training data in its classes or in the shape of an example"
            )
        return _with_owners(Split(read.rows, other.rows), read, other.whose)
    examples = count_examples(read.rows)
    if not 0 < test < 1 or int(test * examples) < 1:
        raise InvalidInputError(f"a test fraction of {test} of {examples} rows leaves no test rows or no training rows")
    if read.unit is None or read.whose is None:
        return Split(*hold_out(read.rows, test, seed=0, stream=streams.TEST))
    (rest, whose), (held, tested) = hold_out_units(read.rows, read.whose, test, seed=0, stream=streams.TEST)
    if not len(whose) or not len(tested):
        raise InvalidInputError(f"too few units ('{read.unit}') to hold some of them out for testing: give --test-data")
    return Split(rest, held, owners=Owners(read.unit, whose, tested))


def _with_owners(split: Split, read: _Own, tested: Identities | None) -> Split:
    """The split with the unit of every row, after checking that no unit is on both sides."""
    if read.unit is None or read.whose is None or tested is None:
        return split
    check_apart(read.whose, tested, read.unit)
    return replace(split, owners=Owners(read.unit, read.whose, tested))


def _list_columns(own: _Own) -> list[str]:
    return [] if own.schema is None else [column.name for column in own.schema.features]


def _choose_model(read: _Own, examples: int) -> str:
    """The default model for the kind of data and, for a table with classes, for its number of examples."""
    table = read.schema is not None and read.target_range is None
    return choose_model(examples) if table else EARLIER


def _choose_architecture(model: str, shape: tuple[int, ...], schema: Schema | None, classes: int) -> Architecture:
    """The chosen model, behind an encoder if the data is a table."""
    if schema is None:
        return _name_model("cnn" if model == EARLIER else model, shape, classes)
    width = Encoder(schema.features).width
    return replace(_name_model("mlp" if model == EARLIER else model, (width,), classes), encoder=True)


def _choose_factory(architecture: Architecture, schema: Schema | None) -> Callable[[], nn.Module]:
    """A function that makes a fresh network of the architecture."""
    build = _choose_builder(architecture)
    if schema is None:
        return build
    return lambda: nn.Sequential(Encoder(schema.features), build())


def _choose_builder(architecture: Architecture) -> Callable[[], nn.Module]:
    if architecture.source == "shipped":
        with seeded(0):
            build_shipped(architecture)  # too small an image is noticed now
        return lambda: build_shipped(architecture)
    build_own = import_factory(architecture.name)
    return lambda: _check_module(call_with(build_own, architecture.arguments), architecture.name)


def _name_model(model: str, shape: tuple[int, ...], classes: int) -> Architecture:
    flat = math.prod(shape)
    if ":" in model:
        own = {"shape": shape, "features": flat, "classes": classes}
        return Architecture("factory", model, own, find_version(model))
    if model == "mlp":
        return shipped("mlp", widths=(flat, *MLP, classes))
    if model.startswith("mlp-"):
        return shipped("mlp", widths=(flat, *_read_widths(model), classes))
    if model == "logistic":
        return shipped("logistic", features=flat, classes=classes)
    if model not in MODELS:
        raise InvalidInputError(f"unknown model '{model}': {nearest(model, MODELS)}, or package.module:factory")
    if len(shape) != 3:
        raise InvalidInputError(
            f"the model '{model}' is for images, and an example here has the shape {shape}: use mlp"
        )
    return shipped(model, shape=shape, classes=classes)


def _read_widths(model: str) -> tuple[int, ...]:
    """The widths of the hidden layers: mlp-64-32."""
    parts = model.split("-")[1:]
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 and int(part) > 0 for part in parts):
        raise InvalidInputError(
            f"'{model}' is no model: the widths of hidden layers are whole numbers, as in mlp-64-32"
        )
    return tuple(map(int, parts))


def _check_module(built: Any, model: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise InvalidInputError(f"'{model}' returned {type(built).__name__} where a torch.nn.Module was expected")
    return built
