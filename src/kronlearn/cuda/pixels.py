"""Images of any kind that lie on a GPU: what is in them, and planes of floats made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.init import dct_factor
from kronlearn.cuda.device import Gpu, c_type, defined
from kronlearn.cuda.tasks import struct

__all__ = ["Contents", "Pixels"]

_FILE = "pixels.cu"
# Parts that a channel is looked at in: sums have the same bits on every GPU.
_PARTS = 1024
# Threads of a block that looks for noise.
_THREADS = 128

#: The struct PixelTask of the kernels.
_PIXELS = np.dtype(
    [
        ("parts", np.int32),
        ("count", np.int64),
        *((name, np.float64) for name in ("mean", "scale", "lowest", "most")),
        *((name, np.uint64) for name in ("pixels", "plane", "found")),
    ],
    align=True,
)

#: The struct NoiseTask of the kernels.
_NOISE_TASK = np.dtype(
    [
        *((name, np.uint64) for name in ("pixels", "factor", "uses")),
        *((name, np.float64) for name in ("low", "high")),
        *((n, np.int32) for n in ("step", "rows", "columns", "stride", "highs")),
        *((name, np.uint64) for name in ("structure", "values", "kept")),
    ],
    align=True,
)


@dataclass(frozen=True)
class Contents:
    """What is in a channel: its least and largest pixel, and the mean where that is known."""

    low: float
    high: float
    mean: float | None
    is_finite: bool = True


class Pixels:
    """What kernels do with the channels (C, *spatial) of an image on a GPU, in C order."""

    def __init__(self, gpu: Gpu, channels: Any) -> None:
        self.gpu, self.channels = gpu, channels
        self.count = channels[0].size
        self.options = defined(PIXEL=c_type(channels.dtype))
        self.task = struct(_PIXELS, parts=_PARTS, count=self.count)
        if channels.dtype.kind in "iu":
            self.task["lowest"], self.task["most"] = _limits(channels.dtype)

    def contents(self) -> list[Contents]:
        """What is in the channels."""
        n_channels = len(self.channels)
        found = self.gpu.xp.empty((n_channels, _PARTS, 4), np.float64)
        task = self._of(0)
        task["found"] = self.gpu.address(found)
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
        """``plane``, of floats, becomes (channel − mean) / scale."""
        self._convert("to_plane", number, mean, scale, plane)

    def from_plane(self, number: int, mean: float, scale: float, plane: Any) -> None:
        """The channel becomes plane · scale + mean; integers are rounded and kept in range."""
        self._convert("from_plane", number, mean, scale, plane)

    def _convert(self, kernel: str, number: int, mean: float, scale: float, plane: Any) -> None:
        task = self._of(number)
        task["mean"], task["scale"], task["plane"] = mean, scale, self.gpu.address(plane)
        teams = min(-(-self.count // 32), 16 * self.gpu.n_teams)
        self.gpu.launch(_FILE, kernel, teams, task, options=self.options)

    def _of(self, number: int) -> NDArray[Any]:
        """The task for a channel."""
        task = self.task.copy()
        size = self.channels.dtype.itemsize
        task["pixels"] = self.gpu.address(self.channels) + number * self.count * size
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
        """The median magnitude of high frequencies in quiet patches of 8 × 8 pixels of a channel.

        The channel has two axes. ``uses`` (8, 8) numbers high frequencies, low ones are −1, others
        −2; ``shares`` are those of patches that are quiet, and that suffice without the ones at the
        ends of the range; ``fewest`` is the least number of either.
        """
        xp, address = self.gpu.xp, self.gpu.address
        height, width = self.channels.shape[1:]
        rows, columns = (-(-(size - 7) // stride) for size in (height, width))
        count, highs = rows * columns, int(uses.max()) + 1
        made = {
            "structure": xp.empty((2, count), np.float64),
            "values": xp.empty((count, highs), np.float32),
            "kept": xp.zeros(2, np.int32),
        }
        factor, roles = _cosines(self.gpu, uses.astype(np.int32).tobytes())
        task = struct(
            _NOISE_TASK,
            pixels=self._of(number)["pixels"],
            factor=address(factor),
            uses=address(roles),
            low=contents.low,
            high=contents.high,
            step=width,
            rows=rows,
            columns=columns,
            stride=stride,
            highs=highs,
            **{name: address(array) for name, array in made.items()},
        )
        blocks = min(-(-count // 4), 4 * self.gpu.n_teams)
        kernel = "noise.cu", "noise_patches"
        self.gpu.launch_blocks(*kernel, blocks, _THREADS, task, options=self.options)
        uneven, uncut = self.gpu.download(made["kept"]).tolist()
        leaves_out = uncut >= max(fewest, shares[1] * uneven)
        kept = uncut if leaves_out else uneven
        if not kept:
            return 0.0
        n_quiet = max(min(fewest, kept), math.ceil(shares[0] * kept))
        quiet = xp.argsort(made["structure"][int(leaves_out)], kind="stable")[:n_quiet]
        magnitudes = xp.sort(made["values"][quiet].ravel())
        size = magnitudes.size
        middle = self.gpu.download(magnitudes[(size - 1) // 2 : size // 2 + 1])
        # The range of large numbers may not be finite.
        return float(middle.mean(dtype=np.float64)) * (contents.high / 2 - contents.low / 2) * 2


@lru_cache(4)
def _cosines(gpu: Gpu, uses: bytes) -> tuple[Any, Any]:
    """The factor of 8 × 8 patches and how frequencies are used, on the GPU."""
    return gpu.upload(dct_factor(8, 8)), gpu.upload(np.frombuffer(uses, np.int32))


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The least and the largest float that an integer of a dtype can be."""
    limits = np.iinfo(dtype)
    highest = np.float64(limits.max)
    if int(highest) > limits.max:
        highest = np.nextafter(highest, 0.0)
    return float(limits.min), float(highest)
