"""Passes over images, tested emulated on the processor and, if there is one, on a GPU."""

from functools import partial

import numpy as np
import pytest

import kronlearn as kl
import reference
from emulated_gpu import COMPILER, OnEmulatedGpu, WarpGpu
from kronlearn import _native
from kronlearn.core.coder import native_dictionary
from kronlearn.core.init import dct_factor
from kronlearn.cuda.groups import filter_groups_on
from kronlearn.cuda.images import code_image_on
from kronlearn.images.aggregation import energies_of_patches
from test_image_passes import (
    CODINGS,
    GROUPS,
    KINDS,
    METHODS,
    guide_of,
    image_to_code,
    named,
    planes_to_filter,
    taper_of,
    variance_of,
)

# Tolerances relative to the largest magnitude, for coded images and for filtered ones.
ROUNDING, FILTERED = 2e-5, 1e-4
# One to four axes, shapes with specialised kernels, a single patch, strides that do not divide.
SOME_CODINGS = [CODINGS[k] for k in (0, 2, 3, 4, 6, 9, 12, 13, 15)]


def put_on(gpu, array):
    there = gpu.upload(array)
    return there.view(OnEmulatedGpu) if isinstance(there, np.ndarray) else there


def axes_of(shape, patch, stride, window=None):
    return list(zip(shape, patch, stride, window or [0] * len(shape), strict=True))


def coded(gpu, image, factors, axes, *settings, memory=None, on_gpu=False, known=None, **options):
    """The average of all patches, computed by native code if ``gpu`` is None."""
    if gpu is None:
        sums = [np.zeros_like(image), np.zeros_like(image)]
        made = native_dictionary(factors, image.dtype)
        _native.code_image(made, image, *sums, axes, *settings, known=known, **options)
        return divided(*sums)
    if on_gpu:
        image = put_on(gpu, image)
        known = None if known is None else put_on(gpu, known)
    options |= {"known": known, "memory": memory}
    return gpu.download(code_image_on(gpu, factors, image, axes, *settings, **options))


def divided(numerator, denominator):
    with np.errstate(invalid="ignore"):
        return numerator / denominator


def filtered(
    gpu,
    planes,
    guide,
    matched,
    patch,
    group,
    stride,
    window,
    noise=2.0,
    over_pixels=False,
    on_gpu=False,
    progress=None,
):
    """The average of all patches, computed by native code if ``gpu`` is None."""
    axes = axes_of(planes.shape[1:], patch, stride, window)
    taper = taper_of(patch).astype(np.float32)
    variance = noise if isinstance(noise, np.ndarray) else float(noise**2)
    energy = energies_of_patches(variance, patch)
    if gpu is None:
        sums = [np.zeros_like(planes), np.zeros_like(planes)]
        settings = (axes, group, taper, energy, over_pixels)
        _native.filter_groups(planes, guide, matched, *sums, *settings)
        return divided(*sums)
    arrays = [planes, guide, matched]
    if on_gpu:
        arrays = [None if array is None else put_on(gpu, array) for array in arrays]
        energy = energy if energy.size == 1 else put_on(gpu, energy)
    settings = (axes, group, taper, energy, over_pixels, progress)
    return gpu.download(filter_groups_on(gpu, *arrays, *settings))


def assert_same_average(made, wanted):
    """Most pixels agree; in a few patches, a near tie may be decided differently."""
    assert made.dtype == np.float32
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(made[~finite], wanted[~finite])
    error = np.abs(made[finite] - wanted[finite])
    scale = np.abs(wanted[finite]).max(initial=1e-30)
    assert np.quantile(error, 0.7) <= ROUNDING * scale
    assert error.max() <= 0.5 * scale


def assert_same_filtered(found, wanted):
    """All pixels agree up to rounding."""
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=FILTERED * np.abs(wanted).max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", SOME_CODINGS, ids=named)
def test_coded_images_are_those_of_the_processor(gpu, case, method):
    shape, patch, _, stride, width = case
    factors, image, _, tol = image_to_code(case, method)
    image, axes = image.astype(np.float32), axes_of(shape, patch, stride)
    for target, favour in ((tol, True), (tol, False), (-1.0, True)):
        settings = (image, factors, axes, method, width, target)
        expected = coded(None, *settings, favour_sparse=favour)
        found = coded(gpu, *settings, favour_sparse=favour)
        assert_same_average(found, expected)


