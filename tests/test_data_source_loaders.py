"""A DataLoader's dataset, collate function and workers in the plan's batches: the same sums as plain tensors."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from hush import InvalidInputError, make_plan
from hush.accounting.guarantee import COLLATED, DRAWN, SHAPE, TAKEN, say_own_data
from hush.checkpointing import Checkpoints
from hush.data_source import _Items, as_source, check_rows, tensors_of
from hush.errors import DataError, UnsupportedModelError
from hush.per_example.chunks import MODES
from hush.training import take_steps
from replay import sensitivities

N, STEPS = 40, 6
X = torch.linspace(-3, 3, N * 3).view(N, 3).sin()
Y = torch.arange(N) % 2
PAIRS = TensorDataset(X, Y)


def network() -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    return model


def losses(model, content):
    return cross_entropy(model(content[0]), content[1], reduction="none")


def plan(**more):
    usual = {"examples": N, "batch_size": 10, "steps": STEPS, "noise_multiplier": 1.0}
    return make_plan("dp-sgd", **(usual | more))


def trained(data, p=None, *, calls=losses, secret=1, **more):
    run = (p or plan()).start(network(), calls, data, secret=secret, **more)
    for _ in take_steps(run):
        pass
    return run


def same(one, other) -> bool:
    one, other = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(one[name], other[name]) for name in one)


def stack(items):
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


LOADERS = {
    "plain": {"batch_size": 4},
    "shuffled": {"batch_size": 7, "shuffle": True, "drop_last": True},
    "batch-sampler": {"batch_sampler": BatchSampler(RandomSampler(PAIRS), 3, drop_last=True)},
    "collate": {"batch_size": 4, "collate_fn": stack},
    "workers": {"batch_size": 4, "num_workers": 2},
    "workers-collate": {"batch_size": 4, "num_workers": 1, "collate_fn": stack, "prefetch_factor": 3},
}


@pytest.mark.parametrize("how", LOADERS)
def test_a_loader_gives_the_same_bits_as_its_dataset_and_as_tensors(how) -> None:
    run = trained(DataLoader(PAIRS, **LOADERS[how]))
    assert same(run, trained(PAIRS))
    assert same(run, trained((X, Y)))
    assert not same(run, trained((X, Y), secret=2))  # the comparison can fail


@pytest.mark.parametrize("more", [{"microbatch": 4}, {"p": plan(sampling="shuffled")}, {"p": plan(sample_rate=0.02)}])
def test_workers_and_pieces_and_empty_batches(more) -> None:
    """At rate 0.02 and 40 examples, 45 of 100 batches are empty."""
    assert same(trained(DataLoader(PAIRS, num_workers=2), **more), trained((X, Y), **more))


def test_workers_do_what_comes_next_and_nothing_comes_from_the_wrong_batch(monkeypatch) -> None:
    source = as_source(DataLoader(PAIRS, num_workers=2))
    here: list[list[int]] = []
    direct = type(source)._take_here
    monkeypatch.setattr(type(source), "_take_here", lambda self, wanted: here.append(wanted) or direct(self, wanted))
    future = [torch.tensor(rows, dtype=torch.int64) for rows in ([3, 1], [], [5], [7, 8, 9], [2])]
    asked: list[int] = []
    source.follow(lambda: iter(future[len(asked) :]))
    for rows in future:
        assert torch.equal(source.take(rows)[0], X[rows])
        asked.append(len(rows))
    assert here == []  # the workers had them all
    asked.clear()
    assert torch.equal(source.take(torch.tensor([3, 1]))[0], X[[3, 1]])
    assert torch.equal(source.take(torch.tensor([9, 9]))[0], X[[9, 9]])  # not promised
    assert here == [[9, 9]]


class Several(Dataset):
    """Items that depend on each other if several are read at once."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return PAIRS[index]

    def __getitems__(self, indices):
        sign = -1 if len(indices) > 1 else 1
        return [(sign * PAIRS[i][0], PAIRS[i][1]) for i in indices]


