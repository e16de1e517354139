r"""Makes text from files safe to display: names and labels may contain characters that a terminal or a page interprets.

Control characters (escape sequences that recolour or rewrite a terminal), bidirectional marks, line separators and
surrogates are written as escapes such as ``\x1b`` and ``\u202e``. All other characters are kept.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

INTERPRETED = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))  # Unicode categories


def make_printable(text: object) -> str:
    """The text with every non-displayable character escaped; always one line."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(_spell_out(c) if unicodedata.category(c) in INTERPRETED else c for c in shown)


def dump_json(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """JSON with such characters escaped, so that the file can be displayed; it encodes the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in INTERPRETED else _escape_in_json(c) for c in text)


def as_json_data(value: Any) -> Any:
    """The data with infinity and NaN replaced by null, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): as_json_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _spell_out(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escape_in_json(character: str) -> str:
    return json.dumps(character)[1:-1]


# Names that other libraries and papers use for settings of hush, for hints in error messages.

SYNONYMS: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "eta", "step_size", "alpha"),
    "batch_size": ("batch", "batchsize", "bs", "lot_size", "expected_batch_size", "minibatch", "train_batch_size"),
    "clip": ("max_grad_norm", "l2_norm_clip", "clipping", "clip_norm", "clipping_norm", "max_norm", "grad_clip"),
    "clip_mode": ("clipping_mode", "normalize", "normalise"),
    "per_layer": ("clipping_per_layer", "layerwise", "layer_wise"),
    "noise_multiplier": ("sigma", "noise", "noise_scale", "noise_level"),
    "epsilon": ("eps", "target_epsilon", "privacy_budget", "budget"),
    "delta": ("target_delta",),
    "weight_decay": ("wd", "decay", "l2", "regularisation", "regularization"),
    "beta1": ("betas", "b1"),
    "method": ("optimizer", "optimiser", "algorithm", "mechanism"),
    "examples": ("n", "num_examples", "n_examples", "dataset_size", "sample_size", "rows", "samples"),
    "epochs": ("num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "passes"),
    "steps": ("iterations", "iters", "num_steps", "n_steps", "max_steps", "max_iter"),
    "sampling": ("sampler", "shuffle", "poisson_sampling"),
    "sample_rate": ("sampling_rate", "sampling_probability", "sampling_prob", "q"),
    "adjacency": ("neighbours", "neighbors", "neighboring_relation", "neighbouring_relation"),
    "average": ("ema", "averaging", "swa"),
    "microbatch": ("max_physical_batch_size", "physical_batch_size", "microbatches", "num_microbatches"),
    "seed": ("random_seed", "random_state"),
    "data": ("dataset_path", "input", "csv", "file", "train_data"),
    "target": ("label", "labels", "label_column", "target_column", "y"),
    "out": ("output", "output_dir", "out_dir", "save", "save_dir"),
    "json": ("as_json",),
}
_KNOWN_AS = {other: name for name, others in SYNONYMS.items() for other in others}


def translate(name: str) -> str:
    """The name in hush of a setting that other libraries call ``name``; unknown names are returned unchanged."""
    plain = name.lower().replace("-", "_")
    return _KNOWN_AS.get(plain, plain)
