"""The pass over the overlapping patches of an image that codes them on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import c_type, defined
from kronlearn.cuda.slabs import GRID, Grid, PlacedArray, places_on, pointers, sums_instead
from kronlearn.cuda.tables import SHAPE
from kronlearn.cuda.tasks import METHODS

if TYPE_CHECKING:
    from kronlearn.cuda.images import GpuImages

__all__ = ["Coding", "Scratch", "Tell", "coding_options"]

#: Called with the share that is done.
Tell = Callable[[float], object] | None


#: The struct CodingTask of the kernels.
_CODING = np.dtype(
    [
        ("shape", SHAPE),
        ("grid", GRID),
        *((name, np.int32) for name in ("method", "width", "favour_sparse")),
        ("tol", np.float64),
        ("first", np.int64),
        ("count", np.int64),
        *pointers("values", "weights"),
        ("pixels", np.int64),
        *pointers("image", "known", "places", "numerator", "denominator", "average"),
        *pointers("list", "list_count", "doubtful", "doubtful_count", "scratch"),
        ("scratch_size", np.int64),
    ],
    align=True,
)


def coding_options(
    arithmetic: Any, usual_atoms: int = 0, weighted: bool = False
) -> tuple[str, ...]:
    """What code_patches.cu is compiled with; the arithmetic is of a dtype."""
    return defined(T=c_type(arithmetic), N=usual_atoms, WEIGHTED=int(weighted))


class Scratch:
    """Scratch for a kernel, and how many teams may run it.

    Parameters
    ----------
    owner : GpuImages
    file : str
        What the kernel is in; another one there counts the scratch.
    options : tuple of str
        What the file is compiled with.
    task : struct
        Of the kernel.
    dtype : dtype
        Of the arithmetic.
    deciding : tuple
        What of the task decides the size, besides the dictionary.
    """

    def __init__(
        self,
        owner: GpuImages,
        file: str,
        options: tuple[str, ...],
        task: NDArray[Any],
        dtype: Any,
        deciding: tuple[Any, ...],
    ) -> None:
        self.gpu, self.file, self.options = owner.gpu, file, options
        self.dtype = np.dtype(dtype)
        known, key = owner.tables.scratch, (file, options, deciding)
        if key not in known:
            numbers = self.gpu.xp.zeros(2, np.int64)
            self.launch("count_scratch", 1, task, numbers)
            size, far = self.gpu.download(numbers).tolist()
            known[key] = size, bool(far)
        self.size, self.far = known[key]

    def launch(self, kernel: str, n_teams: int, *arguments: Any) -> None:
        """Run a kernel of the file."""
        self.gpu.launch(self.file, kernel, n_teams, *arguments, options=self.options)

    @property
    def useful(self) -> int:
        """Bytes of the GPU's memory that are of use."""
        return -(-self.gpu.n_teams // 4) * 4 * self.size * self.dtype.itemsize if self.far else 0

    def take(self, memory: int) -> None:
        """Take it, up to so many bytes of the GPU's memory."""
        # Multiprocessors have it. More teams than run at a time even out what they have to do.
        self.teams = 16 * self.gpu.n_teams
        if self.far:
            # Teams come in blocks of four.
            affordable = memory // (self.size * self.dtype.itemsize) // 4 * 4
            self.teams = max(4, min(-(-self.gpu.n_teams // 4) * 4, affordable))
        self.memory = self.gpu.xp.empty(self.size * self.teams if self.far else 0, self.dtype)

    def enter(self, task: NDArray[Any]) -> None:
        """Enter it in a task."""
        task["scratch"], task["scratch_size"] = self.gpu.address(self.memory), self.size


class Coding:
    """A pass in which every patch becomes its sparse approximation.

    ``arrays`` are the image, if there are weights known, and numerator and denominator or, for an
    image on the GPU, the average; ``settings`` go to the kernels as they are.
    """

    def __init__(
        self,
        owner: GpuImages,
        grid: Grid,
        arrays: dict[str, PlacedArray],
        settings: dict[str, Any],
    ) -> None:
        self.owner, self.gpu, self.grid, self.arrays = owner, owner.gpu, grid, arrays
        self.settings = settings
        self.weighted = "known" in arrays

    def run(self, progress: Tell) -> None:
        """Go through all patches, some at a time."""
        xp = self.gpu.xp
        task = np.zeros((), _CODING)
        task["shape"], task["grid"] = self.owner.tables.shape, self.grid.described((0, 1))
        for name, value in self.settings.items():
            task[name] = value
        kinds: list[tuple[np.dtype[Any], int]] = [(np.dtype(np.float32), self._usual_atoms())]
        if not self.weighted:
            kinds.append((np.dtype(np.float64), 0))
        files = [("code_patches.cu", coding_options(*kind, self.weighted)) for kind in kinds]
        self.gpu.compile_ahead(files)
        coders = [
            Scratch(self.owner, *file, task, kind, (self.settings["width"],))
            for file, (kind, _) in zip(files, kinds, strict=True)
        ]
        memory = self.owner.memory_for(self._useful() + 4 * sum(c.useful for c in coders))
        for coder in coders:
            coder.take(memory // 4)
        pieces = list(self.pieces(memory - sum(c.memory.nbytes for c in coders)))
        average = None
        if "average" in self.arrays and len(pieces) > 1:
            average = sums_instead(self.arrays)
        most = max(stop - first for first, stop in pieces)
        room = {
            "values": xp.empty((most, self.grid.features), np.float32),
            "weights": xp.empty(most, np.float32),
        }
        for name, array in room.items():
            task[name] = self.gpu.address(array)
        # Patches that a coder leaves to the next one.
        left = None if self.weighted else xp.empty((2, most), np.int32)
        for first, stop in pieces:
            self._run_piece(task, first, stop, coders, left)
            if progress is not None:
                progress(stop / pieces[-1][1])
        if average is not None:
            xp.divide(self.arrays["numerator"].array, self.arrays["denominator"].array, average)

    def _usual_atoms(self) -> int:
        """Atoms of a side, where patches and atoms have a shape that there is a faster kernel for.

        Zero for any other shape.
        """
        pursues = self.settings["method"] != METHODS["threshold"]
        if not self.weighted and pursues and len(self.owner.factors) == len(self.grid.axes) == 2:
            shapes = {factor.shape for factor in self.owner.factors}
            if shapes in ({(8, 8)}, {(8, 16)}):
                return int(self.owner.factors[0].shape[1])
        return 0

    @property
    def _patch_bytes(self) -> int:
        return 4 * (self.grid.features + 1) + 8

    @property
    def _n_arrays(self) -> int:
        """Arrays of the image's size; an average may need sums."""
        return len(self.arrays) + 2 * ("average" in self.arrays)

    def _useful(self) -> int:
        """Bytes with which all patches are coded together."""
        slabs = 4 * self._n_arrays * self.grid.pixels
        return slabs + math.prod(self.grid.starts) * self._patch_bytes

    def pieces(self, memory: int) -> Iterator[tuple[int, int]]:
        """Patches that are coded together, from one number to another, in so much memory.

        These are all that begin at several places of the band axis, or a part of those at one.
        """
        length, patch, stride, _ = self.grid.axes[self.grid.band]
        per_start, per_row = self.grid.per_start, self.grid.pixels // length
        patch_bytes = self._patch_bytes
        row_bytes = 4 * self._n_arrays * per_row
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

    def _run_piece(
        self, task: NDArray[Any], first: int, stop: int, coders: list[Scratch], left: Any
    ) -> None:
        per_start = self.grid.per_start
        rows = self.grid.rows(first // per_start, (stop - 1) // per_start)
        slabs = {name: array.slab(self.grid, rows) for name, array in self.arrays.items()}
        places = places_on(self.gpu, self.grid, rows)
        task["grid"], task["places"] = self.grid.described(rows), self.gpu.address(places)
        task["first"], task["count"], task["pixels"] = first, stop - first, slabs["image"].size
        for name, slab in slabs.items():
            task[name] = self.gpu.address(slab)
        self._code(task, coders, left)
        teams = min(-(-slabs["image"].size // 32), 16 * self.gpu.n_teams)
        self.gpu.launch("add_patches.cu", "add_to_image", teams, task)
        for name in ("numerator", "denominator"):
            if name in self.arrays:
                self.arrays[name].put(self.grid, rows, slabs[name])

    def _code(self, task: NDArray[Any], coders: list[Scratch], left: Any) -> None:
        """Launch the coders in turn: each has what the one before left, the last leaves nothing."""
        count, own = int(task["count"]), task.copy()
        screens = self._usual_atoms() > 0
        lists: list[tuple[int, int]] = []
        if left is not None:
            counts = self.gpu.xp.zeros(2, np.int32)
            starts = [self.gpu.address(array) for array in (left, counts)]
            lists = [(starts[0] + 4 * k * left.shape[1], starts[1] + 4 * k) for k in range(2)]
            # Without a screen there is one list less.
            lists = lists if screens else lists[:1]
        if screens:
            own["doubtful"], own["doubtful_count"] = lists[0]
            teams = min(-(-count // 32), 16 * self.gpu.n_teams)
            self.gpu.launch("screen_patches.cu", "screen", teams, own)
        for number, coder in enumerate(coders, start=int(screens)):
            coder.enter(own)
            own["list"], own["list_count"] = lists[number - 1] if number else (0, 0)
            own["doubtful"], own["doubtful_count"] = (lists[number:] or [(0, 0)])[0]
            tables = self.owner.tables.numbers[coder.dtype]
            coder.launch("code_patches", min(coder.teams, count), own, tables)
