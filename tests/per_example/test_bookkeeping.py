"""Book-keeping gradients against the torch.func reference: every layer, in double precision."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.profiler import ProfilerActivity, profile

from hush.datasets.models import VAE, lenet5, mlp, p1, p2, vae_losses
from hush.errors import ExamplesNotIndependent, InvalidInputError
from hush.per_example import conv
from hush.per_example.augmentation import Point
from hush.per_example.functional import record_one_by_one
from hush.per_example.gradients import per_example_gradients
from hush.per_example.result import GradientWarning

SETTINGS = settings(max_examples=15, deadline=None, derandomize=True)
N = 5


def wave(model, content):
    """One loss per example that no gradient vanishes in."""
    return model(content).flatten(1).sin().sum(1)


def tapes(model, content, losses=wave, engine="book-keeping", points=None):
    """The reference's tape and another engine's, under the same model randomness."""
    torch.manual_seed(1)
    right = per_example_gradients(model, losses, content, engine="functional", points=points)
    after = torch.rand(1)
    torch.manual_seed(1)
    ours = per_example_gradients(model, losses, content, engine=engine, points=points)
    assert torch.equal(after, torch.rand(1))  # both leave torch's generator in the same state
    return right, ours


def agree(model, content, losses=wave, engine="book-keeping", points=None, double=True):
    """Losses, norms and three weighted sums agree to 1e-10."""
    model = model.double() if double else model
    right, ours = tapes(model, content, losses, engine, points)
    n = len(right.losses)
    torch.testing.assert_close(ours.losses, right.losses, rtol=1e-10, atol=1e-10)
    close(ours.squared_norms(certain=False), right.squared_norms(certain=False))
    bounds(ours.squared_norms(), right.squared_norms())
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    close(ours.sum(weights), right.sum(weights))
    weights[:: max(1, n // 2)] = 0
    close(ours.sum(weights), right.sum(weights))
    own = {name: torch.rand(n, dtype=torch.float64, generator=generator) for name in right.squared_norms()}
    close(ours.sum(own), right.sum(own))
    return ours


def close(ours, right):
    assert list(ours) == list(right)
    for name, value in right.items():
        scale = float(value.abs().max()) if value.numel() else 0.0
        torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-10 * max(1.0, scale))


def bounds(ours, right):
    """Norms that are never smaller, and larger by little."""
    for name, value in right.items():
        most = float(value.max())
        assert bool((ours[name] >= value * (1 - 1e-12) - 1e-24).all())
        assert bool((ours[name] <= value * 1.01 + 1e-3 * most + 1e-24).all())


def sequence(*shape):
    return torch.randn(N, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


TOKENS = torch.tensor([[0, 1, 1, 2], [3, 3, 3, 3], [2, 0, 2, 0], [4, 1, 0, 2], [2, 2, 1, 1]])


class Tied(nn.Module):
    """One table for reading and writing."""

    def __init__(self):
        super().__init__()
        self.read = nn.Embedding(6, 3)
        self.write = nn.Linear(3, 6, bias=False)
        self.write.weight = self.read.weight

    def forward(self, tokens):
        return self.write(self.read(tokens).tanh())


class Twice(nn.Module):
    """Modules that are used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        x = self.conv(self.conv(x).relu_()).flatten(2).transpose(1, 2)
        return self.norm(self.linear(self.norm(self.linear(x))))


class Viewed(nn.Linear):
    """A linear layer whose output is viewed in another shape, which needs torch's layout."""

    def forward(self, x):
        return super().forward(x).view(x.shape[0], -1)


class Bare(nn.Module):
    """Parameters without a layer."""

    def __init__(self):
        super().__init__()
        self.places, self.scale = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))
        self.token, self.factor = nn.Parameter(torch.randn(1, 1, 3)), nn.Parameter(torch.tensor(1.3))
        self.product = nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x * self.scale + self.places], 1)
        return ((self.factor * x) @ self.product).mul_(self.factor) - 0.5


class Cross(nn.Module):
    """Attention between two sequences of different lengths."""

    def __init__(self, **options):
        super().__init__()
        self.before, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(self.before(x), x[:, :2], x[:, :2])[0]


