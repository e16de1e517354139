"""Helpers without a subject of their own: text, files, validation, tensors, identities."""
