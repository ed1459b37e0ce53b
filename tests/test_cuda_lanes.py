"""The kernels of GPUs for 16 × 16 and 32 × 32 atoms, run on the processor by emulation.

They code samples with several lanes each and add up the moments of one mode; they must agree with
``sparse_code`` and with sums in float64.
"""

from __future__ import annotations

import numpy as np
import pytest

import kronlearn as kl
import reference
from emulated_gpu import aligned
from lane_kernels import Run, kernels
from reference import dense

#: Entries and atoms of a side, nonzeros, method.
SMALL, SMALL_OLS, LARGE = (8, 16, 6, "omp"), (8, 16, 5, "ols"), (32, 32, 8, "ols")
MIDDLE = [
    pytest.param((16, 16, 12, "omp"), marks=pytest.mark.slow),
    pytest.param((16, 32, 16, "omp"), marks=pytest.mark.slow),
]
CASES = [SMALL, SMALL_OLS, LARGE, *MIDDLE]


def random_factors(rng, m, n):
    """Two factors with unit-norm columns, far from orthogonal where there is room for it."""
    return [factor.astype(np.float32) for factor in reference.random_factors(rng, (m, m), (n, n))]


def all_kinds(rng, m, factors, n_samples):
    """Smooth, white, exactly sparse, constant, zero and tiny samples."""
    grid = np.linspace(0.0, 1.0, m)
    a, b, c, d = rng.uniform(-2.0, 2.0, (4, n_samples, 1, 1))
    smooth = 100.0 + 20.0 * np.sin(2.0 * a * grid[:, None] + 3.0 * b * grid + c) + d * grid**2
    smooth += 0.5 * rng.standard_normal(smooth.shape)
    white = rng.standard_normal((n_samples, m, m))
    D = dense(factors)
    sparse = np.zeros((n_samples, D.shape[1]))
    for code in sparse:
        code[rng.choice(D.shape[1], 3, replace=False)] = rng.uniform(1.0, 3.0, 3)
    sparse = (sparse @ D.T).reshape(n_samples, m, m)
    constant = np.full((2, m, m), [[[7.0]], [[-0.1]]])
    zero, tiny = np.zeros((2, m, m)), 1e-20 * rng.standard_normal((3, m, m))
    parts = [smooth, white, sparse, constant, zero, tiny]
    return rng.permutation(np.concatenate(parts)).astype(np.float32)


def leads(Y, factors, case):
    """How clearly a pursuit's atoms win: the least lead over the second, relative to the sample."""
    _, _, width, method = case
    D = dense(factors)
    least = np.full(len(Y), np.inf)
    for k, y in enumerate(Y.reshape(len(Y), -1).astype(np.float64)):
        size, residual, Q = np.linalg.norm(y), y, np.zeros((D.shape[0], 0))
        norm2 = np.ones(D.shape[1])
        while Q.shape[1] < width and np.linalg.norm(residual) > 1e-7 * size:
            strength = np.abs(D.T @ residual)
            if method == "ols":
                strength /= np.sqrt(np.maximum(norm2, 1e-5))
            second, first = np.partition(strength, -2)[-2:]
            least[k] = min(least[k], (first - second - 1e-5 * first) / size)
            new = D[:, np.argmax(strength)]
            for _ in range(2):
                new = new - Q @ (Q.T @ new)
            if np.linalg.norm(new) < 1e-5:
                break
            Q = np.column_stack([Q, new / np.linalg.norm(new)])
            residual = residual - Q[:, -1] * (Q[:, -1] @ residual)
            norm2 = norm2 - (D.T @ Q[:, -1]) ** 2
    return least


def residual_norms(Y, factors, X):
    flat = np.asarray(Y, np.float64).reshape(len(Y), -1)
    return np.linalg.norm(flat - X.astype(np.float64) @ dense(factors).T, axis=1)


def same_supports(A, B, Y):
    """Where codes use the same atoms, but for coefficients that are rounding."""
    least = 1e-5 * np.linalg.norm(Y.reshape(len(Y), -1), axis=1, keepdims=True)
    return ((np.abs(A) > least) == (np.abs(B) > least)).all(axis=1)