@pytest.mark.parametrize("data", [Several(), Subset(Several(), range(N)), ConcatDataset([Several()])])
@pytest.mark.parametrize("workers", [0, 1])
def test_workers_read_items_one_by_one_as_the_checks_do(data, workers) -> None:
    assert same(trained(DataLoader(data, num_workers=workers)), trained((X, Y)))
    assert pickle.dumps(_Items(data))  # for workers that are not forked


def test_a_step_taken_again_with_a_fresh_secret_gets_its_own_rows() -> None:
    runs = [plan().start(network(), losses, data, secret=1) for data in (DataLoader(PAIRS, num_workers=2), (X, Y))]
    for run in runs:
        run.step(run.batch(0))
    runs[0].use_fresh_secret()
    params = {n: p.clone() for n, p in runs[0].model.state_dict().items()}
    runs[1].restore(runs[0].state() | {"params": params}, compared=True)
    for run in runs:
        for _ in take_steps(run):
            pass
    assert same(*runs)


def test_a_resume_with_workers_goes_on_to_the_same_bits(tmp_path) -> None:
    loader = DataLoader(PAIRS, num_workers=2)
    run, kept = plan().start(network(), losses, loader, secret=1), Checkpoints(tmp_path)
    for _ in take_steps(run, checkpoints=kept, every=1):
        if run.next == 3:
            break
    kept.close()
    again, kept = plan().start(network(), losses, loader), Checkpoints(tmp_path)
    kept.restore(again, kept.newest().saved)
    for _ in take_steps(again):
        pass
    kept.close()
    assert same(again, trained((X, Y)))


def test_the_users_own_generator_is_left_alone() -> None:
    run = plan().start(network(), losses, DataLoader(PAIRS, num_workers=1))
    before = torch.get_rng_state()
    for _ in take_steps(run):
        pass
    assert torch.equal(before, torch.get_rng_state())


def test_one_example_moves_a_sum_by_its_clip_at_most() -> None:
    other = X.clone()
    other[-1] = -100.0
    p = plan(sampling="same-order", steps=4)
    loaders = [DataLoader(TensorDataset(x, Y), batch_size=3, shuffle=True, collate_fn=stack) for x in (X, other)]
    moved = [step["gradient"] for step in sensitivities(p, network, losses, *loaders)]
    assert sorted(moved)[:3] == [0, 0, 0]
    assert 0.5 < max(moved) <= 2.0  # replaced: once out, once in


def test_what_is_replaced_is_said_once(caplog) -> None:
    with caplog.at_level(logging.INFO, logger="hush"):
        trained(DataLoader(PAIRS, batch_size=8, shuffle=True, num_workers=1))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "hush"]
    assert line == (
        "the DataLoader's dataset, the collate function and 1 workers are used; its batches (batch_size=8, "
        "shuffle=True) are replaced by those that the plan draws, because the guarantee depends on them"
    )
    caplog.clear()
    trained(PAIRS)
    assert not caplog.records


class Words(Dataset):
    """Sentences as tokenizers give them; the one in ``longer`` is longer than the others."""

    def __init__(self, longer=30):
        self.longer = longer

    def __len__(self):
        return N

    def __getitem__(self, index):
        words = list(range(1, 2 + index % 5))
        return {"input_ids": words + [0] * (5 - len(words)) + [1] * (index == self.longer), "label": index % 2}


def pad_to(items, width):
    ids = torch.zeros(len(items), width, dtype=torch.int64)
    for row, item in zip(ids, items, strict=True):
        row[: len(item["input_ids"])] = torch.tensor(item["input_ids"])
    labels = torch.tensor([item["label"] for item in items], dtype=torch.int64)
    return {"input_ids": ids, "mask": (ids > 0).float(), "labels": labels}


def pad(items):
    """To the longest sentence of the batch."""
    return pad_to(items, max((len(item["input_ids"]) for item in items), default=5))


