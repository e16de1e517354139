"""Benchmarks: a TOML spec of many private runs, carried out into a store that survives anything.

>>> result = hush.run_bench("specs/setup-1-small.toml", "runs/setup-1")  # doctest: +SKIP
>>> [choice.sentence() for choice in result.choices]  # with the ε of choosing  # doctest: +SKIP

In scope: reading a spec, running its trials on one or many machines, storing them, and the ε of choosing among them.
Drawing what a store holds is `hush.report`.
"""
