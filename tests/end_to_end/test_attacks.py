"""Attacks on a proven ε with ordinary models and data; each of them once succeeded."""

from __future__ import annotations

import dataclasses
from collections import UserDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from hush import RunStateError, Secret, UnsupportedModelError, make_plan
from hush.accounting.guarantee import SECRET_GIVEN
from hush.clipping import Clipping
from hush.errors import DataError, ExamplesNotIndependent
from hush.per_example.augmentation import Augmented
from hush.per_example.gradients import per_example_gradients

pytestmark = pytest.mark.full_start_check

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def plan_for(examples: int, **options):
    given = {"batch_size": examples // 2, "steps": 4, "noise_multiplier": 2.0, "delta": 1e-3} | options
    return make_plan("dp-sgd", examples=examples, **given)


class Remembers(nn.Module):
    """A layer with running statistics that nobody knows by name."""

    def __init__(self, *, through_data: bool = False) -> None:
        super().__init__()
        self.fc, self.through_data = nn.Linear(4, 3), through_data
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        mean = self.mean.data if self.through_data else self.mean
        mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.fc(x)


def seed_with_batches(plan, model, *, first_empty: bool) -> int:
    for seed in range(200):
        run = plan.start(model, cross_entropy, (X, Y), secret=seed)
        sizes = [len(run.batch(step).indices) for step in range(2)]
        if (sizes[0] == 0) == first_empty and sizes[1] > 1:
            return seed
    raise AssertionError("no such seed")


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_a_buffer_that_learns_is_not_released_though_the_first_batch_is_empty(tmp_path, through_data):
    model, plan = Remembers(through_data=through_data), plan_for(24, batch_size=3)
    run = plan.start(model, cross_entropy, (X, Y), secret=seed_with_batches(plan, model, first_empty=True))
    with pytest.raises(UnsupportedModelError, match="'mean'"):  # inputs that are made up come before any batch
        run.step(run.batch(0))
    with pytest.raises(UnsupportedModelError, match="'mean'"):
        run.release(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_an_embedding_that_shrinks_the_rows_it_sees_is_refused(tmp_path, trained):
    embedding = nn.Embedding(9, 4, max_norm=0.1)
    embedding.weight.requires_grad_(trained)
    model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(8, 3))
    run = plan_for(24).start(model, cross_entropy, (torch.randint(0, 5, (24, 2)), Y), secret=1)
    with pytest.raises(UnsupportedModelError, match="'0.weight'"):
        run.step(run.batch(0))
    with pytest.raises(UnsupportedModelError, match="'0.weight'"):
        run.release(tmp_path)


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_a_batch_norm_that_is_switched_to_training_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    run = plan_for(24).start(model, cross_entropy, (X, Y), secret=1)
    run.step(run.batch(0))
    model.train()
    with pytest.raises(UnsupportedModelError, match="examples"):
        run.step(run.batch(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coarse_numbers_are_refused(dtype):
    with pytest.raises(UnsupportedModelError):
        plan_for(24).start(nn.Linear(4, 3).to(dtype), cross_entropy, (X, Y))


class BreaksOff(Exception):
    pass


def test_a_step_that_broke_off_after_its_noise_is_not_taken_again():
    @dataclasses.dataclass(frozen=True)
    class Stopped:
        """A rule interrupted after it moved the parameters, as Ctrl-C in a notebook does."""

        def init(self, params):
            return {}

        def step(self, params, release, state):
            for name, p in params.items():
                p.sub_(release.gradient[name])
            raise BreaksOff

    run = dataclasses.replace(plan_for(24), optimizer=Stopped()).start(nn.Linear(4, 3), cross_entropy, (X, Y))
    with pytest.raises(BreaksOff):
        run.step(run.batch(0))
    with pytest.raises(RunStateError, match="0"):
        run.step(run.batch(0))


class Pooled(nn.Module):
    """A linear layer over positions, then their mean: opposite inputs cancel."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.linear(x).mean(1)[:, :3]


def test_examples_whose_positions_cancel_are_clipped():
    make = torch.Generator().manual_seed(0)
    x = 1e7 * torch.randn(32, 2, 64, generator=make)
    x[:, 1] = -x[:, 0] + 100 * torch.randn(32, 64, generator=make)
    content = (x, torch.arange(32) % 3)
    norms = per_example_gradients(Pooled(), cross_entropy, content, engine="book-keeping").squared_norms()
    right = per_example_gradients(Pooled(), cross_entropy, content, engine="functional").squared_norms()
    added = Clipping(1.0).weigh(norms).weights * right["linear.weight"].sqrt()
    assert 0 < added.max() <= 1.0001  # it was above 100: their Gram matrices cancel to nothing or less


def seeded_linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def hardest_four(model, content):
    """Online hard example mining: whether an example counts depends on the others."""
    losses = cross_entropy(model, content)
    return losses * (losses >= losses.detach().topk(min(4, len(losses))).values[-1])


def test_a_loss_that_compares_more_examples_than_are_probed_is_found_out():
    run = plan_for(24, batch_size=20, steps=6).start(seeded_linear(), hardest_four, (X, Y), secret=1)
    with pytest.raises(ExamplesNotIndependent):  # one example moved a sum by 1.4 clips
        run.step(run.batch(0))


class Tabled(nn.Module):
    """A module without a rule, which is given a table next to the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x, table):
        return torch.exp(0.1 * x) * torch.sigmoid(self.weight) + table.sum(0)


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odd, self.fc = Tabled(), nn.Linear(4, 3)
        self.register_buffer("table", torch.randn(20, 4))

    def forward(self, x):
        return self.fc(self.odd(x, self.table))


@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
def test_a_table_as_long_as_the_batch_is_no_batch():
    model = WithTable()
    per_example_gradients(model, cross_entropy, (X[:7], Y[:7]))
    for n in (19, 20, 21):
        ours = per_example_gradients(model, cross_entropy, (X[:n], Y[:n])).squared_norms()
        right = per_example_gradients(model, cross_entropy, (X[:n], Y[:n]), engine="functional").squared_norms()
        for name in right:
            torch.testing.assert_close(ours[name], right[name], rtol=1e-4, atol=1e-6)


def test_an_edited_batch_changes_nothing() -> None:
    """The indices of a batch are there to look at; dropping or repeating examples in them has no effect."""
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))

    def losses(model: nn.Module, content) -> torch.Tensor:
        return nn.functional.cross_entropy(model(content[0]), content[1], reduction="none")

    def trained(edit) -> torch.Tensor:
        torch.manual_seed(0)
        plan = make_plan("dp-sgd", examples=12, batch_size=6, steps=3, noise_multiplier=1.0)
        run = plan.start(nn.Linear(3, 2), losses, (x, y), secret=1)
        for batch in run.batches():
            run.step(edit(batch))
        return run.model.weight.detach()

    def emptied(batch):
        batch.indices.zero_()
        return dataclasses.replace(batch, indices=batch.indices[:0])

    assert torch.equal(trained(lambda batch: batch), trained(emptied))


