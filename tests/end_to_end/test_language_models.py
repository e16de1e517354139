"""Models of transformers, and LoRA by peft, have exact per-example gradients on the fast path.

For a longer search over masks, lengths and options: ``HUSH_SEARCH=200 pytest PATH``.
"""

from __future__ import annotations

import os
import random
import runpy
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn

import hush
import language_models as lm
from hush.aggregation import Aggregator
from hush.errors import ExamplesNotIndependent
from hush.methods import make_plan
from hush.per_example.chunks import whole_chunk
from hush.per_example.engine import verdict_of
from hush.per_example.gradients import GradientWarning, per_example_gradients
from hush.per_example.model_rng import model_randomness
from hush.randomness import Secret
from replay import distance, recorded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'hush-dp[hf]'")
    pytest.importorskip("peft", reason="peft is not installed: pip install 'hush-dp[hf]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of transformers and peft, about their own code
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]
N = 5


def without_dropout(model):
    """In training mode, with every rate of dropout at zero."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for key, value in vars(module).items():
            if "dropout" in key and isinstance(value, float):
                setattr(module, key, 0.0)
    return model.train()


def check_against_loop(model, content):
    """The engine is book-keeping, and norms and sums are those of one float64 backward pass per example."""
    model = without_dropout(model).double()
    content = tuple(t.double() if t.is_floating_point() else t for t in content)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in params.values():  # LoRA begins with zeros
            p.add_(0.02 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(p.numel())))
    tape = per_example_gradients(model, lm.losses, content)
    assert verdict_of(model, lm.losses).engine == "book-keeping"
    assert not verdict_of(model, lm.losses).alone
    weights = torch.linspace(0.1, 1, N, dtype=torch.float64)
    total, squares = {name: torch.zeros_like(p) for name, p in params.items()}, []
    for i in range(N):
        loss = lm.losses(model, tuple(t[i : i + 1] for t in content)).sum()
        found = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        squares.append(sum(g.square().sum() for g in found if g is not None))
        for name, g in zip(params, found, strict=True):
            total[name] += 0 if g is None else weights[i] * g
    right = torch.stack(squares)
    ours = torch.stack(list(tape.squared_norms(certain=False).values())).sum(0)
    torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-20)
    assert bool((torch.stack(list(tape.squared_norms().values())).sum(0) >= right * (1 - 1e-12)).all())
    sums = tape.sum(weights)
    for name, value in total.items():
        torch.testing.assert_close(sums[name], value, rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("package", ["torch", "transformers", "peft", "accelerate"])
def test_the_versions_of_these_tests_are_the_pinned_ones(package):
    lines = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert version(package).partition("+")[0] == pinned[package]


@pytest.mark.parametrize("name", lm.TARGETS)
def test_gradients_of_all_weights_are_those_of_a_loop(name):
    check_against_loop(lm.make(name), lm.batch(name, N))


@pytest.mark.parametrize("name", lm.TARGETS)
def test_gradients_of_adapters_are_those_of_a_loop(name):
    check_against_loop(lm.adapt(name, lm.make(name)), lm.batch(name, N))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_checkpointed_layers_and_either_attention_are_on_the_fast_path(attention):
    model = lm.make("BERT", layers=2, attn_implementation=attention)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check_against_loop(model, lm.batch("BERT", N))


def test_a_length_equal_to_the_number_of_rows_does_not_confuse_positions_and_examples():
    model, content = without_dropout(lm.make("BERT", length=6)).double(), lm.batch("BERT", 6, length=6)
    tape = per_example_gradients(model, lm.losses, content)
    assert verdict_of(model, lm.losses).engine == "book-keeping"
    loop = [per_example_gradients(model, lm.losses, tuple(t[i : i + 1] for t in content)) for i in range(6)]
    right = sum(alone.sum(torch.ones(1))["bert.embeddings.position_embeddings.weight"] for alone in loop)
    ours = tape.sum(torch.ones(6))["bert.embeddings.position_embeddings.weight"]
    torch.testing.assert_close(ours, right, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_padding_of_one_example_leaves_the_bits_of_the_others(name):
    """transformers asks whether any position is padded; with an empty row in the chunk the answer is always yes."""
    model = lm.make(name).train()
    full, rows = lm.batch(name, N, padded=False), {}
    for padded in (False, True):
        tokens, mask, labels = (torch.cat([t, torch.zeros_like(t[:1])]) for t in full)
        if padded:
            mask[2, 9:], tokens[2, 9:] = 0, 0
        with model_randomness(Secret.from_seed(1, "padding"), 0, whole_chunk(N + 1).places, torch.device("cpu")):
            tape = per_example_gradients(model, lm.losses, (tokens, mask, labels))
            rows[padded] = [tape.sum(one) for one in torch.eye(N + 1, dtype=torch.float64)]
    for i in range(N):
        same = all(torch.equal(rows[False][i][key], value) for key, value in rows[True][i].items())
        assert same == (i != 2)


def weighted(model, content):
    """The losses of examples, each with a weight of its own."""
    *given, weights = content
    return weights * lm.losses(model, given)


def sum_others(name, arithmetic, padded, given=None):
    """The clipped sums of a run in which one example, which may be padded, has a loss of zero."""
    n = 8  # chunks are full of examples
    *full, labels = lm.batch(name, n, padded=False)
    tokens, mask = (t.clone() for t in full)
    if padded:
        mask[2, 9:], tokens[2, 9:] = 0, 0
    weights = (torch.arange(n) != 2).float()
    plan = make_plan(
        "dp-sgd",
        examples=n,
        batch_size=n,
        sample_rate=1.0,
        steps=2,
        noise_multiplier=1.0,
        clip=1.0,
        arithmetic=arithmetic,
        accept_claimed=True,
    )
    return plan, *recorded(plan, lm.make(name).train(), weighted, (tokens, mask, labels, weights), given=given)


@pytest.mark.parametrize("arithmetic", ["rigorous", "fast"])
@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_padding_of_one_example_moves_the_sum_of_the_others_by_no_more_than_is_charged(name, arithmetic):
    plan, sums, releases = sum_others(name, arithmetic, padded=False)
    _, others, _ = sum_others(name, arithmetic, padded=True, given=releases)
    for one, other in zip(sums, others, strict=True):
        assert distance(one["gradient"], {key: torch.zeros_like(t) for key, t in one["gradient"].items()}) > 0.5
        assert distance(one["gradient"], other["gradient"]) <= plan.charge


def test_without_an_empty_row_one_padded_example_stops_the_run(monkeypatch):
    monkeypatch.setattr(Aggregator, "_add_empty_row", lambda self, piece, content: (piece, content))
    sum_others("BERT", "rigorous", padded=True)  # as a batch of empty rows, which are padded
    with pytest.raises(ExamplesNotIndependent):
        sum_others("BERT", "rigorous", padded=False)


SEARCHES = int(os.environ.get("HUSH_SEARCH", "7"))
NEIGHBOURS = 12
FAMILIES = [name for name in lm.TARGETS if name != "ViT"]


def draw_mask(draw, length):
    """A mask with padding on the right, on the left, anywhere, nowhere or everywhere."""
    kind, kept = draw.choice(["right", "left", "anywhere", "nowhere", "everywhere"]), draw.randrange(1, length + 1)
    if kind == "anywhere":
        return torch.tensor([draw.randrange(2) for _ in range(length)])
    kept = {"nowhere": length, "everywhere": 0}.get(kind, kept)
    mask = (torch.arange(length) < kept).long()
    return mask.flip(0) if kind == "left" else mask


class Rows:
    """A source whose examples can be changed."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return len(self.tensors[0])

    def take(self, indices):
        return tuple(t[indices] for t in self.tensors)


