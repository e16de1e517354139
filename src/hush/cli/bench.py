"""`hush bench`: run all runs of a spec and save them in a store.

The benchmark code is imported inside the functions, because other commands do not need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hush.cli.console import AsJson, delayed_status, say, say_when_interrupted, show, show_json
from hush.cli.options import check_exists

if TYPE_CHECKING:
    from hush.bench.spec import Spec
    from hush.bench.store import Store


def bench(
    spec: Annotated[Path, typer.Argument(help="A TOML file, such as those in `specs/`.", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="Folder for the results; created if it does not exist.")] = None,
    executor_name: Annotated[
        str, typer.Option("--executor", help="Where to run: local (processes), inline (this process) or ray.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time; by default one per core or cluster slot.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(help="How often to retry a run whose process died; 2 by default.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="ray: address of the cluster, host:port or auto; by default one starts here.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="ray: cores per run; 1 by default.")] = None,
    gpus: Annotated[float | None, typer.Option(help="ray: GPUs per run, such as 1 or 0.5; none by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the runs and estimate the time.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed runs again, from their checkpoints if there are any.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every run of a spec that is not in the store yet. You can interrupt it at any time and start it again.

    Example: `hush bench specs/setup-3-small.toml --store results --workers 2`

    On a Ray cluster: `hush bench specs/setup-1.toml --store /shared/results --executor ray --address auto --cpus 2`
    """
    check_exists(spec, "spec")
    from hush.bench.executors import count_cores
    from hush.bench.spec import check_spec, read_spec
    from hush.bench.store import StoreFullError
    from hush.bench.sweep import ExecutorOptions, make_executor, run_bench, show_live

    wishes = ExecutorOptions(workers, retries, address, cpus, gpus)
    make_executor(executor_name, wishes)
    read = read_spec(spec)
    if dry_run:
        check_spec(read, call_others=False)
        _describe_plan(read, store, workers or count_cores(), as_json=as_json)
        return
    if store is None:
        raise typer.BadParameter("give a folder for the results: --store DIR")
    try:
        with say_when_interrupted("stopped: run the same command again to continue"), show_live() as watch:
            result = run_bench(
                read, store, executor=executor_name, retry_failed=retry_failed, watch=watch, **vars(wishes)
            )
    except StoreFullError as error:
        say(f"error: {error.strerror} in '{store}': finished runs are saved; free space and run the same command again")
        raise typer.Exit(1) from error
    if as_json:
        show_json(result.to_json())
        return
    found, total = result.counts, result.total
    counts = f"{found['done']} done, {found['failed']} failed, {found['skipped']} already in the store"
    show(f"{found['runs']} runs: {counts}")
    if found["diverged"]:
        show(f"{found['diverged']} of those done have diverged")
    for choice in result.choices:
        show(choice.sentence())
    if total.runs > 1:
        show(f"all {total.runs} private runs of this store together: ε = {total.describe()}")
    _describe_failures(result.store, read)


def _describe_plan(spec: Spec, store: Path | None, workers: int, *, as_json: bool) -> None:
    from hush.bench.store import Store, check_store
    from hush.bench.sweep import format_duration
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
    show(f"{len(spec.trials)} runs, {skipped} of them already in the store")
    if seconds is None:
        show(f"no estimate of the time: {found.reason}")
    else:
        show(f"{format_duration(seconds)} with {workers} workers, estimated from {found.timed} timed settings")


def _describe_failures(store: Store, spec: Spec) -> None:
    from hush.bench.store import UNREADABLE

    reasons: dict[str, int] = {}
    for trial in spec.trials:
        record = store.record(trial.key)
        if record["outcome"] in ("failed", UNREADABLE):
            reasons[record["reason"]] = reasons.get(record["reason"], 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:5]:
        say(f"{count} failed: {reason}")
