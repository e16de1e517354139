"""All random numbers of hush: pure functions of (secret, stream, step) or of a public seed.

    secret = Secret.fresh()
    noise = normal(secret, streams.noise("gradient"), step=0, like=torch.empty(10))

Sampling and noise must be unpredictable to anyone who sees the released model, and reproducible after a resume. A run
therefore holds one 256-bit secret. BLAKE2b derives a key for each (stream, step) pair, and the key seeds a
counter-based generator: AES-256 for noise and for draws inside a model, Philox for coins and orders. torch's CPU
generator is not used for noise: it keeps only 32 bits of its seed, so two of 100 000 steps would almost surely share
their noise.

`secret` derives keys, `streams` names them, `cipher` expands them to bytes and tags, `normals` makes normal vectors of
them and adds these to sums, `generators` wraps numpy and torch, and `counter` numbers the draws of a forward pass.

In scope: keys, streams and generators. What is drawn from them is decided elsewhere: batches in `hush.sampling`, noise
in `hush.noise`, draws of a model in `hush.per_example.model_rng`.
"""

from hush.randomness import streams
from hush.randomness.counter import Counter
from hush.randomness.generators import generator, public_seeds, seeded
from hush.randomness.normals import BLOCK, add_normal, count_pairs, normal, normal_of_key
from hush.randomness.secret import Secret

__all__ = [
    "BLOCK",
    "Counter",
    "Secret",
    "add_normal",
    "count_pairs",
    "generator",
    "normal",
    "normal_of_key",
    "public_seeds",
    "seeded",
    "streams",
]
