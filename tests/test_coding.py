"""Native coders: equality with the NumPy reference, and the properties of codes."""

import _thread
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import joblib
import numpy as np
import pytest
from scipy import sparse

import kronlearn as kl
import reference
from coding_problems import (
    METHODS,
    PURSUITS,
    SHAPES,
    assert_codes_match,
    both_dtypes,
    cast,
    named,
    problem,
    winner_is_clear,
    with_or_without_weights,
)
from kronlearn.core.coder import Coder
from kronlearn.core.engine import Task
from kronlearn.engines.threads import Threads, resolve_n_jobs
from kronlearn.io.arrays import ArraySource
from learning_problems import assert_same_bits

SOME_SHAPES = [SHAPES[i] for i in (1, 5, 6, 12)]
#: Threads and block size: smaller than a group of lanes, larger, and larger than the data.
SPLITS = [(5, 1), (2, 7), (3, 16), (2, 2**40)]


@cache
def reference_codes(patch_shape, n_atoms, n_samples, method, n_nonzero_coefs, tol=None, step=1):
    """The reference's codes of every ``step``-th sample."""
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    return reference.code(Y[::step], factors, method, n_nonzero_coefs, tol)


# Equality with the reference


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_codes_equal_the_reference_for_any_threads_and_blocks(shape, method, dtype):
    patch_shape, n_atoms, n_samples, n_nonzero_coefs = shape
    if method == "threshold":
        n_atoms = tuple(np.minimum(patch_shape, n_atoms).tolist())
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    # The reference is slow for many atoms.
    step = 1 if np.prod(n_atoms) <= 256 else 4
    expected = reference_codes(patch_shape, n_atoms, n_samples, method, n_nonzero_coefs, step=step)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    samples = Y.astype(dtype)
    codes = kl.sparse_code(samples, d, n_nonzero_coefs, method=method)
    assert isinstance(codes, sparse.csr_array)
    assert codes.dtype == dtype
    assert codes.shape == (n_samples, np.prod(n_atoms))
    assert codes.has_canonical_format
    np.testing.assert_array_equal(samples, Y.astype(dtype))  # unchanged
    clear = winner_is_clear(factors, method, n_nonzero_coefs)
    assert_codes_match(
        codes[::step], expected, Y[::step], factors, dtype, clear=clear, method=method
    )
    for n_jobs, block_size in SPLITS:
        split = {"n_jobs": n_jobs, "block_size": block_size}
        again = kl.sparse_code(samples, d, n_nonzero_coefs, method=method, **split)
        assert_same_bits(again, codes)


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=named)
def test_codes_to_a_tolerance_equal_the_reference(shape, method, dtype):
    patch_shape, n_atoms, n_samples, _ = shape
    if method == "threshold":
        n_atoms = tuple(np.minimum(patch_shape, n_atoms).tolist())
    n_samples = min(n_samples, 45)
    factors, Y = problem(patch_shape, n_atoms, n_samples, method)
    tol = 0.85 * np.sqrt(np.prod(patch_shape))
    for cap in (None, 3):
        expected = reference_codes(patch_shape, n_atoms, n_samples, method, cap, tol)
        codes = kl.sparse_code(
            Y.astype(dtype), cast(factors, dtype), cap, tol=tol, method=method, n_jobs=2
        )
        counts = np.diff(codes.indptr)
        assert counts.min() < counts.max() <= (cap or np.inf)
        clear = winner_is_clear(factors, method, counts.max())
        assert_codes_match(codes, expected, Y, factors, dtype, clear=clear, method=method)


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@pytest.mark.parametrize("method", METHODS)
def test_samples_can_have_individual_tolerances(rng, method, dtype):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    tol = rng.uniform(0.6, 1.1, 45) * np.linalg.norm(Y.reshape(45, -1), axis=1)
    expected = reference.code(Y, factors, method, 10, tol)
    Y, d = Y.astype(dtype), kl.KroneckerDictionary(cast(factors, dtype))
    shuffled = rng.permutation(45)
    codes = kl.sparse_code(Y, d, 10, tol=tol, method=method)
    options = {"tol": tol[shuffled], "method": method, "n_jobs": 2, "block_size": 7}
    again = kl.sparse_code(Y[shuffled], d, 10, **options)
    assert_codes_match(codes, expected, Y, factors, dtype)
    assert_same_bits(again, codes[shuffled])


