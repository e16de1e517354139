"""Tensor values read into Python: their control flow must be the same for every batch, or the run stops."""

from __future__ import annotations

import functools
import pickle
import types
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hush import make_plan
from hush.aggregation import FORGETFUL, SEPARATE
from hush.bench.trial import WatchedLosses
from hush.datasets import problem as problem_module
from hush.datasets.images import shifted
from hush.datasets.models import logistic
from hush.datasets.problem import cross_entropy as shipped_losses
from hush.errors import RunStateError, UnsupportedModelError
from hush.per_example.augmentation import Augmented, average_rows
from hush.per_example.engine import PERIOD, SpotChecks, count_spot_checks, verdict_of
from hush.per_example.gradients import _Recording
from hush.per_example.model_checks import has_known_augmentation, is_known_separate
from hush.per_example.reads import ReadLog, differentiate, logging_to, watching_reads
from hush.per_example.result import GradientWarning
from hush.privacy_unit import UnitLosses
from hush.randomness import Secret
from mixing_models import X, Y, cross_entropy

RARE = 7.25  # a value that made-up inputs do not have
ODD = X.clone()
ODD[5, 3] = RARE
ARITHMETIC = pytest.mark.parametrize("arithmetic", ["fast", "rigorous"])
SLOW = pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")


class Reading(nn.Module):
    """A linear model whose inputs pass a function first."""

    def __init__(self, change) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 3)
        self.change, self.scale = change, nn.Parameter(torch.ones(()))
        self.register_buffer("limit", torch.ones(()))

    def forward(self, x):
        return self.linear(self.change(self, x))


def start(model, losses=cross_entropy, x=X, **options):
    given = {"examples": 24, "batch_size": 12, "steps": 6, "noise_multiplier": 2.0, "delta": 1e-3} | options
    return make_plan("dp-sgd", **given).start(model, losses, (x, Y), secret=3)


def take_steps(run):
    for batch in run.batches():
        run.step(batch)


def find_step(run, example):
    """The first step whose batch holds this example."""
    return next(step for step in range(run.plan.steps) if example in run.batch(step).indices)


def by_bool(model, x):
    return x * 0 if (x[:, 3] == RARE).any() else x


def by_item(model, x):
    return x * 0 if (x[:, 3] == RARE).sum().item() else x


def by_float(model, x):
    return x * 0 if float((x[:, 3] == RARE).any()) else x


def by_int(model, x):
    return x * 0 if int((x[:, 3] == RARE).sum()) else x


def by_index(model, x):
    return x * (1, 0)[(x[:, 3] == RARE).sum().clamp(max=1)]


def by_tolist(model, x):
    return x * 0 if any((x[:, 3] == RARE).tolist()) else x


def by_numpy(model, x):
    return x * 0 if (x[:, 3] == RARE).numpy().any() else x


def by_array(model, x):
    return x * 0 if np.asarray(x[:, 3] == RARE).any() else x


def by_nonzero(model, x):
    return x * 0 if len((x[:, 3] == RARE).nonzero()) else x


def by_where(model, x):
    return x * 0 if len(torch.where(x[:, 3] == RARE)[0]) else x


def by_mask(model, x):
    return x * 0 if len(x[x[:, 3] == RARE]) else x


def by_masked_select(model, x):
    return x * 0 if len(torch.masked_select(x, x == RARE)) else x


def by_unique(model, x):
    return x * 0 if len(torch.unique(x[:, 3] == RARE)) > 1 else x


def by_equal(model, x):
    return x if torch.equal(x[:, 3] == RARE, torch.zeros(len(x), dtype=torch.bool)) else x * 0


def by_contains(model, x):
    return x * 0 if RARE in x[:, 3] else x


def by_text(model, x):
    return x * 0 if "True" in str(x[:, 3] == RARE) else x


def by_slice(model, x):
    return x * (0 if len(x[: (x[:, 3] == RARE).sum()]) else 1)


def by_number_of_entries(model, x):
    return x * 0 if (x == RARE).float().to_sparse()._nnz() else x


