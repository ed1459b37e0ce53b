"""Native passes over the patches of an image against the NumPy reference."""

from functools import cache, reduce

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager, similar_patches

DTYPES = [np.float64, np.float32]
ERROR = {np.float64: 1e-10, np.float32: 2e-5}
METHODS = ["omp", "ols", "threshold"]

# Image, patch, atoms per mode, stride, most nonzeros: one to four axes, odd patches, strides that
# do not divide, images of one patch, and along each axis more patches than a band holds. In an
# overcomplete mode of m pixels OLS may take m − 1 atoms before all others gain the same.
CODINGS = [
    ((50,), (7,), (9,), (3,), 4),
    ((70,), (8,), (16,), (1,), 5),
    ((16,), (16,), (16,), (5,), 6),
    ((20, 20), (8, 8), (8, 8), (2, 2), 8),
    ((21, 13), (8, 8), (16, 16), (3, 2), 6),
    ((13, 25), (5, 3), (7, 3), (2, 3), 4),
    ((8, 8), (8, 8), (16, 16), (1, 1), 6),
    ((60, 9), (3, 3), (3, 3), (1, 2), 4),
    ((9, 60), (5, 5), (6, 6), (4, 1), 3),
    ((30, 6), (7, 1), (9, 1), (2, 1), 4),
    ((1, 40), (1, 7), (1, 7), (1, 3), 4),
    ((12, 10), (1, 1), (1, 1), (1, 1), 1),
    ((7, 9, 7), (3, 4, 2), (4, 5, 2), (2, 3, 2), 2),
    ((4, 40, 5), (2, 5, 3), (2, 6, 3), (2, 2, 2), 4),
    ((1, 11, 7), (1, 5, 3), (1, 5, 3), (1, 2, 1), 5),
    ((4, 5, 4, 3), (2, 3, 2, 2), (2, 4, 2, 2), (1, 2, 2, 1), 2),
]

# Planes, image, patch, group, stride, window.
SHRINKAGES = [
    (1, (40,), (7,), 4, (3,), (10,)),
    (2, (33,), (8,), 5, (5,), (100,)),
    (1, (90,), (5,), 3, (1,), (4,)),
    (1, (21, 19), (8, 8), 16, (3, 3), (5, 5)),
    (2, (11, 30), (3, 5), 4, (2, 3), (4, 6)),
    (3, (30, 11), (5, 3), 6, (3, 2), (2, 7)),
    (1, (14, 13), (7, 7), 3, (3, 4), (50, 50)),
    (2, (8, 8), (8, 8), 8, (1, 1), (5, 5)),
    (1, (9, 9), (8, 8), 16, (1, 1), (3, 3)),
    (1, (12, 10), (1, 1), 3, (1, 1), (2, 2)),
    (2, (13, 12), (3, 3), 1, (2, 2), (3, 3)),
    (1, (13, 12), (3, 3), 7, (2, 2), (0, 0)),
    (1, (13, 12), (3, 3), 4, (2, 2), (0, 5)),
    (1, (1, 40), (1, 8), 4, (1, 3), (0, 9)),
    (1, (40, 1), (8, 1), 4, (3, 1), (9, 0)),
    (1, (70, 7), (3, 3), 4, (2, 2), (3, 2)),
    (2, (7, 70), (3, 3), 4, (2, 2), (2, 3)),
    (2, (6, 9, 7), (3, 4, 2), 4, (2, 3, 2), (2, 3, 2)),
    (1, (4, 50, 5), (2, 3, 3), 3, (1, 3, 2), (1, 3, 1)),
    (1, (3, 5, 4, 4), (2, 2, 2, 3), 3, (1, 2, 1, 1), (1, 1, 2, 1)),
]


def named(case):
    return " ".join(
        "x".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in case
    )


def assert_same_for_any_threads(work):
    """What ``work(n_threads)`` returns: the same bits for several numbers."""
    first = work(1)
    for n_threads in (2, 5):
        np.testing.assert_array_equal(work(n_threads), first)
    return first


# Coding


