"""Image folders and .npz arrays: values, and one sentence for bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hush.datasets.images import (
    iterate_images,
    list_images,
    mirrored,
    read_arrays,
    read_image_files,
    read_images,
    read_unlabelled,
    shifted,
)
from hush.errors import InvalidInputError
from hush.randomness import seeded

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, size: tuple[int, int] = (5, 4), mode: str = "RGB", value: Any = (10, 20, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.png")
    picture(tmp_path / "dog" / "b.png", value=(1, 2, 3))
    picture(tmp_path / "dog" / "c.png")
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (images, labels), names = read_images(tmp_path)
    assert names == ("cat", "dog")
    assert labels.tolist() == [0, 1, 1]
    assert images.shape == (3, 3, 4, 5)
    assert images[1, :, 0, 0].tolist() == [1, 2, 3]


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "a.png", mode="L", value=7)
    picture(tmp_path / "b" / "b.png", mode="L", value=9)
    (images, _), _ = read_images(tmp_path)
    assert images.shape == (2, 1, 4, 5)
    assert images[:, 0, 0, 0].tolist() == [7, 9]


def test_images_at_any_depth_come_some_at_a_time(tmp_path: Path) -> None:
    for number in range(7):
        picture(tmp_path / "ab"[number % 2] / f"{number}.png", mode="L", value=number)
    paths = list_images(tmp_path)
    parts = list(iterate_images(tmp_path, paths, at_a_time=3))
    assert [len(part) for part in parts] == [3, 3, 1]
    assert [int(image[0, 0, 0]) for part in parts for image in part] == [0, 2, 4, 6, 1, 3, 5]
    together, names = read_image_files(tmp_path)
    assert together.shape == (7, 1, 4, 5)
    assert names == ["a/0.png", "a/2.png", "a/4.png", "a/6.png", "b/1.png", "b/3.png", "b/5.png"]
    picture(tmp_path / "b" / "7.png", size=(6, 6), mode="L", value=0)
    with pytest.raises(InvalidInputError):
        list(iterate_images(tmp_path, list_images(tmp_path), at_a_time=3))


def test_hidden_folders_are_left_out_as_in_training(tmp_path: Path) -> None:
    root = tmp_path / ".mine"  # what lies above counts for nothing
    for name in ("cat/a.png", "dog/b.png", ".thumbnails/a.png", "cat/.thumbnails/a.png", ".cache/cat/a.png"):
        picture(root / name)
    assert read_images(root)[1] == ("cat", "dog")
    assert [path.relative_to(root).as_posix() for path in list_images(root)] == ["cat/a.png", "dog/b.png"]
    assert list_images(root / ".thumbnails" / "a.png") == [root / ".thumbnails" / "a.png"]
    assert len(list_images(root / ".thumbnails")) == 1


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"\.csv/\.parquet"):
        read_images(tmp_path)
    picture(tmp_path / "a" / "a.png")
    with pytest.raises(InvalidInputError, match="images"):
        read_images(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidInputError, match="'.*b'"):
        read_images(tmp_path)
    picture(tmp_path / "b" / "b.png", size=(6, 4))
    with pytest.raises(InvalidInputError, match="/a' has 5×4 pixels, 3 channels and image 1 of '.*/b' has 6×4 pixels"):
        read_images(tmp_path)
    content = (tmp_path / "a" / "a.png").read_bytes()
    (tmp_path / "a" / "a.png").write_bytes(content[:40])
    with pytest.raises(InvalidInputError, match="1.*'.*'"):
        read_images(tmp_path)


def npz(folder: Path, **content: Any) -> Path:
    np.savez(folder / "data.npz", **content)
    return folder / "data.npz"


def test_arrays_and_their_names(tmp_path: Path) -> None:
    x, y = np.ones((4, 3)), np.array([0, 1, 2, 1])
    for content, target in (({"x": x, "y": y}, None), ({"anything": x, "kind": y}, "kind")):
        found = read_arrays(npz(tmp_path, **content), target)
        assert found.parts["train"][0].shape == (4, 3)
        assert found.parts["train"][1].tolist() == [0, 1, 2, 1]
        assert (found.classes, found.target) == (3, target or "y")
    found = read_arrays(npz(tmp_path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2]), None)
    assert found.parts["test"][1].tolist() == [0, 1]
    assert found.target == "y"


@pytest.mark.parametrize(
    ("names", "target"),
    [
        (("x", "digit", "x_test", "digit_test"), "digit"),
        (("x_train", "digit_train", "x_test", "digit_test"), "digit_train"),
        (("images", "labels", "images_test", "labels_test"), None),
        (("images", "labels", "x_test", "y_test"), None),
        (("feats", "digit", "feats_test", "digit_test"), "digit"),
    ],
)
def test_test_rows_are_labelled_as_the_others(tmp_path: Path, names: tuple[str, ...], target: str | None) -> None:
    """Beside them are labels of another kind, y, with a test part of their own."""
    x, digit, other = np.ones((4, 3)), np.array([0, 1, 2, 1]), np.full(4, 9)
    content = dict(zip(names, (x, digit, x[:2], digit[:2]), strict=True))
    more = {} if "y_test" in names or target is None else {"y": other, "y_test": other[:2]}
    found = read_arrays(npz(tmp_path, **more, **content), target)
    assert found.parts["train"][1].tolist() == [0, 1, 2, 1]
    assert found.parts["test"][1].tolist() == [0, 1]


def test_labels_that_were_asked_for_are_not_tested_against_others(tmp_path: Path) -> None:
    path = npz(tmp_path, x=WIDE, y=LINE, digit=LINE, x_test=WIDE, y_test=LINE)
    with pytest.raises(InvalidInputError, match="'x_test'.*'digit_test'"):
        read_arrays(path, "digit")


WIDE, SHORT, LINE = np.full((4, 3), 7.0), np.full((4, 1), 5), np.array([0, 1, 0, 1])
FEATURES: dict[str, tuple[dict[str, Any], str]] = {
    "by its usual name": ({"x": WIDE, "digit": LINE, "y": LINE}, "digit"),
    "the only one besides": ({"feats": WIDE, "digit": LINE}, "digit"),
    "even if it has a name of labels": ({"y": WIDE, "digit": LINE}, "digit"),
    "the only one of two dimensions": ({"feats": WIDE, "digit": LINE, "patient": LINE, "y": LINE}, "digit"),
    "the only one without a name of labels": ({"feats": WIDE, "digit": LINE, "y": SHORT}, "digit"),
    "beside labels of a usual name": ({"feats": WIDE, "labels": LINE}, "labels"),
}


@pytest.mark.parametrize("what", FEATURES)
def test_features_are_the_same_array_with_labels_and_without(tmp_path: Path, what: str) -> None:
    content, target = FEATURES[what]
    path = npz(tmp_path, **content)
    assert read_arrays(path, target).parts["train"][0].tolist() == WIDE.tolist()
    assert read_unlabelled(path, target).tolist() == WIDE.tolist()
    rest = {name: array for name, array in content.items() if name != target}
    assert read_unlabelled(npz(tmp_path, **rest), target).tolist() == WIDE.tolist()


def test_two_arrays_that_may_be_features(tmp_path: Path) -> None:
    path = npz(tmp_path, a=WIDE, b=WIDE, digit=LINE)
    with pytest.raises(InvalidInputError, match="'x'"):
        read_unlabelled(path, "digit")
    with pytest.raises(InvalidInputError, match="'digit'"):
        read_arrays(path, "digit")


def test_whose_rows_they_are_is_not_to_be_predicted(tmp_path: Path) -> None:
    assert read_arrays(npz(tmp_path, x=WIDE, labels=LINE, targets=LINE), None, unit="labels").target == "targets"


def test_images_last_channel_first(tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    images, _ = read_arrays(npz(tmp_path, x=pixels, y=np.array([0, 1])), None).parts["train"]
    assert images.shape == (2, 3, 4, 5)
    assert images[0, :, 0, 0].tolist() == [0, 1, 2]


X, Y = np.ones((3, 2)), np.array([0, 1, 1])
BAD: dict[str, dict[str, Any]] = {
    "has no array of labels 'y'; it has a, b": {"a": X, "b": Y},
    "'x'; other than 'y' it has a, b": {"a": X, "b": X, "y": Y},
    r"needs features \(n, …\) and labels \(n,\); it has \(3, 2\) and \(2,\)": {"x": X, "y": Y[:2]},
    "needs numbers and whole labels; it has float64 and float64": {"x": X, "y": Y + 0.5},
    "holds a label below zero: labels count from 0": {"x": X, "y": Y - 1},
    "hold values that are not finite": {"x": np.array([[1.0], [np.nan], [2.0]]), "y": Y},
    "is not a whole .npz of plain arrays": {"x": np.array([{}, {}, {}]), "y": Y},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arrays_are_one_sentence(tmp_path: Path, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_arrays(npz(tmp_path, **BAD[message]), None)
    assert "\n" not in str(caught.value)


def test_a_truncated_npz(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InvalidInputError, match=".npz"):
        read_arrays(path, None)


# Augmented views: each computed from its own image only, within its pixels.


def test_every_shift_occurs_and_is_a_shift() -> None:
    images = torch.arange(25.0).reshape(1, 1, 5, 5).repeat(400, 1, 1, 1)
    with seeded(0):
        moved = shifted(1)(images)
    corners = {(int(v) // 5, int(v) % 5) for v in moved[:, 0, 2, 2]}  # what came to the centre
    assert corners == {(r, c) for r in (1, 2, 3) for c in (1, 2, 3)}
    first = moved[0, 0]
    down, right = 2 - int(first[2, 2]) // 5, 2 - int(first[2, 2]) % 5
    expected = images[0, 0].roll((down, right), (0, 1))
    assert torch.equal(first[1:4, 1:4], expected[1:4, 1:4])


def test_the_edge_is_reflected() -> None:
    images = torch.arange(4.0).reshape(1, 1, 1, 4).repeat(50, 1, 1, 1)
    with seeded(0):
        rows = {tuple(row) for row in shifted(2)(images)[:, 0, 0].tolist()}
    assert (2, 1, 0, 1) in rows
    assert (2, 3, 2, 1) in rows


def test_half_are_mirrored() -> None:
    images = torch.arange(3.0).reshape(1, 1, 1, 3).repeat(2000, 1, 1, 1)
    with seeded(0):
        flipped = (mirrored(images)[:, 0, 0, 0] == 2).float().mean().item()
    assert abs(flipped - 0.5) < 0.05  # 4.5 standard deviations


def test_a_view_depends_on_its_own_image_alone() -> None:
    images = torch.rand(6, 3, 8, 8)
    changed = images.clone()
    changed[2] = 100.0
    with seeded(1):
        first = mirrored(shifted(2)(images))
    with seeded(1):
        second = mirrored(shifted(2)(changed))
    assert first.shape == images.shape
    others = [0, 1, 3, 4, 5]
    assert torch.equal(first[others], second[others])
    assert (second[2] == 100).all()
