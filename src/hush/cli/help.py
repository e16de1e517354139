"""How every command shows its help, and what it says to an option that it does not know."""

from __future__ import annotations

import copy
import re
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from hush._internal.text import translate
from hush.errors import InvalidInputError, find_nearest
from hush.methods import catalogue, find, options

UNKNOWN = re.compile(r"No such option: (-\S*)")  # as typer says it; where it says otherwise, its own words are shown


def teach(app: typer.Typer) -> None:
    """Have all commands of a program, and of its groups, help in the same way."""
    for command in app.registered_commands:
        command.cls = HintingCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            teach(group.typer_instance)


class HintingCommand(TyperCommand):
    """A command that knows what others call its options, and whose help has room for the words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an unknown option gets a hint at the one that was meant."""
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
        flag = f"--{translate(unknown.lstrip('-')).replace('_', '-')}"
        if flag in known:
            return f"; did you mean {flag}?"
        name = translate(unknown.lstrip("-"))
        if "--set" in known and any(name in options(find(method)) for method in catalogue()):
            return f"; it is an option of some methods: --set {name}=…, see `hush methods`"
        bare = {known_flag.lstrip("-"): known_flag for known_flag in known}
        meant = find_nearest(unknown.lstrip("-"), bare, cutoff=0.6)
        return f"; see `{path} --help`" if meant is None else f"; did you mean {bare[meant]}?"

    def get_help_option(self, ctx: Any) -> Any:
        """--help, shown like any other switch."""
        return _simplify(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, in which a switch takes one line: neither its opposite nor its type is shown."""
        shown = copy.copy(self)
        shown.params = [_simplify(parameter) for parameter in self.params]
        super(HintingCommand, shown).format_help(ctx, formatter)


def _simplify(parameter: Any) -> Any:
    if not (isinstance(parameter, TyperOption) and parameter.is_flag):
        return parameter
    switch = copy.copy(parameter)
    switch.secondary_opts, switch.metavar, switch.show_default = [], "", False
    return switch
