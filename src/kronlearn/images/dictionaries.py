"""Dictionaries for the patches of an image: shapes, and learning them from the image itself."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.cuda.device import Gpu
from kronlearn.engines.workers import Workers
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.io.device_arrays import is_on_gpu
from kronlearn.parameters import check_count

__all__ = ["Choice", "choose", "default_patch", "draw_patches", "learn", "sizes_per_axis"]

# Patches that are coded side by side in the widest vectors.
_NEIGHBOURS = 16
# A patch of more pixels is a large one.
_LARGE_PATCH = 128
# More nonzeros than this no patch gets: beyond, time is lost and nothing won.
_MOST_NONZEROS = 64


@dataclass(frozen=True)
class Choice:
    """Patches of an image, and the dictionary for them: one given, or how many atoms to learn."""

    patch_size: tuple[int, ...]
    n_atoms: tuple[int, ...]
    dictionary: Dictionary | None = None
    n_terms: int = 1

    @property
    def pixels(self) -> int:
        """Pixels of a patch."""
        return math.prod(self.patch_size)

    @property
    def is_large(self) -> bool:
        """Whether patches are large: fewer atoms for a pixel, and fewer patches, do then."""
        return self.pixels > _LARGE_PATCH

    @property
    def max_nonzeros(self) -> int:
        """The most nonzeros that a patch may get."""
        return max(1, min(self.pixels // 2, _MOST_NONZEROS, math.prod(self.n_atoms)))


def choose(
    shape: Sequence[int],
    dictionary: Any,
    patch_size: Any,
    n_atoms: Any,
    pixels: int,
    n_terms: int = 1,
) -> Choice:
    """What was asked for, checked against an image's shape, or patches of about so many pixels.

    Without a wish there are twice as many atoms as pixels along an axis, for large patches half
    as many more.
    """
    check_count("n_terms", n_terms)
    if dictionary is not None:
        if patch_size is not None or n_atoms is not None or n_terms != 1:
            raise ValueError(
                "patch_size, n_atoms and n_terms are those of the dictionary; leave them out."
            )
        if not isinstance(dictionary, Dictionary):
            dictionary = KroneckerDictionary(dictionary)
        _check_patch(dictionary.patch_shape, shape)
        return Choice(dictionary.patch_shape, dictionary.n_atoms, dictionary, dictionary.n_terms)
    patch = default_patch(shape, pixels)
    if patch_size is not None:
        patch = sizes_per_axis("patch_size", patch_size, shape)
        _check_patch(patch, shape)
    share = 2 if Choice(patch, patch).is_large else 1
    atoms = tuple(m + m // share if m > 1 else 1 for m in patch)
    if n_atoms is not None:
        atoms = sizes_per_axis("n_atoms", n_atoms, shape)
    return Choice(patch, atoms, n_terms=int(n_terms))


def default_patch(shape: Sequence[int], pixels: int) -> tuple[int, ...]:
    """A patch of about so many pixels, as even as the image allows, none of its sides over 64."""
    axes = sum(size > 1 for size in shape)
    size = min(64, max(1, round(pixels ** (1 / max(axes, 1)))))
    return tuple(min(size, length) for length in shape)


def sizes_per_axis(name: str, sizes: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """One positive size for each axis of an image; a single number stands for all."""
    given = [sizes] * len(shape) if np.ndim(sizes) == 0 else list(sizes)
    whole = all(isinstance(size, numbers.Integral) for size in given)
    if not whole or len(given) != len(shape) or min(given) < 1:
        raise ValueError(
            f"{name}={sizes!r} must be a positive integer or {len(shape)} of them, one for each "
            "spatial axis of the image."
        )
    return tuple(int(size) for size in given)


def _check_patch(patch: tuple[int, ...], shape: Sequence[int]) -> None:
    if len(patch) != len(shape):
        raise ValueError(
            f"Patches of shape {patch} have {len(patch)} axes, the image has {len(shape)} spatial "
            "ones; they must be as many (say which axis holds channels with channel_axis)."
        )
    if any(m > size for m, size in zip(patch, shape, strict=True)):
        raise ValueError(
            f"Patches of shape {patch} do not fit in an image of shape {tuple(shape)}."
        )


def draw_patches(
    planes: NDArray[np.float32],
    patch: tuple[int, ...],
    n_samples: int,
    rng: np.random.Generator,
    known: NDArray[np.bool_] | None = None,
    gpu: Gpu | None = None,
) -> NDArray[np.float32]:
    """Patches (N, *patch) without their means from random places of planes (C, *spatial).

    Of twice as many those are kept of which most pixels are ``known`` (spatial), if that is given.
    Neighbours have about the same energy: coded side by side, they take about equally long. Those
    of planes on a GPU, of which all is known, stay there, in the order of their places.
    """
    axes = tuple(range(1, planes.ndim))
    if is_on_gpu(planes):
        assert gpu is not None
        return _drawn_on(gpu, planes, patch, n_samples, rng)
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
    order = np.argsort(np.square(samples).sum(axis=axes), kind="stable")
    # Groups in any order, so that threads get easy and hard ones alike.
    whole = len(order) // _NEIGHBOURS * _NEIGHBOURS
    groups = rng.permutation(order[:whole].reshape(-1, _NEIGHBOURS))
    return samples[np.concatenate([groups.reshape(-1), order[whole:]])]


def _drawn_on(
    gpu: Gpu,
    planes: NDArray[np.float32],
    patch: tuple[int, ...],
    n_samples: int,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Patches (N, *patch) without their means from random places of planes on a GPU."""
    places = (len(planes), *(n - m + 1 for n, m in zip(planes.shape[1:], patch, strict=True)))
    total = math.prod(places)
    drawn = np.sort(rng.choice(total, min(n_samples, total), replace=False, shuffle=False))
    corners = np.ravel_multi_index(np.unravel_index(drawn, places), planes.shape)
    offsets = tuple(np.indices((1, *patch)).reshape(len(places), -1))
    inside = np.ravel_multi_index(offsets, planes.shape)
    samples = planes.reshape(-1)[gpu.upload(corners)[:, None] + gpu.upload(inside)]
    samples -= samples.mean(axis=1, keepdims=True)
    return samples.reshape(-1, *patch)


def learn(
    samples: NDArray[np.float32],
    choice: Choice,
    *,
    tol: float,
    max_iter: int,
    seed: int,
    workers: Workers,
    on_share: Callable[[float], None] | None,
) -> KroneckerDictionaryLearning:
    """The model learned from patches (N, *patch), each coded to an error target."""
    model = KroneckerDictionaryLearning(
        choice.n_atoms,
        n_nonzero_coefs=choice.max_nonzeros,
        tol=tol,
        max_iter=max_iter,
        n_terms=choice.n_terms,
        random_state=seed,
        n_jobs=workers.n_threads,
        device=workers.device,
        callback=None if on_share is None else lambda state: on_share(state.iteration / max_iter),
    )
    return model.fit(samples)
