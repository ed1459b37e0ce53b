"""Commands made of functions, and groups of commands, which are made when they are called."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

__all__ = ["Group", "command_of"]

# The Python type that typer writes after an argument's name: ``IN <list[Path]>``.
_TYPE = re.compile(r" <[\w\[\]]+>(?=  )")
# A default in words, which typer puts in parentheses: ``[default: (estimated)]``.
_DEFAULT = re.compile(r"(\[default:\s+)\((.*?)\)(?=[;\]])", re.DOTALL)


class Command(TyperCommand):
    """A command whose help and usage contain no Python types and no braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS]`` and the arguments, which are all required, as in ``IN... OUT``."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(f"{p.metavar}{'...' * (p.nargs == -1)}" for p in arguments)]

    def get_help(self, ctx: Any) -> str:
        """The help, with blanks instead of types to keep its columns aligned."""
        text = _TYPE.sub(lambda found: " " * len(found[0]), super().get_help(ctx))
        return _DEFAULT.sub(r"\1\2", text)


def command_of(name: str, function: Callable[..., None], text: str | None = None) -> Any:
    """A function as a command; its help is ``text``, by default the function's docstring."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=Command, help=text)(function)
    return get_command(single)


class Group(TyperGroup):
    """A group of commands; without arguments it prints its help.

    ``helps`` has the help of each command by its name, and ``make`` makes a command of a name.
    """

    def __init__(
        self, helps: Mapping[str, str], make: Callable[[str], Any], **options: Any
    ) -> None:
        super().__init__(**{"rich_markup_mode": None, **options})
        self.helps, self.make = helps, make

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(self.helps)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Make and return the command with this name; None if there is none."""
        return self.make(cmd_name) if cmd_name in self.helps else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, each with the whole first line of its help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, text.partition("\n\n")[0]) for name, text in self.helps.items()]
            )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help."""
        if not args and not self.invoke_without_command:
            print(ctx.get_help(), file=sys.stderr)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)
