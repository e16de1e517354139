"""Audits: lower bounds on how much a plan leaks, measured on its own releases and compared with its claims.

    verdicts = hush.audit_plan(plan, model, losses, (images, labels), runs=400)

`canary` builds the problem, `adversaries` score runs, `bounds` and `one_run` turn scores into verdicts, `audit` runs
them and stores the findings. An audit can refute a claim; it never proves one.
"""
