"""Built-in datasets, models and problems."""
