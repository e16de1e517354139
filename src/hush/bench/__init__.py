"""Benchmarks: a TOML spec of many private runs, carried out into a store that survives anything."""
