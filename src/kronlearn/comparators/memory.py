"""A dictionary with the state that its method continues from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary

__all__ = ["RememberingDictionary"]


class RememberingDictionary(Dictionary):
    """A dictionary, and a value that the next update starts from.

    With it, an update is a function of a dictionary and moments alone. ``dictionary_`` of an
    estimator is ``dictionary``.

    Parameters
    ----------
    dictionary : Dictionary
    memory : object
        Kept when the factors change, as when atoms are replaced.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from kronlearn.comparators.memory import RememberingDictionary
    >>> d = RememberingDictionary(kl.KroneckerDictionary([np.eye(2)]), memory="sums")
    >>> d.with_stacks(d.stacks).memory, d.n_codes
    ('sums', 2)
    """

    __slots__ = ("dictionary", "memory")

    dictionary: Dictionary
    memory: Any

    def __init__(self, dictionary: Dictionary, memory: Any) -> None:
        object.__setattr__(self, "dictionary", dictionary)
        object.__setattr__(self, "memory", memory)

    @property
    def stacks(self) -> tuple[NDArray[Any], ...]:
        """Those of the dictionary."""
        return self.dictionary.stacks

    @property
    def coding_factors(self) -> tuple[NDArray[Any], ...]:
        """Those of the dictionary."""
        return self.dictionary.coding_factors

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> RememberingDictionary:
        """A dictionary with other factors and the same memory."""
        return RememberingDictionary(self.dictionary.with_stacks(stacks), self.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return RememberingDictionary, (self.dictionary, self.memory)