@pytest.mark.parametrize("method", ["omp", "ols"])
@pytest.mark.parametrize("case", SOME_CODINGS, ids=named)
def test_images_coded_with_weighted_pixels_are_those_of_the_processor(gpu, case, method):
    shape, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, method)
    known = known.astype(np.float32)
    # Missing pixels may have any value.
    image = np.where(known > 0, image, np.nan).astype(np.float32)
    for target in (tol, -1.0):
        settings = (image, factors, axes_of(shape, patch, stride), method, width, target)
        expected = coded(None, *settings, known=known)
        assert_same_average(coded(gpu, *settings, known=known), expected)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("case", [CODINGS[k] for k in (0, 4, 7, 8, 13)], ids=named)
def test_images_coded_in_bands_have_the_same_bits(gpu, case, masked):
    shape, patch, _, stride, width = case
    factors, image, known, tol = image_to_code(case, "omp")
    settings = (image.astype(np.float32), factors, axes_of(shape, patch, stride), "omp", width, tol)
    weights = known.astype(np.float32) if masked else None
    whole = coded(gpu, *settings, known=weights)
    again = coded(gpu, *settings, known=weights, on_gpu=True)
    np.testing.assert_array_equal(again, whole)
    pieces = []
    for memory in (1, 1 << 17, 1 << 18, 1 << 22):
        shares = []
        options = {"known": weights, "memory": memory, "progress": shares.append}
        for on_gpu in (False, True):
            cut = coded(gpu, *settings, on_gpu=on_gpu, **options)
            np.testing.assert_array_equal(cut, whole)
        pieces.append(len(shares) // 2)
        assert shares == sorted(shares[: pieces[-1]]) * 2
        assert shares[-1] == 1.0
    # With the least memory, patches are processed one by one.
    assert pieces[0] > pieces[-1]
    assert pieces == sorted(pieces, reverse=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 0.1, -3.5, 1e-25])
