"""Linear algebra on one thread while a dictionary is learned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["single_threaded_blas"]

_lock = threading.Lock()
_users = 0
_limits: Any = None


@cache
def _libraries() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes some milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS at one thread until the last of all overlapping ``with`` blocks ends.

    Threads of linear algebra go on spinning when they have nothing to do, on cores that the passes
    need; and results are not to depend on their number. The limit is one of the whole process, so
    whoever comes first sets it and whoever leaves last restores what was there before.
    """
    global _users, _limits
    with _lock:
        if _users == 0:
            _limits = _libraries().limit(limits=1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limits.restore_original_limits()
