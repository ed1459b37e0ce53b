"""Errors of commands: one line in the words of the command line, and an exit code."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

__all__ = ["in_options", "print_error"]

# Wrong input, as opposed to a failure of the program or of the machine.
_BAD_INPUT = (ValueError, FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
# What speaks for itself; other errors are the program's own.
_PLAIN = (ValueError, OSError, ImportError)

# What the library's parameters are called here.
_SAME_NAMES = (
    *("band_axis", "checkpoint", "dataset", "device", "dictionary", "gain", "max_iter", "method"),
    *("n_jobs", "nodata", "noise", "noise_gain", "quality", "sigma", "stages", "structure"),
    *("time_budget", "tol"),
)
_OPTIONS = {
    **{name: "--" + name.replace("_", "-") for name in _SAME_NAMES},
    "n_atoms": "--atoms",
    "n_nonzero_coefs": "--sparsity",
    "n_terms": "--terms",
    "patch_shape": "--patch",
    "patch_size": "--patch",
    "random_state": "--seed",
}
_VALUE = r"""(\([^)]*\)|"[^"]*"|'[^']*'|float\('nan'\)|[^\s;,.]+(?:\.\d+)?|)"""
_ASSIGNMENT = re.compile(rf"\b({'|'.join(_OPTIONS)})={_VALUE}")
# Names that are no words of English.
_NAME = re.compile(rf"\b({'|'.join(name for name in _OPTIONS if '_' in name)})\b")


def print_error(problem: Exception) -> int:
    """Print what went wrong on one line; the exit code."""
    # The parser's own exceptions, wherever this version of typer keeps them.
    if hasattr(problem, "format_message") and hasattr(problem, "exit_code"):
        code, text = int(problem.exit_code), _wrong_usage(problem)
    else:
        code, text = 2 if isinstance(problem, _BAD_INPUT) else 1, _described(problem)
    # People gave paths relative to this folder.
    text = text.replace(f"{os.getcwd()}{os.sep}", "")
    # A file name in it may hold what a terminal would obey.
    line = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    print("Error:", line, file=sys.stderr)
    return code


def _wrong_usage(problem: Any) -> str:
    """An error of the parser, which starts with the option; or ends with the usage."""
    text = str(problem.format_message())
    text = re.sub(r"^Invalid value for '(--[\w-]+)'.*?: (Value error, )?", r"\1: ", text)
    text = re.sub(r"\bInput should be (.*?)(, unable.*)?$", r"the value must be \1", text)
    if problem.ctx is None or not text.startswith(("Missing", "Got unexpected extra")):
        return text
    usage = problem.ctx.get_usage()
    # Where several inputs may come first, the parser misses the wrong argument.
    if text.startswith("Missing argument") and "... OUT" in usage:
        text = "Both IN and OUT are needed"
    return f"{text.rstrip('.')}. {usage}"


def _described(problem: Exception) -> str:
    """An error of the library or of the system, in words of the command line."""
    text = str(problem)
    if isinstance(problem, UnicodeError) or not isinstance(problem, _PLAIN):
        return f"{type(problem).__name__}: {text} (kronlearn --traceback … shows where)"
    if isinstance(problem, ValueError):
        return in_options(text)
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return text


def in_options(text: str) -> str:
    """An error of the library with options in place of its parameters.

    ``n_atoms=(3, 4) …; pass at most n_jobs=2.`` becomes ``--atoms 3x4 …; give at most --n-jobs 2.``
    """
    text = text.replace("images.inpaint", "kronlearn inpaint")
    # Which of its functions to call is no help here.
    text = re.sub(r" \([^()]*\bkronlearn\.\w[^()]*(\([^()]*\))?\)", "", text)
    text = _ASSIGNMENT.sub(lambda m: f"{_OPTIONS[m[1]]} {_value(m[2])}".rstrip(), text)
    text = _NAME.sub(lambda m: _OPTIONS[m[1]], text)
    return re.sub(r"\bpass\b", "give", text)


def _value(text: str) -> str:
    """A value as it is written in a shell."""
    if text.startswith("("):
        return "x".join(number for number in text.strip("()").replace(" ", "").split(",") if number)
    if text.startswith("float("):
        return "nan"
    return text.strip("\"'")
