"""Denoising: image quality, reproducibility, kinds of images, options and errors."""

import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from skimage.data import astronaut, camera
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl
import reference
from kronlearn.images.aggregation import Averager
from kronlearn.images.dictionaries import draw_patches
from kronlearn.images.planes import Planes

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "images"
denoise, inpaint = kl.images.denoise, kl.images.inpaint


@cache
def clean_crop(size=128):
    """A part of the photograph: the man's head, the camera and much sky."""
    return camera()[100 : 100 + size, 180 : 180 + size].astype(np.float64)


@cache
def noisy_crop(sigma, size=128):
    noise = np.random.default_rng(1).standard_normal((size, size))
    return clean_crop(size) + sigma * noise


@cache
def colour_crop(size=64):
    """A part of a colour photograph, clean and with noise (σ = 25), in whole numbers."""
    clean = astronaut()[60 : 60 + size, 160 : 160 + size].astype(np.float64)
    return clean, np.rint(clean + 25 * np.random.default_rng(1).standard_normal(clean.shape))


@cache
def noisy_integers(size=48):
    """A noisy image (σ = 20) of whole numbers, whose mean has no rounding error."""
    return np.rint(noisy_crop(20, size))


def quick(image, sigma=20.0, **options):
    """Denoise with little learning and in one round."""
    return denoise(image, sigma, **({"max_iter": 2, "quality": "fast"} | options))


def psnr(image, clean):
    return peak_signal_noise_ratio(clean, np.asarray(image, np.float64), data_range=255)


# Quality


@pytest.mark.parametrize(("sigma", "least"), [(10, 34.0), (50, 25.0)])
def test_better_quality_removes_more_noise(sigma, least):
    clean, noisy = clean_crop(), noisy_crop(sigma)
    found = {
        quality: psnr(denoise(noisy, sigma, quality=quality, n_jobs=2), clean)
        for quality in ("dictionary", "fast", "default", "best")
    }
    assert found["default"] > least
    # "best" gains nothing on such a small image.
    assert found["best"] > found["default"] - 0.05
    assert found["default"] > found["fast"] + 0.03
    assert found["fast"] > found["dictionary"] + 0.3
    assert found["dictionary"] > psnr(noisy, clean) + 5
    # Estimating the noise costs little.
    assert psnr(denoise(noisy, n_jobs=2), clean) > found["default"] - 0.15


def test_channels_are_denoised_better_together_than_one_by_one():
    clean, noisy = colour_crop()
    together = denoise(noisy, 25, channel_axis=-1)
    alone = np.stack([denoise(noisy[..., k], 25) for k in range(3)], axis=-1)
    assert psnr(together, clean) > psnr(alone, clean) + 1


def test_volumes_are_denoised_along_all_axes(rng):
    x = np.linspace(-1, 1, 28)
    clean = 100 * np.exp(-4 * (x[:, None, None] ** 2 + 2 * x[:, None] ** 2 + x**2))
    clean += 50 * (np.abs(x[:, None, None] + x[:, None]) < 0.5)
    noisy = clean + rng.normal(0, 15, clean.shape)
    coded, filtered = denoise(noisy, 15, quality="dictionary"), denoise(noisy, 15)
    assert psnr(coded, clean) > psnr(noisy, clean) + 10
    assert psnr(filtered, clean) > psnr(coded, clean) + 5


def test_signals_with_one_axis_are_denoised(rng):
    clean = 100 * np.sin(np.linspace(0, 60, 2000)) ** 3
    noisy = clean + rng.normal(0, 15, clean.shape)
    assert psnr(denoise(noisy, 15), clean) > psnr(noisy, clean) + 13


# What K-SVD with 256 atoms reaches (Elad and Aharon, 2006).
@pytest.mark.skipif(not IMAGES.is_dir(), reason="the images of the paper are not here")
@pytest.mark.parametrize(
    ("name", "ksvd"),
    [
        pytest.param("lena", {10: 35.47, 20: 32.38, 50: 27.79}, marks=pytest.mark.slow),
        pytest.param("barbara", {10: 34.42, 20: 30.83, 50: 25.47}, marks=pytest.mark.slow),
        ("house", {10: 35.98, 20: 33.20, 50: 27.95}),
    ],
)
def test_images_of_the_paper_are_denoised_better_than_by_ksvd(name, ksvd):
    from skimage.io import imread

    clean = imread(IMAGES / f"{name}.png").astype(np.float64)
    clean = clean if clean.ndim == 2 else clean[..., 0]
    noise = np.random.default_rng(0).standard_normal(clean.shape)
    for sigma, published in ksvd.items():
        assert psnr(denoise(clean + sigma * noise, sigma, n_jobs=2), clean) > published