# Weights


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=named)
def test_weighted_codes_equal_the_weighted_reference(shape, method, dtype):
    patch_shape, n_atoms, _, n_nonzero_coefs = shape
    factors, Y = problem(patch_shape, n_atoms, 29, method)
    rng = np.random.default_rng(5)
    weights = rng.uniform(0.1, 3.0, Y.shape) * (rng.random(Y.shape) < 0.8)
    weights[7] = 0.0
    d = kl.KroneckerDictionary(cast(factors, dtype))
    clear = winner_is_clear(factors, method, n_nonzero_coefs)
    for tol in (None, 0.94 * np.sqrt(np.prod(patch_shape))):
        options = {"tol": tol, "weights": weights, "method": method}
        expected = reference.code(Y, factors, method, n_nonzero_coefs, tol, weights)
        codes = kl.sparse_code(Y.astype(dtype), d, n_nonzero_coefs, **options)
        assert codes[[7]].nnz == 0
        assert_codes_match(codes, expected, Y, factors, dtype, weights, clear, method)
        for n_jobs, block_size in SPLITS:
            split = {"n_jobs": n_jobs, "block_size": block_size}
            again = kl.sparse_code(Y.astype(dtype), d, n_nonzero_coefs, **options, **split)
            assert_same_bits(again, codes)


@both_dtypes
@pytest.mark.parametrize("scale", [1e-12, 1e8])
@pytest.mark.parametrize("method", PURSUITS)
def test_only_the_proportions_of_weights_matter(rng, method, scale, dtype):
    factors, Y = problem((8, 8), (16, 16), 120, method)
    d = kl.KroneckerDictionary(cast(factors, dtype))
    weights = rng.uniform(0.1, 3.0, Y.shape)
    codes = kl.sparse_code(Y.astype(dtype), d, 6, method=method, weights=weights).toarray()
    scaled = kl.sparse_code(Y.astype(dtype), d, 6, method=method, weights=scale * weights).toarray()
    same = np.all((codes != 0) == (scaled != 0), axis=1)
    assert np.mean(same) >= (1.0 if dtype is np.float64 else 0.99)


@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (45, 1, 5), (45, 1, 1)])
def test_weights_are_broadcast_to_the_samples(rng, shape):
    factors, Y = problem((3, 5), (4, 7), 45, "omp")
    weights = rng.uniform(0.1, 3.0, shape)
    codes = kl.sparse_code(Y, factors, 3, weights=weights)
    full = kl.sparse_code(Y, factors, 3, weights=np.broadcast_to(weights, Y.shape).copy())
    assert_same_bits(codes, full)


@both_dtypes
@pytest.mark.parametrize("method", PURSUITS)
def test_entries_without_weight_are_ignored(rng, method, dtype):
    factors, Y = problem((8, 8), (16, 16), 40, method)
    weights = rng.random(Y.shape) > 0.3
    Y = Y.astype(dtype)
    codes = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=weights)
    Y[~weights] = np.nan
    holes = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=weights)
    np.testing.assert_array_equal(holes.toarray(), codes.toarray())
    masked = np.ma.masked_array(np.ones(Y.shape), ~weights)
    same = kl.sparse_code(Y, cast(factors, dtype), 4, method=method, weights=masked)
    np.testing.assert_array_equal(same.toarray(), codes.toarray())


@pytest.mark.parametrize("method", PURSUITS)
def test_an_atom_whose_entries_have_no_weight_is_never_selected(method):
    factors = [np.eye(4), np.eye(4)]
    weights = np.ones((4, 4))
    weights[2, 1] = 0.0
    codes = kl.sparse_code(np.ones((5, 4, 4)), factors, 16, method=method, weights=weights)
    np.testing.assert_allclose(codes.toarray(), np.tile(weights.ravel(), (5, 1)))


# Properties of codes


@both_dtypes
@pytest.mark.parametrize("method", METHODS)
def test_the_code_of_a_sample_does_not_depend_on_its_position(rng, method, dtype):
    factors, Y = problem((8, 8), (8, 8), 120, method)
    Y, d = Y.astype(dtype), kl.KroneckerDictionary(cast(factors, dtype))
    codes = kl.sparse_code(Y, d, 6, method=method)
    order = rng.permutation(len(Y))
    assert_same_bits(kl.sparse_code(Y[order], d, 6, method=method), codes[order])
    for k in (0, 15, 16, 119):
        assert_same_bits(kl.sparse_code(Y[k : k + 1], d, 6, method=method), codes[[k]])
        assert_same_bits(kl.sparse_code(Y[: k + 1], d, 6, method=method), codes[: k + 1])