def pad_to_six(items):
    return pad_to(items, 6)


class Padding:
    """A source of the user's own, padded by a function of the items."""

    def __init__(self, collate, items=None):
        self.collate, self.items = collate, items or Words()

    def __len__(self):
        return N

    def take(self, indices):
        return self.collate([self.items[i] for i in indices.tolist()])


class Bag(torch.nn.Module):
    """Mean of word vectors without the padding."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)

    def forward(self, input_ids, mask):
        vectors = self.embed(input_ids) * mask[..., None]
        return self.head(vectors.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def word_losses(model, batch):
    return cross_entropy(model(batch["input_ids"], batch["mask"]), batch["labels"], reduction="none")


def of_loader(collate, items=None):
    return DataLoader(items or Words(), collate_fn=collate)


MAKERS = {"collate function": of_loader, "source": Padding}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_dict_batches_padded_to_a_declared_length_work_and_the_guarantee_lists_its_conditions(make) -> None:
    run = plan().start(Bag(), word_losses, make(pad_to_six))
    for _ in take_steps(run):
        pass
    assert run.next == STEPS
    alone = COLLATED if make is of_loader else TAKEN
    assert {alone, SHAPE, say_own_data("example")} <= set(run.guarantee.conditions)
    assert not {COLLATED, TAKEN, SHAPE} & set(trained(DataLoader(PAIRS)).guarantee.conditions)
    assert not {COLLATED, TAKEN, SHAPE} & set(trained((X, Y)).guarantee.conditions)


@pytest.mark.parametrize("arithmetic", MODES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_batches_padded_to_their_longest_example_are_refused_before_noise(make, arithmetic) -> None:
    """One long example would change the shape, and with it the gradients, of all others in its batch."""
    run = plan(arithmetic=arithmetic, sampling="same-order", steps=4).start(Bag(), word_losses, make(pad), secret=1)
    before = {}
    while 30 not in (batch := run.batch(run.next)).indices:
        run.step(batch)
        before = {n: p.clone() for n, p in run.model.state_dict().items()}
    with pytest.raises(DataError, match="input_ids"):
        run.step(batch)
    assert all(torch.equal(before[n], p) for n, p in run.model.state_dict().items() if before)
    assert run.history.now.taken == run.next < 4
    assert run.state()["step"] == run.next  # no step was broken off: nothing of the noise was drawn


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_lengths_that_differ_among_the_first_examples_are_refused_at_the_start(make) -> None:
    with pytest.raises(DataError, match="input_ids"):
        plan().start(Bag(), word_losses, make(pad, Words(longer=2)))


class Mixed(Dataset):
    """Whole numbers, and one example with a fraction: torch collates each batch to the type of its first."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return X[index], 0.5 if index == 30 else index % 2


@pytest.mark.parametrize("arithmetic", MODES)
def test_one_example_that_changes_the_type_of_its_batch_is_refused(arithmetic) -> None:
    def own(model, content):
        return cross_entropy(model(content[0]), content[1].long(), reduction="none")

    run = plan(arithmetic=arithmetic, sampling="same-order", steps=4).start(network(), own, Mixed(), secret=1)
    with pytest.raises(DataError, match=r"content\[1\]"):
        for _ in take_steps(run):
            pass


def test_a_source_without_an_empty_batch_is_refused() -> None:
    with pytest.raises(DataError, match="ValueError"):
        plan().start(Bag(), word_losses, Padding(lambda items: pad_to(items, max(len(i["input_ids"]) for i in items))))


