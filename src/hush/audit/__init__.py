"""Audits: lower bounds on how much a plan leaks, measured on its own releases and compared with its claims.

>>> import hush
>>> plan = hush.make_plan("dp-sgd", examples=64, batch_size=32, steps=2, epsilon=4)
>>> (verdict,) = hush.audit_plan(plan, runs=8, seed=1)  # 8 for a quick example, 400 to see anything
>>> verdict.verdict
'consistent'

`canary` builds the problem, `adversaries` score runs, `bounds` and `one_run` turn scores into verdicts, `audit` runs
them and stores the findings. An audit can refute a claim; it never proves one.

In scope: attacks on plans and their statistics. Out of scope: proofs (`hush.guarantees`) and pages (`hush.report`).
"""
