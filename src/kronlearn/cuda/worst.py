"""The samples with the largest residuals of a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.engine import worst_first
from kronlearn.cuda.device import Gpu

__all__ = ["WorstSamples"]


class WorstSamples:
    """Gathers the samples with the largest residuals above zero, of equal ones the first.

    Parameters
    ----------
    gpu : Gpu
    count : int
        The most that are kept.

    Attributes
    ----------
    residual2 : array of float64
        In descending order.
    samples : array of int64
        The numbers of these samples.
    """

    def __init__(self, gpu: Gpu, count: int) -> None:
        self.gpu, self.count = gpu, count
        self.residual2: NDArray[np.float64] = np.empty(0)
        self.samples: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, residual2: Any, first: int) -> None:
        """Consider the squared residuals on the GPU of the samples from number ``first`` on."""
        if not self.count:
            return
        order = self.gpu.xp.argsort(-residual2, kind="stable")[: self.count]
        found = self.gpu.download(residual2[order]).astype(np.float64)
        numbers = self.gpu.download(order).astype(np.int64) + first
        self.residual2, self.samples = worst_first(
            np.concatenate([self.residual2, found[found > 0]]),
            np.concatenate([self.samples, numbers[found > 0]]),
            self.count,
        )
