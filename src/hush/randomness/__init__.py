"""Every random number of hush is made here, as a pure function of (secret, stream, step) or of a public seed.

Sampling and noise must be unpredictable to whoever sees the released model, and the same again after a resume. So a
run holds one 256-bit secret, and each (stream, step) pair keys a counter-based generator of its own through BLAKE2b:
AES-256 for noise on the CPU and for draws inside a model, Philox for coins and orders. torch's CPU generator is not
used for noise: it keeps 32 bits of its seed, so that two of 100 000 steps would share their noise almost surely.

`secret` derives keys, `cipher` makes bytes and tags of them, `normals` makes the noise, `generators` those of numpy and
torch, `counter` numbers the draws of a forward pass.
"""

from hush.randomness import streams
from hush.randomness.counter import Counter
from hush.randomness.generators import generator, public_seeds, seeded
from hush.randomness.normals import BLOCK, normal, normal_of_key
from hush.randomness.secret import Secret

__all__ = [
    "BLOCK",
    "Counter",
    "Secret",
    "generator",
    "normal",
    "normal_of_key",
    "public_seeds",
    "seeded",
    "streams",
]
