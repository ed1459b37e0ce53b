"""The noise of an image is estimated from the image alone."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from skimage import data
from skimage.data import astronaut, camera, coins

import kronlearn as kl

estimate_sigma = kl.images.estimate_sigma


@pytest.mark.parametrize(
    ("sigma", "tolerance"), [(5, 0.1), (10, 0.05), (20, 0.05), (35, 0.05), (50, 0.05)]
)
def test_the_noise_of_photographs_is_found(sigma, tolerance):
    for seed, clean in enumerate((camera()[::2], coins())):
        noise = np.random.default_rng(seed).normal(0, sigma, clean.shape)
        assert estimate_sigma(clean + noise) == pytest.approx(sigma, rel=tolerance)


@pytest.mark.parametrize(("sigma", "tolerance"), [(5, 0.1), (20, 0.05), (50, 0.05)])
def test_the_noise_of_every_channel_is_found(sigma, tolerance):
    sigmas = np.array([1.0, 0.8, 1.2]) * sigma
    noise = np.random.default_rng(1).standard_normal((256, 256, 3)) * sigmas
    found = estimate_sigma(astronaut()[:256, :256] + noise, channel_axis=-1)
    assert isinstance(found, tuple)
    np.testing.assert_allclose(found, sigmas, rtol=tolerance)


@pytest.mark.parametrize("channel_axis", [0, 1, -2])
def test_the_position_of_the_channel_axis_does_not_matter(rng, channel_axis):
    noisy = rng.normal(0, (1, 2, 3, 4), (60, 50, 4))
    found = estimate_sigma(np.moveaxis(noisy, -1, channel_axis), channel_axis=channel_axis)
    expected = estimate_sigma(noisy, channel_axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert expected == tuple(estimate_sigma(noisy[..., k]) for k in range(4))


@pytest.mark.parametrize("shape", [(20000,), (200, 150), (1, 20000), (40, 32, 28), (16, 9, 14, 11)])
def test_pure_noise_in_any_number_of_dimensions_is_found(rng, shape):
    noise = rng.normal(3, 7, shape)
    # The quietest patches are looked at, which makes the estimate a little too small.
    assert 0.85 * 7 < estimate_sigma(noise) < 1.05 * 7


def test_the_noise_of_a_volume_is_found(rng):
    x = np.linspace(-1, 1, 32)
    clean = 100 * np.exp(-4 * (x[:, None, None] ** 2 + 2 * x[:, None] ** 2 + x**2))
    for sigma in (0.5, 5, 20):
        found = estimate_sigma(clean + rng.normal(0, sigma, clean.shape))
        assert found == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("scale", [1e-170, 1e-9, 1e9, 1e170])
def test_the_noise_scales_with_the_image(scale):
    noisy = camera()[:128, :128] + np.random.default_rng(0).normal(0, 10, (128, 128))
    found = estimate_sigma(scale * noisy - 3 * scale)
    assert found == pytest.approx(scale * estimate_sigma(noisy), rel=1e-9)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", ">u2", "i8", "f2", "f4", ">f4", "f8", "g"])
def test_any_real_dtype_is_accepted(dtype):
    noisy = np.rint(100 + np.random.default_rng(0).normal(0, 10, (96, 96)))
    found = estimate_sigma(noisy.astype(dtype))
    assert isinstance(found, float)
    assert found == pytest.approx(estimate_sigma(noisy), rel=1e-9)


@pytest.mark.parametrize(
    "value", [0.0, 0.1, 7.3, -1e-5, 1 / 3, 1e9, np.uint8(77), np.int16(77), np.uint64(77)]
)
@pytest.mark.parametrize("shape", [(1,), (2,), (50,), (1, 1), (3, 5), (20, 20), (9, 8, 7)], ids=str)
def test_a_constant_image_has_no_noise(shape, value):
    assert estimate_sigma(np.full(shape, value)) == 0
    assert estimate_sigma(np.full(shape, value, np.float32)) == 0
    assert estimate_sigma(np.full((*shape, 2), value), channel_axis=-1) == (0, 0)


def test_the_rounding_error_of_a_constant_is_not_noise(rng):
    image = 7.3 + np.spacing(7.3) * rng.integers(0, 2, (64, 64))
    assert kl.images.estimate_sigma(image) == 0


def test_smooth_images_have_hardly_any_noise():
    ramp = np.add.outer(np.arange(64.0), 2 * np.arange(80.0))
    assert estimate_sigma(ramp) < 1e-9
    assert estimate_sigma(np.sin(ramp / 40)) < 1e-3


@pytest.mark.parametrize(
    "shape",
    [(2,), (3,), (1, 2), (2, 2), (3, 1), (2, 3, 2), (1, 1, 5), (7, 9), (1, 1, 1, 2)],
    ids=str,
)
def test_tiny_images_have_some_noise(rng, shape):
    found = estimate_sigma(rng.normal(0, 1, shape))
    assert isinstance(found, float)
    assert 0 <= found < 10


def test_the_memory_layout_of_an_image_does_not_matter(rng):
    noisy = rng.normal(0, 1, (60, 50))
    found = estimate_sigma(noisy)
    for layout in (
        np.asfortranarray(noisy),
        noisy[::-1].copy()[::-1],
        np.repeat(noisy, 2, 1)[:, ::2],
    ):
        assert estimate_sigma(layout) == pytest.approx(found, rel=1e-12)
    assert estimate_sigma(noisy.tolist()) == found


def test_a_channel_axis_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="channel_axis=2"):
        estimate_sigma(np.zeros((9, 9)), channel_axis=2)
    with pytest.raises(ValueError, match="no pixels"):
        estimate_sigma(np.zeros(9), channel_axis=0)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
def test_flat_borders_do_not_hide_the_noise(share):
    noisy = camera() + np.random.default_rng(0).normal(0, 20, (512, 512))
    image = np.clip(noisy, 0, 255).astype(np.uint8)
    rows = int(share * 256)
    image[:rows], image[-rows:] = 0, 77
    assert kl.images.estimate_sigma(image) == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("clean", [camera()[:256, :256], coins()], ids=["camera", "coins"])
def test_correlated_noise_gives_a_warning(clean):
    noise = gaussian_filter(np.random.default_rng(0).standard_normal(clean.shape), 1.0)
    noisy = clean + 20 * noise / noise.std()
    with pytest.warns(UserWarning, match="seems to be correlated.*Pass sigma") as warned:
        assert estimate_sigma(noisy) < 4
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="seems to be correlated"):
        kl.images.denoise(noisy, quality="dictionary", dictionary=[np.eye(4)] * 2, stride=4)


@pytest.mark.parametrize("name", ["camera", "coins", "brick", "moon", "page", "text"])
def test_strong_noise_blurred_by_less_than_a_pixel_gives_a_warning(name):
    clean = getattr(data, name)()
    noise = gaussian_filter(np.random.default_rng(0).standard_normal(clean.shape), 0.7)
    with pytest.warns(UserWarning, match="seems to be correlated"):
        estimate_sigma(clean + 24.6 * noise / noise.std())


@pytest.mark.parametrize("sigma", [5, 10, 20])
@pytest.mark.parametrize("name", ["camera", "coins", "grass", "gravel", "brick", "page", "text"])
def test_white_noise_gives_no_warning(name, sigma):
    clean = getattr(data, name)()
    # Warnings are errors.
    found = estimate_sigma(clean + np.random.default_rng(0).normal(0, sigma, clean.shape))
    assert 0.95 * sigma < found < 2 * sigma


@pytest.mark.parametrize("name", ["camera", "grass", "gravel", "moon", "page", "text"])
def test_photographs_and_textures_give_no_warning(name):
    # Warnings are errors.
    assert estimate_sigma(getattr(data, name)()) < 10


def test_warnings_point_to_the_line_that_called_kronlearn():
    noise = gaussian_filter(np.random.default_rng(0).standard_normal((96, 96, 3)), (1, 1, 0))
    options = {"quality": "dictionary", "dictionary": [np.eye(4)] * 2, "stride": 4}
    calls = [
        (lambda: kl.images.denoise(noise[..., 0], **options), 1, "the image"),
        (lambda: kl.images.denoise(noise[..., 0], noise="gaussian", **options), 1, "the image"),
        (lambda: kl.images.denoise(noise, channel_axis=-1, **options), 3, "the image"),
        (lambda: kl.images.Denoiser(**options)(noise[..., 0]), 1, "the image"),
        (lambda: estimate_sigma(noise, channel_axis=-1), 3, "the image"),
        (lambda: kl.hyperspectral.estimate_noise(noise, band_axis=2), 3, "band 0 of the cube"),
        (lambda: kl.hyperspectral.denoise(noise, band_axis=2), 3, "band 0 of the cube"),
    ]
    for call, count, name in calls:
        with pytest.warns(UserWarning, match="seems to be correlated") as warned:
            call()
        assert [warning.filename for warning in warned] == [__file__] * count
        assert {warning.lineno for warning in warned} == {call.__code__.co_firstlineno}
        assert f"a texture fills {name}: " in str(warned[0].message)


def test_a_grey_image_with_a_channel_axis_gives_a_warning(rng):
    image = rng.normal(0, 5, (40, 60))
    match = r"shape \(40, 60\) .* signals of one dimension in 60 channels; leave channel_axis out"
    with pytest.warns(UserWarning, match=match) as warned:
        estimate_sigma(image, channel_axis=-1)
    assert warned[0].filename == __file__
    # Warnings are errors.
    assert len(estimate_sigma(image[:, :8], channel_axis=-1)) == 8


def test_a_last_axis_that_looks_like_colours_gives_a_warning(rng):
    image = rng.normal(0, 5, (20, 20, 3))
    match = r"shape \(20, 20, 3\) and is taken for a volume; pass channel_axis=-1"
    for function in (estimate_sigma, kl.images.denoise):
        with pytest.warns(UserWarning, match=match) as warned:
            function(image)
        assert warned[0].filename == __file__
