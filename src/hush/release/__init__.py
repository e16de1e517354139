"""The release, the folder that may be published: weights, description, privacy card and statement.

In scope: writing, loading, verifying and exporting a release, and predicting with it. Out of scope: anything private,
such as checkpoints and exact metrics; these are in the private part of a `hush.run_directory.RunDirectory`.
"""
