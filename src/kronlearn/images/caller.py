"""Warnings that point to the line outside of kronlearn that led to them."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_caller"]


def warn_caller(message: str) -> None:
    """Issue a UserWarning at the innermost line of the stack that is not in kronlearn.

    Python shows a warning once for each line: at one within kronlearn, others would be hidden.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "kronlearn"
