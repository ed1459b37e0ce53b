"""Files that are written as a copy of the source with other numbers in one array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.formats.outputs import ArrayWriter, Plan
from kronlearn.io.formats.packing import Packing
from kronlearn.io.stored import Key

__all__ = ["CopyWriter"]


class CopyWriter(ArrayWriter):
    """Writes into an array of a library, in a copy of the source or in a new file.

    Subclasses set ``array``, to which parts can be assigned; ``is_copy``, whether its axes are
    those of the source; and ``packing``, if its numbers are not the values themselves.
    """

    array: Any
    is_copy = False
    packing: Packing | None = None

    def __init__(self, target: Path, plan: Plan) -> None:
        super().__init__(target, plan.order)
        self.plan = plan
        self.dtype = plan.out_dtype

    def write(self, key: Key, values: NDArray[Any]) -> None:
        """Write rows of all bands."""
        if self.packing is not None:
            values = self.packing.pack(values, self.stored_dtype, str(self.target))
        self.assign(self.plan.stored_key(key) if self.is_copy else key, values)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of the array in the file."""
        return np.dtype(self.array.dtype)

    def assign(self, key: tuple[slice | int, ...], values: NDArray[Any]) -> None:
        """Write numbers at their place."""
        self.array[key] = values

    def step_of(self, chunks: tuple[int, ...] | None) -> int:
        """The rows of the chunks of the array, with the axes that values are given in."""
        if chunks is None:
            return 1
        return int(chunks[self.plan.space[0] if self.is_copy else self.order.index("row")])