class First(nn.Module):
    """The first of a module's outputs."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


def image(*layers):
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), *layers)


LAYERS = {
    "linear": (lambda: nn.Linear(3, 4), sequence(3)),
    "linear, positions": (lambda: nn.Linear(3, 4), sequence(4, 3)),
    "linear, more positions": (lambda: nn.Linear(3, 20), sequence(2, 3, 3)),
    "linear, no bias": (lambda: nn.Linear(3, 4, bias=False), sequence(4, 3)),
    "viewed": (lambda: nn.Sequential(nn.Linear(3, 3), Viewed(3, 5), nn.Linear(20, 2)), sequence(4, 3)),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), sequence(3)),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 9), nn.Dropout(0.4), nn.Linear(9, 2), nn.Dropout(0.2)), sequence(3)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), sequence(4, 3)),
    "layer norm, two dimensions": (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm((4, 3))), sequence(4, 3)),
    "layer norm, no bias": (lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3, bias=False)), sequence(4, 3)),
    "group norm": (lambda: image(nn.GroupNorm(2, 4)), sequence(4, 3, 3)),
    "group norm, first": (lambda: nn.GroupNorm(2, 4), sequence(4, 3)),
    "instance norm": (lambda: image(nn.InstanceNorm2d(4, affine=True)), sequence(4, 3, 3)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(3, 3), nn.RMSNorm(3)), sequence(4, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 2)), TOKENS),
    "embedding, one token": (lambda: nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 2)), TOKENS[:, 0]),
    "embedding, padding": (lambda: nn.Embedding(6, 3, padding_idx=2), TOKENS),
    "tied": (Tied, TOKENS),
    "twice": (Twice, sequence(4, 3, 3)),
    "bare": (Bare, sequence(4, 3)),
    "conv, circular": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), sequence(3, 6)),
    "conv, weight norm": (
        lambda: nn.Sequential(nn.Conv1d(3, 16, 1), weight_norm(nn.Conv1d(16, 16, 8, padding=4, groups=2)), nn.GELU()),
        sequence(3, 9),
    ),
    "conv, same": (lambda: nn.Conv2d(3, 4, (2, 3), padding="same"), sequence(3, 5, 4)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), sequence(3, 4)),
    "encoder layer, norm first": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
        sequence(3, 4),
    ),
    "cross attention": (Cross, sequence(3, 4)),
    "cross attention, own widths": (lambda: Cross(kdim=4, vdim=4), sequence(3, 4)),
    "cross attention, biases": (lambda: Cross(add_bias_kv=True, add_zero_attn=True), sequence(3, 4)),
    "lstm": (lambda: First(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, dropout=0.3)), sequence(4, 3)),
    "lstm, projected": (lambda: First(nn.LSTM(3, 4, proj_size=2, batch_first=True)), sequence(4, 3)),
    "gru": (lambda: First(nn.GRU(3, 4, 2, batch_first=True, dropout=0.3)), sequence(4, 3)),
    "rnn": (lambda: First(nn.RNN(3, 4, nonlinearity="relu", batch_first=True)), sequence(4, 3)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_reference(name):
    make, content = LAYERS[name]
    torch.manual_seed(0)
    agree(make(), content)


@pytest.mark.parametrize(
    "name", ["linear, positions", "group norm", "tied", "twice", "bare", "encoder layer", "dropout"]
)
def test_two_points_are_one_combined_gradient(name):
    make, content = LAYERS[name]
    torch.manual_seed(0)
    model = make().double()
    other = {key: p.detach() + 0.1 * torch.randn_like(p) for key, p in model.named_parameters()}
    agree(model, content, points=[Point(1.7), Point(-0.7, other)])


@pytest.mark.parametrize("name", ["linear", "twice", "tied", "bare", "encoder layer"])
def test_a_batch_of_one(name):
    make, content = LAYERS[name]
    agree(make(), content[:1])


@pytest.mark.parametrize("held", [True, False])
@SETTINGS
@given(data=st.data())
def test_convolutions_of_random_shapes(held, data):
    dims = data.draw(st.integers(1, 3))
    few = st.lists(st.integers(1, 3), min_size=dims, max_size=dims)
    kernel, stride, dilation = data.draw(few), data.draw(few), data.draw(few)
    padding = [p - 1 for p in data.draw(few)]
    groups, inputs, outputs = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    size = data.draw(st.lists(st.integers(7, 9), min_size=dims, max_size=dims))
    kind = "ConvTranspose" if data.draw(st.booleans()) else "Conv"
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options["bias"] = data.draw(st.booleans())
    model = getattr(nn, f"{kind}{dims}d")(groups * inputs, groups * outputs, kernel, **options)
    content = torch.randn(3, groups * inputs, *size, dtype=torch.float64)
    original = conv.Windowed.held_is_cheaper
    conv.Windowed.held_is_cheaper = lambda self: held  # both ways to the norm, whatever the cost model thinks
    try:
        agree(model, content)
    finally:
        conv.Windowed.held_is_cheaper = original


@SETTINGS
@given(
    n=st.integers(1, 6),
    positions=st.integers(1, 40),
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=3),
    frozen=st.integers(0, 3),
    masked=st.integers(0, 5),
)
def test_linear_networks_of_random_shapes(n, positions, widths, frozen, masked):
    layers = [nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 3)).double()
    for p in list(model.parameters())[:frozen]:
        p.requires_grad_(False)
    content = torch.randn(n, positions, widths[0], dtype=torch.float64)
    ours = agree(model, content)
    assert list(ours.squared_norms()) == [name for name, p in model.named_parameters() if p.requires_grad]
    weights = torch.ones(n, dtype=torch.float64)
    weights[masked % n] = 0
    keep = weights.nonzero().squeeze(1)
    right = per_example_gradients(model, wave, content[keep], engine="functional").sum(weights[keep])
    close(ours.sum(weights), right)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", [n for n in LAYERS if "embedding" not in n and n != "tied"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_masked_example_contributes_nothing(name, bad):
    make, content = LAYERS[name]
    torch.manual_seed(0)
    model = make().double().eval()
    broken = content.clone()
    broken[2] = bad
    ours = per_example_gradients(model, wave, broken, engine="book-keeping")
    right = per_example_gradients(model, wave, content, engine="functional")
    norms, expected = ours.squared_norms(certain=False), right.squared_norms(certain=False)
    others = torch.tensor([0, 1, 3, 4])
    close({k: v[others] for k, v in norms.items()}, {k: v[others] for k, v in expected.items()})
    assert not torch.isfinite(torch.stack(list(norms.values())).sum(0)[2])
    assert not torch.isfinite(torch.stack(list(ours.squared_norms().values())).sum(0)[2])
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0], dtype=torch.float64)
    close(ours.sum(weights), right.sum(weights))


@pytest.mark.parametrize("engine", ["auto", "book-keeping", "functional"])
def test_an_empty_batch_gives_zeros(engine):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    tape = per_example_gradients(model, wave, torch.zeros(0, 1, 4, 4), engine=engine)
    assert tape.losses.shape == (0,)
    for name, p in model.named_parameters():
        assert tape.squared_norms()[name].shape == (0,)
        assert torch.equal(tape.sum(torch.zeros(0))[name], torch.zeros_like(p))


@pytest.mark.parametrize("engine", ["auto", "book-keeping", "functional"])
def test_a_scalar_loss_is_refused(engine):
    with pytest.raises(InvalidInputError, match="example"):
        per_example_gradients(nn.Linear(3, 2), lambda m, x: m(x).sum(), torch.zeros(4, 3), engine=engine)


def test_content_of_different_sizes_and_unknown_engines_are_refused():
    with pytest.raises(InvalidInputError):
        per_example_gradients(nn.Linear(3, 2), wave, (torch.zeros(4, 3), torch.zeros(5)))
    with pytest.raises(InvalidInputError, match="'functional'"):
        per_example_gradients(nn.Linear(3, 2), wave, torch.zeros(4, 3), engine="functionel")


def test_unused_parameters_have_zero_gradients():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)}).double()
    ours = agree(model, sequence(3), lambda m, x: wave(m["used"], x))
    assert not ours.squared_norms()["idle.weight"].any()


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True))
    before = dict(model.named_parameters())
    per_example_gradients(model, lambda m, x: m(x)[0].flatten(1).sum(1), torch.randn(4, 2, 3), engine="book-keeping")
    assert all(before[name] is p and p.grad is None and p.requires_grad for name, p in model.named_parameters())
    assert "forward" not in model[1].__dict__


class Odd(nn.Module):
    """Uses that no rule covers, and dropout among them."""

    def __init__(self):
        super().__init__()
        self.matrix, self.dropout = nn.Parameter(0.3 * torch.randn(3, 3)), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(torch.atan2(x, self.matrix[0].exp()) + torch.cdist(x, self.matrix.exp()))


class Flattened(nn.Module):
    """Examples and positions in one dimension."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x.reshape(-1, 3)).view(x.shape[0], -1)


