"""Patches of images: coverage, exact round trips, memory, and invalid input."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kronlearn as kl
from kronlearn.images.patches import Patches, extract_patches, reconstruct_from_patches

DTYPES = ("u1", "i2", "u8", "i8", "f2", "f4", "f8", ">f8", "?")


@st.composite
def cuts(draw, dtypes=DTYPES):
    """Draw an image, the shape of its patches and a stride for every axis."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    patch = [draw(st.integers(1, size)) for size in shape]
    stride = [draw(st.integers(1, m)) for m in patch]
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype.kind == "f":
        image = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype)
        image[rng.random(shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    else:
        image = np.frombuffer(rng.bytes(8 * math.prod(shape)), "u8").reshape(shape)
        image = (image % 2 if dtype.kind == "b" else image).astype(dtype)
    return image, tuple(patch), tuple(stride)


def all_patches(image, patch_shape, starts):
    """The patches at all combinations of starts."""
    corners = np.stack(np.meshgrid(*starts, indexing="ij"), -1).reshape(-1, image.ndim)
    return np.stack(
        [
            image[tuple(slice(a, a + m) for a, m in zip(corner, patch_shape, strict=True))]
            for corner in corners
        ]
    )


@given(cuts())
def test_patches_are_cut_at_regular_positions_and_at_the_border(cut):
    image, patch_shape, stride = cut
    patches = extract_patches(image, patch_shape, stride)
    for starts, size, m, step in zip(patches.starts, image.shape, patch_shape, stride, strict=True):
        assert starts[0] == 0
        assert starts[-1] == size - m
        assert np.all(starts[:-1] == np.arange(len(starts) - 1) * step)
        assert np.all(np.diff(starts) <= min(step, m))
    expected = all_patches(image, patch_shape, patches.starts)
    assert patches.shape == expected.shape == (len(patches), *patch_shape)
    assert patches.dtype == image.dtype
    np.testing.assert_array_equal(np.asarray(patches), expected)
    first_pixels = expected.reshape(len(expected), -1)[:, 0]
    np.testing.assert_array_equal(image[tuple(patches.positions.T)], first_pixels)


@given(cuts(), st.integers(1, 40))
def test_unchanged_patches_reconstruct_the_image_bit_for_bit(cut, size):
    image, patch_shape, stride = cut
    patches = extract_patches(image, patch_shape, stride)
    for given_as in (patches, np.asarray(patches), patches.blocks(size)):
        again = reconstruct_from_patches(given_as, image.shape, stride)
        assert again.dtype == image.dtype
        np.testing.assert_array_equal(again, image)
        if image.dtype.kind == "f":
            assert np.array_equal(np.signbit(again), np.signbit(image))


@given(cuts(dtypes=("u1", "i2", "f4", "f8")))
def test_means_are_removed_and_added_again(cut):
    image, patch_shape, stride = cut
    image = np.nan_to_num(image, posinf=1, neginf=-1)
    patches, means = extract_patches(image, patch_shape, stride, remove_means=True)
    whole = np.asarray(extract_patches(image, patch_shape, stride), np.float64)
    axes = tuple(range(1, whole.ndim))
    slack = 1e-5 if image.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(means, whole.mean(axis=axes), rtol=slack, atol=slack * 1e4)
    assert patches.dtype == means.dtype == (np.float32 if image.dtype == np.float32 else np.float64)
    again = reconstruct_from_patches(patches, image.shape, stride, means=means)
    np.testing.assert_allclose(again, image, rtol=0, atol=slack * 1e4)
    if image.dtype.kind in "iu":
        rounded = reconstruct_from_patches(
            patches, image.shape, stride, means=means, dtype=image.dtype
        )
        assert np.array_equal(rounded, image)


def test_means_in_single_precision_are_rounded_once_and_added_to_their_blocks(rng):
    image = (1e4 + rng.random((40, 40))).astype(np.float32)
    patches, means = extract_patches(image, 16, 3, remove_means=True)
    exact = np.asarray(extract_patches(image, 16, 3), np.float64).mean(axis=(1, 2))
    assert np.array_equal(means, exact.astype(np.float32))
    again = reconstruct_from_patches(patches.blocks(10), image.shape, 3, means=means)
    np.testing.assert_allclose(again, image, rtol=1e-6)


@given(cuts(dtypes=("f8",)), st.booleans())
def test_a_pixel_is_the_average_of_the_patches_that_cover_it(cut, weighted):
    image, patch_shape, stride = cut
    rng = np.random.default_rng(0)
    patches = extract_patches(np.nan_to_num(image, posinf=1, neginf=-1), patch_shape, stride)
    changed = rng.standard_normal(patches.shape)
    weights = rng.uniform(0.5, 2, len(patches)) if weighted else np.ones(len(patches))
    total, count = np.zeros(image.shape), np.zeros(image.shape)
    for patch, weight, corner in zip(changed, weights, patches.positions, strict=True):
        place = tuple(slice(a, a + m) for a, m in zip(corner, patch_shape, strict=True))
        total[place] += weight * patch
        count[place] += weight
    found = reconstruct_from_patches(
        changed, image.shape, stride, weights=weights if weighted else None
    )
    np.testing.assert_allclose(found, total / count, rtol=0, atol=1e-12)


def test_blocks_indices_masks_and_slices_choose_patches(rng):
    patches = extract_patches(rng.standard_normal((20, 17, 3)), (4, 5, 3), (3, 2, 1))
    whole = np.asarray(patches)
    assert np.array_equal(np.concatenate(list(patches.blocks(7))), whole)
    assert np.array_equal(patches[3:50:4], whole[3:50:4])
    assert np.array_equal(patches[::-1], whole[::-1])
    assert np.array_equal(patches[[5, -1, 5]], whole[[5, -1, 5]])
    assert np.array_equal(patches[whole[:, 0, 0, 0] > 0], whole[whole[:, 0, 0, 0] > 0])
    assert np.array_equal(patches[-2], whole[-2])
    with pytest.raises(IndexError, match=rf"a boolean mask \({len(whole)},\)"):
        patches[np.ones(len(whole) - 1, bool)]
    assert patches[[]].shape == (0, 4, 5, 3)
    assert patches[4:4].shape == (0, 4, 5, 3)
    assert sum(1 for _ in patches) == len(patches) == len(whole)
    assert patches.ndim == 4


def test_one_patch_is_a_copy():
    image = np.zeros((4, 4))
    extract_patches(image, 2)[0][:] = 1
    assert not image.any()


def test_results_are_rounded_and_clipped_to_the_requested_integers():
    patches = np.array([[[0, 300]], [[1, -7]]])
    image = reconstruct_from_patches(patches, (2, 2), (1, 1), dtype=np.uint8)
    assert image.tolist() == [[0, 255], [1, 0]]
    halves = np.array([[0.4, 1.0], [2.0, 9.0]])
    assert reconstruct_from_patches(halves, (3,), dtype=np.int16).tolist() == [0, 2, 9]
    assert reconstruct_from_patches(halves.astype(int), (3,), dtype=float).tolist() == [0, 1.5, 9]


def test_an_overlap_of_extreme_integers_is_averaged_without_overflow():
    top = np.iinfo(np.uint64).max
    patches = np.array([[top, top], [top - 2, top]], np.uint64)
    assert reconstruct_from_patches(patches, (3,)).tolist() == [top, top - 1, top]


@pytest.mark.parametrize(("dtype", "means"), [("u1", False), ("f4", True), (">f8", False)])
def test_patches_and_their_array_are_the_same_samples(rng, dtype, means):
    image = rng.integers(0, 256, (30, 33)).astype(dtype)
    patches = extract_patches(image, 6, 2, remove_means=means)
    patches = patches[0] if means else patches
    array = np.asarray(patches)
    model = kl.KroneckerDictionaryLearning((8, 8), n_nonzero_coefs=4, max_iter=2, random_state=0)
    factors = model.fit(array).factors_
    assert all(map(np.array_equal, model.fit(patches).factors_, factors))
    assert factors[0].dtype == (np.float32 if dtype == "f4" else np.float64)
    assert model.score(patches) == model.score(array)
    assert (model.transform(patches) != model.transform(array)).nnz == 0
    weights = rng.random(patches.shape) < 0.9
    found, expected = (
        kl.sparse_code(given_as, model.dictionary_, 4, weights=weights)
        for given_as in (patches, array)
    )
    assert (found != expected).nnz == 0
    with pytest.raises(ValueError, match=r"samples have shape \(6, 6\), but \(5, 5\) is needed"):
        kl.sparse_code(patches, [np.eye(5)] * 2, 1)


def test_an_error_names_the_first_patch_that_is_not_finite():
    image = np.ones((9, 9))
    image[8, 8] = np.nan
    with pytest.raises(ValueError, match=r"image contains NaN \(first in sample 15\)"):
        kl.sparse_code(extract_patches(image, 3, 2), [np.eye(3)] * 2, 1)


def test_learning_holds_only_a_few_patches_in_memory(rng):
    image = rng.integers(0, 256, (400, 400), np.uint8)
    patches = extract_patches(image, 8)
    model = kl.KroneckerDictionaryLearning((8, 8), n_nonzero_coefs=2, max_iter=1, random_state=0)
    tracemalloc.start()
    model.fit(patches)
    model.score(patches)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(patches) * 64 * 8 > 75e6
    assert peak < 20e6


def test_reconstruction_of_a_large_image_takes_little_memory():
    image = np.random.default_rng(0).standard_normal((1000, 1000), dtype=np.float32)
    patches = extract_patches(image, 8, stride=2)
    assert len(patches) * 64 * 4 > 60e6
    tracemalloc.start()
    again = reconstruct_from_patches((block for block in patches.blocks(5000)), image.shape, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(again, image)
    # Four bytes a pixel for the values, eight for differences from them and eight for the result.
    assert peak < 40 * image.size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((5, 6)), (6, 6)), r"shape \(6, 6\) do not fit in an image of shape \(5, 6\)"),
        ((np.zeros((5, 6)), (2, 2, 1)), r"has 3 numbers; an image of shape \(5, 6\) needs 2"),
        ((np.zeros((5, 6)), 2, 0), "stride=0 must be positive"),
        ((np.zeros((5, 6)), 2, (1, 2, 3)), "stride=.* has 3 numbers"),
        ((np.zeros((5, 6)), (0, 2)), "patch_shape=.* must be positive"),
        ((np.zeros((0, 6)), 1), r"image has shape \(0, 6\)"),
        ((np.float64(1), 1), r"image has shape \(\)"),
        ((np.zeros((5, 6), complex), 2), "image has dtype complex128"),
        ((np.array([["a"]]), 1), "pass real numbers"),
    ],
)
def test_patches_that_cannot_be_cut_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        extract_patches(*arguments)


