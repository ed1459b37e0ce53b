"""Denoising with maps of sigma, with masks, and with noise stronger than the contrast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from skimage.data import astronaut

import kronlearn as kl
import reference
from emulated_gpu import ArrayGpu
from kronlearn.core.init import dct_factor
from kronlearn.images import gaussian, precision

denoise = kl.images.denoise
EMULATED = ArrayGpu
COLOURS = astronaut()[80:160, 120:200].astype(np.float64)
CLEAN = COLOURS.mean(axis=2)


def error(image: Any, clean: Any) -> float:
    return float(np.sqrt(np.mean((image - clean) ** 2)))


def map_of(kind: str, shape: Any) -> Any:
    """A map of standard deviations of the noise."""
    rng = np.random.default_rng(1)
    rows, columns = np.indices(shape)
    if kind == "smooth":
        return 5 + 45 * columns / shape[1]
    if kind == "edges":
        return np.where((rows // 20 + columns // 20) % 2, 40.0, 10.0)
    if kind == "lines":
        return np.where(rows % 16 == 0, 60.0, 10.0)
    return np.where(rng.random(shape) < 0.05, 500.0, 10.0)


# Maps


# The tolerated error as a fraction of that with one number for the whole image.
@pytest.mark.parametrize(
    ("kind", "share"), [("smooth", 0.7), ("edges", 0.75), ("lines", 0.6), ("dead pixels", 0.15)]
)
def test_a_map_denoises_better_than_one_number(rng, kind, share):
    deviations = map_of(kind, CLEAN.shape)
    image = CLEAN + deviations * rng.standard_normal(CLEAN.shape)
    found = denoise(image, deviations, full=True)
    typical = error(deviations, 0)
    assert found.sigma == pytest.approx(typical)
    assert error(found.image, CLEAN) < share * error(denoise(image, typical), CLEAN)


@pytest.mark.parametrize("channel_axis", [None, -1])
def test_a_constant_map_equals_a_number(rng, channel_axis):
    clean = CLEAN[:48, :48] if channel_axis is None else COLOURS[:48, :48]
    image = (clean + rng.normal(0, 10, clean.shape)).astype(np.float32)
    options = {"channel_axis": channel_axis, "max_iter": 2}
    found = denoise(image, np.full(image.shape, 10), **options)
    np.testing.assert_allclose(found, denoise(image, 10, **options), atol=0.1)


def test_channels_may_have_maps_of_their_own(rng):
    deviations = np.moveaxis([map_of("edges", CLEAN.shape), 25 * np.ones(CLEAN.shape)] * 2, 0, -1)
    colours = COLOURS[..., [0, 1, 2, 0]]
    image = colours + deviations * rng.standard_normal(colours.shape)
    found = denoise(image, deviations, channel_axis=-1, full=True)
    assert found.sigma[1] == pytest.approx(25)
    together = denoise(image, found.sigma, channel_axis=-1)
    assert error(found.image, colours) < 0.95 * error(together, colours)


def test_a_dictionary_with_a_mode_for_channels_takes_a_map(rng):
    deviations = np.repeat(map_of("edges", CLEAN.shape)[..., None], 3, axis=2)
    image = COLOURS + deviations * rng.standard_normal(COLOURS.shape)
    dictionary = kl.KroneckerDictionary(reference.dct_factors((8, 8, 3), (12, 12, 3)))
    options = {"dictionary": dictionary, "channel_axis": -1, "quality": "dictionary"}
    found = denoise(image, deviations, **options)
    assert error(found, COLOURS) < 0.8 * error(denoise(image, 29.0, **options), COLOURS)


@pytest.mark.parametrize("shape", [(200,), (4, 30, 33), (9, 7), (1, 40)])
def test_maps_work_for_images_of_any_shape(rng, shape):
    deviations = rng.uniform(0.5, 2, shape)
    image = deviations * rng.standard_normal(shape)
    found = denoise(image, deviations, max_iter=2)
    assert error(found, 0) < 0.9 * error(image, 0)
    np.testing.assert_array_equal(denoise(image, deviations, max_iter=2, n_jobs=2), found)


def test_gpu_results_with_maps_equal_those_of_the_processor(on_gpu, rng):
    clean = 10 + 8 * np.sin(np.add.outer(np.arange(33) / 5, np.arange(40) / 4))
    deviations = map_of("edges", clean.shape) / 10
    image = (clean + deviations * rng.standard_normal(clean.shape)).astype(np.float32)
    options: dict[str, Any] = {"dictionary": kl.KroneckerDictionary([dct_factor(8, 16)] * 2)}
    expected = denoise(image, deviations, **options)
    found = denoise(on_gpu.upload(image), on_gpu.upload(deviations), **options)
    difference = np.abs(on_gpu.download(found) - expected)
    assert np.median(difference) < 1e-3
    assert difference.mean() < 0.02


@pytest.mark.parametrize("quality", ["default", "dictionary"])
def test_the_value_of_a_very_large_sigma_does_not_matter(rng, quality):
    clean = CLEAN[:48, :48]
    image = clean + rng.normal(0, 10, clean.shape)
    image[10:20, 10:20] += 1000
    found = []
    for ignored in (1e5, 1e10, 1e20):
        deviations = np.full(clean.shape, 10.0)
        deviations[10:20, 10:20] = ignored
        found.append(denoise(image, deviations, quality=quality, max_iter=2))
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1)
    np.testing.assert_array_equal(found[1], found[2])


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("tiny", [1e-6, 1e-300])
def test_pixels_that_are_known_exactly_stay_and_the_others_are_denoised_as_before(rng, tiny, share):
    clean = CLEAN[:48, :48]
    image = clean + rng.normal(0, 10, clean.shape)
    deviations = np.full(clean.shape, 10.0)
    # Pixels that say nothing.
    ignored = rng.random(clean.shape) < share
    deviations[ignored] = 1e10
    usual = denoise(image, deviations, max_iter=2)
    deviations[5, 5] = deviations[30, 20:23] = tiny
    image[deviations == tiny] = clean[deviations == tiny]
    found = denoise(image, deviations, max_iter=2)
    np.testing.assert_array_equal(found[deviations == tiny], image[deviations == tiny])
    assert error(found, clean) < 1.02 * error(usual, clean)


def test_noisy_pixels_are_moved_towards_the_estimate_until_their_noise_is_local(rng):
    precise = np.ones((1, 20, 20), np.float32)
    precise[0, 10, 10] = 1e-4
    planes = rng.standard_normal(precise.shape).astype(np.float32)
    planes[0, 10, 10] *= 100
    found, variance = precision.equalised(planes, precise, np.zeros_like(planes))
    assert variance.max() < 1.02
    assert found[0, 10, 10] == pytest.approx(planes[0, 10, 10] / 100, rel=0.01)
    np.testing.assert_array_equal(found[0, :9], planes[0, :9])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sigma": np.ones((3, 4))}, r"sigma has shape \(3, 4\); .* image's shape, \(20, 20\)"),
        ({"sigma": np.zeros((20, 20))}, "sigma has values that are not positive"),
        ({"sigma": np.ones((20, 20)), "method": "exchange"}, "does not weigh pixels"),
        ({"mask": np.ones((20, 20), bool)}, "Every pixel of the image"),
        ({"mask": np.ones((20, 3), bool)}, r"mask has shape \(20, 3\); it must have"),
        ({"mask": np.eye(20)}, "mask has dtype float64; pass booleans"),
        ({"mask": np.indices((20, 20))[0] % 2 == 0}, "Too many pixels are missing to estimate"),
    ],
)
def test_invalid_maps_and_masks_are_refused(rng, options, text):
    with pytest.raises(ValueError, match=text):
        denoise(rng.normal(100, 5, (20, 20)), **options)


# Masks


def test_missing_pixels_are_filled_in_and_their_values_do_not_matter(rng):
    clean = CLEAN[:64, :64]
    image = clean + rng.normal(0, 10, clean.shape)
    missing = rng.random(clean.shape) < 0.1
    holes = np.where(missing, np.nan, image)
    found = denoise(holes, 10, mask=missing, full=True)
    assert "inpainting" in found.seconds
    np.testing.assert_array_equal(
        denoise(np.where(missing, 1e6, image), 10, mask=missing), found.image
    )
    assert error(found.image, clean) < 1.15 * error(denoise(image, 10), clean)


def test_noise_is_estimated_from_patches_without_missing_pixels(rng):
    image = CLEAN + rng.normal(0, 10, CLEAN.shape)
    missing = rng.random(CLEAN.shape) < 0.02
    image[missing] = rng.uniform(0, 1000, missing.sum())
    found = denoise(image, mask=missing, quality="dictionary", max_iter=2, full=True)
    assert found.sigma == pytest.approx(10, rel=0.15)


def test_a_map_may_be_undefined_at_missing_pixels(rng):
    deviations = map_of("edges", CLEAN.shape)
    image = CLEAN + deviations * rng.standard_normal(CLEAN.shape)
    missing = rng.random(CLEAN.shape) < 0.05
    image[missing] = deviations[missing] = np.nan
    assert error(denoise(image, deviations, mask=missing), CLEAN) < 12


def test_filling_in_reports_progress_and_can_be_stopped(rng):
    image, shares = CLEAN[:32, :32] + rng.normal(0, 10, (32, 32)), []

    def progress(name, share):
        shares.append(share)
        if 0.4 < share < 1:
            raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError, match="inpainting"):
        denoise(image, 10, mask=np.eye(32, dtype=bool), progress=progress)
    assert shares == sorted(shares)


# Strong noise


@pytest.mark.parametrize(("shape", "channel_axis"), [((80, 80), None), ((80, 80, 3), -1)])
def test_a_coarser_image_helps_where_noise_is_strong(rng, monkeypatch, shape, channel_axis):
    clean = CLEAN if channel_axis is None else COLOURS
    image = clean + rng.normal(0, 120, shape)
    found = denoise(image, 120, channel_axis=channel_axis, n_jobs=2)
    np.testing.assert_array_equal(denoise(image, 120, channel_axis=channel_axis), found)
    monkeypatch.setattr(gaussian, "axes_to_halve", lambda shape: [])
    alone = denoise(image, 120, channel_axis=channel_axis)
    assert error(found, clean) < 0.98 * error(alone, clean)


def test_gpu_results_for_strong_noise_equal_those_of_the_processor(on_gpu, rng):
    image = (CLEAN[:40, :36] + rng.normal(0, 90, (40, 36))).astype(np.float32)
    options: dict[str, Any] = {"dictionary": kl.KroneckerDictionary([dct_factor(8, 16)] * 2)}
    expected = denoise(image, 90, quality="fast", **options)
    found = denoise(on_gpu.upload(image), 90, quality="fast", **options)
    difference = np.abs(on_gpu.download(found) - expected)
    assert np.median(difference) < 0.05
    assert difference.mean() < 1


def test_halved_planes_have_noise_of_one_given_their_precision(rng):
    precise = rng.uniform(0.1, 3, (1, 200, 201)).astype(np.float32)
    planes = (rng.standard_normal(precise.shape) / np.sqrt(precise)).astype(np.float32)
    coarse, weights = precision.halved(planes, precise, [1, 2])
    assert coarse.shape == (1, 100, 101)
    assert np.var(coarse[..., :-1] * np.sqrt(weights[..., :-1])) == pytest.approx(1, rel=0.03)
