"""Noise of counts and of magnitudes is transformed to white noise of one, and removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from skimage.color import rgb2gray
from skimage.data import astronaut, camera, coffee

import kronlearn as kl
from emulated_gpu import ArrayGpu
from kronlearn.core.init import dct_factor
from kronlearn.images.stabilisation import CountNoise, RicianNoise, count_noise

denoise = kl.images.denoise
EMULATED = ArrayGpu


def photograph(name: str) -> Any:
    image = {"camera": camera, "astronaut": astronaut, "coffee": coffee}[name]()
    grey = image if image.ndim == 2 else rgb2gray(image)
    return grey[80:336, 120:376] / grey.max()


def counts_of(clean: Any, peak: float) -> Any:
    return np.random.default_rng(0).poisson(clean * peak).astype(np.float32)


def magnitudes_of(clean: Any, sigma: float) -> Any:
    parts = np.random.default_rng(0).normal(0, sigma, (2, *clean.shape))
    return np.hypot(clean + parts[0], parts[1])


def error(image: Any, clean: Any) -> float:
    return float(np.sqrt(np.mean((image - clean) ** 2)))


# Cases: for each value without noise, the tolerated deviation of the transform's variance from one,
# and the tolerated relative error of the inverse at its mean.
@pytest.mark.parametrize(
    ("gain", "sigma", "cases"),
    [
        (1.0, 0.0, {2: (0.15, 0.01), 5: (0.05, 0.01), 40: (0.02, 0.002), 3000: (0.02, 0.001)}),
        (0.1, 0.3, {0.5: (0.05, 0.02), 2: (0.03, 0.005), 20: (0.02, 0.002)}),
        (7.0, 5.0, {10: (0.1, 0.05), 100: (0.03, 0.005)}),
    ],
)
def test_transformed_counts_have_variance_one_and_the_inverse_is_unbiased(rng, gain, sigma, cases):
    model = CountNoise(gain, sigma)
    for value, (spread, bias) in cases.items():
        noisy = gain * rng.poisson(value / gain, 200_000) + sigma * rng.standard_normal(200_000)
        stable = model.forward(noisy)
        assert stable.var() == pytest.approx(1, abs=spread)
        mean = stable.mean(dtype=np.float64, keepdims=True).astype(np.float32)
        assert model.inverse(mean)[0] == pytest.approx(value, rel=bias)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 2.0, 4.0, 11.0, 40.0])
def test_transformed_magnitudes_have_variance_one_and_the_inverse_is_unbiased(rng, value):
    parts = 3 * rng.standard_normal((2, 400_000))
    model = RicianNoise(3.0)
    stable = model.forward(np.hypot(3 * value + parts[0], parts[1]))
    assert stable.var() == pytest.approx(1, abs=0.09)
    mean = stable.mean(dtype=np.float64, keepdims=True)
    # At zero, an error of 0.002 of the mean is one of 0.1 of the value.
    assert model.inverse(mean)[0] / 3 == pytest.approx(value, rel=0.02, abs=0.12 * (value == 0))


@pytest.mark.parametrize("name", ["camera", "astronaut", "coffee"])
@pytest.mark.parametrize("peak", [1, 4, 20, 120])
def test_the_gain_is_estimated(name, peak):
    found = count_noise(0.3 * counts_of(photograph(name), peak), None, 0.0)
    assert found.gain == pytest.approx(0.3, rel=0.1)
    assert found.sigma == 0


@pytest.mark.parametrize(("peak", "sigma"), [(20, 1.0), (120, 3.0), (120, 10.0)])
def test_gain_and_sigma_are_estimated(peak, sigma):
    image = counts_of(photograph("camera"), peak)
    image += sigma * np.random.default_rng(1).standard_normal(image.shape, np.float32)
    for gain, known in ((None, None), (1.0, None), (None, sigma)):
        found = count_noise(image, gain, known)
        assert found.sigma == pytest.approx(sigma, rel=0.1)
        assert found.gain == pytest.approx(1, rel=0.2 if sigma == 10 else 0.1)


@pytest.mark.parametrize(("peak", "least"), [(1, 0.55), (4, 0.85), (20, 0.95), (120, 0.98)])
def test_counts_are_denoised_better_than_as_gaussian_noise(peak, least):
    clean = photograph("coffee")[:96, :96]
    image = counts_of(clean, peak) / peak
    found = error(denoise(image, noise="poisson", n_jobs=2), clean)
    assert found < least * error(denoise(image, error(image, clean), n_jobs=2), clean)


def test_magnitudes_are_denoised_better_than_as_gaussian_noise():
    clean = 255 * photograph("camera")[:96, :96]
    clean[:, :32] = 0
    image = magnitudes_of(clean, 25)
    found = denoise(image, noise="rician", n_jobs=2, full=True)
    assert found.sigma == pytest.approx(25, rel=0.08)
    assert error(found.image, clean) < 0.6 * error(denoise(image, 25, n_jobs=2), clean)


WAVES = 1 + 0.8 * np.sin(np.arange(96) / 11) * np.cos(np.arange(96)[:, None] / 13)


@pytest.mark.parametrize("peak", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("quality", ["fast", "default"])
def test_few_counts_keep_their_mean(peak, quality):
    image = counts_of(np.dstack([WAVES, WAVES.T / 2]), peak)
    found = denoise(image, noise="poisson", noise_gain=1.0, quality=quality, channel_axis=-1)
    np.testing.assert_allclose(found.mean(axis=(0, 1)), image.mean(axis=(0, 1)), rtol=0.002)


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("border", [0, 40])
def test_sigma_of_magnitudes_is_estimated_where_noise_is_as_strong_as_the_signal(sigma, border):
    image = np.pad(magnitudes_of(WAVES, sigma), border)
    found = denoise(image, noise="rician", quality="dictionary", max_iter=1, full=True)
    assert found.sigma == pytest.approx(sigma, rel=0.07)


@pytest.mark.parametrize("noise", ["poisson", "poisson-gaussian", "rician"])
@pytest.mark.parametrize(
    ("shape", "channel_axis", "dtype"),
    [
        ((41, 70), None, np.uint8),
        ((40, 36, 3), -1, np.uint16),
        ((2, 33, 40), 0, np.float64),
        ((4, 36, 34), None, np.float32),
        ((300,), None, np.int32),
        ((5, 3), None, np.float16),
    ],
)
def test_images_of_any_kind_keep_their_shape_and_dtype(rng, noise, shape, channel_axis, dtype):
    image = rng.poisson(6 + 4 * np.sin(np.arange(np.prod(shape)) / 9).reshape(shape)).astype(dtype)
    given = image.copy()
    found = denoise(image, noise=noise, channel_axis=channel_axis, max_iter=2, full=True)
    np.testing.assert_array_equal(image, given)
    assert found.image.shape == shape
    assert found.image.dtype == dtype
    assert np.isfinite(found.image).all()
    assert found.image.min() >= 0
    n_sigmas = None if channel_axis is None else shape[channel_axis]
    assert (len(found.sigma) if n_sigmas else None) == n_sigmas


@pytest.mark.parametrize("noise", ["poisson", "poisson-gaussian", "rician"])
@pytest.mark.parametrize("value", [0, 7])
def test_a_constant_image_is_unchanged(noise, value):
    image = np.full((40, 40), value, np.float32)
    np.testing.assert_array_equal(denoise(image, noise=noise), image)


def test_neither_the_number_of_threads_nor_the_unit_matters():
    image = counts_of(photograph("camera")[:64, :64], 4)
    found = denoise(image, noise="poisson")
    np.testing.assert_array_equal(denoise(image, noise="poisson", n_jobs=2), found)
    scaled = denoise(2.0**-20 * image, noise="poisson")
    np.testing.assert_allclose(scaled * 2.0**20, found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("noise", ["poisson", "poisson-gaussian", "rician"])
@pytest.mark.parametrize("scale", [2.0**170, 2.0**-170, 2.0**900, 2.0**-900])
def test_images_of_any_magnitude_are_denoised_in_the_same_way(noise, scale):
    image = counts_of(photograph("camera")[:48, :48], 30).astype(np.float64)
    options = {"noise": noise, "max_iter": 2, "quality": "fast", "full": True}
    expected = denoise(image, **options)
    found = denoise(scale * image, **options)
    np.testing.assert_allclose(found.image / scale, expected.image, rtol=1e-3, atol=1e-2)
    assert found.sigma / scale == pytest.approx(expected.sigma, rel=1e-6)
    if noise != "rician":
        gains = [result.settings["noise_gain"] for result in (found, expected)]
        assert gains[0] / scale == pytest.approx(gains[1], rel=1e-6)
        given = denoise(scale * image, **options, noise_gain=gains[0])
        np.testing.assert_allclose(given.image, found.image, rtol=1e-3, atol=1e-2 * scale)


@pytest.mark.parametrize(
    ("noise", "sigma"), [("poisson", None), ("poisson-gaussian", 0.5), ("rician", None)]
)
def test_gpu_results_equal_those_of_the_processor(on_gpu, rng, noise, sigma):
    clean = 10 + 8 * np.sin(np.add.outer(np.arange(33) / 5, np.arange(40) / 4))
    image = rng.poisson(clean).astype(np.float32)
    options: dict[str, Any] = {"dictionary": kl.KroneckerDictionary([dct_factor(8, 16)] * 2)}
    options["noise"] = noise
    expected = denoise(image, sigma, **options)
    found = on_gpu.download(denoise(on_gpu.upload(image), sigma, **options))
    difference = np.abs(found - expected)
    # In single precision, near ties may be broken differently.
    assert np.median(difference) < 1e-3
    assert difference.mean() < 0.02


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"noise": "shot"}, "noise='shot' does not exist; choose one of gaussian, poisson, "),
        ({"noise_gain": 2}, "noise_gain is for counts; noise='gaussian' has none"),
        ({"noise": "poisson", "noise_gain": -1}, "noise_gain=-1 is not a positive number"),
        ({"noise": "poisson", "sigma": 3}, 'noise="poisson" has no sigma'),
        ({"noise": "poisson", "sigma": np.ones((20, 20))}, 'noise="poisson" has no sigma'),
        ({"noise": "poisson", "noise_gain": 1e4}, "more noise than the image varies"),
        ({"noise": "rician", "sigma": -3}, "sigma=-3 is not a standard deviation"),
        ({"noise": "rician", "sigma": [[1.0]]}, "for the whole image"),
        (
            {"noise": "poisson", "mask": np.eye(20, dtype=bool)},
            "noise='poisson' is not estimated where there",
        ),
        ({"noise": "rician", "mask": np.eye(20, dtype=bool)}, "is a mask; pass sigma"),
    ],
)
def test_invalid_noise_parameters_are_refused(rng, options, text):
    with pytest.raises(ValueError, match=text):
        denoise(rng.poisson(5, (20, 20)), **options)


@pytest.mark.parametrize("noise", ["poisson", "rician"])
def test_negative_values_are_refused(noise):
    with pytest.raises(ValueError, match=r"no negative values, but the image goes down to -1;"):
        denoise(np.arange(-1, 35).reshape(6, 6), noise=noise)
