"""`hush bench`: its JSON, its table and its messages."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from hush.bench.executors import Inline
from hush.bench.store import StoreFullError, open_store
from hush.bench.sweep import Tally, format_duration, make_table, show_live, sweep
from hush.cli import main

TINY = """
secret_seed = 1
[[grid]]
problem = "breast-cancer-logistic"
method = ["sgd", "dp-sgd"]
batch_size = 64
epochs = 1
[grid.methods.dp-sgd]
noise_multiplier = [1.0, 2.0]
"""
ALIKE = TINY.replace("noise_multiplier = [1.0, 2.0]", "noise_multiplier = 1.0\nlr = [0.1, 0.2]")


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_fields_that_scripts_rely_on(capsys, tmp_path, write_spec) -> None:
    command = ("bench", write_spec(ALIKE), "--store", tmp_path / "s", "--executor", "inline", "--json")
    code, out, err = call(capsys, *command)
    assert code == 0
    assert "3 of 3 runs done, 0 failed" in err  # progress is on stderr, and out of the way of the JSON
    first = json.loads(out)
    choices, total = first.pop("choices"), first.pop("total")
    assert first == {"runs": 3, "done": 3, "failed": 0, "skipped": 0, "diverged": 0}
    code, out, _ = call(capsys, *command)
    second = json.loads(out)
    assert (second.pop("choices"), second.pop("total")) == (choices, total)
    assert second == {"runs": 3, "done": 0, "failed": 0, "skipped": 3, "diverged": 0}
    (choice,) = choices
    assert (choice["method"], choice["runs"]) == ("dp-sgd", 2)
    assert choice["winner_epsilon"] < choice["selection_epsilon"]
    assert (total["runs"], total["epsilon"]) == (2, choice["selection_epsilon"])


def test_for_people(capsys, tmp_path, write_spec) -> None:
    code, out, err = call(capsys, "bench", write_spec(ALIKE), "--store", tmp_path / "s", "--executor", "inline")
    assert code == 0
    told, best, total = out.strip().splitlines()
    assert total.startswith("all 2 private runs of this store together: ε = ")
    assert told.startswith("3 runs: 3 done, 0 failed, 0 ")
    assert best.startswith("best of 2 runs, dp-sgd on breast-cancer-logistic: ")
    assert "the winner's own ε = " in best
    assert "among these runs = " in best
    assert "3 of 3 runs done, 0 failed" in err


def test_runs_of_another_spec_in_the_store_are_part_of_its_price(capsys, tmp_path, write_spec) -> None:
    more = ("--store", tmp_path / "s", "--executor", "inline", "--json")
    alone = json.loads(call(capsys, "bench", write_spec(ALIKE), *more)[1])
    other = json.loads(call(capsys, "bench", write_spec(TINY, "other.toml"), *more)[1])
    assert (alone["total"]["runs"], other["total"]["runs"]) == (2, 4)
    assert other["total"]["epsilon"] > alone["total"]["epsilon"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{}", b'{"outcome": 5}', b"[" * 100_000])
def test_a_damaged_record_is_named_and_stops_no_sweep(content, capsys, tmp_path, write_spec) -> None:
    command = ("bench", write_spec(TINY), "--store", tmp_path / "s", "--executor", "inline")
    assert call(capsys, *command)[0] == 0
    damaged = min((tmp_path / "s" / "runs").iterdir()) / "record.json"
    damaged.write_bytes(content)
    code, out, err = call(capsys, *command, "--retry-failed", "--json")
    assert (code, json.loads(out)["skipped"]) == (0, 3)
    assert json.loads(out)["total"]["epsilon"] is None
    code, _, err = call(capsys, *command)
    assert code == 0
    assert str(damaged) in err
    assert damaged.read_bytes() == content


def test_a_dry_run_counts_and_estimates_and_writes_nothing(capsys, tmp_path, write_spec) -> None:
    command = ("bench", write_spec(TINY), "--store", tmp_path / "s", "--dry-run", "--workers", 2)
    code, out, _ = call(capsys, *command, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["runs"], found["done"], found["skipped"]) == (3, 0, 0)
    assert found["estimated_seconds"] > 0
    assert not (tmp_path / "s").exists()
    code, out, _ = call(capsys, *command)
    assert "3 runs, 0 of them" in out
    assert "with 2 workers, estimated from 2 timed settings" in out


OTHERS = """
def problem():
    open("called", "w")
    raise FileNotFoundError("no such file: digits")