def by_merged_entries(model, x):
    where = torch.stack([torch.arange(len(x)), (x[:, 3] != RARE).long()])
    where = torch.cat([where, torch.stack([where[0], torch.ones_like(where[0])])], 1)
    merged = torch.sparse_coo_tensor(where, torch.ones(2 * len(x)), (len(x), 2)).coalesce()
    return x * 0 if merged._nnz() > len(x) else x


def by_size_of_entries(model, x):
    where = torch.stack([torch.arange(len(x)), (x[:, 3] == RARE).long()])
    return x * 0 if torch.sparse_coo_tensor(where, torch.ones(len(x))).shape[1] > 1 else x


def by_missing_index(model, x):
    try:
        F.embedding((x[:, 3] == RARE).long(), torch.zeros(1, 1))
    except IndexError:
        return x * 0
    return x


def by_missing_column(model, x):
    try:
        torch.zeros(len(x), 1).gather(1, (x[:, 3:] == RARE).long())
    except RuntimeError:
        return x * 0
    return x


def by_factor(model, x):
    try:
        torch.linalg.cholesky((x[:, 3] != RARE).float()[:, None, None])
    except torch.linalg.LinAlgError:
        return x * 0
    return x


def by_missing_class(model, x):
    try:
        F.nll_loss(torch.zeros(len(x), 1), (x[:, 3] == RARE).long())
    except IndexError:
        return x * 0
    return x


@torch.library.custom_op("tests::rows_of_rare_values", mutates_args=())
def rows_of_rare_values(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(int((x == RARE).sum()))


def by_own_operation(model, x):
    return x * 0 if len(rows_of_rare_values(x.detach())) else x


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, odd):
        ctx.save_for_backward(odd)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (0 if any(ctx.saved_tensors[0].tolist()) else 1), None


class ByBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return Backward.apply(self.linear(x), x[:, 3] == RARE)


WAYS = [by_bool, by_item, by_float, by_int, by_index, by_tolist, by_numpy, by_array, by_nonzero, by_where, by_mask]
WAYS += [by_masked_select, by_unique, by_equal, by_contains, by_text, by_slice, by_number_of_entries, by_merged_entries]
WAYS += [by_size_of_entries, by_missing_index, by_missing_column, by_factor, by_missing_class, by_own_operation]


@ARITHMETIC
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_reads_another_value_stops_before_its_noise(way, arithmetic, tmp_path, monkeypatch):
    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, period=10**9, first=-1))
    model = Reading(way)
    run = start(model, x=ODD, arithmetic=arithmetic)
    odd = find_step(run, 5)
    for step in range(odd):
        run.step(run.batch(step))
    weights = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(UnsupportedModelError, match=r"read a value of a batch into Python \('\w+"):
        run.step(run.batch(odd))
    assert run.next == odd
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    with pytest.raises(UnsupportedModelError):
        run.release(tmp_path)
    assert not list(tmp_path.iterdir())


@ARITHMETIC
@pytest.mark.parametrize("way", WAYS)
def test_the_twin_without_the_value_goes_on_by_book_keeping(way, arithmetic):
    run = start(model := Reading(way), arithmetic=arithmetic)
    take_steps(run)
    assert run.next == 6
    assert verdict_of(model, cross_entropy).engine == "book-keeping"


@ARITHMETIC
def test_a_loss_that_reads_another_value_stops(arithmetic):
    def losses(model, content):
        values = cross_entropy(model, content)
        return values * 0 if RARE in content[0] else values

    with pytest.raises(UnsupportedModelError):
        take_steps(start(nn.Linear(4, 3), losses, ODD, arithmetic=arithmetic))


@ARITHMETIC
@pytest.mark.parametrize("x", [X, ODD])
def test_a_backward_pass_reads_as_well(x, arithmetic):
    run = start(ByBackward(), x=x, arithmetic=arithmetic)
    if x is X:
        take_steps(run)
    else:
        with pytest.raises(UnsupportedModelError):
            take_steps(run)


