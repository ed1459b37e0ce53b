"""What every source of samples offers."""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Source", "check_finite", "check_shape", "check_size", "sample_dtype"]

# Samples that have to be read, converted or copied are so about this many numbers at a time.
BLOCK_NUMBERS = 1 << 22

# A checksum reads this many runs of this many consecutive samples.
_RUNS, _RUN = 64, 64


class Source(ABC):
    """N samples of one shape, from wherever they are.

    What is learned from a source depends on its samples and their order alone. A source that can be
    pickled can be read by other processes, each for its own part of the samples.

    Attributes
    ----------
    patch_shape : tuple of int
        ``(m_1, …, m_d)``.
    dtype : float32 or float64
        What samples are read as.
    is_rows : bool
        Whether samples were given as rows ``(N, m_1·…·m_d)``.
    device : {"cpu", "cuda"}
        Whose memory the samples are in.
    """

    patch_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_rows: bool = False
    device: str = "cpu"
    #: What errors call it, and its first sample.
    name: str = "Y"
    first: int = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Consecutive samples ``(stop − start, m_1·…·m_d)``, C-contiguous and of ``dtype``."""

    @property
    def n_features(self) -> int:
        """``m_1·…·m_d``."""
        return math.prod(self.patch_shape)

    def whole(self, start: int, stop: int) -> NDArray[Any] | None:
        """Consecutive samples if they are in memory as they are needed, or None."""
        return None

    def file(self, start: int) -> tuple[int, int] | None:
        """Descriptor and offset of a file with the samples from ``start`` on as they are needed."""
        return None

    def step(self, multiple_of: int) -> int:
        """How many samples to read at a time: a multiple of a size."""
        return max(1, BLOCK_NUMBERS // self.n_features // multiple_of) * multiple_of

    def take(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Some samples ``(len(rows), m_1·…·m_d)``, few and in any order."""
        samples = np.empty((len(rows), self.n_features), self.dtype)
        for place, row in enumerate(rows):
            samples[place] = self.read(int(row), int(row) + 1)[0]
        return samples

    def part(self, start: int, stop: int) -> Source:
        """Consecutive samples as a source of their own."""
        return _Part(self, start, stop)

    def checksum(self) -> int:
        """A number that tells these samples, in this order, from others (a CRC of up to 4096)."""
        last = max(len(self) - _RUN, 0)
        crc = 0
        for start in np.unique(np.linspace(0, last, _RUNS).astype(np.int64)).tolist():
            crc = zlib.crc32(self.read(start, min(start + _RUN, len(self))).tobytes(), crc)
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
        """As the source has them."""
        return self.source.whole(self.start + start, self.start + stop)

    def file(self, start: int) -> tuple[int, int] | None:
        """As the source has them."""
        return self.source.file(self.start + start)

    def step(self, multiple_of: int) -> int:
        """As the source has it."""
        return self.source.step(multiple_of)


def sample_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for float32 samples, float64 for all others."""
    single = dtype.newbyteorder("=") == np.float32
    return np.dtype(np.float32 if single else np.float64)


def check_finite(samples: NDArray[Any], first: int, name: str = "Y") -> None:
    """Raise for the first sample that is not finite or whose squares overflow."""
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
    """Raise unless an array of this shape holds samples of that shape, or their rows."""
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