@both_dtypes
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("n_atoms", [(4, 3), (5, 4)], ids=["undercomplete", "square"])
def test_all_atoms_give_the_least_squares_solution(rng, n_atoms, method, dtype):
    factors = reference.random_factors(rng, (5, 4), n_atoms)
    Y = rng.standard_normal((21, 5, 4))
    D = reference.dense(factors)
    expected = np.linalg.lstsq(D, Y.reshape(21, -1).T, rcond=None)[0].T
    for request in ({"n_nonzero_coefs": D.shape[1]}, {"tol": 0.0}):
        codes = kl.sparse_code(Y.astype(dtype), cast(factors, dtype), method=method, **request)
        left = reference.residuals(Y, factors, codes.toarray())
        best = reference.residuals(Y, factors, expected)
        limit = 1e-8 if dtype is np.float64 else 2e-3
        np.testing.assert_allclose(left, best, atol=limit * np.abs(Y).max())


@both_dtypes
@pytest.mark.parametrize("method", PURSUITS)
def test_coding_stops_when_the_residual_is_zero(rng, method, dtype):
    factors = reference.random_factors(rng, (2, 3), (6, 6), dtype)
    Y = rng.standard_normal((40, 2, 3)).astype(dtype)
    codes = kl.sparse_code(Y, factors, 36, method=method)
    assert np.diff(codes.indptr).max() <= 6
    left = np.linalg.norm(reference.residuals(Y, factors, codes.toarray()), axis=1)
    size = np.linalg.norm(Y.reshape(40, -1), axis=1)
    # The last atoms of OLS tie, so it may select one that float32 barely resolves.
    limit = 1e-8 if dtype is np.float64 else 1e-5 if method == "omp" else 0.1
    assert np.max(left / size) <= limit


@both_dtypes
@pytest.mark.parametrize("target", [{"n_nonzero_coefs": 3}, {"tol": 0.1}, {"tol": 0.0}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_zero_sample_has_an_empty_code(method, target, dtype):
    factors, Y = problem((8, 8), (8, 8), 45, method)
    Y = Y.astype(dtype)
    Y[[0, 17, 44]] = 0.0
    codes = kl.sparse_code(Y, cast(factors, dtype), method=method, **target)
    counts = np.diff(codes.indptr)
    assert counts[[0, 17, 44]].tolist() == [0, 0, 0]
    assert np.all(np.delete(counts, [0, 17, 44]) > 0)
    assert np.all(np.isfinite(codes.data))


@both_dtypes
@pytest.mark.parametrize("method", PURSUITS)
@pytest.mark.parametrize("n", [8, 16, 11])
def test_only_the_first_of_duplicate_atoms_is_used(rng, n, method, dtype):
    D1, D2 = reference.random_factors(rng, (8, 8), (n, n), dtype)
    D1[:, 5] = D1[:, 2]
    Y = rng.standard_normal((60, 8, 8)).astype(dtype)
    codes = kl.sparse_code(Y, [D1, D2], 12, method=method)
    used = codes.toarray().reshape(60, n, n) != 0
    assert used[:, 2].any()
    assert not used[:, 5].any()
    assert np.all(np.isfinite(codes.data))


@pytest.mark.usefixtures("instruction_set")
@both_dtypes
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [(8, 8), (16, 16), (5, 3), (9,)], ids=str)
def test_the_lowest_index_wins_ties(sizes, method, dtype):
    factors = [np.eye(m, dtype=dtype) for m in sizes]
    Y = np.zeros((3, np.prod(sizes)), dtype)
    Y[0] = 1.0
    Y[1] = np.where(np.arange(Y.shape[1]) % 2, 1.0, -1.0)
    Y[2, 3:] = -2.0
    codes = kl.sparse_code(Y, factors, 3, method=method)
    assert codes.indices.reshape(3, 3).tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(codes.data, [1, 1, 1, -1, 1, -1, -2, -2, -2])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("method", METHODS)
def test_the_error_includes_tied_atoms_that_were_not_selected(method):
    source = ArraySource(np.ones((20, 8, 8), np.float32), (8, 8))
    task = Task(kl.KroneckerDictionary([np.eye(8)] * 2), Coder(method, 5))
    assert Threads(source).run(task).residual == pytest.approx(20 * (64 - 5))


# Memory layouts and dtypes of samples


def read_only(Y):
    Y = Y.copy()
    Y.setflags(write=False)
    return Y


LAYOUTS = {
    "rows": lambda Y: Y.reshape(len(Y), -1),
    "Fortran order": np.asfortranarray,
    "every other sample": lambda Y: np.repeat(Y, 2, axis=0)[::2],
    "reversed and transposed": lambda Y: Y.transpose(0, 2, 1).copy().transpose(0, 2, 1)[::-1][::-1],
    "read-only": read_only,
    "big-endian": lambda Y: Y.astype(Y.dtype.newbyteorder(">")),
    "list": list,
    "memory map": None,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@both_dtypes
def test_the_memory_layout_of_samples_changes_no_bit(layout, dtype, tmp_path):
    factors, Y = problem((3, 5), (4, 7), 45, "omp")
    d = kl.KroneckerDictionary(cast(factors, dtype))
    Y = Y.astype(dtype)
    if layout == "memory map":
        np.save(tmp_path / "samples.npy", Y)
        samples = np.load(tmp_path / "samples.npy", mmap_mode="r")
    else:
        samples = LAYOUTS[layout](Y)
    codes = kl.sparse_code(samples, d, 4, n_jobs=2, block_size=7)
    assert codes.dtype == dtype
    assert codes.data.dtype.isnative
    assert_same_bits(codes, kl.sparse_code(Y, d, 4))


@pytest.mark.parametrize("method", PURSUITS)
def test_codes_packed_in_pieces_have_the_same_bits(rng, monkeypatch, method):
    factors, Y = problem((8, 8), (8, 8), 120, method)
    request = {
        "tol": rng.uniform(3.0, 9.0, 120),
        "weights": rng.uniform(0.1, 2.0, Y.shape),
        "method": method,
        "block_size": 8,
        "n_jobs": 2,
    }
    whole = kl.sparse_code(Y, factors, 20, **request)
    monkeypatch.setattr("kronlearn.engines.threads._ENTRIES_AT_A_TIME", 400)
    monkeypatch.setattr("kronlearn.core.source.BLOCK_NUMBERS", 1000)
    assert_same_bits(kl.sparse_code(Y, factors, 20, **request), whole)
    assert_same_bits(kl.sparse_code(np.asfortranarray(Y), factors, 20, **request), whole)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, bool])
