"""Files that commands write to paths of the user's: nothing of the user's is replaced, and nothing partial is left."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from hush._internal import storage
from hush._internal.storage import MARK, check_page, lock_file, write_page
from hush.cli import main
from hush.errors import InvalidInputError
from synthetic import make_many, write_plainly

NOISE = ("noise", "show", "--method", "dp-blt", "--examples", "200", "--batch-size", "10", "--epochs", "2", "--out")
AUDIT = ("audit", "--method", "dp-sgd", "--runs", "20", "--seed", "1", "--page")
PLAN = ("plan", "--examples", "2000", "--batch-size", "64", "--epochs", "1", "--epsilon", "3", "--out")
REPORT = ("report", "store", "--out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    write_plainly(root / "store", make_many(4))
    lines = ["age,town,sick", *(f"{20 + i % 50},{'ab'[i % 2]},{'yn'[i % 3 == 0]}" for i in range(80))]
    (root / "rows.csv").write_text("\n".join(lines) + "\n")
    flags = ("--batch-size", "20", "--steps", "2", "--noise-multiplier", "2", "--public", "classes")
    assert main(["train", "--data", str(root / "rows.csv"), "--target", "sick", *flags, "--out", str(root / "r")]) == 0
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (PLAN, "x.html"),
        (NOISE, "x.html"),
        (AUDIT, "x.html"),
        (REPORT, "x.html"),
        (("report", "r", "--out"), "x.html"),
        (("report", "store", "--format", "markdown", "--out"), "x.md"),
        (("report", "store", "--format", "latex", "--out"), "x.tex"),
    ],
    ids=["plan", "noise", "audit", "report", "run", "markdown", "latex"],
)
def test_a_page_replaces_its_own_kind_and_no_file_of_the_user(call, name, here, capsys) -> None:
    own = here / name
    own.write_text("two years of notes")
    assert main([*call, name]) == 2
    assert own.read_text() == "two years of notes"
    assert f"'{name}'" in capsys.readouterr().err
    own.unlink()
    assert main([*call, name]) == 0
    assert MARK in own.read_text()
    assert main([*call, name]) == 0


@pytest.mark.parametrize(
    "call", [PLAN, NOISE, AUDIT, REPORT, ("export", "r", "--out"), ("predict", "r", "rows.csv", "--out")]
)
@pytest.mark.parametrize("out", [".", "store", "/"])
def test_a_folder_is_no_file_to_write(call, out, here, capsys) -> None:
    before = list_files(here)
    assert main([*call, out]) == 2
    assert f"'{out}'" in capsys.readouterr().err
    assert list_files(here) == before


def test_a_picture_of_the_user_is_not_replaced(here, capsys) -> None:
    call = ["report", "store", "--format", "markdown", "--out", "x.md"]
    assert main(call) == 0
    picture = min((here / "x_figures").iterdir())
    picture.write_text("mine")
    (here / "x.md").unlink()
    assert main(call) == 2
    assert picture.read_text() == "mine"
    assert not (here / "x.md").exists()


def test_what_is_not_a_regular_file_is_no_page(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(InvalidInputError, match=str(path)):
            check_page(path)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (REPORT, "x.html"),
        (("predict", "r", "rows.csv", "--out"), "x.csv"),
        (("export", "r", "--out"), "x.pt2"),
        (("export", "r", "--out"), "x.pt2.json"),
    ],
)
def test_what_a_killed_command_left_is_removed_by_the_next(call, name, here) -> None:
    left, other = (here / f".{n}.{'ab' * 6}.part" for n in (name, "y.csv"))
    for path in (left, other):
        path.write_text("half")
    written = here / f".{name}.{'cd' * 6}.part"
    with written.open("w") as file:
        lock_file(file.fileno())
        assert main([*call, name.removesuffix(".json")]) == 0
        assert not left.exists()
        assert written.exists()
    assert other.exists()


@pytest.mark.parametrize("after", range(2))
def test_an_export_to_a_full_disk_leaves_nothing(after, here, monkeypatch) -> None:
    before, synced, real = list_files(here), 0, os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal synced
        synced += 1
        if synced > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(storage.os, "fsync", fsync)
    assert main(["export", "r", "--out", "m.pt2"]) == 1
    assert list_files(here) == before


def test_write_page_checks_again(tmp_path) -> None:
    path = tmp_path / "page.html"
    check_page(path)
    path.write_text("appeared in between")
    with pytest.raises(InvalidInputError):
        write_page(path, f"<!-- {MARK} -->")
    assert path.read_text() == "appeared in between"
