"""The command line: its commands, how they are called, and the exit codes they end with.

A command is a function, or a group of commands, in the module of the same name. The module is
imported only when the command is called, so that ``kronlearn --help`` and small commands start
quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from kronlearn.cli.errors import print_error
from kronlearn.cli.groups import Group, command_of

__all__ = ["Terminated", "app", "main"]

#: The commands in the order of the help, each with the first line of its own help.
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

# Messages for the exit codes of stopped commands.
_STOPPED = {130: "Interrupted.", 143: "Terminated."}


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: commands stop as they do on Ctrl-C."""


class Commands(Group):
    """All commands; each ends with an exit code, and an error is printed on one line.

    The codes are 2 for wrong usage or input, 130 if interrupted, 143 if terminated, and 1 for any
    other failure.
    """

    show_traceback = False

    def __init__(self, **options: Any) -> None:
        super().__init__(COMMANDS, _imported, **options)

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        """Run a command and end the process."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # Some encodings have no × or σ.
                stream.reconfigure(errors="replace")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _print_warning  # type: ignore[assignment]
                result = super().main(*arguments, **{**options, "standalone_mode": False})
            code = result if isinstance(result, int) else 0
        except Exception as problem:
            if self.show_traceback:
                traceback.print_exc()
            code = print_error(problem)
        if code in _STOPPED:
            print(_STOPPED[code], file=sys.stderr)
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt becomes an exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as problem:
            raise typer.Exit(143 if isinstance(problem, Terminated) else 130) from problem


def _imported(name: str) -> Any:
    """The command with this name."""
    found = getattr(import_module(f"kronlearn.cli.{name}"), name)
    return found if isinstance(found, Group) else command_of(name, found)


def _print_warning(message: Warning | str, *details: Any) -> None:
    """Print a warning on one line, without its place in the source code."""
    print("Note:", " ".join(str(message).split()), file=sys.stderr)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line (the ``kronlearn`` entry point)."""
    signal.signal(signal.SIGTERM, _terminate)
    # Figures are drawn into files, not windows.
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
