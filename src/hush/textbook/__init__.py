"""Textbook mechanisms for teaching and comparison: one Gaussian release, and the older composition theorems.

In scope: private means and closed-form bounds, as in docs/building-blocks.md. Plans and runs use `hush.accounting`.
"""
