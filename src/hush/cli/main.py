"""The `hush` program: its commands, and how it ends."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import typer

from hush._internal.imports import read_own_version
from hush.cli import account, audit, bench, catalogue, ledger, noise, plan, release, report, train, tune
from hush.cli import catalogue as methods_catalogue
from hush.cli import release as export_release
from hush.cli import release as predict_release
from hush.cli import release as verify_release
from hush.cli.console import Interruption, accept_any_encoding, explain_os_error, say, show
from hush.cli.help import teach
from hush.distributed.group import LostRank, Stopped
from hush.errors import HushError

TRACEBACK = "HUSH_TRACEBACK"
INTERRUPTED = 130
app = typer.Typer(
    name="hush",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("methods")(methods_catalogue.methods)
app.command("problems")(methods_catalogue.problems)
app.command("plan")(plan.plan)
app.command("account")(account.account)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("predict")(predict_release.predict)
app.command("evaluate")(release.evaluate)
app.command("export")(export_release.export)
app.command("verify")(verify_release.verify)
app.command("audit")(audit.audit)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.add_typer(catalogue.app, name="data")
app.add_typer(ledger.app, name="ledger")
app.add_typer(noise.app, name="noise")
teach(app)


def _print_version(asked: bool) -> None:
    if asked:
        show(f"hush {read_own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, metavar="", callback=_print_version
    ),
) -> None:
    """Train neural networks on private data, and say truthfully how private the result is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program: 0 on success, 2 on bad input with one sentence, 1 on failure, 130 when interrupted."""
    accept_any_encoding()
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], standalone_mode=False, prog_name="hush")
        if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            say("interrupted")
        return code if isinstance(code, int) else 0
    except Interruption as error:
        say(f"{error}")
        return INTERRUPTED
    except HushError as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
        say(f"error: {error}")
        return 1 if isinstance(error, (LostRank, Stopped)) else 2
    except typer.TyperException as error:
        if message := error.format_message():  # none where a group was named without a command: its help was shown
            say(f"error: {message}")
        return 2
    except (typer.Abort, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        say(f"error: {explain_os_error(error)}")
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        say(
            f"error: {type(error).__name__}, in code that should not raise it; what it says may quote the data, so it "
            f"is shown only with {TRACEBACK}=1 in the environment"
        )
        return 1


def run() -> None:
    """The entry point of the installed program."""
    protect_process()
    sys.exit(main())


def protect_process() -> None:
    """For this process and its children: others cannot write into folders that it makes, whatever the umask, and no
    core dump holds memory, in which the secret is."""
    os.umask(os.umask(0o022) | 0o022)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # Linux: for handlers that receive dumps through a pipe, whatever the limit
        Path("/proc/self/coredump_filter").write_text("0")
