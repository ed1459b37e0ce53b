"""The command line: its commands, and how each of them ends.

A command is a function, or a group of them, in the module of its name. That module is imported
when the command is called, so that ``kronlearn --help`` and small commands start quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from kronlearn.cli.errors import report
from kronlearn.cli.options import Command, Group

__all__ = ["Terminated", "app", "main"]

#: The commands in the order of the help, which shows the first line of their docstrings.
COMMANDS = {
    "demo": "Learn from a sample image and denoise it, in a few seconds.",
    "learn": "Learn a dictionary of patches, or convolutional filters.",
    "show": "Describe and draw the dictionary in a model file.",
    "denoise": "Remove the noise from an image.",
    "inpaint": "Fill in the missing pixels of an image.",
    "cube": "Inspect, learn from and denoise hyperspectral cubes.",
    "bench": "Measure speed on this machine.",
    "reproduce": "Reproduce the paper's experiments.",
}


# What is printed for the exit codes of commands that were stopped.
_STOPPED = {130: "Interrupted.", 143: "Terminated."}


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM): commands stop as they do on Ctrl-C."""


class Commands(TyperGroup):
    """The commands; every error becomes one line and an exit code.

    2: wrong usage or input; 1: anything else that failed; 130: interrupted; 143: terminated.
    """

    show_traceback = False

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, from its own module; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        found = getattr(import_module(f"kronlearn.cli.{cmd_name}"), cmd_name)
        if isinstance(found, typer.Typer):
            found.rich_markup_mode, found.info.cls = None, Group
            for command in found.registered_commands:
                command.cls = Command
            return get_group(found)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=Command)(found)
        return get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        *rest: Any,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; ends the process unless ``standalone_mode`` is off."""
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(args, *rest, **extra)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # Some encodings have no × or σ.
                stream.reconfigure(errors="replace")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note  # type: ignore[assignment]
                result = super().main(args, *rest, **extra)
            code = result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as problem:
            if self.show_traceback:
                traceback.print_exc()
            code = report(problem)
        if code in _STOPPED:
            print(_STOPPED[code], file=sys.stderr)
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer itself would take any interrupt for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except Terminated as problem:
            raise typer.Exit(143) from problem


def _note(message: Warning | str, *place: Any) -> None:
    """Print a warning as a line for people, without the place in the program."""
    print("Note:", " ".join(str(message).split()), file=sys.stderr)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """Run the command line (the ``kronlearn`` entry point)."""
    signal.signal(signal.SIGTERM, _terminate)
    # Pictures are drawn into files, not into windows.
    os.environ["MPLBACKEND"] = "agg"
    app()


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


@app.callback(invoke_without_command=True)
def kronlearn(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the Python traceback of an error.")
    ] = False,
) -> None:
    """Learn separable (Kronecker) dictionaries; denoise and inpaint images with them."""
    if isinstance(context.command, Commands):
        context.command.show_traceback = show_traceback
    if version:
        print("kronlearn", import_module("kronlearn").__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
