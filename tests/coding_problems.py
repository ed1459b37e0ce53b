"""Problems of sparse coding, and comparisons of codes with those of the reference."""

from functools import cache

import numpy as np
import pytest

import reference

# Patch shape, atoms per mode, samples, nonzeros: one to four modes, unequal modes, odd sizes, and
# the square shapes that have their own kernels.
SHAPES = [
    ((7,), (7,), 45, 3),
    ((20,), (33,), 45, 4),
    ((64,), (64,), 33, 6),
    ((3, 5), (4, 7), 45, 4),
    ((9, 4), (6, 11), 45, 4),
    ((8, 8), (8, 8), 120, 6),
    ((8, 8), (16, 16), 120, 6),
    ((8, 8), (16, 8), 45, 5),
    ((16, 16), (16, 16), 35, 8),
    ((16, 16), (32, 32), 19, 8),
    ((32, 32), (32, 32), 17, 4),
    ((8, 8), (17, 16), 33, 6),
    ((2, 3, 4), (3, 5, 4), 45, 4),
    ((4, 4, 4), (8, 8, 8), 33, 5),
    ((2, 3, 2, 3), (3, 3, 4, 3), 45, 4),
]
METHODS = ["omp", "ols", "exchange", "threshold"]
PURSUITS = ["omp", "ols", "exchange"]
RESIDUAL_ERROR = {np.float64: 1e-9, np.float32: 1e-4}

both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
with_or_without_weights = pytest.mark.parametrize(
    "weighted", [False, True], ids=["plain", "weighted"]
)


def named(shape):
    m, n = ("x".join(map(str, sizes)) for sizes in shape[:2])
    return f"{m} by {n}"


@cache
def problem(patch_shape, n_atoms, n_samples, method):
    """Factors and noisy samples in float64; thresholding gets orthonormal factors."""
    rng = np.random.default_rng(sum(patch_shape) + sum(n_atoms))
    if method == "threshold":
        factors = [
            np.linalg.qr(rng.standard_normal((m, m)))[0][:, :n]
            for m, n in zip(patch_shape, n_atoms, strict=True)
        ]
    else:
        factors = reference.random_factors(rng, patch_shape, n_atoms)
    return factors, rng.standard_normal((n_samples, *patch_shape))


def cast(arrays, dtype):
    return [array.astype(dtype) for array in arrays]


def winner_is_clear(factors, method, n_nonzero_coefs):
    """Whether no two atoms tie for all samples.

    In OLS, and so with exchanges, atoms tie once the selected ones leave a single dimension of a
    mode: all atoms of that mode then lower the error equally.
    """
    return method == "omp" or all(
        n <= m or n_nonzero_coefs < m for m, n in (factor.shape for factor in factors)
    )


def assert_codes_match(codes, expected, Y, factors, dtype, weights=None, clear=True, method=None):
    """Assert equal residual norms and supports for all samples (float64) or 99 % (float32).

    If no winner is clear, exchanges start from different supports and may end at different ones;
    then only the total error is compared.
    """
    root = 1.0 if weights is None else np.sqrt(weights.reshape(len(Y), -1))
    found = codes.toarray().astype(np.float64)
    norms = np.linalg.norm(root * reference.residuals(Y, factors, found), axis=1)
    expected_norms = np.linalg.norm(root * reference.residuals(Y, factors, expected), axis=1)
    size = np.linalg.norm(root * Y.reshape(len(Y), -1), axis=1)
    if method == "exchange" and not clear:
        assert np.linalg.norm(norms) == pytest.approx(np.linalg.norm(expected_norms), rel=0.02)
        return
    difference = np.abs(norms - expected_norms)
    share = 1.0 if dtype is np.float64 else 0.99
    assert np.mean(difference <= RESIDUAL_ERROR[dtype] * size) >= share
    assert np.all(difference <= 0.05 * size)  # whichever way a near tie is decided
    same_support = np.all((found != 0) == (expected != 0), axis=1)
    if clear:
        assert np.mean(same_support) >= share
    coefficient_error = np.abs(found - expected)[same_support].max() / np.abs(expected).max()
    assert coefficient_error <= {np.float64: 1e-8, np.float32: 2e-3}[dtype]
