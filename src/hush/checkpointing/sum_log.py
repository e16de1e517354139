"""The sum log: to which sum the noise of every step is added, written before the noise is added.

The same noise on two different sums gives two releases whose difference is free of noise. So before a step's noise is
added, a tag of its sums (all channels, every byte, keyed with the secret of the attempt) is written to a file in the
private directory. A step that is taken again must have the same tag. If the tag differs for any reason (data,
augmentation, model code, loss, threads, a library), the run continues with a fresh secret and both steps are charged.

Durability. A tag is written as soon as a step's sums are known, so it survives a killed process. The file is flushed
to disk before every checkpoint and every release, so nothing durable contains noise whose tag could be lost. A power
failure can lose tags of steps after the last checkpoint. Such steps were visible only to someone who read the weights
in memory, and they are taken again from the checkpoint, on data whose digest is checked.

File format: one line of JSON with digests of the secret and the data, then 24 bytes per step: attempt, step, tag. The
file is named after the first attempt's secret, so a seed used twice in one directory finds its earlier sums.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hush._internal.storage import PRIVATE, sync_file, write_atomic
from hush._internal.tensors import Sums
from hush.errors import InvalidInputError
from hush.guarantees import Replay
from hush.randomness import Secret, streams
from hush.randomness.cipher import Octets, compute_tag

FORMAT = "hush sums 1"
MOST_ATTEMPTS = 10_000
ROW = np.dtype([("attempt", "<u4"), ("step", "<u4"), ("tag", "V16")])


class SumLogMissing(InvalidInputError):
    """The log is missing, damaged or shorter than it was; the message says which."""


@dataclass
class SumLog:
    """The tags of one run in ``path``: their number, and the tags of steps that may be taken again."""

    path: Path
    head: dict[str, Any]
    attempts: list[Replay]
    rows: int = 0
    again: dict[tuple[int, int], bytes] = field(default_factory=dict)
    descriptor: int | None = None

    @staticmethod
    def read(path: Path, step: int = 0) -> SumLog:
        """The log at ``path`` for a run at ``step``; `SumLogMissing` if it is not complete. An incomplete row at its
        end was left by a killed process."""
        try:
            first, _, rest = path.read_bytes().partition(b"\n")
            head = json.loads(first)
            if head["format"] != FORMAT:
                raise ValueError
            rows = np.frombuffer(rest[: len(rest) // ROW.itemsize * ROW.itemsize], ROW)
            earlier = [Replay(int(a), int(b)) for a, b in head["earlier"]]
        except FileNotFoundError as error:
            raise SumLogMissing("is gone") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SumLogMissing("is damaged") from error
        tags = SumLog(path, head, _list_attempts(rows, earlier), len(rows))
        kept = rows[rows["step"] >= step]
        tags.again = {(int(a), int(s)): t for a, s, t in kept.tolist()}
        return tags

    def open(self) -> None:
        """Open the log for appending; an incomplete row at its end is removed."""
        if self.descriptor is not None:
            return
        head = (json.dumps(self.head) + "\n").encode()
        if not self.path.exists() or not self.rows:
            write_atomic(self.path, head, mode=PRIVATE)
        self.descriptor = os.open(self.path, os.O_WRONLY)
        whole = len(head) + ROW.itemsize * self.rows
        os.ftruncate(self.descriptor, whole)
        os.lseek(self.descriptor, whole, os.SEEK_SET)

    def append(self, attempt: int, step: int, content: bytes) -> None:
        """Append a tag; an incomplete one left by a full disk is overwritten by the next."""
        self.open()
        assert self.descriptor is not None
        row = np.array([(attempt, step, np.void(content))], ROW).tobytes()
        written = os.write(self.descriptor, row)
        if written != len(row):
            os.lseek(self.descriptor, -written, os.SEEK_CUR)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.rows += 1
        self.attempts += [Replay(step, step)] * (attempt + 1 - len(self.attempts))
        self.attempts[attempt] = replace(self.attempts[attempt], taken=step + 1)

    def flush(self) -> None:
        """To the disk."""
        if self.descriptor is not None:
            sync_file(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def find_tags(directory: Path, secret: Secret) -> Path:
    """The path of a run's log, named after the run's first secret."""
    return directory / f"sums-{secret.first.name[:16]}"


def remove_empty_tags(directory: Path) -> None:
    """Remove logs of runs that took no step."""
    for path in directory.glob("sums-*"):
        with path.open("rb") as file:
            head, rest = file.readline(), file.read(1)
        if head.endswith(b"\n") and b'"earlier": []' in head and not rest:
            path.unlink()


def start_tags(directory: Path, secret: Secret, data: str, earlier: Sequence[Replay] = ()) -> SumLog:
    """A log without tags; ``earlier`` attempts are known to exist, but their sums are not."""
    before = [[a.start, a.taken] for a in earlier]
    head = {"format": FORMAT, "noise": secret.first.name, "data": data, "earlier": before}
    return SumLog(find_tags(directory, secret), head, list(earlier))


def tag_of(secret: Secret, step: int, sums: Sums) -> bytes:
    """The tag of a step's sums: every byte of every channel, with names, types and shapes, under the secret."""
    key = secret.derive(streams.SUMS, 0, size=32)
    return compute_tag(key, step.to_bytes(12, "big"), _pieces(sums))


def _pieces(sums: Sums) -> Iterator[Octets]:
    kinds = [f"{c}\0{n}\0{v.dtype}\0{tuple(v.shape)}" for c, named in sums.items() for n, v in named.items()]
    yield np.frombuffer(("\0\0".join(kinds) + "\0").encode(), np.uint8)
    for named in sums.values():
        for value in named.values():
            yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _list_attempts(rows: np.ndarray, earlier: list[Replay]) -> list[Replay]:
    """Every attempt in the log; `SumLogMissing` if its steps are not consecutive."""
    found = dict(enumerate(earlier))
    for attempt, step in zip(rows["attempt"].tolist(), rows["step"].tolist(), strict=True):
        before = found.get(attempt)
        if before is None and attempt <= MOST_ATTEMPTS:
            found[attempt] = Replay(step if attempt else 0, step + 1)
        elif before is not None and before.taken == step:
            found[attempt] = replace(before, taken=step + 1)
        else:
            raise SumLogMissing("is damaged")
    return [found.get(number, Replay()) for number in range(max(found, default=-1) + 1)]
