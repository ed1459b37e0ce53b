"""A dictionary with the state from which its method continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary

__all__ = ["StatefulDictionary"]


class StatefulDictionary(Dictionary):
    """A dictionary, and the state that its next update starts from.

    It makes an update a function of a dictionary and moments alone. Estimators hand out only
    ``dictionary``, without the state.

    Parameters
    ----------
    dictionary : Dictionary
    method_state : object
        Kept when the factors change, for example when atoms are replaced.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> from kronlearn.comparators.stateful import StatefulDictionary
    >>> d = StatefulDictionary(kl.KroneckerDictionary([np.eye(2)]), method_state="sums")
    >>> d.with_stacks(d.stacks).method_state, d.n_codes
    ('sums', 2)
    """

    __slots__ = ("dictionary", "method_state")

    dictionary: Dictionary
    method_state: Any

    def __init__(self, dictionary: Dictionary, method_state: Any) -> None:
        object.__setattr__(self, "dictionary", dictionary)
        object.__setattr__(self, "method_state", method_state)

    @property
    def stacks(self) -> tuple[NDArray[Any], ...]:
        """The stacks of ``dictionary``."""
        return self.dictionary.stacks

    @property
    def coding_factors(self) -> tuple[NDArray[Any], ...]:
        """The coding factors of ``dictionary``."""
        return self.dictionary.coding_factors

    def with_stacks(self, stacks: Sequence[NDArray[Any]]) -> StatefulDictionary:
        """Return a dictionary with other factors and the same state."""
        return StatefulDictionary(self.dictionary.with_stacks(stacks), self.method_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return StatefulDictionary, (self.dictionary, self.method_state)