def own_optimizer(model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cross_entropy(model, (X, Y)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def data_in_place(model) -> None:
    model.weight.data.add_(X.mean(0))


def data_replaced(model) -> None:
    model.weight.data = model.weight.data + 1e-3


def loaded(model) -> None:
    model.load_state_dict({name: t + 1e-3 for name, t in model.state_dict().items()})


def one_bit(model) -> None:
    with torch.no_grad():
        model.weight.view(torch.int32)[1, 2] ^= 1


def another_parameter(model) -> None:
    model.weight = nn.Parameter(model.weight.detach() + 1.0)


CHANGES = [own_optimizer, data_in_place, data_replaced, loaded, one_bit, another_parameter]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_changed_between_steps_are_noticed_at_the_next_step(tmp_path, change):
    run = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    run.step(run.batch(0))
    change(run.model)
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="'weight'"):
            run.step(run.batch(1))
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.release(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", CHANGES)
def test_weights_changed_after_the_last_step_are_not_released(tmp_path, change):
    run = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    for batch in run.batches():
        run.step(batch)
    change(run.model)
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        run.release(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_forward_that_writes_into_its_weights_by_data_is_refused():
    class Outer(nn.Module):
        """Writes into a weight that it keeps besides the module."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.kept = [self.linear.weight]

        def forward(self, x):
            self.kept[0].data.mul_(1.001)
            return self.linear(x)

    run = plan_for(24).start(Outer(), cross_entropy, (X, Y), secret=1)
    with pytest.raises(UnsupportedModelError):
        run.step(run.batch(0))
    assert run.next == 0


@pytest.mark.parametrize("method", ["dp-sgd", "dp-adam", "dp-ftrl", "dp-disk"])
def test_what_the_rule_writes_is_its_own(tmp_path, method):
    run = make_plan(method, examples=24, batch_size=12, steps=4, noise_multiplier=2.0, delta=1e-3, average="ema").start(
        seeded_linear(), cross_entropy, (X, Y), secret=1
    )
    for batch in run.batches():
        run.step(batch)
    assert (run.release(tmp_path / "out") / "model.safetensors").exists()


def test_weights_may_be_set_before_the_first_step(tmp_path):
    run = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    loaded(run.model)
    start = {name: t.clone() for name, t in run.model.state_dict().items()}
    for batch in run.batches():
        run.step(batch)
    released = load_file(run.release(tmp_path / "out") / "model.safetensors")
    twin = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    twin.model.load_state_dict(start)
    for batch in twin.batches():
        twin.step(batch)
    assert released.keys() == start.keys()
    for name, value in twin.model.state_dict().items():
        assert torch.equal(released[name], value)
        assert not torch.equal(released[name], start[name])


def test_a_run_without_steps_releases_what_it_was_started_with_or_nothing(tmp_path):
    untouched = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    assert untouched.release(tmp_path / "untouched").is_dir()
    trained = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    own_optimizer(trained.model)
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        trained.release(tmp_path / "trained")


def test_a_secret_that_was_handed_in_is_assumed_to_be_used_once():
    plan, secret = plan_for(24), Secret.fresh()
    told = plan.start(seeded_linear(), cross_entropy, (X, Y), secret=secret).guarantee
    assert SECRET_GIVEN in told.conditions
    assert SECRET_GIVEN not in plan.start(seeded_linear(), cross_entropy, (X, Y)).guarantee.conditions


def test_the_plan_and_the_model_of_a_run_stay():
    run = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y))
    with pytest.raises(AttributeError):
        run.plan = plan_for(24, noise_multiplier=9.0)
    with pytest.raises(AttributeError):
        run.model = seeded_linear()


def test_a_run_that_goes_on_does_so_from_its_own_weights():
    first = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    first.step(first.batch(0))
    kept = first.state()
    again = plan_for(24).start(seeded_linear(), cross_entropy, (X, Y), secret=1)
    again.restore(kept, compared=True)
    own_optimizer(again.model)
    with pytest.raises(UnsupportedModelError, match="'weight'"):
        again.step(again.batch(1))


class Tables(nn.Module):
    """Keeps a table for the longest input so far, and how long it is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.longest, self.table = nn.Linear(4, 3), 0, None

    def forward(self, x):
        if x.shape[1] > self.longest:
            self.longest = x.shape[1]
            self.table = torch.cos(torch.arange(self.longest))
        return self.fc(x * self.table[: x.shape[1]])


def test_a_number_that_speaks_of_a_tensor_goes_with_it():
    """The tensor is taken away after a forward, for it could be a memory; alone, the number would promise one."""
    model = Tables()
    run = plan_for(24).start(model, cross_entropy, (X, Y), secret=1)
    for batch in run.batches():
        run.step(batch)
    assert (model.longest, model.table) == (0, None)


# Attacks that let one example reach others: through attributes of batch tensors, augmentations, or state kept by
# forward.


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
    with pytest.raises(DataError, match="24.*20"):
        plan_for(24).start(seeded_linear(), cross_entropy, data)
    whose = [place % 24 for place in REPEATED]
    run = plan_for(20, unit="person", arithmetic="fast").start(seeded_linear(), cross_entropy, data, unit=whose)
    assert len(run.source) == 20


WHOLE = TensorDataset(X, Y)
OVERLAPPING = {
    "twice": WHOLE + WHOLE,
    "the same tensors": WHOLE + TensorDataset(X, Y),
    "parts of one": Subset(WHOLE, range(24)) + Subset(WHOLE, [-1, *range(23)]),
    "of several parts": Subset(WHOLE + TensorDataset(X + 1, Y) + WHOLE, [*range(24), *range(48, 72)]),
    "within": ConcatDataset([Subset(WHOLE + WHOLE, range(12, 48)), Subset(WHOLE, range(12))]),
}


@pytest.mark.parametrize("which", OVERLAPPING)
@pytest.mark.parametrize("loaded", [False, True])
def test_joined_datasets_that_share_examples_are_refused_unless_their_copies_are_one_unit(which, loaded):
    data = DataLoader(OVERLAPPING[which]) if loaded else OVERLAPPING[which]
    with pytest.raises(DataError, match="48.*24"):
        plan_for(48).start(seeded_linear(), cross_entropy, data)
    plan_for(24, unit="person", arithmetic="fast").start(
        seeded_linear(), cross_entropy, data, unit=[i % 24 for i in range(48)]
    )


def test_joined_datasets_without_common_examples_are_data():
    first, second = Subset(WHOLE, range(10)), Subset(WHOLE, range(10, 24))
    data = Subset(first + second + TensorDataset(X + 1, Y), [-1, *range(47)])
    assert len(plan_for(48).start(seeded_linear(), cross_entropy, data).source) == 48


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