# Reproducibility


class Tensor:
    """An array of another library, in memory."""

    requires_grad = True

    def detach(self):
        return np.asarray(noisy_crop(20.0, 32))


def test_an_array_of_another_library_is_returned_as_one(monkeypatch):
    library = ModuleType("tensors")
    library.from_dlpack = lambda array: ("tensor", array)
    monkeypatch.setitem(sys.modules, "tensors", library)
    monkeypatch.setattr(Tensor, "__module__", "tensors")
    kind, found = denoise(Tensor(), 20.0, quality="fast")
    assert kind == "tensor"
    np.testing.assert_array_equal(found, denoise(noisy_crop(20.0, 32), 20.0, quality="fast"))


@pytest.mark.parametrize("shape", [(80, 80), (40, 31, 3), (12, 14, 11)], ids=str)
def test_results_are_bit_identical_for_any_number_of_threads(rng, shape):
    noisy = rng.normal(100, 20, shape).cumsum(axis=0)
    options = {"channel_axis": -1 if shape[-1] == 3 else None, "quality": "default"}
    first = quick(noisy, None, n_jobs=1, **options)
    for n_jobs in (2, 5, -1):
        np.testing.assert_array_equal(quick(noisy, None, n_jobs=n_jobs, **options), first)


def test_all_instruction_sets_give_nearly_the_same_image():
    noisy = noisy_crop(20, 96)
    results = []
    for name in kl.instruction_sets():
        with kl.use_instruction_set(name):
            results.append(denoise(noisy, 20))
    for result in results[1:]:
        assert np.std(result - results[0]) < 0.05 * 20
        assert abs(psnr(result, clean_crop(96)) - psnr(results[0], clean_crop(96))) < 0.1


def test_several_python_threads_may_denoise_at_once():
    noisy = noisy_crop(20, 64)
    expected = quick(noisy)
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(quick, noisy, n_jobs=2) for _ in range(8)]:
            np.testing.assert_array_equal(job.result(), expected)


def test_the_random_state_determines_what_is_learned():
    noisy = noisy_integers(96)
    result = quick(noisy)
    np.testing.assert_array_equal(quick(noisy, random_state=0), result)
    np.testing.assert_array_equal(quick(noisy, random_state=np.random.RandomState(0)), result)
    assert np.any(quick(noisy, random_state=1) != result)
    assert np.isfinite(quick(noisy, random_state=None)).all()


# Units


@pytest.mark.parametrize(
    ("scale", "offset"), [(3.7, -211.1), (1e-6, 1.0), (1e6, -1e6), (1e-100, 0.0), (1e100, 1e99)]
)
def test_scale_and_offset_of_an_image_do_not_matter(scale, offset):
    noisy = noisy_crop(20, 64)
    expected = quick(noisy)
    found = (quick(scale * noisy + offset, scale * 20) - offset) / scale
    assert np.std(found - expected) < 1e-3 * 20
    sigma = kl.images.estimate_sigma(scale * noisy + offset)
    assert sigma / scale == pytest.approx(kl.images.estimate_sigma(noisy), rel=1e-6)


@pytest.mark.parametrize("scale", [2.0**-40, 8.0, -1.0])
def test_scaling_by_a_power_of_two_or_minus_one_scales_the_result_exactly(scale):
    noisy = noisy_crop(20, 64)
    for sigma in (None, 20.0):
        scaled = quick(scale * noisy, None if sigma is None else abs(scale) * sigma)
        np.testing.assert_array_equal(scaled, scale * quick(noisy, sigma))


# Kinds of images


@pytest.mark.parametrize(
    "dtype", ["u1", "i2", "u2", ">u2", "i4", "u4", "i8", "f2", "f4", ">f4", "f8", ">f8", "g"]
)
def test_the_dtype_is_kept(dtype):
    whole = noisy_integers().clip(0, 255)
    image = whole.astype(dtype)
    result = quick(image)
    assert result.dtype == np.dtype(dtype)
    expected = quick(whole)
    if result.dtype.kind in "iu":
        expected = expected.round().clip(0, 255)
        assert np.mean(result == expected) > 0.99
    tolerance = {"i": 1, "u": 1, "f": 0.2 if dtype == "f2" else 1e-3}[result.dtype.kind]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint64])
