"""Public datasets: pinned files, verified reading, downloads, and ``hush data list|verify|fetch``."""

from __future__ import annotations

import gzip
import hashlib
import logging
import lzma
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from hush._internal.storage import cache_put, explain, file_lock, find_cache, move_atomic, write_atomic
from hush.errors import HushError, InvalidInputError

# A public dataset: its official files, the SHA-256 of their content, and where to get them.
#
# The pinned hashes are of the unpacked bytes, which do not depend on the mirror, the compression or a system package.
# The datasets are listed in `hush.datasets.sources`.


@dataclass(frozen=True)
class File:
    """One official file: its name, its size and its SHA-256, both unpacked."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Folder:
    """A mirror that holds the files one by one, at ``url`` + name + ``suffix``."""

    url: str
    suffix: str = ""

    def address(self, file: File) -> str:
        """Where the file is."""
        return f"{self.url}{file.name}{self.suffix}"


@dataclass(frozen=True)
class Archive:
    """A mirror that holds them all in one tar or zip archive, each at ``inside`` + name."""

    url: str
    inside: str = ""

    def address(self, file: File) -> str:
        """Where the archive is."""
        return self.url


Mirror = Folder | Archive


@dataclass(frozen=True)
class Dataset:
    """A dataset; one without files comes inside ``package``, which is imported by that name."""

    name: str
    summary: str
    licence: str
    files: tuple[File, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    package: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files, unpacked."""
        return sum(file.size for file in self.files)

    def file(self, name: str) -> File:
        """The file of that name."""
        return next(file for file in self.files if file.name == name)


# Verified reading of a dataset's files.
#
# A file is searched in the given folder, in HUSH_DATA and in the cache, raw or compressed by gzip or xz, which its
# first bytes show. Its content must have the pinned SHA-256 before anything else reads it.

SUFFIXES = ("", ".gz", ".xz")
BROKEN = (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)  # what a packed stream raises


class ChecksumMismatch(InvalidInputError):
    """The bytes of a file are not the official ones."""


def list_folders(data_dir: Path | None) -> list[Path]:
    """The folders to look in, in order: the one given, HUSH_DATA, the cache."""
    named = [("the data folder", data_dir), ("HUSH_DATA", _environment("HUSH_DATA"))]
    found = []
    for what, folder in named:
        if folder is not None:
            if not folder.is_dir():
                raise InvalidInputError(f"{what} '{folder}' is not a folder")
            found.append(folder)
    return [*found, find_cache()]


def find_file(dataset: Dataset, file: File, data_dir: Path | None) -> Path | None:
    """The first place where this file lies, raw or packed; None if nowhere. A raw copy in the cache comes first:
    the pin makes all copies equal, and it needs no unpacking."""
    places = list_folders(data_dir)
    candidates = [places[-1] / dataset.name / file.name]
    candidates += [place / dataset.name / (file.name + suffix) for place in places for suffix in SUFFIXES]
    return next((path for path in candidates if _is_present(path)), None)


def _is_present(path: Path) -> bool:
    """Whether something lies there; a folder that cannot be looked into is an error of one sentence."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InvalidInputError(f"'{path.parent}' cannot be read: {explain(error)}") from error
    return True


def read_verified(path: Path, file: File) -> bytes:
    """The unpacked bytes of a file, after checking them against its pin."""
    try:
        with _open_unpacked(path) as stream:
            content = stream.read(file.size + 1)
    except EOFError as error:
        raise ChecksumMismatch(f"'{path}' is truncated: its packed stream ends early") from error
    except BROKEN as error:
        raise ChecksumMismatch(f"'{path}' is altered: it does not unpack ({error})") from error
    except OSError as error:
        raise InvalidInputError(f"'{path}' cannot be read: {explain(error)}") from error
    if len(content) < file.size:
        raise ChecksumMismatch(f"'{path}' is truncated: {len(content)} of {file.size} bytes (unpacked)")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise ChecksumMismatch(
            f"'{path}' is altered: SHA-256 {digest[:12]}… where {file.sha256[:12]}… was expected (unpacked)"
        )
    return content


@contextmanager
def _open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked stream of a file that is raw, gzip or xz, recognised by its first bytes."""
    with path.open("rb") as head:
        start = head.read(6)
    if start.startswith(b"\x1f\x8b"):
        with gzip.open(path, "rb") as unzipped:
            yield cast(IO[bytes], unzipped)
    elif start == b"\xfd7zXZ\x00":
        with lzma.open(path, "rb") as unpacked:
            yield cast(IO[bytes], unpacked)
    else:
        with path.open("rb") as raw:
            yield raw