class Centred(nn.Module):
    """Subtracts the mean over the batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        x = self.linear(x)
        return x - x.mean(0)


def test_a_module_without_a_rule_is_mapped_alone_and_said_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Odd(), nn.Linear(3, 2)).double()
    with pytest.warns(GradientWarning, match=r"'1' \(Odd\).*'atan2'"):
        ours = agree(model, sequence(4, 3), engine="auto")
    assert type(ours).__name__ == "BookkeepingGradients"
    agree(model, sequence(4, 3), engine="auto")  # warnings are errors: a second one would fail


def test_positions_and_examples_in_one_dimension_are_kept_apart():
    model = nn.Sequential(nn.Linear(3, 3), Flattened(), nn.Linear(12, 2)).double()
    assert type(agree(model, sequence(4, 3), engine="auto")).__name__ == "BookkeepingGradients"


def seen_first(model, content):
    """Positions before examples."""
    return wave(lambda c: model(c.transpose(0, 1)).transpose(0, 1), content)


def paired(model, content):
    """Each example's loss looks at the next example."""
    out = model(content).flatten(1)
    return (out * out.roll(1, 0)).sum(1)


def penalised(model, content):
    """A penalty on the weights themselves."""
    return wave(model, content) + model.weight.square().sum()


def test_examples_in_another_dimension_get_the_reference():
    model = nn.Linear(3, 3).double()  # as many positions as examples, so that no size gives them away
    with pytest.warns(GradientWarning, match=r"torch\.func"):
        ours = agree(model, sequence(N, 3), seen_first, engine="auto")
    assert type(ours).__name__ == "MaterializedGradients"
    agree(model, sequence(N, 3), seen_first, engine="auto")