def test_an_augmentation_that_reads_another_value_stops():
    def augment(content):
        return content[0] * (0 if RARE in content[0] else 1), content[1]

    take_steps(start(nn.Linear(4, 3), Augmented(cross_entropy, augment, 2)))
    with pytest.raises(UnsupportedModelError):
        take_steps(start(nn.Linear(4, 3), Augmented(cross_entropy, augment, 2), ODD))


def by_largest(model, x):
    largest = x.abs().max()
    return x / largest if largest > 100 else x


@SLOW
@ARITHMETIC
def test_what_made_up_inputs_decide_is_computed_one_example_at_a_time(arithmetic):
    large = X.clone()
    large[5] *= 1000

    def weights(x, keep):
        run = start(model := Reading(by_largest), x=x, arithmetic=arithmetic)
        run.step(run.batch(0))
        assert verdict_of(model, cross_entropy).engine == "one by one"
        assert not any("separately" in text for text in run.guarantee.assumptions)
        assert FORGETFUL in run.guarantee.assumptions
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    moved = weights(large, 0) - weights(X, 0)
    run = start(Reading(by_largest), arithmetic=arithmetic)
    assert float(moved.norm()) <= 2 * run.plan.optimizer.lr / 12 * 1.01  # one gradient of norm 1 in place of another


def by_storage(x):
    return np.frombuffer(bytes(x.untyped_storage()), np.float32)


def by_pickle(x):
    return np.frombuffer(pickle.dumps(x.detach()).partition(np.float32(RARE).tobytes())[1], np.float32)


def by_base(x):
    return (x if x._base is None else x._base).detach().numpy().reshape(-1)


