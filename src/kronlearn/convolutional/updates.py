"""Updates of filters from sums over coded images.

With the codes fixed, conjugate gradients on the spheres of unit-norm columns lower
``f = ½ Σ w (y − Σ_m d_m ∗ x_m)²``. Each image contributes ``G_m = Σ_s x_m[s] · r[s + ·]``, of the
size of the filters, the energies ``E_m = Σ_s x_m[s]²`` and, for a direction δd, the curvature
``‖√w (Σ_m δd_m ∗ x_m)‖²``. All three are sums over images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.convolutional.coded import CodedImage, CodedImages
from kronlearn.convolutional.factors import column_axes, normalised, pulled_back, pushed_forward
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.padded import synthesize
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["update_filters"]

# Lengths that are tried for a step, each half of the one before, until one lowers the error.
_LENGTHS = 6


def update_filters(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    n_steps: int,
    n_threads: int,
    step_scale: float = 1.0,
) -> ConvolutionalDictionary:
    """The dictionary after some steps, with the codes of the images fixed.

    ``step_scale`` shortens the steps, for images that are only a part of those learned from.
    """
    energies = images.total(_energies, dictionary.n_filters)
    if not energies.any():
        return dictionary
    direction: _Direction | None = None
    for _ in range(n_steps):
        direction = _direction(dictionary, images, energies, direction, n_threads)
        longest = step_scale * _step_length(dictionary, images, direction, n_threads)
        moved = _descended(dictionary, images, direction, longest, n_threads)
        if moved is None:
            break
        dictionary, images = moved
    return dictionary


@dataclass(frozen=True)
class _Direction:
    """A direction tangent to the spheres, and the gradient it was made from.

    Each is a list with an array for every factor.
    """

    parts: list[NDArray[Any]]
    gradient: list[NDArray[Any]]
    preconditioned: list[NDArray[Any]]


def _direction(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    energies: NDArray[np.float64],
    previous: _Direction | None,
    n_threads: int,
) -> _Direction:
    """The next Polak–Ribière direction, preconditioned by the energies of columns."""
    factors, structure = dictionary.factors, dictionary.structure
    wrt_filters = -images.total(_correlations, dictionary, n_threads)
    gradient = [
        _tangent(part, factor, structure)
        for part, factor in zip(pulled_back(wrt_filters, factors, structure), factors, strict=True)
    ]
    scales = _column_energies(energies, dictionary)
    preconditioned = [part / scale for part, scale in zip(gradient, scales, strict=True)]
    parts = [-part for part in preconditioned]
    if previous is not None:
        change = [a - b for a, b in zip(preconditioned, previous.preconditioned, strict=True)]
        beta = _dot(gradient, change) / _dot(previous.gradient, previous.preconditioned)
        parts = [
            _tangent(part + max(beta, 0.0) * old, factor, structure)
            for part, old, factor in zip(parts, previous.parts, factors, strict=True)
        ]
        if _dot(parts, gradient) >= 0:
            parts = [-part for part in preconditioned]
    return _Direction(parts, gradient, preconditioned)


def _step_length(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    direction: _Direction,
    n_threads: int,
) -> float:
    """The Gauss–Newton step: to second order, the one to the lowest error along a direction."""
    change = pushed_forward(direction.parts, dictionary.factors, dictionary.structure)
    curvature = images.total(_curvature, dictionary, change, n_threads)
    return -_dot(direction.parts, direction.gradient) / curvature if curvature > 0 else 0.0


def _descended(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    direction: _Direction,
    step: float,
    n_threads: int,
) -> tuple[ConvolutionalDictionary, CodedImages] | None:
    """The dictionary after a step that lowers the error, and the images with its residuals.

    The step is halved until it does; None if that does not help.
    """
    error = images.total(CodedImage.squared_error)
    for _ in range(_LENGTHS if step > 0 else 0):
        factors = [
            normalised(factor + step * part, dictionary.structure)
            for factor, part in zip(dictionary.factors, direction.parts, strict=True)
        ]
        moved = ConvolutionalDictionary(factors, dictionary.structure, dictionary.has_channels)
        moved_images = images.mapped(CodedImage.with_filters, moved, n_threads)
        if moved_images.total(CodedImage.squared_error) < error:
            return moved, moved_images
        step /= 2
    return None


# The contributions of one image.


def _correlations(
    image: CodedImage, dictionary: ConvolutionalDictionary, n_threads: int
) -> NDArray[np.float64]:
    """``G (M, p_1, …, p_d)``: the correlations of the codes with the residual."""
    sums = np.zeros(dictionary.filters.shape)
    filters, stages = dictionary.filters.astype(np.float32), dictionary.stages
    settings = filters, stages, image.codes, sums, n_threads, instruction_set()
    _native.correlate_codes(image.residual, *settings)
    return sums


def _energies(image: CodedImage, n_filters: int) -> NDArray[np.float64]:
    """``E (M)``: the sum of squares of every filter's coefficients."""
    _, filters, values = image.codes
    return np.asarray(np.bincount(filters, values.astype(np.float64) ** 2, n_filters))


def _curvature(
    image: CodedImage, dictionary: ConvolutionalDictionary, change: NDArray[Any], n_threads: int
) -> float:
    """``‖√w (Σ_m δd_m ∗ x_m)‖²`` for a change of the filters."""
    pixels, weights = image.image.pixels, image.image.weights
    moved = synthesize(pixels.shape, image.codes, dictionary, n_threads, change) * weights
    return float(np.sum(moved.astype(np.float64) ** 2))


def _column_energies(
    energies: NDArray[np.float64], dictionary: ConvolutionalDictionary
) -> list[NDArray[np.float64]]:
    """The energy of the coefficients that use each column of each factor.

    Unused columns, whose gradient is zero, get the mean energy.
    """
    if dictionary.structure == "dense":
        columns = [energies.reshape(-1, *[1] * len(dictionary.filter_shape))]
    elif dictionary.structure == "separable":
        columns = [energies] * len(dictionary.factors)
    else:
        grid = energies.reshape([factor.shape[1] for factor in dictionary.factors])
        axes = range(grid.ndim)
        columns = [grid.sum(axis=tuple(k for k in axes if k != axis)) for axis in axes]
    return [np.where(part > 0, part, part.mean()) for part in columns]


def _tangent(part: NDArray[Any], factor: NDArray[Any], structure: str) -> NDArray[Any]:
    """The part of a direction that keeps the norm of every column, to first order."""
    axes = column_axes(factor, structure)
    return np.asarray(part - factor * np.sum(part * factor, axis=axes, keepdims=True))


def _dot(left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]) -> float:
    return float(sum(np.sum(a * b) for a, b in zip(left, right, strict=True)))
