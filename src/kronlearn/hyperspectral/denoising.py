"""Denoising of cubes, in blocks of rows."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kronlearn.blas import single_threaded_blas
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.selection import check_name
from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.artefacts import find_artefacts
from kronlearn.hyperspectral.blocks import usable_bands
from kronlearn.hyperspectral.noise import noise_of
from kronlearn.hyperspectral.slabs import EFFORTS, denoised_rows
from kronlearn.hyperspectral.statistics import gather
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.images.planes import like_input
from kronlearn.images.stages import Progress, Stages
from kronlearn.io.conversion import float_dtype
from kronlearn.io.cubes import Cube, CubeWriter, open_cube

__all__ = ["DenoisedCube", "checked_sigma", "denoise"]


@dataclass(frozen=True)
class DenoisedCube:
    """The result of :func:`denoise` with ``full=True``.

    Parameters
    ----------
    cube : array or Path
        The denoised cube, of the input's shape and kind; the path if a file was written.
    sigma : array of shape (bands,)
        The standard deviation of the noise, estimated or given; NaN for bands without data.
    n_planes : int
        The number of principal components above the noise.
    n_filled : int
        The number of missing values that were filled in, and of wrong ones if ``artefacts=True``.
    n_skipped : int
        The number of pixels that were left unchanged because they have data in less than half of
        the bands.
    seconds : dict
        The time that each stage took.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> noisy = np.random.default_rng(0).normal(100, 5, (20, 30, 12))
    >>> noisy[3, 4, 5] = -1
    >>> result = kl.hyperspectral.denoise(noisy, nodata=-1, full=True)
    >>> result.sigma.shape, result.n_filled, result.n_skipped
    ((12,), 1, 0)
    """

    cube: Any
    sigma: NDArray[np.float64]
    n_planes: int
    n_filled: int
    n_skipped: int
    seconds: dict[str, float]


def denoise(
    cube: Any,
    sigma: ArrayLike | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    band_axis: int | None = None,
    dataset: str | None = None,
    nodata: float | int | None = None,
    dtype: DTypeLike | None = None,
    quality: str = "default",
    artefacts: bool = False,
    n_jobs: int | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
    full: bool = False,
) -> Any:
    """Denoise a cube.

    Every spectrum, in units of the noise of its bands, is represented by the few principal
    components that exceed the noise. The coefficients of each component form an image. Patches that
    are similar on the strongest images form groups; on every image, each patch is replaced by a
    linear combination of its group, found by ridge regression. A pixel whose spectrum differs from
    the result by more than noise keeps this difference. No dictionary is learned. The cube is read
    in blocks of rows and need not fit into memory: it is read twice, up to four times if some value
    marks missing data, and once more for artefacts.

    Parameters
    ----------
    cube : array, path or Cube
        Anything that :func:`open_cube` takes. An array may be on a GPU: it is copied to memory, and
        the result back. Bands that the file marks as bad (ENVI's ``bbl``) are left unchanged; to
        denoise them, too, open the cube, set its ``bad_bands`` to None and pass it.
    sigma : float or sequence of float, optional
        The standard deviation of the noise in the units of the cube, one number or one for each
        band; by default as :func:`estimate_noise` finds it. Bands whose noise is zero or NaN are
        left unchanged.
    out : path, optional
        Write the result to this file, with the metadata of the input. The extension determines the
        format; an existing file is replaced when the new one is complete.
    band_axis : int, optional
        The axis of the bands; by default that stated in the file, or guessed from the shape.
    dataset : str, optional
        The name of the array in a file that holds several.
    nodata : float or int, optional
        The value that marks missing data; by default that stated in the file.
    dtype : float32 or float64, optional
        The dtype of the result; by default that of the cube, to which results are rounded if it is
        an integer type.
    quality : {"default", "fast"}, default "default"
        "fast" uses fewer, smaller groups and filters them once: a third of the time or less,
        and up to 0.2 dB worse.
    artefacts : bool, default False
        First remove the offsets of stripes (columns or rows of single bands), and fill in impulses,
        dead pixels and dead lines, which are found because other bands contradict them. With fewer
        than five bands nothing is found.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (with the extra ``cuda13`` or
        ``cuda12``). A cube on a GPU is always denoised there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return a :class:`DenoisedCube` with the result, the noise and more.

    Returns
    -------
    array, Path or DenoisedCube
        The path if ``out`` is given, otherwise a cube of the same shape and dtype: integers are
        rounded and kept in range, and an xarray.DataArray keeps its coordinates and attributes. The
        axes have the order of the input, also for files: the result of ``denoise("scene.tif")`` has
        the bands first, as in the GeoTIFF; so has that of a ``bsq`` file of ENVI. Pixels with data
        in less than half of the bands are unchanged; missing values of other pixels are filled in.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> rng = np.random.default_rng(0)
    >>> clean = np.add.outer(np.arange(64), np.arange(64))[..., None] * rng.random(20)
    >>> noisy = clean + rng.normal(0, 3, clean.shape)
    >>> result = kl.hyperspectral.denoise(noisy)
    >>> bool(np.std(result - clean) < 0.2 * np.std(noisy - clean))
    True
    """
    stages = Stages(progress)
    workers = Workers.of(n_jobs, device, cube)
    opened = open_cube(in_memory(cube), band_axis, dataset, nodata)
    sigmas = None if sigma is None else checked_sigma(sigma, opened.shape[2], opened.name)
    result_dtype = opened.dtype if dtype is None else float_dtype(dtype)
    check_name("quality", quality, tuple(EFFORTS))
    with single_threaded_blas(), _writer(opened, out, dtype) as writer:
        with stages.stage("noise") as on_share:
            used = usable_bands(opened)
            to_repair = find_artefacts(opened, used, workers.n_threads) if artefacts else None
            statistics = gather(
                opened,
                used,
                artefacts=to_repair,
                with_differences=sigmas is None,
                n_threads=workers.n_threads,
                on_share=on_share,
            ).checked(opened.name)
            if sigmas is None:
                sigmas = noise_of(opened, used, statistics)
            subspace = Subspace.of(statistics, used, sigmas)
            n_skipped = opened.shape[0] * opened.shape[1] - statistics.n_pixels
            n_filled = statistics.n_filled
            # The differences take much memory.
            del statistics
        with stages.stage("denoising") as on_share:
            for rows, part in denoised_rows(
                opened, used, subspace, to_repair, EFFORTS[quality], workers, result_dtype
            ):
                writer.write(rows, part)
                if on_share is not None:
                    on_share(rows.stop / opened.shape[0])
    if isinstance(writer, _ArrayWriter):
        result = like_input(cube, opened.like(writer.values, dtype), workers.gpu)
    else:
        result = writer.target
    if not full:
        return result
    return DenoisedCube(result, sigmas, subspace.n_planes, n_filled, n_skipped, stages.seconds)


def _writer(
    cube: Cube, out: str | os.PathLike[str] | None, dtype: DTypeLike | None
) -> AbstractContextManager[CubeWriter | _ArrayWriter]:
    """A writer of rows to a file or, if ``out`` is None, to an array."""
    if out is not None:
        return cube.create(out, dtype=dtype)
    return nullcontext(_ArrayWriter(np.empty(cube.shape, cube.dtype if dtype is None else dtype)))


@dataclass(frozen=True)
class _ArrayWriter:
    """Writes rows to an array, as a :class:`CubeWriter` does to a file."""

    values: NDArray[Any]

    def write(self, rows: slice, values: NDArray[Any]) -> None:
        self.values[rows] = values


def checked_sigma(sigma: ArrayLike, n_bands: int, name: str) -> NDArray[np.float64]:
    """Check the noise of the cube with this name, and return that of every band."""
    sigmas = np.asarray(sigma)
    if sigmas.dtype.kind not in "fiu":
        raise TypeError(f"sigma={sigma!r} is not a number.")
    if sigmas.shape not in ((), (n_bands,)):
        raise ValueError(
            f"sigma has shape {sigmas.shape}; {name} needs a number or {n_bands}, one per band."
        )
    if (sigmas < 0).any() or np.isinf(sigmas).any() or (sigmas.ndim == 0 and np.isnan(sigmas)):
        raise ValueError(f"sigma={sigma!r} is not a standard deviation; pass zero or more.")
    return np.broadcast_to(sigmas.astype(np.float64), n_bands)
