"""The command group: every error is one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["Commands"]

# Wrong input, as opposed to a failure of the program or of the machine.
_BAD_INPUT = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Commands(TyperGroup):
    """The commands, with every error as one line and an exit code.

    2: wrong usage or input; 1: anything else that failed; 130: interrupted.
    """

    show_traceback = False

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
        try:
            result = super().main(args, *rest, **extra)
            code = result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as problem:
            if self.show_traceback:
                traceback.print_exc()
            code = _report(problem)
        if code == 130:
            print("Interrupted.", file=sys.stderr)
        sys.exit(code)


def _report(problem: Exception) -> int:
    """Print what went wrong on one line; the exit code."""
    code = 2 if isinstance(problem, _BAD_INPUT) else 1
    text = str(problem)
    if isinstance(problem, UnicodeError) or not isinstance(problem, (*_BAD_INPUT, OSError)):
        text = f"{type(problem).__name__}: {text} (kronlearn --traceback … shows where)"
    # The parser's own exceptions, wherever this version of typer keeps them.
    if hasattr(problem, "format_message") and hasattr(problem, "exit_code"):
        code, text = int(problem.exit_code), str(problem.format_message())
        context = getattr(problem, "ctx", None)
        if text.startswith("Missing argument") and context is not None:
            usage = context.get_usage()
            # Where several inputs may come first, the parser misses the wrong argument.
            if "... {OUT}" in usage:
                text = "Both IN and OUT are needed."
            text += " " + usage
    if text:
        # A file name in it may hold what a terminal would obey.
        line = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
        print("Error:", line, file=sys.stderr)
    return code
