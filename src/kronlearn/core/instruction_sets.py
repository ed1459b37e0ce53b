"""The vector instruction set that the native kernels use: the best one, or the one you force."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kronlearn import _native

__all__ = ["instruction_set", "instruction_sets", "use_instruction_set"]

#: Set before kronlearn is first used, this environment variable forces an instruction set.
VARIABLE = "KRONLEARN_INSTRUCTION_SET"


def instruction_sets() -> tuple[str, ...]:
    """Names of the instruction sets this machine can run, slowest first.

    Examples
    --------
    >>> import kronlearn as kl
    >>> kl.instruction_sets()[0]
    'baseline'
    """
    return tuple(_native.instruction_sets())


def instruction_set() -> str:
    """Name of the instruction set in use, the fastest unless another was forced.

    Examples
    --------
    >>> import kronlearn as kl
    >>> kl.instruction_set() in kl.instruction_sets()
    True
    """
    return str(_native.instruction_sets()[-1])


@contextmanager
def use_instruction_set(name: str) -> Iterator[None]:
    """Force an instruction set, in all threads, until the ``with`` block ends.

    Results differ between instruction sets by rounding only; within one they have the same bits.

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
    before = instruction_set()
    _force(name, f"instruction set {name!r}")
    try:
        yield
    finally:
        _native.use_instruction_set(before)


def _force(name: str, what: str) -> None:
    if not isinstance(name, str) or not _native.use_instruction_set(name):
        raise ValueError(
            f"{what} is not available on this machine; choose one of "
            f"{', '.join(instruction_sets())}."
        )


if os.environ.get(VARIABLE):
    _force(os.environ[VARIABLE], f"{VARIABLE}={os.environ[VARIABLE]}")
