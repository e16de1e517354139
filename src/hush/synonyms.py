"""What other libraries and papers call the settings and options of hush, so that a hint can name the word used here."""

from __future__ import annotations

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
    """The word used here for a setting that others call ``name``; other names come back as they are."""
    plain = name.lower().replace("-", "_")
    return _KNOWN_AS.get(plain, plain)
