"""Attempts to let one example reach the others: through what stands beside the tensors of a batch, through an
augmentation, through what a forward keeps; each of them once succeeded."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from hush import make_plan
from hush.errors import DataError, UnsupportedModelError
from hush.per_example.augmentation import Augmented
from test_attacks import X, Y, cross_entropy, plan_for, seeded_linear

pytestmark = pytest.mark.full_start_check

MATRIX = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))


def take_steps(run) -> None:
    for batch in run.batches():
        run.step(batch)


class Named(Dataset):
    """Items with a name beside the numbers, which torch collates to a list, or with the same word for all."""

    def __init__(self, *, same: bool) -> None:
        self.same = same

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index], "a word" if self.same else f"person {index}"


def by_length(model, content):
    return cross_entropy(model, content) / max(1, len(content[2]))


@pytest.mark.parametrize("arithmetic", ["fast", "rigorous"])
def test_a_list_beside_the_tensors_is_not_the_same_for_an_example_alone(arithmetic):
    with pytest.raises(UnsupportedModelError, match=r"content\[2\]"):
        plan_for(24, arithmetic=arithmetic).start(seeded_linear(), by_length, Named(same=False))


class Tagged(UserDict):
    """A batch that is read by attribute as well, as a tokenizer's is."""


def with_empty_tags(indices):
    return {"x": X[indices], "y": Y[indices], "tags": [{} for _ in indices]}


def with_hidden_tags(indices):
    batch = Tagged({"x": X[indices], "y": Y[indices]})
    batch.tags = list(range(len(indices)))
    return batch


def with_hidden_tensor(indices):
    batch = Tagged({"x": X[indices], "y": Y[indices]})
    batch.tags = X[indices]
    return batch


class Taken:
    """A source by a function of the indices."""

    def __init__(self, take) -> None:
        self.take = take

    def __len__(self):
        return len(X)


@pytest.mark.parametrize("take", [with_empty_tags, with_hidden_tags, with_hidden_tensor])
def test_what_hides_in_a_container_is_seen_too(take):
    with pytest.raises(UnsupportedModelError, match=r"at content(\['tags'\]|\.tags)"):
        plan_for(24).start(seeded_linear(), of_mapping, Taken(take))


