"""Native passes over the patches of an image equal the NumPy reference."""

from dataclasses import replace
from functools import cache, partial, reduce

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from skimage.data import camera

import kronlearn as kl
import reference
from kronlearn.engines.workers import Workers
from kronlearn.images.aggregation import Averager
from kronlearn.images.groups import EFFORTS, Effort, GroupFilter, refine

METHODS = ["omp", "ols", "threshold"]

# Image, patch, atoms per mode, stride, maximum of nonzeros: one to four axes, odd patches, strides
# that do not divide the image, images of one patch, and along each axis more patches than a band
# has. In an overcomplete mode of m pixels, OLS can take m − 1 atoms before all others are tied.
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

# Planes, planes on which patches are compared, image, patch, group, stride, window: groups and
# patches of any size, and windows with fewer patches than a group, with one, and with all patches.
GROUPS = [
    (1, 1, (40,), (7,), 4, (3,), (10,)),
    (2, 2, (33,), (8,), 5, (5,), (100,)),
    (1, 1, (90,), (5,), 18, (1,), (14,)),
    (1, 1, (21, 19), (8, 8), 33, (3, 3), (5, 5)),
    (2, 1, (11, 30), (3, 5), 16, (2, 3), (4, 6)),
    (3, 3, (30, 11), (5, 3), 6, (3, 2), (2, 7)),
    (1, 2, (14, 13), (7, 7), 20, (3, 4), (50, 50)),
    (2, 1, (8, 8), (8, 8), 8, (1, 1), (5, 5)),
    (1, 1, (9, 9), (8, 8), 16, (1, 1), (3, 3)),
    (1, 1, (12, 10), (1, 1), 3, (1, 1), (2, 2)),
    (2, 1, (13, 12), (3, 3), 1, (2, 2), (3, 3)),
    (1, 1, (13, 12), (3, 3), 7, (2, 2), (0, 0)),
    (1, 1, (13, 12), (3, 3), 17, (2, 2), (0, 5)),
    (1, 1, (1, 40), (1, 8), 4, (1, 3), (0, 9)),
    (1, 1, (40, 1), (8, 1), 4, (3, 1), (9, 0)),
    (1, 2, (70, 7), (3, 3), 49, (2, 2), (8, 2)),
    (2, 1, (7, 70), (3, 3), 4, (2, 2), (2, 3)),
    (2, 2, (6, 9, 7), (3, 4, 2), 12, (2, 3, 2), (2, 3, 2)),
    (1, 1, (4, 50, 5), (2, 3, 3), 3, (1, 3, 2), (1, 3, 1)),
    (1, 1, (3, 5, 4, 4), (2, 2, 2, 3), 9, (1, 2, 1, 1), (1, 1, 2, 1)),
]


def named(case):
    return " ".join(
        "x".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in case
    )


def for_any_threads(work):
    """Return the result of ``work(n_threads)``, the same bits for several numbers of threads."""
    first = work(1)
    for n_threads in (2, 5):
        np.testing.assert_array_equal(work(n_threads), first)
    return first


def for_all_instruction_sets(work):
    """Yield the result of ``work(n_threads)`` with every instruction set, for any threads."""
    for instruction_set in kl.instruction_sets():
        with kl.use_instruction_set(instruction_set):
            yield for_any_threads(work)


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