def test_constant_images_are_coded_as_on_the_processor(gpu, value, method):
    image = np.full((20, 17), value, np.float32)
    factors = [dct_factor(5, 5), dct_factor(5, 5)]
    for tol in (-1.0, 0.1):
        settings = (image, factors, axes_of((20, 17), (5, 5), (2, 3)), method, 4, tol)
        expected, found = coded(None, *settings), coded(gpu, *settings)
        np.testing.assert_allclose(found, expected, rtol=10 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pixels_that_are_not_finite_affect_the_same_pixels_as_on_the_processor(
    gpu, rng, bad, method
):
    image = rng.standard_normal((20, 17)).astype(np.float32)
    image[9, 4] = bad
    factors = reference.orthonormal_factors(rng, (5, 4))
    settings = (image, factors, axes_of((20, 17), (5, 4), (2, 3)), method, 4, 0.5)
    assert_same_average(coded(gpu, *settings), coded(None, *settings))


def test_images_are_coded_in_double_precision_if_single_does_not_suffice(gpu, rng):
    # Squares that underflow in single precision, and targets that it cannot meet.
    image = rng.standard_normal((24, 20)).astype(np.float32)
    factors = reference.random_factors(rng, (5, 4), (6, 6))
    axes = axes_of(image.shape, (5, 4), (2, 2))
    for scale, tol in ((1e-22, -1.0), (1e-22, 1e-22), (1.0, 1e-6)):
        settings = ((image * scale).astype(np.float32), factors, axes, "ols", 8, tol)
        found, wanted = coded(gpu, *settings), coded(None, *settings)
        assert np.quantile(np.abs(found - wanted), 0.9) <= 1e-4 * np.abs(wanted).max()


# Teams of 32 threads, as on a GPU


@pytest.fixture(scope="module")
def warps():
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return WarpGpu()


@pytest.mark.parametrize("method", [*METHODS, "known"])
def test_teams_of_many_threads_code_as_one_does(warps, rng, method):
    image = rng.standard_normal((7, 9)).astype(np.float32)
    factors = reference.random_factors(rng, (5, 7), (6, 8))
    known = None
    if method == "threshold":
        factors = reference.orthonormal_factors(rng, (5, 7))
    if method == "known":
        known, method = (rng.random(image.shape) < 0.8).astype(np.float32), "ols"
    settings = (image, factors, axes_of(image.shape, (5, 7), (1, 2)), method, 3, 1.5)
    found = coded(warps, *settings, known=known)
    assert_same_average(found, coded(None, *settings, known=known))


@pytest.mark.parametrize(("method", "tol"), [("omp", 4.0), ("ols", -1.0), ("ols", 1e-3)])
@pytest.mark.parametrize("n", [8, 16])
def test_teams_of_many_threads_code_the_usual_shapes(warps, rng, n, method, tol):
    image = np.cumsum(rng.standard_normal((10, 11)), axis=0).astype(np.float32)
    factors = reference.random_factors(rng, (8, 8), (n, n))
    settings = (image, factors, axes_of(image.shape, (8, 8), (1, 1)), method, 9, tol)
    assert_same_average(coded(warps, *settings), coded(None, *settings))


def test_teams_may_have_their_scratch_in_the_memory_of_the_gpu(warps, rng):
    image = rng.standard_normal((20, 21)).astype(np.float32)
    factors = reference.random_factors(rng, (20, 20), (21, 21))
    settings = (image, factors, axes_of(image.shape, (20, 20), (1, 1)), "omp", 3, -1.0)
    assert_same_average(coded(warps, *settings), coded(None, *settings))


# Groups of similar patches


@pytest.mark.parametrize(
    ("case", "kind"), [(case, KINDS[k % 3]) for k, case in enumerate(GROUPS)], ids=str
)
def test_filtered_groups_are_those_of_the_processor(gpu, case, kind):
    planes, guide, matched = planes_to_filter(case)
    settings = (planes, guide_of(kind, guide), matched, *case[3:], 2.0, kind == "over pixels")
    assert_same_filtered(filtered(gpu, *settings), filtered(None, *settings))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", GROUPS[2::3], ids=named)
def test_groups_with_uneven_noise_are_those_of_the_processor(gpu, case, kind):
    planes, guide, matched = planes_to_filter(case)
    settings = (planes, guide_of(kind, guide), matched, *case[3:], variance_of(case))
    settings = (*settings, kind == "over pixels")
    assert_same_filtered(filtered(gpu, *settings), filtered(None, *settings))


@pytest.mark.parametrize("most", [1, 0], ids=["zeros and ones", "constant"])
@pytest.mark.parametrize("case", GROUPS[1::4], ids=named)
def test_ties_are_broken_by_the_order_of_patches(gpu, case, most):
    settings = (*planes_to_filter(case, most), *case[3:])
    assert_same_filtered(filtered(gpu, *settings), filtered(None, *settings))


# Cases with the memory, in bytes, for a third of the image.
BANDS = [
    ((1, 1, (60,), (5,), 7, (2,), (4,)), 1_800, "guided"),
    ((2, 1, (7, 40), (3, 3), 6, (3, 3), (2, 3)), 17_000, "unguided"),
    ((1, 2, (40, 7), (3, 3), 6, (3, 3), (3, 2)), 8_500, "over pixels"),
    ((1, 1, (4, 50, 5), (2, 3, 3), 3, (2, 3, 2), (1, 3, 1)), 27_000, "unguided"),
]


@pytest.mark.parametrize(("case", "memory", "kind"), BANDS)
def test_groups_filtered_in_bands_have_the_same_bits(gpu, case, memory, kind):
    planes, guide, matched = planes_to_filter(case)
    noise = 2.0 if kind == "unguided" else variance_of(case)
    settings = (planes, guide_of(kind, guide), matched, *case[3:], noise, kind == "over pixels")
    whole = filtered(gpu, *settings)
    np.testing.assert_array_equal(filtered(gpu, *settings, on_gpu=True), whole)
    shares = []
    with kl.cuda.memory_limit(memory):
        cut = filtered(gpu, *settings, progress=shares.append)
    np.testing.assert_array_equal(cut, whole)
    assert 2 < len(shares) < 6
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 7.3, -1e-5])
def test_constant_planes_are_unchanged(gpu, value, kind):
    planes = np.full((1, 9, 11), value, np.float32)
    settings = (planes, guide_of(kind, planes), planes, (4, 4), 9, (3, 3), (4, 4))
    found = filtered(gpu, *settings, over_pixels=kind == "over pixels")
    np.testing.assert_allclose(found, planes, rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-10, 2.0**40])
