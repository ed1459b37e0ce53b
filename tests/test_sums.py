"""Sums of Kronecker products: definition, immutability, errors, files and rearrangement."""

import json

import numpy as np
import pytest
import safetensors.numpy

import kronlearn as kl
import reference
from kronlearn.core import kronecker_sum as sums
from kronlearn.core.kronecker_sum import rearranged, restored
from kronlearn.io.model_files import ModelFileError

SHAPES = [
    pytest.param([(8, 12)], id="one mode"),
    pytest.param([(4, 6), (5, 3)], id="two modes"),
    pytest.param([(6, 6), (6, 6)], id="two square modes"),
    pytest.param([(3, 4), (5, 2), (2, 5)], id="three modes"),
]


def random_terms(shapes, n_terms=2, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(s).astype(dtype) for s in shapes] for _ in range(n_terms)]


def random_sum(shapes, n_terms=2, dtype=np.float64, seed=0):
    return kl.KroneckerSumDictionary(random_terms(shapes, n_terms, dtype, seed))


def dense_sum(terms):
    """The sum with its columns scaled to norm 1, and the norms before."""
    D = sum(reference.dense(term) for term in terms)
    norms = np.linalg.norm(D, axis=0)
    return D / norms, norms


# Definition


@pytest.mark.parametrize("n_terms", [1, 2, 3])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_dense_form_is_the_sum_with_unit_columns(shapes, n_terms):
    terms = random_terms(shapes, n_terms)
    d = kl.KroneckerSumDictionary(terms)
    D, norms = dense_sum(terms)
    np.testing.assert_allclose(d.to_dense(), D, rtol=0, atol=1e-14)
    np.testing.assert_allclose(d.column_norms, norms, rtol=1e-13)
    assert d.n_terms == n_terms
    assert d.patch_shape == tuple(m for m, _ in shapes)
    assert d.n_atoms == tuple(n for _, n in shapes)
    assert d.to_dense().shape == (d.n_features, d.n_codes)
    for stack, shape in zip(d.stacks, shapes, strict=True):
        assert stack.shape == (n_terms, *shape)
    for term, original in zip(d.terms, terms, strict=True):
        assert all(map(np.array_equal, term, original))


