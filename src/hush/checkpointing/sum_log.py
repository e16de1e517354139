"""The record of sums: which sum the noise of every step has met, written down before the noise is added.

The same noise on two different sums gives two releases whose difference is free of noise. So before a step's noise is
added, a tag of its sums (all channels, every byte, keyed with the secret of the attempt) goes to a file in the private
directory. A step that is taken again must have the tag that is there. If it has another one, for whatever reason (data,
augmentation, model code, loss, threads, a library), the run goes on with a fresh secret and both takings are charged.

When a tag is where. A write follows every step's sums at once: it survives a kill at any instant. A flush to the disk
precedes every checkpoint and every release, so nothing that lasts holds noise whose tag could be lost. What a power cut
can take are tags of steps after the last checkpoint; such steps live on only in the eyes of somebody who looked at the
weights while they were in memory, and they are taken again from the checkpoint, on data that is digested whole.

The file: one line of JSON that names the secret and the data by digests, then 24 bytes a step: attempt, step, tag. Its
name is that of the first attempt's secret, so that a seed used twice in one directory finds what it met before.
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
    """The record is gone, damaged or shorter than it was; the text says which."""


@dataclass
class SumLog:
    """The tags of one run in ``path``: how many there are, and those of steps that may be taken again."""

    path: Path
    head: dict[str, Any]
    attempts: list[Replay]
    rows: int = 0
    again: dict[tuple[int, int], bytes] = field(default_factory=dict)
    descriptor: int | None = None

    @staticmethod
    def read(path: Path, step: int = 0) -> SumLog:
        """The record at ``path`` for a run at ``step``; `SumLogMissing` where it is not whole. Half a row at its end
        is what a kill left."""
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
        """Make it ready for more; half a row at its end goes."""
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
        """One more tag; half of one that a full disk left is overwritten by the next."""
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
    """Where the record of a run is: by the name of the secret that it began with."""
    return directory / f"sums-{secret.first.name[:16]}"


def remove_empty_tags(directory: Path) -> None:
    """Remove records of runs that took no step."""
    for path in directory.glob("sums-*"):
        with path.open("rb") as file:
            head, rest = file.readline(), file.read(1)
        if head.endswith(b"\n") and b'"earlier": []' in head and not rest:
            path.unlink()


def start_tags(directory: Path, secret: Secret, data: str, earlier: Sequence[Replay] = ()) -> SumLog:
    """A record without tags; of ``earlier`` attempts it is known that they were, and not what they met."""
    before = [[a.start, a.taken] for a in earlier]
    head = {"format": FORMAT, "noise": secret.first.name, "data": data, "earlier": before}
    return SumLog(find_tags(directory, secret), head, list(earlier))


def tag_of(secret: Secret, step: int, sums: Sums) -> bytes:
    """The tag of a step's sums: every channel's every byte, with names, types and shapes, under the secret."""
    key = secret.derive(streams.SUMS, 0, size=32)
    return compute_tag(key, step.to_bytes(12, "big"), _pieces(sums))


def _pieces(sums: Sums) -> Iterator[Octets]:
    kinds = [f"{c}\0{n}\0{v.dtype}\0{tuple(v.shape)}" for c, named in sums.items() for n, v in named.items()]
    yield np.frombuffer(("\0\0".join(kinds) + "\0").encode(), np.uint8)
    for named in sums.values():
        for value in named.values():
            yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _list_attempts(rows: np.ndarray, earlier: list[Replay]) -> list[Replay]:
    """Every attempt in the record; `SumLogMissing` where the steps of one do not follow one another."""
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
