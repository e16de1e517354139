"""The released artefact: weights, description, privacy card and pages, one folder that may be copied."""

from hush.artefact.description import STATE_ONLY, Architecture, Description, Inputs

__all__ = ["STATE_ONLY", "Architecture", "Description", "Inputs"]