def test_integers_stay_in_their_range(rng, dtype):
    limits = np.iinfo(dtype)
    span = float(limits.max) - float(limits.min)
    dark = np.kron(rng.random((6, 6)) < 0.5, np.ones((9, 9), bool))
    noisy = np.where(dark, 0.0, 1.0) + rng.normal(0, 0.1, dark.shape)
    # In steps that floats can hold below the largest integer.
    noisy = np.clip(noisy, 0, 1) * (1 - 1e-9) * span + float(limits.min)
    image = np.clip(noisy, limits.min, np.nextafter(float(limits.max), 0)).astype(dtype)
    result = quick(image, 0.1 * span)
    far = np.abs(result.astype(np.float64) - image.astype(np.float64)) / span
    assert far.max() < 0.5


def read_only(image):
    image = image.copy()
    image.setflags(write=False)
    return image


LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "every other column": lambda image: np.repeat(image, 2, axis=1)[:, ::2],
    "reversed rows": lambda image: image[::-1].copy()[::-1],
    "read only": read_only,
    "big endian": lambda image: image.astype(">f8"),
    "nested lists": np.ndarray.tolist,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_memory_layout_of_an_image_does_not_matter(layout):
    noisy = noisy_integers()
    given = LAYOUTS[layout](noisy)
    np.testing.assert_array_equal(quick(given), quick(noisy))
    np.testing.assert_array_equal(np.asarray(given), noisy)


@pytest.mark.parametrize("sigma", [0.0, 20.0])
def test_the_input_is_not_modified(sigma):
    noisy = noisy_integers()
    given = noisy.copy()
    result = quick(given, sigma)
    assert not np.shares_memory(result, given)
    result[...] = 0
    np.testing.assert_array_equal(given, noisy)


@pytest.mark.parametrize("sigma", [None, 20.0])
@pytest.mark.parametrize(
    "shape",
    [
        *[(1,), (2,), (5,), (200,)],
        *[(1, 1), (2, 2), (1, 40), (40, 1), (3, 5), (7, 30), (30, 7)],
        *[(1, 1, 1), (1, 9, 8), (3, 2, 4), (9, 8, 7), (4, 5, 3, 4)],
    ],
    ids=str,
)
def test_images_of_any_shape_keep_their_shape(rng, shape, sigma):
    noisy = 100 + rng.normal(0, 20, shape)
    result = quick(noisy, sigma)
    assert result.shape == shape
    assert np.isfinite(result).all()
    if sigma is not None:
        assert np.std(result - 100) <= 1.01 * np.std(noisy - 100)


@pytest.mark.parametrize("sigma", [None, 0.0, 20.0])
@pytest.mark.parametrize("value", [0.0, 7.3, -1e-5, 1e9, np.uint8(7), np.int16(-7), np.float32(7)])
def test_a_constant_image_is_unchanged(value, sigma):
    for shape, channel_axis in [((20, 23), None), ((20, 23, 3), -1), ((50,), None)]:
        image = np.full(shape, value)
        for quality in ("dictionary", "fast"):
            result = quick(image, sigma, channel_axis=channel_axis, quality=quality)
            np.testing.assert_allclose(result, image, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_an_image_without_noise_is_unchanged(dtype):
    image = noisy_integers().clip(0, 255).astype(dtype)
    if dtype is np.int64:
        image += 2**53 + 1
    found = denoise(image, 0, full=True)
    np.testing.assert_array_equal(found.image, image)
    assert found.dictionary is None
    assert found.history is None


def test_noise_below_the_rounding_of_single_precision_is_left_in():
    noisy = noisy_crop(20, 48)
    np.testing.assert_array_equal(quick(noisy, 1e-6), noisy)


@pytest.fixture
def coded(monkeypatch):
    """The sizes of the planes whose patches are coded."""
    sizes, code = [], Averager.code

    def counted(self, image, *arguments, **options):
        sizes.append(image.size)
        return code(self, image, *arguments, **options)

    monkeypatch.setattr(Averager, "code", counted)
    return sizes


@pytest.mark.parametrize("quality", ["dictionary", "fast"])
@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
def test_nothing_is_learned_or_coded_if_noise_is_faint(coded, sigma, quality):
    clean, noisy = clean_crop(96), noisy_crop(sigma, 96)
    found = quick(noisy, sigma, quality=quality, full=True)
    nearly_clean = sigma < 1
    assert len(coded) == (0 if nearly_clean else 1)
    assert (found.dictionary is None) == nearly_clean
    assert ("learning" in found.seconds) != nearly_clean
    assert psnr(found.image, clean) > psnr(noisy, clean) - 0.01


@pytest.mark.parametrize(("sigma", "stride"), [(5, 2), (9, 1)])
def test_fewer_patches_are_coded_if_noise_is_weak(sigma, stride):
    noisy = noisy_crop(sigma)
    found = quick(noisy, sigma, full=True)
    assert found.settings["stride"] == (stride, stride)
    every = quick(noisy, sigma, stride=1)
    assert psnr(found.image, clean_crop()) > psnr(every, clean_crop()) - 0.1


def test_a_few_outliers_do_not_make_an_image_nearly_clean(coded):
    noisy = noisy_crop(5, 96).copy()
    noisy[3, 5], noisy[70, 6] = 1e5, -1e5
    quick(noisy, 5, quality="dictionary")
    assert coded == [noisy.size]


def test_patches_to_learn_from_have_zero_mean_and_the_most_known_pixels(rng):
    planes = (50 + rng.standard_normal((2, 20, 30))).astype(np.float32)
    patches = draw_patches(planes, (4, 5), 90, np.random.default_rng(0))
    assert patches.shape == (90, 4, 5)
    assert abs(patches.mean(axis=(1, 2))).max() < 1e-4
    # Half of the image is known: of twice as many patches, those are taken that lie there.
    known = np.arange(30) < 15
    planes[:, :, ~known] = 1e6
    patches = draw_patches(planes, (4, 5), 40, rng, np.broadcast_to(known, (20, 30)))
    assert abs(patches).max() < 100


def test_a_dictionary_with_a_mode_for_channels_codes_them_together():
    clean, noisy = colour_crop()
    dictionary = kl.KroneckerDictionary(reference.dct_factors((6, 6, 3), (8, 8, 3)))
    moved = np.moveaxis(noisy, -1, 0)
    found = denoise(moved, 25, channel_axis=0, dictionary=dictionary, full=True)
    assert (found.sigma, found.settings["patch_size"]) == (25.0, (6, 6, 3))
    with pytest.warns(UserWarning, match="taken for a volume"):
        volume = denoise(noisy, 25, dictionary=dictionary)
    np.testing.assert_array_equal(np.moveaxis(found.image, 0, -1), volume)
    assert psnr(volume, clean) > psnr(noisy, clean) + 7
    with pytest.raises(ValueError, match="pass a number"):
        denoise(noisy, (25, 25, 25), channel_axis=-1, dictionary=dictionary)


def test_planes_are_uncorrelated_and_have_defined_signs(rng):
    channels = rng.standard_normal((3, 20, 20))
    channels[1:] += channels[0] * np.array([3, -2])[:, None, None]
    planes = Planes.from_channels(channels, [1.0] * 3, range(3))
    covariance = np.cov(planes.pixels.reshape(3, -1))
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-5)
    assert (np.diff(np.diag(covariance)) < 0).all()
    assert (planes.basis.max(axis=0) == abs(planes.basis).max(axis=0)).all()


