"""How much memory of a GPU may be taken."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["check_codes", "current_limit", "free_memory", "memory_limit"]

# The share of a limit that codes may take: samples take half of it, and sums an eighth.
_SHARE_OF_CODES = 3 / 8

_limit: ContextVar[int | None] = ContextVar("kronlearn_memory_limit", default=None)


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[None]:
    """Limit the GPU memory that is used until the ``with`` block ends.

    Samples take at most half of it, and so do passes over images; what does not fit is streamed.
    The codes of all samples, which some iterations keep and which are a result for samples on the
    GPU, take at most three eighths. Where iterations would keep more, others are used that keep
    none, or a MemoryError is raised. By default all free memory may be used. Arrays that are
    already on the GPU do not count, and a few blocks of samples are taken however small a limit
    is. A limit changes no result of coding; in learning and denoising it changes only how sums are
    rounded.

    Parameters
    ----------
    n_bytes : int
        The limit in bytes.

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


def check_codes(n_bytes: int) -> None:
    """Raise MemoryError if a limit leaves less than so many bytes for codes of all samples."""
    limit = current_limit()
    if limit is not None and n_bytes > _SHARE_OF_CODES * limit:
        raise MemoryError(
            f"The codes of all samples take {n_bytes} bytes on the GPU, and memory_limit({limit}) "
            f"leaves {int(_SHARE_OF_CODES * limit)} for them; raise the limit, or pass fewer "
            "samples at a time."
        )


def free_memory(xp: Any) -> int:
    """Bytes that new arrays of CuPy, ``xp``, can have."""
    available = _available_memory(xp)
    return min(available, current_limit() or available)


def _available_memory(xp: Any) -> int:
    """The same without a limit: what the GPU has left, or what its allocator holds.

    A pool of CuPy knows what it holds and nobody uses. One of another library, RMM for example, may
    hold all of the GPU's memory and does not tell. It is asked for arrays that are larger than what
    the GPU has left: it can have them only from what it holds, and never grows for it.
    """
    free, total = map(int, xp.cuda.runtime.memGetInfo())
    pool: Any = getattr(xp.cuda.get_allocator(), "__self__", None)
    if hasattr(pool, "free_bytes"):
        return free + int(pool.free_bytes())
    size = total // 2
    while size > free:
        try:
            xp.cuda.alloc(size)
        except MemoryError:
            size //= 2
        else:
            return size
    return free