def method(setting, *, lr: float = 0.1):
    open("called", "w")
    raise RuntimeError("called")
"""


@pytest.mark.parametrize(
    ("before", "now"), [("breast-cancer-logistic", "others_code:problem"), ('"dp-sgd"]', '"others_code:method"]')]
)
def test_a_dry_run_calls_no_code_of_others(capsys, write_spec, tmp_path, monkeypatch, before, now) -> None:
    (tmp_path / "others_code.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = TINY.replace(before, now).replace(
        "methods.dp-sgd", 'methods."others_code:method"' if "method" in now else "methods.dp-sgd"
    )
    code, out, err = call(capsys, "bench", write_spec(text), "--dry-run", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["runs"] == 3
    assert not (tmp_path / "called").exists()
    if "problem" in now:
        assert found["estimated_seconds"] is None
        assert "'others_code:problem' is code of others" in found["reason"]
    else:
        assert found["estimated_seconds"] > 0  # by the same problem's other method


def test_a_factory_in_a_spec_runs(capsys, write_spec, tmp_path, monkeypatch) -> None:
    (tmp_path / "own_factories.py").write_text(
        "from hush.datasets.catalogue import load\nfrom hush.methods import call_method, find\n"
        "def problem(seed, validation):\n    return load('breast-cancer-logistic', seed=seed, validation=validation)\n"
        "def method(setting, *, lr: float = 0.1):\n    return call_method(find('dp-sgd'), setting, {'lr': lr})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    grid = 'problem = "own_factories:problem"\nmethod = "own_factories:method"\nnoise_multiplier = 1.0\n'
    spec = write_spec(f"secret_seed = 1\n[[grid]]\n{grid}batch_size = 64\nepochs = 1\nlr = [0.1, 0.2]\n")
    code, out, err = call(capsys, "bench", spec, "--store", tmp_path / "s", "--executor", "inline", "--json")
    assert code == 0, err
    assert json.loads(out)["done"] == 2


def test_a_problem_of_ones_own_keeps_its_units_and_its_class_weights(capsys, write_spec, tmp_path, monkeypatch) -> None:
    (tmp_path / "own_units.py").write_text(
        "from dataclasses import replace\nimport numpy as np\nfrom hush.datasets.splits import Owners\n"
        "from hush.datasets.catalogue import load\n"
        "def problem(seed, validation):\n"
        "    found = load('breast-cancer-logistic', seed=seed, validation=validation)\n"
        "    whose = [np.arange(len(part[0])) // 2 for part in (found.train, found.test)]\n"
        "    return replace(found, owners=Owners('patient', *whose)).with_class_weights([1.0, 2.0])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    grid = 'problem = "own_units:problem"\nmethod = "dp-sgd"\nnoise_multiplier = 1.0\n'
    spec = write_spec(f"secret_seed = 1\n[[grid]]\n{grid}batch_size = 64\nepochs = 1\nlr = 0.1\n")
    code, _, err = call(capsys, "bench", spec, "--store", tmp_path / "s", "--executor", "inline", "--json")
    assert code == 0, err
    (record,) = (json.loads(path.read_text()) for path in (tmp_path / "s" / "runs").rglob("record.json"))
    assert "per patient" in record["guarantee"]
    assert record["examples"] == 206  # of 411 rows
    assert any("class" in text for text in record["assumptions"])


def test_a_dry_run_downloads_nothing(capsys, write_spec, tmp_path, monkeypatch) -> None:
    from hush.datasets import download

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr(download, "fetch_missing", never)
    monkeypatch.setenv("HUSH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HUSH_DATA", raising=False)
    code, out, err = call(
        capsys, "bench", write_spec(TINY.replace("breast-cancer-logistic", "mnist-mlp")), "--dry-run", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert (found["runs"], found["estimated_seconds"]) == (3, None)
    assert found["reason"] == "the data of 'mnist' is not here yet: hush data fetch mnist"


def test_what_failed_is_told(capsys, tmp_path, write_spec) -> None:
    spec = write_spec(TINY.replace("batch_size = 64", "batch_size = 64000"))
    code, out, err = call(capsys, "bench", spec, "--store", tmp_path / "s", "--executor", "inline")
    assert code == 0
    assert "3 runs: 0 done, 3 failed" in out
    assert "3 failed: batch size 64000 is larger than the data" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("{spec}",), "--store"),
        (("{spec}", "--store", "/proc/nowhere"), "cannot write to '/proc/nowhere'"),
        (("absent.toml", "--store", "s"), "'absent.toml'"),
        (("{spec}", "--store", "s", "--executor", "cloud"), "unknown executor 'cloud'"),
        (("{spec}", "--store", "s", "--workers", "0"), "workers must be a whole number of at least 1"),
        (("{bad}", "--store", "s"), "clip: method 'sgd' has no option 'clip'"),
    ],
)
def test_bad_input_gets_one_sentence(capsys, tmp_path, write_spec, monkeypatch, arguments, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {
        "spec": write_spec(TINY),
        "bad": write_spec(TINY.replace("epochs = 1", "epochs = 1\nclip = 1"), "bad.toml"),
    }
    code, out, err = call(capsys, "bench", *(a.format(**paths) for a in arguments))
    assert code == 2
    assert out == ""
    assert sentence.replace("line 5", "line 8") in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_a_full_disk_gets_one_sentence_and_exit_1(capsys, tmp_path, write_spec, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise StoreFullError(28, "No space left on device", "s")

    monkeypatch.setattr(Inline, "run_all", full)
    code, out, err = call(capsys, "bench", write_spec(TINY), "--store", tmp_path / "s", "--executor", "inline")
    assert code == 1
    assert out == ""
    assert "run the same command again" in err


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_says_how_to_go_on(capsys, tmp_path, write_spec, monkeypatch, more) -> None:
    command = ("bench", write_spec(TINY), "--store", tmp_path / "s", "--executor", "inline", *more)

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Inline, "run_all", interrupt)
        code, out, err = call(capsys, *command)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("stopped: ")
    assert call(capsys, *command)[0] == 0


def test_the_live_table(tmp_path, small) -> None:
    store = open_store(tmp_path / "s")
    claim = store.locks.take(small.trials[0].key)
    assert claim is not None
    frames: list[str] = []

    def watch(tally) -> None:
        drawn = Console(file=io.StringIO(), width=120)
        drawn.print(make_table(tally))
        frames.append(drawn.file.getvalue())

    claim.drop()
    sweep(small, store, Inline(), watch=watch)
    assert "4 of 4 runs done, 0 failed, about 0 seconds left" in frames[-1]
    assert "dp-adam" in frames[-1]
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    with show_live(console=terminal) as show:
        sweep(small, store, Inline(), watch=show)
    assert "running" in terminal.file.getvalue()


def test_the_live_table_needs_no_thread(tmp_path, small, no_thread) -> None:
    terminal, store = Console(file=io.StringIO(), force_terminal=True, width=120), open_store(tmp_path / "s")
    with show_live(console=terminal) as show:
        show(Tally(store, small.trials))
        show(Tally(store, small.trials))
    assert terminal.file.getvalue().count("0 of 4 runs done") == 3  # and once more at the end


def test_running_and_failed_are_counted(tmp_path, small) -> None:
    from hush.bench.trial import record_failure

    store = open_store(tmp_path / "s")
    assert store.locks.take(small.trials[0].key) is not None
    store.finish(small.trials[2].key, record_failure(small.trials[2], 0.0, "no reason"))
    tally = Tally(store, small.trials)
    assert tally.time_left() is None
    tally.refresh()
    groups = {group.method: group for group in tally.groups()}
    assert (groups["dp-sgd"].runs, groups["dp-sgd"].running, groups["dp-sgd"].failed) == (2, 1, 0)
    assert (groups["dp-adam"].runs, groups["dp-adam"].running, groups["dp-adam"].failed) == (2, 0, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "about 5 seconds"), (119, "about 119 seconds"), (150, "about 2.5 minutes"), (36000, "about 10 hours")],
)
def test_durations(seconds, text) -> None:
    assert format_duration(seconds) == text