@pytest.mark.parametrize("size", [2.5, "8", None, (2, 1.5)])
def test_sizes_that_are_not_integers_are_refused(size):
    with pytest.raises(TypeError, match=r"patch_shape=.* is not an integer"):
        extract_patches(np.zeros((5, 6)), size)


def blocks_of_unequal_dtype():
    yield np.zeros((5, 2))
    yield np.zeros((4, 2), np.float32)


@pytest.mark.parametrize(
    ("patches", "options", "message"),
    [
        (np.zeros((8, 2)), {}, r"There are 8 patches; .* has exactly 9"),
        (np.zeros((10, 2)), {}, r"There are 10 patches or more; .* has exactly 9"),
        ([np.zeros((5, 2)), np.zeros((5, 2))], {}, "exactly 9"),
        ([np.zeros((5, 2)), np.zeros((4, 3))], {}, r"has shape \(4, 3\)"),
        (blocks_of_unequal_dtype(), {}, "dtype float32; earlier blocks had float64"),
        (np.zeros((9, 2, 2)), {}, r"patches has shape \(9, 2, 2\)"),
        ([], {}, "patches is empty"),
        (
            np.zeros((9, 2)),
            {"means": np.zeros(8)},
            r"means has shape \(8,\); pass one per patch, \(9,\)",
        ),
        (np.zeros((9, 2)), {"weights": np.zeros(9)}, "weights must be positive"),
        (np.zeros((9, 2)), {"stride": 2}, "exactly 5"),
        (np.zeros((9, 11)), {}, "do not fit"),
        (np.zeros((4, 2)), {"stride": 3}, r"stride=\(3,\) leaves gaps between patches"),
        (np.full((9, 2), np.nan), {"dtype": int}, "contain NaN, which int64 cannot hold"),
        (np.zeros((9, 2)), {"dtype": complex}, "dtype has dtype complex128"),
    ],
)
def test_patches_that_do_not_make_the_image_are_refused(patches, options, message):
    with pytest.raises(ValueError, match=message):
        reconstruct_from_patches(patches, (10,), **options)


def test_other_invalid_calls_are_refused():
    patches = extract_patches(np.zeros((4, 4)), 2)
    assert "shape=(9, 2, 2)" in repr(patches)
    assert isinstance(patches, Patches)
    with pytest.raises(TypeError, match="patches is a int"):
        reconstruct_from_patches(3, (4, 4))
    with pytest.raises(TypeError, match="image_shape=4 is not a tuple"):
        reconstruct_from_patches(patches, 4)
    with pytest.raises(ValueError, match="has no pixels"):
        reconstruct_from_patches(patches, (0, 4))
    with pytest.raises(IndexError, match="Patch 9 does not exist; there are 9 patches"):
        patches[9]
    with pytest.raises(IndexError, match="one index"):
        patches[0, 1]
    with pytest.raises(IndexError, match="a list of integers or a boolean mask"):
        patches[[0.5]]
    with pytest.raises(ValueError, match="size=0"):
        next(patches.blocks(0))
    with pytest.raises(ValueError, match="always a copy"):
        np.asarray(patches, copy=False)