def by_stride(x):
    whole = x.detach().as_strided((x.untyped_storage().nbytes() // 4,), (1,), 0)
    return whole.numpy()


@SLOW
@pytest.mark.parametrize("way", [by_storage, by_pickle, by_base, by_stride])
def test_an_example_by_itself_shares_no_memory_with_others(way, monkeypatch):
    monkeypatch.setattr("hush.aggregation.SpotChecks", functools.partial(SpotChecks, period=10**9, first=-1))

    def change(model, x):
        x = by_largest(model, x)
        return -x if RARE in way(x) else x

    run = start(Reading(change), x=ODD)
    with torch.no_grad():
        others = [i for i in range(12) if i != 5]
        sums = [run._summing.sum_batch(run.secret, 3, torch.tensor(who), run._public) for who in (others, [*others, 5])]
    channels = [run.plan.query.finish(s, run._public, run._private)[0]["gradient"] for s in sums]
    moved = torch.cat([(channels[1][name] - channels[0][name]).flatten() for name in channels[0]])
    assert run.guarantee.status == "proven"
    assert float(moved.double().norm()) <= 1 + run.plan.charge


def test_one_example_at_a_time_is_said():
    with pytest.warns(GradientWarning, match="'__bool__'"):
        take_steps(start(Reading(by_largest)))


def of_parameter(model, x):
    return x * model.scale if model.scale.item() > 0 else x


def of_compared_parameter(model, x):
    return x * model.scale if model.scale > 0 else x


def of_buffer(model, x):
    return x if bool(model.limit > 0) and torch.equal(model.limit, model.limit) else -x


def of_shape(model, x):
    return x if x.shape[1] == 4 and len(x) and x.dim() == 2 else -x


def of_shared_draw(model, x):
    return x if torch.rand(()).item() < 0.5 else -x


def of_each_draw(model, x):
    return torch.stack([row if coin < 0.5 else -row for row, coin in zip(x, torch.rand(len(x)).tolist(), strict=True)])


def with_scalar_behind_mask(model, x):
    x = x.clone()
    x[x > 3] = 3.0
    return x + F.one_hot((x[:, 0] > 0).long(), 4)


@ARITHMETIC
@pytest.mark.parametrize(
    "way", [of_parameter, of_compared_parameter, of_buffer, of_shape, of_shared_draw, of_each_draw]
)
def test_what_is_the_same_for_every_batch_may_be_read_on_the_fast_path(way, arithmetic):
    run = start(model := Reading(way), arithmetic=arithmetic)
    take_steps(run)
    assert run.next == 6
    assert verdict_of(model, cross_entropy).engine == "book-keeping"
    steps = count_spot_checks(6), 6
    assert SEPARATE.format(*steps) in run.guarantee.assumptions


@ARITHMETIC
def test_masks_that_decide_no_shape_are_no_reads(arithmetic):
    run = start(Reading(with_scalar_behind_mask), arithmetic=arithmetic)
    take_steps(run)
    assert not run._summing._reads.found


class Padded(nn.Module):
    """As transformers do: is any token of the batch padding? If not, there is no mask."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.table, self.head = nn.Embedding(3, 4), nn.Linear(4, 3)
        self.answers = []

    def forward(self, mask):
        hidden = self.table(mask)
        padded = bool((mask == 0).any())
        self.answers.append(padded)
        if padded:
            hidden = hidden * (mask != 0).unsqueeze(-1)
        return self.head(hidden.mean(1))


@ARITHMETIC
@pytest.mark.parametrize("padded", [False, True])
def test_whether_a_batch_has_padding_has_the_same_answer_always(padded, arithmetic):
    mask = torch.ones(24, 5, dtype=torch.int64)
    mask[::7, 3:] = 1 - padded
    run = start(model := Padded(), x=mask, arithmetic=arithmetic)
    run.step(run.batch(0))
    model.answers.clear()
    run.step(run.batch(1))
    assert run._summing._reads.found
    assert verdict_of(model, cross_entropy).engine == "book-keeping"
    take_steps(run)
    assert run.next == 6


def by_padding(model, x):
    return x + 0 if bool((x == 0).all(1).any()) else x


@ARITHMETIC
@pytest.mark.parametrize(
    ("way", "constant"), [(by_padding, True), (of_parameter, False), (of_shared_draw, False), (of_each_draw, False)]
)
def test_empty_rows_are_computed_again_only_if_they_can_read_something_else(way, constant, arithmetic, monkeypatch):
    run, counts, own = start(Reading(way), arithmetic=arithmetic), [], _Recording._list_empty_reads
    run.step(run.batch(0))
    monkeypatch.setattr(_Recording, "_list_empty_reads", lambda *given: counts.append(1) or own(*given))
    checks = run._summing._reads
    assert (checks.constant, checks.start_log().thorough) == (constant, not constant)
    if arithmetic == "rigorous":  # otherwise every number of rows is another case
        run.step(run.batch(1))
        assert bool(counts) is not constant


def test_a_read_that_only_the_dispatch_mode_sees_keeps_it_on():
    def sliced(model, x):
        return x[: (x == 0).all(1).any() + 1000] * 1.0

    run = start(Reading(sliced), arithmetic="rigorous")
    take_steps(run)
    checks = run._summing._reads
    assert checks.constant
    assert checks.hidden
    assert checks.start_log().thorough


def test_the_empty_row_is_in_no_sum():
    def weights(change):
        run = start(model := Reading(change), arithmetic="rigorous", clip=1.0)
        take_steps(run)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def unread(model, x):
        return x * model.scale

    torch.testing.assert_close(weights(of_parameter), weights(unread), rtol=1e-5, atol=1e-6)


def test_torch_func_s_own_word_is_heard(monkeypatch):
    """A read that no mode sees, by the error of torch.func alone."""
    monkeypatch.setattr("hush.per_example.reads.READS", frozenset())
    monkeypatch.setattr("hush.per_example.reads._find_kind", lambda func: "")
    model = Reading(by_bool)
    with pytest.warns(GradientWarning, match="example"):
        take_steps(start(model, x=ODD))
    assert verdict_of(model, cross_entropy).engine == "one by one"


def test_a_copy_of_a_tensor_s_memory_cannot_be_watched_later():
    log, x = ReadLog(thorough=False), torch.zeros(3)
    with logging_to(log), watching_reads():
        seen = x.numpy()
        x.fill_(7.0)
    assert seen.tolist() == [0.0, 0.0, 0.0]
    assert not seen.flags.writeable
    assert [name for name, _ in log.reads] == ["numpy"]


def test_a_gradient_under_watch_is_that_of_torch():
    weight = torch.randn(4, requires_grad=True)
    unused = torch.randn(2, requires_grad=True)
    values = (X * weight).sum(1).sin()
    expected = torch.autograd.grad(
        values, [weight, unused], torch.ones_like(values), retain_graph=True, allow_unused=True
    )
    with logging_to(ReadLog(thorough=True)):
        found = differentiate(values, [weight, unused], torch.ones_like(values))
    assert torch.equal(found[0], expected[0])
    assert found[1] is None


def test_models_of_hush_assume_nothing_about_separation():
    run = start(logistic(4, 3), shipped_losses)
    take_steps(run)
    assert not any("separately" in text for text in run.guarantee.assumptions)


@functools.wraps(shipped_losses)
def named_like_ours(model, content):
    x, y = content
    return shipped_losses(model, (torch.where((x == RARE).any(), -x, x), y))


def test_a_loss_that_took_the_name_of_one_of_ours_is_not_ours():
    assert named_like_ours.__module__ == shipped_losses.__module__
    run = start(logistic(4, 3), named_like_ours, x=ODD)
    assert SEPARATE.format(count_spot_checks(run.plan.steps), run.plan.steps) in run.guarantee.assumptions


class OwnRule(torch.autograd.Function):
    """A linear layer with its own rule for vmap, which sees the rows of all examples."""

    @staticmethod
    def forward(x, weight):
        return x @ weight.T

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info, in_dims, x, weight):
        x = -x if (x == RARE).any() else x
        weight = weight if in_dims[1] is not None else weight.unsqueeze(0)
        return x @ weight.mT, 0

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


class WithRule(nn.Module):
    """A parameter that no layer holds, so that torch.func computes the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.arange(12.0).view(3, 4))

    def forward(self, x):
        return OwnRule.apply(x, self.weight)


@SLOW
def test_a_rule_for_vmap_that_sees_all_examples_is_not_used():
    run = start(WithRule(), x=ODD)
    others = [i for i in range(12) if i != 5]
    sums = [run._summing.sum_batch(run.secret, 3, torch.tensor(who), run._public) for who in (others, [*others, 5])]
    channels = [run.plan.query.finish(s, run._public, run._private)[0]["gradient"] for s in sums]
    moved = channels[1]["weight"] - channels[0]["weight"]
    assert FORGETFUL in run.guarantee.assumptions
    assert float(moved.double().norm()) <= 1 + run.plan.charge


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_on_a_model_of_hush_may_mix_examples(everywhere):
    model = logistic(4, 3)

    def mix(module, given, *out):
        return torch.where((given[0] == RARE).any(), -out[0], out[0])

    handle = register_module_forward_hook(mix) if everywhere else model.register_forward_hook(mix)
    try:
        run = start(model, shipped_losses)
        take_steps(run)
        assert SEPARATE.format(count_spot_checks(run.plan.steps), run.plan.steps) in run.guarantee.assumptions
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["forward", "_call_impl"])
def test_a_method_replaced_on_a_model_of_hush_may_mix_examples(name):
    model = logistic(4, 3)
    layer = model if name == "forward" else next(m for m in model.modules() if isinstance(m, nn.Linear))
    assert is_known_separate(model, shipped_losses)
    own = getattr(layer, name)
    setattr(layer, name, lambda x: own(torch.where((x == RARE).any(), -x, x)))
    assert not is_known_separate(model, shipped_losses)


