"""The log of sums that noise was added to: its tags, and the total after damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hush.checkpointing import Checkpoints
from hush.checkpointing.sum_log import ROW, SumLog, tag_of
from hush.guarantees import Replay
from hush.randomness import Secret
from hush.randomness.cipher import compute_tag, encrypt_counters
from restored_runs import STEPS, begun, plan, resumed, start, taken_back


class TestTag:
    def test_it_is_gmac(self) -> None:
        """Against SP 800-38D written out: GHASH over the polynomial x¹²⁸ + x⁷ + x² + x + 1, then one block of AES."""
        key, step = bytes(range(32)), 77
        content = torch.arange(25, dtype=torch.float64).view(torch.uint8).numpy()
        blocks = [content[i : i + 16].tobytes().ljust(16, b"\0") for i in range(0, len(content), 16)]
        total, hashed = 0, encrypted(key, 0)
        for block in [*blocks, (8 * len(content)).to_bytes(8, "big") + bytes(8)]:
            total = times(total ^ int.from_bytes(block, "big"), hashed)
        expected = (total ^ encrypted(key, (step << 32) + 1)).to_bytes(16, "big")
        nonce, half = step.to_bytes(12, "big"), content[24:]
        for _ in range(2):
            assert compute_tag(key, nonce, [content]) == expected
            assert compute_tag(key, nonce, [content[:24], half]) == expected
            assert compute_tag(key, bytes(12), [half]) != compute_tag(key, bytes(12), [content])

    def test_every_bit_of_every_channel_counts(self) -> None:
        secret = Secret.fresh()
        base = {"gradient": {"w": torch.randn(3, 4), "b": torch.zeros(2)}, "unclipped": {"count": torch.tensor(2.5)}}
        tags = {tag_of(secret, 0, base), tag_of(secret, 1, base), tag_of(Secret.fresh(), 0, base)}
        for channel, name, twin in [
            ("gradient", "w", torch.nextafter(base["gradient"]["w"], torch.tensor(9.0))),
            ("gradient", "w", base["gradient"]["w"].reshape(4, 3)),
            ("gradient", "b", torch.tensor([0.0, -0.0])),
            ("gradient", "b", torch.zeros(1, dtype=torch.float64)),
            ("unclipped", "count", torch.tensor(3.5)),
        ]:
            tags.add(tag_of(secret, 0, {**base, channel: {**base[channel], name: twin}}))
        assert len(tags) == 8
        turned = {"gradient": {"w": base["gradient"]["w"].t().contiguous().t(), "b": torch.zeros(2)}}
        assert tag_of(secret, 0, {**base, **turned}) == tag_of(secret, 0, base)


def encrypted(key: bytes, number: int) -> int:
    return int.from_bytes(encrypt_counters(key, np.array([number], np.uint64), 1).tobytes(), "big")


def times(a: int, b: int) -> int:
    """The product of two elements of GF(2¹²⁸), the first bit being the constant term."""
    product = 0
    for bit in range(127, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (0xE1 << 120 if b & 1 else 0)
    return product


class TestRecord:
    def damaged(self, directory: Path, how: str) -> Path:
        (path,) = directory.glob("sums-*")
        content = path.read_bytes()
        start = content.index(b"\n") + 1
        changed = {
            "gone": None,
            "empty": b"",
            "cut": content[: start + 2 * ROW.itemsize],
            "a number": content[: start + 4] + b"\x07" + content[start + 5 :],
            "its head": b"{" + content,
        }[how]
        path.unlink() if changed is None else path.write_bytes(changed)
        return path

    @pytest.mark.parametrize("how", ["gone", "empty", "cut", "a number", "its head"])
    def test_without_it_all_that_was_planned_counts(self, how, tmp_path, capsys) -> None:
        p = plan()
        first = begun(p, tmp_path, 5)
        self.damaged(tmp_path, how)
        run = resumed(p, tmp_path)
        assert run.history.attempts == (Replay(0, STEPS), Replay(5, STEPS))
        assert run.secret.key != first.secret.key
        both = plan(steps=STEPS + STEPS - 5)
        assert run.guarantee.epsilon == pytest.approx(both.guarantee().epsilon, rel=1e-4)
        assert "sums-" in capsys.readouterr().err
        kept = Checkpoints(tmp_path)
        again = start(p)
        kept.restore(again, kept.newest().saved)
        kept.close()
        assert again.guarantee == run.guarantee

    def test_one_changed_tag_counts_from_its_step_on(self, tmp_path) -> None:
        p = plan()
        taken_back(p, tmp_path, 3)
        (path,) = tmp_path.glob("sums-*")
        content = bytearray(path.read_bytes())
        content[content.index(b"\n") + 1 + 5 * ROW.itemsize + 12] ^= 1
        path.write_bytes(bytes(content))
        assert resumed(p, tmp_path).history.attempts == (Replay(0, STEPS), Replay(5, STEPS))

    def test_half_a_tag_is_what_a_kill_left(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path, 5)
        (path,) = tmp_path.glob("sums-*")
        with path.open("ab") as file:
            file.write(b"\x00\x00\x00\x00\x05")
        run = resumed(p, tmp_path)
        assert not run.history.again
        assert SumLog.read(path).attempts == [Replay(0, STEPS)]

    def test_it_says_nothing_without_the_secret_and_is_its_owners(self, tmp_path) -> None:
        for name in ("a", "b"):
            begun(plan(), tmp_path / name, 2)
        paths = [next((tmp_path / name).glob("sums-*")) for name in ("a", "b")]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
        tags = [set(SumLog.read(path).again.values()) for path in paths]
        assert len(tags[0] | tags[1]) == 4

    def test_a_finished_run_may_be_looked_at_without_it(self, tmp_path) -> None:
        p = plan()
        begun(p, tmp_path)
        self.damaged(tmp_path, "gone")
        run = resumed(p, tmp_path)
        assert run.guarantee.epsilon == pytest.approx(p.guarantee().epsilon, rel=1e-4)
