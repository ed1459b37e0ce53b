"""The pass over the overlapping patches of an image that codes them on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu, c_type, defined
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.slabs import (
    GRID,
    Grid,
    PlacedArray,
    grid_struct,
    places_on,
    pointers,
    sums_instead,
)
from kronlearn.cuda.tables import SHAPE, gpu_tables
from kronlearn.cuda.tasks import METHODS, struct

__all__ = ["CodingPass", "Tell", "coding_options"]

#: Called with the share that is done.
Tell = Callable[[float], object] | None

# More memory than this does not make passes faster; this much is free on any GPU that is of use.
_USEFUL_MEMORY, _SMALL_MEMORY = 1 << 30, 1 << 29

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


@lru_cache(256)
def _scratch(gpu: Gpu, options: tuple[str, ...], shape: bytes, width: int) -> tuple[int, bool]:
    """Numbers that a team needs for itself, and whether the memory of the GPU has to have them."""
    task = struct(_CODING, shape=np.frombuffer(shape, SHAPE)[0], width=width)
    numbers = gpu.xp.zeros(2, np.int64)
    gpu.launch("code_patches.cu", "count_scratch", 1, task, numbers, options=options)
    size, far = gpu.download(numbers).tolist()
    return size, bool(far)


class PatchCoder:
    """The kernel that codes patches, compiled for a type of arithmetic, and its scratch.

    Parameters
    ----------
    gpu : Gpu
    tables : GpuTables
    dtype : dtype
        Of the arithmetic.
    options : tuple of str
        What the kernel is compiled with.
    width : int
        The most nonzeros.
    """

    def __init__(
        self, gpu: Gpu, tables: Any, dtype: np.dtype[Any], options: tuple[str, ...], width: int
    ) -> None:
        self.gpu, self.options, self.dtype = gpu, options, dtype
        self.tables = tables.numbers[dtype]
        self.size, self.far = _scratch(gpu, options, tables.shape.tobytes(), width)

    @property
    def useful(self) -> int:
        """Bytes of the GPU's memory that are of use."""
        return -(-self.gpu.n_teams // 4) * 4 * self.size * self.dtype.itemsize if self.far else 0

    def take_scratch(self, memory: int) -> None:
        """Take what is of use, up to so many bytes of the GPU's memory."""
        # Multiprocessors have it. More teams than run at a time even out what they have to do.
        self.teams = 16 * self.gpu.n_teams
        if self.far:
            # Teams come in blocks of four.
            affordable = memory // (self.size * self.dtype.itemsize) // 4 * 4
            self.teams = max(4, min(-(-self.gpu.n_teams // 4) * 4, affordable))
        self.scratch = self.gpu.xp.empty(self.size * self.teams if self.far else 0, self.dtype)

    def code(self, task: NDArray[Any]) -> None:
        """Code the patches of a task."""
        task["scratch"], task["scratch_size"] = self.gpu.address(self.scratch), self.size
        teams, arguments = min(self.teams, int(task["count"])), (task, self.tables)
        kernel = "code_patches.cu", "code_patches"
        self.gpu.launch(*kernel, teams, *arguments, options=self.options)


class CodingPass:
    """A pass in which every patch becomes its sparse approximation.

    ``arrays`` are the image, if there are weights known, and numerator and denominator or, for an
    image on the GPU, the average; ``settings`` go to the kernels as they are.
    """

    def __init__(
        self,
        gpu: Gpu,
        factors: Sequence[NDArray[Any]],
        grid: Grid,
        arrays: dict[str, PlacedArray],
        settings: dict[str, Any],
    ) -> None:
        self.gpu, self.grid, self.arrays, self.settings = gpu, grid, arrays, settings
        self.factors, self.tables = factors, gpu_tables(gpu, factors)
        self.weighted = "known" in arrays

    def run(self, memory: int | None, progress: Tell) -> None:
        """Go through all patches, some at a time."""
        xp = self.gpu.xp
        task = struct(_CODING, shape=self.tables.shape, **self.settings)
        kinds: list[tuple[np.dtype[Any], int]] = [(np.dtype(np.float32), self._usual_atoms())]
        if not self.weighted:
            kinds.append((np.dtype(np.float64), 0))
        options = [coding_options(*kind, self.weighted) for kind in kinds]
        self.gpu.compile_ahead(("code_patches.cu", each) for each in options)
        coders = [
            PatchCoder(self.gpu, self.tables, kind, each, self.settings["width"])
            for each, (kind, _) in zip(options, kinds, strict=True)
        ]
        if memory is None:
            memory = self._memory(self._useful() + 4 * sum(c.useful for c in coders))
        for coder in coders:
            coder.take_scratch(memory // 4)
        pieces = list(self.pieces(memory - sum(c.scratch.nbytes for c in coders)))
        average = None
        if "average" in self.arrays and len(pieces) > 1:
            average = sums_instead(self.arrays)
        most = max(stop - first for first, stop in pieces)
        values = xp.empty((most, self.grid.features), np.float32)
        weights = xp.empty(most, np.float32)
        task["values"], task["weights"] = map(self.gpu.address, (values, weights))
        # Patches that a coder leaves to the next one.
        left = None if self.weighted else xp.empty((2, most), np.int32)
        for first, stop in pieces:
            self._run_piece(task, first, stop, coders, left)
            if progress is not None:
                progress(stop / pieces[-1][1])
        if average is not None:
            xp.divide(self.arrays["numerator"].array, self.arrays["denominator"].array, average)

    def _memory(self, needed: int) -> int:
        """Bytes that may be taken where so many are needed to do everything at once."""
        if needed <= _SMALL_MEMORY and current_limit() is None:
            # To ask how much is free takes as long as such a pass.
            return needed
        return min(self.gpu.free_memory() // 2, _USEFUL_MEMORY)

    def _usual_atoms(self) -> int:
        """Atoms of a side, where patches and atoms have a shape that there is a faster kernel for.

        Zero for any other shape.
        """
        pursues = self.settings["method"] != METHODS["threshold"]
        if not self.weighted and pursues and len(self.factors) == len(self.grid.axes) == 2:
            shapes = {factor.shape for factor in self.factors}
            if shapes in ({(8, 8)}, {(8, 16)}):
                return int(self.factors[0].shape[1])
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
        self, task: NDArray[Any], first: int, stop: int, coders: list[PatchCoder], left: Any
    ) -> None:
        per_start = self.grid.per_start
        rows = self.grid.rows(first // per_start, (stop - 1) // per_start)
        slabs = {name: array.slab(self.grid, rows) for name, array in self.arrays.items()}
        places = places_on(self.gpu, self.grid, rows)
        task["grid"], task["places"] = grid_struct(self.grid, rows), self.gpu.address(places)
        task["first"], task["count"], task["pixels"] = first, stop - first, slabs["image"].size
        for name, slab in slabs.items():
            task[name] = self.gpu.address(slab)
        self._code(task, coders, left)
        teams = min(-(-slabs["image"].size // 32), 16 * self.gpu.n_teams)
        self.gpu.launch("add_patches.cu", "add_to_image", teams, task)
        for name in ("numerator", "denominator"):
            if name in self.arrays:
                self.arrays[name].put(self.grid, rows, slabs[name])

    def _code(self, task: NDArray[Any], coders: list[PatchCoder], left: Any) -> None:
        """Launch the coders in turn: each has what the one before left, the last leaves nothing."""
        count, own = int(task["count"]), task.copy()
        screens = self._usual_atoms() > 0
        lists: list[tuple[int, int]] = []
        if left is not None:
            counts = self.gpu.xp.zeros(2, np.int32)
            starts = [self.gpu.address(array) for array in (left, counts)]
            lists = [(starts[0] + 4 * k * left.shape[1], starts[1] + 4 * k) for k in range(2)]
        if screens:
            own["doubtful"], own["doubtful_count"] = lists[0]
            teams = min(-(-count // 32), 16 * self.gpu.n_teams)
            self.gpu.launch("screen_patches.cu", "screen", teams, own)
        for number, coder in enumerate(coders, start=int(screens)):
            own["list"], own["list_count"] = lists[number - 1] if number else (0, 0)
            own["doubtful"], own["doubtful_count"] = (lists[number:] or [(0, 0)])[0]
            coder.code(own)