def test_a_nearly_clean_channel_does_not_stop_others_from_being_denoised():
    clean = colour_crop()[0]
    noisy = clean + (0.05, 0.05, 25) * np.random.default_rng(0).standard_normal(clean.shape)
    found = quick(noisy, (0.05, 0.05, 25), channel_axis=-1, full=True)
    assert found.dictionary is not None
    assert psnr(found.image[..., 2], clean[..., 2]) > psnr(noisy[..., 2], clean[..., 2]) + 5


def test_noise_beyond_the_range_of_the_image_is_refused():
    with pytest.raises(ValueError, match=r"exceeds the range of the image.*own units"):
        quick(noisy_crop(20, 48) / 255, 20)


# Channels


def test_a_grey_image_stored_as_colours_is_denoised_as_well_as_the_image_itself(rng):
    clean = camera()[100:228, 180:308]
    noisy = np.clip(clean + rng.normal(0, 20, clean.shape), 0, 255).astype(np.uint8)
    alone = quick(noisy, None)
    together = quick(np.dstack([noisy] * 3), None, channel_axis=-1)
    np.testing.assert_array_equal(together, np.dstack([together[..., 0]] * 3))
    assert psnr(together[..., 0], clean) == pytest.approx(psnr(alone, clean), abs=0.1)


def test_noise_that_channels_have_in_common_is_removed(rng):
    clean = astronaut()[:96, 160:256].astype(np.float64)
    own, common = rng.normal(0, 10, clean.shape), rng.normal(0, 15, (96, 96, 1))
    noisy = clean + own + common
    found = quick(noisy, None, channel_axis=-1, full=True)
    as_independent = quick(noisy, found.sigma, channel_axis=-1)
    assert psnr(found.image, clean) > psnr(as_independent, clean) + 1.5
    # Independent noise is denoised as that of this sigma.
    noisy = clean + own
    found = quick(noisy, None, channel_axis=-1, full=True)
    np.testing.assert_array_equal(quick(noisy, found.sigma, channel_axis=-1), found.image)


