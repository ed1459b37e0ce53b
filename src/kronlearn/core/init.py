"""Initial dictionaries: where learning starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kronlearn.core.dictionary import Dictionary, KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.core.source import Source
from kronlearn.core.updates import canonical

__all__ = ["dct_factor", "perturbation", "starting_dictionary", "with_terms"]

STARTS = ("dct", "data", "random")


def dct_factor(m: int, n: int) -> NDArray[np.float64]:
    """The overcomplete DCT: n cosines sampled at m points, scaled to norm 1 (orthonormal if n ≤ m).

    Examples
    --------
    >>> import numpy as np
    >>> from kronlearn.core.init import dct_factor
    >>> D = dct_factor(8, 8)
    >>> bool(np.allclose(D.T @ D, np.eye(8)))
    True
    """
    frequencies = np.arange(n) / max(m, n)
    columns = np.cos(np.pi * np.outer(np.arange(m) + 0.5, frequencies))
    if m > 1:
        columns[:, 1:] -= columns[:, 1:].mean(axis=0)
    norms: NDArray[np.float64] = np.linalg.norm(columns, axis=0)
    return columns / norms


def perturbation(m: int, n: int) -> float:
    """How much noise to add to DCT factors, relative to the norm of their columns.

    Plain DCT factors are close to a saddle point of the error. On 8 × 8 image patches, 0.1 gave the
    lowest error after 100 iterations for n = m, and 0.5 for n = 2m.
    """
    return min(max(0.1 + 0.4 * (n / m - 1), 0.1), 0.5)


def starting_dictionary(
    init: Any,
    source: Source,
    n_atoms: tuple[int, ...],
    rng: np.random.RandomState,
    *,
    orthonormal: bool = False,
    n_terms: int = 1,
) -> Dictionary:
    """The dictionary that ``init`` names or is, with random terms added up to ``n_terms``.

    The added terms have random factors in all modes but the first, where they are zero: they change
    the dictionary only once it is updated.
    """
    if isinstance(init, str):
        if init not in STARTS:
            raise ValueError(
                f"init={init!r} does not exist; choose one of {', '.join(STARTS)}, or pass factors."
            )
        dictionary: Dictionary = _named_start(init, source, n_atoms, rng, orthonormal)
    else:
        dictionary = _user_start(init, source.patch_shape, n_atoms, orthonormal, n_terms)
    if n_terms == 1:
        return dictionary
    _check_terms(n_terms, dictionary)
    terms = [
        rng.standard_normal((n_terms - dictionary.n_terms, *stack.shape[1:]))
        * ((mode > 0) / np.sqrt(stack.shape[1]))
        for mode, stack in enumerate(dictionary.stacks)
    ]
    return with_terms(dictionary, terms)


def _check_terms(n_terms: int, dictionary: Dictionary) -> None:
    """Raise if there are more terms than any matrix of this size needs."""
    sizes = [m * n for m, n in zip(dictionary.patch_shape, dictionary.n_atoms, strict=True)]
    most = math.prod(sizes) // max(sizes)
    if len(sizes) > 1 and n_terms > most:
        raise ValueError(
            f"n_terms={n_terms}: a dictionary of {dictionary.n_atoms} atoms for samples of shape "
            f"{dictionary.patch_shape} is a sum of at most {most} terms; pass no more."
        )


def with_terms(dictionary: Dictionary, terms: Sequence[NDArray[np.float64]]) -> Dictionary:
    """The sum of a dictionary and more terms, one array ``(R, m_i, n_i)`` per mode."""
    stacks = [np.concatenate(pair) for pair in zip(dictionary.stacks, terms, strict=True)]
    return KroneckerSumDictionary(zip(*stacks, strict=True))


def _named_start(
    init: str,
    source: Source,
    n_atoms: tuple[int, ...],
    rng: np.random.RandomState,
    orthonormal: bool,
) -> KroneckerDictionary:
    factors = []
    for mode, (m, n) in enumerate(zip(source.patch_shape, n_atoms, strict=True)):
        noise = rng.standard_normal((m, n)) / np.sqrt(m)
        if init == "dct":
            columns = dct_factor(m, n) + perturbation(m, n) * noise
        elif init == "data":
            columns = _fibres(source, mode, n, rng) + 1e-3 * noise
        else:
            columns = noise
        if orthonormal:
            u, _, vt = np.linalg.svd(columns, full_matrices=False)
            factors.append(u @ vt)
        else:
            factors.append(canonical(columns, np.eye(m, n))[0])
    return KroneckerDictionary(factors)


def _fibres(source: Source, mode: int, n: int, rng: np.random.RandomState) -> NDArray[np.float64]:
    """The leading singular vectors, along one mode, of n random samples."""
    columns = np.zeros((source.patch_shape[mode], n))
    roots = source.sqrt_weights
    weights = None if roots is None else roots**2 / (roots @ roots)
    samples = source.take(rng.choice(len(source), n, p=weights)).astype(np.float64)
    for column, sample in enumerate(samples.reshape(-1, *source.patch_shape)):
        unfolded = np.moveaxis(sample, mode, 0).reshape(source.patch_shape[mode], -1)
        if np.isfinite(unfolded).all():
            columns[:, column] = np.linalg.svd(unfolded, full_matrices=False)[0][:, 0]
    return columns


def _user_start(
    init: Dictionary | Iterable[Any],
    patch_shape: tuple[int, ...],
    n_atoms: tuple[int, ...],
    orthonormal: bool,
    n_terms: int,
) -> Dictionary:
    try:
        dictionary = init if isinstance(init, Dictionary) else KroneckerDictionary(init)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"init is neither one of {', '.join(STARTS)}, nor a dictionary, nor factors: {problem}"
        ) from None
    if (dictionary.patch_shape, dictionary.n_atoms) != (patch_shape, n_atoms):
        raise ValueError(
            f"init has {dictionary.n_atoms} atoms for samples of shape {dictionary.patch_shape}, "
            f"but n_atoms={n_atoms} and the samples have shape {patch_shape}."
        )
    if dictionary.n_terms > n_terms:
        raise ValueError(
            f"init is a sum of {dictionary.n_terms} Kronecker products, and at most {n_terms} "
            "can be learned; raise n_terms if the learner has this parameter, or pass fewer terms, "
            "for example KroneckerDictionary.normalized(init.terms[0])."
        )
    if orthonormal and not dictionary.is_orthonormal:
        raise ValueError(
            'structure="orthonormal" needs an orthonormal start, but the factors in init are not '
            "orthonormal; orthonormalise them, for example with numpy.linalg.qr."
        )
    if dictionary.n_terms == 1:
        dictionary = KroneckerDictionary(dictionary.coding_factors)
    return dictionary.astype(np.float64)
