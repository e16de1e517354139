"""Names, labels and headers from files are escaped before they reach a terminal, a page or a statement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hush._internal.text import dump_json, make_printable
from hush.cli import main
from train_arguments import keep

NASTY = "a\x1b[31mred\x07\x9b2J\u202egnp.\u2028b\r\nc\x00\x7f"


def obeyed(text: str) -> list[str]:
    return [c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2028\u200b"]


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    assert make_printable("ε = 1 · naïve 你好 🙂") == "ε = 1 · naïve 你好 🙂"
    assert make_printable("a\x1b[31m\u202e\n\ud800") == "a\\x1b[31m\\u202e\\n\\ud800"
    assert not obeyed(make_printable(NASTY))
    assert "\n" not in make_printable(NASTY)


def test_json_means_the_same_and_holds_nothing_that_is_obeyed() -> None:
    value = {"name\x9b": [NASTY, "ε", "\U000e0001", "\ud800"]}
    for ascii_only in (False, True):
        text = dump_json(value, indent=1, ascii_only=ascii_only)
        assert json.loads(text) == value
        assert not obeyed(text)
    assert "ε" in dump_json(value)
    assert dump_json(value, ascii_only=True).isascii()


def own_table(path: Path, nasty: str) -> Path:
    nasty = nasty.replace("\n", "").replace("\r", "").replace("\x00", "")
    rows = [f"{i % 7},{i % 2},{'yes' if i % 2 else nasty}" for i in range(80)]
    path.write_text("\n".join([f"height,{nasty},label", *rows]) + "\n")
    return path


def test_control_characters_in_a_table_reach_nothing_raw(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = own_table(tmp_path / "a\x1b[31m[red].csv", NASTY)
    flags = [
        "train",
        "--data",
        str(data),
        "--target",
        "label",
        "--public",
        "classes",
        "--batch-size",
        "16",
        "--epochs",
        "1",
    ]
    for more in (["--out", "run\x1b[31m"], ["--json"]):
        code = main(keep([*flags, *more]))
        shown = capsys.readouterr()
        assert code == 0, shown.err
        assert not obeyed(shown.out)
        assert not obeyed(shown.err)
    for path in (tmp_path / "run\x1b[31m").glob("*.*"):
        if path.suffix in (".json", ".md"):
            assert not obeyed(path.read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--problem", NASTY.replace("\x00", "")),
        ("train", "--method", "[/red]\x1b[1m"),
        ("train", "--data", "\x1b]0;title\x07.csv", "--target", "y"),
        ("train", "--\x1b[31m"),
        ("bench", "a\x1bb.toml", "--dry-run"),
        ("data", "verify", ":smile:\x1b[5m"),
    ],
)
def test_control_characters_in_a_call_are_told_in_one_plain_line(arguments, capsys) -> None:
    assert main(keep(arguments)) == 2
    shown = capsys.readouterr()
    assert not obeyed(shown.err)
    assert len(shown.err.strip().splitlines()) == 1


def test_a_method_of_ones_own_with_a_nasty_name_is_spelt_out_on_the_page(tmp_path, monkeypatch, capsys) -> None:
    source = (
        "from hush.methods import call_method, find\n"
        "from dataclasses import replace\n"
        "def method(setting, *, lr: float = 0.1):\n"
        "    plan = call_method(find('dp-sgd'), setting, dict(lr=lr))\n"
        "    return replace(plan, method='<script>alert(1)</script>|\\x1b[31m')\n"
    )
    (tmp_path / "nasty_method.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = tmp_path / "noise.html"
    assert main(["noise", "show", "--method", "nasty_method:method", "--steps", "8", "--out", str(page)]) == 0
    text = page.read_text()
    assert "<script>alert" not in text
    assert "\x1b" not in text
    out = tmp_path / "run"
    flags = ("--problem", "breast-cancer-logistic", "--batch-size", "64", "--steps", "2", "--out", str(out))
    assert main(["train", "--method", "nasty_method:method", *flags]) == 0
    card = (out / "release" / "PRIVACY.md").read_text()
    assert "\x1b" not in card
    assert "<script>" not in card
    capsys.readouterr()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_is_not_utf8(encoding) -> None:
    calls = [["methods", "--json"], ["methods"], ["train", "--help"], ["train", "--epsilon", "0", "--method", "ε"]]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LANG": "C", "LC_ALL": "C"}
    program = f"from hush.cli import main; print('codes', [main(call) for call in {calls!r}])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    out = done.stdout.decode(encoding)
    assert "codes [0, 0, 0, 2]" in out
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert json.JSONDecoder().raw_decode(out)[0][0]["method"] == "auto"