@pytest.mark.parametrize("shapes", SHAPES)
def test_one_term_is_the_dictionary_of_its_scaled_factors(shapes, rng):
    terms = random_terms(shapes, 1)
    d, plain = kl.KroneckerSumDictionary(terms), kl.KroneckerDictionary.normalized(terms[0])
    assert len(d.coding_factors) == len(shapes)
    for factor, expected in zip(d.coding_factors, plain.factors, strict=True):
        np.testing.assert_allclose(factor, expected, rtol=0, atol=1e-15)
    Y = rng.standard_normal((20, d.n_features))
    codes, expected = (kl.sparse_code(Y, each, 3).toarray() for each in (d, plain))
    np.testing.assert_allclose(codes, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize(
    "target", [{"n_nonzero_coefs": 3}, {"tol": 0.8}, {"n_nonzero_coefs": 4, "tol": 0.7}], ids=str
)
@pytest.mark.parametrize("shapes", SHAPES)
def test_codes_are_those_of_the_dense_matrix(shapes, target, method, dtype, rng):
    d = random_sum(shapes, 2, dtype)
    matrix = kl.KroneckerDictionary([d.to_dense()])
    Y = rng.standard_normal((50, *d.patch_shape)).astype(dtype)
    if "tol" in target:
        target = target | {"tol": target["tol"] * np.sqrt(d.n_features)}
    X = kl.sparse_code(Y, d, method=method, **target)
    same = kl.sparse_code(Y.reshape(50, -1), matrix, method=method, **target)
    assert X.shape == (50, d.n_codes)
    assert X.dtype == dtype
    np.testing.assert_array_equal(X.toarray(), same.toarray())
    if dtype == np.float64:
        # Errors, not codes, are compared: the atoms are dependent, and for some samples the last
        # ones tie.
        expected = reference.code(Y, [d.to_dense()], method, **target)
        errors = [
            np.linalg.norm(Y.reshape(50, -1) - C @ d.to_dense().T, axis=1) for C in (X, expected)
        ]
        np.testing.assert_allclose(*errors, rtol=0, atol=1e-10)
        np.testing.assert_array_equal(np.diff(X.indptr), np.count_nonzero(expected, axis=1))


def test_exchanges_equal_those_of_the_dense_matrix(rng):
    # Every mode has more entries than a code has coefficients: otherwise atoms would tie.
    d = random_sum([(4, 6), (4, 6)])
    Y = rng.standard_normal((60, 4, 4))
    expected = reference.code(Y, [d.to_dense()], "exchange", 3)
    X = kl.sparse_code(Y, d, 3, method="exchange").toarray()
    np.testing.assert_allclose(X, expected, rtol=0, atol=1e-9)


def test_thresholding_needs_orthonormal_atoms(rng):
    A, B = np.eye(4)[:, :2], np.eye(4)[:, 2:]
    zero = np.zeros((4, 2))
    terms = [[np.hstack([A, zero]), np.eye(3)], [np.hstack([zero, B]), np.eye(3)[:, ::-1]]]
    d = kl.KroneckerSumDictionary(terms)
    assert d.is_orthonormal
    Y = rng.standard_normal((30, 4, 3))
    X = kl.sparse_code(Y, d, 2, method="threshold").toarray()
    expected = reference.code(Y, [d.to_dense()], "threshold", 2)
    np.testing.assert_allclose(X, expected, atol=1e-14)
    assert not random_sum([(4, 4), (3, 3)]).is_orthonormal
    with pytest.raises(ValueError, match="needs factors with orthonormal columns"):
        kl.sparse_code(Y, random_sum([(4, 4), (3, 3)]), 2, method="threshold")


def test_the_scale_of_the_terms_affects_only_the_norms():
    terms = random_terms([(4, 6), (5, 3)])
    d = kl.KroneckerSumDictionary(terms)
    larger = kl.KroneckerSumDictionary([[1000 * A, B] for A, B in terms])
    np.testing.assert_allclose(larger.to_dense(), d.to_dense(), atol=1e-15)
    np.testing.assert_allclose(larger.column_norms, 1000 * d.column_norms, rtol=1e-14)


def test_terms_are_float32_only_if_all_of_them_are():
    single, double = random_terms([(4, 6), (5, 3)], 2, np.float32), random_terms([(4, 6), (5, 3)])
    d = kl.KroneckerSumDictionary(single)
    assert d.dtype == d.to_dense().dtype == np.float32
    assert {stack.dtype for stack in d.stacks} == {np.dtype(np.float32)}
    np.testing.assert_allclose(np.linalg.norm(d.to_dense(), axis=0), 1, atol=1e-6)
    assert kl.KroneckerSumDictionary([single[0], double[1]]).dtype == np.float64
    wide = d.astype(np.float64)
    assert isinstance(wide, kl.KroneckerSumDictionary)
    assert wide.dtype == np.float64
    assert wide.astype(np.float64) is wide
    assert kl.KroneckerSumDictionary([[[[1, 2]], [[3]]], [[[0, 1]], [[2]]]]).dtype == np.float64


# Immutability


def test_terms_are_read_only_copies():
    terms = random_terms([(4, 6), (5, 3)])
    d = kl.KroneckerSumDictionary(terms)
    before = d.to_dense()
    terms[0][0][:] = 7
    np.testing.assert_array_equal(d.to_dense(), before)
    arrays = [*d.stacks, *d.coding_factors, d.column_norms, *(f for t in d.terms for f in t)]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    d.to_dense()[0] = 9
    np.testing.assert_array_equal(d.to_dense(), before)


def test_with_stacks_copies_its_arguments():
    d = random_sum([(4, 6), (5, 3)])
    stacks = [stack.copy() for stack in random_sum([(4, 6), (5, 3)], seed=1).stacks]
    other = d.with_stacks(stacks)
    stacks[0][:] = 1
    assert other == random_sum([(4, 6), (5, 3)], seed=1)
    swapped = d.with_stack(1, other.stacks[1])
    np.testing.assert_array_equal(swapped.stacks[0], d.stacks[0])
    np.testing.assert_array_equal(swapped.stacks[1], other.stacks[1])
    expected = dense_sum(swapped.terms)[0]
    np.testing.assert_allclose(swapped.to_dense(), expected, atol=1e-14)


def test_the_representation_shows_the_sizes():
    assert repr(random_sum([(4, 6), (5, 3)], 2, np.float32)) == (
        "KroneckerSumDictionary(n_terms=2, patch_shape=(4, 5), n_atoms=(6, 3), dtype=float32)"
    )


# Errors

A, B = np.ones((2, 3)), np.ones((4, 2))
BAD_TERMS = [
    ([], "terms is empty; pass at least one list of factors"),
    (3, "terms is a int; pass a list with one list of factors per term"),
    ([A, B], r"terms\[0\]: factors is one array of shape \(2, 3\); pass a list with one array"),
    (A, r"terms\[0\]: factors\[0\] has 0 dimensions"),
    ([[A, B], None], r"terms\[1\]: factors is a NoneType; pass a list with one array per mode"),
    ([[A, B], []], r"terms\[1\]: factors is empty"),
    (
        [[A, B], [A]],
        r"terms\[1\] has factors of shapes \[\(2, 3\)\], terms\[0\] of \[\(2, 3\), \(4, 2\)\]",
    ),
    ([[A, B], [A, B.T]], r"terms\[1\] has .* all terms need the same"),
    ([[A, B], [A, B * np.nan]], r"terms\[1\]: factors\[1\] holds nan at row 0, column 0"),
    ([[A, B], [-A, B]], "Column 0 of the sum of Kronecker products has norm 0 and cannot"),
    ([[A, B * [1, 0]], [A, B * [1, 0]]], "Column 1 of the sum .* change the terms"),
    ([[A * [1, 0, 1], B]], "Column 2 of the sum of Kronecker products has norm 0"),
    ([[1e200 * A, 1e200 * B]] * 2, "Column 0 of the sum .* has norm inf"),
    ([[1e200 * A, 1e200 * B]], "Column 0 of the sum .* has norm inf"),
    ([[1e-100 * A, 1e-100 * B]] * 2, "Column 0 of the sum .* has norm"),
]


@pytest.mark.parametrize(("terms", "message"), BAD_TERMS)
def test_invalid_terms_are_refused(terms, message):
    with pytest.raises(ValueError, match=message):
        kl.KroneckerSumDictionary(terms)


def test_a_matrix_that_would_be_too_large_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(sums, "_MOST_NUMBERS", 100)
    assert kl.KroneckerSumDictionary([[np.ones((2, 5)), np.ones((5, 2))]] * 2).n_codes == 10
    long = [[np.ones((2, 5)), np.ones((6, 2))]]
    assert kl.KroneckerSumDictionary(long).n_codes == 10
    with pytest.raises(
        ValueError, match=r"one matrix, here 12 × 10, which may hold at most 100 numb"
    ):
        kl.KroneckerSumDictionary(long * 2)


def test_a_separable_dictionary_cannot_be_made_of_a_sum():
    with pytest.raises(ValueError, match="factors is a KroneckerSumDictionary; pass a list"):
        kl.KroneckerDictionary(random_sum([(4, 6), (5, 3)]))


# Files


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_terms", [1, 3])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_saved_sum_is_loaded_with_the_same_bits(tmp_path, shapes, n_terms, dtype):
    d = random_sum(shapes, n_terms, dtype)
    d.save(tmp_path / "sum")
    again = kl.load_dictionary(tmp_path / "sum")
    assert again == d
    assert isinstance(again, kl.KroneckerSumDictionary)
    np.testing.assert_array_equal(again.to_dense(), d.to_dense())
    tensors = safetensors.numpy.load_file(tmp_path / "sum")
    assert sorted(tensors) == [f"factors.{mode}" for mode in range(len(shapes))]
    for mode, shape in enumerate(shapes):
        assert tensors[f"factors.{mode}"].shape == (n_terms, *shape)


STACKS = {"factors.0": np.ones((2, 2, 3)), "factors.1": np.ones((2, 4, 2))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factors.1": np.ones((3, 4, 2))}, r"\(2, 2, 3\), \(3, 4, 2\) differ in their number of"),
        ({"factors.0": np.ones(3)}, "differ in their number of terms"),
        (
            {"factors.0": np.ones((1, 2, 2, 3)), "factors.1": np.ones((1, 2, 4, 2))},
            r"factors\[0\] has 4 dimensions",
        ),
        ({"factors.0": np.ones((0, 2, 3)), "factors.1": np.ones((0, 4, 2))}, "terms is empty"),
        ({"factors.0": np.full((2, 2, 3), np.nan)}, r"terms\[0\]: factors\[0\] holds nan"),
        ({"factors.0": np.ones((2, 2, 3), np.float32)}, "all be float32 or all float64"),
        (
            {"factors.0": np.ones((2, 9000, 1)), "factors.1": np.ones((2, 1, 20000))},
            "one matrix, here 9000 × 20000",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_without_a_valid_sum_are_refused(tmp_path, changes, message):
    header = {"format": "kronlearn model", "version": 1, "kind": "dictionary", "info": {}}
    content = safetensors.numpy.save(STACKS | changes, metadata={"kronlearn": json.dumps(header)})
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        kl.load_dictionary(tmp_path / "model")


# Rearrangement


@pytest.mark.parametrize("shapes", SHAPES)
def test_a_rearranged_kronecker_product_is_an_outer_product(shapes):
    factors = random_terms(shapes, 1)[0]
    sizes = tuple(m for m, _ in shapes), tuple(n for _, n in shapes)
    D = reference.dense(factors)
    outer = factors[0].ravel()
    for factor in factors[1:]:
        outer = np.multiply.outer(outer, factor.ravel())
    np.testing.assert_allclose(rearranged(D, *sizes), outer, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(restored(rearranged(D, *sizes), *sizes), D)


def test_the_rank_of_a_rearranged_sum_is_its_number_of_terms():
    d = random_sum([(4, 6), (5, 3)], 3)
    D = d.to_dense() * d.column_norms
    assert np.linalg.matrix_rank(rearranged(D, d.patch_shape, d.n_atoms)) == 3