@cache
def image_to_code(case, method):
    """Factors, a smooth image with noise, weights of its pixels, and an error target."""
    shape, patch, n_atoms, _, _ = case
    rng = np.random.default_rng(sum(shape) + sum(patch))
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, patch)
    else:
        factors = reference.random_factors(rng, patch, n_atoms)
    image = sum(
        np.ix_(*(np.cumsum(rng.standard_normal(size)) for size in shape)),
        rng.standard_normal(shape),
    )
    # Where hardly any pixel of a patch is known, many separable atoms look the same.
    share = 0.5 if np.prod(patch) > 30 else 0.95
    known = np.round(rng.uniform(0.1, 2.0, shape), 2) * (rng.random(shape) < share)
    return factors, image, known, 0.7 * np.sqrt(np.prod(patch))


@cache
def coded_by_reference(case, method, has_target, masked, favour_sparse):
    _, _, _, stride, width = case
    factors, image, known, tol = image_to_code(case, method)
    return reference.average_coded_patches(
        image,
        factors,
        stride,
        tol if has_target else None,
        width,
        method,
        known if masked else None,
        favour_sparse,
    )


def assert_image_matches(found, expected, dtype):
    """Every pixel agrees; in float32 a near tie may go the other way in a few patches."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    error = np.abs(found - expected)[~np.isnan(expected)]
    if dtype is np.float64:
        assert error.max() <= ERROR[dtype]
    else:
        assert np.quantile(error, 0.7) <= 1e-4
        assert error.max() <= 1.0


def check_coding(case, method, dtype, has_target, masked=False, favour_sparse=True):
    _, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, method)

    def work(n_threads):
        return Averager(patch, stride, Workers(n_threads)).code(
            image.astype(dtype),
            factors,
            method=method,
            width=width,
            tol=tol if has_target else None,
            known=known.astype(dtype) if masked else None,
            favour_sparse=favour_sparse,
        )

    found = assert_same_for_any_threads(work)
    assert found.dtype == dtype
    expected = coded_by_reference(case, method, has_target, masked, favour_sparse)
    assert_image_matches(found, expected, dtype)


@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_coded_images_equal_the_reference(case, method, dtype, instruction_set):
    with kl.use_instruction_set(instruction_set):
        check_coding(case, method, dtype, has_target=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CODINGS[::3], ids=named)
def test_images_coded_to_a_number_of_atoms_equal_the_reference(case, method, dtype):
    check_coding(case, method, dtype, has_target=False)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("case", CODINGS[::3], ids=named)
def test_patches_may_all_count_the_same(case, masked):
    check_coding(case, "omp", np.float64, has_target=True, masked=masked, favour_sparse=False)


@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_images_coded_by_weights_of_their_pixels_equal_the_reference(
    case, method, dtype, instruction_set
):
    with kl.use_instruction_set(instruction_set):
        check_coding(case, method, dtype, has_target=True, masked=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("value", [1e6, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("method", ["omp", "ols"])
def test_values_of_missing_pixels_do_not_matter(rng, method, value, dtype):
    factors = reference.random_factors(rng, (5, 4), (7, 6))
    image = rng.standard_normal((30, 26)).astype(dtype)
    known = (rng.random(image.shape) < 0.5).astype(dtype)
    options = {"method": method, "width": 3, "tol": 2.0, "known": known}
    expected = Averager((5, 4), (2, 2)).code(image * known, factors, **options)
    spoiled = np.where(known > 0, image, dtype(value))
    found = Averager((5, 4), (2, 2)).code(spoiled, factors, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=10 * ERROR[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_a_pixel_of_which_no_patch_knows_anything_becomes_nan(rng, dtype):
    image = rng.standard_normal((20, 30)).astype(dtype)
    known = np.ones_like(image)
    known[4:17, 5:19] = 0
    found = Averager((5, 3), (1, 1)).code(
        image,
        reference.dct_factors((5, 3), (5, 3)),
        method="omp",
        width=4,
        tol=1.0,
        known=known,
    )
    lost = np.zeros(image.shape, bool)
    lost[8:13, 7:17] = True  # four rows and two columns from what is known
    np.testing.assert_array_equal(np.isnan(found), lost)


def test_an_image_of_which_nothing_is_known_becomes_nan(rng):
    image = rng.standard_normal((9, 9))
    options = {"method": "omp", "width": 2, "tol": 1.0, "known": np.zeros_like(image)}
    found = Averager((3, 3), (2, 2)).code(image, [np.eye(3), np.eye(3)], **options)
    assert np.isnan(found).all()


@pytest.mark.parametrize("method", METHODS)
def test_without_an_error_an_image_is_its_own_average(rng, method):
    factors = reference.orthonormal_factors(rng, (4, 3))
    image = rng.standard_normal((17, 14))
    found = Averager((4, 3), (2, 1)).code(image, factors, method=method, width=12, tol=0.0)
    np.testing.assert_allclose(found, image, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_a_constant_image_is_coded_as_its_mean(dtype):
    image = np.full((20, 17), 3.5, dtype)
    factors = reference.dct_factors((5, 5), (7, 7))
    found = Averager((5, 5), (2, 3)).code(image, factors, method="ols", width=5, tol=0.1)
    np.testing.assert_array_equal(found, image)


def test_a_target_that_is_met_at_once_leaves_means(rng):
    image = rng.standard_normal((12, 12))
    factors = reference.dct_factors((4, 4), (4, 4))
    found = Averager((4, 4), (4, 4)).code(image, factors, method="omp", width=3, tol=1e6)
    means = image.reshape(3, 4, 3, 4).mean(axis=(1, 3))
    np.testing.assert_allclose(found, np.kron(means, np.ones((4, 4))), rtol=0, atol=1e-12)


# Shrinking


def taper_of(patch):
    return reduce(np.multiply.outer, [np.kaiser(m, 2.0) for m in patch])


@cache
def planes_to_shrink(case, most=9):
    """Planes and a guide of integers: distances between its patches are exact in any precision."""
    n_planes, shape, patch, *_ = case
    rng = np.random.default_rng(sum(shape) + sum(patch))
    guide = rng.integers(0, most + 1, (n_planes, *shape)).astype(np.float64)
    return guide + 2 * rng.standard_normal(guide.shape), guide


@cache
def shrunk_by_reference(case, most=9):
    _, _, patch, group, stride, window = case
    planes, guide = planes_to_shrink(case, most)
    return reference.shrink_similar(planes, guide, group, stride, window, 2.0, taper_of(patch))


def check_shrinking(case, dtype, most=9):
    _, _, patch, group, stride, window = case
    planes, guide = (array.astype(dtype) for array in planes_to_shrink(case, most))

    def work(n_threads):
        return Averager(patch, stride, Workers(n_threads)).shrink_groups(
            planes, guide, group=group, window=window, noise=2.0
        )

    found = assert_same_for_any_threads(work)
    assert found.dtype == dtype
    expected = shrunk_by_reference(case, most)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5 * ERROR[dtype])


@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("case", SHRINKAGES, ids=named)
def test_shrunk_groups_equal_the_reference(case, dtype, instruction_set):
    with kl.use_instruction_set(instruction_set):
        check_shrinking(case, dtype)


@pytest.mark.parametrize("instruction_set", kl.instruction_sets())
@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("most", [0, 1], ids=["constant", "zeros and ones"])
@pytest.mark.parametrize("case", SHRINKAGES[::2], ids=named)
def test_of_equally_near_patches_the_first_is_taken(case, most, dtype, instruction_set):
    with kl.use_instruction_set(instruction_set):
        check_shrinking(case, dtype, most)


def test_only_the_first_plane_of_the_guide_says_what_is_similar(rng):
    planes = rng.standard_normal((2, 18, 18))
    guide = np.stack([rng.integers(0, 9, (18, 18)), rng.integers(0, 9, (18, 18))]).astype(float)
    options = {"group": 4, "window": (4, 4), "noise": 1.0}
    together = Averager((4, 4), (2, 2)).shrink_groups(planes, guide, **options)
    first = Averager((4, 4), (2, 2)).shrink_groups(planes[:1], guide[:1], **options)
    second = Averager((4, 4), (2, 2)).shrink_groups(planes[1:], guide[1:], **options)
    np.testing.assert_array_equal(together[0], first[0])
    assert np.abs(together[1] - second[0]).max() > 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])
def test_almost_no_noise_leaves_planes_as_they_are(rng, dtype):
    planes = rng.standard_normal((2, 19, 16)).astype(dtype)
    guide = planes + dtype(3)
    found = Averager((5, 5), (2, 2)).shrink_groups(
        planes, guide, group=3, window=(4, 4), noise=1e-9
    )
    np.testing.assert_allclose(found, planes, rtol=0, atol=ERROR[dtype])


def test_a_guide_of_zeros_shrinks_everything_away(rng):
    planes = rng.standard_normal((1, 12, 12))
    found = Averager((4, 4), (2, 2)).shrink_groups(
        planes, np.zeros_like(planes), group=4, window=(2, 2), noise=1.0
    )
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("shape", [(1, 1), (5,), (3, 5), (1, 30), (30, 1), (4, 6, 5), (40, 33)])
def test_similar_patches_suit_images_of_any_shape(rng, shape):
    planes = 10 + rng.standard_normal((2, *shape)).astype(np.float32)
    guide = np.full_like(planes, 10)
    found = assert_same_for_any_threads(lambda n: similar_patches(planes, guide, 1.0, Workers(n)))
    assert found.shape == planes.shape
    assert np.isfinite(found).all()
    if np.prod(shape) >= 5:
        assert np.std(found - 10) < np.std(planes - 10)


# Progress


def test_passes_tell_the_share_that_is_done(rng):
    image = rng.standard_normal((96, 96)).astype(np.float32)
    factors = reference.dct_factors((8, 8), (16, 16))
    for n_threads in (1, 2):
        shares = []
        Averager((8, 8), (1, 1), Workers(n_threads), shares.append).code(
            image, factors, method="ols", width=32, tol=0.0
        )
        assert len(shares) > 1
        assert sorted(shares) == shares
        assert shares[0] >= 0
        assert shares[-1] <= 1


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("reach", [20, 150], ids=["quick search", "slow search"])
def test_an_exception_raised_while_told_ends_a_search_for_groups(rng, reach, n_threads):
    planes = rng.standard_normal((1, 300, 300)).astype(np.float32)
    calls = []

    def stop(share):
        calls.append(share)
        raise ZeroDivisionError(share)

    with pytest.raises(ZeroDivisionError):
        Averager((8, 8), (1, 1), Workers(n_threads), stop).shrink_groups(
            planes, planes, group=16, window=(reach, reach), noise=1.0
        )
    assert len(calls) == 1


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_exception_raised_while_told_ends_coding(rng, n_threads):
    image = rng.standard_normal((300, 300)).astype(np.float32)
    factors = reference.dct_factors((8, 8), (16, 16))
    calls = []

    def stop(share):
        calls.append(share)
        raise ZeroDivisionError(share)

    with pytest.raises(ZeroDivisionError):
        Averager((8, 8), (1, 1), Workers(n_threads), stop).code(
            image, factors, method="ols", width=32, tol=0.0
        )
    assert len(calls) == 1


# Refusals


@pytest.mark.parametrize(
    ("patch", "stride"),
    [((8, 8), (9, 1)), ((8, 8), (0, 1)), ((21, 8), (1, 1))],
    ids=["gaps", "no stride", "too large"],
)
def test_patches_that_do_not_cover_the_image_are_refused(patch, stride):
    image = np.zeros((20, 20))
    factors = [np.eye(m) for m in patch]
    with pytest.raises(ValueError, match="fit"):
        Averager(patch, stride).code(image, factors, method="omp", width=1, tol=None)
    with pytest.raises(ValueError, match="fit"):
        Averager(patch, stride).shrink_groups(
            image[None], image[None], group=2, window=(2, 2), noise=1.0
        )


def test_a_window_of_less_than_nothing_is_refused():
    planes = np.zeros((1, 20, 20))
    with pytest.raises(ValueError, match="fit"):
        Averager((4, 4), (2, 2)).shrink_groups(planes, planes, group=2, window=(2, -1), noise=1.0)
