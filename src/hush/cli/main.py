"""The `hush` program: its commands and exit codes."""

from __future__ import annotations

import contextlib
import copy
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hush._internal.imports import read_own_version
from hush.cli.console import Interruption, accept_any_encoding, explain_os_error, say, show
from hush.cli.help import teach
from hush.errors import HushError, LostRank, Stopped

TRACEBACK = "HUSH_TRACEBACK"
INTERRUPTED = 130
SETTINGS: dict[str, Any] = {"add_completion": False, "rich_markup_mode": "markdown", "pretty_exceptions_enable": False}
COMMANDS = {  # the module in hush.cli, and the first sentence of the command's help
    "methods": ("catalogue", "List the methods: their noise, what they are for, and the options that `--set key=value` "
                "sets on each."),
    "problems": ("catalogue", "List the problems: each combines data, a model and a metric."),
    "plan": ("plan", "Compare ε, batch sizes and epochs before training: noise, and minutes if the data are given."),
    "account": ("account", "Compute what a plan costs (give the noise), or how much noise an ε needs (give "
                "`--epsilon`)."),
    "train": ("train", "Train a model. With no flags: digits, DP-SGD, ε = 3, in seconds."),
    "tune": ("tune", "Search for good settings at a proven cost: only the best of a secret number of trials is "
             "released."),
    "predict": ("release", "Predict with a released model: classes and their probabilities, or numbers."),
    "evaluate": ("release", "Measure a released model on rows with labels that it was not trained on."),
    "export": ("release", "Write the network of a released model, without the encoding of its inputs, as one file that "
               "runs without hush."),
    "verify": ("release", "Check a release: digests of all files, weights against description, card against plan, ε "
               "recomputed."),
    "audit": ("audit", "Run a method many times on real digits, with and without one example, and measure what its "
              "releases reveal."),
    "bench": ("bench", "Run every run of a spec that is not in the store yet. You can interrupt it at any time and "
              "start it again."),
    "report": ("report", "Write a report: a page that needs no network. A run has two: one to publish, and one in "
               "`private/`."),
    "data": ("catalogue", "List, verify and fetch the public datasets; inspect a table of your own."),
    "ledger": ("ledger", "Show what was spent on a dataset, and set its budget."),
    "noise": ("noise", "Show the noise of a method."),
}  # fmt: skip


class LazyProgram(TyperGroup):
    """The commands of hush. The module of a command is imported when the command is called: most import torch."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command, or the group of commands, of this name; None if there is none."""
        if name not in COMMANDS:
            return None
        module = import_module(f"hush.cli.{COMMANDS[name][0]}")
        program = getattr(module, name, None)
        if program is None:  # a group
            return typer.main.get_group(teach(module.app))
        single = typer.Typer(**SETTINGS)
        single.command(name)(program)
        return typer.main.get_command(teach(single))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, from the table of commands alone."""
        shown = copy.copy(self)
        shown.get_command = lambda ctx, name: TyperCommand(name, help=COMMANDS[name][1])  # type: ignore[method-assign]
        super(LazyProgram, shown).format_help(ctx, formatter)


app = typer.Typer(name="hush", cls=LazyProgram, context_settings={"help_option_names": ["-h", "--help"]}, **SETTINGS)


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
    """For this process and its children: other users cannot write to folders that it creates, whatever the umask, and
    there are no core dumps, because memory holds the secret."""
    os.umask(os.umask(0o022) | 0o022)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError):  # Linux: also for handlers that receive dumps through a pipe
        Path("/proc/self/coredump_filter").write_text("0")
