"""Every family of text classifiers in transformers, tiny, with random weights: sums against a float64 loop, and paths.

    python benchmarks/families.py
    python benchmarks/families.py --only bert,opt,xlm

"exact" compares the weighted sum and the norms of the per-example gradients, without dropout, with one backward pass
per example. The path is that of `hush.explain`, with the default dropout and the checks of what a model reads. A family
whose tiny configuration does not run by itself, or that draws numbers outside of torch, is left out, and listed.
"""

from __future__ import annotations

import argparse
import collections
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as FAMILIES

import hush
from hush.errors import HushError
from hush.per_example.gradients import per_example_gradients

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
from language_models import losses

N, LENGTH, PATIENCE, CLOSE, LARGE = 4, 12, 60, 1e-6, 4_000_000
WIDTHS = dict.fromkeys(
    ["hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim", "emb_dim"], 32
)
WIDE = [
    "intermediate_size",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "hidden_dim",
    "d_ff",
    "ffn_dim",
    "n_inner",
    "d_inner",
]
HEADS = ["num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head", "n_heads", "num_heads"]
LAYERS = ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"]
POSITIONS = dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx"], 64)
MARKS = dict.fromkeys(["bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"], 1)
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TINY = {
    "vocab_size": 100,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "attention_window": 8,
    "sliding_window": 8,
}
TINY |= (
    WIDTHS | dict.fromkeys(WIDE, 64) | dict.fromkeys(HEADS, 4) | dict.fromkeys(LAYERS, 2) | POSITIONS | MARKS | EXPERTS
)


def make(family: str) -> nn.Module:
    """The family with a small configuration; raises if there is none."""
    kind = CONFIG_MAPPING[family]
    usual = kind()
    given = {key: value for key, value in TINY.items() if hasattr(usual, key)} | {"num_labels": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(kind(**given)).train()


def batch() -> tuple[Tensor, ...]:
    """Tokens, masks of several lengths, labels."""
    mask = (torch.arange(LENGTH) < torch.tensor([12, 9, 5, 11])[:, None]).long()
    return (
        torch.randint(2, 100, (N, LENGTH), generator=torch.Generator().manual_seed(0)) * mask,
        mask,
        torch.arange(N) % 2,
    )


def without_dropout(model: nn.Module) -> nn.Module:
    """The model in float64 with every rate of dropout at zero."""
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in key or (key == "p" and isinstance(module, nn.Dropout))):
                setattr(module, key, 0.0)
    return model.double()


def loop(model: nn.Module, content: tuple[Tensor, ...]) -> list[list[Tensor]]:
    """The gradients of each example by a backward pass of its own."""
    params = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(N):
        loss = losses(model, tuple(t[i : i + 1] for t in content)).sum()
        found = torch.autograd.grad(loss, params, allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)])
    return rows


def compare(model: nn.Module, content: tuple[Tensor, ...], rows: list[list[Tensor]]) -> float:
    """The largest relative difference of a sum or a norm from the loop."""
    tape, weights = per_example_gradients(model, losses, content), torch.linspace(0.1, 1, N, dtype=torch.float64)
    right = torch.stack([sum(g.square().sum() for g in row) for row in rows])
    ours = torch.stack(list(tape.squared_norms(certain=False).values())).sum(0)
    totals = [sum(w * g for w, g in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]
    off = [(a - b).norm() for a, b in zip(tape.sum(weights).values(), totals, strict=True)]
    return max(float(max(off) / right.max().sqrt()), float(((ours - right).abs() / right).max()))


def check(family: str) -> tuple[str, str]:
    """What is found, and more about it."""
    content = batch()
    try:
        model = make(family)
        if sum(p.numel() for p in model.parameters()) > LARGE:
            return "left out", "too large"
        model = without_dropout(model)
        rows, again = loop(model, content), loop(model, content)
    except Exception as error:
        return "left out", f"{type(error).__name__}: {str(error)[:80]}"
    if not all(
        torch.equal(a, b) for one, other in zip(rows, again, strict=True) for a, b in zip(one, other, strict=True)
    ):
        return "left out", "it draws numbers outside of torch"
    try:
        off = compare(model, content, rows)
        paths = hush.explain(make(family), losses, content)
    except HushError as error:
        return "refused", f"{type(error).__name__}: {str(error)[:200]}"
    if off > CLOSE:
        return "WRONG", f"{off:.1e}"
    slow = {path.module: path.reason for path in paths if path.path not in ("book-keeping", "frozen")}
    return ("exact, slow", str(slow)) if slow else ("exact, fast", "")


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {PATIENCE} seconds")


def main() -> None:
    """One line per family, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(FAMILIES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _stop)
    counts: collections.Counter[str] = collections.Counter()
    for family in options.only.split(","):
        signal.alarm(PATIENCE)
        try:
            found, more = check(family)
        except TimeoutError as error:
            found, more = "left out", str(error)
        signal.alarm(0)
        counts[found] += 1
        print(f"{family}: {found} {more}".strip(), flush=True)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {dict(counts)}")


if __name__ == "__main__":
    main()