@pytest.mark.parametrize("channel_axis", [0, 1, 2, -1, -2, -3])
def test_the_position_of_the_channel_axis_does_not_matter(channel_axis):
    noisy = colour_crop(48)[1]
    moved = np.moveaxis(noisy, -1, channel_axis)
    result = quick(moved, 25, channel_axis=channel_axis)
    assert result.shape == moved.shape
    expected = quick(noisy, 25, channel_axis=-1)
    np.testing.assert_array_equal(np.moveaxis(result, channel_axis, -1), expected)
    contiguous = quick(np.ascontiguousarray(moved), 25, channel_axis=channel_axis)
    np.testing.assert_array_equal(contiguous, result)


def test_one_channel_is_a_grey_image():
    noisy = noisy_integers()
    found = quick(noisy[..., None], channel_axis=-1, full=True)
    np.testing.assert_array_equal(found.image[..., 0], quick(noisy))
    assert found.sigma == (20.0,)


def test_every_channel_may_have_its_own_noise():
    clean = colour_crop()[0]
    noise = np.random.default_rng(2).standard_normal(clean.shape)
    noisy = clean + noise * (5, 20, 50)
    known = denoise(noisy, (5, 20, 50), channel_axis=-1, full=True)
    assert known.sigma == (5.0, 20.0, 50.0)
    assert psnr(known.image, clean) > psnr(denoise(noisy, 25, channel_axis=-1), clean) + 0.5
    estimated = denoise(noisy, channel_axis=-1, full=True)
    np.testing.assert_allclose(estimated.sigma, (5, 20, 50), rtol=0.25)
    assert psnr(estimated.image, clean) > psnr(known.image, clean) - 0.3


def test_channels_without_noise_are_unchanged():
    noisy = colour_crop()[1].copy()
    result = quick(noisy, (25, 0, 25), channel_axis=-1)
    np.testing.assert_array_equal(result[..., 1], noisy[..., 1])
    assert np.any(result[..., 0] != noisy[..., 0])
    noisy[..., 2] = 7.3
    result = quick(noisy, None, channel_axis=-1)
    np.testing.assert_allclose(result[..., 2], 7.3, rtol=1e-12)
    assert np.any(result[..., 0] != noisy[..., 0])


# Options


def test_settings_are_those_requested():
    options = {
        "patch_size": (6, 5),
        "n_atoms": 7,
        "gain": 1.2,
        "quality": "dictionary",
        "stride": (3, 2),
    }
    found = quick(noisy_integers(), full=True, method="omp", **options)
    assert found.settings == {
        "patch_size": (6, 5),
        "n_atoms": (7, 7),
        "n_terms": 1,
        "gain": 1.2,
        "max_nonzeros": 15,
        "stride": (3, 2),
        "quality": "dictionary",
        "method": "omp",
        "max_iter": 2,
    }
    assert found.dictionary.patch_shape == (6, 5)
    assert found.dictionary.n_atoms == (7, 7)


@pytest.mark.parametrize("stride", [3, (2, 5), [8, 8], np.array([3, 2]), np.int64(4)], ids=str)
def test_any_stride_up_to_the_patch_covers_the_image(stride):
    noisy = noisy_crop(20, 61)
    result = quick(noisy, stride=stride, quality="dictionary", patch_size=8)
    assert psnr(result, clean_crop(61)) > psnr(noisy, clean_crop(61)) + 3


@pytest.mark.parametrize("patch_size", [(1, 40), (40, 1), (1, 130)], ids=str)
def test_thin_patches_cover_the_image(patch_size):
    noisy = noisy_crop(20, 130)
    result = quick(noisy, quality="dictionary", patch_size=patch_size, max_iter=1)
    assert np.std(result - noisy) < 2 * 20


def test_a_higher_gain_smooths_more():
    noisy = noisy_crop(20, 64)
    change = [
        np.std(quick(noisy, gain=gain, quality="dictionary") - noisy)
        for gain in (0.3, 0.7, 1.0, 1.3, 2.0)
    ]
    assert change == sorted(change)


