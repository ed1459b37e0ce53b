"""The vector instruction set of the native kernels: the fastest, unless another is forced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kronlearn import _native

__all__ = ["instruction_set", "instruction_sets", "use_instruction_set"]

#: Environment variable that forces an instruction set; read when kronlearn is first used.
VARIABLE = "KRONLEARN_INSTRUCTION_SET"


def instruction_sets() -> tuple[str, ...]:
    """Return the names of the instruction sets that this machine can run.

    Returns
    -------
    tuple of str
        The names, slowest first.

    Examples
    --------
    >>> import kronlearn as kl
    >>> kl.instruction_sets()[0]
    'baseline'
    """
    return tuple(_native.instruction_sets())


def instruction_set() -> str:
    """Return the name of the instruction set in use: the fastest, unless another is forced.

    Returns
    -------
    str
        One of :func:`instruction_sets`.

    Examples
    --------
    >>> import kronlearn as kl
    >>> kl.instruction_set() in kl.instruction_sets()
    True
    """
    return _forced.get() or _default


@contextmanager
def use_instruction_set(name: str) -> Iterator[None]:
    """Force an instruction set in this thread until the ``with`` block ends.

    Other threads and asyncio tasks that are already running keep theirs. Results of different
    instruction sets differ by rounding only; each set always gives the same bits.

    Parameters
    ----------
    name : str
        One of :func:`instruction_sets`.

    Examples
    --------
    >>> import kronlearn as kl
    >>> with kl.use_instruction_set("baseline"):
    ...     kl.instruction_set()
    'baseline'
    """
    _check_available(name, f"instruction set {name!r}")
    before = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(before)


def _check_available(name: str, subject: str) -> None:
    if name not in instruction_sets():
        raise ValueError(
            f"{subject} is not available on this machine; choose one of "
            f"{', '.join(instruction_sets())}."
        )


def _default_set() -> str:
    """The instruction set that the environment variable names, or the fastest."""
    name = os.environ.get(VARIABLE)
    if not name:
        return instruction_sets()[-1]
    _check_available(name, f"{VARIABLE}={name}")
    return name


_default = _default_set()
_forced: ContextVar[str | None] = ContextVar("instruction set", default=None)
