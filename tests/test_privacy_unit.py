"""A unit of several rows counts as one example: its rows are sampled by the secret, averaged and counted once."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hush import make_plan
from hush._internal.tensors import Losses, State, Sums
from hush.checkpointing import Checkpoints
from hush.clipping import Adaptive, ClippedSum, ErrorFeedback, Quantile, TwoPoint
from hush.clipping.clipped import clipped_sums
from hush.data_source import Tensors
from hush.errors import InvalidInputError, NotProvenError, ResumeError
from hush.methods import catalogue
from hush.per_example.augmentation import Augmented
from hush.plan import Plan
from hush.privacy_unit import ROWS_PER_UNIT, UnitRows, Units, normalise_id, number_units, spread_rows
from hush.randomness import Secret
from hush.release.folder import CARD
from hush.training import take_steps
from replay import distance, recorded
from unit_tables import CLIP, MOST, UNITS, Table, losses, make, make_model, make_table, params, start, trained


class Kind(Enum):
    """Three units, each one object."""

    A, B, C = "a", "b", "c"


class Person:
    """Equal to itself only."""


@dataclass(frozen=True)
class Key:
    """Equal by its parts."""

    name: Any


class Hashed:
    """Equal by its name, but found by its identity."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed)

    __hash__ = object.__hash__


# how the rows of a unit are chosen


