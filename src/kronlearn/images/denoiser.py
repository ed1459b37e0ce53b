"""Denoise one image after the other with the dictionary learned from the first."""

from __future__ import annotations

import inspect
from typing import Any

from numpy.typing import ArrayLike

from kronlearn.core.dictionary import Dictionary
from kronlearn.images.denoising import denoise

__all__ = ["Denoiser"]

_OPTIONS = set(inspect.signature(denoise).parameters) - {"image", "sigma", "mask", "full"}
# Options that a given dictionary excludes.
_FOR_LEARNING = ("patch_size", "n_atoms", "n_terms")


class Denoiser:
    """Denoises similar images with one dictionary, learned from the first of them.

    In loops such as those of plug-and-play methods, and for the images of a series, this saves the
    time of learning again.

    Parameters
    ----------
    **options
        The options of :func:`denoise` except ``full``, and ``sigma`` and ``mask``, which are passed
        with every image.

    Attributes
    ----------
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        The dictionary that images are coded with, given or learned; None until one is learned.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> clean = 20 * np.add.outer(np.sin(np.arange(64) / 9), np.cos(np.arange(64) / 7))
    >>> rng = np.random.default_rng(0)
    >>> denoiser = kl.images.Denoiser(quality="fast")
    >>> results = [denoiser(clean + rng.normal(0, 5, (64, 64)), 5) for _ in range(3)]
    >>> denoiser.dictionary.patch_shape
    (8, 8)
    """

    def __init__(self, **options: Any) -> None:
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise TypeError(
                f"Denoiser has no option {unknown[0]!r}; it takes those of denoise: "
                f"{', '.join(sorted(_OPTIONS))}. Pass sigma and mask with every image: "
                "denoiser(image, sigma, mask=mask)."
            )
        self._options = options

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"Denoiser({options})"

    @property
    def dictionary(self) -> Dictionary | None:
        """The dictionary that images are coded with; None until one is learned."""
        return self._options.get("dictionary")

    def __call__(
        self,
        image: ArrayLike,
        sigma: ArrayLike | None = None,
        *,
        mask: ArrayLike | None = None,
    ) -> Any:
        """Denoise an image.

        Parameters
        ----------
        image : array
            As for :func:`denoise`.
        sigma : float, sequence of float or array, optional
            The standard deviation of the noise; estimated by default.
        mask : array of bool, optional
            True where a pixel is missing; by default none is.

        Returns
        -------
        array
            The denoised image, with the shape, dtype and library of the input.
        """
        result = denoise(image, sigma, mask=mask, **self._options, full=True)
        if self.dictionary is None and result.dictionary is not None:
            self._options["dictionary"] = result.dictionary
            for name in _FOR_LEARNING:
                self._options.pop(name, None)
        return result.image