def sum_of_terms(patch_shape, n_atoms):
    """Cosines plus a random second term."""
    rng = np.random.default_rng(0)
    first = reference.dct_factors(patch_shape, n_atoms)
    return kl.KroneckerSumDictionary(
        [first, [0.3 * rng.standard_normal(factor.shape) for factor in first]]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_terms", [1, 2])
def test_a_dictionary_can_be_given(n_terms, dtype):
    noisy, clean = noisy_integers(), clean_crop(48)
    d = sum_of_terms((6, 5), (9, 8)).astype(dtype)
    if n_terms == 1:
        d = kl.KroneckerDictionary(reference.dct_factors((6, 5), (9, 8))).astype(dtype)
    found = denoise(noisy, 20, dictionary=d, full=True)
    assert found.dictionary is d
    assert found.history is None
    assert "learning" not in found.seconds
    wanted = {"patch_size": (6, 5), "n_atoms": (9, 8), "n_terms": n_terms, "method": "ols"}
    assert wanted.items() <= found.settings.items()
    assert psnr(found.image, clean) > psnr(noisy, clean) + 5
    given = d if n_terms == 2 else list(d.factors)
    np.testing.assert_array_equal(denoise(noisy, 20, dictionary=given, n_jobs=2), found.image)


def test_the_first_stage_codes_every_patch_with_the_matrix_of_a_sum():
    noisy = noisy_crop(20, 24)
    d = sum_of_terms((4, 3), (5, 6))
    found = denoise(noisy, 20, dictionary=d, quality="dictionary")
    sums, counts = np.zeros(noisy.shape), np.zeros(noisy.shape)
    for box in reference.boxes(noisy.shape, (4, 3), (1, 1)):
        mean = noisy[box].mean()
        tol = 20 * (np.sqrt(12) + 0.64)
        x = reference.code([noisy[box] - mean], [d.to_dense()], "ols", 6, tol)[0]
        weight = 1 / (1 + np.count_nonzero(x))
        sums[box] += weight * (mean + (d.to_dense() @ x).reshape(4, 3))
        counts[box] += weight
    np.testing.assert_allclose(found, sums / counts, rtol=0, atol=0.01)


def test_a_sum_can_be_learned_from_the_image():
    noisy, clean = noisy_crop(20, 64), clean_crop(64)
    one, two = (denoise(noisy, 20, n_terms=n, full=True) for n in (1, 2))
    assert isinstance(two.dictionary, kl.KroneckerSumDictionary)
    assert two.settings["n_terms"] == two.dictionary.n_terms == 2
    assert one.settings["n_terms"] == 1
    np.testing.assert_array_equal(denoise(noisy, 20), one.image)
    assert abs(psnr(two.image, clean) - psnr(one.image, clean)) < 0.3
    again = denoise(noisy, 20, dictionary=two.dictionary)
    np.testing.assert_array_equal(again, two.image)


def test_orthonormal_factors_are_coded_by_threshold():
    noisy = noisy_integers()
    cosines = reference.dct_factors((8, 8), (8, 8))
    found = denoise(noisy, 20, dictionary=cosines, full=True)
    assert found.settings["method"] == "threshold"
    pursued = denoise(noisy, 20, dictionary=cosines, method="omp", full=True)
    assert pursued.settings["method"] == "omp"
    np.testing.assert_allclose(pursued.image, found.image, rtol=0, atol=0.5)


# Reports and interruptions


def test_full_returns_what_was_done():
    noisy = noisy_crop(20, 64)
    began = time.perf_counter()
    found = quick(noisy, None, full=True, gain=np.float32(1.5), stride=np.int64(2))
    elapsed = time.perf_counter() - began
    assert isinstance(found, kl.images.Denoised)
    np.testing.assert_array_equal(found.image, quick(noisy, None, gain=1.5, stride=2))
    assert isinstance(found.sigma, float)
    assert found.sigma == kl.images.estimate_sigma(noisy)
    assert isinstance(found.dictionary, kl.KroneckerDictionary)
    assert len(found.history["rmse"]) == 3
    settings = json.loads(json.dumps(found.settings))
    assert (settings["patch_size"], settings["n_atoms"]) == ([8, 8], [16, 16])
    assert list(found.seconds) == ["noise", "learning", "coding", "similar patches"]
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert sum(found.seconds.values()) <= elapsed


def stages_reported(reports):
    """Return the names of stages in order; check that each goes from 0 to 1 and never back."""
    names = list(dict.fromkeys(name for name, _ in reports))
    assert [name for name, _ in reports] == sorted((n for n, _ in reports), key=names.index)
    for name in names:
        shares = [share for stage, share in reports if stage == name]
        assert shares[0] == 0
        assert shares[-1] == 1
        assert shares == sorted(shares)
    return names


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["noise", "learning", "coding", "similar patches"]),
        ({"sigma": 20.0, "quality": "dictionary"}, ["noise", "learning", "coding"]),
        ({"dictionary": [np.eye(4)] * 2 + [np.eye(1)]}, ["noise", "coding", "similar patches"]),
        ({"channel_axis": -1}, ["noise", "learning", "coding", "similar patches"]),
        ({"sigma": 0.0}, ["noise"]),
    ],
    ids=["default", "dictionary alone", "dictionary given", "colour", "no noise"],
)
def test_progress_reports_every_stage(options, names):
    noisy = colour_crop(48)[1][..., :2]
    silent = quick(noisy, **({"sigma": None} | options))
    for n_jobs in (1, 2):
        reports, threads = [], set()

        def progress(stage, share, reports=reports, threads=threads):
            reports.append((stage, share))
            threads.add(threading.get_ident())

        result = quick(noisy, **({"sigma": None} | options), progress=progress, n_jobs=n_jobs)
        assert stages_reported(reports) == names
        assert threads == {threading.get_ident()}
        np.testing.assert_array_equal(result, silent)


