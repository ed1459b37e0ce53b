"""Codes on the card."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.engine import Codes, KeptCodes
from kronlearn.cuda.device import Card

__all__ = ["CardCodes"]

# CuPy numbers the entries of a sparse matrix with 32 bits.
_MOST_ENTRIES = 2**31 - 1
# Of what :class:`Codes` has, the parts and their names as arguments of the kernels.
_PARTS = ("index", "nonzeros", "value", "residual2")


@dataclass
class CardCodes(KeptCodes):
    """Codes as :class:`Codes` has them, on the card; all parts are there."""

    card: Card
    index: Any
    nonzeros: Any
    value: Any
    residual2: Any

    @classmethod
    def empty(cls, card: Card, n_samples: int, width: int, dtype: Any) -> CardCodes:
        """Room for N samples."""
        xp = card.xp
        return cls(
            card,
            xp.zeros((n_samples, width), np.int32),
            xp.zeros(n_samples, np.int32),
            xp.zeros((n_samples, width), dtype),
            xp.zeros(n_samples, dtype),
        )

    @classmethod
    def copied(cls, card: Card, codes: Codes, dtype: Any) -> CardCodes:
        """A copy of codes in the memory of the processor; parts that these lack are zero."""
        parts = {name: getattr(codes, name) for name in _PARTS}
        present = {name: part for name, part in parts.items() if part is not None}
        width = 1 if codes.index is None else codes.index.shape[1]
        made = cls.empty(card, len(next(iter(present.values()))), width, dtype)
        for name, part in present.items():
            setattr(made, name, card.upload(part))
        return made

    def __getitem__(self, rows: slice) -> CardCodes:
        return CardCodes(self.card, *(getattr(self, part)[rows] for part in _PARTS))

    def take(self, other: CardCodes) -> None:
        """Become a copy of other codes."""
        for part in _PARTS:
            getattr(self, part)[...] = getattr(other, part)

    def addresses(self, address: Callable[[Any], int]) -> dict[str, int]:
        """Where the parts are, by the names that the kernels have for them."""
        return {part: address(getattr(self, part)) for part in _PARTS}

    def used(self, n_atoms: tuple[int, ...]) -> NDArray[np.bool_]:
        """Which atoms ``(n_1, …, n_d)`` any code uses."""
        xp = self.card.xp
        places = xp.arange(self.index.shape[1])
        used = xp.zeros(math.prod(n_atoms), bool)
        used[self.index[places < self.nonzeros[:, None]]] = True
        return self.card.download(used).reshape(n_atoms)

    def worst(self, count: int) -> NDArray[np.intp]:
        """The samples with the largest residuals, of equal ones the first; none without any."""
        return self.gathered().worst(count)

    def gathered(self) -> Codes:
        """All of them in the memory of the processor."""
        return Codes(*(self.card.download(getattr(self, part)) for part in _PARTS))

    def packed(self) -> tuple[Any, Any, Any]:
        """Values, indices and starts as a sparse matrix has them; these codes are of no more use.

        Where all are of full width, nothing is copied.
        """
        xp, (count, width) = self.card.xp, self.index.shape
        starts = xp.zeros(count + 1, np.int64)
        xp.cumsum(self.nonzeros, out=starts[1:])
        entries = int(self.card.download(starts[-1:])[0])
        if entries > _MOST_ENTRIES:
            raise ValueError(
                f"The codes have {entries} nonzeros, and a sparse matrix of CuPy has at most "
                f"{_MOST_ENTRIES}; code fewer samples at a time, or a copy of them in memory."
            )
        value, index = self.value.ravel(), self.index.ravel()
        if entries < count * width:
            value, index = xp.empty(entries, value.dtype), xp.empty(entries, np.int32)
            teams = min(16 * self.card.n_teams, -(-count * width // 32))
            sizes = np.int64(count), np.int32(width)
            arrays = self.index, self.value, starts, *sizes, index, value
            self.card.launch("codes.cu", f"pack_{value.dtype.name}", teams, *arrays)
        return value, index, starts.astype(np.int32)
