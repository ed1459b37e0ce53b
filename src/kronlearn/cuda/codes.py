"""Codes on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu, current_gpu
from kronlearn.cuda.memory import check_codes

__all__ = ["GpuCodes"]

# CuPy numbers the entries of a sparse matrix with 32 bits.
_MOST_ENTRIES = 2**31 - 1


@dataclass(frozen=True)
class GpuCodes:
    """Codes of fixed width: in row k, the first ``nonzeros[k]`` entries count, indices ascending.

    ``index`` and ``value`` are (N, width), ``nonzeros`` and ``residual2`` (the squared norms of
    the residuals) are (N,).
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
        limited: bool = True,
        zeroed: bool = True,
    ) -> GpuCodes:
        """Memory for the codes of N samples.

        Parameters
        ----------
        limited : bool
            Raise MemoryError if a memory limit leaves too little; for a chunk, no limit applies.
        zeroed : bool
            Fill with zeros, for kernels that may read codes before a kernel has written them.
        """
        if limited:
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

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by name, which is also the name of their fields in the structs of kernels."""
        names = ("index", "nonzeros", "value", "residual2")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy codes through the memory of the processor to another process."""
        return _on_current_gpu, tuple(map(self.gpu.download, self.arrays.values()))

    def __getitem__(self, rows: slice) -> GpuCodes:
        return GpuCodes(self.gpu, *(array[rows] for array in self.arrays.values()))

    def packed(self) -> tuple[Any, Any, Any]:
        """Values, indices and row starts of a sparse matrix.

        They may share memory with these codes, which must not be used afterwards: rows of full
        width are not copied.
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


def _on_current_gpu(*arrays: NDArray[Any]) -> GpuCodes:
    """Codes copied from the memory of the processor to the current GPU."""
    gpu = current_gpu()
    return GpuCodes(gpu, *map(gpu.upload, arrays))
