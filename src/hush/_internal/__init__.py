"""Helpers shared by all packages: text, files, validation, tensors, identities.

In scope: functions without any privacy meaning, and the identity of a plan. Not part of the public API.
"""
