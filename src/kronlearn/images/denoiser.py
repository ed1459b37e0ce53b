"""Denoise one image after the other with what was learned from the first."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

from numpy.typing import ArrayLike

from kronlearn.core.dictionary import Dictionary
from kronlearn.engines.selection import chosen_device
from kronlearn.images.denoising import denoise
from kronlearn.images.matches import Matches

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
    reuse_matches : bool, default False
        Whether to keep the groups of similar patches, too, and use them for later images of the
        same shape, which should differ little, until :meth:`forget_matches` is called. Groups take
        about 14 bytes per pixel with ``quality="fast"``, 56 with "default" and 130 with "best",
        whatever the number of channels; in volumes up to twice as much, and with masks 18 more per
        channel. Such a denoiser works on one image at a time, and not on a GPU.
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

    def __init__(self, *, reuse_matches: bool = False, **options: Any) -> None:
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise TypeError(
                f"Denoiser has no option {unknown[0]!r}; it takes those of denoise: "
                f"{', '.join(sorted(_OPTIONS))}. Pass sigma and mask with every image: "
                "denoiser(image, sigma, mask=mask)."
            )
        self._options = options
        self._matches = Matches() if reuse_matches else None

    def __repr__(self) -> str:
        shown = self._options if self._matches is None else {"reuse_matches": True, **self._options}
        options = ", ".join(f"{name}={value!r}" for name, value in shown.items())
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
        device = chosen_device(self._options.get("device", "cpu"), image)
        if self._matches is not None and device == "cuda":
            raise ValueError(
                "reuse_matches=True is for the processor; leave it out to denoise on a GPU."
            )
        with nullcontext() if self._matches is None else self._matches.reused():
            result = denoise(image, sigma, mask=mask, **self._options, full=True)
        if self.dictionary is None and result.dictionary is not None:
            self._options["dictionary"] = result.dictionary
            for name in _FOR_LEARNING:
                self._options.pop(name, None)
        return result.image

    def forget_matches(self) -> None:
        """Search for similar patches anew in the next image, as in the first, and free memory.

        Examples
        --------
        >>> import numpy as np
        >>> import kronlearn as kl
        >>> noisy = np.random.default_rng(0).normal(100, 5, (64, 64))
        >>> denoiser = kl.images.Denoiser(quality="fast", reuse_matches=True)
        >>> first = denoiser(noisy, 5)
        >>> denoiser.forget_matches()
        """
        if self._matches is not None:
            self._matches = Matches()
