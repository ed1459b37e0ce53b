"""Pixels of any dtype as numbers from 0 to 1, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ValueRange", "decibels"]


@dataclass(frozen=True)
class ValueRange:
    """The range of an image's pixels: its dtype, its smallest and its largest value.

    Integers are taken as differences from the smallest one modulo 2^64, so that they are exact
    whatever their size.
    """

    dtype: np.dtype[Any]
    low: int | float
    high: int | float

    @classmethod
    def of(cls, pixels: NDArray[Any]) -> ValueRange:
        """The range of these pixels, which must be finite."""
        low, high = pixels.min().item(), pixels.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            kind = "NaN" if math.isnan(low) else "infinity"
            raise ValueError(
                f"image holds {kind}; fill such pixels first, for example with inpaint."
            )
        found = cls(pixels.dtype.newbyteorder("="), low, high)
        if not math.isfinite(found.span):
            raise ValueError(
                f"image ranges from {low:g} to {high:g}, which is more than a float64 can hold; "
                "scale it down."
            )
        return found

    @property
    def span(self) -> float:
        """The largest minus the smallest value."""
        return float(self.high - self.low)

    @property
    def peak(self) -> float:
        """What a PSNR is relative to.

        255 for 8 bits; for up to 32 without a sign the largest number of as many bits as are used,
        4095 for 12 of 16; otherwise the span.
        """
        if self.dtype.kind in "iu" and self.dtype.itemsize == 1:
            return 255.0
        if self.dtype.kind == "u" and self.dtype.itemsize <= 4:
            return float(2 ** max(8, int(self.high).bit_length()) - 1)
        return self.span

    def normalised(self, pixels: NDArray[Any]) -> NDArray[np.float64]:
        """The pixels in float64, the smallest one 0 and the largest 1; the span must not be 0."""
        if self.dtype.kind == "f":
            relative = pixels.astype(np.float64) - self.low
        else:
            relative = (pixels.astype(np.uint64) - self._low_bits).astype(np.float64)
        return relative / self.span

    def pixels(self, normalised: NDArray[np.float64]) -> NDArray[Any]:
        """Pixels of the dtype, clipped to the range and, for integers, rounded."""
        relative = np.clip(normalised, 0, 1) * self.span
        if self.dtype.kind == "f":
            # Rounding may lead a little out of the range.
            return np.clip(relative + self.low, self.low, self.high).astype(self.dtype)
        # The largest float64 below 2^64: the span of 64-bit integers may be rounded up to that.
        whole = np.minimum(np.rint(relative), math.nextafter(2.0**64, 0)).astype(np.uint64)
        whole = np.minimum(whole, np.uint64(self.high - self.low))
        return (whole + self._low_bits).astype(self.dtype)

    @property
    def _low_bits(self) -> np.uint64:
        return np.uint64(int(self.low) % 2**64)


def decibels(pixels: NDArray[Any], others: NDArray[Any], peak: float) -> float:
    """The peak signal-to-noise ratio of pixels of one dtype; infinite if they are the same."""
    if pixels.dtype.kind == "f":
        difference = pixels.astype(np.float64) - others
    else:
        whole = pixels.astype(np.uint64) - others.astype(np.uint64)
        difference = whole.view(np.int64).astype(np.float64)
    # Not the squares of the pixels: they may overflow or vanish.
    error = float(np.square(difference / peak).mean())
    return -10 * math.log10(error) if error else math.inf
