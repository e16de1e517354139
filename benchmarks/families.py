"""Families of models, tiny, with random weights: sums against a float64 loop, and gradient paths.

    python benchmarks/families.py --json docs/results/families.json
    python benchmarks/families.py --only "text bert,torch LSTM packed"

They are the text, language, image, audio and video models of transformers, and models of torch.nn. "exact" compares the
losses, the weighted sum and the norms of the per-example gradients, without dropout, with one backward pass per
example. The path is that of `hush.explain`, with the default dropout and the checks of what a model reads. A model that
mixes examples by BatchNorm must be refused, and is converted with `hush.to_group_norm`. A family whose tiny
configuration does not run by itself, or that draws numbers outside of torch, is left out, and listed.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hush
from hush.errors import HushError, UnsupportedModelError
from hush.per_example.gradients import SAME, TOGETHER, check_model, per_example_gradients

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
from language_models import losses as text_losses

N, LENGTH, PATIENCE, CLOSE, LARGE = 4, 12, 90, 1e-6, 6_000_000
LENGTHS = torch.tensor([12, 9, 5, 11])
LABELS = torch.arange(N) % 2


@dataclass(frozen=True)
class Case:
    """How to make a model, a batch for it, and its losses."""

    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    losses: Callable[[nn.Module, Any], Tensor]


def random(*shape: int) -> Tensor:
    """The same numbers at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def tokens(end: int = 0) -> tuple[Tensor, ...]:
    """Tokens, masks of several lengths, labels; the last token of a text is ``end`` if there is one."""
    mask = (torch.arange(LENGTH) < LENGTHS[:, None]).long()
    words = torch.randint(5, 100, (N, LENGTH), generator=torch.Generator().manual_seed(0)) * mask
    return (words.scatter(1, LENGTHS[:, None] - 1, end) if end else words), mask, LABELS


# Families of transformers, with small configurations.

SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ["hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim", "emb_dim", "embed_dim"], 32
    ),
    **dict.fromkeys(
        ["intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "d_ff", "ffn_dim", "n_inner"], 64
    ),
    **dict.fromkeys(["d_inner", "ffn_hidden_size", "moe_intermediate_size"], 64),
    **dict.fromkeys(["num_attention_heads", "encoder_attention_heads", "decoder_attention_heads", "n_head"], 4),
    **dict.fromkeys(["n_heads", "num_heads"], 4),
    **dict.fromkeys(["num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"], 2),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "n_ctx"], 64),
    **dict.fromkeys(["bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"], 1),
    **dict.fromkeys(["num_local_experts", "num_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["head_dim", "d_kv", "attention_window", "sliding_window"], 8),
    "vocab_size": 100,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 4,
    "tubelet_size": 2,
    "frames_per_clip": 4,
    "crop_size": 32,
    "num_mel_bins": 16,
    "max_length": 64,
    "max_source_positions": 32,
    "max_target_positions": 32,
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "num_labels": 2,
    "drop_path_rate": 0.0,
    "squeeze_factor": 2,
    "classifier_proj_size": 16,
    "feature_projection_input_dim": 16,
}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"head_dim": 8, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["deepseek_v2", "deepseek_v3", "minicpm3", "mistral4", "axk1", "axk2"], LATENT),
    **dict.fromkeys(["bart", "mbart", "mvp", "plbart", "bigbird_pegasus"], {"decoder_start_token_id": 2}),
    **dict.fromkeys(["t5", "mt5", "umt5"], {"decoder_start_token_id": 2}),
    "falcon": {"head_dim": None},
    "gptj": {"rotary_dim": 8, "n_inner": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_heads": 4, "window_size": 8},
    "codegen": {"rotary_dim": 8, "n_inner": None},
    "lilt": {"channel_shrink_ratio": 4, "num_attention_heads": 2, "max_2d_position_embeddings": 64},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 4, "visual_embed": False},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20, "pronunciation_embed_dim": 8}
    | {"shape_embed_dim": 8},
    "xlnet": {"d_model": 32, "n_head": 4, "d_inner": 64},
    "perceiver": {"d_latents": 32, "num_latents": 8, "d_model": 32, "num_self_attends_per_block": 2},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 4], "attn_layers": ["local", "local"]}
    | {"local_attn_chunk_length": 4, "feed_forward_size": 64},
    "funnel": {"num_hidden_layers": None, "block_sizes": [1, 1], "d_head": 8, "pooling_type": "mean"},
    "swin": {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "depths": [1, 1, 1, 1], "patch_size": 2, "window_size": 2},
    "swinv2": {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "depths": [1, 1, 1, 1], "patch_size": 2, "window_size": 2},
    "donut-swin": {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "depths": [1, 1, 1, 1], "patch_size": 2}
    | {"window_size": 2},
    "focalnet": {"embed_dim": 16, "depths": [1, 1, 1, 1], "patch_size": 4},
    "hiera": {"embed_dim": 16, "depths": [1, 1, 1, 1], "image_size": [32, 32], "num_heads": [1, 2, 4, 8]}
    | {"patch_size": [7, 7], "initial_num_heads": 1},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 160},
    "imagegpt": {"n_positions": 64, "vocab_size": 20, "n_inner": 64},
    "audio-spectrogram-transformer": {"frequency_stride": 8, "time_stride": 8},
    "wav2vec2-bert": {"add_adapter": False, "hidden_size": 32},
    "sew-d": {"squeeze_factor": 2, "max_position_embeddings": 64, "position_buckets": 8},
}  # fmt: skip
DEEP = ("depths", "num_encoder_blocks", "depth", "layer_depths", "layers", "stage_num_blocks")