def test_samples_of_other_dtypes_are_coded_in_float64(rng, dtype):
    factors = problem((3, 5), (4, 7), 45, "omp")[0]
    Y = rng.integers(0, 200, (45, 3, 5)).astype(dtype)
    codes = kl.sparse_code(Y, cast(factors, np.float32), 3)
    factors = cast(cast(factors, np.float32), np.float64)
    assert codes.dtype == np.float64
    assert_same_bits(codes, kl.sparse_code(Y.astype(np.float64), factors, 3))


# Threads and signals


def test_python_threads_can_code_at_the_same_time():
    factors, Y = problem((8, 8), (16, 16), 120, "ols")
    Y = np.tile(Y, (20, 1, 1))
    expected = kl.sparse_code(Y, factors, 6, method="ols")
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(kl.sparse_code, Y, factors, 6, method="ols", n_jobs=2) for _ in range(8)
        ]
        for job in jobs:
            assert_same_bits(job.result(), expected)


def assert_interruptible(seconds, *arguments, **options):
    """Interrupt coding after some seconds; assert that it ends soon."""

    def code_for_seconds():
        kl.sparse_code(*arguments, n_jobs=2, **options)
        time.sleep(5)  # coding has ended before the interrupt, which comes here

    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.start()
    began = time.process_time()  # independent of other processes
    with pytest.raises(KeyboardInterrupt):
        code_for_seconds()
    assert time.process_time() - began < 1.5
    timer.join()


def test_coding_can_be_interrupted():
    factors = reference.dct_factors((8, 8), (16, 16), np.float32)
    Y = np.random.default_rng(0).standard_normal((200_000, 8, 8), dtype=np.float32)
    assert_interruptible(0.1, Y, factors, 50, method="ols")


@with_or_without_weights
@pytest.mark.parametrize("method", ["ols", "exchange"])
def test_coding_of_few_samples_with_many_coefficients_can_be_interrupted(method, weighted):
    factors = reference.random_factors(np.random.default_rng(0), (24, 24), (40, 40))
    Y = np.random.default_rng(0).standard_normal((32, 24, 24))
    options = {"weights": np.ones(Y.shape)} if weighted else {}
    assert_interruptible(0.1, Y, factors, 500, method=method, **options)


@pytest.mark.parametrize(
    ("n_jobs", "limit", "expected"),
    [
        *((None, None, 1), (3, None, 3), (3, "1", 3), (np.int64(2), None, 2)),
        *((-1, "1", 1), (-1, "4096", joblib.cpu_count())),
    ],
)
def test_n_jobs_has_the_meaning_of_joblib(monkeypatch, n_jobs, limit, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if limit is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert resolve_n_jobs(n_jobs) == expected
    with joblib.parallel_config(backend="threading", n_jobs=3):
        assert resolve_n_jobs(None) == min(3, int(limit or 3))
