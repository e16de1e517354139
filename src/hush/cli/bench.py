"""`hush bench`: all the runs of a spec, into a store.

What runs a benchmark is imported inside the functions, because the other commands have no use for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hush.cli.console import delayed_status, say, say_when_interrupted, show, show_json
from hush.cli.options import AsJson

if TYPE_CHECKING:
    from hush.bench.spec import Spec
    from hush.bench.store import Store


def bench(
    spec: Annotated[Path, typer.Argument(help="A TOML file, such as those in `specs/`.", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="Directory that collects the runs; made if need be.")] = None,
    executor_name: Annotated[
        str, typer.Option("--executor", help="local (processes), inline (this process) or ray (a cluster).")
    ] = "local",
    workers: Annotated[int | None, typer.Option(help="Runs at a time; one a core, or what a cluster takes.")] = None,
    retries: Annotated[int | None, typer.Option(help="How often a run whose process died is tried again (2).")] = None,
    address: Annotated[
        str | None, typer.Option(help="ray: the cluster, host:port or auto; else one is started here.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="ray: cores that one run takes (1).")] = None,
    gpus: Annotated[float | None, typer.Option(help="ray: GPUs that one run takes, such as 1 or 0.5 (none).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the runs and estimate the time.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Go on with failed runs, from their checkpoints if they have any.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every run of a spec that the store does not hold yet. Interrupt it at any time, and start it again.

    Example: `hush bench specs/setup-3-small.toml --store results --workers 2`

    On a Ray cluster: `hush bench specs/setup-1.toml --store /shared/results --executor ray --address auto --cpus 2`
    """
    from hush.bench.executors import count_cores
    from hush.bench.selection_cost import Pricing, price_choices, price_store
    from hush.bench.spec import check_spec, read_spec
    from hush.bench.store import StoreFullError, open_store
    from hush.bench.sweep import ExecutorOptions, make_executor, show_live, sweep

    chosen = make_executor(executor_name, ExecutorOptions(workers, retries, address, cpus, gpus))
    read = read_spec(spec)
    check_spec(read, call_others=not dry_run)
    if dry_run:
        _tell_plan(read, store, workers or count_cores(), as_json=as_json)
        return
    if store is None:
        raise typer.BadParameter("name a directory for the results: --store DIR")
    opened = open_store(store)
    try:
        with say_when_interrupted("stopped: start the same command again to go on"), show_live() as watch:
            tally = sweep(read, opened, chosen, retry_failed=retry_failed, watch=watch)
    except StoreFullError as error:
        say(f"error: {error.strerror} in '{store}': what is written is whole; make room and run the same command again")
        raise typer.Exit(1) from error
    found = tally.summary()
    with delayed_status("computing the price of choosing"):
        records, pricing = list(opened.records()), Pricing()  # of the whole store: also runs of other specs were seen
        choices, total = price_choices(records, pricing), price_store(records, pricing)
    if as_json:
        show_json({**found, "choices": [choice.to_json() for choice in choices], "total": vars(total)})
        return
    show(f"{found['runs']} runs: {found['done']} done, {found['failed']} failed, {found['skipped']} were there already")
    if found["diverged"]:
        show(f"{found['diverged']} of those done have diverged")
    for choice in choices:
        show(choice.sentence())
    if total.runs > 1:
        show(f"all {total.runs} private runs of this store together: ε = {total.tell()}")
    _tell_failures(opened, read)


def _tell_plan(spec: Spec, store: Path | None, workers: int, *, as_json: bool) -> None:
    from hush.bench.store import Store, check_store
    from hush.bench.sweep import tell_duration
    from hush.bench.timing import estimate

    there: set[str] = set()
    if store is not None and store.exists():
        check_store(store)
        there = Store(store).keys()
    left = [trial for trial in spec.trials if trial.key not in there]
    skipped = len(spec.trials) - len(left)
    with delayed_status("timing a few steps of each kind of run"):
        found = estimate(left)
    seconds = found.seconds(workers)
    if as_json:
        counts = {"runs": len(spec.trials), "done": 0, "failed": 0, "skipped": skipped}
        show_json({**counts, "estimated_seconds": seconds, "workers": workers, "reason": found.reason})
        return
    show(f"{len(spec.trials)} runs, of which {skipped} are in the store already")
    if seconds is None:
        show(f"no estimate of the time: {found.reason}")
    else:
        show(f"{tell_duration(seconds)} with {workers} workers, estimated from {found.timed} timed settings")


def _tell_failures(store: Store, spec: Spec) -> None:
    from hush.bench.store import UNREADABLE

    reasons: dict[str, int] = {}
    for trial in spec.trials:
        record = store.record(trial.key)
        if record["outcome"] in ("failed", UNREADABLE):
            reasons[record["reason"]] = reasons.get(record["reason"], 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:5]:
        say(f"{count} failed: {reason}")
