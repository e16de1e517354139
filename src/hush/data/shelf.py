"""What ``hush data list|verify|fetch`` shows and does, as functions that return plain data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hush.data import pinned
from hush.data.dataset import Dataset, File
from hush.data.downloads import Progress, fetch_missing
from hush.errors import BadInput
from hush.files import find_cache, keep

_stay_offline: ContextVar[bool] = ContextVar("_stay_offline", default=False)


def list_datasets(datasets: Iterable[Dataset], data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Of each dataset: name, summary, licence, bytes (unpacked), files, mirrors, and where it lies (None: nowhere yet).

    Presence only; ``verify`` reads the bytes."""
    place = None if data_dir is None else Path(data_dir)
    return [
        {
            "name": each.name,
            "summary": each.summary,
            "licence": each.licence,
            "bytes": each.size,
            "files": [file.name for file in each.files],
            "mirrors": [mirror.url for mirror in each.mirrors],
            "where": _where(each, place),
        }
        for each in datasets
    ]


def verify(datasets: Iterable[Dataset], data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Read and check every copy of every file of the datasets: dataset, file, path, status, problem.

    status is "ok", "missing", "altered" (or truncated) or "unreadable"; problem is one sentence, None if all is well.
    A given folder is looked at alone. Where a folder has a SHA256SUMS of the files as they lie, that is checked too."""
    places = pinned.list_folders(None if data_dir is None else Path(data_dir))
    places = places[:1] if data_dir is not None else places
    return [row for each in datasets for file in each.files for row in _copies(each, file, places)]


def fetch(
    each: Dataset, *, data_dir: str | Path | None = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Make sure that a dataset is here and whole; what is missing or altered is downloaded into the cache.

    Returns one row a file, as ``verify`` does. ``progress`` is told (file, bytes so far, bytes in all or None);
    ``progress_on_stderr()`` gives one that draws a bar."""
    places = pinned.list_folders(None if data_dir is None else Path(data_dir))
    wanted = [file for file in each.files if not any(row["status"] == "ok" for row in _copies(each, file, places))]
    if wanted:
        for file in wanted:
            (places[-1] / each.name / file.name).unlink(missing_ok=True)
        fetch_missing(each, wanted, places[-1], progress or silent)
    rows = [row for file in each.files for row in _copies(each, file, places) if row["status"] == "ok"]
    return list({row["file"]: row for row in reversed(rows)}.values())[::-1]


def read_files(each: Dataset, file_names: list[str], data_dir: Path | None) -> list[bytes]:
    """The verified bytes of some files of a dataset; what is not here is downloaded first."""
    wanted = [each.file(file_name) for file_name in file_names]
    missing = [file for file in wanted if pinned.find_file(each, file, data_dir) is None]
    if missing and _stay_offline.get():
        raise BadInput(f"the data of '{each.name}' is not here yet: hush data fetch {each.name}")
    if missing:
        with progress_on_stderr() as progress:
            fetch_missing(each, missing, find_cache(), progress)
    return [_content(each, file, data_dir) for file in wanted]


@contextmanager
def without_downloads() -> Iterator[None]:
    """Within it, data that is not here is an error of one sentence and not a download."""
    token = _stay_offline.set(True)
    try:
        yield
    finally:
        _stay_offline.reset(token)


def _content(each: Dataset, file: File, data_dir: Path | None) -> bytes:
    path = pinned.find_file(each, file, data_dir)
    if path is None:
        raise BadInput(f"'{file.name}' of {each.name} is gone from the cache")
    content = pinned.read_verified(path, file)
    if path.suffix == ".xz":  # seconds to unpack: keep a raw copy, if the cache lets us
        keep(find_cache() / each.name / file.name, content)
    return content


def _copies(each: Dataset, file: File, places: list[Path]) -> list[dict[str, Any]]:
    rows = []
    for place in places:
        for suffix in pinned.SUFFIXES:
            path = place / each.name / (file.name + suffix)
            if pinned.is_present(path):
                status, problem = _state(path, file, place)
                rows.append(_row(each, file, path, status, problem))
    looked = " or ".join(f"'{place}'" for place in places)
    return rows or [_row(each, file, None, "missing", f"'{each.name}/{file.name}' is not in {looked}")]


def _state(path: Path, file: File, place: Path) -> tuple[str, str | None]:
    try:
        pinned.read_verified(path, file)
        _as_listed(path, place)
    except pinned.Altered as error:
        return "altered", str(error)
    except BadInput as error:
        return "unreadable", str(error)
    return "ok", None


def _as_listed(path: Path, place: Path) -> None:
    """Check a file as it lies against the folder's own list, if it has one."""
    listed = place / "SHA256SUMS"
    if not listed.is_file():
        return
    lines = [line.split() for line in listed.read_text().splitlines()]
    pins = {words[1]: words[0] for words in lines if len(words) == 2}
    pin = pins.get(path.relative_to(place).as_posix())
    if pin is not None and hashlib.sha256(path.read_bytes()).hexdigest() != pin:
        raise pinned.Altered(f"'{path}' is altered: its SHA-256 is not the one in '{listed}'")


def _row(each: Dataset, file: File, path: Path | None, status: str, problem: str | None) -> dict[str, Any]:
    shown = None if path is None else str(path)
    return {"dataset": each.name, "file": file.name, "path": shown, "status": status, "problem": problem}


def _where(each: Dataset, place: Path | None) -> str | None:
    if not each.files:
        return f"inside {each.package}" if find_spec(each.package) else None
    found = [pinned.find_file(each, file, place) for file in each.files]
    return None if None in found else str(found[0].parent) if found[0] else None


def silent(name: str, have: int, total: int | None) -> None:
    """A progress that shows nothing."""


@contextmanager
def progress_on_stderr() -> Iterator[Progress]:
    """A progress bar on stderr; nothing is drawn before the first byte, nor where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def tell(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=have, total=total)

        yield tell
