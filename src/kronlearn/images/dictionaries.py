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

__all__ = ["default_patch", "draw_patches", "learn_from_patches", "sizes_per_axis"]


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


def coding_method(method: str | None, dictionary: KroneckerDictionary) -> str:
    """The coder: the one asked for, or the best one for a dictionary."""
    if method is None:
        return "threshold" if dictionary.is_orthonormal else "ols"
    check_method(method, dictionary)
    return method


def draw_patches(
    planes: NDArray[np.float32], patch: tuple[int, ...], n_samples: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Patches (N, *patch) without their means from random places of planes (C, *spatial).

    They are ordered by energy: coded side by side, equals take about equally long.
    """
    windows = np.lib.stride_tricks.sliding_window_view(planes, patch, tuple(range(1, planes.ndim)))
    places = windows.shape[: planes.ndim]
    total = math.prod(places)
    chosen = np.sort(rng.choice(total, min(n_samples, total), replace=False, shuffle=False))
    samples = windows[np.unravel_index(chosen, places)]
    axes = tuple(range(1, samples.ndim))
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