def search(seed):
    """How far the sum of the others moves, for random examples in the place of one: the plan, the distances, and that
    of an example that counts. The other examples, the model and its options are random as well."""
    draw = random.Random(seed)
    name, n, length = FAMILIES[seed % len(FAMILIES)], draw.randrange(3, 10), draw.choice([5, 8, 16])
    arithmetic, way = draw.choice(["rigorous", "rigorous", "fast"]), draw.choice(["all", "adapters", "head"])
    options = {"attn_implementation": draw.choice(["eager", "sdpa"]), "use_cache": draw.random() < 0.5}
    model = lm.make(name, length=length, **options).train()
    if draw.random() < 0.25:
        model.get_submodule("encoder" if name == "T5 encoder" else "").gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    model = lm.adapt(name, model) if way == "adapters" else lm.freeze(model) if way == "head" else model
    _, mask, labels = lm.batch(name, n, length=length)
    for row in range(n):
        mask[row] = draw_mask(draw, length)
    one, counts = draw.randrange(n), torch.ones(n)
    mask[one] = 1
    tokens = torch.randint(2, lm.WORDS, (n, length), generator=torch.Generator().manual_seed(seed)) * mask
    settings = {"noise_multiplier": 1.0, "clip": 1.0, "arithmetic": arithmetic, "accept_claimed": True}
    plan = make_plan("dp-sgd", examples=n, batch_size=n, sample_rate=1.0, steps=500, **settings)
    run = plan.start(model, weighted, Rows(tokens, mask, labels, counts), secret=seed)

    def total(rows):
        with torch.no_grad():
            sums = run._summing.sum_batch(run.secret, 3, torch.tensor(rows), run._public)
        return plan.query.finish(sums, run._public, run._private)[0]["gradient"]

    others = [row for row in range(n) if row != one]
    whole = [*others, one]  # examples draw by their place in the batch
    with_it = total(whole)
    counts[one] = 0.0
    first, moved = total(others if arithmetic == "rigorous" else whole), []
    for _ in range(NEIGHBOURS):
        mask[one] = draw_mask(draw, length)
        tokens[one] = torch.tensor([draw.randrange(2, lm.WORDS) for _ in range(length)]) * mask[one]
        moved.append(distance(first, total(whole)))
    return plan, moved, distance(first, with_it)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hush.per_example.result.GradientWarning")
@pytest.mark.parametrize("seed", range(SEARCHES))
def test_no_mask_length_or_option_moves_the_sum_of_the_others_by_more_than_is_charged(seed):
    plan, moved, counted = search(seed)
    assert len(moved) == NEIGHBOURS
    assert max(moved) <= plan.charge < 0.1 < counted


@pytest.mark.slow
def test_a_run_with_dropout_and_masks_computes_all_examples_together():
    n = 8
    model, content = lm.make("BERT").train(), lm.batch("BERT", n)
    plan = hush.make_plan(
        "dp-sgd", examples=n, batch_size=n, sample_rate=1.0, steps=100, noise_multiplier=1.0, lr=0.1, clip=1.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        run = plan.start(model, lm.losses, content)
        for _ in range(2):
            run.step(run.batch(run.next))
    assert verdict_of(model, lm.losses).engine == "book-keeping"


@pytest.mark.slow
def test_the_example_with_adapters_runs_on_the_fast_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[2] / "examples" / "with_peft.py"
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        found = runpy.run_path(str(example))
    verdict = verdict_of(found["model"], found["losses"])
    assert (verdict.engine, verdict.alone) == ("book-keeping", frozenset())
