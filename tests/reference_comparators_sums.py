"""One iteration of the methods that learn a sum of Kronecker products, in dense float64 NumPy.

Conventions are those of ``reference_comparators``. ``terms[r][i]`` ``(m_i, n_i)`` is the factor of
term r in mode i. The dictionary to code with is ``D·diag(1/c)``, where
``D = Σ_r terms[r][0] ⊗ terms[r][1] ⊗ …`` and ``c`` holds the norms of its columns (1 for a zero
column). The signs of columns are not changed. The codes ``X``, given and returned, belong to the
dictionary with unit columns; ``D`` itself multiplies ``X/c``.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np

import reference
from reference_comparators import dense_others, flat, least_squares, unfold


def dense_sum(terms):
    """Return ``Σ_r D_1^(r) ⊗ D_2^(r) ⊗ …``, without normalisation."""
    return sum(reference.dense(term) for term in terms)


def column_norms(D):
    """Return the norms of the columns, 1 for zero columns."""
    norms = np.linalg.norm(D, axis=0)
    return np.where(norms > 0, norms, 1.0)


def unit_columns(D):
    """Normalise the columns, for coding."""
    return D / column_norms(D)


def start_terms(rng, factors, n_terms):
    """Return terms whose sum is ``⊗ factors``: all terms but one have a first factor of zeros.

    The other factors of these terms are Gaussian with unit columns, so that the update of the first
    mode, which comes first, determines the first factors of all terms.
    """
    terms = [[np.array(factor, dtype=np.float64) for factor in factors]]
    shapes = [factor.shape for factor in factors]
    for _ in range(n_terms - 1):
        random = reference.random_factors(rng, *zip(*shapes, strict=True))
        terms.append([np.zeros(shapes[0]), *random[1:]])
    return terms


# Rearrangement: a Kronecker product becomes an outer product


def rearrange(D, patch_shape, n_atoms):
    """Rearrange D to a tensor ``(n_1 m_1, …)``, for a product ``vec(D_1) ∘ vec(D_2) ∘ …``.

    ``vec`` stacks columns; with two modes the tensor is the matrix ``vec(D_1) vec(D_2)ᵀ``.
    """
    d = len(patch_shape)
    pairs = [axis for mode in range(d) for axis in (d + mode, mode)]
    T = np.reshape(D, (*patch_shape, *n_atoms)).transpose(pairs)
    return T.reshape([n * m for m, n in zip(patch_shape, n_atoms, strict=True)])


def arrange(T, patch_shape, n_atoms):
    """Invert :func:`rearrange`; return a matrix ``(m_1·…·m_d, n_1·…·n_d)``."""
    d = len(patch_shape)
    split = [size for m, n in zip(patch_shape, n_atoms, strict=True) for size in (n, m)]
    order = [2 * mode + 1 for mode in range(d)] + [2 * mode for mode in range(d)]
    return np.reshape(T, split).transpose(order).reshape(np.prod(patch_shape), -1)


# SuKro with a given number of terms, and TeFDiL


def sukro_als_update(Y, terms, X, n_sweeps=1):
    """SuKro by alternating least squares: terms, and codes for their sum with unit columns.

    For each mode in turn the factors of all terms are found jointly; directions that the codes do
    not determine stay as they were. The codes are divided by the column norms on entry and
    multiplied by the new norms at the end.
    """
    terms = [[np.array(factor, dtype=np.float64) for factor in term] for term in terms]
    n_atoms = [factor.shape[1] for factor in terms[0]]
    X = X / column_norms(dense_sum(terms))
    for _ in range(n_sweeps):
        for mode in range(len(n_atoms)):
            codes = unfold(X.reshape(-1, *n_atoms), mode)
            samples = unfold(np.asarray(Y, dtype=np.float64), mode)
            design = np.concatenate(
                [codes @ dense_others(term, mode).T for term in terms], axis=1
            )  # (N, n_terms · n_i, product of the other m)
            solution = least_squares(
                design.transpose(0, 2, 1).reshape(-1, design.shape[1]),
                samples.transpose(0, 2, 1).reshape(-1, samples.shape[1]),
                np.concatenate([term[mode] for term in terms], axis=1).T,
            )
            for term, factor in zip(terms, np.split(solution, len(terms)), strict=True):
                term[mode] = factor.T
    return terms, X * column_norms(dense_sum(terms))


def tefdil_update(Y, terms, X, ridge=0.01, n_sweeps=50, tol=1e-8):
    """TeFDiL: the Kronecker sum nearest to the ridge least-squares dictionary, and its codes.

    ``D_ls = YXᵀ(XXᵀ + ridge·‖XXᵀ‖_F I)⁻¹``, with a pseudo-inverse if ``ridge`` is 0; unused columns
    of it are zero. Its rearrangement is approximated by as many rank-1 terms as ``terms`` has: for
    two modes the leading singular triples in descending order, else by :func:`cp_als` from the
    current terms. Terms are balanced by :func:`balanced`. An atom of a mode that no code uses keeps
    its columns. A single term is a separable dictionary; making its factors canonical flips codes
    but changes no error.
    """
    patch_shape, n_atoms = zip(*[factor.shape for factor in terms[0]], strict=True)
    gram = X.T @ X
    gram += ridge * np.linalg.norm(gram) * np.eye(len(gram))
    D = flat(Y).T @ X @ np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    T = rearrange(D, patch_shape, n_atoms)
    if len(n_atoms) == 2:
        U, s, Vt = np.linalg.svd(T, full_matrices=False)
        columns = [(U * s)[:, : len(terms)], Vt.T[:, : len(terms)]]
    else:
        start = [
            np.stack([term[mode].ravel("F") for term in terms], axis=1)
            for mode in range(len(n_atoms))
        ]
        columns = cp_als(T, start, n_sweeps, tol)
    new = [
        [
            column[:, r].reshape(shape, order="F")
            for column, shape in zip(columns, zip(patch_shape, n_atoms, strict=True), strict=True)
        ]
        for r in range(len(terms))
    ]
    new = [balanced(term) for term in new]
    for mode in range(len(n_atoms)):
        unused = ~(unfold(X.reshape(-1, *n_atoms), mode) != 0).any(axis=(0, 2))
        for term, old in zip(new, terms, strict=True):
            term[mode][:, unused] = old[mode][:, unused]
    return new, X * column_norms(dense_sum(new))


def cp_als(T, columns, n_sweeps, tol):
    """Approximate ``T`` by a sum of outer products of the columns of ``(size of the mode, r)``.

    Each sweep solves for the matrix of each mode in turn. At most ``n_sweeps`` sweeps are done,
    until one lowers the squared error by at most ``tol·‖T‖²``.
    """
    columns = list(columns)
    error = np.inf
    for _ in range(n_sweeps):
        for mode in range(T.ndim):
            others = _column_products([*columns[:mode], *columns[mode + 1 :]])
            columns[mode] = least_squares(others, unfold(T[None], mode)[0].T, columns[mode].T).T
        before, error = error, np.sum((T.ravel() - _column_products(columns).sum(axis=1)) ** 2)
        if before - error <= tol * np.sum(T**2):
            break
    return columns


def _column_products(columns):
    """Return the column-wise Kronecker products of matrices."""
    r = columns[0].shape[1] if columns else 1
    first = np.ones((1, r))
    return reduce(lambda A, B: (A[:, None] * B).reshape(-1, r), columns, first)


def balanced(term):
    """Scale the factors of a Kronecker product to equal Frobenius norms.

    The entry of largest magnitude, the first in C order, is positive in all factors but the first.
    If the product is zero, so are all factors.
    """
    norms = [np.linalg.norm(factor) for factor in term]
    size = np.prod(norms) ** (1 / len(term))
    if size == 0:
        return [np.zeros_like(factor) for factor in term]
    signs = [1.0 if factor.flat[np.argmax(np.abs(factor))] > 0 else -1.0 for factor in term]
    signs[0] = np.prod(signs[1:])
    return [
        factor * (sign * size / norm) for factor, sign, norm in zip(term, signs, norms, strict=True)
    ]


# SuKro and STARK with nuclear norms


class SuKroState(NamedTuple):
    """``D`` ``(m, n)``, low-rank ``W`` and scaled dual ``Z``, both like ``rearrange(D)``."""

    D: np.ndarray
    W: np.ndarray
    Z: np.ndarray


def sukro_admm_start(factors):
    """Start with ``D = ⊗ factors``, ``W = R(D)``, ``Z = 0``."""
    W = rearrange(reference.dense(factors), *zip(*[f.shape for f in factors], strict=True))
    return SuKroState(reference.dense(factors), W, np.zeros_like(W))


def sukro_admm_update(Y, state, X, patch_shape, n_atoms, alpha, u, n_steps=200, tol=1e-4):
    """SuKro with a nuclear norm: ``min ½‖Y − DX‖² + λ‖R(D)‖_*`` by ADMM, two modes only.

    ``λ = alpha·‖Y‖₂`` with the spectral norm of the flattened samples. Each step is

        W = SVT_{λ/u}(R(D) + Z),  D = (YXᵀ + u R⁻¹(W − Z))(XXᵀ + uI)⁻¹,  Z = Z + R(D) − W

    until ``‖R(D) − W‖ < tol·‖D‖``, at most ``n_steps`` times. The D step uses ``X`` as it was coded
    with unit columns. ``D`` in the returned state, from which the next call continues, keeps its
    column norms; the returned codes are multiplied by them, so that their products with unit
    columns are ``DX``.
    """
    D, W, Z = state
    weight = alpha * np.linalg.norm(flat(Y), 2)
    for _ in range(n_steps):
        W = shrink_singular_values(rearrange(D, patch_shape, n_atoms) + Z, weight / u)
        right = flat(Y).T @ X + u * arrange(W - Z, patch_shape, n_atoms)
        D = np.linalg.solve(X.T @ X + u * np.eye(X.shape[1]), right.T).T
        gap = rearrange(D, patch_shape, n_atoms) - W
        Z = Z + gap
        if np.linalg.norm(gap) < tol * np.linalg.norm(D):
            break
    return SuKroState(D, W, Z), X * column_norms(D)


def shrink_singular_values(M, threshold):
    """Lower every singular value of a matrix by the threshold, at most to 0."""
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    return (U * np.maximum(s - threshold, 0)) @ Vt


class StarkState(NamedTuple):
    """``D`` ``(m, n)``; for each mode a copy ``W`` of ``rearrange(D)`` and a multiplier ``A``."""

    D: np.ndarray
    W: list
    A: list


def stark_start(factors):
    """Start with ``D = ⊗ factors``, every ``W = R(D)`` and every ``A = 0``."""
    D, W, Z = sukro_admm_start(factors)
    return StarkState(D, [W for _ in factors], [Z for _ in factors])


def stark_update(Y, state, X, patch_shape, n_atoms, weight, penalty, n_steps=10):
    """STARK: ``min ½‖Y − DX‖² + λ Σ_k ‖unfold_k(R(D))‖_*`` by ADMM, any number K of modes.

    With ``λ = weight`` and ``γ = penalty``, each of exactly ``n_steps`` steps is

        D   = (YXᵀ + R⁻¹(Σ_k A_k + γ W_k))(XXᵀ + γK I)⁻¹
        W_k = fold_k(SVT_{λ/γ}(unfold_k(R(D) − A_k/γ)))
        A_k = A_k − γ(R(D) − W_k)

    Codes and scales are treated as in :func:`sukro_admm_update`. With two modes both nuclear norms
    are the same: the problem is SuKro's with 2λ, and the augmented term is SuKro's with u = 2γ and
    Z = −A/γ. The steps differ, since SuKro updates W first, but converge to the same point.
    """
    D, W, A = state
    modes = range(len(patch_shape))
    for _ in range(n_steps):
        pull = sum(A[k] + penalty * W[k] for k in modes)
        right = flat(Y).T @ X + arrange(pull, patch_shape, n_atoms)
        gram = X.T @ X + penalty * len(modes) * np.eye(X.shape[1])
        D = np.linalg.solve(gram, right.T).T
        T = rearrange(D, patch_shape, n_atoms)
        W = [shrink_unfolding(T - A[k] / penalty, k, weight / penalty) for k in modes]
        A = [A[k] - penalty * (T - W[k]) for k in modes]
    return StarkState(D, W, A), X * column_norms(D)


def shrink_unfolding(T, mode, threshold):
    """Shrink the singular values of the unfolding of a tensor along one mode."""
    moved = np.moveaxis(T, mode, 0)
    shrunk = shrink_singular_values(moved.reshape(len(moved), -1), threshold)
    return np.moveaxis(shrunk.reshape(moved.shape), 0, mode)


def stark_weights(Y):
    """Return the published ``λ = ‖Y‖_F^1.5 / 10`` and ``γ = λ / 20``."""
    weight = np.linalg.norm(Y) ** 1.5 / 10
    return weight, weight / 20
