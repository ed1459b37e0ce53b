"""Groups of similar patches, kept from one call of a denoiser to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.images.patch_grid import PatchGrid

__all__ = ["Matches", "current_matches"]


class Matches:
    """The groups that the passes of one call found, kept for those of the next call.

    A pass reuses the groups of the pass with the same number if images, patches, windows and groups
    have the same sizes; otherwise it finds groups anew.
    """

    def __init__(self) -> None:
        self._passes: dict[int, tuple[Any, NDArray[np.int32]]] = {}
        self._n_done = 0

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Reuse and keep the groups of all passes in a ``with`` block; forget all if it fails."""
        self._n_done = 0
        token = current_matches.set(self)
        try:
            yield
        except BaseException:
            self._passes.clear()
            raise
        finally:
            current_matches.reset(token)

    def of_next_pass(
        self, grid: PatchGrid, window: tuple[int, ...], group: int
    ) -> NDArray[np.int32]:
        """Return the groups (patches, group) of the next pass; negative where not yet found."""
        number, sizes = self._n_done, (grid, window, group)
        self._n_done += 1
        if number not in self._passes or self._passes[number][0] != sizes:
            self._passes[number] = sizes, np.full((len(grid), group), -1, np.int32)
        return self._passes[number][1]


#: Those that passes are to reuse and keep, or None.
current_matches: ContextVar[Matches | None] = ContextVar("kept matches", default=None)