def _environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value) if value else None


# Downloads that may be interrupted: each mirror in turn, kept only if the bytes are right.
#
# The registry of pooch holds the pins: it checks what is in the cache, has `Unpacked` write what is missing to a
# temporary file, and moves that into place only if its SHA-256 agrees. pooch's own processors unpack before anything is
# checked and to paths that an archive names, so the members are read here. An interrupted download is continued: what
# has arrived stays in a partial file, and the rest is asked for by an HTTP range request (RFC 9110, section 14), tied
# to the server's version of the file by If-Range where the server names one.

Progress = Callable[[str, int, int | None], None]
"""Called with (file, bytes so far, total bytes or None) during a download."""

ATTEMPTS = 3
"""How often in a row an address may break off without delivering anything new."""

_CHUNK = 1 << 16
_TIMEOUT = 30.0


class DownloadError(HushError):
    """No mirror delivered the right bytes; the text says why, in one sentence."""


def fetch_missing(dataset: Dataset, missing: Sequence[File], cache: Path, progress: Progress) -> None:
    """Download these files of a dataset into ``cache``/name, unless another process has done so meanwhile."""
    target, wanted, complaints = cache / dataset.name, list(missing), Counter[str]()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with file_lock(target, prove=False):  # two downloads at once spoil nothing that the checksum lets through
            for mirror in dataset.mirrors:
                wanted = _fetch_from(mirror, wanted, target, progress, complaints)
    except OSError as error:
        raise InvalidInputError(f"the cache '{cache}' cannot be used: {explain(error)}") from error
    if wanted:
        why = ", ".join(complaint for complaint, _ in complaints.most_common())
        raise DownloadError(
            f"no mirror of {dataset.name} delivered {', '.join(file.name for file in wanted)} ({why}): try again later,"
            " or put the files into a folder and name it by HUSH_DATA"
        )


def _fetch_from(
    mirror: Mirror, wanted: Sequence[File], target: Path, progress: Progress, complaints: Counter[str]
) -> list[File]:
    """Those of the files that this mirror does not deliver."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    pins = pooch.Pooch(
        path=target,
        base_url="",
        registry={file.name: file.sha256 for file in wanted},
        urls={file.name: mirror.address(file) for file in wanted},
    )
    missing = []
    try:
        for file in wanted:
            try:
                pins.fetch(file.name, downloader=Unpacked(mirror, file, target, progress))
            except (ValueError, InvalidInputError, requests.exceptions.RequestException) as error:
                complaints[_complaint(error)] += 1
                missing.append(file)
    finally:
        for packed in target.glob(".*.packed"):
            packed.unlink(missing_ok=True)
    return missing


def _complaint(error: Exception) -> str:
    """What went wrong in a few words, without the address."""
    import requests

    if not isinstance(error, requests.exceptions.RequestException):
        return "the bytes are not the official ones"
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.exceptions.Timeout):
        return "the server does not answer in time"
    return str(error) if "broke off" in str(error) else "the server cannot be reached"


@dataclass(frozen=True)
class Unpacked:
    """A downloader of pooch: writes a file of a mirror, unpacked. A packed file serves all its files."""

    mirror: Mirror
    file: File
    folder: Path
    progress: Progress

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Write the content of the file to ``output_file``."""
        packed = self.folder / f".{short_name(url)}.packed"
        if not packed.exists():
            _download(url, packed, self.progress)
        inside = None if isinstance(self.mirror, Folder) else self.mirror.inside + self.file.name
        try:
            with _open_unpacked(packed) if inside is None else _open_member(packed, inside) as stream:
                write_atomic(Path(output_file), stream.read(self.file.size + 1))
        except (tarfile.TarError, zipfile.BadZipFile, KeyError, *BROKEN) as error:
            raise ChecksumMismatch(f"'{url}' does not unpack ({error})") from error


@contextmanager
def _open_member(packed: Path, name: str) -> Iterator[IO[bytes]]:
    """A member of a tar or zip archive; nothing is extracted to a path of its choosing."""
    if zipfile.is_zipfile(packed):
        with zipfile.ZipFile(packed) as zipped, zipped.open(name) as member:
            yield member
        return
    with tarfile.open(packed) as archive:
        stream = archive.extractfile(name)
        if stream is None:
            raise KeyError(name)
        yield stream


