"""The ledger: what all runs together have spent on a dataset, in a file that is written before every release.

In scope: entries, budgets, the hash chain of the file, and the total of all entries. The cost of a single event is
computed by `hush.accounting`. `run_account` charges a run; the other modules do not need torch.
"""
