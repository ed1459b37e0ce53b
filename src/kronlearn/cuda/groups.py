"""Groups of similar patches of an image, filtered on a GPU as the native code does it."""

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
from kronlearn.cuda.slabs import GRID, Axis, Grid, grid_struct, places_on, pointers
from kronlearn.cuda.tasks import struct

__all__ = ["GROUPS_FILE", "filter_groups_on"]

GROUPS_FILE = "groups.cu"
_THREADS = 256
# Matrices are worked on in tiles of so many rows and columns.
_SIDE = 4
# Bits of a fixed-point sum, without its sign and one to spare; and how many more bits a filtered
# pixel may have than the largest one of the image.
_SUM_BITS, _GROWTH_BITS = 62, 4
# Bytes on the GPU for a number of the image: itself, guide, noise and what is matched, two sums of
# eight bytes, and the average.
_BYTES = 36
# What kernels have in shared memory besides what a launch asks for.
_STATIC_SHARED = 2048
# More memory than this does not make a large image faster.
_USEFUL_MEMORY = 1 << 30

#: The struct GroupTask of the kernels.
_TASK = np.dtype(
    [
        ("grid", GRID),
        *((name, np.int32) for name in ("group", "size", "planes", "matched_planes", "candidates")),
        ("count", np.int64),
        ("pixels", np.int64),
        ("noise", np.float32),
        ("room", np.int32),
        ("weight_scale", np.float32),
        *pointers("image", "guide", "noises", "matched", "taper", "places", "largest"),
        *pointers("sums", "weights", "average"),
    ],
    align=True,
)


def filter_groups_on(
    gpu: Gpu,
    planes: Any,
    guide: Any,
    matched: Any,
    axes: Sequence[Axis],
    group: int,
    taper: NDArray[np.float32],
    noise: NDArray[np.float32],
    progress: Callable[[float], object] | None = None,
) -> Any:
    """The average of all patches, each filtered with the ``group`` patches most similar to it.

    Parameters
    ----------
    gpu : Gpu
    planes : float32 array (C, *sizes of the axes)
        Finite. On the GPU, or in the memory of the processor: such images are sent there in bands.
    guide : array like planes, or None
    matched : array (c, *sizes of the axes)
        Patches are compared by the sum of their distances on all of these.
    axes : sequence of (size, patch, stride, window)
        One for each axis of the image.
    group : int
    taper : array of the patch's shape
        Weights of the pixels of a patch, at most one.
    noise : array like planes, or of one number
        Energy of the noise in a patch, by the pixel where it begins, or in all.
    progress : callable, optional
        Called with the share that is done.

    Returns
    -------
    array like planes, where they lie
    """
    grid = Grid.of(axes)
    fits = noise.size == 1 or noise.shape == planes.shape
    if group < 1 or group > _THREADS or taper.size != grid.features or not fits:
        raise ValueError("groups do not fit the image")
    if grid.candidates >= 2**31:
        raise ValueError("On a GPU a window has at most 2³¹ − 1 patches.")
    gpu.compile_ahead([(GROUPS_FILE, ())])
    energy, noises = (float(noise[0]), None) if noise.size == 1 else (0.0, noise)
    if is_on_gpu(planes):
        largest = gpu.xp.maximum(planes.max(), -planes.min())
        result = _filtered(gpu, planes, guide, noises, matched, grid, group, taper, energy, largest)
        if progress is not None:
            progress(1.0)
        return result
    largest = gpu.upload(np.maximum(planes.max(), -planes.min()))
    result = np.empty_like(planes)
    bands = _bands(gpu, grid, len(planes))
    for rows, around in bands:
        before = (slice(None),) * (1 + grid.band)
        cut = (*before, slice(*around))
        image, guiding, noisy, compared = (
            None if a is None else _uploaded(gpu, a[cut]) for a in (planes, guide, noises, matched)
        )
        size, patch, stride, window = grid.axes[grid.band]
        own = list(grid.axes)
        own[grid.band] = (around[1] - around[0], patch, stride, window)
        band = Grid.of(own, grid.band)
        found = _filtered(gpu, image, guiding, noisy, compared, band, group, taper, energy, largest)
        inside = (*before, slice(rows[0] - around[0], rows[1] - around[0]))
        result[(*before, slice(*rows))] = gpu.download(found)[inside]
        if progress is not None:
            progress(rows[1] / size)
    return result


