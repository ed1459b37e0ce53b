"""Denoising again and again, with what the first image taught."""

from __future__ import annotations

import inspect
from typing import Any

from numpy.typing import ArrayLike

from kronlearn.core.dictionary import Dictionary
from kronlearn.images.denoising import denoise

__all__ = ["Denoiser"]

_OPTIONS = set(inspect.signature(denoise).parameters) - {"image", "sigma", "mask", "full"}
# They say what to learn.
_FOR_LEARNING = ("patch_size", "n_atoms", "n_terms")


class Denoiser:
    """Denoises images that resemble each other, with one dictionary, learned from the first.

    It is for loops such as those of plug-and-play methods, and for the images of a series, and
    saves the time of learning again.

    Parameters
    ----------
    **options
        Those of :func:`denoise`, except ``sigma`` and ``mask``, which are passed with every image,
        and ``full``.

    Attributes
    ----------
    dictionary : KroneckerDictionary or KroneckerSumDictionary or None
        What images are coded with: the one given, or the one learned; None until there is one.

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
        """What images are coded with; None until there is one."""
        found: Dictionary | None = self._options.get("dictionary")
        return found

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
            The noise; estimated by default.
        mask : array of bool, optional
            True where a pixel is missing; by default none is.

        Returns
        -------
        array
            The denoised image, of the shape, dtype and library of the one given.
        """
        found = denoise(image, sigma, mask=mask, **self._options, full=True)
        if self.dictionary is None and found.dictionary is not None:
            self._options["dictionary"] = found.dictionary
            for name in _FOR_LEARNING:
                self._options.pop(name, None)
        return found.image
