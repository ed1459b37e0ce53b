"""How much memory of a GPU may be taken."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["current_limit", "memory_limit"]

_limit: ContextVar[int | None] = ContextVar("kronlearn_memory_limit", default=None)


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[None]:
    """Within this context no more of a GPU's memory is counted on than so many bytes.

    Samples take half of it at most, passes over images as much; what does not fit is sent a part
    at a time. Without a limit all memory that is free counts. Arrays that lie on the GPU already,
    and results that are to lie there, do not count, nor do the codes of an iteration. Limits change
    no result of coding, and of learning and denoising only how sums are rounded.

    Examples
    --------
    >>> import kronlearn as kl
    >>> with kl.cuda.memory_limit(2 << 30):
    ...     model = kl.KroneckerDictionaryLearning(16, device="cuda")  # model.fit(Y)
    """
    if isinstance(n_bytes, bool) or not isinstance(n_bytes, numbers.Integral):
        raise TypeError(f"memory_limit({n_bytes!r}) is not a number of bytes; pass an integer.")
    if n_bytes < 1:
        raise ValueError(f"memory_limit({n_bytes}) leaves no memory; pass at least 1 byte.")
    token = _limit.set(int(n_bytes))
    try:
        yield
    finally:
        _limit.reset(token)


def current_limit() -> int | None:
    """The bytes that may be taken, None if all that are free."""
    return _limit.get()
