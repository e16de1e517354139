"""The `hush` program: its commands and exit codes."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from hush._internal.imports import read_own_version
from hush.cli import audit, bench, catalogue, ledger, release, report, reproduce
from hush.cli.console import Interruption, accept_any_encoding, explain_os_error, say, show
from hush.cli.help import teach
from hush.cli.options import AccountOptions, NoiseOptions, Planning, Training, Tuning, take
from hush.errors import HushError, LostRank, Stopped

TRACEBACK = "HUSH_TRACEBACK"
INTERRUPTED = 130
SETTINGS: dict[str, Any] = {"add_completion": False, "rich_markup_mode": "markdown", "pretty_exceptions_enable": False}
app = typer.Typer(name="hush", context_settings={"help_option_names": ["-h", "--help"]}, **SETTINGS)


def _run_later(module: str, name: str) -> Callable[[Any], None]:
    """The function of a command, whose module, which imports torch, is imported when the options are valid."""
    return lambda given: getattr(import_module(f"hush.cli.{module}"), name)(given)


noise = typer.Typer(help="Show the noise of a method.", no_args_is_help=True)
noise.command("show")(take(NoiseOptions, _run_later("noise", "show_noise")))
COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {  # in the order of the help
    "methods": catalogue.methods,
    "problems": catalogue.problems,
    "plan": take(Planning, _run_later("plan", "plan")),
    "account": take(AccountOptions, _run_later("account", "account")),
    "train": take(Training, _run_later("train", "train")),
    "tune": take(Tuning, _run_later("tune", "tune")),
    "predict": release.predict,
    "evaluate": release.evaluate,
    "export": release.export,
    "verify": release.verify,
    "audit": audit.audit,
    "bench": bench.bench,
    "report": report.report,
    "reproduce": reproduce.reproduce,
    "data": catalogue.app,
    "ledger": ledger.app,
    "noise": noise,
}
for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)
teach(app)


def _print_version(asked: bool) -> None:
    if asked:
        from hush._internal.noise_kernel import describe

        show(f"hush {read_own_version()} (noise: {describe()})")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, metavar="", callback=_print_version
    ),
) -> None:
    """Train neural networks on private data, and state truthfully how private the result is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program: 0 on success, 2 on invalid input, 1 on failure, 130 when interrupted."""
    accept_any_encoding()
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], standalone_mode=False, prog_name="hush")
        if code == INTERRUPTED:  # typer's exit code for a KeyboardInterrupt
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
        if message := error.format_message():  # empty for a group without a command, whose help was shown
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
    except MemoryError:
        say("error: there is not enough memory: free some, or compute fewer examples at a time with --microbatch")
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        say(
            f"error: unexpected {type(error).__name__}; its message may quote the data, so it is shown only with "
            f"{TRACEBACK}=1 in the environment"
        )
        return 1


def run() -> None:
    """The entry point of the installed program."""
    protect_process()
    sys.exit(main())


def protect_process() -> None:
    """For this process and its children: other users cannot write to folders that it creates, for any umask, and
    there are no core dumps, because memory holds the secret."""
    os.umask(os.umask(0o022) | 0o022)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # Linux: also for handlers that receive dumps through a pipe
        Path("/proc/self/coredump_filter").write_text("0")
