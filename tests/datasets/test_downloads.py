"""Downloads from a server on this machine: interrupted and continued, refused when the bytes are wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hush.datasets import registry
from hush.datasets import registry as shelf_registry
from hush.datasets.registry import Archive, Dataset, File, Folder, Mirror
from hush.errors import InvalidInputError

ROWS = bytes(i * i % 251 for i in range(300_000))
MARKS = bytes(i % 10 for i in range(3_000))
FILES = tuple(File(name, len(c), hashlib.sha256(c).hexdigest()) for name, c in (("rows", ROWS), ("marks", MARKS)))


@dataclass
class Server:
    """What lies at which path, after how many bytes a path breaks off (once each), and what was asked for."""

    url: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str | None, int]] = field(default_factory=list)  # path, Range, bytes sent


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, asked = self.path.lstrip("/"), self.headers.get("Range")
            if path not in server.content:
                server.asked.append((path, asked, 0))
                self.send_error(404)
                return
            content = server.content[path]
            tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
            start = int(asked[6:-1]) if asked and server.ranges and self.headers.get("If-Range", tag) == tag else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            body = content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", tag)
            self.end_headers()
            stops = server.breaks.get(path)
            sent = body[: stops.pop(0)] if stops else body
            server.asked.append((path, asked, len(sent)))
            self.wfile.write(sent)
            self.close_connection = True

        def log_message(self, *args: object) -> None: ...

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(state)) as http:
        state.url = f"http://127.0.0.1:{http.server_port}/"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def dataset(*mirrors: Mirror, files: tuple[File, ...] = FILES) -> Dataset:
    return Dataset("toy", "a toy", "none", files, mirrors)


def get(each: Dataset, cache: Path) -> None:
    registry.fetch_missing(each, each.files, cache, shelf_registry.silent)


def left(cache: Path) -> list[str]:
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file())


def test_packed_files_are_stored_unpacked(server: Server, tmp_path: Path) -> None:
    server.content = {"rows.gz": gzip.compress(ROWS), "marks.gz": gzip.compress(MARKS)}
    get(dataset(Folder(server.url, ".gz")), tmp_path)
    assert left(tmp_path) == ["toy/marks", "toy/rows"]
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_broken_connection_is_continued_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}
    server.breaks = {"rows": [100_000, 50_000]}
    get(dataset(Folder(server.url)), tmp_path)
    rows = [entry for entry in server.asked if entry[0] == "rows"]
    assert rows == [("rows", None, 100_000), ("rows", "bytes=100000-", 50_000), ("rows", "bytes=150000-", 150_000)]
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_connection_that_breaks_off_at_once_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.content, server.breaks = {"rows": ROWS, "marks": MARKS}, {"rows": [0, 0], "marks": [0, 0, 0]}
    with pytest.raises(registry.DownloadError, match="delivered marks .the connection broke off 3 times in a row"):
        get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_an_interrupted_program_continues_at_its_next_start(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}

    def interrupt(name: str, have: int, total: int | None) -> None:
        if have > 90_000:
            raise KeyboardInterrupt

    each = dataset(Folder(server.url))
    with pytest.raises(KeyboardInterrupt):
        registry.fetch_missing(each, each.files, tmp_path, interrupt)
    part = next(p for p in (tmp_path / "toy").iterdir() if p.suffix == ".part")
    have = part.stat().st_size
    assert 90_000 < have < len(ROWS)
    get(each, tmp_path)
    assert ("rows", f"bytes={have}-", len(ROWS) - have) in server.asked
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS
    assert left(tmp_path) == ["toy/marks", "toy/rows"]


def test_storing_is_all_or_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            get(dataset(Folder(server.url)), tmp_path)
    assert left(tmp_path) == []
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").stat().st_mode & 0o777 == 0o644  # others may read the cache


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.content, server.ranges = {"rows": ROWS, "marks": MARKS}, False
    server.breaks = {"rows": [100_000]}
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_file_that_changed_meanwhile_is_not_glued_together(server: Server, tmp_path: Path) -> None:
    old = bytes(len(ROWS))
    server.content, server.breaks = {"rows": old, "marks": MARKS}, {"rows": [100_000, 0, 0, 0]}
    with pytest.raises(registry.DownloadError, match="3"):
        get(dataset(Folder(server.url)), tmp_path)
    server.content, server.breaks = {"rows": ROWS, "marks": MARKS}, {}
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_partial_file_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / f".{registry.short_name(server.url + 'rows')}.part").write_bytes(ROWS + b"more")
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_bad_checksum_is_refused_and_leaves_no_file(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS[:-1] + b"?", "marks": MARKS[:-1] + b"?"}
    with pytest.raises(registry.DownloadError, match=".the"):
        get(dataset(Folder(server.url)), tmp_path)
    assert left(tmp_path) == []


def test_the_next_mirror_is_tried_for_what_the_first_lacks(server: Server, tmp_path: Path) -> None:
    server.content = {"a/marks": MARKS, "b/rows": ROWS, "a/rows": b"an error page"}
    get(dataset(Folder(server.url + "nothing/"), Folder(server.url + "a/"), Folder(server.url + "b/")), tmp_path)
    assert left(tmp_path) == ["toy/marks", "toy/rows"]
    assert [path for path, _, _ in server.asked] == ["nothing/rows", "nothing/marks", "a/rows", "a/marks", "b/rows"]


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in (("deep/readme", b"hello"), ("deep/rows", ROWS), ("deep/marks", MARKS)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("deep/rows", ROWS), ("deep/marks", MARKS)):
            archive.writestr(name, content)
    return out.getvalue()


@pytest.mark.parametrize("packed", [_tar(), _zip()], ids=["tar", "zip"])
def test_archives_are_read_member_by_member(server: Server, tmp_path: Path, packed: bytes) -> None:
    server.content = {"all": packed}
    get(dataset(Archive(server.url + "all", "deep/")), tmp_path)
    assert left(tmp_path) == ["toy/marks", "toy/rows"]
    assert (tmp_path / "toy" / "marks").read_bytes() == MARKS


@pytest.mark.parametrize("packed", [_tar()[:-400], _zip()[:-400], b"no archive"], ids=["tar", "zip", "text"])
def test_a_damaged_archive_leaves_nothing(server: Server, tmp_path: Path, packed: bytes) -> None:
    server.content = {"all": packed}
    with pytest.raises(registry.DownloadError, match="mirror"):
        get(dataset(Archive(server.url + "all", "deep/"), files=FILES[1:]), tmp_path)
    assert left(tmp_path) == []


def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(registry.DownloadError, match="rows"):
        get(dataset(Folder("http://127.0.0.1:9/")), tmp_path)


def test_a_cache_that_cannot_be_written_is_one_sentence(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(InvalidInputError, match="'.*'"):
        get(dataset(Folder(server.url)), tmp_path / "cache")


def test_fetch_repairs_what_is_altered(server: Server, own_cache: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}
    (own_cache / "toy").mkdir()
    (own_cache / "toy" / "rows").write_bytes(ROWS[:-5])
    (own_cache / "toy" / "marks").write_bytes(MARKS)
    seen: list[tuple[int, int | None]] = []
    rows = shelf_registry.fetch(
        dataset(Folder(server.url)), progress=lambda name, have, total: seen.append((have, total))
    )
    assert [(row["file"], row["status"]) for row in rows] == [("rows", "ok"), ("marks", "ok")]
    assert [path for path, _, _ in server.asked] == ["rows"]
    assert seen[-1] == (len(ROWS), len(ROWS))
