"""The interface of sources of samples, and checks of samples."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["Source", "check_shape", "check_size", "raise_not_finite", "rmse_of", "sample_dtype"]

# Samples are read, converted and checked in pieces of about this many numbers.
BLOCK_NUMBERS = 1 << 22

# A checksum covers at most this many runs of this many consecutive samples each.
_RUNS, _RUN_LENGTH = 64, 64


class Source(ABC):
    """N samples of one shape, in memory, in files, or computed when they are read.

    What is learned from a source depends only on its samples and their order. Processes that
    unpickle a source can each read their own part of the samples.

    Attributes
    ----------
    patch_shape : tuple of int
        ``(m_1, …, m_d)``.
    dtype : float32 or float64
        The dtype in which samples are read.
    is_rows : bool
        Whether the user passed the samples as rows ``(N, m_1·…·m_d)``.
    device : {"cpu", "cuda"}
        The device that holds the samples.
    sqrt_weights : array of shape (N,), or None
        The square roots of the samples' weights. The samples that are read have already been
        multiplied by them.
    name : str
        The name of the samples in error messages.
    first : int
        The number of the first sample in error messages.
    """

    patch_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_rows: bool = False
    device: str = "cpu"
    sqrt_weights: NDArray[np.float64] | None = None
    name: str = "Y"
    first: int = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read consecutive samples ``(stop − start, m_1·…·m_d)``, C-contiguous and of ``dtype``."""

    @property
    def n_features(self) -> int:
        """``m_1·…·m_d``."""
        return math.prod(self.patch_shape)

    def whole(self, start: int, stop: int) -> NDArray[Any] | None:
        """Return consecutive samples without a copy, if memory holds them in the form needed.

        Parameters
        ----------
        start, stop : int
            The first sample, and the one after the last.

        Returns
        -------
        array of shape (stop - start, n_features), or None
            The samples, or None if they have to be read.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> CubePatches(np.zeros((16, 16, 4))).whole(0, 4) is None
        True
        """
        return None

    def file(self, start: int) -> tuple[int, int] | None:
        """Return where in a file the samples are, if it holds them in the form needed.

        Parameters
        ----------
        start : int
            The first sample to read.

        Returns
        -------
        tuple of int, or None
            The file descriptor and the offset of the sample in bytes, or None.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> CubePatches(np.zeros((16, 16, 4))).file(0) is None
        True
        """
        return None

    def step(self, multiple_of: int) -> int:
        """Return how many samples to read at a time.

        Parameters
        ----------
        multiple_of : int
            The result is a multiple of this.

        Returns
        -------
        int
            The number of samples.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> CubePatches(np.zeros((16, 16, 4))).step(1000) % 1000
        0
        """
        return max(1, BLOCK_NUMBERS // self.n_features // multiple_of) * multiple_of

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Read a few samples ``(len(rows), m_1·…·m_d)``, in any order."""
        samples = np.empty((len(rows), self.n_features), self.dtype)
        for sample, row in zip(samples, rows, strict=True):
            sample[:] = self.read(int(row), int(row) + 1)[0]
        return samples

    def part(self, start: int, stop: int) -> Source:
        """Return consecutive samples as a source of their own.

        Parameters
        ----------
        start, stop : int
            The first sample, and the one after the last.

        Returns
        -------
        Source
            The samples from ``start`` up to ``stop``.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> len(CubePatches(np.zeros((16, 16, 4))).part(2, 5))
        3
        """
        return _Part(self, start, stop)

    def checksum(self) -> int:
        """Return a checksum that identifies the samples and their order.

        Returns
        -------
        int
            The CRC-32 of the samples, or of 4096 of them.

        Examples
        --------
        >>> import numpy as np
        >>> from kronlearn.hyperspectral import CubePatches
        >>> zeros, ones = np.zeros((16, 16, 4)), np.ones((16, 16, 4))
        >>> CubePatches(zeros).checksum() == CubePatches(ones).checksum()
        False
        """
        last = max(len(self) - _RUN_LENGTH, 0)
        crc = 0
        for start in np.unique(np.linspace(0, last, _RUNS).astype(np.int64)).tolist():
            crc = zlib.crc32(self.read(start, min(start + _RUN_LENGTH, len(self))).tobytes(), crc)
        return crc


class _Part(Source):
    """Consecutive samples of a source."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.start, self.n_samples = source, start, stop - start
        self.patch_shape, self.dtype = source.patch_shape, source.dtype
        self.is_rows, self.device = source.is_rows, source.device
        self.name, self.first = source.name, source.first + start

    def __len__(self) -> int:
        return self.n_samples

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples of the part."""
        return self.source.read(self.start + start, self.start + stop)

    def whole(self, start: int, stop: int) -> NDArray[Any] | None:
        """Consecutive samples of the part, if the source has them in memory."""
        return self.source.whole(self.start + start, self.start + stop)

    def file(self, start: int) -> tuple[int, int] | None:
        """Where the file of the source holds the samples, if it does."""
        return self.source.file(self.start + start)

    def step(self, multiple_of: int) -> int:
        """The step of the source."""
        return self.source.step(multiple_of)


def rmse_of(source: Source, residual: float) -> float:
    """The RMSE of a source's samples from ``Σ‖y − ŷ‖²``; weighted if the samples are."""
    roots = source.sqrt_weights
    weight = len(source) if roots is None else float(roots @ roots)
    return math.sqrt(residual / (weight * source.n_features))


def sample_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which samples are coded: float32 for float32, float64 for all others."""
    single = dtype.newbyteorder("=") == np.float32
    return np.dtype(np.float32 if single else np.float64)


def raise_not_finite(
    samples: NDArray[Any], first: int, name: str = "Y", weights: NDArray[Any] | None = None
) -> NoReturn:
    """Raise the error that names the first sample that is not finite, or whose squares overflow.

    The caller has found that there is one among these samples; ``first`` is their first number.
    Entries whose weight is zero may be anything.
    """
    if weights is not None:
        samples = np.where(weights.reshape(samples.shape) > 0, samples, samples.dtype.type(0))
    for k, sample in enumerate(samples):
        if not np.isfinite(sample).all():
            kind = "NaN" if np.isnan(sample).any() else "infinity"
            raise ValueError(
                f"{name} contains {kind} (first in sample {first + k}); pass finite numbers."
            )
    dtype = sample_dtype(samples.dtype)
    remedy = " or pass float64" if dtype == np.float32 else ""
    raise ValueError(
        f"{name} holds values too large to be squared in {dtype.name} (first in sample {first}); "
        f"scale the data down{remedy}."
    )


def check_shape(shape: tuple[int, ...], patch_shape: tuple[int, ...], name: str = "Y") -> None:
    """Raise unless an array of this shape holds samples of ``patch_shape``, or their rows."""
    n_features = math.prod(patch_shape)
    if shape[1:] == patch_shape or (len(shape) == 2 and shape[1] == n_features):
        return
    hint = f" For a single sample pass {name}[None]." if shape == patch_shape else ""
    flat = f" or (N, {n_features})" if len(patch_shape) > 1 else ""
    raise ValueError(
        f"{name} has shape {shape}; samples of shape {patch_shape} are needed, as an array "
        f"(N, {', '.join(map(str, patch_shape))}){flat}.{hint}"
    )


def check_size(shape: tuple[int, ...], name: str = "Y") -> None:
    """Raise unless an array of this shape has at least two dimensions and one sample."""
    if len(shape) < 2:
        raise ValueError(
            f"{name} has shape {shape}; an array of samples (N, m_1, …, m_d) is needed. "
            f"Reshape your data: {name}.reshape(-1, 1) for samples of one number, {name}[None] (or "
            f"{name}.reshape(1, -1)) for a single sample."
        )
    if shape[0] == 0:
        raise ValueError(
            f"{name} has 0 sample(s) (shape={shape}) while a minimum of 1 is required."
        )
    if 0 in shape:
        raise ValueError(
            f"0 feature(s) (shape={shape}) while a minimum of 1 is required: {name} is empty."
        )