def test_units_are_numbered_as_they_appear_whatever_names_them() -> None:
    right = [0, 1, 0, 2, 1]
    for ids in (
        ["b", "a", "b", "c", "a"],
        np.array([7, 3, 7, 9, 3]),
        torch.tensor([7, 3, 7, 9, 3]),
        (1, 2.5, 1, 7, 2.5),
        [("b", 1), ("a", 1), ("b", 1.0), ("c", 1), ("a", 1)],
        list(torch.tensor([7, 3, 7, 9, 3])),
        list(torch.tensor([0.7, 0.3, 0.7, 0.9, 0.3])),
        [torch.tensor(2**60 + 1), 2**60, 2**60 + 1, np.int64(7), torch.tensor(2**60)],
        [datetime(2020, 1, day) for day in (2, 1, 2, 3, 1)],
        [Kind.B, Kind.A, Kind.B, Kind.C, Kind.A],
        [Key("b"), Key("a"), Key("b"), Key("c"), Key("a")],
    ):
        assert number_units(ids).tolist() == right


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", None], "some rows have no unit"),
        ([1.0, float("nan")], "some rows have no unit"),
        (list(np.array([1.0, np.nan], np.float32)), "some rows have no unit"),
        ([Decimal(1), Decimal("nan")], "some rows have no unit"),
        ([["a"], ["b"]], "hashable"),
        (np.zeros((2, 2)), "one-dimensional"),
        ("ab", "one value per row"),
        (5, "one value per row"),
        (["a"], "the number of units differs"),
    ],
)
def test_units_that_are_none_are_refused(ids: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Units.of(Tensors((torch.zeros(2, 1),)), ids)


def test_a_unit_gives_at_most_so_many_of_its_own_rows() -> None:
    table = make_table()
    units = Units.of(Tensors((torch.arange(len(table.x)),), single=True), table.ids, MOST)
    assert len(units) == UNITS
    whose = np.array(number_units(table.ids))
    secret = Secret.from_seed(1, "rows")
    for step in range(5):
        content = units.at(secret, step).take(torch.arange(UNITS))
        assert content.rows.shape == content.weights.shape == (UNITS, MOST)
        for unit, (rows, weights) in enumerate(zip(content.rows, content.weights, strict=True)):
            own = rows[weights > 0].tolist()
            count = int((whose == unit).sum())
            assert len(set(own)) == len(own) == min(MOST, count)
            assert (whose[rows.tolist()] == unit).all()  # what fills the rest is the unit's own too
            assert torch.allclose(weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_the_choice_is_by_secret_step_and_position_and_looks_at_nothing_else() -> None:
    table = make_table()
    units = Units.of(Tensors(table.content), table.ids, MOST)
    other = Units.of(Tensors((torch.zeros_like(table.x), table.y)), [f"other {name}" for name in table.ids], MOST)
    secret = Secret.from_seed(1, "rows")
    every = torch.arange(UNITS)

    def chosen(of: Units, by: Secret, step: int, which: Tensor) -> list[list[int]]:
        return [own.tolist() for own in of.at(by, step).choose(which)]

    first = chosen(units, secret, 0, every)
    assert chosen(other, secret, 0, every) == first
    assert chosen(units, secret, 0, every.flip(0)) == first[::-1]  # in any company
    assert chosen(units, secret, 0, every[-1:]) == first[-1:]
    assert chosen(units, secret, 1, every) != first
    assert chosen(units, Secret.from_seed(2, "rows"), 0, every) != first
    fewer = table.without_last()  # nobody else's choice moves
    assert chosen(Units.of(Tensors(fewer.content), fewer.ids, MOST), secret, 0, every[:-1]) == first[:-1]


def test_every_row_of_a_unit_is_chosen_as_often() -> None:
    """20 rows, 3 at a time, 4 000 steps: each 600 times give or take 5 standard deviations."""
    units = Units.of(Tensors((torch.zeros(40, 1),)), ["a"] * 20 + ["b"] * 20, MOST)
    secret, times = Secret.from_seed(3, "rows"), [Counter[int](), Counter[int]()]
    pairs = Counter[bool]()
    for step in range(4000):
        one, two = units.at(secret, step).choose(torch.arange(2))
        times[0].update(one.tolist())
        times[1].update(two.tolist())
        pairs[one.tolist() == two.tolist()] += 1
    for counts in times:
        assert len(counts) == 20
        assert max(abs(count - 600) for count in counts.values()) < 5 * (600 * 0.85) ** 0.5
    assert pairs[True] < 20  # of 1 140 sets: units choose independently


def test_the_weights_are_those_of_a_mean_and_an_empty_batch_has_the_shape() -> None:
    content = spread_rows((torch.arange(3.0), torch.ones(3, 2)), [1, 2], 3)
    assert content.weights.tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert content.rows[0].tolist() == [[0, 0, 0], [1, 2, 1]]
    empty = spread_rows((torch.zeros(0, 5),), [], 3)
    assert empty.rows[0].shape == (0, 3, 5)
    assert empty.weights.shape == (0, 3)


# plans and runs


def test_a_units_epsilon_is_that_of_as_many_examples() -> None:
    by_unit, by_row = make(), make(unit="example")
    assert by_unit.guarantee().epsilon == by_row.guarantee().epsilon
    assert by_unit.guarantee().unit == "patient_id"
    assert "per patient_id" in str(by_unit.guarantee())
    run = start(by_unit, make_table())
    assert run.guarantee.to_json()["unit"] == "patient_id"
    rows = tuple(t[:UNITS] for t in make_table().content)
    assert run.guarantee.epsilon == by_row.start(make_model(), losses, rows, secret=1).guarantee.epsilon
    assert run.guarantee.epsilon == pytest.approx(by_row.guarantee().epsilon, rel=1e-6)  # with the noise's precision
    assert by_unit.fingerprint() != by_row.fingerprint()


def test_a_plan_and_its_data_agree_about_the_unit() -> None:
    table = make_table()
    with pytest.raises(InvalidInputError, match="rows"):
        start(make(unit="example"), table)
    with pytest.raises(InvalidInputError, match="unit="):
        make().start(make_model(), losses, table.content)
    with pytest.raises(InvalidInputError, match="rows_per_unit"):
        make(unit="example", examples=len(table.x)).start(make_model(), losses, table.content, rows_per_unit=2)
    with pytest.raises(InvalidInputError, match=r"240.*\(patient_id\)"):
        start(make(examples=240), table)
    with pytest.raises(InvalidInputError, match="rows_per_unit"):
        start(make(), table, rows_per_unit=0)
    with pytest.raises(InvalidInputError, match="rows_per_unit.*4096"):
        start(make(), table, rows_per_unit=10**11)
    for name in ("", " ", "a\nb", "x" * 101):
        with pytest.raises(InvalidInputError, match="unit"):
            make(unit=name)
    assert start(make(), table, rows_per_unit=None).source.most == ROWS_PER_UNIT


def test_how_many_rows_are_averaged_is_said_and_tells_one_seeded_run_from_another(tmp_path) -> None:
    """The same noise on means over 2 and over 3 rows would show how they differ."""
    table = make_table()
    two, three = (start(make(), table, rows_per_unit=most) for most in (2, 3))
    assert two.secret != three.secret
    assert start(make(), table, rows_per_unit=2).secret == two.secret
    assert two.plan.identity(dict(two.model.named_parameters()))["rows_per_unit"] == 2
    card = json.loads((two.release(tmp_path / "release") / CARD).read_text())
    assert card["rows_per_unit"] == card["plan"]["rows_per_unit"] == 2
    assert "at most 2 are looked at in one step" in (tmp_path / "release" / "PRIVACY.md").read_text()
    by_row = make(unit="example", examples=len(table.x)).start(make_model(), losses, table.content)
    card = json.loads((by_row.release(tmp_path / "rows") / CARD).read_text())
    assert "rows_per_unit" not in card
    assert card["plan"]["rows_per_unit"] is None


def test_a_run_counts_units() -> None:
    table = make_table()
    for batch in (run := start(make(steps=8), table)).batches():
        units = len(batch.indices)
        assert run.step(batch).numbers()["examples"] == units
        assert not units or int(batch.indices.max()) < UNITS


def test_units_of_one_row_train_as_rows_do() -> None:
    """With one row a unit and one row of room, the bits are those of a plan for rows with the same secret."""
    table = make_table()
    secret = Secret.from_seed(1, "same")
    one = Table(table.x[:UNITS], table.y[:UNITS], [str(i) for i in range(UNITS)])
    by_unit = make().start(make_model(), losses, one.content, secret=secret, unit=one.ids, rows_per_unit=1)
    by_row = make(unit="example").start(make_model(), losses, one.content, secret=secret)
    assert torch.equal(trained(by_unit), trained(by_row))


class Listed(Dataset):
    def __init__(self, table: Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.table.x[i], self.table.y[i]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_and_a_loader_give_the_same_as_tensors(workers: int) -> None:
    table = make_table()
    right = trained(start(make(), table))
    data: Any = DataLoader(Listed(table), batch_size=4, num_workers=workers)
    for source in (Listed(table), data):
        run = make().start(make_model(), losses, source, secret=1, unit=table.ids, rows_per_unit=MOST)
        torch.testing.assert_close(trained(run), right, rtol=0, atol=0)


def test_workers_fetch_the_rows_that_will_be_chosen(monkeypatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("not fetched ahead")

    table = make_table()
    data: Any = DataLoader(Listed(table), batch_size=4, num_workers=1)
    run = make().start(make_model(), losses, data, secret=1, unit=table.ids, rows_per_unit=MOST)
    monkeypatch.setattr("hush.data_source.Collated._take_here", never)
    assert torch.equal(trained(run), trained(start(make(), table)))


@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_goes_on_to_the_same_bits_and_only_with_the_same_units(tmp_path, stop: int) -> None:
    table, plan = make_table(), make(steps=6)

    def begin(table: Table, most: int = MOST, secret: int | None = None):
        return plan.start(make_model(0.3), losses, table.content, secret=secret, unit=table.ids, rows_per_unit=most)

    right = trained(begin(table, secret=1))
    run, kept = begin(table, secret=1), Checkpoints(tmp_path)
    kept.begin(run)
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == stop:
            kept.save(run)
            break
    kept.close()
    moved_row = replace(table, ids=[*table.ids[:-1], table.ids[0]])
    for other, said in ((begin(moved_row), "other data"), (begin(table, 2), "rows_per_unit was 3 and is 2")):
        kept = Checkpoints(tmp_path)
        with pytest.raises(ResumeError, match=said):
            kept.restore(other, kept.newest().saved)
        kept.close()
    again, kept = begin(table), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    assert again.next == stop
    for _ in take_steps(again, checkpoints=kept):
        pass
    kept.close()
    assert torch.equal(params(again.model), right)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled", "same-order"])
@pytest.mark.parametrize("method", ["dp-sgd", "dp-adam-bc", "dp-disk"])
def test_every_sampler_and_rule_takes_units(method: str, sampling: str) -> None:
    table = make_table()
    plan = make_plan(
        method, examples=UNITS, batch_size=8, steps=3, noise_multiplier=1.0, sampling=sampling, unit="patient_id"
    )
    assert torch.isfinite(trained(start(plan, table))).all()


ROW_BY_ROW = ("sanitize", "sanitize-once", "label-rr")


@pytest.mark.parametrize("method", ROW_BY_ROW)
def test_what_releases_rows_one_by_one_has_no_proof_for_units(method: str) -> None:
    with pytest.raises(NotProvenError, match="patient_id"):
        make_plan(
            method, examples=24, batch_size=8, epochs=2, noise_multiplier=1.0, accept_claimed=True, unit="patient_id"
        )


@pytest.mark.parametrize("method", [name for name in catalogue() if name not in ROW_BY_ROW])
def test_every_method_takes_units(method: str) -> None:
    epochs = 1 if method.startswith("dp-matrix-se") else 2
    given = {"examples": UNITS, "batch_size": 8, "epochs": epochs, "accept_claimed": True, "unit": "patient_id"}
    plan = make_plan(method, **given, **({} if method == "sgd" else {"noise_multiplier": 1.0}))
    assert plan.unit == "patient_id"
    assert not plan.has_guarantee or plan.guarantee().unit == "patient_id"
    assert torch.isfinite(trained(start(plan, make_table()))).all()


@pytest.mark.parametrize(
    "ids",
    [
        [float(2**53), 1.0],
        np.array([2**24, 1], np.float32),
        list(np.array([2**24, 1], np.float32)),
        torch.tensor([2.0**24, 1.0]),
        torch.tensor([2.0**8, 1.0], dtype=torch.bfloat16),
        [("a", 1e300), ("b", 1.0)],
        ["", "a"],
        np.array(["", "a"]),
        ["Anna", "anna"],
        np.array(["Anna", "anna"]),
        ["é", "e\u0301"],
        ["a\u200b", "a"],
        ["\ufeff7", 7],
        [complex(2**53), 1j],
        np.array([2**24, 1], np.complex64),
        array("f", [2.0**24, 1.0]),
        memoryview(np.array([2**24, 1], np.float32)),
        pa.array([2.0**24, 1.0], pa.float32()),
        pa.chunked_array([[2.0**24], [1.0]], pa.float32()),
        pa.array([2.0**24, 1.0], pa.float32()).dictionary_encode(),
        pa.array([1e17, 1.0]),
        pa.array([1, None]),
        pa.array(["a", None]).dictionary_encode(),
        pa.array([1, 2], pa.time64("ns")),  # which numpy would round to microseconds
        np.ma.array([1, 2], mask=[False, True]),
    ],
)
def test_names_that_may_be_of_several_persons_or_of_nobody_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidInputError):
        number_units(ids)


@pytest.mark.parametrize("kind", ["float32", "Float32", "float[pyarrow]", "category"])
def test_a_column_of_a_data_frame_keeps_the_width_of_its_numbers(kind: str) -> None:
    """Its values are numbers of Python one by one: 20 persons would be 11 units."""
    pandas = pytest.importorskip("pandas")
    ids = pandas.Series(np.array([2**24 + person for person in range(20)], np.float32)).astype(kind)
    assert ids.nunique() == 11
    with pytest.raises(InvalidInputError):
        number_units(ids)


def test_columns_of_other_libraries_name_units_exactly() -> None:
    large = [2**60 + person for person in (0, 1, 0, 2)]
    columns = (pa.array(large), pa.array(list(map(Decimal, large))), pa.chunked_array([large[:2], large[2:]]))
    for ids in (*columns, pa.array(list("abac")).dictionary_encode(), np.ma.array(large), memoryview(np.array(large))):
        assert number_units(ids).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    "made",
    [Person, lambda: (Person(), 1), lambda: frozenset([Person()]), lambda: Key(Person()), Hashed, lambda: (ROW,)],
)
def test_objects_that_are_equal_to_themselves_only_are_refused(made: Any) -> None:
    """A new one in each row would make a unit of each row."""
    with pytest.raises(InvalidInputError, match="Person|Hashed|Tensor"):
        number_units([made() for _ in range(4)])


ROW = torch.tensor(5)
WHEN = datetime(2020, 1, 1)
KINDS: dict[str, tuple[Any, Any]] = {
    "number|str": (5, "5"),
    "number|str, of torch": (torch.tensor(5), "5"),
    "float32|number": (torch.tensor(0.1), 0.1),
    "float32|number, a third": (np.float32(1 / 3), 1 / 3),
    "datetime64|datetime.datetime": (np.datetime64(WHEN, "ns"), WHEN),
    "date|datetime": (date(2020, 1, 1), WHEN),
    "without a time zone|with a time zone": (WHEN, WHEN.replace(tzinfo=UTC)),
    "Kind|str": (Kind.A, "a"),
    "Fraction|number": (Fraction(1, 3), 1 / 3),
    "UUID|str": (UUID(int=5), UUID(int=5).hex),
    "Decimal|str": (Decimal("1.50"), "1.5"),
    "bool|str": (True, "1"),
    "bool|number, which are equal": (True, 1),
    "complex|str": (1 + 0j, "1"),
    "str.*Decimal|str.*str": (("a", Decimal("1.50")), ("a", "1.5")),
    "Key of .bool|Key of .str": (Key(True), Key("1")),
}


@pytest.mark.parametrize("kinds", KINDS)
def test_values_of_two_kinds_are_refused_and_only_the_kinds_are_named(kinds: str) -> None:
    one, other = KINDS[kinds]
    for ids in ([one, other], [other, one, one], np.array([one, other, None], object)[:2]):
        with pytest.raises(InvalidInputError) as error:
            number_units(ids)
        said = str(error.value)
        assert all(re.search(kind, said) for kind in kinds.partition(", ")[0].split("|"))
        assert not any(str(value) in said for value in (one, other) if len(str(value)) > 3 and value is not True)


@pytest.mark.parametrize(
    "one", ["\u034f", "\u3164", "\uffa0", "\u115f", "\u17b4", "\u180b", "\u2065", "\ufff0", "\U000e0fff", "\u2800"]
)
@pytest.mark.parametrize(
    "made", [list, np.array, lambda names: [(name, 1) for name in names], lambda n: list(map(Key, n))]
)
def test_a_name_with_an_invisible_character_is_not_another_unit(one: str, made: Any) -> None:
    for other in (f"an{one}na", f"anna{one}"):
        with pytest.raises(InvalidInputError):
            number_units(made(["anna", other]))
    assert normalise_id(f"an{one}na") == "anna"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([b"\x01\xc8", b"\x02\xc8"], "hex"),
        (list(np.array([(1, 2.0), (2, 2.0)], "i4,f4")), "void"),
        (np.array([(1, 2.0), (2, 2.0)], "i4,f4"), "void"),
        (list(np.array([b"ab", b"cd"], "V2")), "void"),
        ([torch.zeros(2), torch.zeros(2)], r"\(2,\)"),
        ([torch.tensor(1.0, dtype=torch.bfloat16)], "bfloat16"),
        (list(torch.tensor([2.0**24, 1.0])), "too large"),
        ([frozenset([None])], "no unit"),
    ],
)
def test_ids_that_are_no_text_or_number_are_refused_for_what_they_are(ids: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        number_units(ids)


def test_names_of_bytes_that_are_no_text_are_different() -> None:
    assert number_units(np.array([b"\xc8", b"\xc9", b"\xc8"])).tolist() == [0, 1, 0]


# Sensitivity of a unit: all of its rows together move a sum by at most one clip norm.


QUERIES = {
    "plain": ClippedSum(CLIP),
    "normalised": ClippedSum(CLIP, "normalised"),
    "automatic": ClippedSum(CLIP, "automatic"),
    "per layer": ClippedSum(CLIP, per_layer=True),
    "functional": ClippedSum(CLIP, engine="functional"),
    "adaptive": Adaptive(ClippedSum(CLIP), Quantile(CLIP), 10.0),
    "two points": TwoPoint.of(ClippedSum(CLIP).clipping, 0.5, 0.7),
    "error feedback": ErrorFeedback(CLIP, CLIP),
}


def moved(plan: Plan, table: Table, loss: Losses = losses, steps: int | None = None) -> float:
    """By how much of a channel's bound the last unit, all of its rows, moves a sum at equal parameters; the most."""
    fewer = table.without_last()

    def sums(of: Table, given: Any) -> Any:
        how = {"unit": of.ids, "rows_per_unit": MOST}
        return recorded(plan, make_model(), loss, of.content, given=given, same="units", **how)

    with_it, releases = sums(table, None)
    without, _ = sums(fewer, releases)
    pairs = list(zip(with_it, without, strict=True))[:steps]
    return max(distance(a[name], b[name]) / plan.channels[name].bound for a, b in pairs for name in a)


@pytest.mark.parametrize("query", QUERIES)
def test_a_whole_unit_moves_a_sum_by_no_more_than_its_bound(query: str) -> None:
    """The error of error feedback differs from the second step on; what that costs is in its claims."""
    plan = replace(make(steps=6, accept_claimed=True), query=QUERIES[query])
    found = moved(plan, make_table(), steps=1 if query == "error feedback" else None)
    assert 0.5 < found <= 1.0  # the unit does count


@dataclass(frozen=True)
class RowWise:
    """A twin that clips each row, then puts a unit's rows together: added up, or averaged."""

    add: bool

    channels = ClippedSum(CLIP).channels
    init, finish, observe, claims = (
        staticmethod(getattr(ClippedSum(CLIP), name)) for name in ("init", "finish", "observe", "claims")
    )

    def piece(self, model: nn.Module, loss: Any, content: UnitRows, public: State) -> Sums:
        total: dict[str, Tensor] = {}
        for unit in range(len(content.weights)):
            there = content.weights[unit] > 0
            own = tuple(t[unit][there] for t in content.rows)
            sums = clipped_sums(_tape(model, own), ClippedSum(CLIP).clipping)["gradient"]
            share = 1.0 if self.add else 1.0 / int(there.sum())
            total = {name: total.get(name, 0) + share * value for name, value in sums.items()}
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        return {"gradient": zeros | total, "diagnostics": {}}


def _tape(model: nn.Module, rows: Any) -> Any:
    from hush.per_example.augmentation import Point
    from hush.per_example.functional import record_functional

    return record_functional(model, losses, rows, len(rows[0]), [Point()])


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_clipping_rows_before_their_mean_is_not_needed_and_adding_them_up_fails() -> None:
    """The mean of clipped rows obeys the bound that the clipped mean obeys; their sum has three times as much. The
    twins take their gradients in a way of their own, which fast arithmetic alone allows."""
    plan, table = make(steps=6, arithmetic="fast"), make_table()
    assert moved(plan, table) <= 1.0 + 1e-6
    assert 0.5 < moved(replace(plan, query=RowWise(add=False)), table) <= 1.0 + 1e-6
    assert moved(replace(plan, query=RowWise(add=True)), table) > 2.5


def pull(model: nn.Module, content: Any) -> Tensor:
    """A gradient that is the row itself."""
    return model(content[0]).squeeze(1)


def test_a_cap_that_looks_at_other_units_fails(monkeypatch) -> None:
    """A twin that divides everybody's rows by the largest unit's number of them: one unit more makes all others
    smaller, who are within the clip, and the sum moves by several clips."""
    table = make_table()
    alike = Table(torch.full_like(table.x, 0.45 * CLIP), table.y, table.ids)
    plan = replace(make(steps=1), query=ClippedSum(CLIP))
    monkeypatch.setitem(globals(), "make_model", lambda: nn.Linear(4, 1, bias=False))
    assert 0.5 < moved(plan, alike, pull) <= 1.0 + 1e-6
    original = Units.of

    def of_the_largest(rows: Any, ids: Any, most: int | None = None) -> Units:
        return original(rows, ids, max(Counter(ids).values()))

    def divided_alike(found: Any, counts: Any, most: int) -> UnitRows:
        content = spread_rows(found, counts, most)
        return UnitRows(content.rows, (content.weights > 0).double() / most)

    monkeypatch.setattr(Units, "of", staticmethod(of_the_largest))
    monkeypatch.setattr("hush.privacy_unit.spread_rows", divided_alike)
    assert moved(plan, alike, pull) > 2.0


def test_a_run_that_forgets_the_units_exceeds_the_bound() -> None:
    """Rows as examples of their own: the twenty rows of the last unit move a sum by far more than one clip."""
    table = make_table()
    fewer = table.without_last()
    rows = len(table.x)
    plan = make(unit="example", examples=rows, batch_size=rows // 2, steps=3, sample_rate=0.5)
    sums, releases = recorded(plan, make_model(), losses, table.content, same="rows")
    padded = (torch.cat([fewer.x, torch.full((20, 4), torch.nan)]), table.y)

    @dataclass
    class Unchecked:
        tensors: Any
        single: bool = False

        def __len__(self) -> int:
            return rows

        def take(self, indices: Tensor) -> Any:
            return Tensors.take(self, indices)  # type: ignore[arg-type]

    others, _ = recorded(plan, make_model(), losses, Unchecked(padded), given=releases, same="rows")
    assert max(distance(a["gradient"], b["gradient"]) for a, b in zip(sums, others, strict=True)) > 4 * CLIP


def test_views_and_units_together() -> None:
    def shifted(content: Any) -> Any:
        return content[0] + torch.rand(len(content[0]), 1), content[1]

    table = make_table()
    plan = make(steps=3)
    assert moved(plan, table, Augmented(losses, shifted, 2)) <= 1.0 + 1e-6