def tf32(x):
    """Numbers as the tensor cores are given them."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def projected(X, n, factor):
    """``Z = X Fᵀ`` as the kernels compute it, an atom after the other in single precision."""
    X, F = X.reshape(-1, n, n).astype(np.float64), factor.astype(np.float32).astype(np.float64)
    Z = np.zeros((len(X), n, len(F)), np.float32)
    for j in range(n):
        Z = (Z + X[:, :, j, None] * F[:, j]).astype(np.float32)
    return Z


def check_sums(sums, run, side, factor, rows):
    """Against sums in float64, of Z as it was rounded and of Z itself."""
    m, n, _, _ = run.case
    X = run.dense_codes[rows].reshape(-1, n, n)
    Y = run.Y[rows].astype(np.float64).reshape(-1, m, m)
    if side == "right":
        X, Y = X.transpose(0, 2, 1), Y.transpose(0, 2, 1)
    exact = X.astype(np.float64) @ factor.astype(np.float64).T
    rounded = tf32(projected(np.ascontiguousarray(X), n, factor)).astype(np.float64)
    for Z, tolerance in ((exact, 2e-3), (rounded, 1e-5)):
        P, C = np.einsum("kip,kjp->ij", Z, Z), np.einsum("kiq,kpq->ip", Z, Y)
        assert np.abs(sums.P - P).max() <= tolerance * np.abs(P).max()
        assert np.abs(sums.C - C).max() <= tolerance * np.abs(C).max()
    if sums.counts is None:
        return
    residual2, nonzeros = (run.arrays[name][rows] for name in ("residual2", "nonzeros"))
    counts = np.sum(Y**2), residual2.astype(np.float64).sum(), np.sum(X**2.0), nonzeros.sum()
    np.testing.assert_allclose(sums.counts, counts, rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes_and_sums_agree_with_the_processor(rng, case):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = all_kinds(rng, m, factors, 65 if m < 32 else 9)
    run = Run(case, Y, factors)
    sums = run.code()
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, method=method).toarray()
    size = np.linalg.norm(Y.reshape(len(Y), -1).astype(np.float64), axis=1)
    assert not run.sure[(size > 0) & (size < 1e-18)].any()
    assert run.sure[size == 0].all()
    assert run.sure.sum() > 0.6 * len(Y)

    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > 0.4 * len(Y)
    X = run.dense_codes
    assert same_supports(X, expected, Y)[clear].all()
    norms, reached = residual_norms(Y, factors, X), residual_norms(Y, factors, expected)
    same = run.sure & same_supports(X, expected, Y)
    np.testing.assert_allclose(norms[same], reached[same], rtol=1e-3, atol=1e-6 * size.max())
    assert (np.abs(X[same] - expected[same]).max(axis=1) <= 1e-3 * size[same]).all()
    given = np.sqrt(run.arrays["residual2"][run.sure].astype(np.float64))
    assert (np.abs(given - norms[run.sure]) <= 1e-3 * (norms + size)[run.sure]).all()

    check_sums(sums, run, "left", factors[1], run.sure)
    moved = factors[0] * rng.uniform(0.5, 2.0, n).astype(np.float32)
    check_sums(run.sum_right(moved), run, "right", moved, run.sure)


@pytest.mark.parametrize("case", [SMALL, SMALL_OLS, MIDDLE[1]], ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_coding_stops_at_an_error_target(rng, case, each):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = all_kinds(rng, m, factors, 13)
    tol = rng.uniform(0.3, 6.0, len(Y)).astype(np.float32) if each else 4.0
    run = Run(case, Y, factors, tol)
    sums = run.code()
    expected = kl.sparse_code(Y, factors, n_nonzero_coefs=width, tol=tol, method=method).toarray()
    clear = run.sure & (leads(Y, factors, case) > 3e-6)
    assert clear.sum() > 0.4 * len(Y)
    assert same_supports(run.dense_codes, expected, Y)[clear].all()
    assert len(np.unique(run.arrays["nonzeros"][clear])) > 2
    check_sums(sums, run, "left", factors[1], run.sure)


def test_what_single_precision_cannot_decide_is_left_to_double(rng):
    factors = random_factors(rng, 8, 16)
    Y = all_kinds(rng, 8, factors, 13)
    size = np.linalg.norm(Y.reshape(len(Y), -1), axis=1)
    run = Run(SMALL, Y, factors, 1e-5 * size)
    sums = run.code()
    np.testing.assert_array_equal(run.sure, size == 0)
    for total in (sums.P, sums.C, sums.counts):
        assert not total.any()


@pytest.mark.parametrize("listed", [True, False])
def test_atoms_that_are_nearly_the_same_are_left_to_double_or_left_out(rng, listed):
    case = SMALL_OLS
    factors = random_factors(rng, 8, 16)
    first, aside = np.linalg.qr(rng.standard_normal((8, 2)))[0].T
    factors[0][:, 3], factors[0][:, 12] = first, np.cos(0.01) * first + np.sin(0.01) * aside
    # Its second part is in the direction in which the two differ: OLS takes both.
    y = np.outer(10.0 * first + 2.0 * aside, factors[1][:, 5])
    Y = np.stack([y, np.outer(factors[0][:, 1], factors[1][:, 2]), y]).astype(np.float32)
    run = Run(case, Y, factors, lists_doubtful=listed)
    sums = run.code()
    np.testing.assert_array_equal(run.sure[[0, 2]], not listed)
    check_sums(sums, run, "left", factors[1], run.sure)
    if not listed:
        np.testing.assert_array_equal(run.arrays["nonzeros"][[0, 2]], 1)
        assert (run.arrays["residual2"][[0, 2]] > 3).all()


@pytest.mark.parametrize("case", [SMALL, LARGE], ids=str)
def test_bad_samples_are_reported_and_contribute_nothing(rng, case):
    m, n, width, method = case
    factors = random_factors(rng, m, n)
    Y = rng.standard_normal((21, m, m)).astype(np.float32)
    bad = [3, 4, 13, 20]
    Y[20, 0, 0], Y[3, 2, 1], Y[13, 7, 7], Y[4] = np.nan, np.inf, -np.inf, 1e30
    run = Run(case, Y, factors)
    sums = run.code()
    assert run.arrays["first_bad"][0] == 1003
    assert not run.dense_codes[bad].any()
    assert (run.arrays["nonzeros"][bad] == 0).all()
    assert (run.arrays["residual2"][bad] == 0).all()
    good = np.delete(np.arange(len(Y)), bad)
    check_sums(sums, run, "left", factors[1], good)
    assert run.sure.all()
    check_sums(run.sum_right(factors[0]), run, "right", factors[0], good)
    expected = kl.sparse_code(Y[good], factors, n_nonzero_coefs=width, method=method).toarray()
    np.testing.assert_allclose(run.dense_codes[good], expected, atol=1e-4)


@pytest.mark.parametrize("case", [MIDDLE[0], LARGE], ids=str)
def test_of_equal_correlations_the_first_atom_wins(rng, case):
    # Entries of equal magnitude: with unit vectors for atoms, correlations are those exactly.
    m, _, width, _ = case
    Y = rng.choice(np.array([-2.0, -1.0, 0.0, 1.0, 2.0], np.float32), (11, m, m))
    run = Run(case, Y, [np.eye(m, dtype=np.float32)] * 2)
    run.code()
    assert run.sure.all()
    for y, x in zip(Y.reshape(len(Y), -1), run.dense_codes, strict=True):
        order = np.argsort(-np.abs(y), kind="stable")[:width]
        kept = np.zeros(m * m)
        kept[order] = y[order]
        np.testing.assert_array_equal(x, kept)


@pytest.mark.parametrize("case", [SMALL, SMALL_OLS], ids=str)
def test_of_duplicate_atoms_only_the_first_is_used(rng, case):
    factors = random_factors(rng, 8, 16)
    factors[0][:, 13], factors[1][:, 9] = factors[0][:, 2], factors[1][:, 8]
    factors[1][:, 15] = factors[1][:, 0]
    run = Run(case, all_kinds(rng, 8, factors, 20), factors)
    run.code()
    X = run.dense_codes.reshape(-1, 16, 16)
    assert not X[:, 13].any()
    assert not X[:, :, [9, 15]].any()
    assert run.sure.sum() > 30


def test_codes_and_sums_are_of_the_factors_as_given(rng):
    factors = random_factors(rng, 8, 16)
    Y = rng.standard_normal((43, 8, 8)).astype(np.float32)
    lengths = [2.0 ** rng.integers(-3, 4, 16) for _ in range(2)]
    scaled = [factor * length for factor, length in zip(factors, lengths, strict=True)]
    unit, run = (Run(SMALL, Y, given) for given in (factors, scaled))
    sums = unit.code(), run.code()
    np.testing.assert_allclose(run.dense_codes * np.kron(*lengths), unit.dense_codes, rtol=1e-5)
    np.testing.assert_allclose(sums[1].P * np.outer(lengths[0], lengths[0]), sums[0].P, atol=1e-4)
    np.testing.assert_allclose(sums[1].C * lengths[0][:, None], sums[0].C, atol=1e-4)
    assert run.sure.all()
    np.testing.assert_allclose(sums[1].counts[2], np.sum(run.dense_codes**2.0), rtol=1e-6)


@pytest.mark.parametrize("case", [SMALL, MIDDLE[1]], ids=str)
def test_sums_have_the_same_bits_in_every_run(rng, case):
    factors = random_factors(rng, case[0], case[1])
    Y = all_kinds(rng, case[0], factors, 13)
    runs = [Run(case, Y, factors) for _ in range(2)]
    coded = [run.code() for run in runs]
    summed = [run.sum_right(factors[0]) for run in runs]
    for first, second in (coded, summed):
        for name, total in vars(first).items():
            np.testing.assert_array_equal(total, getattr(second, name))


def test_nothing_is_done_once_iterations_have_stopped(rng):
    factors = random_factors(rng, 8, 16)
    run = Run(SMALL, all_kinds(rng, 8, factors, 13), factors)
    run.arrays["stopped"] = np.array([1], np.int32)
    partial, partial_counts = np.full((3, 16, 24), np.nan, np.float32), np.full((3, 4), np.nan)
    before = {name: array.copy() for name, array in run.arrays.items()}
    tables = aligned(run.tables.numbers.astype(np.float32))
    run.launch("code_and_sum_left", run.task, tables, partial, partial_counts)
    run.launch("sum_right", run.task, np.ascontiguousarray(factors[0]), partial)
    assert np.isnan(partial).all()
    assert np.isnan(partial_counts).all()
    for name, array in before.items():
        np.testing.assert_array_equal(run.arrays[name], array)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_fit_a_multiprocessor(case):
    made = kernels(case)
    for warps, fixed, each in (made.coding_needs, made.summing_needs):
        assert warps >= 6
        assert fixed + warps * each <= 227 * 1024
