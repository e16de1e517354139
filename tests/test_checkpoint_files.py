"""A checkpoint holds everything for its owner alone, its damage is seen, and no line of the log is lost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hush.checkpointing import Checkpoints, Unreadable
from hush.checkpointing.checkpoint import read_checkpoint, to_bytes
from hush.errors import ResumeError
from hush.training import take_steps
from stopping import STEPS, plan, resumed, same, start, stopped, straight


class TestFile:
    def test_holds_everything_for_its_owner_alone(self, tmp_path):
        directory = tmp_path / "out" / "private"
        stopped(plan("dp-adam"), directory, 4)
        assert directory.stat().st_mode & 0o777 == 0o700
        for path in directory.iterdir():
            assert path.stat().st_mode & 0o777 == 0o600, path
        kept = Checkpoints(directory)
        assert [p.name for p in kept.files()] == [f"checkpoint-000000000{n}.safetensors" for n in (4, 3)]
        state = read_checkpoint(kept.files()[0]).state
        kept.close()
        assert set(state) >= {"step", "params", "rule", "public", "private", "noise"}
        assert state["step"] == 4

    def test_any_safetensors_reader_opens_it(self, tmp_path):
        stopped(plan(), tmp_path, 1)
        with safe_open(tmp_path / "checkpoint-0000000001.safetensors", "pt") as file:
            assert file.get_tensor("state.params.0.weight").shape == (5, 6)
            assert json.loads(file.metadata()["hush"])["step"] == 1

    def test_scratch_is_left_out_and_odd_values_come_back(self, tmp_path):
        state = {
            "step": 1,
            "_scratch": object(),
            "a": {"b": torch.ones(2), "_c": torch.ones(3)},
            "a.b": torch.zeros(1),
            "n": [1, 2.5, math.inf, None, True, (1, "x")],
            "i": {3: torch.tensor(1.0, dtype=torch.bfloat16)},
            "e": torch.empty(0, 2),
            "t": torch.arange(6).reshape(2, 3).t(),
        }
        path = tmp_path / "x"
        path.write_bytes(to_bytes({}, state))
        back = read_checkpoint(path).state
        assert set(back) == {"step", "a", "a.b", "n", "i", "e", "t"}
        assert set(back["a"]) == {"b"}
        assert torch.equal(back["a"]["b"], torch.ones(2))
        assert torch.equal(back["a.b"], torch.zeros(1))
        assert back["n"] == state["n"]
        assert back["i"][3].dtype == torch.bfloat16
        assert torch.equal(back["t"], state["t"])

    def test_what_would_need_code_to_load_is_refused(self):
        with pytest.raises(ResumeError, match=r"'state\.rule\.f'"):
            to_bytes({}, {"step": 0, "rule": {"f": lambda: 0}})

    @pytest.mark.parametrize("how", ["cut", "empty", "flipped", "head", "text"])
    def test_damage_is_seen(self, how, tmp_path):
        stopped(plan(), tmp_path, 3)
        path = tmp_path / "checkpoint-0000000003.safetensors"
        damage(path, how)
        with pytest.raises(Unreadable, match="damaged|cut short"):
            read_checkpoint(path)

    def test_one_of_an_earlier_version_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hush.checkpointing.checkpoint.FORMAT", "hush checkpoint 2")
        stopped(plan(), tmp_path, 3)
        monkeypatch.undo()
        with pytest.raises(Unreadable):
            read_checkpoint(tmp_path / "checkpoint-0000000003.safetensors")

    def test_every_byte_counts(self, tmp_path):
        stopped(plan(), tmp_path, 1)
        path = tmp_path / "checkpoint-0000000001.safetensors"
        good = path.read_bytes()
        for place in range(0, len(good), 37):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            try:
                state = read_checkpoint(path).state
            except Unreadable:
                continue
            path.write_bytes(good)  # only a change that means nothing (JSON's own spaces) may pass
            assert torch.equal(state["params"]["0.weight"], read_checkpoint(path).state["params"]["0.weight"])

    @pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
    def test_the_one_before_is_used(self, how, tmp_path):
        p = plan("dp-adam")
        stopped(p, tmp_path, 5)
        damage(tmp_path / "checkpoint-0000000005.safetensors", how)
        kept = Checkpoints(tmp_path)
        found = kept.newest()
        kept.close()
        assert found.saved is not None
        assert found.saved.step == 4
        assert "checkpoint-0000000005" in found.damaged[0]
        assert same(resumed(p, tmp_path), straight(p))
        assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == STEPS


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    changed = {
        "cut": content[:-7],
        "empty": b"",
        "flipped": content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
        "head": content[:20] + b"xxxx" + content[24:],
        "text": content.replace(b"dp-sgd", b"dp-xxx"),
    }
    path.write_bytes(changed[how])


class TestLog:
    def test_no_line_is_lost_or_doubled(self, tmp_path):
        p = plan()
        run, kept = start(p), Checkpoints(tmp_path)
        kept.begin(run)
        for _ in take_steps(run, checkpoints=kept, every=3):
            if run.next == 5:
                break
        kept._flush_log()  # lines of steps 3 and 4 reached the disk, their checkpoint did not
        kept.close()
        resumed(p, tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(STEPS))
        whole = tmp_path / "whole"
        stopped(p, whole, STEPS)
        assert (whole / "steps.jsonl").read_text() == (tmp_path / "steps.jsonl").read_text()

    def test_half_a_line_is_cut(self, tmp_path):
        p = plan()
        stopped(p, tmp_path, 4)
        with (tmp_path / "steps.jsonl").open("a") as file:
            file.write('{"step": 4, "lo')
        resumed(p, tmp_path)
        assert [json.loads(x)["step"] for x in (tmp_path / "steps.jsonl").read_text().splitlines()] == list(
            range(STEPS)
        )
