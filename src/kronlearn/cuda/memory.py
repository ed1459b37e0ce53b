"""How much memory of a GPU kronlearn may take."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["check_codes", "current_limit", "free_memory", "memory_limit"]

# The share of a limit that codes may take; samples may take half of it, sums an eighth.
_SHARE_OF_CODES = 3 / 8

_limit: ContextVar[int | None] = ContextVar("kronlearn_memory_limit", default=None)


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[None]:
    """Limit the GPU memory that kronlearn takes within a ``with`` block.

    Samples, and passes over images, take at most half of it; what does not fit is streamed. The
    codes of all samples, which some iterations keep and which are the result for samples on the
    GPU, take at most three eighths. Iterations whose codes would take more are replaced by slower
    ones that keep none, or raise MemoryError. Arrays that are already on the GPU do not count, and
    a few blocks of samples are taken however small the limit is. Without a limit, all free memory
    may be used. A limit never changes codes; in learning and denoising it changes only how sums
    are rounded.

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
    """The limit in bytes, or None if all free memory may be used."""
    return _limit.get()


def check_codes(n_bytes: int) -> None:
    """Raise MemoryError if the codes of all samples need more than a limit leaves for them."""
    limit = current_limit()
    if limit is not None and n_bytes > _SHARE_OF_CODES * limit:
        raise MemoryError(
            f"The codes of all samples take {n_bytes} bytes on the GPU, and memory_limit({limit}) "
            f"leaves {int(_SHARE_OF_CODES * limit)} for them; raise the limit, or pass fewer "
            "samples at a time."
        )


def free_memory(xp: Any) -> int:
    """Bytes that CuPy, ``xp``, can allocate within the limit."""
    available = _available_memory(xp)
    return min(available, current_limit() or available)


def _available_memory(xp: Any) -> int:
    """Bytes that CuPy can allocate, from the GPU or from the unused part of its memory pool.

    CuPy's own pool reports its unused memory. A pool of another library (RMM, for example) may
    hold all of the GPU's memory without reporting any as unused. Such a pool is asked for arrays
    larger than what the GPU has left, which it can provide only from memory that it holds already,
    so that asking never makes it grow.
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
