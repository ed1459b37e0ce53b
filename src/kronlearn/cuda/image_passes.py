"""The pass that codes the overlapping patches of an image on a GPU and averages them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.device import Gpu, c_type, macros
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.slabs import Grid, SlabArray, grid_struct, pixel_offsets_on
from kronlearn.cuda.specialised import specialised_patch_atoms
from kronlearn.cuda.structs import CODING_TASK, SHAPE, new_struct, set_fields
from kronlearn.cuda.tables import GpuTables, gpu_tables

__all__ = ["CodingPass", "Progress", "coding_options"]

#: Called with the fraction that is done.
Progress = Callable[[float], object] | None

# More memory than this does not make passes faster; this much is free on any usable GPU.
_USEFUL_MEMORY, _SMALL_MEMORY = 1 << 30, 1 << 29


def coding_options(dtype: Any, atoms_per_side: int = 0, weighted: bool = False) -> tuple[str, ...]:
    """Options to compile code_patches.cu, with arithmetic of a dtype."""
    return macros(T=c_type(dtype), N=atoms_per_side, WEIGHTED=int(weighted))


@lru_cache(256)
def _scratch(gpu: Gpu, options: tuple[str, ...], shape: bytes, width: int) -> tuple[int, bool]:
    """The numbers of scratch per team, and whether they have to be in the memory of the GPU."""
    task = new_struct(gpu, CODING_TASK, shape=np.frombuffer(shape, SHAPE)[0], width=width)
    numbers = gpu.xp.zeros(2, np.int64)
    gpu.launch("code_patches.cu", "count_scratch", 1, task, numbers, options=options)
    size, far = gpu.download(numbers).tolist()
    return size, bool(far)


class PatchCoder:
    """The kernel that codes patches with arithmetic of one dtype, and its scratch.

    Parameters
    ----------
    gpu : Gpu
    tables : GpuTables
    dtype : dtype
    options : tuple of str
        From :func:`coding_options`.
    width : int
        The most nonzeros.
    """

    def __init__(
        self,
        gpu: Gpu,
        tables: GpuTables,
        dtype: np.dtype[Any],
        options: tuple[str, ...],
        width: int,
    ) -> None:
        self.gpu, self.options, self.dtype = gpu, options, dtype
        self.tables = tables.numbers[dtype]
        # Scratch that is not far is in the shared memory of the multiprocessors.
        self._size, self._far = _scratch(gpu, options, tables.shape.tobytes(), width)
        # Teams come in blocks of four.
        self._most_far_teams = -(-gpu.n_teams // 4) * 4

    @property
    def useful_bytes(self) -> int:
        """Bytes of scratch with which all teams that run at the same time can work."""
        return self._most_far_teams * self._size * self.dtype.itemsize if self._far else 0

    def allocate_scratch(self, memory: int) -> None:
        """Allocate the useful scratch, or ``memory`` bytes if that is less."""
        # More teams than run at the same time balance the load.
        self._teams = 16 * self.gpu.n_teams
        if self._far:
            affordable = memory // (self._size * self.dtype.itemsize) // 4 * 4
            self._teams = max(4, min(self._most_far_teams, affordable))
        size = self._size * self._teams if self._far else 0
        self.scratch = self.gpu.xp.empty(size, self.dtype)

    def code(self, task: NDArray[Any]) -> None:
        """Code the patches of a task."""
        set_fields(self.gpu, task, scratch=self.scratch, scratch_size=self._size)
        teams, arguments = min(self._teams, int(task["count"])), (task, self.tables)
        kernel = "code_patches.cu", "code_patches"
        self.gpu.launch(*kernel, teams, *arguments, options=self.options)


class CodingPass:
    """A pass that replaces every patch by its sparse approximation.

    Parameters
    ----------
    gpu : Gpu
    factors : sequence of matrices
    grid : Grid
    arrays : dict of SlabArray
        ``image``; ``known``, if pixels have weights; and either ``numerator`` and ``denominator``
        or, for an image on the GPU, ``average``.
    settings : dict
        Further fields of the struct CodingTask.
    """

    def __init__(
        self,
        gpu: Gpu,
        factors: Sequence[NDArray[Any]],
        grid: Grid,
        arrays: dict[str, SlabArray],
        settings: dict[str, Any],
    ) -> None:
        self.gpu, self.grid, self.arrays, self.settings = gpu, grid, arrays, settings
        self.tables, self.weighted = gpu_tables(gpu, factors), "known" in arrays
        self._specialised_atoms = specialised_patch_atoms(
            factors, len(grid.axes), settings["method"], self.weighted
        )

    def run(self, memory: int | None, progress: Progress) -> None:
        """Code all patches, piece by piece within ``memory`` bytes."""
        xp = self.gpu.xp
        coders = self._coders()
        if memory is None:
            memory = self._memory(self._useful() + 4 * sum(c.useful_bytes for c in coders))
        for coder in coders:
            coder.allocate_scratch(memory // 4)
        pieces = list(self.pieces(memory - sum(c.scratch.nbytes for c in coders)))
        average = None
        if "average" in self.arrays and len(pieces) > 1:
            # Overlapping pieces have to add up numerator and denominator.
            average = self.arrays.pop("average").array
            for name in ("numerator", "denominator"):
                self.arrays[name] = SlabArray(self.gpu, xp.zeros_like(average))
        most = max(stop - first for first, stop in pieces)
        values = xp.empty((most, self.grid.features), np.float32)
        weights = xp.empty(most, np.float32)
        task = new_struct(
            self.gpu,
            CODING_TASK,
            shape=self.tables.shape,
            values=values,
            weights=weights,
            **self.settings,
        )
        # Lists of the patches that one coder leaves to the next.
        lists = None if self.weighted else xp.empty((2, most), np.int32)
        for first, stop in pieces:
            self._run_piece(task, first, stop, coders, lists)
            if progress is not None:
                progress(stop / pieces[-1][1])
        if average is not None:
            xp.divide(self.arrays["numerator"].array, self.arrays["denominator"].array, average)

    def _coders(self) -> list[PatchCoder]:
        """The coders in single precision and, without weights, in double precision."""
        kinds: list[tuple[np.dtype[Any], int]] = [(np.dtype(np.float32), self._specialised_atoms)]
        if not self.weighted:
            kinds.append((np.dtype(np.float64), 0))
        options = [coding_options(*kind, self.weighted) for kind in kinds]
        self.gpu.compile_ahead(("code_patches.cu", each) for each in options)
        return [
            PatchCoder(self.gpu, self.tables, dtype, each, self.settings["width"])
            for each, (dtype, _) in zip(options, kinds, strict=True)
        ]

    def _memory(self, needed: int) -> int:
        """Bytes that may be taken if doing everything in one piece needs so many."""
        if needed <= _SMALL_MEMORY and current_limit() is None:
            # Asking the driver for its free memory takes as long as such a pass.
            return needed
        return min(self.gpu.free_memory() // 2, _USEFUL_MEMORY)

    @property
    def _patch_bytes(self) -> int:
        return 4 * (self.grid.features + 1) + 8

    @property
    def _n_arrays(self) -> int:
        """The number of arrays of the image's size, with the two sums that an average may need."""
        return len(self.arrays) + 2 * ("average" in self.arrays)

    def _useful(self) -> int:
        """Bytes with which all patches are coded in one piece."""
        slabs = 4 * self._n_arrays * self.grid.pixels
        return slabs + math.prod(self.grid.starts) * self._patch_bytes

    def pieces(self, memory: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of the patches that are coded together within so many bytes.

        A range has all patches that begin at some positions of the band axis, or a part of those
        at one position.
        """
        length, patch, stride, _ = self.grid.axes[self.grid.band]
        per_start, per_row = self.grid.per_start, self.grid.pixels // length
        patch_bytes = self._patch_bytes
        row_bytes = 4 * self._n_arrays * per_row
        left = memory - patch * row_bytes
        starts = (left + stride * row_bytes) // (per_start * patch_bytes + stride * row_bytes)
        n_starts = self.grid.starts[self.grid.band]
        together = min(max(1, starts), n_starts)
        # Even the patches of one position may be too many.
        part = per_start if starts >= 1 else min(per_start, max(1, left // patch_bytes))
        for start in range(0, n_starts, together):
            end = min(start + together, n_starts) * per_start
            step = part if together == 1 else end
            for first in range(start * per_start, end, step):
                yield first, min(first + step, end)

    def _run_piece(
        self, task: NDArray[Any], first: int, stop: int, coders: list[PatchCoder], lists: Any
    ) -> None:
        """Code patches ``first`` to ``stop``, excluded, and add them to the image."""
        per_start = self.grid.per_start
        rows = self.grid.rows(first // per_start, (stop - 1) // per_start)
        slabs = {name: array.slab(self.grid, rows) for name, array in self.arrays.items()}
        pixels = slabs["image"].size
        set_fields(
            self.gpu,
            task,
            grid=grid_struct(self.grid, rows),
            pixel_offsets=pixel_offsets_on(self.gpu, self.grid, rows),
            first=first,
            count=stop - first,
            pixels=pixels,
            **slabs,
        )
        self._code(task.copy(), coders, lists)
        teams = min(-(-pixels // 32), 16 * self.gpu.n_teams)
        self.gpu.launch("add_patches.cu", "add_to_image", teams, task)
        for name in ("numerator", "denominator"):
            if name in self.arrays:
                self.arrays[name].put(self.grid, rows, slabs[name])

    def _code(self, task: NDArray[Any], coders: list[PatchCoder], lists: Any) -> None:
        """Run one kernel after the other on the patches that the previous one has listed."""
        kernels = [coder.code for coder in coders]
        if self._specialised_atoms:
            kernels.insert(0, self._screen)
        counts: Any = None if lists is None else self.gpu.xp.zeros(2, np.int32)
        listed: tuple[Any, Any] = (None, None)
        for number, kernel in enumerate(kernels):
            is_last = number == len(kernels) - 1
            doubtful = (None, None) if is_last else (lists[number], counts[number:])
            set_fields(self.gpu, task, list=listed[0], list_count=listed[1])
            set_fields(self.gpu, task, doubtful=doubtful[0], doubtful_count=doubtful[1])
            kernel(task)
            listed = doubtful

    def _screen(self, task: NDArray[Any]) -> None:
        """Settle the patches that need no atom, and list the others."""
        teams = min(-(-int(task["count"]) // 32), 16 * self.gpu.n_teams)
        self.gpu.launch("screen_patches.cu", "screen", teams, task)
