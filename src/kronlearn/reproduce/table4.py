"""Table IV of the paper: speedup for the patches of a hyperspectral image.

The paper's image, 614 × 1848 pixels and 220 bands of Indian Pines, is not to be had. A cube of that
size is made from the 145 × 145 × 200 one that is: tiled by mirrored copies, its bands interpolated,
and varied so that no patch is the repeat of another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.io.atomic import atomic_write
from kronlearn.reproduce.measurement import stored_samples
from kronlearn.reproduce.scaling import Patches, Setting

__all__ = [
    "FORMATS",
    "QUICK_SCALE",
    "SHAPE",
    "Cube",
    "LargeCube",
    "cube_shape",
    "indian_pines",
    "n_patches",
    "read_cube",
    "read_patches",
    "settings",
    "write_patches",
]

#: Rows, columns and bands of the paper's cube.
SHAPE = (614, 1848, 220)

#: Files that patches can be kept in.
FORMATS = ("npy", "zarr")

#: Of a quick run.
QUICK_SCALE = 0.001

_M = 8
_SPARSITY = 16
_ITERATIONS, _QUICK_ITERATIONS = 100, 5

# Lightness varies by a few waves over the cube, each by this share, a few hundred pixels long.
_WAVES, _DEPTH, _LONGEST, _SHORTEST = 4, 0.04, 1000.0, 150.0
# Noise as a share of each band's standard deviation.
_NOISE = 0.02


def settings(
    methods: Iterable[str], samples: int, iterations: int | None = None, quick: bool = False
) -> list[Setting]:
    """The settings of the table: m = n = 8, s = 16."""
    iterations = iterations or (_QUICK_ITERATIONS if quick else _ITERATIONS)
    return [Setting(method, _M, _M, _SPARSITY, samples, iterations) for method in methods]


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


def indian_pines() -> NDArray[Any]:
    """Indian Pines, shape (145, 145, 200), from the tensorly package."""
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError:
        raise ImportError(
            "The Indian Pines cube comes with tensorly; pip install 'kronlearn[bench]', or give "
            "another cube, --cube FILE.npy."
        ) from None
    return np.asarray(load_indian_pines().tensor)


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


def write_patches(
    cube: LargeCube, file: Path, on_share: Callable[[float], None] = lambda share: None
) -> None:
    """Write the patches (N, 8, 8), float32, strip by strip: .npy, or .zarr for a Zarr folder.

    ``on_share`` is called with the share that is written.
    """
    write = _write_zarr if file.suffix == ".zarr" else _write_npy

    def told() -> Iterator[NDArray[np.float32]]:
        for number, strip in enumerate(cube.strips(), start=1):
            yield strip
            on_share(number / cube.n_strips)

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
        raise ImportError("Zarr is not installed; pip install 'kronlearn[io]'.") from None

    total = n_patches(cube.shape)
    chunk = total // cube.n_strips
    # Noise does not compress; not trying to makes reading faster.
    stored = zarr.create_array(
        place, shape=(total, _M, _M), chunks=(chunk, _M, _M), dtype="float32", compressors=None
    )
    for number, strip in enumerate(strips):
        stored[number * chunk : (number + 1) * chunk] = strip


def read_patches(file: Path) -> tuple[Patches, int]:
    """Patches (N, 8, 8) that are in a file already, and N."""
    try:
        stored = stored_samples(file)
    except (ValueError, EOFError) as problem:
        raise ValueError(f"{file} cannot be read as a .npy file: {problem}") from None
    if stored.ndim != 3 or stored.shape[1:] != (_M, _M) or stored.dtype != np.float32:
        raise ValueError(
            f"{file} holds an array of shape {stored.shape} and type {stored.dtype}; patches "
            f"(N, {_M}, {_M}) in float32 are needed."
        )
    return Patches(file, file.name, streamed=True), stored.shape[0]


@dataclass(frozen=True)
class Cube:
    """Where the patches come from: a small cube in a file, enlarged, or patches in a file.

    Without either it is Indian Pines. ``scale`` is the share of the paper's number of patches.
    """

    file: Path | None = None
    patches: Path | None = None
    scale: float = 1.0
    format: str = "npy"

    def prepared(
        self, folder: Path, on_share: Callable[[float], None] = lambda share: None
    ) -> tuple[Patches, int]:
        """The patches, and how many; made in a folder unless they are there already."""
        if self.patches is not None:
            return read_patches(self.patches)
        shape = cube_shape(self.scale)
        small = indian_pines() if self.file is None else read_cube(self.file)
        name = "Indian Pines" if self.file is None else self.file.name
        small_size, size = ("x".join(map(str, sizes)) for sizes in (small.shape, shape))
        checksum = zlib.crc32(np.ascontiguousarray(small).tobytes())
        file = folder / f"patches-{size}-{checksum:08x}.{self.format}"
        if not file.exists():
            write_patches(LargeCube(small, shape), file, on_share)
        data = f"{name}, {small_size} enlarged to {size}, {self.format}"
        return Patches(file, data, streamed=True), n_patches(shape)
