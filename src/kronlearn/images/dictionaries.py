"""Dictionaries for the patches of an image: shapes, and learning them from the image itself."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.coding import check_method
from kronlearn.dictionary import KroneckerDictionary
from kronlearn.estimators import KroneckerDictionaryLearning

__all__ = [
    "as_dictionary",
    "atoms_to_learn",
    "check_patch",
    "coding_method",
    "default_patch",
    "draw_patches",
    "learn_from_patches",
    "sizes_per_axis",
]

# A patch of more pixels is a large one.
LARGE_PATCH = 128


def default_patch(shape: Sequence[int], pixels: int) -> tuple[int, ...]:
    """A patch of about so many pixels, as even as the image allows."""
    axes = sum(size > 1 for size in shape)
    size = max(1, round(pixels ** (1 / max(axes, 1))))
    return tuple(min(size, length) for length in shape)


def sizes_per_axis(name: str, sizes: int | Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """One positive size for each axis of an image; a single number stands for all."""
    given = [sizes] * len(shape) if isinstance(sizes, numbers.Integral) else list(sizes)  # type: ignore[arg-type]
    whole = all(isinstance(size, numbers.Integral) for size in given)
    if not whole or len(given) != len(shape) or min(given) < 1:
        raise ValueError(
            f"{name}={sizes!r} must be a positive integer or {len(shape)} of them, one for each "
            "spatial axis of the image."
        )
    return tuple(int(size) for size in given)


def check_patch(patch: tuple[int, ...], shape: Sequence[int]) -> None:
    """Raise unless patches of this shape fit in an image."""
    if len(patch) != len(shape):
        raise ValueError(
            f"Patches of shape {patch} have {len(patch)} axes, the image has {len(shape)} spatial "
            "ones; they must be as many (say which axis holds channels with channel_axis)."
        )
    if any(m > size for m, size in zip(patch, shape, strict=True)):
        raise ValueError(f"Patches of shape {patch} do not fit in an image of shape {shape}.")


def as_dictionary(
    dictionary: Any, patch_size: Any, n_atoms: Any, shape: Sequence[int]
) -> KroneckerDictionary | None:
    """The dictionary given, if any, once it is known to suit an image and the other choices."""
    if dictionary is None:
        return None
    if patch_size is not None or n_atoms is not None:
        raise ValueError("patch_size and n_atoms are those of the dictionary; leave them out.")
    if not isinstance(dictionary, KroneckerDictionary):
        dictionary = KroneckerDictionary(dictionary)
    check_patch(dictionary.patch_shape, shape)
    return dictionary


def atoms_to_learn(patch: tuple[int, ...], n_atoms: int | Sequence[int] | None) -> tuple[int, ...]:
    """Atoms per axis: as asked for, or twice a patch's pixels, for large ones half as many more."""
    if n_atoms is not None:
        return sizes_per_axis("n_atoms", n_atoms, patch)
    large = math.prod(patch) > LARGE_PATCH
    return tuple(m + m // (2 if large else 1) if m > 1 else 1 for m in patch)


def coding_method(method: str | None, dictionary: KroneckerDictionary) -> str:
    """The coder: the one asked for, or the best one for a dictionary."""
    if method is None:
        return "threshold" if dictionary.is_orthonormal else "ols"
    check_method(method, dictionary)
    return method


def draw_patches(
    planes: NDArray[np.float32],
    patch: tuple[int, ...],
    n_samples: int,
    rng: np.random.Generator,
    known: NDArray[np.bool_] | None = None,
) -> NDArray[np.float32]:
    """Patches (N, *patch) without their means from random places of planes (C, *spatial).

    Of twice as many those are kept of which most pixels are ``known`` (spatial), if that is given.
    They are ordered by energy: coded side by side, equals take about equally long.
    """
    axes = tuple(range(1, planes.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(planes, patch, axes)
    places = windows.shape[: planes.ndim]
    total = math.prod(places)
    wanted = n_samples if known is None else 2 * n_samples
    drawn = np.sort(rng.choice(total, min(wanted, total), replace=False, shuffle=False))
    at = np.unravel_index(drawn, places)
    if known is not None:
        shares = np.lib.stride_tricks.sliding_window_view(known, patch)[at[1:]].mean(axis=axes)
        best = np.sort(np.argsort(-shares, kind="stable")[:n_samples])
        at = tuple(place[best] for place in at)
    samples = windows[at]
    samples = samples - samples.mean(axis=axes, keepdims=True)
    return samples[np.argsort(np.square(samples).sum(axis=axes), kind="stable")]


def learn_from_patches(
    samples: NDArray[np.float32],
    n_atoms: tuple[int, ...],
    *,
    tol: float | None,
    width: int,
    max_iter: int,
    random_state: int,
    n_jobs: int,
    on_share: Callable[[float], None] | None,
    init: Any = "dct",
) -> KroneckerDictionaryLearning:
    """The model learned from patches (N, *patch), coded to an error target."""
    model = KroneckerDictionaryLearning(
        n_atoms,
        n_nonzero_coefs=width,
        tol=tol,
        max_iter=max_iter,
        init=init,
        random_state=random_state,
        n_jobs=n_jobs,
        callback=None if on_share is None else lambda state: on_share(state.iteration / max_iter),
    )
    return model.fit(samples)
