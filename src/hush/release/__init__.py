"""The folder that may be published: weights, description, privacy card and statement; loading, verifying and exporting
it."""
