"""Tampering with the ledger is detected; files of other programs are left unchanged."""

from __future__ import annotations

import json
import math
import os
from typing import ClassVar

import pytest

from hush.errors import InvalidInputError
from hush.ledger.book import Ledger
from hush.ledger.chain import Damaged, entry_hash
from ledger_accounts import SPEND_LINE, account


class TestDamage:
    @pytest.fixture
    def full(self, path):
        for run in "abc":
            account(path, run).charge()
        return path

    def edit(self, path, change):
        lines = path.read_text().splitlines()
        path.write_text("\n".join(change(lines)) + "\n")

    def test_an_edited_line(self, full):
        self.edit(full, lambda lines: [*lines[:2], lines[2].replace('"steps": 1000', '"steps": 120'), *lines[3:]])
        with pytest.raises(Damaged, match="3"):
            Ledger(full)

    def test_an_edited_line_with_its_hash_made_new(self, full):
        def change(lines):
            entry = json.loads(lines[2])
            entry["steps"] = 120
            entry["hash"] = entry_hash(entry)
            return [*lines[:2], json.dumps(entry), *lines[3:]]

        self.edit(full, change)
        with pytest.raises(Damaged, match="4"):
            Ledger(full)

    @pytest.mark.parametrize(
        "change",
        [
            ('"line": 4', '"line": 5'),
            ('"line": 4', '"line": 04'),
            ('"line": 4', '"Line": 4'),
            ('"run": "c"', '"run": "x"'),
            ('"run": "c"', '"run": ""'),
            ('"at": "2', '"at": "3'),
            ('"run"', '"name"'),
            ('"previous": "', '"Previous": "'),
            ('", "hash": "', '", "Hash": "'),
            ('"delta": 1e-05', '"delta": 2e-05'),
        ],
    )
    def test_an_edit_of_a_line_like_others(self, full, change):
        """Lines that differ in run and time alone are checked without being parsed: the same check."""
        lines = full.read_text().splitlines()
        edited = lines[3].replace(*change)
        assert edited != lines[3]
        full.write_text("\n".join([*lines[:3], edited]) + "\n")
        with pytest.raises(Damaged, match="4"):
            Ledger(full)

    def test_lines_like_others_are_read_as_they_are(self, full):
        for name in ("Zoë", 'a "quoted" one', "back\\slash", "plain"):
            Ledger(full).add("d", 0.1, 1e-6, run=name)
        found = Ledger(full).spends("d")
        assert list(found) == [*"abc", "Zoë", 'a "quoted" one', "back\\slash", "plain"]
        parsed = [json.loads(line) for line in full.read_text().splitlines()[1:]]
        assert [(entry["run"], entry["at"]) for entry in parsed] == [(s.run, s.at) for s in found.values()]
        assert all(entry["hash"] == entry_hash(entry) for entry in parsed)

    def test_a_removed_line(self, full):
        self.edit(full, lambda lines: [*lines[:2], *lines[3:]])
        with pytest.raises(Damaged, match="3"):
            Ledger(full)

    def test_a_cut_off_end(self, full):
        self.edit(full, lambda lines: lines[:-1])
        with pytest.raises(Damaged, match="3.*4"):
            Ledger(full)

    def test_half_of_the_last_line_cut_off(self, full):
        full.write_bytes(full.read_bytes()[:-30])
        with pytest.raises(Damaged):
            Ledger(full)

    def test_an_emptied_or_deleted_ledger(self, full):
        full.write_bytes(b"")
        with pytest.raises(Damaged):
            Ledger(full)
        full.unlink()
        with pytest.raises(Damaged):
            Ledger(full)

    def test_a_missing_or_foreign_head(self, full, tmp_path):
        head = full.with_name(full.name + ".head")
        kept = head.read_text()
        head.unlink()
        with pytest.raises(Damaged):
            Ledger(full)
        account(tmp_path / "other.jsonl").charge()
        head.write_text((tmp_path / "other.jsonl.head").read_text())
        with pytest.raises(Damaged):
            Ledger(full)
        head.write_text("{")
        with pytest.raises(Damaged):
            Ledger(full)
        head.write_text(kept)
        Ledger(full)

    def test_a_line_that_was_never_finished_is_dropped(self, full):
        before = full.read_bytes()
        full.write_bytes(before + b'{"line": 5, "kind": "sp')
        assert Ledger(full).spends("d").keys() == {*"abc"}
        assert full.read_bytes() == before

    def test_a_line_without_its_head_is_kept(self, full):
        head = full.with_name(full.name + ".head")
        old = head.read_text()
        account(full, "d").charge()
        head.write_text(old)  # killed between the line and the head
        assert Ledger(full).spends("d").keys() == {*"abcd"}
        account(full, "e").charge()
        assert json.loads(head.read_text())["lines"] == 6

    def test_not_a_ledger(self, path, tmp_path):
        path.write_text("hello\n")
        with pytest.raises(InvalidInputError, match="ledger"):
            Ledger(path)
        with pytest.raises(InvalidInputError):
            Ledger(tmp_path / "no" / "such.jsonl")
        with pytest.raises(InvalidInputError, match="ledger"):
            Ledger(tmp_path / "none.jsonl", create=False)

    def test_a_name_for_a_dataset(self, path):
        for bad in ("", " ", "a\nb", "x" * 201):
            with pytest.raises(InvalidInputError):
                account(path, dataset=bad)


