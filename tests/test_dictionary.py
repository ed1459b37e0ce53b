"""The separable dictionary: input, products, immutability and errors."""

import copy
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from kronlearn.core import mode_products
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.estimators import KroneckerDictionaryLearning
from reference import dense

SHAPES = [
    [(4, 6)],
    [(3, 4), (5, 2)],
    [(8, 8), (8, 16)],
    [(3, 4), (5, 2), (2, 3)],
    [(2, 2), (1, 3), (3, 1), (2, 4)],
]


def random_dictionary(shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return KroneckerDictionary.normalized(
        [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    )


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_dense_form_is_the_kronecker_product_in_order(shapes):
    d = random_dictionary(shapes)
    assert np.allclose(d.to_dense(), dense(d.factors), rtol=0, atol=1e-15)
    assert d.to_dense().shape == (d.n_features, d.n_codes)
    assert d.patch_shape == tuple(m for m, _ in shapes)
    assert d.n_atoms == tuple(n for _, n in shapes)


@pytest.mark.parametrize("n_terms", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", SHAPES)
def test_correlation_and_synthesis_equal_the_dense_products(shapes, dtype, n_terms, rng):
    d = random_dictionary(shapes, dtype)
    if n_terms > 1:
        d = KroneckerSumDictionary([random_dictionary(shapes, dtype, r).factors for r in (0, 1)])
    D = d.to_dense().astype(np.float64)
    Y = rng.standard_normal((7, *d.patch_shape)).astype(dtype)
    X = rng.standard_normal((7, *d.n_atoms)).astype(dtype)
    atol = 1e-5 if dtype == np.float32 else 1e-12
    correlations, samples = d.correlate(Y), d.reconstruct(X)
    assert correlations.dtype == samples.dtype == dtype
    assert correlations.shape == X.shape
    assert samples.shape == Y.shape
    assert np.allclose(correlations.reshape(7, -1), Y.reshape(7, -1) @ D, atol=atol)
    assert np.allclose(samples.reshape(7, -1), X.reshape(7, -1) @ D.T, atol=atol)


@pytest.mark.parametrize("layout", ["flat", "modes", "fortran", "read-only", "strided"])
def test_the_memory_layout_does_not_change_the_result(layout, rng):
    d = random_dictionary([(3, 4), (5, 2)])
    Y, X = rng.standard_normal((7, 3, 5)), rng.standard_normal((7, 4, 2))
    expected = d.correlate(Y), d.reconstruct(X)

    def change(array):
        if layout == "flat":
            return array.reshape(7, -1)
        if layout == "fortran":
            return np.asfortranarray(array)
        if layout == "strided":
            return np.repeat(array, 2, axis=2)[:, :, ::2]
        if layout == "read-only":
            array.setflags(write=False)
        return array

    assert np.allclose(d.correlate(change(Y)), expected[0], rtol=0, atol=1e-14)
    assert np.allclose(d.reconstruct(change(X)), expected[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "container",
    [sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array, sparse.lil_array],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_codes_of_any_format_equal_dense_ones(container, dtype, rng):
    d = random_dictionary([(3, 4), (5, 2)])
    X = rng.standard_normal((9, 8)).astype(dtype) * (rng.random((9, 8)) < 0.3)
    Y = d.reconstruct(container(X))
    assert isinstance(Y, np.ndarray)
    assert Y.dtype == dtype
    assert np.allclose(Y, d.reconstruct(X), atol=1e-6)


def test_blocks_do_not_change_the_result(monkeypatch, rng):
    d = random_dictionary([(3, 4), (5, 2)])
    X = sparse.random_array((50, 8), density=0.4, format="csr", rng=rng)
    Y = rng.standard_normal((50, 15))
    whole = d.reconstruct(X), d.correlate(Y)
    monkeypatch.setattr(mode_products, "_BLOCK_NUMBERS", 100)
    assert np.allclose(d.reconstruct(X), whole[0], rtol=0, atol=1e-14)
    assert np.allclose(d.correlate(Y), whole[1], rtol=0, atol=1e-14)


def test_reconstruction_never_expands_all_codes():
    d = random_dictionary([(2, 64), (2, 64)])
    X = sparse.csr_array((20_000, d.n_codes))
    tracemalloc.start()
    try:
        d.reconstruct(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * 20_000 * d.n_codes * 8


def test_arrays_without_samples_are_accepted():
    d = random_dictionary([(3, 4), (5, 2)])
    assert d.correlate(np.empty((0, 15))).shape == (0, 4, 2)
    assert d.reconstruct(sparse.csr_array((0, 8))).shape == (0, 3, 5)
    assert d.reconstruct(np.empty((0, 8), np.float32)).dtype == np.float32


def test_factors_are_float32_only_if_all_of_them_are():
    eye = np.eye(3)
    assert KroneckerDictionary([eye.astype("f4"), eye.astype("f4")]).dtype == np.float32
    mixed = KroneckerDictionary([eye.astype("f4"), eye])
    assert {factor.dtype for factor in mixed.factors} == {np.dtype(np.float64)}
    for dtype in (int, bool, np.float16, np.longdouble, ">f8"):
        assert KroneckerDictionary([eye.astype(dtype)]).dtype == np.float64
    assert KroneckerDictionary([eye.tolist()]).dtype == np.float64


def test_factors_are_read_only_copies_in_c_order():
    factor = np.asfortranarray(np.eye(3))
    d = KroneckerDictionary([factor])
    factor[0, 0] = 5
    assert d.factors[0][0, 0] == 1
    assert d.factors[0].flags.c_contiguous
    assert not d.factors[0].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        d.factors[0][0, 0] = 2


def random_dictionaries(dtype=np.float64):
    """A separable dictionary and a sum."""
    terms = [random_dictionary([(3, 4), (5, 2)], dtype, seed) for seed in (0, 1)]
    return terms[0], KroneckerSumDictionary([term.factors for term in terms])


@pytest.mark.parametrize("d", random_dictionaries(), ids=lambda d: type(d).__name__)
def test_attributes_cannot_be_set_added_or_deleted(d):
    for name in ("stacks", "_stacks", "something"):
        with pytest.raises(
            AttributeError, match=f"{type(d).__name__} is immutable; cannot set '{name}'"
        ):
            setattr(d, name, ())
    with pytest.raises(AttributeError, match="immutable; cannot delete"):
        del d._stacks


@pytest.mark.parametrize("d", [*random_dictionaries(), *random_dictionaries(np.float32)], ids=repr)
def test_copies_and_pickles_are_equal_and_still_read_only(d):
    assert copy.copy(d) is d
    assert copy.deepcopy(d) is d
    again = pickle.loads(pickle.dumps(d))
    assert again == d
    assert not again.stacks[0].flags.writeable
    np.testing.assert_array_equal(again.to_dense(), d.to_dense())


@pytest.mark.parametrize("d", random_dictionaries(), ids=lambda d: type(d).__name__)
def test_dictionaries_are_equal_if_all_numbers_shapes_classes_and_dtypes_are(d):
    same = d.with_stacks(d.stacks)
    assert d == same
    assert len({d, same}) == 1
    stack = d.stacks[1].copy()
    stack[-1, 0, 0] = np.nextafter(stack[-1, 0, 0], 9)
    assert d != d.with_stack(1, stack)
    assert d != d.with_stacks(d.stacks[::-1])
    assert d != d.with_stacks(d.stacks[:1])
    assert d != d.astype(np.float32)
    assert d != "a dictionary"
    plain, negative_zero = KroneckerDictionary([np.eye(2)]), np.where(np.eye(2) == 0, -0.0, 1.0)
    assert plain != KroneckerSumDictionary(plain)
    for same, other in (
        (plain, KroneckerDictionary([negative_zero])),
        (KroneckerSumDictionary(plain), KroneckerSumDictionary([[negative_zero]])),
    ):
        assert same == other
        assert hash(same) == hash(other)


def test_the_representation_shows_the_sizes():
    text = repr(random_dictionary([(3, 4), (5, 2)], np.float32))
    assert text == "KroneckerDictionary(patch_shape=(3, 5), n_atoms=(4, 2), dtype=float32)"


def test_orthonormal_means_orthonormal_columns_in_every_factor(rng):
    q, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    assert KroneckerDictionary([q, np.eye(3)]).is_orthonormal
    assert KroneckerDictionary([q.astype("f4")]).is_orthonormal
    assert KroneckerDictionary([q[:, :5]]).is_orthonormal
    assert not KroneckerDictionary([q, random_dictionary([(3, 3)]).factors[0]]).is_orthonormal
    assert not KroneckerDictionary([np.hstack([q, q])]).is_orthonormal


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
    st.integers(-30, 30),
)
def test_normalized_scales_any_columns_to_unit_norm(shapes, dtype, seed, exponent):
    rng = np.random.default_rng(seed)
    factors = [(rng.standard_normal(shape) * 10.0**exponent).astype(dtype) for shape in shapes]
    d = KroneckerDictionary.normalized(factors)
    assert d.dtype == dtype
    for factor, original in zip(d.factors, factors, strict=True):
        assert np.allclose(np.linalg.norm(factor, axis=0), 1, atol=1e-6)
        scale = np.linalg.norm(original.astype(np.float64), axis=0)
        assert np.allclose(factor * scale, original, rtol=1e-5)
    assert d.n_features == math.prod(m for m, _ in shapes)


def test_normalized_scales_extreme_columns():
    d = KroneckerDictionary.normalized([np.array([[1e300, 1e-300], [1e300, 0]])])
    assert np.allclose(d.factors[0], [[math.sqrt(0.5), 1], [math.sqrt(0.5), 0]])


BAD_FACTORS = [
    ([], "factors is empty; pass at least one array"),
    (3, "factors is a int; pass a list with one array per mode"),
    ("d.safetensors", r"factors is a path; pass load_dictionary\('d.safetensors'\)"),
    (KroneckerDictionaryLearning(), "is a KroneckerDictionaryLearning; pass its dictionary_"),
    (np.eye(3), r"one array of shape \(3, 3\); pass a list .* \[D\] for a single mode"),
    ([np.ones(3)], r"factors\[0\] has 1 dimension; pass an \(m, n\) array"),
    ([np.eye(2), np.ones((2, 2, 2))], r"factors\[1\] has 3 dimensions"),
    ([np.ones((3, 0))], r"factors\[0\] has shape \(3, 0\); every factor needs at least one"),
    ([np.ones((0, 3))], "at least one row and one column"),
    ([np.eye(2), [[1, np.nan], [0, 1]]], r"factors\[1\] holds nan at row 0, column 1"),
    ([[[1, 0], [np.inf, 1]]], r"factors\[0\] holds inf at row 1, column 0"),
    ([np.eye(2) * 1j], "Complex data not supported"),
    ([np.array([["a"]])], r"factors\[0\] holds strings"),
    ([[[1, 2], [3]]], r"factors\[0\] has parts of different shapes"),
    ([np.array([[None]])], "holds nan"),
    ([[[1, 0], [0, object()]]], r"factors\[0\] has dtype object, .* float32 or float64"),
    ([sparse.csr_array(np.eye(2))], r"factors\[0\] is a sparse csr_array"),
]


@pytest.mark.parametrize(("factors", "message"), BAD_FACTORS)
@pytest.mark.parametrize("make", [KroneckerDictionary, KroneckerDictionary.normalized])
def test_invalid_factors_are_refused(make, factors, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(factors)


def test_columns_without_unit_norm_are_refused():
    factor = np.eye(4)
    factor[2, 2] = 2.5
    with pytest.raises(
        ValueError,
        match=r"Column 2 of factors\[1\] has norm 2.5; .* KroneckerDictionary.normalized",
    ):
        KroneckerDictionary([np.eye(3), factor])
    KroneckerDictionary([np.eye(3) * (1 + 9e-5)])
    with pytest.raises(ValueError, match=r"norm 1\.00011"):
        KroneckerDictionary([np.eye(3) * (1 + 1.1e-4)])
    with pytest.raises(ValueError, match="has norm inf"):
        KroneckerDictionary([[[1e200]]])
    with pytest.raises(ValueError, match=r"Column 0 of factors\[0\] is zero"):
        KroneckerDictionary.normalized([np.zeros((2, 2))])


def test_samples_of_the_wrong_shape_are_refused():
    d = random_dictionary([(3, 4), (5, 2)])
    with pytest.raises(ValueError, match=r"Y has shape \(7, 16\); .* \(N, 3, 5\) or \(N, 15\)"):
        d.correlate(np.ones((7, 16)))
    with pytest.raises(ValueError, match=r"For one of them pass Y\[None\]"):
        d.correlate(np.ones((3, 5)))
    with pytest.raises(ValueError, match="Y has shape"):
        d.correlate(np.ones((7, 5, 3)))
    with pytest.raises(ValueError, match="Y has dtype complex"):
        d.correlate(np.ones((7, 15), complex))


def test_codes_of_the_wrong_shape_or_kind_are_refused():
    d = random_dictionary([(3, 4), (5, 2)])
    with pytest.raises(ValueError, match=r"codes has shape \(7, 9\).*\(N, 8\).*4 × 2"):
        d.reconstruct(sparse.csr_array((7, 9)))
    with pytest.raises(ValueError, match=r"codes of shape \(N, 4, 2\) or \(N, 8\)"):
        d.reconstruct(np.ones((7, 2, 4)))
    with pytest.raises(ValueError, match="codes has dtype complex64"):
        d.reconstruct(sparse.csr_array((7, 8), dtype=np.complex64))


def test_sparse_codes_with_indices_out_of_range_are_refused():
    d = random_dictionary([(3, 4), (5, 2)])
    codes = sparse.csr_array((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 8))
    codes.indices[1] = 1_000_000
    with pytest.raises(ValueError, match="indices must be < 8"):
        d.reconstruct(codes)
