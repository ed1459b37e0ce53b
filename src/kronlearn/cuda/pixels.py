"""Images of any dtype on a GPU: their range and noise, and conversion to planes of floats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.init import dct_factor
from kronlearn.cuda.device import Gpu, c_type, macros
from kronlearn.cuda.structs import NOISE_TASK, PIXEL_TASK, new_struct, set_fields

__all__ = ["Contents", "Pixels"]

_FILE = "pixels.cu"
# Parts in which the pixels of a channel are summed: the bits of a mean do not depend on the GPU.
_PARTS = 1024
# Threads of a block of noise.cu.
_THREADS = 128


@dataclass(frozen=True)
class Contents:
    """The lowest and highest pixel of a channel, and the mean if it is known."""

    low: float
    high: float
    mean: float | None
    is_finite: bool = True


class Pixels:
    """The channels (C, *spatial) of an image on a GPU, C-contiguous."""

    def __init__(self, gpu: Gpu, channels: Any) -> None:
        self.gpu, self.channels = gpu, channels
        self.count = channels[0].size
        self.options = macros(PIXEL=c_type(channels.dtype))

    def contents(self) -> list[Contents]:
        """The ranges and means of all channels."""
        n_channels = len(self.channels)
        found = self.gpu.xp.empty((n_channels, _PARTS, 4), np.float64)
        task = self._task(0, found=found)
        teams = min(n_channels * _PARTS, 16 * self.gpu.n_teams)
        channels = np.int32(n_channels)
        self.gpu.launch(_FILE, "look", teams, task, channels, options=self.options)
        parts = self.gpu.download(found)
        lows, highs = parts[..., 0].min(axis=1), parts[..., 1].max(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            means = (parts[..., 2] / self.count).sum(axis=1)
        finite = parts[..., 3].min(axis=1) > 0
        rows = zip(lows.tolist(), highs.tolist(), means.tolist(), finite.tolist(), strict=True)
        return [Contents(*row) for row in rows]

    def to_plane(self, number: int, mean: float, scale: float, plane: Any) -> None:
        """Set ``plane``, of floats, to (channel − mean) / scale."""
        self._convert("to_plane", number, mean, scale, plane)

    def from_plane(self, number: int, mean: float, scale: float, plane: Any) -> None:
        """Set a channel to plane · scale + mean; integers are rounded and clipped."""
        self._convert("from_plane", number, mean, scale, plane)

    def _convert(self, kernel: str, number: int, mean: float, scale: float, plane: Any) -> None:
        task = self._task(number, mean=mean, scale=scale, plane=plane)
        teams = min(-(-self.count // 32), 16 * self.gpu.n_teams)
        self.gpu.launch(_FILE, kernel, teams, task, options=self.options)

    def _task(self, number: int, **values: Any) -> NDArray[Any]:
        """A struct PixelTask for a channel."""
        task = new_struct(self.gpu, PIXEL_TASK, parts=_PARTS, count=self.count)
        if self.channels.dtype.kind in "iu":
            task["lowest"], task["most"] = _limits(self.channels.dtype)
        set_fields(self.gpu, task, pixels=self.channels[number], **values)
        return task

    def middle_magnitude(
        self,
        number: int,
        contents: Contents,
        uses: NDArray[Any],
        stride: int,
        shares: tuple[float, float],
        fewest: int,
    ) -> float:
        """The median magnitude of high frequencies in the smoothest 8 × 8 patches of a channel.

        Parameters
        ----------
        number : int
            The channel, which has two axes.
        contents : Contents
            Its range.
        uses : array (8, 8) of int
            How a frequency is used: high ones have numbers from 0 on, low ones −1, others −2.
        stride : int
        shares : pair of float
            The share of patches that count as smooth, and the share without pixels at the ends of
            the range that suffices to leave out the others.
        fewest : int
            The least number of patches for both.
        """
        xp = self.gpu.xp
        height, width = self.channels.shape[1:]
        rows, columns = (-(-(size - 7) // stride) for size in (height, width))
        count, highs = rows * columns, int(uses.max()) + 1
        structure = xp.empty((2, count), np.float64)
        values = xp.empty((count, highs), np.float32)
        kept = xp.zeros(2, np.int32)
        factor, uses_on_gpu = _cosines(self.gpu, uses.astype(np.int32).tobytes())
        task = new_struct(
            self.gpu,
            NOISE_TASK,
            pixels=self.channels[number],
            factor=factor,
            uses=uses_on_gpu,
            low=contents.low,
            high=contents.high,
            step=width,
            rows=rows,
            columns=columns,
            stride=stride,
            highs=highs,
            structure=structure,
            values=values,
            kept=kept,
        )
        blocks = min(-(-count // 4), 4 * self.gpu.n_teams)
        kernel = "noise.cu", "noise_patches"
        self.gpu.launch_blocks(*kernel, blocks, _THREADS, task, options=self.options)
        not_flat, not_clipped = self.gpu.download(kept).tolist()
        omits_clipped = not_clipped >= max(fewest, shares[1] * not_flat)
        n_kept = not_clipped if omits_clipped else not_flat
        if not n_kept:
            return 0.0
        n_smooth = max(min(fewest, n_kept), math.ceil(shares[0] * n_kept))
        smooth = xp.argsort(structure[int(omits_clipped)], kind="stable")[:n_smooth]
        magnitudes = xp.sort(values[smooth].ravel())
        size = magnitudes.size
        middle = self.gpu.download(magnitudes[(size - 1) // 2 : size // 2 + 1])
        # The range itself may overflow, its half cannot.
        return float(middle.mean(dtype=np.float64)) * (contents.high / 2 - contents.low / 2) * 2


@lru_cache(4)
def _cosines(gpu: Gpu, uses: bytes) -> tuple[Any, Any]:
    """The DCT factor of 8 × 8 patches, and the uses of frequencies, on the GPU."""
    return gpu.upload(dct_factor(8, 8)), gpu.upload(np.frombuffer(uses, np.int32))


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The lowest and the highest float that fits into an integer dtype."""
    limits = np.iinfo(dtype)
    highest = np.float64(limits.max)
    if int(highest) > limits.max:
        highest = np.nextafter(highest, 0.0)
    return float(limits.min), float(highest)
