"""Sparse coding by convolutions: an image as a sum of shifted filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kronlearn.convolutional.canvas import canvases_of, scale_of
from kronlearn.convolutional.coded import Coded, MapCoder
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.maps import check_dictionary, maps_of
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.images.stages import part_of
from kronlearn.parameters import check_number

__all__ = ["TOLERANCE", "convolutional_code", "largest_penalty"]

#: How far from optimal codes may be unless told otherwise.
TOLERANCE = 0.03


def convolutional_code(
    images: ArrayLike | Sequence[ArrayLike],
    dictionary: ConvolutionalDictionary,
    penalty: float,
    *,
    mask: ArrayLike | Sequence[ArrayLike] | None = None,
    channel_axis: int | None = None,
    tol: float = TOLERANCE,
    n_jobs: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Any:
    """Code images as sums of shifted filters: ``y ≈ Σ_m d_m ∗ x_m`` with sparse maps ``x_m``.

    The maps minimise ``½ Σ (y − Σ_m d_m ∗ x_m)² + penalty · Σ |x_m|`` over the known pixels. Pixels
    beyond the edges of an image are unknown, like those of the mask, so edges cost nothing. The
    minimum is found by coordinate descent, tile by tile, on the nonzero coefficients; all others
    are screened with separable filters. Memory grows with the image and the number of nonzeros, not
    with the number of filters.

    Parameters
    ----------
    images : array or list of arrays
        An image, or several of any shapes; of as many axes as the filters have.
    dictionary : ConvolutionalDictionary
        The filters.
    penalty : float
        The weight of the ℓ1 norm, in the units of the image: the larger, the fewer nonzeros. All
        are zero from :func:`largest_penalty` on.
    mask : array of bool or list of arrays, optional
        True where a pixel is missing.
    channel_axis : int, optional
        The axis of the channels, for filters that have them.
    tol : float, default 0.03
        How far the gradient of a coefficient may be from optimal, relative to the penalty. The
        objective is then about 0.01 % above its minimum, with 0.3 about 1 %.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    progress : callable, optional
        Called now and then with the fraction of the image that needs no more work; raising an
        exception stops the work.

    Returns
    -------
    SparseMaps or list of SparseMaps
        The maps of the image, or of each image of a list.

    Raises
    ------
    ValueError
        If an image is smaller than a filter or holds NaN where no mask covers it, or if the penalty
        is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary, convolutional_code, reconstruct
    >>> d = ConvolutionalDictionary([np.hanning(7)[:, None], np.hanning(7)[:, None]])
    >>> image = np.zeros((32, 32))
    >>> image[4:11, 9:16] = d.filters[0]
    >>> maps = convolutional_code(image, d, penalty=0.01)
    >>> maps.nnz, bool(np.abs(reconstruct(maps, d) - image).max() < 0.01)
    (1, True)
    """
    check_dictionary(dictionary)
    check_number("penalty", penalty, "(0, inf)")
    check_number("tol", tol, "(0, 1)")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress={progress!r} is not a function.")
    n_threads = resolve_n_jobs(n_jobs)
    canvases = canvases_of(
        images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    )
    found = []
    for number, canvas in enumerate(canvases):
        scale = scale_of([canvas])
        coder = MapCoder(dictionary, penalty / scale, tol, n_threads)
        tell = part_of(progress, number, len(canvases))
        image = coder.coded(Coded.fresh(canvas.in_units(scale)), None, tell)
        map_shape = canvas.map_shape(dictionary.filter_shape)
        found.append(maps_of(image.codes, dictionary.n_filters, map_shape, scale))
    return found if isinstance(images, (list, tuple)) else found[0]


def largest_penalty(
    images: ArrayLike | Sequence[ArrayLike],
    dictionary: ConvolutionalDictionary,
    *,
    mask: ArrayLike | Sequence[ArrayLike] | None = None,
    channel_axis: int | None = None,
) -> float:
    """Return the smallest penalty for which all coefficients are zero.

    Parameters
    ----------
    images : array or list of arrays
        An image, or several.
    dictionary : ConvolutionalDictionary
        The filters.
    mask : array of bool or list of arrays, optional
        True where a pixel is missing.
    channel_axis : int, optional
        The axis of the channels, for filters that have them.

    Returns
    -------
    float
        The largest magnitude in the correlation of any image with any filter.

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.convolutional import ConvolutionalDictionary, largest_penalty
    >>> d = ConvolutionalDictionary([np.eye(3), np.eye(3)])
    >>> largest_penalty(np.eye(8), d)
    1.0
    """
    from scipy.signal import correlate

    check_dictionary(dictionary)
    given = images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    return max(
        float(np.abs(correlate(canvas.pixels.astype(np.float64), d, "valid")).max())
        for canvas in canvases_of(*given)
        for d in dictionary.filters
    )
