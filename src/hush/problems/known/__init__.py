"""One small file a problem; modules whose name starts with an underscore are shared between problems."""