def short_name(url: str) -> str:
    """A short file name for an address."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _download(url: str, packed: Path, progress: Progress) -> None:
    """Download into a partial file, which outlives an interruption, and then move it into place."""
    import requests

    part, best, left = packed.with_suffix(".part"), 0, ATTEMPTS
    while not _continue(url, part, progress):
        left = ATTEMPTS if _size(part) > best else left - 1
        best = max(best, _size(part))
        if not left:
            raise requests.exceptions.ConnectionError(f"the connection broke off {ATTEMPTS} times in a row")
    move_atomic(part, packed)
    part.with_suffix(".version").unlink(missing_ok=True)


def _continue(url: str, part: Path, progress: Progress) -> bool:
    """Whether the file is whole now; False if the connection broke off."""
    import requests
    import urllib3

    version, name, have = part.with_suffix(".version"), url.rsplit("/", 1)[-1], _size(part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        tag = version.read_text() if version.exists() else ""
        if tag and not tag.startswith("W/"):
            headers["If-Range"] = tag
    try:
        with requests.get(url, stream=True, timeout=_TIMEOUT, headers=headers) as response:
            if response.status_code == 416:  # there is nothing after the partial file: begin again
                part.unlink(missing_ok=True)
                return False
            response.raise_for_status()
            have = have if response.status_code == 206 else 0
            version.write_text(response.headers.get("ETag", ""))
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if have else "wb") as out:
                progress(name, have, total)
                for block in response.raw.stream(_CHUNK, decode_content=False):
                    out.write(block)
                    have += len(block)
                    progress(name, have, total)
            return total is None or have >= total
    except urllib3.exceptions.HTTPError:
        return False
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
        if _size(part) == 0:
            raise  # unreachable: try the next mirror
        return False


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


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
    places = list_folders(None if data_dir is None else Path(data_dir))
    places = places[:1] if data_dir is not None else places
    return [row for each in datasets for file in each.files for row in _copies(each, file, places)]


def fetch(
    each: Dataset, *, data_dir: str | Path | None = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Download the missing or altered files of a dataset into the cache.

    Returns one row per file, as ``verify`` does. ``progress`` is called with (file, bytes so far, total bytes or None);
    ``progress_on_stderr()`` draws a bar."""
    places = list_folders(None if data_dir is None else Path(data_dir))
    wanted = [file for file in each.files if not any(row["status"] == "ok" for row in _copies(each, file, places))]
    if wanted:
        fetch_missing(each, wanted, places[-1], progress or silent)
    rows = [row for file in each.files for row in _copies(each, file, places) if row["status"] == "ok"]
    return list({row["file"]: row for row in reversed(rows)}.values())[::-1]


def read_files(each: Dataset, file_names: list[str], data_dir: Path | None) -> list[bytes]:
    """The verified bytes of some files of a dataset; what is not here is downloaded first."""
    wanted = [each.file(file_name) for file_name in file_names]
    missing = [file for file in wanted if find_file(each, file, data_dir) is None]
    if missing and _stay_offline.get():
        raise InvalidInputError(f"the data of '{each.name}' is not here yet: hush data fetch {each.name}")
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
    path = find_file(each, file, data_dir)
    if path is None:
        raise InvalidInputError(f"'{file.name}' of {each.name} is gone from the cache")
    content = read_verified(path, file)
    if path.suffix == ".xz":  # seconds to unpack: keep a raw copy, if the cache lets us
        cache_put(find_cache() / each.name / file.name, content)
    return content


def _copies(each: Dataset, file: File, places: list[Path]) -> list[dict[str, Any]]:
    rows = []
    for place in places:
        for suffix in SUFFIXES:
            path = place / each.name / (file.name + suffix)
            if _is_present(path):
                status, problem = _state(path, file, place)
                rows.append(_row(each, file, path, status, problem))
    looked = " or ".join(f"'{place}'" for place in places)
    return rows or [_row(each, file, None, "missing", f"'{each.name}/{file.name}' is not in {looked}")]


def _state(path: Path, file: File, place: Path) -> tuple[str, str | None]:
    try:
        read_verified(path, file)
        _as_listed(path, place)
    except ChecksumMismatch as error:
        return "altered", str(error)
    except InvalidInputError as error:
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
        raise ChecksumMismatch(f"'{path}' is altered: its SHA-256 is not the one in '{listed}'")


def _row(each: Dataset, file: File, path: Path | None, status: str, problem: str | None) -> dict[str, Any]:
    shown = None if path is None else str(path)
    return {"dataset": each.name, "file": file.name, "path": shown, "status": status, "problem": problem}


def _where(each: Dataset, place: Path | None) -> str | None:
    if not each.files:
        return f"inside {each.package}" if find_spec(each.package) else None
    found = [find_file(each, file, place) for file in each.files]
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

        def show(name: str, have: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=have, total=total)

        yield show