def test_rows_of_a_unit_are_assumed_to_hold_its_data_alone() -> None:
    ids = [i // 2 for i in range(N)]
    made = plan(examples=N // 2, unit="patient").start(network(), losses, (X, Y), unit=ids)
    assert say_own_data("patient") in made.guarantee.conditions


class Noisy(Dataset):
    """Flips an example by a coin."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return (X[index] if torch.rand(()) < 0.5 else -X[index]), Y[index]


def test_random_items_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModelError):
        plan().start(network(), losses, DataLoader(Noisy()))


def test_random_items_of_a_plain_dataset_are_an_assumption() -> None:
    """With a generator whose seed is known, who is in a batch decides how the others are flipped."""
    torch.manual_seed(0)
    model, before = network(), torch.get_rng_state()
    assert DRAWN in plan().start(model, losses, Noisy()).guarantee.assumptions
    assert torch.equal(torch.get_rng_state(), before)
    assert DRAWN not in plan().start(network(), losses, PAIRS).guarantee.assumptions


def mixup(items):
    x, y = stack(items)
    return 0.7 * x + 0.3 * x.flip(0), y


def test_a_collate_function_that_mixes_examples_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="examples"):
        plan().start(network(), losses, DataLoader(PAIRS, collate_fn=mixup))
    with pytest.raises(InvalidInputError, match="examples"):
        check_rows(as_source(DataLoader(PAIRS, collate_fn=lambda items: (stack(items)[0].mT, torch.tensor(3)))))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(PAIRS)


class Endless(Dataset):
    def __getitem__(self, index):
        return PAIRS[index]


def test_streams_and_loaders_that_do_not_collate_are_refused_in_words() -> None:
    for data in (Stream(), DataLoader(Stream(), batch_size=4)):
        with pytest.raises(InvalidInputError, match="IterableDataset.*"):
            plan().start(network(), losses, data)
    with pytest.raises(InvalidInputError, match="batch_size=None"):
        plan().start(network(), losses, DataLoader(PAIRS, batch_size=None))
    with pytest.raises(InvalidInputError, match="__len__"):
        plan().start(network(), losses, Endless())


def test_numpy_arrays_are_data() -> None:
    x, y = X.numpy(), Y.numpy()
    fixed = x.copy()
    fixed.flags.writeable = False
    for data in ((x, y), [x, Y], (fixed, y)):
        assert same(trained(data), trained((X, Y)))
    assert torch.equal(as_source(x).take(torch.tensor([2, 0])), X[[2, 0]])
    assert [t.dtype for t in tensors_of(as_source((x.astype("float64"), y)).take(torch.tensor([1])))] == [
        torch.float64,
        torch.int64,
    ]
    for bad in (np.array(["a", "b"]), x[::-1], np.array([None])):
        with pytest.raises(InvalidInputError, match="array"):
            as_source(bad)


# planned, there are, what is said: declared numbers may be one too few or a tenth too many, counted ones not
SIZES = [
    ({}, 700, 600, "700 examples and the data has far fewer"),
    ({}, 600, 700, "600 examples and the data has more"),
    ({}, 600, 602, "has more"),
    ({"counted": True}, 600, 599, "600 examples and the data has 599"),
    ({"counted": True}, 600, 601, "600 examples and the data has 601"),
    ({"sampling": "same-order"}, 600, 700, "600 examples and the data has 700"),
    ({"sampling": "fixed-size"}, 700, 600, "700 examples and the data has 600"),
    ({}, 600, 601, None),
    ({}, 600, 540, None),
    ({"counted": True}, 600, 600, None),
]


@pytest.mark.parametrize(("more", "planned", "there", "said"), SIZES)
def test_data_of_another_size_than_the_plans_are_refused(more, planned, there, said) -> None:
    p = plan(examples=planned, **more)
    if said is None:
        assert p.start(network(), losses, (torch.zeros(there, 3), torch.zeros(there).long())).next == 0
        return
    with pytest.raises(InvalidInputError, match=said):
        p.start(network(), losses, (torch.zeros(there, 3), torch.zeros(there).long()))


def test_a_plan_that_was_changed_keeps_the_number_it_was_made_for() -> None:
    swapped = replace(plan(), sampler=plan(examples=50).sampler)
    with pytest.raises(InvalidInputError, match="50"):
        swapped.start(network(), losses, (X, Y))
