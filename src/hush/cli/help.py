"""The help of every command, and hints for unknown options."""

from __future__ import annotations

import copy
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from hush._internal.text import translate
from hush.errors import InvalidInputError, find_nearest

UNKNOWN = re.compile(r"No such option: (-\S*)")  # typer's message; if it changes, that message is shown unchanged
SAME_WORD = 0.8  # similarity of a misspelt option and the one that was meant


def teach(app: typer.Typer) -> typer.Typer:
    """Use this help for all commands of a program and of its groups."""
    for command in app.registered_commands:
        command.cls = HintingCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            teach(group.typer_instance)
    return app


class HintingCommand(TyperCommand):
    """A command that suggests options by synonyms and spelling, and shows compact help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an unknown option gets a hint at the one that was probably meant."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if (unknown := UNKNOWN.match(error.format_message())) is None:
                raise
            raise InvalidInputError(
                f"no such option: {unknown[1]}{self._hint(unknown[1], ctx.command_path)}"
            ) from error

    def _hint(self, unknown: str, path: str) -> str:
        known = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        name = translate(unknown.lstrip("-"))
        if (flag := f"--{name.replace('_', '-')}") in known:
            return f"; did you mean {flag}?"
        bare = {known_flag.lstrip("-"): known_flag for known_flag in known}
        close = find_nearest(unknown.lstrip("-"), bare, cutoff=SAME_WORD)
        near = find_nearest(unknown.lstrip("-"), bare, cutoff=0.6)
        if "--set" in known and close is None:  # it may be an option of a method; which are known is not imported here
            instead = f"options of methods are --set {name}=…, see `hush methods`"
            return f"; see `{path} --help`; {instead}" if near is None else f"; did you mean {bare[near]}? {instead}"
        return f"; see `{path} --help`" if near is None else f"; did you mean {bare[near]}?"

    def get_help_option(self, ctx: Any) -> Any:
        """--help, shown like any other switch."""
        return _simplify(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with one line per switch: neither its opposite nor its type is shown."""
        shown = copy.copy(self)
        shown.params = [_simplify(parameter) for parameter in self.params]
        super(HintingCommand, shown).format_help(ctx, formatter)


def _simplify(parameter: Any) -> Any:
    if not (isinstance(parameter, TyperOption) and parameter.is_flag):
        return parameter
    switch = copy.copy(parameter)
    switch.secondary_opts, switch.metavar, switch.show_default = [], "", False
    return switch