@pytest.mark.parametrize(("make", "losses"), [(lambda: nn.Linear(3, 3), paired), (Centred, wave)])
def test_examples_that_meet_are_refused(make, losses):
    model = make().double()
    for _ in range(2):
        with pytest.raises(ExamplesNotIndependent):
            per_example_gradients(model, losses, sequence(N, 3))


@pytest.mark.parametrize(("make", "losses"), [(lambda: nn.Linear(3, 3), penalised), (Flattened, wave)])
def test_a_penalty_on_weights_and_flattened_positions_are_on_the_fast_path(make, losses):
    ours = agree(make().double(), sequence(N, 3), losses, engine="auto")
    assert type(ours).__name__ == "BookkeepingGradients"


class Counted(torch.autograd.Function):
    """An operation that torch.func cannot map."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


def test_what_cannot_be_mapped_goes_one_by_one():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return Counted.apply(x, self.weight)

    model, content = nn.Sequential(nn.Linear(3, 3), Layer()).double(), sequence(3)
    with pytest.warns(GradientWarning, match="example"):
        ours = per_example_gradients(model, wave, content)
    right = record_one_by_one(model, wave, content, N, [Point()])
    close(ours.squared_norms(), right.squared_norms())
    assert float(right.squared_norms()["1.weight"].min()) > 0


def test_one_by_one_equals_reference():
    model = Twice().double()
    points = [Point(0.6), Point(0.4, {k: p.detach() + 0.1 for k, p in model.named_parameters()})]
    right = per_example_gradients(model, wave, sequence(4, 3, 3), engine="functional", points=points)
    ours = record_one_by_one(model, wave, sequence(4, 3, 3), N, points)
    close(ours.squared_norms(), right.squared_norms())
    weights = torch.rand(N, dtype=torch.float64)
    close(ours.sum(weights), right.sum(weights))


def test_a_lone_first_example_is_not_taken_as_proof():
    model = Centred().double()
    first = per_example_gradients(model, wave, sequence(3)[:1])  # nothing to compare with yet: the reference
    assert type(first).__name__ == "MaterializedGradients"
    with pytest.raises(ExamplesNotIndependent):
        per_example_gradients(model, wave, sequence(3))


def test_ordinary_models_are_book_kept_without_a_word():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tape = per_example_gradients(model, lambda m, c: F.cross_entropy(m(c[0]), c[1], reduction="none"), labelled(6))
    assert type(tape).__name__ == "BookkeepingGradients"


def labelled(n):
    return torch.randn(n, 1, 4, 4), torch.randint(0, 2, (n,))


# Tensor memory of a private step compared with an ordinary step, from the profiler's allocation counts.


BATCH = 64


def cross_entropy(model, content):
    return F.cross_entropy(model(content[0]), content[1], reduction="none")


def peak(step):
    """The largest number of tensor bytes alive during a step, over those alive before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    events = [e for e in recording.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = largest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        largest = max(largest, live)
    return largest


@pytest.mark.filterwarnings("ignore::UserWarning:torch.profiler")
@pytest.mark.parametrize(
    ("make", "shape", "losses", "most"),
    [
        (lenet5, (1, 28, 28), cross_entropy, 1.5),
        (p1, (3, 32, 32), cross_entropy, 1.5),
        (VAE, (1, 28, 28), vae_losses, 1.75),  # two of its layers keep the gradient of every example
    ],
)
def test_clipped_sums_take_little_more_than_gradients(make, shape, losses, most):
    torch.manual_seed(0)
    model = make()
    content = torch.rand(BATCH, *shape), torch.randint(0, 10, (BATCH,))

    def private():
        tape = per_example_gradients(model, losses, content, engine="book-keeping")
        norms = torch.stack(list(tape.squared_norms().values())).sum(0).sqrt()
        return tape.sum((1 / norms).clamp(max=1))

    def ordinary():
        return torch.autograd.grad(losses(model, content).mean(), list(model.parameters()))

    ordinary_bytes, private_bytes = peak(ordinary), peak(private)
    held = BATCH * 4 * sum(p.numel() for p in model.parameters())  # what all per-example gradients would take
    assert private_bytes <= most * ordinary_bytes < held


# Clipped sums and norms compared with Opacus' per-example gradients on models of the literature.


opacus = pytest.importorskip("opacus")

MODELS = {
    "MLP": (lambda: mlp([784, 512, 256, 128, 10]), (1, 28, 28), 567_434),
    "LeNet-5": (lenet5, (1, 28, 28), 61_706),
    "P1": (p1, (3, 32, 32), 258_762),
    "P2": (p2, (1, 28, 28), 225_034),
}


@pytest.mark.filterwarnings("ignore::UserWarning:opacus")
@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", MODELS)
def test_sums_and_norms_equal_opacus(name):
    make, shape, size = MODELS[name]
    torch.manual_seed(0)
    model = make()
    assert sum(p.numel() for p in model.parameters()) == size  # MECHANISMS, section 10
    content = torch.randn(4, *shape), torch.randint(0, 10, (4,))
    tape = per_example_gradients(model, cross_entropy, content, engine="book-keeping")
    norms, clip = tape.squared_norms(), 0.5
    total = torch.stack(list(norms.values())).sum(0).sqrt()
    sums = tape.sum((clip / total).clamp(max=1))
    usual = nn.Sequential(*model)  # Opacus 1.6.0 errs by several per cent where channels are last in memory
    wrapped = opacus.GradSampleModule(usual, loss_reduction="sum")
    cross_entropy(wrapped, content).sum().backward()
    theirs = {key.removeprefix("_module."): p.grad_sample for key, p in wrapped.named_parameters()}
    right = torch.stack([g.flatten(1).square().sum(1) for g in theirs.values()]).sum(0).sqrt()
    torch.testing.assert_close(total.float(), right, rtol=1e-4, atol=1e-6)
    factor = (clip / right).clamp(max=1)
    for key, g in theirs.items():
        torch.testing.assert_close(sums[key], torch.tensordot(factor, g, 1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("width", [5, 16])
def test_a_frozen_layer_between_trained_ones(width):
    """Rows of five numbers do not fill cache lines and get a forward of their own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    model[2].requires_grad_(False)
    agree(model, torch.randn(N, 6, dtype=torch.float64))
    assert "forward" not in model[2].__dict__