def test_progress_counts_iterations_and_channels(monkeypatch):
    def half(self, plane, *_, **__):
        self.on_share(0.5)
        return plane

    monkeypatch.setattr(Averager, "code", half)
    shares = {"noise": [], "learning": [], "coding": []}
    options = {"channel_axis": -1, "quality": "dictionary"}
    quick(
        colour_crop(48)[1], 25, progress=lambda stage, share: shares[stage].append(share), **options
    )
    assert shares["learning"] == [0, 0, 0.5, 1, 1]
    assert shares["coding"] == pytest.approx([0, 1 / 6, 3 / 6, 5 / 6, 1])


@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.parametrize(
    ("stage", "begun"),
    [(name, False) for name in ("noise", "learning", "coding", "similar patches")]
    + [("coding", True), ("similar patches", True)],
)
def test_an_exception_raised_by_progress_stops_denoising(rng, stage, begun, n_jobs):
    noisy = rng.normal(0, 20, (400, 400) if begun else (64, 64)).cumsum(axis=0)

    def progress(name, share):
        if name == stage and (not begun or 0 < share < 1):
            raise ZeroDivisionError(name)

    cosines = reference.dct_factors((8, 8), (16, 16)) if begun else None
    stride = 8 if begun and stage == "similar patches" else 1
    with pytest.raises(ZeroDivisionError, match=stage):
        quick(noisy, progress=progress, n_jobs=n_jobs, dictionary=cosines, stride=stride, gain=0.5)


def assert_interrupted(stage, work):
    """Check that an interrupt soon after a stage begins ends ``work(progress)`` at once."""
    sent = []

    def progress(name, share):
        # From another thread a little later, when native code is running.
        if name == stage and not sent:
            sent.append(time.perf_counter() + 0.1)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    def work_for_seconds():
        work(progress)
        time.sleep(5)  # the work ended first: the interrupt comes here, too late

    with pytest.raises(KeyboardInterrupt):
        work_for_seconds()
    assert time.perf_counter() - sent[0] < 1


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize(
    ("shape", "stage", "gain", "stride"),
    [
        ((1000, 1000), "learning", 0.3, 1),
        ((1000, 1000), "coding", 0.3, 1),
        ((1000, 1000), "similar patches", 3.0, 8),
        ((110, 110, 110), "similar patches", 3.0, 4),
        ((30, 30, 30, 30), "similar patches", 3.0, 4),
    ],
)
def test_denoising_can_be_interrupted(rng, shape, stage, gain, stride, n_jobs):
    noisy = rng.normal(0, 20, shape).astype(np.float32).cumsum(axis=0)
    patch = (8, 8) if len(shape) == 2 else (4,) * len(shape)
    atoms = (16, 16) if len(shape) == 2 else patch
    cosines = None if stage == "learning" else reference.dct_factors(patch, atoms)
    options = {"n_jobs": n_jobs, "dictionary": cosines, "gain": gain, "stride": stride}
    assert_interrupted(stage, lambda progress: denoise(noisy, 20, progress=progress, **options))


# Invalid input


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sigma", [None, 20.0])
def test_pixels_that_are_not_finite_are_refused(sigma, value):
    image = noisy_crop(20, 48).copy()
    image[3, 5] = value
    advice = r".*pass mask=np\.isnan\(image\) to images.denoise" if np.isnan(value) else ""
    with pytest.raises(ValueError, match="NaN or infinity" + advice):
        denoise(image, sigma)
    with pytest.raises(ValueError, match="NaN or infinity"):
        kl.images.estimate_sigma(image)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.ones((9, 9), bool), "bool.*astype"),
        (np.ones((9, 9), complex), "complex128"),
        (np.ones((9, 9), object), "object"),
        ("image.png", "the path 'image.png'; read it first"),
        (Path("image.png"), "the path 'image.png'; read it first"),
        (np.zeros((0, 5)), r"\(0, 5\).*no pixels"),
        (3.0, "no pixels"),
    ],
    ids=["bool", "complex", "object", "string", "path", "empty", "number"],
)
def test_input_that_is_not_an_image_is_refused(image, words):
    for function in (denoise, kl.images.estimate_sigma, inpaint):
        with pytest.raises(ValueError, match=words):
            function(image)