@pytest.mark.parametrize(
    "form", [torch.Tensor.to_sparse, lambda x: torch.nested.nested_tensor(list(x)) if len(x) else x]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_one_shape_per_example_are_refused(form):
    with pytest.raises(DataError):
        plan_for(24).start(seeded_linear(), cross_entropy, Taken(lambda indices: (form(X[indices]), Y[indices])))


REPEATED = [*range(20), 7, 7, 7, -17]  # example 7 five times


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_an_example_that_a_subset_repeats_is_refused_unless_its_copies_are_one_unit(loaded, within):
    data = Subset(TensorDataset(X, Y), REPEATED)
    data = Subset(data, list(range(24))) if within else data
    data = DataLoader(data) if loaded else data
    with pytest.raises(DataError, match="24 examples of a Subset are 20 different"):
        plan_for(24).start(seeded_linear(), cross_entropy, data)
    whose = [place % 24 for place in REPEATED]
    run = plan_for(20, unit="person", arithmetic="fast").start(seeded_linear(), cross_entropy, data, unit=whose)
    assert len(run.source) == 20


def test_a_subset_without_repeats_is_data():
    run = plan_for(20).start(seeded_linear(), cross_entropy, Subset(TensorDataset(X, Y), range(20)))
    assert len(run.source) == 20


class Worded:
    """A source of tensors with a word beside them, that of the batch's first example."""

    def __init__(self, words) -> None:
        self.words = words

    def __len__(self):
        return len(X)

    def take(self, indices):
        first = int(indices[0]) if len(indices) else 0
        return {"x": X[indices], "y": Y[indices], "word": self.words[first], "none": None}


def of_mapping(model, content):
    return cross_entropy(model, (content["x"], content["y"]))


def test_words_that_are_the_same_in_every_batch_may_stand_beside_tensors():
    run = plan_for(24).start(seeded_linear(), of_mapping, Worded(["same"] * 24), secret=1)
    for batch in run.batches():
        run.step(batch)
    assert run.next == 4


def test_a_word_that_changes_in_a_later_batch_stops_the_run():
    run = plan_for(24).start(seeded_linear(), of_mapping, Worded(["same"] * 4 + ["other"] * 20), secret=1)
    with pytest.raises(UnsupportedModelError, match=r"content\['word'\]"):
        take_steps(run)


def mix_up(content):
    return 0.5 * content[0] + 0.5 * content[0].roll(1, 0), content[1]


def by_the_largest(content):
    return content[0] / content[0].abs().amax().clamp(min=1e-3), content[1]


def with_a_number(content):
    return content[0], content[1], np.float32(content[0].abs().max())


def to_levels(content):
    """Rounding makes a level of a last bit that another number of rows changes."""
    return ((content[0] @ MATRIX) * 8).round() / 8, content[1]


def with_noise(content):
    return content[0] + 0.1 * torch.randn_like(content[0]), content[1]


@pytest.mark.parametrize("augment", [mix_up, by_the_largest, with_a_number])
@pytest.mark.parametrize("views", [1, 3])
def test_an_augmentation_in_which_examples_meet_is_refused(augment, views):
    run = plan_for(24).start(seeded_linear(), Augmented(cross_entropy, augment, views), (X, Y), secret=1)
    with pytest.raises(UnsupportedModelError):
        take_steps(run)
    assert run.next == 0


@pytest.mark.parametrize("augment", [with_noise, to_levels])
@pytest.mark.parametrize("method", ["dp-sgd", "dp-disk"])
def test_an_augmentation_that_looks_at_each_example_alone_is_not(method, augment):
    plan = make_plan(method, examples=24, batch_size=12, steps=4, noise_multiplier=2.0, delta=1e-3)
    run = plan.start(seeded_linear(), Augmented(cross_entropy, augment, 2), (X, Y), secret=1)
    for batch in run.batches():
        run.step(batch)
    assert run.next == 4


class Peak(nn.Module):
    """Keeps the largest number that it has seen, as a number of Python or numpy; or counts its forwards."""

    def __init__(self, keep) -> None:
        super().__init__()
        self.fc, self.keep, self.peak = nn.Linear(4, 3), keep, 1

    def forward(self, x):
        self.peak = self.keep(self.peak, x)
        return self.fc(x / self.peak if isinstance(self.peak, float) else x)


def largest(peak, x):
    return max(float(peak), float(x.detach().abs().max()) if len(x) else 0.0)


def numpy_largest(peak, x):
    return np.float32(largest(peak, x))


def in_a_tuple(peak, x):
    return (largest(1, x),)


def count(peak, x):
    return peak + 1


def same(peak, x):
    return x.shape[-1] ** -0.5


@pytest.mark.parametrize("keep", [largest, numpy_largest, in_a_tuple])
@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_a_number_that_a_forward_keeps_of_its_batch_is_refused(keep):
    run = plan_for(24).start(Peak(keep), cross_entropy, (X, Y), secret=1)
    with pytest.raises(UnsupportedModelError, match="'peak'"):
        run.step(run.batch(0))
    assert run.model.peak == 1


def test_a_tensor_that_a_forward_writes_into_is_refused():
    model = Peak(lambda peak, x: peak)
    model.kept = torch.zeros(1)
    model.register_forward_hook(lambda module, given, out: module.kept.fill_(float(given[0].detach().sum())) and None)
    run = plan_for(24).start(model, cross_entropy, (X, Y), secret=1)
    with pytest.raises(UnsupportedModelError, match="'kept'"):
        run.step(run.batch(0))


@pytest.mark.parametrize("before", [None, 0.5])
def test_a_number_that_is_always_the_same_may_be_left(before):
    model = Peak(same)
    model.peak = before
    take_steps(plan_for(24).start(model, cross_entropy, (X, Y), secret=1))
    assert model.peak == before


def test_a_whole_number_may_count_forwards():
    run = plan_for(24).start(Peak(count), cross_entropy, (X, Y), secret=1)
    run.step(run.batch(0))
    assert run.model.peak > 1
