"""The passes over the overlapping patches of an image on a card."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.slabs import GRID, Grid, PlacedArray, largest_of
from kronlearn.cuda.tables import SHAPE
from kronlearn.cuda.tasks import METHODS

if TYPE_CHECKING:
    from kronlearn.cuda.images import CardImages

__all__ = ["Coding", "Shrinkage", "Tell"]

#: Called with the share that is done.
Tell = Callable[[float], object] | None

_FILE = "image.cu"
# Bits of a fixed-point sum, without its sign and one to spare.
_SUM_BITS = 62
_NO_PATCH = np.iinfo(np.int64).max
# Pixels of a window, with four more rows, that there is room for near the teams of a card.
_WINDOW_PIXELS = 2544


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, np.uint64) for name in names]


#: The struct CodingTask of the kernels.
_CODING = np.dtype(
    [
        ("shape", SHAPE),
        ("grid", GRID),
        *((name, np.int32) for name in ("method", "width", "favour_sparse")),
        ("tol", np.float64),
        ("first", np.int64),
        ("count", np.int64),
        *_pointers("values", "weights"),
        ("pixels", np.int64),
        *_pointers("image", "known", "places", "numerator", "denominator"),
        *_pointers("list", "list_count", "doubtful", "doubtful_count", "scratch"),
        ("scratch_size", np.int64),
    ],
    align=True,
)

#: The struct ShrinkTask of the kernels.
_SHRINKAGE = np.dtype(
    [
        ("shape", SHAPE),
        ("grid", GRID),
        *((name, np.int32) for name in ("group", "planes")),
        *((name, np.int64) for name in ("first", "count", "pixels")),
        *((name, np.float64) for name in ("noise", "scale", "weight_scale")),
        *_pointers("image", "guide", "analysis", "synthesis", "taper", "places"),
        *_pointers("sums", "weights", "first_bad", "scratch"),
        ("scratch_size", np.int64),
    ],
    align=True,
)


class _Scratch:
    """Scratch for a kernel, and how many teams may run it.

    Parameters
    ----------
    owner : CardImages
    kind : str
        The name of the kernel.
    task : struct
        Of the kernel.
    dtype : dtype
        Of the arithmetic.
    deciding : tuple
        What of the task decides the size, besides the dictionary.
    """

    def __init__(
        self,
        owner: CardImages,
        kind: str,
        task: NDArray[Any],
        dtype: Any,
        deciding: tuple[Any, ...],
    ) -> None:
        self.card, self.kind, self.dtype = owner.card, kind, np.dtype(dtype)
        known = owner.kept.scratch
        if (kind, deciding) not in known:
            numbers = self.card.xp.zeros(2, np.int64)
            self.card.launch(_FILE, f"scratch_{kind}", 1, task, numbers)
            size, far = self.card.download(numbers).tolist()
            known[kind, deciding] = size, bool(far)
        self.size, self.far = known[kind, deciding]

    @property
    def useful(self) -> int:
        """Bytes of the card's memory that are of use."""
        return -(-self.card.n_teams // 4) * 4 * self.size * self.dtype.itemsize if self.far else 0

    def take(self, memory: int) -> None:
        """Take it, up to so many bytes of the card's memory."""
        # Multiprocessors have it. More teams than run at a time even out what they have to do.
        self.teams = 16 * self.card.n_teams
        if self.far:
            # Teams come in blocks of four.
            affordable = memory // (self.size * self.dtype.itemsize) // 4 * 4
            self.teams = max(4, min(-(-self.card.n_teams // 4) * 4, affordable))
        self.memory = self.card.xp.empty(self.size * self.teams if self.far else 0, self.dtype)

    def enter(self, task: NDArray[Any]) -> None:
        """Enter it in a task."""
        task["scratch"], task["scratch_size"] = self.card.address(self.memory), self.size


class Coding:
    """A pass in which every patch becomes its sparse approximation.

    ``arrays`` are image, numerator, denominator and, if there are weights, known; ``settings`` go
    to the kernels as they are.
    """

    def __init__(
        self,
        owner: CardImages,
        grid: Grid,
        arrays: dict[str, PlacedArray],
        settings: dict[str, Any],
    ) -> None:
        self.owner, self.card, self.grid, self.arrays = owner, owner.card, grid, arrays
        self.settings = settings
        self.single = owner.dtype == np.float32 and "known" not in arrays

    def run(self, progress: Tell) -> None:
        """Go through all patches, some at a time."""
        xp = self.card.xp
        task = np.zeros((), _CODING)
        task["shape"], task["grid"] = self.owner.tables.shape, self.grid.described((0, 1))
        # Weighted patches need other scratch.
        task["known"] = int("known" in self.arrays)
        for name, value in self.settings.items():
            task[name] = value
        deciding = self.settings["width"], "known" in self.arrays
        coders = [_Scratch(self.owner, self._kernel(), task, self.owner.dtype, deciding)]
        if self.single:
            coders.append(_Scratch(self.owner, "recode_float32", task, np.float64, deciding))
        memory = self.owner.memory_for(self._useful() + 4 * sum(c.useful for c in coders))
        for coder in coders:
            coder.take(memory // 4)
        pieces = list(self.pieces(memory - sum(c.memory.nbytes for c in coders)))
        most = max(stop - first for first, stop in pieces)
        room = {
            "values": xp.empty((most, self.grid.features), self.owner.dtype),
            "weights": xp.empty(most, self.owner.dtype),
        }
        if self.single:
            room["doubtful"] = xp.empty(most, np.int32)
            room["doubtful_count"] = xp.zeros(1, np.int32)
        for name, array in room.items():
            task[name] = self.card.address(array)
        for first, stop in pieces:
            if self.single:
                room["doubtful_count"][...] = 0
            self._run_piece(task, first, stop, coders)
            if progress is not None:
                progress(stop / pieces[-1][1])

    def _kernel(self) -> str:
        """The kernel that codes; there are faster ones for the usual shapes."""
        shapes = {factor.shape for factor in self.owner.factors}
        name = f"code_{self.owner.dtype}"
        pursues = self.settings["method"] != METHODS["threshold"]
        if self.single and pursues and len(self.owner.factors) == 2:
            for shape in ((8, 8), (8, 16)):
                if shapes == {shape}:
                    return f"{name}_{shape[1]}"
        return name

    @property
    def _patch_bytes(self) -> int:
        return (self.grid.features + 1) * self.owner.dtype.itemsize + 4

    def _useful(self) -> int:
        """Bytes with which all patches are coded together."""
        slabs = len(self.arrays) * self.grid.pixels * self.owner.dtype.itemsize
        return slabs + math.prod(self.grid.starts) * self._patch_bytes

    def pieces(self, memory: int) -> Iterator[tuple[int, int]]:
        """Patches that are coded together, from one number to another, in so much memory.

        These are all that begin at several places of the band axis, or a part of those at one.
        """
        size = self.owner.dtype.itemsize
        length, patch, stride, _ = self.grid.axes[self.grid.band]
        per_start, per_row = self.grid.per_start, self.grid.pixels // length
        patch_bytes = self._patch_bytes
        row_bytes = len(self.arrays) * per_row * size
        left = memory - patch * row_bytes
        starts = (left + stride * row_bytes) // (per_start * patch_bytes + stride * row_bytes)
        n_starts = self.grid.starts[self.grid.band]
        together = min(max(1, starts), n_starts)
        # In a band of one start, patches may be too many still.
        part = per_start if starts >= 1 else min(per_start, max(1, left // patch_bytes))
        for start in range(0, n_starts, together):
            end = min(start + together, n_starts) * per_start
            step = part if together == 1 else end
            for first in range(start * per_start, end, step):
                yield first, min(first + step, end)

    def _run_piece(self, task: NDArray[Any], first: int, stop: int, coders: list[_Scratch]) -> None:
        per_start = self.grid.per_start
        rows = self.grid.rows(first // per_start, (stop - 1) // per_start)
        slabs = {name: array.slab(self.grid, rows) for name, array in self.arrays.items()}
        places = self.card.upload(self.grid.places(rows))
        task["grid"], task["places"] = self.grid.described(rows), self.card.address(places)
        task["first"], task["count"], task["pixels"] = first, stop - first, slabs["image"].size
        for name, slab in slabs.items():
            task[name] = self.card.address(slab)
        for coder in coders:
            own = task.copy()
            coder.enter(own)
            if coder.kind == "recode_float32":
                own["list"], own["list_count"] = task["doubtful"], task["doubtful_count"]
                own["doubtful"] = own["doubtful_count"] = 0
            tables = self.owner.numbers[coder.dtype]
            self.card.launch(_FILE, coder.kind, min(coder.teams, stop - first), own, tables)
        teams = min(-(-slabs["image"].size // 32), 16 * self.card.n_teams)
        self.card.launch(_FILE, f"add_{self.owner.dtype}", teams, task)
        for name in ("numerator", "denominator"):
            self.arrays[name].put(self.grid, rows, slabs[name])


class Shrinkage:
    """A pass in which groups of similar patches are shrunk."""

    def __init__(
        self,
        owner: CardImages,
        synthesis: CardImages,
        grid: Grid,
        arrays: dict[str, PlacedArray],
        group: int,
        noise: float,
        taper: NDArray[Any],
    ) -> None:
        self.owner, self.card, self.grid, self.arrays = owner, owner.card, grid, arrays
        self.planes = arrays["image"].array.size // grid.pixels
        self.taper = owner.card.xp.asarray(taper, owner.dtype)
        scale, weight_scale = self._scales(synthesis, group, float(np.abs(taper).max()))
        self.task = np.zeros((), _SHRINKAGE)
        values = {
            "shape": owner.tables.shape,
            "group": group,
            "planes": self.planes,
            "noise": noise,
            "scale": scale,
            "weight_scale": weight_scale,
            "analysis": self.card.address(owner.numbers[owner.dtype]),
            "synthesis": self.card.address(synthesis.numbers[owner.dtype]),
            "taper": self.card.address(self.taper),
        }
        for name, value in values.items():
            self.task[name] = value

    def _scales(self, synthesis: CardImages, group: int, most: float) -> tuple[float, float]:
        """What sums of pixels and of weights are multiplied by, that none can overflow.

        ``most`` is the largest weight of a pixel in a patch.
        """
        largest, of_guide = largest_of(self.arrays["image"], self.arrays["guide"])
        if not math.isfinite(largest + of_guide):
            raise ValueError("image contains NaN or infinity; pass finite numbers.")
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
        growth = self.owner.kept.growth * synthesis.kept.growth
        norm = math.sqrt(group * self.grid.features) * 1.01 * growth
        bits = _bits(weight) + _bits(norm) + _bits(largest)
        return _scale(bits), _scale(_bits(weight))

    def run(self, progress: Tell) -> None:
        """Go through all patches, band after band."""
        xp, address, grid, kind = self.card.xp, self.card.address, self.grid, self.owner.dtype
        bad = xp.full(1, _NO_PATCH, np.int64)
        self.task["first_bad"] = address(bad)
        self.task["grid"] = grid.described((0, 1))
        deciding = int(self.task["group"]), self.task["grid"].tobytes()
        scratch = _Scratch(self.owner, self._kernel(), self.task, kind, deciding)
        memory = self.owner.memory_for(self._useful() + 4 * scratch.useful)
        scratch.take(memory // 4)
        scratch.enter(self.task)
        n_starts = grid.starts[grid.band]
        together = self._together(memory - scratch.memory.nbytes)
        before: dict[str, Any] | None = None
        low = 0
        for start in range(0, n_starts, together):
            end = min(start + together, n_starts)
            rows = self._rows(start, end)
            sums = self._sums(rows, before, low)
            parts = ("image", "guide")
            slabs = {name: self.arrays[name].slab(grid, rows) for name in parts} | sums
            slabs["places"] = self.card.upload(grid.places(rows))
            task = self.task.copy()
            task["grid"], task["pixels"] = grid.described(rows), slabs["image"].size // self.planes
            task["first"], task["count"] = start * grid.per_start, (end - start) * grid.per_start
            for name, array in slabs.items():
                task[name] = address(array)
            self.card.launch(_FILE, scratch.kind, min(scratch.teams, int(task["count"])), task)
            # Later bands do not reach above their own slab.
            finished = rows[1] if end == n_starts else self._rows(end, end + 1)[0]
            self._settle(sums, rows[0], finished)
            before, low = sums, rows[0]
            if progress is not None:
                progress(end / n_starts)
        if int(bad[0]) != _NO_PATCH:
            raise ValueError(
                "what groups of patches were shrunk to is not finite; the image is too large for "
                f"{kind}, or noise={float(self.task['noise'])} too small."
            )

    def _kernel(self) -> str:
        """The kernel that shrinks; there is a faster one for the usual groups in usual windows."""
        name = f"shrink_{self.owner.dtype}"
        grid, group = self.grid, int(self.task["group"])
        if self.owner.dtype != np.float32 or group != 16 or grid.pixels >= 2**31:
            return name
        if [patch for _, patch, _, _ in grid.axes] != [8, 8]:
            return name
        rows, columns = (min(2 * window + 8, size) for size, _, _, window in grid.axes)
        return f"{name}_8" if (rows + 4) * columns <= _WINDOW_PIXELS else name

    def _rows(self, start: int, end: int) -> tuple[int, int]:
        return self.grid.rows(start, end - 1, self.grid.axes[self.grid.band][3])

    @property
    def _row_bytes(self) -> int:
        """Bytes that a slab takes for a row along the band axis."""
        size = self.grid.axes[self.grid.band][0]
        # Image, guide, numerator and denominator; sums and weights, twice where bands overlap.
        return self.planes * (self.grid.pixels // size) * (4 * self.owner.dtype.itemsize + 32)

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
            sums[name] = self.card.xp.zeros((self.planes, *self.grid.slab(rows)), np.int64)
            if before is not None:
                left = before[name][(*along, slice(rows[0] - low, None))]
                sums[name][(*along, slice(0, left.shape[1 + self.grid.band]))] = left
        return sums

    def _settle(self, sums: dict[str, Any], low: int, high: int) -> None:
        """Add finished sums, of the rows from ``low`` to ``high``, to what they stand for."""
        part = (slice(None),) * (1 + self.grid.band) + (slice(0, high - low),)
        for name, of, scale in (
            ("numerator", "sums", self.task["scale"]),
            ("denominator", "weights", self.task["weight_scale"]),
        ):
            slab = self.arrays[name].slab(self.grid, (low, high))
            slab += (sums[of][part] * (1.0 / float(scale))).astype(self.owner.dtype)
            self.arrays[name].put(self.grid, (low, high), slab)


def _scale(bits: int) -> float:
    """A power of two by which numbers of so many bits before the point become integers."""
    return 2.0 ** min(1000, _SUM_BITS - bits)


def _bits(x: float) -> int:
    """How many bits there are before the point; none of zero."""
    return math.frexp(x)[1] if x > 0 else 0