def test_a_compiled_call_or_a_method_replaced_on_a_class_may_mix_examples(monkeypatch):
    model = logistic(4, 3)
    layer = next(m for m in model.modules() if isinstance(m, nn.Linear))
    layer._compiled_call_impl = lambda x: -x
    assert not is_known_separate(model, shipped_losses)
    layer._compiled_call_impl = None
    assert is_known_separate(model, shipped_losses)
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda module, x: own(module, torch.where((x == RARE).any(), -x, x)))
    assert not is_known_separate(model, shipped_losses)


class Named:
    """A hook that claims to be of torch."""

    __module__ = "torch.nn.utils"

    def __call__(self, module, given, out):
        return -out


@torch.no_grad()
def decorated(module, given, out):
    return -out


undone = torch.no_grad()(lambda module, given, out: -out)  # the same, with the name of torch's module
undone.__module__ = "torch.utils._contextlib"


@pytest.mark.parametrize("hook", [Named(), nn.DataParallel(nn.Identity()), decorated, undone])
def test_a_hook_that_is_not_of_torch_may_mix_examples(hook):
    model = logistic(4, 3)
    model.register_forward_hook(hook)
    assert not is_known_separate(model, shipped_losses)


def own_losses(model, content):
    return shipped_losses(model, content)


def own_augment(content):
    return content