def _uploaded(gpu: Gpu, part: NDArray[np.float32]) -> Any:
    return gpu.upload(np.ascontiguousarray(part))


def _bands(gpu: Gpu, grid: Grid, planes: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Rows along the band axis that are filtered at a time, and what they depend on around them.

    Patches lie where they would in the whole image, so the result has the same bits.
    """
    size, patch, stride, window = grid.axes[grid.band]
    halo = -(-2 * (patch + window) // stride) * stride
    limit = current_limit()
    memory = min(gpu.free_memory() // 2 if limit is None else limit, _USEFUL_MEMORY)
    affordable = memory // (_BYTES * planes * (grid.pixels // size))
    height = max(stride, (affordable - 2 * halo) // stride * stride)
    return [
        (
            (start, min(start + height, size)),
            (max(0, start - halo), min(start + height + halo, size)),
        )
        for start in range(0, size, height)
    ]


def _filtered(
    gpu: Gpu,
    image: Any,
    guide: Any,
    noises: Any,
    matched: Any,
    grid: Grid,
    group: int,
    taper: NDArray[np.float32],
    noise: float,
    largest: Any,
) -> Any:
    """The same for arrays that lie on the GPU; ``largest`` is a magnitude that none exceeds."""
    planes, rows = len(image), (0, grid.axes[grid.band][0])
    if grid.pixels * max(planes, len(matched)) >= 2**31:
        raise ValueError("On a GPU the planes of an image have less than 2³¹ pixels.")
    weight_bits = _weight_bits(grid, group)
    size = -(-group // _SIDE) * _SIDE
    sums = gpu.xp.zeros((2, *image.shape), np.int64)
    average = gpu.xp.empty_like(image)
    held = _taper_on(gpu, taper.tobytes())
    task = struct(
        _TASK,
        grid=grid_struct(grid, rows),
        group=group,
        size=size,
        planes=planes,
        matched_planes=len(matched),
        candidates=grid.candidates,
        count=math.prod(grid.starts),
        pixels=grid.pixels,
        noise=noise,
        room=_SUM_BITS - weight_bits - _GROWTH_BITS,
        weight_scale=2.0 ** (_SUM_BITS - weight_bits),
        image=gpu.address(image),
        guide=0 if guide is None else gpu.address(guide),
        noises=0 if noises is None else gpu.address(noises),
        matched=gpu.address(matched),
        taper=gpu.address(held),
        places=gpu.address(places_on(gpu, grid, rows)),
        largest=gpu.address(largest),
        sums=gpu.address(sums[0]),
        weights=gpu.address(sums[1]),
        average=gpu.address(average),
    )
    shared = _shared_bytes(grid, group, size, len(matched), guide is not None)
    if shared > gpu.shared_memory - _STATIC_SHARED:
        raise ValueError(
            f"Windows of {grid.candidates} patches are too large for the shared memory of this GPU."
        )
    blocks = min(int(task["count"]), 16 * gpu.n_multiprocessors)
    gpu.launch_blocks(GROUPS_FILE, "filter_groups", blocks, _THREADS, task, shared=shared)
    blocks = min(-(-image.size // _THREADS), 16 * gpu.n_multiprocessors)
    gpu.launch_blocks(GROUPS_FILE, "average_groups", blocks, _THREADS, task)
    return average


def _shared_bytes(grid: Grid, group: int, size: int, matched_planes: int, guided: bool) -> int:
    """Shared memory of a block; the kernel takes these arrays in turn."""
    patches = -(-grid.features // _SIDE) * _SIDE * size
    arrays = [group, matched_planes * grid.features, max(grid.candidates, size**2)]
    arrays += [patches] * (2 if guided else 1) + [_SIDE * size] * 2 + [size] * 2 + [_THREADS // 32]
    return sum(-(-count // 4) * 16 for count in arrays)


def _weight_bits(grid: Grid, group: int) -> int:
    """Bits before the point of the sum of weights at a pixel."""
    near = [
        min(count, (2 * window + patch) // stride + 2)
        for count, (_, patch, stride, window) in zip(grid.starts, grid.axes, strict=True)
    ]
    # So many patches may be over a pixel, each weighted by the size of a group at most.
    return math.frexp(math.prod(near) * group**2)[1]


@lru_cache(16)
def _taper_on(gpu: Gpu, numbers: bytes) -> Any:
    """Weights on the GPU, the same array for the same bytes."""
    return gpu.upload(np.frombuffer(numbers, np.float32))
