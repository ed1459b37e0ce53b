"""Updates of filters from sums over coded images.

With the codes fixed, ``f = ½ Σ w (y − Σ_m d_m ∗ x_m)²`` is lowered by conjugate gradients on the
spheres of unit-norm columns. What an image contributes are sums of the size of the filters,
``G_m = Σ_s x_m[s] · r[s + ·]`` and ``E_m = Σ_s x_m[s]²``, and the number ``‖√w (Σ_m δd_m ∗ x_m)‖²``
of a direction: sums over images and over tiles of an image add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn import _native
from kronlearn.convolutional.canvas import synthesised
from kronlearn.convolutional.coded import Coded, CodedImages
from kronlearn.convolutional.factors import column_axes, normalised, pulled_back, pushed_forward
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["updated"]

# A step that raises the error is halved so many times before it is given up.
_HALVINGS = 6


def updated(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    n_steps: int,
    n_threads: int,
    share: float = 1.0,
) -> ConvolutionalDictionary:
    """The dictionary after some steps, with the codes of the images fixed.

    ``share`` shortens the steps, for images that are only a part of what was learned from.
    """
    energies = images.total(_energies, dictionary.n_filters)
    if not energies.any():
        return dictionary
    before: _Direction | None = None
    for _ in range(n_steps):
        before = _direction(dictionary, images, energies, before, n_threads)
        longest = share * _step(dictionary, images, before, n_threads)
        found = _descended(dictionary, images, before, longest, n_threads)
        if found is None:
            break
        dictionary, images = found
    return dictionary


@dataclass(frozen=True)
class _Direction:
    """A direction on the spheres, one array for each factor, and the gradient it was made from."""

    parts: list[NDArray[Any]]
    gradient: list[NDArray[Any]]
    preconditioned: list[NDArray[Any]]


def _direction(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    energies: NDArray[np.float64],
    before: _Direction | None,
    n_threads: int,
) -> _Direction:
    """The next direction of Polak and Ribière, preconditioned by the energies of columns."""
    factors, structure = dictionary.factors, dictionary.structure
    sums = -images.total(_correlated, dictionary, n_threads)
    gradient = [
        _tangent(part, factor, structure)
        for part, factor in zip(pulled_back(sums, factors, structure), factors, strict=True)
    ]
    scales = _column_energies(energies, dictionary)
    preconditioned = [part / scale for part, scale in zip(gradient, scales, strict=True)]
    parts = [-part for part in preconditioned]
    if before is not None:
        change = [new - old for new, old in zip(preconditioned, before.preconditioned, strict=True)]
        beta = _dot(gradient, change) / _dot(before.gradient, before.preconditioned)
        parts = [
            _tangent(part + max(beta, 0.0) * old, factor, structure)
            for part, old, factor in zip(parts, before.parts, factors, strict=True)
        ]
        if _dot(parts, gradient) >= 0:
            parts = [-part for part in preconditioned]
    return _Direction(parts, gradient, preconditioned)


def _step(
    dictionary: ConvolutionalDictionary,
    images: CodedImages,
    direction: _Direction,
    n_threads: int,
) -> float:
    """The step to the lowest error along a direction, to second order (Gauss and Newton)."""
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
    """The dictionary after a step, shortened until it lowers the error, with what codes leave then.

    None if no step does.
    """
    error = images.total(Coded.error)
    for _ in range(_HALVINGS if step > 0 else 0):
        moved = [
            normalised(factor + step * part, dictionary.structure)
            for factor, part in zip(dictionary.factors, direction.parts, strict=True)
        ]
        found = ConvolutionalDictionary(moved, dictionary.structure, dictionary.has_channels)
        there = images.mapped(Coded.with_filters, found, n_threads)
        if there.total(Coded.error) < error:
            return found, there
        step /= 2
    return None


# What an image contributes.


def _correlated(
    image: Coded, dictionary: ConvolutionalDictionary, n_threads: int
) -> NDArray[np.float64]:
    """``G (M, p_1, …, p_d)``: the correlation of codes with what they leave."""
    sums = np.zeros(dictionary.filters.shape)
    filters, stages = dictionary.filters.astype(np.float32), dictionary.stages
    settings = filters, stages, image.codes, sums, n_threads, instruction_set()
    _native.correlate_codes(image.residual, *settings)
    return sums


def _energies(image: Coded, n_filters: int) -> NDArray[np.float64]:
    """``E (M)``: the sums of squares of every filter's coefficients."""
    _, filters, values = image.codes
    found: NDArray[Any] = np.bincount(filters, values.astype(np.float64) ** 2, n_filters)
    return found


def _curvature(
    image: Coded, dictionary: ConvolutionalDictionary, change: NDArray[Any], n_threads: int
) -> float:
    """``‖√w (Σ_m δd_m ∗ x_m)‖²`` for a change of the filters."""
    shape, weights = image.canvas.pixels.shape, image.canvas.weights
    moved = synthesised(shape, image.codes, dictionary, n_threads, change) * weights
    return float(np.sum(moved.astype(np.float64) ** 2))


def _column_energies(
    energies: NDArray[np.float64], dictionary: ConvolutionalDictionary
) -> list[NDArray[np.float64]]:
    """The energies of the coefficients that each column of a factor takes part in.

    Columns that nobody uses get that of an average one: their gradient is zero.
    """
    if dictionary.structure == "dense":
        found = [energies.reshape(-1, *[1] * len(dictionary.filter_shape))]
    elif dictionary.structure == "separable":
        found = [energies] * len(dictionary.factors)
    else:
        grid = energies.reshape([factor.shape[1] for factor in dictionary.factors])
        every = range(grid.ndim)
        found = [grid.sum(axis=tuple(k for k in every if k != axis)) for axis in every]
    return [np.where(part > 0, part, part.mean()) for part in found]


def _tangent(part: NDArray[Any], factor: NDArray[Any], structure: str) -> NDArray[Any]:
    """What of a direction keeps the norm of every column, to first order."""
    axes = column_axes(factor, structure)
    found: NDArray[Any] = part - factor * np.sum(part * factor, axis=axes, keepdims=True)
    return found


def _dot(left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]) -> float:
    return float(sum(np.sum(a * b) for a, b in zip(left, right, strict=True)))
