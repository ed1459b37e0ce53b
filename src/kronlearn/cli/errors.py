"""Errors of commands: one line in the words of the command line, and an exit code."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

__all__ = ["in_options", "print_error"]

# Errors caused by wrong input, not by a failure of the program or the machine.
_BAD_INPUT = (ValueError, FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Errors whose message says enough; any other one is a fault of the program.
_PLAIN = (ValueError, OSError, ImportError)

# Options for the parameters of the library.
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
# Parameters that cannot be taken for English words.
_NAME = re.compile(rf"\b({'|'.join(name for name in _OPTIONS if '_' in name)})\b")
# Advice to call another function of the library.
_ADVICE = re.compile(r" \([^()]*\bkronlearn\.\w[^()]*(\([^()]*\))?\)|; read it with kl\.[\w.]*\w")


def print_error(problem: Exception) -> int:
    """Print an error on one line and return the exit code."""
    # Versions of typer keep the exceptions of its parser in different modules.
    if hasattr(problem, "format_message") and hasattr(problem, "exit_code"):
        code, text = int(problem.exit_code), _usage_error(problem)
    else:
        code, text = 2 if isinstance(problem, _BAD_INPUT) else 1, _described(problem)
    # Users gave paths relative to the working directory.
    text = text.replace(f"{os.getcwd()}{os.sep}", "")
    # File names may contain control characters, which a terminal would obey.
    line = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    print("Error:", line, file=sys.stderr)
    return code


def _usage_error(problem: Any) -> str:
    """The message of a parser's error, starting with the option or ending with the usage."""
    text = str(problem.format_message())
    text = re.sub(r"^Invalid value for '(--[\w-]+)'.*?: (Value error, )?", r"\1: ", text)
    text = re.sub(r"\bInput should be (.*?)(, unable.*)?$", r"the value must be \1", text)
    if problem.ctx is None or not text.startswith(("Missing", "Got unexpected extra")):
        return text
    usage = problem.ctx.get_usage()
    # After several inputs, the parser cannot tell which argument is missing.
    if text.startswith("Missing argument") and "... OUT" in usage:
        text = "Both IN and OUT are needed"
    return f"{text.rstrip('.')}. {usage}"


def _described(problem: Exception) -> str:
    """The message of an error of the library or the system, in words of the command line."""
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
    text = _ADVICE.sub("", text)
    text = _ASSIGNMENT.sub(lambda m: f"{_OPTIONS[m[1]]} {_shell_value(m[2])}".rstrip(), text)
    text = _NAME.sub(lambda m: _OPTIONS[m[1]], text)
    return re.sub(r"\bpass\b", "give", text)


def _shell_value(text: str) -> str:
    """A Python value as it is written in a shell."""
    if text.startswith("("):
        return "x".join(number for number in text.strip("()").replace(" ", "").split(",") if number)
    if text.startswith("float("):
        return "nan"
    return text.strip("\"'")