class TestFilesOfOthers:
    """Nothing is written before a file is known to be a ledger, and looking needs no permission to write."""

    @pytest.mark.parametrize("text", ["notes without an end of line", "notes\n", '{"a": 1}', "{", "\x00" * 100])
    @pytest.mark.parametrize("create", [True, False])
    def test_they_are_left_as_they_are(self, path, text, create):
        path.write_text(text)
        with pytest.raises(Damaged, match="ledger"):
            Ledger(path, create=create)
        assert path.read_text() == text
        assert [p.name for p in path.parent.iterdir()] == [path.name]

    def test_looking_changes_nothing(self, path, monkeypatch):
        account(path).charge()
        torn = path.read_bytes() + b'{"line": 3, "kin'
        path.write_bytes(torn)
        head = path.with_name(path.name + ".head")
        kept = head.read_bytes()
        real = os.open

        def read_only(where, flags, *more):
            if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
                raise PermissionError(13, "Permission denied", str(where))
            return real(where, flags, *more)

        monkeypatch.setattr(os, "open", read_only)
        assert Ledger(path, create=False, write=False).spends("d")["a"].steps == 1000
        assert (path.read_bytes(), head.read_bytes()) == (torn, kept)

    def test_a_first_line_that_was_never_finished(self, path):
        head = path.with_name(path.name + ".head")
        Ledger(path)
        whole = path.read_bytes()
        head.write_text(json.dumps({"lines": 0, "hash": "0" * 64}))
        path.write_bytes(whole[:25])  # killed while the first line was written
        assert Ledger(path).datasets() == []

    @pytest.mark.parametrize("what", ["", "directory", "fifo"])
    def test_what_is_no_file(self, tmp_path, what, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "fifo")
        for write in (True, False):
            with pytest.raises(InvalidInputError, match="ledger's"):
                Ledger(what, create=write, write=write)


class TestCraftedLines:
    """Lines whose hash fits and whose content does not."""

    GOOD: ClassVar = SPEND_LINE

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"delta": d} for d in (0, 1, -1, 2.0, "x", None, [])),
            *({"points": p} for p in ([], [[1e-5, -1.0]], [[0, 1.0]], [[1.5, 1.0]], 3, [[1]], [["x", "y"]])),
            *({"status": s} for s in ("fine", None, 3)),
            *({"adjacency": s} for s in ("near", None)),
            *({"steps": n} for n in (0, -3, "x", None, 1e400)),
            *({"run": n} for n in (None, 3, {})),
            {"dataset": 3},
            {"event": {"kind": "Popen"}},
            {"kind": "budget", "epsilon": -1},
            {"kind": "budget", "epsilon": "x"},
            {"kind": "close", "run": "nobody"},
            {"kind": "else"},
            {"kind": ["spend"]},
        ],
        ids=str,
    )
    def test_are_refused(self, path, wrong):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**{k: v for k, v in {**self.GOOD, **wrong}.items() if v != math.inf})
        with pytest.raises(InvalidInputError, match="2"):
            Ledger(path)

    def test_the_good_one_is_read(self, path):
        ledger = Ledger(path)
        with ledger._chain.locked():
            ledger._chain.append(**self.GOOD)
        assert Ledger(path).total("d").epsilon == 1.0
