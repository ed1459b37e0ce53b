"""The pass over the overlapping patches of an image that shrinks groups of them on a GPU."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu, c_type, defined
from kronlearn.cuda.image_passes import Scratch, Tell, pointers
from kronlearn.cuda.slabs import GRID, Grid, PlacedArray, largest_of, places_on, sums_instead
from kronlearn.cuda.tables import SHAPE

if TYPE_CHECKING:
    from kronlearn.cuda.images import GpuImages

__all__ = ["Shrinkage"]

_FILE = "group_sums.cu"
# Bits of a fixed-point sum, without its sign and one to spare.
_SUM_BITS = 62
# Pixels of a window, with four more rows, that there is room for near the teams of a GPU.
_WINDOW_PIXELS = 2544
# Weights of the pixels of a patch that the faster kernel takes: it has them as integers by a unit.
_LEAST_TAPER, _TAPER_UNIT = 1 / 64, 2**20

#: The struct ShrinkTask of the kernels.
_SHRINKAGE = np.dtype(
    [
        ("shape", SHAPE),
        ("grid", GRID),
        *((name, np.int32) for name in ("group", "planes")),
        *((name, np.int64) for name in ("first", "count", "pixels")),
        ("noise", np.float64),
        ("room", np.int32),
        ("weight_scale", np.float64),
        *pointers("image", "guide", "analysis", "synthesis", "taper", "places"),
        *pointers("sums", "weights", "patch_weights", "average", "notes", "scratch"),
        ("scratch_size", np.int64),
    ],
    align=True,
)


class Shrinkage:
    """A pass in which groups of similar patches are shrunk.

    ``arrays`` are image, guide, and numerator and denominator or, if all lie on the GPU, the
    average.
    """

    def __init__(
        self,
        owner: GpuImages,
        synthesis: GpuImages,
        grid: Grid,
        arrays: dict[str, PlacedArray],
        group: int,
        noise: float,
        taper: NDArray[Any],
    ) -> None:
        self.owner, self.gpu, self.grid, self.arrays = owner, owner.gpu, grid, arrays
        self.planes = arrays["image"].array.size // grid.pixels
        weight, room = self._bits(synthesis, group, float(np.abs(taper).max()))
        self.options = defined(S=c_type(owner.dtype))
        #: Whether there is a faster kernel; weights of patches are brought to the pixels then.
        self.spreads = self._is_usual(group, taper)
        self.file = ("shrink_small.cu", ()) if self.spreads else ("shrink.cu", self.options)
        self.gpu.compile_ahead([self.file, (_FILE, self.options)])
        if self.spreads:
            taper = (np.rint(taper * _TAPER_UNIT) / _TAPER_UNIT).astype(owner.dtype)
        self.taper = _uploaded(owner.gpu, owner.dtype, taper.tobytes())
        self.task = np.zeros((), _SHRINKAGE)
        values = {
            "shape": owner.tables.shape,
            "group": group,
            "planes": self.planes,
            "noise": noise,
            "room": room,
            "weight_scale": _scale(_SUM_BITS - weight),
            "analysis": self.gpu.address(owner.tables.numbers[owner.dtype]),
            "synthesis": self.gpu.address(synthesis.tables.numbers[owner.dtype]),
            "taper": self.gpu.address(self.taper),
        }
        for name, value in values.items():
            self.task[name] = value

    def _bits(self, synthesis: GpuImages, group: int, most: float) -> tuple[int, int]:
        """Bits before the point of sums of weights, and those that remain for the largest pixel.

        ``most`` is the largest weight of a pixel in a patch.
        """
        near = [
            min(count, (2 * window + patch) // stride + 2)
            for count, (_, patch, stride, window) in zip(
                self.grid.starts, self.grid.axes, strict=True
            )
        ]
        # So many patches may be over a pixel, each weighted by one at most.
        weight = math.prod(near) * group * most
        # A number of a shrunk group does not exceed the norm of the group, but for what rounding or
        # factors that are not quite orthonormal add.
        growth = self.owner.tables.growth * synthesis.tables.growth
        norm = math.sqrt(group * self.grid.features) * 1.01 * growth
        return _bits(weight), _SUM_BITS - _bits(weight) - _bits(norm)

    def run(self, progress: Tell) -> None:
        """Go through all patches, band after band."""
        grid, kind = self.grid, self.owner.dtype
        self.task["grid"] = grid.described((0, 1))
        deciding = int(self.task["group"]), self.task["grid"].tobytes()
        scratch = Scratch(self.owner, *self.file, self.task, kind, deciding)
        memory = self.owner.memory_for(self._useful() + 4 * scratch.useful)
        scratch.take(memory // 4)
        scratch.enter(self.task)
        together = self._together(memory - scratch.memory.nbytes)
        if "average" in self.arrays and together >= grid.starts[grid.band]:
            notes = self._run_whole(scratch)
            if progress is not None:
                progress(1.0)
        else:
            notes = self._run_bands(scratch, together, progress)
        found = self.gpu.download(notes)
        _check_finite((-found[:2]).view(np.float64).tolist())
        if found[2]:
            raise ValueError(
                "what groups of patches were shrunk to is not finite; the image is too large for "
                f"{kind}, or noise={float(self.task['noise'])} too small."
            )

    def _run_whole(self, scratch: Scratch) -> Any:
        """Make the average of all patches at once; nothing waits for the GPU."""
        size, starts = self.arrays["image"].array.size, self.grid.starts[self.grid.band]
        arrays = ("sums", "weights", "patch_weights")[: 2 + self.spreads]
        sums = self.gpu.xp.zeros(len(arrays) * size + 3, np.int64)
        first = self.gpu.address(sums)
        for number, name in enumerate((*arrays, "notes")):
            self.task[name] = first + 8 * number * size
        self.task["average"] = self.gpu.address(self.arrays["average"].array)
        self._enter_slab(
            {name: self.arrays[name].array for name in ("image", "guide")}, self._rows(0, starts)
        )
        teams = min(-(-size // 32), 16 * self.gpu.n_teams)
        few, options = min(teams, self.gpu.n_teams), self.options
        self.gpu.launch(_FILE, "measure_pixels", few, self.task, options=options)
        self._shrink(self.task, scratch, 0, starts)
        self.gpu.launch(_FILE, "average_pixels", teams, self.task, options=options)
        return sums[len(arrays) * size :]

    def _run_bands(self, scratch: Scratch, together: int, progress: Tell) -> Any:
        """Add the sums of all patches up, some of them at a time."""
        gpu, grid = self.gpu, self.grid
        average = sums_instead(self.arrays) if "average" in self.arrays else None
        magnitudes = largest_of(self.arrays["image"], self.arrays["guide"])
        _check_finite(magnitudes)
        bits = np.array([*magnitudes, 0.0]).view(np.int64)
        notes = gpu.upload(-bits)
        self.task["notes"] = gpu.address(notes)
        scale = _scale(int(self.task["room"]) - _bits(magnitudes[0]))
        n_starts = grid.starts[grid.band]
        before: dict[str, Any] | None = None
        low = 0
        for start in range(0, n_starts, together):
            end = min(start + together, n_starts)
            rows = self._rows(start, end)
            sums = self._sums(rows, before, low)
            slabs = {name: self.arrays[name].slab(grid, rows) for name in ("image", "guide")} | sums
            if self.spreads:
                slabs["patch_weights"] = gpu.xp.zeros_like(sums["weights"])
            self._enter_slab(slabs, rows)
            self._shrink(self.task, scratch, start, end)
            # Later bands do not reach above their own slab.
            finished = rows[1] if end == n_starts else self._rows(end, end + 1)[0]
            self._settle(sums, scale, rows[0], finished)
            before, low = sums, rows[0]
            if progress is not None:
                progress(end / n_starts)
        if average is not None:
            made = (self.arrays[name].array for name in ("numerator", "denominator"))
            gpu.xp.divide(*made, average)
        return notes

    def _enter_slab(self, slabs: dict[str, Any], rows: tuple[int, int]) -> None:
        """Enter in the task what a band has."""
        self.task["grid"] = self.grid.described(rows)
        self.task["pixels"] = slabs["image"].size // self.planes
        self.task["places"] = self.gpu.address(places_on(self.gpu, self.grid, rows))
        for name, array in slabs.items():
            self.task[name] = self.gpu.address(array)

    def _shrink(self, task: NDArray[Any], scratch: Scratch, start: int, end: int) -> None:
        """Shrink the groups of patches from one start along the band axis to another."""
        per_start = self.grid.per_start
        task["first"], task["count"] = start * per_start, (end - start) * per_start
        scratch.launch("shrink_groups", min(scratch.teams, int(task["count"])), task)
        if self.spreads:
            teams = min(-(-self.planes * int(task["pixels"]) // 32), 16 * self.gpu.n_teams)
            scratch.launch("spread", teams, task)

    def _is_usual(self, group: int, taper: NDArray[Any]) -> bool:
        """Whether groups and windows have a shape that there is a faster kernel for."""
        if not (taper.min() >= _LEAST_TAPER and taper.max() <= 1):
            return False
        if self.owner.dtype != np.float32 or group != 16 or self.grid.pixels >= 2**31:
            return False
        if [patch for _, patch, _, _ in self.grid.axes] != [8, 8]:
            return False
        rows, columns = (min(2 * window + 8, size) for size, _, _, window in self.grid.axes)
        even = columns + columns % 2
        return (rows + 4) * even <= _WINDOW_PIXELS

    def _rows(self, start: int, end: int) -> tuple[int, int]:
        return self.grid.rows(start, end - 1, self.grid.axes[self.grid.band][3])

    @property
    def _row_bytes(self) -> int:
        """Bytes that a slab takes for a row along the band axis."""
        size = self.grid.axes[self.grid.band][0]
        # Image, guide, numerator and denominator; sums and weights, twice where bands overlap, and
        # those of patches.
        return self.planes * (self.grid.pixels // size) * (4 * self.owner.dtype.itemsize + 40)

    def _useful(self) -> int:
        """Bytes with which everything is one band."""
        size, patch, _, window = self.grid.axes[self.grid.band]
        return (size + patch + 2 * window) * self._row_bytes

    def _together(self, memory: int) -> int:
        """Starts along the band axis whose patches make a band, in so much memory."""
        _, patch, stride, window = self.grid.axes[self.grid.band]
        return max(1, (memory // self._row_bytes - patch - 2 * window) // stride + 1)

    def _sums(
        self, rows: tuple[int, int], before: dict[str, Any] | None, low: int
    ) -> dict[str, Any]:
        """Sums of a slab, begun with what the slab before it, from row ``low`` on, left off."""
        along = (slice(None),) * (1 + self.grid.band)
        sums = {}
        for name in ("sums", "weights"):
            sums[name] = self.gpu.xp.zeros((self.planes, *self.grid.slab(rows)), np.int64)
            if before is not None:
                left = before[name][(*along, slice(rows[0] - low, None))]
                sums[name][(*along, slice(0, left.shape[1 + self.grid.band]))] = left
        return sums

    def _settle(self, sums: dict[str, Any], scale: float, low: int, high: int) -> None:
        """Add finished sums, of the rows from ``low`` to ``high``, to what they stand for."""
        part = (slice(None),) * (1 + self.grid.band) + (slice(0, high - low),)
        for name, of, by in (
            ("numerator", "sums", scale),
            ("denominator", "weights", float(self.task["weight_scale"])),
        ):
            slab = self.arrays[name].slab(self.grid, (low, high))
            slab += (sums[of][part] * (1.0 / by)).astype(self.owner.dtype)
            self.arrays[name].put(self.grid, (low, high), slab)


@lru_cache(16)
def _uploaded(gpu: Gpu, dtype: np.dtype[Any], numbers: bytes) -> Any:
    """An array on the GPU, the same for the same bytes."""
    return gpu.upload(np.frombuffer(numbers, dtype))


def _check_finite(magnitudes: list[float]) -> None:
    if not all(map(math.isfinite, magnitudes)):
        raise ValueError("image contains NaN or infinity; pass finite numbers.")


def _scale(bits: int) -> float:
    """A power of two by which numbers are multiplied that so many bits are left for."""
    return 2.0 ** min(1000, bits)


def _bits(x: float) -> int:
    """How many bits there are before the point; none of zero."""
    return math.frexp(x)[1] if x > 0 else 0