def assert_image_matches(found, expected):
    """All pixels agree except where near ties are broken differently in a few patches."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    error = np.abs(found - expected)[~np.isnan(expected)]
    assert np.quantile(error, 0.7) <= 1e-4
    assert error.max() <= 1.0


def check_coding(case, method, has_target, masked=False, favour_sparse=True):
    _, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, method)

    def work(n_threads):
        return Averager(patch, stride, Workers(n_threads)).code(
            image.astype(np.float32),
            factors,
            method=method,
            width=width,
            tol=tol if has_target else None,
            known=known.astype(np.float32) if masked else None,
            favour_sparse=favour_sparse,
        )

    expected = coded_by_reference(case, method, has_target, masked, favour_sparse)
    for found in for_all_instruction_sets(work):
        assert found.dtype == np.float32
        assert_image_matches(found, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_coded_images_equal_the_reference(case, method):
    check_coding(case, method, has_target=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CODINGS[::3], ids=named)
def test_images_coded_to_a_number_of_atoms_equal_the_reference(case, method):
    check_coding(case, method, has_target=False)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("case", CODINGS[::3], ids=named)
def test_images_coded_with_equal_weights_equal_the_reference(case, masked):
    check_coding(case, "omp", has_target=True, masked=masked, favour_sparse=False)


@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("case", CODINGS, ids=named)
def test_images_coded_with_weighted_pixels_equal_the_reference(case, method):
    check_coding(case, method, has_target=True, masked=True)


@pytest.mark.parametrize("value", [1e6, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("method", ["omp", "ols"])
def test_values_of_missing_pixels_do_not_matter(rng, method, value):
    factors = reference.random_factors(rng, (5, 4), (7, 6))
    image = rng.standard_normal((30, 26)).astype(np.float32)
    known = (rng.random(image.shape) < 0.5).astype(np.float32)
    options = {"method": method, "width": 3, "tol": 2.0, "known": known}
    expected = Averager((5, 4), (2, 2)).code(image * known, factors, **options)
    spoiled = np.where(known > 0, image, np.float32(value))
    found = Averager((5, 4), (2, 2)).code(spoiled, factors, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_a_pixel_covered_by_no_known_patch_becomes_nan(rng):
    image = rng.standard_normal((20, 30)).astype(np.float32)
    known, lost = np.ones_like(image), np.zeros(image.shape, bool)
    known[4:17, 5:19] = 0
    lost[8:13, 7:17] = True  # four rows and two columns from what is known
    factors = reference.dct_factors((5, 3), (5, 3))
    options = {"method": "omp", "width": 4, "tol": 1.0}
    for weights, wanted in ((known, lost), (0 * known, np.ones_like(lost))):
        found = Averager((5, 3), (1, 1)).code(image, factors, known=weights, **options)
        np.testing.assert_array_equal(np.isnan(found), wanted)


@pytest.mark.parametrize("method", METHODS)
def test_exact_coding_reproduces_the_image(rng, method):
    factors = reference.orthonormal_factors(rng, (4, 3))
    image = rng.standard_normal((17, 14)).astype(np.float32)
    found = Averager((4, 3), (2, 1)).code(image, factors, method=method, width=12, tol=0.0)
    np.testing.assert_allclose(found, image, rtol=0, atol=1e-5)


def test_a_constant_image_is_coded_as_its_mean():
    image = np.full((20, 17), 3.5, np.float32)
    factors = reference.dct_factors((5, 5), (7, 7))
    found = Averager((5, 5), (2, 3)).code(image, factors, method="ols", width=5, tol=0.1)
    np.testing.assert_array_equal(found, image)


def test_an_error_target_met_by_the_mean_leaves_the_mean(rng):
    image = rng.standard_normal((12, 12)).astype(np.float32)
    factors = reference.dct_factors((4, 4), (4, 4))
    found = Averager((4, 4), (4, 4)).code(image, factors, method="omp", width=3, tol=1e6)
    means = image.reshape(3, 4, 3, 4).mean(axis=(1, 3))
    np.testing.assert_allclose(found, np.kron(means, np.ones((4, 4))), rtol=0, atol=1e-6)


# Groups of similar patches


def taper_of(patch):
    return reduce(np.multiply.outer, [np.kaiser(m, 2.0) for m in patch])


@cache
def planes_to_filter(case, most=9):
    """Noisy planes (σ = 2), a guide, and planes to match on.

    The latter are integers: distances between their patches are exact in any precision.
    """
    n_planes, n_matched, shape, patch, *_ = case
    rng = np.random.default_rng(sum(shape) + sum(patch))
    matched = rng.integers(0, most + 1, (max(n_planes, n_matched), *shape)).astype(np.float64)
    guide = matched[:n_planes] + 0.3 * rng.standard_normal((n_planes, *shape))
    noisy = matched[:n_planes] + 2 * rng.standard_normal(guide.shape)
    return tuple(array.astype(np.float32) for array in (noisy, guide, matched[:n_matched]))


@cache
def variance_of(case):
    """Variances of the noise that differ from pixel to pixel."""
    rng = np.random.default_rng(sum(case[2]))
    return (4 * rng.uniform(0.1, 3, (case[0], *case[2])) ** 2).astype(np.float32)


@cache
def filtered_by_reference(case, kind, most=9, uneven=False):
    _, _, _, patch, group, stride, window = case
    planes, guide, matched = planes_to_filter(case, most)
    guide, variance = guide_of(kind, guide), variance_of(case) if uneven else 4.0
    settings = (group, stride, window, variance, taper_of(patch))
    return reference.filter_groups(planes, guide, matched, *settings, kind == "over pixels")


def guide_of(kind, guide):
    return None if kind == "unguided" else guide


def check_filtering(case, kind, most=9, uneven=False):
    _, _, _, patch, group, stride, window = case
    planes, guide, matched = planes_to_filter(case, most)
    options = {"group": group, "window": window}
    options["variance"] = variance_of(case) if uneven else 4.0
    options["over_pixels"] = kind == "over pixels"

    def work(n_threads):
        averager = Averager(patch, stride, Workers(n_threads))
        return averager.filter_groups(planes, guide_of(kind, guide), matched, **options)

    expected = filtered_by_reference(case, kind, most, uneven)
    for found in for_all_instruction_sets(work):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


KINDS = ["unguided", "guided", "over pixels"]
OF_EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@OF_EACH_KIND
@pytest.mark.parametrize("case", GROUPS, ids=named)
def test_filtered_groups_equal_the_reference(case, kind):
    check_filtering(case, kind)


@OF_EACH_KIND
@pytest.mark.parametrize("case", GROUPS[2::3], ids=named)
def test_groups_with_uneven_noise_equal_the_reference(case, kind):
    check_filtering(case, kind, uneven=True)


@pytest.mark.parametrize("most", [0, 1], ids=["constant", "zeros and ones"])
@pytest.mark.parametrize("case", GROUPS[::3], ids=named)
def test_ties_are_broken_by_the_order_of_patches(case, most):
    check_filtering(case, "guided", most)


def test_groups_may_be_large(rng):
    planes = rng.standard_normal((1, 20, 22)).astype(np.float32)
    matched = rng.integers(0, 9, planes.shape).astype(np.float32)
    options = {"group": 130, "window": (9, 9)}
    found = Averager((3, 3), (3, 3)).filter_groups(planes, None, matched, **options)
    expected = reference.filter_groups(
        planes, None, matched, 130, (3, 3), (9, 9), 1.0, taper_of((3, 3))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


@OF_EACH_KIND
@pytest.mark.parametrize("value", [0.0, 7.3, -1e-5, 1e6])
def test_constant_planes_are_unchanged(value, kind):
    planes = np.full((1, 12, 13), value, np.float32)
    found = Averager((4, 4), (2, 2)).filter_groups(
        planes,
        guide_of(kind, planes),
        planes,
        group=18,
        window=(5, 5),
        over_pixels=kind == "over pixels",
    )
    np.testing.assert_allclose(found, planes, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6])
@OF_EACH_KIND
def test_nearly_constant_planes_are_hardly_changed_in_any_unit(rng, kind, scale):
    # The planes vary only by noise, a thousandth of the noise assumed.
    planes = (scale * (100 + 1e-3 * rng.standard_normal((1, 12, 13)))).astype(np.float32)
    found = Averager((4, 4), (2, 2)).filter_groups(
        planes,
        guide_of(kind, planes),
        planes,
        group=18,
        window=(5, 5),
        variance=scale**2,
        over_pixels=kind == "over pixels",
    )
    assert np.abs(found - planes).max() < 0.01 * scale


def test_planes_with_almost_no_noise_are_unchanged(rng):
    planes = rng.standard_normal((2, 19, 16)).astype(np.float32)
    found = Averager((5, 5), (2, 2)).filter_groups(
        planes, planes + 3, planes, group=3, window=(4, 4), variance=1e-18
    )
    np.testing.assert_allclose(found, planes, rtol=0, atol=2e-5)


def test_a_constant_guide_gives_its_mean(rng):
    planes = rng.standard_normal((1, 12, 12)).astype(np.float32)
    guide = np.full_like(planes, 3)
    found = Averager((4, 4), (2, 2)).filter_groups(planes, guide, guide, group=4, window=(2, 2))
    np.testing.assert_allclose(found, 3, rtol=1e-6)


@pytest.mark.parametrize("quality", EFFORTS)
@pytest.mark.parametrize("shape", [(1, 1), (5,), (3, 5), (1, 30), (30, 1), (4, 6, 5), (40, 33)])
def test_estimates_of_any_shape_are_refined(rng, shape, quality):
    planes = 10 + rng.standard_normal((2, *shape)).astype(np.float32)

    def work(n_threads):
        estimate = np.full_like(planes, 10)
        return refine(planes, estimate, EFFORTS[quality], Workers(n_threads))

    found = for_any_threads(work)
    assert found.shape == planes.shape
    assert np.isfinite(found).all()
    if np.prod(shape) >= 5:
        assert np.std(found - 10) < np.std(planes - 10)


def test_later_rounds_filter_planes_with_strong_noise_after_some_of_it_was_removed(rng):
    weak, strong = rng.standard_normal((2, 40, 33)).astype(np.float32)
    weak[:, 16:] += 40
    strong[:20] += 1
    planes = np.stack([weak, strong])
    unguided, guided = GroupFilter(8, 25, candidates=121), GroupFilter(12, 16, candidates=121)
    effort, tau = Effort(2, unguided, guided, feedback=0.5, n_matched=2), 0.5
    start = gaussian_filter(planes, (0, 2, 2))
    found = refine(planes, start.copy(), effort, Workers())

    first = (start + unguided.run(planes, None, start, Workers())) / 2
    first = guided.run(planes, first, first, Workers())
    second = first.copy()
    second[0] += (unguided.run(planes, None, first, Workers())[0] - first[0]) / 3
    last = partial(guided.run, over_pixels=True)
    # Patches are compared with each plane in units of the noise that is left in it.
    matched = np.stack([second[0], second[1] / tau])
    less_noisy = second[1] + tau * (strong - second[1])
    expected = [
        last(planes[:1], second[:1], matched, Workers())[0],
        last(less_noisy[None], second[1:], matched, Workers(), variance=tau**2)[0],
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_a_strongly_noisy_image_gets_another_round_and_less_of_the_noise():
    clean = camera()[100:292, 100:292].astype(np.float32)
    noisy = clean + 50 * np.random.default_rng(1).standard_normal(clean.shape).astype(np.float32)
    planes, estimate = noisy[None] / 50, gaussian_filter(noisy, 2)[None] / 50
    simple = replace(EFFORTS["default"], feedback=1.0, extra_rounds=0)
    errors = [
        np.std(50 * refine(planes, estimate.copy(), effort, Workers(2))[0] - clean)
        for effort in (simple, EFFORTS["default"])
    ]
    assert errors[1] < 0.99 * errors[0]


@pytest.mark.parametrize("n_matched", [1, 2])
def test_patches_are_compared_on_the_first_planes_only(rng, n_matched):
    planes = 10 + rng.standard_normal((2, 40, 33)).astype(np.float32)
    others = np.stack([planes[0], planes[1, ::-1]])
    effort = replace(EFFORTS["default"], n_matched=n_matched)
    found, expected = (refine(each, None, effort, Workers())[0] for each in (others, planes))
    assert np.array_equal(found, expected) == (n_matched == 1)


def test_planes_are_refined_without_an_estimate(rng):
    planes = 10 + rng.standard_normal((1, 40, 33)).astype(np.float32)
    found = refine(planes, None, EFFORTS["fast"], Workers())
    assert np.std(found - 10) < 0.5 * np.std(planes - 10)


def test_planes_with_short_rows_are_searched_along_another_axis(rng):
    planes = rng.standard_normal((1, 80, 9)).astype(np.float32)
    groups = GroupFilter(8, 16, candidates=81)
    found = groups.run(planes, None, planes, Workers())
    turned = np.ascontiguousarray(np.swapaxes(planes, 1, 2))
    there = groups.run(turned, None, turned, Workers())
    np.testing.assert_array_equal(found, np.swapaxes(there, 1, 2))


# Progress


def test_passes_report_the_fraction_done(rng):
    image = rng.standard_normal((160, 160)).astype(np.float32)
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
@pytest.mark.parametrize("kind", ["coding", "quick search", "slow search"])
def test_an_exception_raised_by_progress_stops_a_pass(rng, kind, n_threads):
    image = rng.standard_normal((300, 300)).astype(np.float32)
    calls = []

    def stop(share):
        calls.append(share)
        raise ZeroDivisionError(share)

    averager = Averager((8, 8), (1, 1), Workers(n_threads), stop)
    work = partial(
        averager.code, image, reference.dct_factors((8, 8), (16, 16)), method="ols", width=32, tol=0
    )
    if kind != "coding":
        window = (20, 20) if kind == "quick search" else (150, 150)
        work = partial(averager.filter_groups, *[image[None]] * 3, group=16, window=window)
    with pytest.raises(ZeroDivisionError):
        work()
    assert len(calls) == 1


# Refusals


@pytest.mark.parametrize(
    ("patch", "stride"),
    [((8, 8), (9, 1)), ((8, 8), (0, 1)), ((21, 8), (1, 1))],
    ids=["gaps", "no stride", "too large"],
)
def test_patches_that_do_not_cover_the_image_are_refused(patch, stride):
    image = np.zeros((20, 20), np.float32)
    factors = [np.eye(m) for m in patch]
    with pytest.raises(ValueError, match="fit"):
        Averager(patch, stride).code(image, factors, method="omp", width=1, tol=None)
    with pytest.raises(ValueError, match="fit"):
        Averager(patch, stride).filter_groups(
            image[None], None, image[None], group=2, window=(2, 2)
        )


@pytest.mark.parametrize(
    ("guide", "matched", "group", "window"),
    [
        *[(None, (1, 20, 20), group, (2, 2)) for group in (0, -3, 10**6)],
        (None, (1, 20, 20), 2, (2, -1)),
        ((1, 20, 19), (1, 20, 20), 2, (2, 2)),
        (None, (20, 19), 2, (2, 2)),
        (None, (0,), 2, (2, 2)),
    ],
)
def test_invalid_groups_and_arrays_are_refused(guide, matched, group, window):
    planes = np.zeros((1, 20, 20), np.float32)
    given = None if guide is None else np.zeros(guide, np.float32)
    averager = Averager((4, 4), (2, 2))
    with pytest.raises(ValueError, match=r"fit|entries"):
        averager.filter_groups(
            planes, given, np.zeros(matched, np.float32), group=group, window=window
        )