def test_masked_arrays_are_refused_with_advice():
    image = np.ma.masked_less(noisy_integers(), 50)
    with pytest.raises(ValueError, match=r"image\.filled\(0\), and mask=np\.ma\.getmaskarray"):
        quick(image)
    # The advice works.
    quick(image.filled(0), mask=np.ma.getmaskarray(image))


EYES = [np.eye(8), np.eye(8)]
BAD_OPTIONS = [
    ({"sigma": -1}, ValueError, "sigma=-1"),
    ({"sigma": np.nan}, ValueError, "sigma=nan"),
    ({"sigma": "twenty"}, TypeError, "sigma='twenty'"),
    ({"sigma": 1j}, TypeError, "sigma=1j"),
    ({"sigma": [20]}, ValueError, r"sigma.*\(1,\).*number"),
    ({"sigma": [20, 20], "channel_axis": 1}, ValueError, r"sigma.*\(2,\).*48"),
    ({"gain": 0}, ValueError, "gain=0"),
    ({"gain": np.nan}, ValueError, "gain=nan"),
    ({"gain": "high"}, (TypeError, ValueError), "gain='high'"),
    ({"quality": "high"}, ValueError, "quality='high'.*default, fast, best|fast, default, best"),
    ({"patch_size": 0}, ValueError, "patch_size=0"),
    ({"patch_size": 49}, ValueError, r"\(49, 49\).*\(48, 48\)"),
    ({"patch_size": (8, 8, 8)}, ValueError, r"patch_size=\(8, 8, 8\).*2"),
    ({"patch_size": 8.5}, (TypeError, ValueError), "patch_size=8.5"),
    ({"n_atoms": 0}, ValueError, "n_atoms=0"),
    ({"n_atoms": (9,)}, ValueError, r"n_atoms=\(9,\)"),
    ({"n_terms": 0}, ValueError, "n_terms=0 is too small"),
    ({"stride": 0}, ValueError, "stride=0"),
    ({"stride": (1, 2, 3)}, ValueError, "stride"),
    ({"stride": 9}, ValueError, "stride"),
    ({"channel_axis": 2}, ValueError, "channel_axis=2"),
    ({"channel_axis": 1.5}, (TypeError, ValueError), "channel_axis=1.5"),
    ({"channel_axis": True}, ValueError, "channel_axis=True does not exist"),
    ({"method": "lasso"}, ValueError, "method='lasso'.*(ols.*omp|omp.*ols)"),
    ({"method": "threshold"}, ValueError, "threshold.*orthonormal"),
    ({"max_iter": 0}, ValueError, "max_iter=0"),
    ({"n_jobs": 0}, ValueError, "n_jobs=0"),
    ({"progress": 3}, TypeError, "progress=3"),
    ({"random_state": "dice"}, ValueError, "dice"),
    ({"dictionary": 3}, ValueError, "list"),
    ({"dictionary": [np.eye(64), np.eye(64)]}, ValueError, r"\(64, 64\).*\(48, 48\)"),
    ({"dictionary": [np.eye(8)]}, ValueError, r"\(8,\).*channel_axis"),
    ({"dictionary": [np.eye(4)] * 3}, ValueError, r"\(4, 4, 4\).*2"),
    ({"dictionary": [2 * np.eye(8)] * 2}, ValueError, "norm"),
    ({"dictionary": EYES, "patch_size": 8}, ValueError, "patch_size"),
    ({"dictionary": EYES, "n_atoms": 8}, ValueError, "n_atoms"),
    ({"dictionary": EYES, "n_terms": 2}, ValueError, "n_terms are those of the dictionary"),
    ({"dictionary": EYES, "stride": 9}, ValueError, "stride"),
    (
        {"dictionary": reference.dct_factors((8, 8), (9, 9)), "method": "threshold"},
        ValueError,
        "orthonormal",
    ),
]


@pytest.mark.filterwarnings("ignore:.*signals of one dimension")
@pytest.mark.parametrize(("options", "error", "words"), BAD_OPTIONS)
def test_invalid_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        quick(noisy_crop(20, 48), **({"sigma": 20.0} | options))


@pytest.mark.parametrize(
    ("option", "value"),
    [("patch_size", 49), ("n_atoms", 0), ("stride", 9), ("method", "lasso"), ("n_jobs", 0)],
)
def test_invalid_options_are_refused_before_any_work(option, value):
    reports = []
    for image, sigma in ((noisy_integers(), 20), (np.zeros((48, 48)), 0)):
        with pytest.raises(ValueError, match=rf"(?i){option}|\({value}, {value}\)"):
            quick(image, sigma, progress=lambda *a: reports.append(a), **{option: value})
    assert not reports
