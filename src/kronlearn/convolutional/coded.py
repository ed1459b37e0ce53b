"""Images with their codes, and sums over many of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from kronlearn import _native
from kronlearn.convolutional.canvas import Canvas, Codes, no_codes
from kronlearn.convolutional.filters import ConvolutionalDictionary
from kronlearn.core.instruction_sets import instruction_set

__all__ = ["FAN_IN", "Coded", "CodedImages", "MapCoder", "summed"]

# If this many rounds are not enough, some filters are nearly equal.
_MOST_ROUNDS = 1000

#: So many terms are added in one go: every engine adds in the same order.
FAN_IN = 8


@dataclass(frozen=True)
class Coded:
    """An image with its codes and what they leave of it, ``w (y − Σ d ∗ x)``."""

    canvas: Canvas
    codes: Codes
    residual: NDArray[np.float32]

    @classmethod
    def fresh(cls, canvas: Canvas) -> Coded:
        """An image without codes yet."""
        return cls(canvas, no_codes(), canvas.pixels)

    def error(self) -> float:
        """The sum of squares that is left; weights are zero or one."""
        return float(np.sum(self.residual.astype(np.float64) ** 2))

    def sums(self) -> NDArray[np.float64]:
        """The error, ``Σ |x|`` and the number of nonzeros."""
        values = self.codes[2]
        return np.array([self.error(), np.sum(np.abs(values), dtype=np.float64), len(values)])

    def coded_by(self, coder: MapCoder, rounds: int | None = None) -> Coded:
        """The image after some rounds of a coder; None: as many as its tolerance needs."""
        return coder.coded(self, rounds)

    def with_filters(self, dictionary: ConvolutionalDictionary, n_threads: int) -> Coded:
        """The same image and codes with other filters."""
        residual = self.canvas.residual(self.codes, dictionary, n_threads)
        return Coded(self.canvas, self.codes, residual)


@dataclass(frozen=True)
class MapCoder:
    """How images are coded: with which filters, penalty, tolerance and threads."""

    dictionary: ConvolutionalDictionary
    penalty: float
    tol: float
    n_threads: int

    def coded(
        self,
        image: Coded,
        rounds: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Coded:
        """The image after some rounds, from the codes it has on; None: as the tolerance needs."""
        residual = image.canvas.residual(image.codes, self.dictionary, self.n_threads)
        positions, filters, values, violation = _native.code_convolutional(
            residual,
            image.canvas.weights,
            self.dictionary.filters.astype(np.float32),
            self.dictionary.stages,
            image.codes,
            self.penalty,
            self.tol,
            rounds or _MOST_ROUNDS,
            self.n_threads,
            progress,
            instruction_set(),
        )
        if violation > self.tol and rounds is None:
            warnings.warn(
                f"Codes are {violation:.2g} times the penalty from optimal after {_MOST_ROUNDS} "
                f"rounds, not tol={self.tol:g}; some filters are nearly equal.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return Coded(image.canvas, (positions, filters, values), residual)


class CodedImages:
    """Images in this process, one after the other.

    An engine that has them elsewhere overrides ``mapped``, ``total`` and ``codes``.

    Parameters
    ----------
    images : sequence of Coded
    """

    def __init__(self, images: Sequence[Coded]) -> None:
        self.images = images

    def mapped(self, function: Callable[..., Coded], *arguments: Any) -> CodedImages:
        """The images after ``function(image, *arguments)``."""
        return CodedImages([function(image, *arguments) for image in self.images])

    def total(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The sum of ``function(image, *arguments)`` over the images, added in a fixed order."""
        terms = [function(image, *arguments) for image in self.images]
        while len(terms) > 1:
            terms = [summed(terms[i : i + FAN_IN]) for i in range(0, len(terms), FAN_IN)]
        return terms[0]

    def codes(self) -> list[Codes]:
        """The codes of every image."""
        return [image.codes for image in self.images]


def summed(terms: Sequence[Any]) -> Any:
    """The sum of numbers or arrays, from the first to the last."""
    return reduce(add, terms)
