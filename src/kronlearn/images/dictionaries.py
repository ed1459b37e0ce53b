"""Dictionaries for the patches of an image: shapes, and learning them from the image itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.cuda.arrays import in_memory, is_on_gpu
from kronlearn.cuda.device import Gpu
from kronlearn.engines.workers import Workers
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.images.patch_grid import PatchGrid, sizes_per_axis
from kronlearn.parameters import check_count

__all__ = ["Choice", "choose", "default_patch", "draw_patches", "learn", "spans_channels"]

# Patches that are coded side by side in the widest vectors.
_NEIGHBOURS = 16
# More nonzeros than this no patch gets: beyond, time is lost and nothing won.
_MOST_NONZEROS = 64
# A dictionary learned with more of them denoises no better: by less than 0.04 dB at a noise of 5,
# and 0.003 dB at 10.
_MOST_TO_LEARN_FROM = 16


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

    By default there are twice as many atoms as pixels along an axis.
    """
    check_count("n_terms", n_terms)
    if dictionary is not None:
        if patch_size is not None or n_atoms is not None or n_terms != 1:
            raise ValueError(
                "patch_size, n_atoms and n_terms are those of the dictionary; leave them out."
            )
        if not isinstance(dictionary, Dictionary):
            dictionary = KroneckerDictionary(in_memory(dictionary))
        _check_patch(dictionary.patch_shape, shape)
        return Choice(dictionary.patch_shape, dictionary.n_atoms, dictionary, dictionary.n_terms)
    patch = default_patch(shape, pixels)
    if patch_size is not None:
        patch = sizes_per_axis("patch_size", patch_size, shape)
        _check_patch(patch, shape)
    atoms = tuple(2 * m if m > 1 else 1 for m in patch)
    if n_atoms is not None:
        atoms = sizes_per_axis("n_atoms", n_atoms, shape)
    return Choice(patch, atoms, n_terms=int(n_terms))


def spans_channels(dictionary: Any, channels: NDArray[Any], has_channels: bool) -> bool:
    """Whether a dictionary for an image (C, *spatial) has a last mode, for the channels."""
    return has_channels and len(getattr(dictionary, "patch_shape", ())) == channels.ndim


def default_patch(shape: Sequence[int], pixels: int) -> tuple[int, ...]:
    """A patch of about so many pixels, as even as the image allows, none of its sides over 64."""
    axes = sum(size > 1 for size in shape)
    size = min(64, max(1, round(pixels ** (1 / max(axes, 1)))))
    return tuple(min(size, length) for length in shape)


def _check_patch(patch: tuple[int, ...], shape: Sequence[int]) -> None:
    if len(patch) != len(shape):
        raise ValueError(
            f"Patches of shape {patch} have {len(patch)} axes, but the image has {len(shape)} "
            "spatial ones; they must agree (with channel_axis, a dictionary may have one more)."
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
    grid = PatchGrid(planes.shape, (1, *patch), (1,) * planes.ndim)
    wanted = n_samples if known is None else 2 * n_samples
    drawn = np.sort(rng.choice(len(grid), min(wanted, len(grid)), replace=False, shuffle=False))
    if is_on_gpu(planes):
        assert gpu is not None
        pixels = gpu.upload(grid.first_pixels(drawn))[:, None] + gpu.upload(grid.offsets.ravel())
        samples = planes.reshape(-1)[pixels]
        samples -= samples.mean(axis=1, keepdims=True)
        return samples.reshape(-1, *patch)
    axes = tuple(range(1, planes.ndim))
    if known is not None:
        places = PatchGrid(known.shape, patch, (1,) * known.ndim)
        shares = places.cut(known, drawn % len(places)).mean(axis=axes)
        drawn = drawn[np.sort(np.argsort(-shares, kind="stable")[:n_samples])]
    samples = grid.cut(planes, drawn).reshape(-1, *patch)
    samples = samples - samples.mean(axis=axes, keepdims=True)
    order = np.argsort(np.square(samples).sum(axis=axes), kind="stable")
    # Groups in any order, so that threads get easy and hard ones alike.
    whole = len(order) // _NEIGHBOURS * _NEIGHBOURS
    groups = rng.permutation(order[:whole].reshape(-1, _NEIGHBOURS))
    return samples[np.concatenate([groups.reshape(-1), order[whole:]])]


def learn(
    planes: NDArray[np.float32],
    choice: Choice,
    n_samples: int,
    *,
    tol: float,
    max_iter: int,
    seed: int,
    workers: Workers,
    on_share: Callable[[float], None] | None,
    known: NDArray[np.bool_] | None = None,
) -> KroneckerDictionaryLearning:
    """The model learned from patches of planes (C, *spatial), each coded to an error target."""
    rng = np.random.default_rng(seed)
    samples = draw_patches(planes, choice.patch_size, n_samples, rng, known, workers.gpu)
    model = KroneckerDictionaryLearning(
        choice.n_atoms,
        n_nonzero_coefs=min(choice.max_nonzeros, _MOST_TO_LEARN_FROM),
        tol=tol,
        max_iter=max_iter,
        n_terms=choice.n_terms,
        random_state=seed,
        n_jobs=workers.n_threads,
        device=workers.device,
        callback=None if on_share is None else lambda state: on_share(state.iteration / max_iter),
    )
    return model.fit(samples)
