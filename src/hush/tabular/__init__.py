"""Tables as training data: schema, type inference, reading, encoding.

In scope: turning a file into tensors by public facts and declared kinds. Ranges and classes that are computed from the
rows need noise and are in `hush.statistics`.
"""
