"""BLAS on a single thread while a dictionary is learned."""

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
    """The BLAS libraries of this process; cached, since finding them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread until the last of all overlapping ``with`` blocks ends.

    Idle BLAS threads keep spinning on cores that the passes need, and results must not depend on
    their number. The limit applies to the whole process, so the first block sets it, and the last
    one restores the previous limits.
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
