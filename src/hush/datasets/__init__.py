"""Built-in datasets, models and problems.

In scope: loaders with public constants and digests, small models, and the catalogue that combines them into problems.
Users' own tables are in `hush.tabular`. A loader may not compute a statistic of the rows.
"""
