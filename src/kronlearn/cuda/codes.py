"""Codes on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.cuda.memory import check_codes

__all__ = ["GpuCodes"]

# CuPy numbers the entries of a sparse matrix with 32 bits.
_MOST_ENTRIES = 2**31 - 1
# The names of the parts, which the kernels have for them, too.
_PARTS = ("index", "nonzeros", "value", "residual2")


@dataclass(frozen=True)
class GpuCodes:
    """Codes of fixed width: of row k the first ``nonzeros[k]`` entries count, indices ascending.

    ``index``, ``value`` are (N, width), ``nonzeros`` and ``residual2`` (the squared norms of the
    residuals) are (N,).
    """

    gpu: Gpu
    index: Any
    nonzeros: Any
    value: Any
    residual2: Any

    @classmethod
    def empty(
        cls,
        gpu: Gpu,
        n_samples: int,
        width: int,
        dtype: Any,
        *,
        counted: bool = True,
        zeroed: bool = True,
    ) -> GpuCodes:
        """Memory for the codes of N samples.

        Parameters
        ----------
        counted : bool
            Whether a memory limit may refuse them; those of a chunk are taken whatever they need.
        zeroed : bool
            Whether something may read them before a kernel that codes has written all of them.
        """
        if counted:
            sizes = np.dtype(np.int32).itemsize + np.dtype(dtype).itemsize
            check_codes(n_samples * (width + 1) * sizes)
        make = gpu.xp.zeros if zeroed else gpu.xp.empty
        return cls(
            gpu,
            make((n_samples, width), np.int32),
            make(n_samples, np.int32),
            make((n_samples, width), dtype),
            make(n_samples, dtype),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Codes go to another process by way of the memory of the processor."""
        return _received, tuple(self.gpu.download(getattr(self, part)) for part in _PARTS)

    def __getitem__(self, rows: slice) -> GpuCodes:
        return GpuCodes(self.gpu, *(getattr(self, part)[rows] for part in _PARTS))

    def addresses(self, address: Callable[[Any], int]) -> dict[str, int]:
        """Where the parts are, by the names that the kernels have for them."""
        return {part: address(getattr(self, part)) for part in _PARTS}

    def packed(self) -> tuple[Any, Any, Any]:
        """Values, indices and starts as a sparse matrix has them; these codes are of no more use.

        Where all are of full width, nothing is copied.
        """
        xp, (count, width) = self.gpu.xp, self.index.shape
        starts = xp.zeros(count + 1, np.int64)
        xp.cumsum(self.nonzeros, out=starts[1:])
        entries = int(self.gpu.download(starts[-1:])[0])
        if entries > _MOST_ENTRIES:
            raise ValueError(
                f"The codes have {entries} nonzeros, and a sparse matrix of CuPy has at most "
                f"{_MOST_ENTRIES}; code fewer samples at a time, or a copy of them in memory."
            )
        value, index = self.value.ravel(), self.index.ravel()
        if entries < count * width:
            value, index = xp.empty(entries, value.dtype), xp.empty(entries, np.int32)
            teams = min(16 * self.gpu.n_teams, -(-count * width // 32))
            sizes = np.int64(count), np.int32(width)
            arrays = self.index, self.value, starts, *sizes, index, value
            self.gpu.launch("codes.cu", f"pack_{value.dtype.name}", teams, *arrays)
        return value, index, starts


def _received(*parts: NDArray[Any]) -> GpuCodes:
    """Codes from the memory of the processor, on the current GPU."""
    here = current_gpu()
    return GpuCodes(here, *map(here.upload, parts))
