"""Table IV of the paper: speedup for the patches of a hyperspectral image.

The paper's image, 614 × 1848 pixels and 220 bands of Indian Pines, is not available. A cube of that
size is made from the 145 × 145 × 200 one that is: tiled by mirrored copies, its bands interpolated,
and varied so that no patch is the repeat of another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.experiments import speedup
from kronlearn.experiments import speedup_runs as runs
from kronlearn.experiments.data import indian_pines
from kronlearn.experiments.report import Report
from kronlearn.experiments.timing import Progress, no_progress
from kronlearn.io.atomic import atomic_write

__all__ = ["LargeCube", "cube_shape", "n_patches", "read_cube", "read_patches", "run"]

#: Rows, columns and bands of the paper's cube.
SHAPE = (614, 1848, 220)

_M, _SPARSITY = 8, 16
_ITERATIONS, _QUICK_ITERATIONS, _QUICK_SCALE = 100, 5, 0.001

# Lightness varies by a few waves over the cube, each by this share, a few hundred pixels long.
_WAVES, _DEPTH, _LONGEST, _SHORTEST = 4, 0.04, 1000.0, 150.0
# Noise as a share of each band's standard deviation.
_NOISE = 0.02


def run(
    *,
    cube: Path | None = None,
    patches: Path | None = None,
    scale: float = 1.0,
    form: str = "npy",
    work: Path | None = None,
    methods: str = "general,orthonormal",
    iterations: int | None = None,
    only_report: bool = False,
    quick: bool = False,
    progress: Progress = no_progress,
    **how: Any,
) -> Report:
    """Measure what is missing of Table IV.

    ``cube`` is a small cube to be enlarged, to ``scale`` times the paper's number of patches, which
    are kept in a file of some ``form`` in the folder ``work`` and found there again; ``patches`` is
    a file to be used instead. ``how`` goes to :func:`~kronlearn.experiments.speedup.run`.
    """
    if only_report:
        return speedup.write("table4", how["output"])
    names = runs.scaling_methods(methods)
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS)
    with runs.work_folder(work) as folder:
        if patches is not None:
            given, samples = read_patches(patches)
        else:
            shape = cube_shape(_QUICK_SCALE if quick else scale)
            given, samples = _prepared(cube, shape, form, folder, progress), n_patches(shape)
        chosen = [runs.Setting(name, _M, _M, _SPARSITY, samples, iterations) for name in names]
        how |= {"quick": quick, "progress": progress}
        return speedup.run("table4", chosen, lambda at: given, **how)


def _prepared(
    cube: Path | None, shape: tuple[int, int, int], form: str, folder: Path, progress: Progress
) -> runs.Patches:
    """The patches of an enlarged cube, made in a folder unless they are there already."""
    small = indian_pines() if cube is None else read_cube(cube)
    sizes = ["x".join(map(str, each)) for each in (small.shape, shape)]
    checksum = zlib.crc32(np.ascontiguousarray(small).tobytes())
    file = folder / f"patches-{sizes[1]}-{checksum:08x}.{form}"
    if not file.exists():
        write_patches(LargeCube(small, shape), file, progress)
    name = "Indian Pines" if cube is None else cube.name
    data = f"{name}, {sizes[0]} enlarged to {sizes[1]}, {form}"
    return runs.Patches(file, data, streamed=True)


def cube_shape(scale: float) -> tuple[int, int, int]:
    """The shape of a cube with about this share of the paper's patches."""
    if not 0 < scale <= 1:
        raise ValueError(f"--scale {scale:g} is not above 0 and at most 1.")
    side = scale ** (1 / 3)
    rows, columns, bands = SHAPE
    return max(_M, round(rows * side)), max(_M, round(columns * side)), max(1, round(bands * side))


class LargeCube:
    """A cube of any size made from a small one, in strips of whole rows.

    Every pixel depends on its place alone, so strips that overlap agree.

    Parameters
    ----------
    small : array of shape (rows, columns, bands)
    shape : (rows, columns, bands) of the large one
    seed : int
        For the variation of lightness and the noise.
    """

    def __init__(self, small: NDArray[Any], shape: tuple[int, int, int], seed: int = 0) -> None:
        self.shape, self._seed = shape, seed
        self._small = _with_bands(small, shape[2])
        self._noise = (_NOISE * self._small.std(axis=(0, 1))).astype(np.float32)
        rng = np.random.default_rng(seed)
        angle = rng.uniform(0, 2 * np.pi, _WAVES)
        number = 2 * np.pi / rng.uniform(_SHORTEST, _LONGEST, _WAVES)
        self._down, self._across = number * np.cos(angle), number * np.sin(angle)
        self._phase = rng.uniform(0, 2 * np.pi, _WAVES)

    def row(self, i: int) -> NDArray[np.float32]:
        """Row i, shape (columns, bands)."""
        rows, columns = self._small.shape[:2]
        j = np.arange(self.shape[1])
        waves = np.cos(self._down * i + self._across * j[:, None] + self._phase)
        lightness = (1 + _DEPTH * waves.sum(axis=1, keepdims=True)).astype(np.float32)
        noise = np.random.default_rng([self._seed, i]).standard_normal(
            self.shape[1:], dtype=np.float32
        )
        return (
            self._small[_mirrored(i, rows), _mirrored(j, columns)] * lightness + noise * self._noise
        )

    def strips(self) -> Iterable[NDArray[np.float32]]:
        """The patches of 8 rows after 8 rows, shape (bands · across, 8, 8), by band and column.

        Patches do not overlap, but the last ones in a row or column begin so that they end at the
        border.
        """
        columns = np.add.outer(_starts(self.shape[1]), np.arange(_M))
        for first in _starts(self.shape[0]):
            strip = np.stack([self.row(first + k)[columns] for k in range(_M)])
            # (rows, across, columns, bands) becomes (bands, across, rows, columns).
            yield np.ascontiguousarray(strip.transpose(3, 1, 0, 2)).reshape(-1, _M, _M)

    @property
    def n_strips(self) -> int:
        """How many strips there are."""
        return len(_starts(self.shape[0]))


