"""Images together with their codes, and sums over them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from kronlearn import _native
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.convolutional.padded import Codes, PaddedImage, synthesize
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["FAN_IN", "CodedImage", "CodedImages", "MapCoder", "add_up"]

# Only very small penalties and nearly equal filters need more rounds than this.
_MOST_ROUNDS = 1000

#: Terms added at a time. It is the same for all engines, so that their sums have the same bits.
FAN_IN = 8


@dataclass(frozen=True)
class MapCoder:
    """A dictionary, and how images are coded with it.

    ``tol`` is how far the gradient of a coefficient may be from optimal, relative to ``penalty``.
    """

    dictionary: ConvolutionalDictionary
    penalty: float
    tol: float
    n_threads: int


@dataclass(frozen=True)
class CodedImage:
    """An image with its codes and the residual ``w (y − Σ d ∗ x)``."""

    image: PaddedImage
    codes: Codes
    residual: NDArray[np.float32]

    @classmethod
    def uncoded(cls, image: PaddedImage) -> CodedImage:
        """An image without codes."""
        none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
        return cls(image, none, image.pixels)

    def squared_error(self) -> float:
        """The sum of the squared residual; weights are zero or one."""
        return float(np.sum(self.residual.astype(np.float64) ** 2))

    def sums(self) -> NDArray[np.float64]:
        """The squared error, ``Σ |x|`` and the number of nonzeros."""
        values = self.codes[2]
        magnitudes = np.sum(np.abs(values), dtype=np.float64)
        return np.array([self.squared_error(), magnitudes, len(values)])

    def with_filters(self, dictionary: ConvolutionalDictionary, n_threads: int) -> CodedImage:
        """The same image and codes, and their residual with other filters."""
        pixels = self.image.pixels
        residual = pixels - synthesize(pixels.shape, self.codes, dictionary, n_threads)
        residual *= self.image.weights
        return replace(self, residual=residual)

    def coded(
        self,
        coder: MapCoder,
        rounds: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> CodedImage:
        """Improve the codes for a number of rounds, by default until they reach the tolerance."""
        # Native code updates this residual in place.
        residual = self.with_filters(coder.dictionary, coder.n_threads).residual
        positions, filters, values, violation = _native.code_convolutional(
            residual,
            self.image.weights,
            coder.dictionary.filters.astype(np.float32),
            coder.dictionary.stages,
            self.codes,
            coder.penalty,
            coder.tol,
            rounds or _MOST_ROUNDS,
            coder.n_threads,
            progress,
            instruction_set(),
        )
        if violation > coder.tol and rounds is None:
            warnings.warn(
                f"After {_MOST_ROUNDS} rounds, gradients are {violation:.2g} times the penalty "
                f"from optimal, more than tol={coder.tol:g}: the penalty is very small for these "
                "images (compare largest_penalty), or some filters are nearly equal.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return CodedImage(self.image, (positions, filters, values), residual)


class CodedImages:
    """Coded images in this process, which are worked on one after the other.

    An engine that keeps them elsewhere overrides ``mapped``, ``total`` and ``codes``.

    Parameters
    ----------
    images : sequence of CodedImage
    """

    def __init__(self, images: Sequence[CodedImage]) -> None:
        self.images = images

    def mapped(self, function: Callable[..., CodedImage], *arguments: Any) -> CodedImages:
        """The images that ``function(image, *arguments)`` returns."""
        return CodedImages([function(image, *arguments) for image in self.images])

    def total(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The sum of ``function(image, *arguments)`` over the images, added in a fixed order."""
        terms = [function(image, *arguments) for image in self.images]
        while len(terms) > 1:
            terms = [add_up(terms[i : i + FAN_IN]) for i in range(0, len(terms), FAN_IN)]
        return terms[0]

    def codes(self) -> list[Codes]:
        """The codes of every image."""
        return [image.codes for image in self.images]


def add_up(terms: Sequence[Any]) -> Any:
    """The sum of numbers or arrays, added from first to last."""
    return reduce(add, terms)
