"""Exchanges end where no single one helps, and do no harm on the way."""

import numpy as np
import pytest

import kronlearn as kl
import reference
from coding_problems import SHAPES, both_dtypes, cast, named, with_or_without_weights
from learning_problems import smooth_samples


def exchanged_error(y, D, support):
    """The smallest squared error after an exchange of one atom, by brute force."""
    errors = []
    for i in range(len(support)):
        others = np.delete(support, i)
        basis = np.linalg.qr(D[:, others])[0]
        residual, left = y - basis @ (basis.T @ y), D - basis @ (basis.T @ D)
        remaining = np.sum(left**2, axis=0)
        gain = np.where(remaining > 1e-8, left.T @ residual, 0.0) ** 2
        errors.append(residual @ residual - np.max(gain / np.maximum(remaining, 1e-8)))
    return min(errors)


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@with_or_without_weights
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (1, 3, 6, 11, 13)], ids=named)
def test_no_exchange_of_one_atom_lowers_the_error(shape, weighted, dtype):
    patch_shape, n_atoms, _, n_nonzero_coefs = shape
    factors = cast(reference.dct_factors(patch_shape, n_atoms), dtype)
    rng = np.random.default_rng(4)
    Y = smooth_samples(rng, 50, patch_shape).astype(dtype)
    weights = (rng.random(Y.shape) < 0.8).astype(float) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    ols, codes = (
        kl.sparse_code(Y, factors, n_nonzero_coefs, method=method, **options).toarray()
        for method in ("ols", "exchange")
    )
    root = np.sqrt(weights).reshape(50, -1)
    before, after = (
        np.sum((root * reference.residuals(Y, factors, X)) ** 2, axis=1) for X in (ols, codes)
    )
    energy = np.sum((root * Y.reshape(50, -1)) ** 2, axis=1)
    slack = {np.float64: 1e-13, np.float32: 1e-6}[dtype] * energy
    assert np.all(after <= before + slack)
    assert np.any(after < 0.99 * before)
    for k in range(0, 50, 3):
        D = root[k][:, None] * reference.dense(factors)
        y = root[k] * Y[k].ravel().astype(float)
        best = exchanged_error(y, D, np.flatnonzero(codes[k]))
        assert best >= after[k] * (1 - 1e-4) - slack[k]


@both_dtypes
@with_or_without_weights
@pytest.mark.parametrize("cap", [None, 8], ids=["no cap", "cap 8"])
def test_exchanges_meet_every_tolerance_that_ols_meets_with_no_more_atoms(
    rng, cap, weighted, dtype
):
    factors = cast(reference.dct_factors((8, 8), (12, 12)), dtype)
    Y = smooth_samples(rng, 300, (8, 8)).astype(dtype)
    weights = (rng.random(Y.shape) < 0.8).astype(float) if weighted else np.ones(Y.shape)
    options = {"weights": weights} if weighted else {}
    tol = 0.4 * np.linalg.norm((np.sqrt(weights) * Y).reshape(300, -1), axis=1)
    ols, exchange = (
        kl.sparse_code(Y, factors, cap, tol=tol, method=method, **options)
        for method in ("ols", "exchange")
    )
    root = np.sqrt(weights).reshape(300, -1)
    before, after = (
        np.linalg.norm(root * reference.residuals(Y, factors, X.toarray()), axis=1)
        for X in (ols, exchange)
    )
    within = tol * (1 + {np.float64: 1e-9, np.float32: 1e-5}[dtype])
    assert np.all(after[before <= tol] <= within[before <= tol])
    assert np.all(np.diff(exchange.indptr) <= np.diff(ols.indptr))
    assert exchange.nnz < ols.nnz


@pytest.mark.parametrize("width", [1, 19, 20])
@both_dtypes
def test_exchanges_work_with_one_or_all_atoms(rng, dtype, width):
    factors = cast(reference.random_factors(rng, (5, 4), (5, 4)), dtype)
    factors[0][:, 3] = factors[0][:, 1]
    Y = rng.standard_normal((40, 5, 4)).astype(dtype)
    ols, codes = (kl.sparse_code(Y, factors, width, method=m) for m in ("ols", "exchange"))
    before, after = (
        np.linalg.norm(reference.residuals(Y, factors, X.toarray()), axis=1) for X in (ols, codes)
    )
    assert np.all(np.isfinite(codes.data))
    assert np.all(after <= before * (1 + 1e-5))