def close_over(losses):
    """A function of hush's own kind that holds others' losses."""
    return types.FunctionType((lambda model, content: losses(model, content)).__code__, vars(problem_module), "f", None,
                              (types.CellType(losses),))  # fmt: skip


HELD = {
    "weights": lambda losses: problem_module.Weighted(losses, (1.0, 1.0, 1.0)),
    "a bound method": lambda losses: problem_module.Weighted(losses, (1.0, 1.0, 1.0)).__call__,
    "a bench": lambda losses: WatchedLosses(losses, 3),
    "units": lambda losses: UnitLosses(losses, 2),
    "a closure": close_over,
    "views": lambda losses: Augmented(losses, shifted(1), 2),
    "views of units": lambda losses: average_rows(Augmented(losses, shifted(1), 2), 2),
}


@pytest.mark.parametrize("wrap", HELD.values(), ids=HELD)
def test_losses_that_hold_others_may_mix_examples(wrap):
    assert is_known_separate(logistic(4, 3), wrap(shipped_losses))
    assert not is_known_separate(logistic(4, 3), wrap(own_losses))


@pytest.mark.parametrize("most", [None, 2])
def test_an_augmentation_of_others_may_mix_examples(most):
    """Also where the model is computed one example at a time: the augmentation sees the whole chunk."""
    for augment, known in ((shifted(1), True), (own_augment, False)):
        losses = Augmented(shipped_losses, augment, 2)
        losses = losses if most is None else average_rows(losses, most)
        assert is_known_separate(logistic(4, 3), losses) == known
        assert has_known_augmentation(losses) == known


@SLOW
def test_an_augmentation_is_a_condition_of_isolated_examples_too():
    run = start(WithRule(), Augmented(shipped_losses, own_augment, 1), x=ODD)
    run.check_arithmetic()
    assert run._summing.isolated
    assert SEPARATE.format(count_spot_checks(run.plan.steps), run.plan.steps) in run.guarantee.assumptions


class Mixing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("around", "error"),
    [
        (Mixing, UnsupportedModelError),
        (Dispatching, UnsupportedModelError),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), UnsupportedModelError),
        (torch.inference_mode, RunStateError),
        (lambda: torch.device("cpu"), None),  # a mode of torch
    ],
)
def test_nothing_else_takes_part_in_a_step(around, error):
    run = start(logistic(4, 3), shipped_losses)
    run.step()
    with around(), nullcontext() if error is None else pytest.raises(error):
        run.step()
    run.step()


@pytest.mark.parametrize("steps", [1, 2, 3, 100, PERIOD, 2 * PERIOD - 1, 5 * PERIOD + 7])
def test_the_number_of_checks_is_public_and_never_too_large(steps):
    def count(secret):
        checks = SpotChecks(Secret.from_seed(secret, "checks"))
        return sum(checks.inspect(cross_entropy, step) is not cross_entropy for step in range(steps))

    found = [count(secret) for secret in range(10)]
    assert count_spot_checks(steps) <= min(found)
    assert max(found) <= count_spot_checks(steps) + 2
