"""Convolutional sparse coding: an image as a sum of shifted filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kronlearn.convolutional.coded import CodedImage, MapCoder
from kronlearn.convolutional.filters import ConvolutionalDictionary, check_dictionary
from kronlearn.convolutional.maps import maps_of
from kronlearn.convolutional.padded import Images, padded_images, scale_of
from kronlearn.engines.threads import resolve_n_jobs
from kronlearn.images.stages import part_of
from kronlearn.parameters import check_number

__all__ = ["TOLERANCE", "convolutional_code", "largest_penalty"]

#: The default of ``tol``.
TOLERANCE = 0.03


def convolutional_code(
    images: Images,
    dictionary: ConvolutionalDictionary,
    penalty: float,
    *,
    mask: Images | None = None,
    channel_axis: int | None = None,
    tol: float = TOLERANCE,
    n_jobs: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Any:
    """Code images as sums of shifted filters: ``y ≈ Σ_m d_m ∗ x_m`` with sparse maps ``x_m``.

    The maps minimise ``½ Σ (y − Σ_m d_m ∗ x_m)² + penalty · Σ |x_m|`` over the known pixels. Pixels
    beyond the edges of an image count as unknown, like those in the mask, so edges cost nothing.
    Coordinate descent, tile by tile, finds the minimum over the nonzero coefficients; all others
    are screened by correlations with the separable filters. Memory grows with the image and the
    number of nonzeros, not with the number of filters.

    Parameters
    ----------
    images : array or list of arrays
        An image, or several of any shapes, with as many axes as the filters have.
    dictionary : ConvolutionalDictionary
        The filters.
    penalty : float
        The weight of the ℓ1 norm, in the units of the image: the larger, the fewer nonzeros.
        From :func:`largest_penalty` on, all coefficients are zero.
    mask : array of bool or list of arrays, optional
        True where a pixel is missing.
    channel_axis : int, optional
        The axis of the channels, for filters that have them.
    tol : float, default 0.03
        How far the gradient of a coefficient may be from optimal, relative to the penalty. With
        the default the objective is about 0.01 % above its minimum, with 0.3 about 1 %.
    n_jobs : int, optional
        The number of threads; -1 means all processors. The result has the same bits for any number.
    progress : callable, optional
        Called repeatedly with the fraction of the work that is done; raising an exception stops
        the work.

    Returns
    -------
    SparseMaps or list of SparseMaps
        The maps of the image, or of each image of a list.

    Raises
    ------
    ValueError
        If an image is smaller than a filter, if a pixel that the mask does not cover is NaN, or if
        the penalty is not positive.

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
    padded = padded_images(
        images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    )
    maps = []
    for number, image in enumerate(padded):
        scale = scale_of([image])
        coder = MapCoder(dictionary, penalty / scale, tol, n_threads)
        on_share = part_of(progress, number, len(padded))
        coded = CodedImage.uncoded(image.in_units(scale)).coded(coder, progress=on_share)
        map_shape = image.map_shape(dictionary.filter_shape)
        maps.append(maps_of(coded.codes, dictionary.n_filters, map_shape, scale))
    return maps if isinstance(images, (list, tuple)) else maps[0]


def largest_penalty(
    images: Images,
    dictionary: ConvolutionalDictionary,
    *,
    mask: Images | None = None,
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
    padded = padded_images(
        images, mask, dictionary.filter_shape, channel_axis, dictionary.has_channels
    )
    return max(
        float(np.abs(correlate(image.pixels.astype(np.float64), d, "valid")).max())
        for image in padded
        for d in dictionary.filters
    )
