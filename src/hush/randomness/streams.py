"""The name of every random stream: the only place where these strings are written.

A key is derived from (secret, stream name, step), so a renamed stream changes every seeded run, and two purposes that
share a name share their randomness. The strings are data and never change; add a new one for a new purpose. A 2 at
the end of a name marks noise made by `hush._internal.noise_kernel`; an earlier transform used the name without it.
"""

from __future__ import annotations

# Sampling and aggregation
ORDER = "order"  # fixed batches and groups; stays with the first secret of a run when a fresh one replaces it
SAMPLING = "sampling"  # coins and subsets of each step
ROW_ORDER = "row order"  # the order of the examples of a batch, which is cut into chunks
SPOT_CHECK = "spot check"  # which steps and rows the isolation checks look at

# Noise
ROWS = "rows2"  # released rows of `hush.sanitize`
HISTOGRAMS = "histograms2"  # noisy histograms of columns and classes

# Randomised labels
LABELS_FIRST = "labels/first"

# Digests and checks
SECRET_NAME = "name"  # identifies a secret without revealing it
RELEASE_CONTENT = "before content"
SAMPLED_DIGEST = "digest"  # which examples are read twice
CONSISTENCY = "standing"  # whether all ranks are at the same step
SUMS = "digest/sums"  # tags of the sums of a step

# Splits (public seeds)
SPLIT = "split"
TEST = "test"
VALIDATION = "validation"
UNITS = "units"

# Audits, trials and benchmarks
AUDIT_ONE_RUN = "audit/one run"
AUDIT_SECOND = "second"  # the second run of a pair
AUDIT_COINS = "coins"
CANARIES = "canaries"
TRIALS = "trials"
BENCH = "bench"
METRICS_CONTENT = "figures content"  # keys the digest of exact counts
NOISE_PREVIEW = "noise show"
PREVIEW_ROWS = "noise"
BATCH_EFFECT = "company"  # a public secret for measuring the effect of other rows


def noise(channel: str) -> str:
    """The noise added to a channel's sum."""
    return f"noise2/{channel}"


def private_metrics(part: str) -> str:
    """The noise of released metrics: of the confusion matrix or of the histograms."""
    return f"figures2 {part}"


def data_release(key: str) -> str:
    """The secret of a release made before training."""
    return f"before {key}"


def model_draw(shared: bool, number: int) -> str:
    """Draw ``number`` of a forward pass: one for the batch, or one per example."""
    return f"model/{'shared' if shared else 'place'}/{number}"


def unit_rows(width: int) -> str:
    """Which rows of a unit are used; one stream per width."""
    return f"rows of a unit/{width}"


def digest(purpose: str) -> str:
    """The key of a digest."""
    return f"digest/{purpose}"


def split_units(stream: str) -> str:
    """A split by units in place of rows."""
    return f"{stream} of units"


def audit_run(method: str, adversary: str, number: int) -> str:
    """Run ``number`` of an audit by many runs."""
    return f"audit/{method}/{adversary}/{number}"