def test_groups_may_be_of_any_magnitude(gpu, rng, scale):
    matched = rng.integers(0, 9, (2, 12, 10)).astype(np.float32)
    planes = (matched + rng.standard_normal(matched.shape)).astype(np.float32)
    arrays = [array * np.float32(scale) for array in (planes, matched, matched)]
    settings = (*arrays, (5, 4), 6, (3, 3), (4, 4), scale, True)
    assert_same_filtered(filtered(gpu, *settings), filtered(None, *settings))


# Errors


def test_groups_and_windows_that_are_too_large_for_a_gpu_are_errors(gpu):
    planes = np.zeros((1, 300, 300), np.float32)
    for group in (0, 257):
        with pytest.raises(ValueError, match="groups do not fit"):
            filtered(gpu, planes, None, planes, (4, 4), group, (4, 4), (2, 2))
    with pytest.raises(ValueError, match="too large for the shared memory"):
        filtered(gpu, planes, None, planes, (4, 4), 9, (4, 4), (290, 290))


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        ([(7, 8, 1, 0), (9, 8, 1, 0)], {}, "patches do not fit the image"),
        ([(9, 8, 9, 0), (9, 8, 1, 0)], {}, "patches do not fit the image"),
        ([(9, 8, 1, 0), (10, 8, 1, 0)], {}, "image does not fit the axes"),
        ([(9, 8, 1, 0), (8, 8, 1, 0)], {}, "not fit the axes"),
        ([], {}, "not fit the axes"),
        ([(9, 8, 1, 0), (9, 4, 1, 0)], {}, "patches do not fit the dictionary"),
        ([(9, 8, 1, 0), (9, 8, 1, 0)], {"width": 0}, "patches do not fit the dictionary"),
        ([(9, 8, 1, 0), (9, 8, 1, 0)], {"method": "mp"}, "unknown method mp"),
        (
            [(9, 8, 1, 0), (9, 8, 1, 0)],
            {"known": np.ones(80, np.float32)},
            "has 80 entries; expected 81",
        ),
    ],
)
def test_errors_are_those_of_the_processor(gpu, axes, options, message):
    image = np.zeros((9, 9), np.float32)
    settings = {"method": "omp", "width": 3, "tol": -1.0} | options
    factors = [dct_factor(8, 8)] * 2
    native = native_dictionary(factors, np.float32)
    with pytest.raises(ValueError, match=message):
        _native.code_image(native, image, image.copy(), image.copy(), axes, **settings)
    with pytest.raises(ValueError, match=message):
        code_image_on(gpu, factors, image, axes, **settings)


def test_images_that_a_gpu_cannot_code_are_errors(gpu):
    coded_on = partial(code_image_on, gpu, [np.eye(1)])
    image = np.zeros((1,) * 17, np.float32)
    with pytest.raises(ValueError, match="at most 16 axes, not 17"):
        coded_on(image, [(1, 1, 1, 0)] * 17, "omp", 1, -1.0)
    with pytest.raises(ValueError, match='method="exchange" runs on the processor only'):
        coded_on(np.zeros(4, np.float32), [(4, 1, 1, 0)], "exchange", 1, -1.0)
    with pytest.raises(TypeError, match="image must be C-contiguous float32; it is float64"):
        coded_on(np.zeros(4), [(4, 1, 1, 0)], "omp", 1, -1.0)


# Whole methods


def picture(shape):
    """A smooth image with an edge, from 0 to 255."""
    parts = np.ix_(*(np.cos(np.linspace(0, 3 + k, size)) for k, size in enumerate(shape)))
    smooth = sum(parts[1:], parts[0] * np.ones(shape))
    return 40 * smooth + 80 * (smooth > 0.5) + 90


def test_inpainted_images_are_those_of_the_processor(on_gpu, rng):
    image = picture((24, 20))
    image[rng.random(image.shape) < 0.4] = np.nan
    expected = kl.images.inpaint(image, max_iter=2)
    found = kl.images.inpaint(image, max_iter=2, device="cuda")
    assert np.sqrt(np.mean((found - expected) ** 2)) < 1.0