def n_patches(shape: tuple[int, int, int]) -> int:
    """How many patches a cube has; 3,913,140 for the paper's shape."""
    rows, columns, bands = shape
    return len(_starts(rows)) * len(_starts(columns)) * bands


def _starts(size: int) -> list[int]:
    return [min(k * _M, size - _M) for k in range(math.ceil(size / _M))]


def _mirrored(index: Any, size: int) -> Any:
    place = index % (2 * size)
    return np.minimum(place, 2 * size - 1 - place)


def _with_bands(cube: NDArray[Any], bands: int) -> NDArray[np.float32]:
    """The cube with its spectra interpolated linearly to a number of bands."""
    place = np.linspace(0, cube.shape[2] - 1, bands)
    before = place.astype(int)
    after = np.minimum(before + 1, cube.shape[2] - 1)
    share = (place - before).astype(np.float32)
    values = cube.astype(np.float32)
    return values[..., before] * (1 - share) + values[..., after] * share


def read_cube(file: Path) -> NDArray[Any]:
    """A small cube (rows, columns, bands) from a .npy file, or a .npz file with one array."""
    try:
        content = np.load(file, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            with content:
                (name,) = content.files
                content = content[name]
    except (ValueError, EOFError, zlib.error) as problem:
        raise ValueError(f"{file} cannot be read as a .npy or .npz file: {problem}") from None
    if content.ndim != 3 or content.size == 0 or content.dtype.kind not in "fiu":
        raise ValueError(
            f"{file} holds an array of shape {content.shape} and type {content.dtype}; a cube of "
            "numbers, (rows, columns, bands), is needed."
        )
    if not np.isfinite(content).all():
        raise ValueError(f"{file} holds NaN or infinity; give a cube of finite numbers.")
    return content


def write_patches(cube: LargeCube, file: Path, progress: Progress = no_progress) -> None:
    """Write the patches (N, 8, 8), float32, strip by strip: .npy, or .zarr for a Zarr folder."""
    write = _write_zarr if file.suffix == ".zarr" else _write_npy

    def told() -> Iterator[NDArray[np.float32]]:
        with progress("making the cube", cube.n_strips) as advance:
            for strip in cube.strips():
                yield strip
                advance()

    with atomic_write(file) as (place,):
        write(place, cube, told())


def _write_npy(place: Path, cube: LargeCube, strips: Iterable[NDArray[np.float32]]) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (n_patches(cube.shape), _M, _M)}
    with place.open("xb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for strip in strips:
            stream.write(strip.astype("<f4", copy=False).data)


def _write_zarr(place: Path, cube: LargeCube, strips: Iterable[NDArray[np.float32]]) -> None:
    try:
        import zarr
    except ImportError:
        raise ImportError("Zarr is not installed; pip install '.[io]' in the checkout.") from None

    total = n_patches(cube.shape)
    chunk = total // cube.n_strips
    # Noise does not compress; not trying to makes reading faster.
    stored = zarr.create_array(
        place, shape=(total, _M, _M), chunks=(chunk, _M, _M), dtype="float32", compressors=None
    )
    for number, strip in enumerate(strips):
        stored[number * chunk : (number + 1) * chunk] = strip


def read_patches(file: Path) -> tuple[runs.Patches, int]:
    """Patches (N, 8, 8) that are in a file already, and N."""
    try:
        stored = runs.stored_samples(file)
    except (ValueError, EOFError) as problem:
        raise ValueError(f"{file} cannot be read as a .npy file: {problem}") from None
    if stored.ndim != 3 or stored.shape[1:] != (_M, _M) or stored.dtype != np.float32:
        raise ValueError(
            f"{file} holds an array of shape {stored.shape} and type {stored.dtype}; patches "
            f"(N, {_M}, {_M}) in float32 are needed."
        )
    return runs.Patches(file, file.name, streamed=True), stored.shape[0]
