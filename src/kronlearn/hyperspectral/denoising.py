"""Denoising: cube in, cube out, in blocks of rows."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kronlearn.blas import single_threaded_blas
from kronlearn.cuda.arrays import in_memory
from kronlearn.engines.workers import Workers
from kronlearn.hyperspectral.artefacts import find_artefacts
from kronlearn.hyperspectral.blocks import usable_bands
from kronlearn.hyperspectral.noise import noise_of
from kronlearn.hyperspectral.slabs import EFFORTS, denoised_rows
from kronlearn.hyperspectral.statistics import gather
from kronlearn.hyperspectral.subspace import Subspace
from kronlearn.images.planes import like_input
from kronlearn.images.stages import Progress, Stages
from kronlearn.io.conversion import floating
from kronlearn.io.cubes import Cube, CubeWriter, open_cube

__all__ = ["DenoisedCube", "denoise", "given_sigma"]


@dataclass(frozen=True)
class DenoisedCube:
    """What :func:`denoise` returns with ``full=True``.

    Parameters
    ----------
    cube : array or Path
        The denoised cube, of the input's shape and kind; the path if a file was written.
    sigma : array of shape (bands,)
        The noise's standard deviation, estimated or given; NaN for bands without data.
    n_planes : int
        Components of the spectra that are above the noise.
    n_filled : int
        Single missing values that were filled in, and wrong ones if ``artefacts=True``.
    n_skipped : int
        Pixels that were left as they are because they have data in less than half of the bands.
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
    components that exceed the noise. Their coefficients form images. Patches that are similar on
    the strongest of them make a group, and on each of them every patch becomes a linear combination
    of its group, by a ridge regression. A pixel whose spectrum differs from the result by more than
    noise keeps what makes it different. No dictionary is learned. The cube is read in blocks of
    rows and need not fit into memory: it is read twice, up to four times if a value means no data,
    and once more for artefacts.

    Parameters
    ----------
    cube : array, path or Cube
        Anything that :func:`open_cube` takes. An array may be on a GPU: it is copied to memory,
        and the result back. Bands that the file marks as bad (ENVI's ``bbl``) are left as they are;
        to denoise them, too, pass an opened cube whose ``bad_bands`` you have set to None.
    sigma : float or sequence of float, optional
        The standard deviation of the noise in the cube's own units, one number or one for each
        band; by default :func:`estimate_noise` finds it. Bands of noise zero or NaN are left as
        they are.
    out : path, optional
        Write the result to this file, in the format that its extension says and with the metadata
        of the input; an existing file is replaced when the new one is complete.
    band_axis : int, optional
        The axis of the bands; by default what the file says, or a guess from the shape.
    dataset : str, optional
        The name of the array in a file that holds several.
    nodata : float or int, optional
        The value that means no data; by default what the file says.
    dtype : float32 or float64, optional
        The dtype of the result; by default that of the cube, to which results are rounded if it is
        one of integers.
    quality : {"default", "fast"}, default "default"
        "fast" filters groups once, with fewer and smaller ones: a tenth of the time, and up to
        0.4 dB worse.
    artefacts : bool, default False
        First find values that other bands contradict: remove the offsets of stripes (columns or
        rows of single bands), and fill in impulses, dead pixels and dead lines.
        At least five bands are needed.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    device : {"cpu", "cuda"}, default "cpu"
        Where to compute: on the processor, or on an NVIDIA GPU (the extra ``cuda13`` or
        ``cuda12``). A cube on a GPU is worked on there.
    progress : callable, optional
        Called with the name of a stage and the fraction of it that is done; raising an exception
        stops the work.
    full : bool, default False
        Return a :class:`DenoisedCube` with the result, the noise found and more.

    Returns
    -------
    array, Path or DenoisedCube
        The path if ``out`` is given, else a cube of the same shape and dtype: integers are rounded
        and kept in range, and an xarray.DataArray keeps its coordinates and attributes. The axes
        have the order of the input also if that is a path: ``denoise("scene.tif")`` has the bands
        first, as GeoTIFF has them, and so has a ``bsq`` file of ENVI. Pixels with data in less than
        half of the bands are those of the input; single missing values of other pixels are filled
        in.

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
    log = Stages(progress)
    workers = Workers.of(n_jobs, device, cube)
    opened = open_cube(in_memory(cube), band_axis, dataset, nodata)
    given = None if sigma is None else given_sigma(sigma, opened.shape[2], opened.name)
    wanted = opened.dtype if dtype is None else floating(dtype)
    if quality not in EFFORTS:
        raise ValueError(f"quality={quality!r} does not exist; choose one of {', '.join(EFFORTS)}.")
    with single_threaded_blas(), _target(opened, out, dtype) as target:
        with log.stage("noise") as on_share:
            used = usable_bands(opened)
            found = find_artefacts(opened, used, workers.n_threads) if artefacts else None
            statistics = gather(
                opened,
                used,
                artefacts=found,
                with_differences=given is None,
                n_threads=workers.n_threads,
                on_share=on_share,
            )
            sigmas = noise_of(opened, used, statistics) if given is None else given
            subspace = Subspace.of(statistics, used, sigmas)
            n_skipped = opened.shape[0] * opened.shape[1] - statistics.n_pixels
            n_filled = statistics.n_filled
            # Its differences are large.
            del statistics
        with log.stage("denoising") as on_share:
            for rows, part in denoised_rows(
                opened, used, subspace, found, EFFORTS[quality], workers, wanted
            ):
                target.write(rows, part)
                if on_share is not None:
                    on_share(rows.stop / opened.shape[0])
    if isinstance(target, _Array):
        result = like_input(cube, opened.like(target.values, dtype), workers.gpu)
    else:
        result = target.target
    done = DenoisedCube(result, sigmas, subspace.n_planes, n_filled, n_skipped, log.seconds)
    return done if full else done.cube


def _target(
    cube: Cube, out: str | os.PathLike[str] | None, dtype: DTypeLike | None
) -> AbstractContextManager[CubeWriter | _Array]:
    """What takes the rows of the result: a file, or an array."""
    if out is not None:
        return cube.create(out, dtype=dtype)
    return nullcontext(_Array(np.empty(cube.shape, cube.dtype if dtype is None else dtype)))


@dataclass(frozen=True)
class _Array:
    """Takes rows as a file does."""

    values: NDArray[Any]

    def write(self, rows: slice, values: NDArray[Any]) -> None:
        self.values[rows] = values


def given_sigma(sigma: ArrayLike, n_bands: int, name: str) -> NDArray[np.float64]:
    """The noise of every band of a cube of this name, checked."""
    given = np.asarray(sigma)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"sigma={sigma!r} is not a number.")
    if given.shape not in ((), (n_bands,)):
        raise ValueError(
            f"sigma has shape {given.shape}; {name} needs a number or {n_bands}, one per band."
        )
    if (given < 0).any() or np.isinf(given).any() or (given.ndim == 0 and np.isnan(given)):
        raise ValueError(f"sigma={sigma!r} is not a standard deviation; pass zero or more.")
    return np.broadcast_to(given.astype(np.float64), n_bands)
