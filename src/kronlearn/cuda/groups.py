"""Groups of similar patches of an image, filtered on a GPU.

The results equal those of the native code (``native/images/ridge.hpp``) up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.cuda.device import Gpu
from kronlearn.cuda.memory import current_limit
from kronlearn.cuda.slabs import Axis, Grid, grid_struct, pixel_offsets_on
from kronlearn.cuda.structs import GROUP_TASK, new_struct

__all__ = ["GROUPS_FILE", "filter_groups_on"]

GROUPS_FILE = "groups.cu"
_THREADS = 256
# Rows and columns of the tiles in which the kernel processes matrices.
_TILE = 4
# Bits of a fixed-point sum without its sign and a spare one, and the bits by which a filtered pixel
# may exceed the largest pixel of the image.
_SUM_BITS, _GROWTH_BITS = 62, 4
# Bytes on the GPU per pixel: image, guide, noise, matched image, two sums of eight bytes, average.
_BYTES_PER_PIXEL = 36
# Bytes of static shared memory of the kernel.
_STATIC_SHARED = 2048
# More memory than this does not make a large image faster.
_USEFUL_MEMORY = 1 << 30

#: The first row and the one after the last, along the band axis.
_Rows = tuple[int, int]


def filter_groups_on(
    gpu: Gpu,
    planes: Any,
    guide: Any,
    matched: Any,
    axes: Sequence[Axis],
    group: int,
    taper: NDArray[np.float32],
    noise: NDArray[np.float32],
    over_pixels: bool = False,
    progress: Callable[[float], object] | None = None,
) -> Any:
    """The average of all patches, each filtered with the ``group`` patches most similar to it.

    Parameters
    ----------
    gpu : Gpu
    planes : float32 array (C, *sizes of the axes)
        Finite; on the GPU, or in the memory of the processor, from where it is copied in bands.
    guide : array like planes, or None
    matched : array (c, *sizes of the axes)
        Patches are compared by the sum of their distances on these planes.
    axes : sequence of (size, patch, stride, window)
        One for each axis of the image.
    group : int
    taper : array of the patch's shape
        Weights of the pixels of a patch, at most one.
    noise : array like planes, or of one number
        Energy of the noise in a patch, for each pixel where a patch may begin, or for all patches.
    over_pixels : bool, default False
        Whether to average this with the result of combining the pixels of each patch, for which
        there must be a guide.
    progress : callable, optional
        Called with the fraction that is done.

    Returns
    -------
    array like planes, in the same place
    """
    grid = Grid.of(axes)
    noise_fits = noise.size == 1 or noise.shape == planes.shape
    most = max(group, grid.features if over_pixels else 0)
    guide_fits = guide is not None or not over_pixels
    if not (1 <= most <= _THREADS and taper.size == grid.features and noise_fits and guide_fits):
        raise ValueError("groups do not fit the image")
    if grid.candidates >= 2**31:
        raise ValueError("On a GPU a window has at most 2³¹ − 1 patches.")
    gpu.compile_ahead([(GROUPS_FILE, ())])
    noises = None if noise.size == 1 else noise
    common = {
        "group": group,
        "taper": _taper_on(gpu, taper.tobytes()),
        "noise": float(noise[0]) if noises is None else 0.0,
        "over_pixels": over_pixels,
    }
    if is_on_gpu(planes):
        largest = gpu.xp.maximum(planes.max(), -planes.min())
        result = _filtered(gpu, grid, (planes, guide, matched, noises), largest=largest, **common)
        if progress is not None:
            progress(1.0)
        return result
    largest = gpu.upload(np.maximum(planes.max(), -planes.min()))
    result = np.empty_like(planes)
    for rows, surrounding in _bands(gpu, grid, len(planes)):
        part = [
            None if array is None else _uploaded_rows(gpu, grid, array, surrounding)
            for array in (planes, guide, matched, noises)
        ]
        band = _band_grid(grid, surrounding)
        filtered = gpu.download(_filtered(gpu, band, part, largest=largest, **common))
        inside = (rows[0] - surrounding[0], rows[1] - surrounding[0])
        result[_band_index(grid, rows)] = filtered[_band_index(grid, inside)]
        if progress is not None:
            progress(rows[1] / grid.axes[grid.band][0])
    return result


def _bands(gpu: Gpu, grid: Grid, planes: int) -> list[tuple[_Rows, _Rows]]:
    """The rows that are filtered together, and these with all surrounding rows that matter.

    Patches are at the same positions as in the whole image, so the result has the same bits.
    """
    size, patch, stride, window = grid.axes[grid.band]
    halo = -(-2 * (patch + window) // stride) * stride
    limit = current_limit()
    memory = min(gpu.free_memory() // 2 if limit is None else limit, _USEFUL_MEMORY)
    affordable = memory // (_BYTES_PER_PIXEL * planes * (grid.pixels // size))
    height = max(stride, (affordable - 2 * halo) // stride * stride)
    return [
        (
            (start, min(start + height, size)),
            (max(0, start - halo), min(start + height + halo, size)),
        )
        for start in range(0, size, height)
    ]


def _band_index(grid: Grid, rows: _Rows) -> tuple[slice, ...]:
    """The index of rows in an array (planes, *sizes of the axes)."""
    return (*[slice(None)] * (1 + grid.band), slice(*rows))


def _band_grid(grid: Grid, rows: _Rows) -> Grid:
    """The grid of these rows alone."""
    axes = list(grid.axes)
    axes[grid.band] = (rows[1] - rows[0], *grid.axes[grid.band][1:])
    return Grid.of(axes, grid.band)


def _uploaded_rows(gpu: Gpu, grid: Grid, array: NDArray[np.float32], rows: _Rows) -> Any:
    return gpu.upload(np.ascontiguousarray(array[_band_index(grid, rows)]))


def _filtered(
    gpu: Gpu,
    grid: Grid,
    arrays: Sequence[Any],
    group: int,
    taper: Any,
    noise: float,
    over_pixels: bool,
    largest: Any,
) -> Any:
    """The average of the filtered patches, for arrays on the GPU.

    ``arrays`` are planes, guide, matched planes and noises; ``largest`` is a magnitude that no
    pixel exceeds.
    """
    image, guide, matched, noises = arrays
    planes, rows = len(image), (0, grid.axes[grid.band][0])
    if grid.pixels * max(planes, len(matched)) >= 2**31:
        raise ValueError("On a GPU the planes of an image have less than 2³¹ pixels.")
    # Matrices have their rows and columns rounded up to whole tiles.
    sides = [-(-length // _TILE) * _TILE for length in (group, grid.features)]
    matrix, square = math.prod(sides), (max(sides) if over_pixels else sides[0]) ** 2
    shared = _shared_bytes(grid, group, matrix, square, len(matched), guide is not None)
    if shared > gpu.shared_memory - _STATIC_SHARED:
        raise ValueError(
            f"Windows of {grid.candidates} patches are too large for the shared memory of this GPU."
        )
    weight_bits = _weight_bits(grid, group)
    sums = gpu.xp.zeros((2, *image.shape), np.int64)
    average = gpu.xp.empty_like(image)
    task = new_struct(
        gpu,
        GROUP_TASK,
        grid=grid_struct(grid, rows),
        group=group,
        over_pixels=over_pixels,
        matrix=matrix,
        square=square,
        planes=planes,
        matched_planes=len(matched),
        candidates=grid.candidates,
        count=math.prod(grid.starts),
        pixels=grid.pixels,
        noise=noise,
        room=_SUM_BITS - weight_bits - _GROWTH_BITS,
        weight_scale=2.0 ** (_SUM_BITS - weight_bits),
        image=image,
        guide=guide,
        noises=noises,
        matched=matched,
        taper=taper,
        pixel_offsets=pixel_offsets_on(gpu, grid, rows),
        largest=largest,
        sums=sums[0],
        weights=sums[1],
        average=average,
    )
    blocks = min(int(task["count"]), 16 * gpu.n_multiprocessors)
    gpu.launch_blocks(GROUPS_FILE, "filter_groups", blocks, _THREADS, task, shared=shared)
    blocks = min(-(-image.size // _THREADS), 16 * gpu.n_multiprocessors)
    gpu.launch_blocks(GROUPS_FILE, "average_groups", blocks, _THREADS, task)
    return average


def _shared_bytes(
    grid: Grid, group: int, matrix: int, square: int, matched_planes: int, guided: bool
) -> int:
    """Dynamic shared memory of a block, for arrays in the order in which the kernel takes them."""
    longest = max(group, grid.features) + _TILE
    arrays = [group, matched_planes * grid.features, max(grid.candidates, square)]
    arrays += [matrix] * (2 if guided else 1) + [_TILE * longest] * 2 + [longest] * 2
    return sum(-(-count // 4) * 16 for count in [*arrays, group, _THREADS // 32])


def _weight_bits(grid: Grid, group: int) -> int:
    """Bits before the point of the sum of weights at a pixel."""
    # The most patches, in all groups, that may cover a pixel along each axis.
    near = [
        min(count, (2 * window + patch) // stride + 2)
        for count, (_, patch, stride, window) in zip(grid.starts, grid.axes, strict=True)
    ]
    # Each of them is weighted by at most the size of a group.
    return math.frexp(math.prod(near) * group**2)[1]


@lru_cache(16)
def _taper_on(gpu: Gpu, numbers: bytes) -> Any:
    """The weights of a patch's pixels on the GPU, cached by their bytes."""
    return gpu.upload(np.frombuffer(numbers, np.float32))