def configure(family: str) -> Any:
    """A small configuration of the family; raises if there is none."""
    kind = CONFIG_MAPPING[family]
    usual = kind()
    given = {key: value for key, value in SMALL.items() if _is_like(usual, key)}
    if family == "perceiver":
        given |= {"num_cross_attention_heads": 4, "num_self_attention_heads": 4}
    for key, value in usual.to_dict().items():
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value) and key not in given:
            if key in DEEP:
                given[key] = [1] * len(value)
            elif min(value) >= 16:
                given[key] = [max(8, v // 8) for v in value]
    for part in ("vision_config", "text_config"):
        if hasattr(usual, part) and not isinstance(getattr(usual, part), dict):
            own = getattr(usual, part)
            small = {key: value for key, value in SMALL.items() if _is_like(own, key)}
            given[part] = {key: value for key, value in small.items() if key != "head_dim"}
    given |= OWN.get(family, {})
    return kind(**{key: value for key, value in given.items() if value is not None})


def _is_like(usual: Any, key: str) -> bool:
    """Whether a configuration has this setting, as a list if the small value is one."""
    return hasattr(usual, key) and isinstance(getattr(usual, key), (list, tuple)) == isinstance(SMALL[key], list)


def build(owner: Any, family: str) -> nn.Module:
    """The model of a family for a task."""
    config = configure(family)
    config._experts_implementation = "eager"  # the others do not run in float64
    with torch.device("meta"):
        size = sum(p.numel() for p in owner.from_config(copy.deepcopy(config)).parameters())
    if size > LARGE:
        raise ValueError(f"too large: {size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    return owner.from_config(config).train()


def language_losses(model: nn.Module, content: Any) -> Tensor:
    """The mean cross-entropy of the next tokens, for each example."""
    words, mask, _ = content
    logits, kept = model(input_ids=words, attention_mask=mask).logits[:, :-1], mask[:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), reduction="none").view(kept.shape)
    return (each * kept).sum(1) / kept.sum(1).clamp(min=1)


def named_losses(model: nn.Module, content: Any, *, name: str) -> Tensor:
    """Cross-entropy of a model that takes its input by this name."""
    return F.cross_entropy(model(**{name: content[0]}).logits, content[1], reduction="none")


ENDED = ("bart", "mbart", "mvp", "plbart", "t5", "mt5", "umt5", "bigbird_pegasus", "t5gemma")
SHAPES = {  # audio models whose inputs are features
    "audio-spectrogram-transformer": ("input_values", (64, 16)),
    "whisper": ("input_features", (16, 64)),
    "wav2vec2-bert": ("input_features", (24, 16)),
}


def list_transformers() -> dict[str, Case]:
    """All classifiers, and the language models of families that have no classifier of texts."""
    texts, cases = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, {}
    for family in texts:
        make = partial(build, transformers.AutoModelForSequenceClassification, family)
        cases[f"text {family}"] = Case(make, partial(tokens, 1 if family in ENDED else 0), text_losses)
    for family in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if family not in texts:
            make = partial(build, transformers.AutoModelForCausalLM, family)
            cases[f"language {family}"] = Case(make, tokens, language_losses)
    pictures = partial(named_losses, name="pixel_values")
    for family in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        make = partial(build, transformers.AutoModelForImageClassification, family)
        if family == "imagegpt":
            losses, batch = partial(named_losses, name="input_ids"), lambda: (tokens()[0] % 20, LABELS)
        else:
            losses, batch = pictures, lambda: (random(N, 3, 32, 32), LABELS)
        cases[f"image {family}"] = Case(make, batch, losses)
    for family in auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES:
        name, shape = SHAPES.get(family, ("input_values", (3200,)))
        make = partial(build, transformers.AutoModelForAudioClassification, family)
        batch = lambda shape=shape: (random(N, *shape), LABELS)  # noqa: E731
        cases[f"audio {family}"] = Case(make, batch, partial(named_losses, name=name))
    for family in auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES:
        make = partial(build, transformers.AutoModelForVideoClassification, family)
        name = "pixel_values_videos" if family == "vjepa2" else "pixel_values"
        batch = lambda: (random(N, 4, 3, 32, 32), LABELS)  # noqa: E731
        cases[f"video {family}"] = Case(make, batch, partial(named_losses, name=name))
    return cases


# Families of torch.nn.


class Net(nn.Module):
    """Named parts, and a forward that uses them."""

    def __init__(self, run: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the function computes."""
        return self.run(self, *inputs)


def classify(model: nn.Module, content: Any) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(*content[:-1]), content[-1], reduction="none")


def recurrent(kind: type[nn.RNNBase], *, packed: bool = False, **options: Any) -> Callable[[], nn.Module]:
    """A classifier of sequences of different lengths."""
    first, sides = options.get("batch_first", False), 2 if options.get("bidirectional") else 1

    def run(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
        x = net.table(words) if first else net.table(words).transpose(0, 1)
        if packed:
            x = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        out, state = net.layer(x)
        out = pad_packed_sequence(out, batch_first=first, total_length=LENGTH)[0] if packed else out
        out = out if first else out.transpose(0, 1)
        last = out[torch.arange(len(lengths)), lengths - 1]
        return net.head(last + (state[0] if isinstance(state, tuple) else state)[0].sum(1, keepdim=True))

    width = options.get("proj_size", 6) * sides
    return lambda: Net(run, table=nn.Embedding(100, 5), layer=kind(5, 6, **options), head=nn.Linear(width, 2))


def convolved(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Layers, and a head on their output."""
    return lambda: nn.Sequential(*[make() for make in layers], nn.Flatten(), nn.LazyLinear(2))


def stacked(run: Callable[..., Tensor], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A `Net` of these parts."""
    return lambda: Net(run, **{name: make() for name, make in parts.items()})


def attend(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """Attention that ignores padding, averaged over positions."""
    hidden = net.table(words)
    hidden = hidden if net.layer.batch_first else hidden.transpose(0, 1)
    padding = torch.arange(LENGTH) >= lengths[:, None]
    out = net.layer(hidden, hidden, hidden, key_padding_mask=padding, need_weights=False)[0]
    return net.head(out.mean(1 if net.layer.batch_first else 0))


def encode(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """A transformer encoder with a padding mask."""
    return net.head(net.layer(net.table(words), src_key_padding_mask=torch.arange(LENGTH) >= lengths[:, None])[:, 0])


def decode(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """A transformer decoder with a causal mask."""
    hidden = net.table(words)
    return net.head(net.layer(hidden, hidden, tgt_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH))[:, -1])


def unroll(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """A cell, step by step."""
    state: Any = None
    for x in net.table(words).unbind(1):
        state = net.cell(x, state)
    return net.head(state[0] if isinstance(state, tuple) else state)


def gate(net: Any, x: Tensor) -> Tensor:
    """Squeeze and excitation (Hu et al. 2018)."""
    hidden = net.conv(x)
    return net.head((hidden * net.up(net.down(hidden.mean((2, 3))).relu()).sigmoid()[:, :, None, None]).mean((2, 3)))


def mix(net: Any, x: Tensor) -> Tensor:
    """An MLP-Mixer (Tolstikhin et al. 2021)."""
    hidden = net.patches(x).flatten(2).transpose(1, 2)
    hidden = hidden + net.places(net.norm(hidden).transpose(1, 2)).transpose(1, 2)
    return net.head((hidden + net.channels(hidden)).mean(1))


def cross(net: Any, x: Tensor) -> Tensor:
    """A residual network of blocks."""
    hidden = net.first(x)
    for block in net.blocks:
        hidden = hidden + block(hidden)
    return net.head(hidden)


def unite(net: Any, x: Tensor) -> Tensor:
    """A U-Net (Ronneberger et al. 2015)."""
    low = net.down(x).relu()
    return net.head(torch.cat([x, net.up(net.middle(low).relu())], 1)).mean((2, 3))


def factorize(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """A factorisation machine (Rendle 2010)."""
    rows, single = net.table(words), net.single(words)
    pairs = (rows.sum(1).square() - rows.square().sum(1)) / 2
    return net.head(torch.cat([pairs, single.sum(1)], 1))


def route(net: Any, x: Tensor) -> Tensor:
    """A dense mixture of experts."""
    shares = net.router(x).softmax(1)
    return net.head(sum(shares[:, i : i + 1] * part(x) for i, part in enumerate(net.experts)))


def rate(net: Any, x: Tensor) -> Tensor:
    """Einsum with a bare parameter."""
    return net.head(torch.einsum("ni,ij,nj->nj", x, net.weight, x) + net.scale * x)


def tie(net: Any, words: Tensor, lengths: Tensor) -> Tensor:
    """Input and output share a matrix."""
    return F.linear(net.inner(net.table(words)).mean(1), net.table.weight)[:, :2]


WORDS = (lambda: tokens()[0], lambda: LENGTHS)
ROWS, PICTURES = (lambda: random(N, 8),), (lambda: random(N, 3, 12, 12),)
SOUNDS, VOLUMES, GRIDS = (lambda: random(N, 3, 20),), (lambda: random(N, 2, 6, 6, 6),), (lambda: random(N, 5, 8),)
table, head = partial(nn.Embedding, 100, 8), partial(nn.Linear, 8, 2)
block = lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))  # noqa: E731
encoder = partial(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.1, batch_first=True)
decoder = partial(nn.TransformerDecoderLayer, 8, 2, 16, dropout=0.1, batch_first=True)
attention = partial(nn.MultiheadAttention, 8, 2, dropout=0.1)
two = partial(nn.Conv2d, 3, 8, 3)
TORCH: dict[str, tuple[Sequence[Callable[[], Tensor]], Callable[[], nn.Module]]] = {
    "MLP": (ROWS, convolved(partial(nn.Linear, 8, 16), nn.Tanh, partial(nn.Linear, 16, 8), nn.Dropout)),
    "MLP PReLU": (ROWS, convolved(partial(nn.Linear, 8, 16), nn.PReLU, nn.Dropout)),
    "MLP RMSNorm": (ROWS, convolved(partial(nn.Linear, 8, 16), partial(nn.RMSNorm, 16), nn.SiLU)),
    "MLP weight norm": (ROWS, convolved(lambda: weight_norm(nn.Linear(8, 16)), nn.ELU)),
    "MLP GLU": (ROWS, convolved(partial(nn.Linear, 8, 16), nn.GLU, partial(nn.Linear, 8, 4))),
    "residual MLP": (ROWS, stacked(cross, first=partial(nn.Linear, 8, 8), head=head,
                                   blocks=lambda: nn.ModuleList([block(), block()]))),
    "mixture of experts": (ROWS, stacked(route, router=partial(nn.Linear, 8, 3), head=head,
                                         experts=lambda: nn.ModuleList(nn.Linear(8, 8) for _ in range(3)))),
    "einsum": (ROWS, stacked(rate, weight=lambda: nn.Parameter(random(8, 8)), head=head,
                             scale=lambda: nn.Parameter(random(8)))),
    "bilinear": (ROWS, stacked(lambda net, x: net.head(net.pair(x, x)), pair=partial(nn.Bilinear, 8, 8, 8), head=head)),
    "conv 1d": (SOUNDS, convolved(partial(nn.Conv1d, 3, 8, 5), nn.ReLU, partial(nn.MaxPool1d, 2))),
    "conv 2d": (PICTURES, convolved(two, nn.ReLU, partial(nn.MaxPool2d, 2), partial(nn.Conv2d, 8, 8, 3, stride=2))),
    "conv 3d": (VOLUMES, convolved(partial(nn.Conv3d, 2, 4, 3), nn.ReLU, partial(nn.AvgPool3d, 2))),
    "conv strided": (PICTURES, convolved(partial(nn.Conv2d, 3, 8, 3, stride=2, padding=1), nn.LeakyReLU)),
    "conv dilated": (SOUNDS, convolved(partial(nn.Conv1d, 3, 8, 3, dilation=2), nn.ReLU,
                                       partial(nn.Conv1d, 8, 8, 3, dilation=4))),
    "conv depthwise": (PICTURES, convolved(two, partial(nn.Conv2d, 8, 8, 3, groups=8), partial(nn.Conv2d, 8, 4, 1))),
    "conv grouped": (PICTURES, convolved(two, nn.ReLU, partial(nn.Conv2d, 8, 12, 3, groups=4))),
    "conv circular": (PICTURES, convolved(partial(nn.Conv2d, 3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU)),
    "conv same": (PICTURES, convolved(partial(nn.Conv2d, 3, 4, 5, padding="same"), nn.Softplus)),
    "conv weight norm": (SOUNDS, convolved(lambda: weight_norm(nn.Conv1d(3, 8, 3)), nn.ReLU)),
    "conv transposed 1d": (SOUNDS, convolved(partial(nn.ConvTranspose1d, 3, 4, 4, stride=2), nn.ReLU)),
    "conv transposed 2d": (PICTURES, convolved(two, nn.ReLU, partial(nn.ConvTranspose2d, 8, 4, 3, stride=2))),
    "conv GroupNorm": (PICTURES, convolved(two, partial(nn.GroupNorm, 2, 8), nn.ReLU)),
    "conv InstanceNorm": (PICTURES, convolved(two, partial(nn.InstanceNorm2d, 8, affine=True), nn.ReLU)),
    "conv BatchNorm": (PICTURES, convolved(two, partial(nn.BatchNorm2d, 8), nn.ReLU)),
    "conv LocalResponseNorm": (PICTURES, convolved(two, partial(nn.LocalResponseNorm, 3), nn.ReLU)),
    "conv PixelShuffle": (PICTURES, convolved(two, partial(nn.PixelShuffle, 2), partial(nn.Conv2d, 2, 4, 3))),
    "conv Dropout2d": (PICTURES, convolved(two, nn.Dropout2d, partial(nn.AdaptiveAvgPool2d, 2))),
    "squeeze and excitation": (PICTURES, stacked(gate, conv=two, down=partial(nn.Linear, 8, 4),
                                                 up=partial(nn.Linear, 4, 8), head=head)),
    "MLP-Mixer": (PICTURES, stacked(mix, patches=partial(nn.Conv2d, 3, 8, 4, stride=4), norm=partial(nn.LayerNorm, 8),
                                    places=partial(nn.Linear, 9, 9), channels=block, head=head)),
    "U-Net": (PICTURES, stacked(unite, down=partial(nn.Conv2d, 3, 8, 2, stride=2), middle=partial(nn.Conv2d, 8, 8, 1),
                                up=partial(nn.ConvTranspose2d, 8, 5, 2, stride=2), head=partial(nn.Conv2d, 8, 2, 1))),
    "deep sets": (GRIDS, stacked(lambda net, x: net.head(net.inner(x).relu().sum(1)), inner=partial(nn.Linear, 8, 8),
                                 head=head)),
    "embedding bag of words": (WORDS, stacked(lambda net, words, lengths: net.head(net.table(words).sum(1)),
                                              table=partial(nn.Embedding, 100, 8, padding_idx=0), head=head)),
    "EmbeddingBag": (WORDS, stacked(lambda net, words, lengths: net.head(net.table(words)), head=head,
                                    table=partial(nn.EmbeddingBag, 100, 8))),
    "factorisation machine": (WORDS, stacked(factorize, table=table, single=partial(nn.Embedding, 100, 1),
                                             head=partial(nn.Linear, 9, 2))),
    "tied weights": (WORDS, stacked(tie, table=table, inner=partial(nn.Linear, 8, 8))),
    "text CNN": (WORDS, stacked(lambda net, words, _: net.head(net.conv(net.table(words).transpose(1, 2)).amax(2)),
                                table=table, conv=partial(nn.Conv1d, 8, 8, 3), head=head)),
    "LSTMCell": (WORDS, stacked(unroll, table=table, cell=partial(nn.LSTMCell, 8, 8), head=head)),
    "GRUCell": (WORDS, stacked(unroll, table=table, cell=partial(nn.GRUCell, 8, 8), head=head)),
    "RNNCell": (WORDS, stacked(unroll, table=table, cell=partial(nn.RNNCell, 8, 8), head=head)),
    **{f"{kind.__name__}{' packed' * packed}{label}": (WORDS, recurrent(kind, packed=packed, **options))
       for kind in (nn.LSTM, nn.GRU, nn.RNN) for packed in (False, True)
       for label, options in (("", {}), (" 2 layers both ways", {"num_layers": 2, "bidirectional": True,
                                                                   "batch_first": True, "dropout": 0.1}))},
    "LSTM projected": (WORDS, recurrent(nn.LSTM, proj_size=3)),
    "LSTM packed projected": (WORDS, recurrent(nn.LSTM, packed=True, proj_size=3)),
    "attention": (WORDS, stacked(attend, table=table, layer=attention, head=head)),
    "attention batch first": (WORDS, stacked(attend, table=table, layer=partial(attention, batch_first=True),
                                              head=head)),
    "attention no bias": (WORDS, stacked(attend, table=table, layer=partial(attention, bias=False), head=head)),
    "attention bias_kv": (WORDS, stacked(attend, table=table, layer=partial(attention, add_bias_kv=True), head=head)),
    "transformer encoder": (WORDS, stacked(encode, table=table, layer=encoder, head=head)),
    "transformer encoder norm first": (WORDS, stacked(encode, table=table, head=head,
                                                       layer=partial(encoder, norm_first=True, activation="gelu"))),
    "transformer encoder 2 layers": (WORDS, stacked(encode, table=table, head=head,
                                                     layer=lambda: nn.TransformerEncoder(encoder(), 2))),
    "transformer decoder": (WORDS, stacked(decode, table=table, layer=decoder, head=head)),
    "transformer decoder norm first": (WORDS, stacked(decode, table=table, head=head,
                                                       layer=partial(decoder, norm_first=True))),
}  # fmt: skip


def list_torch() -> dict[str, Case]:
    """The families of torch.nn."""

    def case(batch: Sequence[Callable[[], Tensor]], make: Callable[[], nn.Module]) -> Case:
        def build() -> nn.Module:
            torch.manual_seed(0)
            model = make()
            with torch.no_grad():  # creates the layers of unknown width
                model(*[part() for part in batch])
            return model.train()

        return Case(build, lambda: (*[part() for part in batch], LABELS), classify)

    return {f"torch {name}": case(*given) for name, given in TORCH.items()}


# The comparison.


def without_dropout(model: nn.Module) -> nn.Module:
    """The model in float64 with every rate of dropout at zero."""
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in key or (key == "p" and "Dropout" in type(module).__name__)):
                setattr(module, key, 0.0)
    return model.double()


def loop(model: nn.Module, case: Case, content: tuple[Tensor, ...]) -> tuple[Tensor, list[list[Tensor]]]:
    """The loss and the gradients of each example by a backward pass of its own."""
    params = [p for p in model.parameters() if p.requires_grad]
    values, rows = [], []
    for i in range(N):
        loss = case.losses(model, tuple(t[i : i + 1] for t in content)).sum()
        found = torch.autograd.grad(loss, params, allow_unused=True)
        values.append(loss.detach())
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)])
    return torch.stack(values), rows


def compare(
    model: nn.Module, case: Case, content: tuple[Tensor, ...], values: Tensor, rows: list[list[Tensor]]
) -> float:
    """The largest relative difference of a loss, a sum or a norm from the loop."""
    tape, weights = per_example_gradients(model, case.losses, content), torch.linspace(0.1, 1, N, dtype=torch.float64)
    right = torch.stack([sum(g.square().sum() for g in row) for row in rows])
    ours = torch.stack(list(tape.squared_norms(certain=False).values())).sum(0)
    totals = [sum(w * g for w, g in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)]
    off = [(a - b).norm() for a, b in zip(tape.sum(weights).values(), totals, strict=True)]
    apart = [max(off) / right.max().sqrt(), ((ours - right).abs() / right).max()]
    return max(map(float, [*apart, ((tape.losses - values).abs() / values.abs()).max()]))


def widen(content: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The batch in float64."""
    return tuple(t.double() if t.is_floating_point() else t for t in content)


def prepare(case: Case) -> tuple[nn.Module, str]:
    """The model, converted if it is refused for BatchNorm, and that reason."""
    model = case.make()
    try:
        check_model(model)
    except UnsupportedModelError as error:
        if "to_group_norm" not in str(error):
            raise
        return hush.to_group_norm(model), f"refused as it is: {str(error)[:300]}"
    return model, ""


def check(case: Case) -> tuple[str, str]:
    """What is found, and more about it."""
    content = case.batch()
    try:
        model, refused = prepare(case)
        model = without_dropout(model)
        case.losses(model, widen(content))
        values, rows = loop(model, case, widen(content))
        again = loop(model, case, widen(content))[1]
    except HushError as error:
        return "refused", f"{type(error).__name__}: {str(error)[:300]}"
    except Exception as error:
        return "left out", f"{type(error).__name__}: {str(error)[:120]}".replace("\n", " ")
    flat, other = ([g for row in each for g in row] for each in (rows, again))
    if not all(map(torch.equal, flat, other)):
        return "left out", "it draws numbers outside of torch"
    if not all(bool(torch.isfinite(g).all()) for g in flat) or not any(bool(g.any()) for g in flat):
        return "left out", "its gradients are not finite, or zero"
    try:
        off = compare(model, case, widen(content), values, rows)
        paths = hush.explain(prepare(case)[0], case.losses, content)
    except HushError as error:
        return "refused", f"{type(error).__name__}: {str(error)[:300]}"
    except (RuntimeError, ValueError, TypeError) as error:
        return "WRONG", f"{type(error).__name__}: {str(error)[:300]}"
    if not off <= CLOSE:
        return "WRONG", f"{off:.1e} {refused}"
    slow = {path.module: path.reason for path in paths if path.path not in ("book-keeping", "frozen")}
    reasons = dict.fromkeys(why for why in slow.values() if not why.startswith((TOGETHER, SAME)))
    whole = f"{len(slow)} of {len(paths)} modules: {'; '.join(reasons)}" if slow else ""
    return ("exact, slow" if slow else "exact, fast"), "; ".join(filter(None, (whole, refused)))


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {PATIENCE} seconds")


def tabulate(found: Mapping[str, tuple[str, str]]) -> str:
    """The counts, by kind of family."""
    columns = ("exact, fast", "exact, slow", "refused", "WRONG", "left out")
    kinds = dict.fromkeys(name.partition(" ")[0] for name in found)
    counts = {kind: collections.Counter(v for k, (v, _) in found.items() if k.startswith(f"{kind} ")) for kind in kinds}
    counts["all"] = collections.Counter(v for v, _ in found.values())
    lines = [f"| {' | '.join(('family', *columns, 'tried'))} |", "|---" * (len(columns) + 2) + "|"]
    for kind, count in counts.items():
        tried = sum(count.values()) - count["left out"]
        lines.append(f"| {kind} | {' | '.join(str(count[column]) for column in columns)} | {tried} |")
    return "\n".join(lines)


def main() -> None:
    """One line per family, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas, or the kind of all of them")
    parser.add_argument("--json", type=Path, metavar="PATH", help="save what was found here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _stop)
    cases, found = list_torch() | list_transformers(), {}
    only = options.only.split(",") if options.only else list(cases)
    for name in [each for each in cases if each in only or each.partition(" ")[0] in only]:
        signal.alarm(PATIENCE)
        try:
            found[name] = check(cases[name])
        except TimeoutError as error:
            found[name] = "left out", str(error)
        signal.alarm(0)
        print(": ".join(filter(None, (name, *found[name]))), flush=True)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n{tabulate(found)}")
    if options.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        rows = [{"family": name, "found": said, "more": more} for name, (said, more) in found.items()]
        options.json.write_text(json.dumps({"versions": versions, "families": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
