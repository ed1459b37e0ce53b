"""Dictionaries learned from the patches of a cube."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.hyperspectral.patches import CubePatches
from kronlearn.io.cubes import open_cube

__all__ = ["default_atoms", "learn"]


def learn(
    cube: Any,
    patch_shape: Sequence[int] = (8, 8),
    n_atoms: tuple[int, ...] | int | None = None,
    n_nonzero_coefs: int | None = 6,
    *,
    band_axis: int | None = None,
    dataset: str | None = None,
    nodata: float | int | None = None,
    remove_means: bool = False,
    **parameters: Any,
) -> KroneckerDictionaryLearning:
    """Learn a dictionary from all patches of a cube, which need not fit into memory.

    With two modes, samples are the patches of single bands, and all bands share one pair of
    factors. With three modes, the spectrum has a factor of its own, and bands that look alike share
    nonzeros.

    Parameters
    ----------
    cube : array, path or Cube
        Anything that :func:`open_cube` takes.
    patch_shape : (int, int) or (int, int, int)
        Rows, columns and, for three modes, bands of a patch.
    n_atoms : tuple of int or int, optional
        The number of columns of each factor. By default that of the entries of a patch along the
        mode, or twice as many for two modes unless the factors are orthonormal.
    n_nonzero_coefs : int or None, default 6
        The most nonzeros a sample may have.
    band_axis : int, optional
        The axis of the bands; by default that stated in the file, or guessed from the shape.
    dataset : str, optional
        The name of the array in a file that holds several.
    nodata : float or int, optional
        The value that marks missing data; by default that stated in the file.
    remove_means : bool, default False
        Whether to subtract the mean of each patch.
    **parameters
        Other parameters of :class:`kronlearn.KroneckerDictionaryLearning`, such as ``tol``,
        ``structure``, ``max_iter``, ``n_jobs``, ``random_state`` and ``checkpoint``.

    Returns
    -------
    KroneckerDictionaryLearning
        The fitted model.

    Examples
    --------
    >>> import numpy as np
    >>> import kronlearn as kl
    >>> cube = np.random.default_rng(0).random((32, 32, 12))
    >>> model = kl.hyperspectral.learn(cube, (8, 8, 4), max_iter=3, random_state=0)
    >>> model.dictionary_.patch_shape, model.dictionary_.n_atoms
    ((8, 8, 4), (8, 8, 4))
    """
    patches = CubePatches(
        open_cube(cube, band_axis, dataset, nodata), patch_shape, remove_means=remove_means
    )
    if n_atoms is None:
        n_atoms = default_atoms(patches.patch_shape, parameters.get("structure", "general"))
    model = KroneckerDictionaryLearning(n_atoms, n_nonzero_coefs=n_nonzero_coefs, **parameters)
    return model.fit(patches)


def default_atoms(patch_shape: tuple[int, ...], structure: str) -> tuple[int, ...]:
    """Twice the patch shape for two modes and general factors, otherwise the patch shape."""
    factor = 2 if len(patch_shape) == 2 and structure == "general" else 1
    return tuple(factor * m for m in patch_shape)
