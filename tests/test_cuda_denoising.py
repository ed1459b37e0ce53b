"""Denoising of images on a GPU, tested emulated on the processor and on a real one."""

import numpy as np
import pytest

import kronlearn as kl
from emulated_gpu import ArrayGpu, WarpGpu
from kronlearn.core.init import dct_factor
from kronlearn.cuda.pixels import Pixels
from test_cuda_images import picture

EMULATED = ArrayGpu


def noisy_picture(rng, shape, dtype=np.float64):
    image = picture(shape) + 15 * rng.standard_normal(shape)
    return image.clip(0, 255).astype(dtype) if np.dtype(dtype).kind in "iu" else image.astype(dtype)


DICTIONARY = kl.KroneckerDictionary([dct_factor(8, 16)] * 2)


@pytest.mark.parametrize(
    ("shape", "channel_axis", "dtype", "quality"),
    [
        ((40, 33), None, np.float32, "dictionary"),
        ((33, 40), None, np.uint8, "fast"),
        ((30, 25, 3), -1, np.float64, "fast"),
        ((2, 30, 28), 0, np.int16, "dictionary"),
        ((30, 29), None, np.float16, "fast"),
    ],
)
def test_images_denoised_on_the_gpu_equal_those_of_the_processor(
    on_gpu, rng, shape, channel_axis, dtype, quality
):
    image = noisy_picture(rng, shape, dtype)
    given = on_gpu.upload(image)
    options = {"channel_axis": channel_axis, "dictionary": DICTIONARY, "quality": quality}
    there = kl.images.denoise(given, 15.0, **options)
    assert type(there) is type(given)
    found = kl.images.denoise(image, 15.0, device="cuda", **options)
    assert type(found) is np.ndarray
    assert there.dtype == found.dtype == dtype
    np.testing.assert_array_equal(on_gpu.download(there), found)
    difference = np.abs(found.astype(np.float64) - kl.images.denoise(image, 15.0, **options))
    # In single precision, near ties may be decided differently.
    assert np.quantile(difference, 0.9) <= (1 if np.dtype(dtype).kind in "iu" else 0.2)
    assert difference.max() < 5


def test_matches_are_not_reused_on_the_gpu(on_gpu):
    image = np.zeros((20, 20), np.float32)
    for options, given in (({"device": "cuda"}, image), ({}, on_gpu.upload(image))):
        denoiser = kl.images.Denoiser(reuse_matches=True, **options)
        with pytest.raises(ValueError, match="reuse_matches=True is for the processor"):
            denoiser(given, 5)


def test_noise_that_channels_have_in_common_is_removed_on_the_gpu(on_gpu, rng):
    image = picture((60, 55))[..., None] * [1.0, 0.8, 0.5] + 15 * rng.standard_normal((60, 55, 1))
    options = {"channel_axis": -1, "dictionary": DICTIONARY, "quality": "fast"}
    expected = kl.images.denoise(image, **options)
    assert np.abs(expected - image).mean() > 5
    there = on_gpu.download(kl.images.denoise(on_gpu.upload(image), **options))
    difference = np.abs(there - expected)
    assert np.quantile(difference, 0.9) <= 0.2
    assert difference.max() < 5


@pytest.mark.parametrize("quality", ["dictionary", "fast"])
def test_neither_the_image_nor_its_patches_leave_the_gpu(on_gpu, rng, quality):
    given = on_gpu.upload(noisy_picture(rng, (70, 62), np.float32))
    before = getattr(on_gpu, "left", 0)
    kl.images.denoise(given, 15.0, dictionary=DICTIONARY, quality=quality)
    assert getattr(on_gpu, "left", 0) - before < given.size


def test_a_channel_without_noise_is_unchanged(on_gpu, rng):
    image = noisy_picture(rng, (30, 25, 2), np.float32)
    options = {"channel_axis": -1, "dictionary": DICTIONARY}
    given = on_gpu.upload(image)
    found = on_gpu.download(kl.images.denoise(given, [15.0, 0.0], device="cuda", **options))
    np.testing.assert_array_equal(found[..., 1], image[..., 1])
    assert np.abs(found[..., 0] - image[..., 0]).mean() > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pixels_that_are_not_finite_are_refused(on_gpu, rng, bad):
    image = noisy_picture(rng, (20, 20), np.float32)
    image[3, 4] = bad
    with pytest.raises(ValueError, match="image contains NaN or infinity"):
        kl.images.denoise(on_gpu.upload(image), 15.0, device="cuda", dictionary=DICTIONARY)


@pytest.mark.parametrize("kind", [np.dtype(name) for name in ("f4", "f8", "u1", "u8")], ids=str)
@pytest.mark.parametrize("teams", ["of one thread", "of 32"])
def test_pixels_of_any_dtype_are_converted_to_planes_and_back(gpu, rng, kind, teams):
    if teams == "of 32":
        if not isinstance(gpu, ArrayGpu) or kind.itemsize == 8:
            pytest.skip("a GPU has no others, and two kinds are enough")
        gpu = WarpGpu()
    image = rng.normal(60, 20, (2, 17, 69)).clip(0, 127).astype(kind)
    pixels = Pixels(gpu, gpu.upload(image))
    for found, channel in zip(pixels.contents(), image, strict=True):
        assert (found.low, found.high) == (channel.min(), channel.max())
        assert found.mean == pytest.approx(channel.mean(dtype=np.float64), rel=1e-14)
        assert found.is_finite
    plane = gpu.xp.empty((17, 69), np.float32)
    pixels.to_plane(1, 60.0, 2.0, plane)
    np.testing.assert_array_equal(
        gpu.download(plane), ((image[1].astype(np.float64) - 60.0) / 2.0).astype(np.float32)
    )
    target = gpu.upload(np.zeros_like(image))
    Pixels(gpu, target).from_plane(1, 60.0, 200.0, plane)
    wanted = gpu.download(plane).astype(np.float64) * 200.0 + 60.0
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        wanted = np.rint(wanted).clip(limits.min, limits.max)
    made = gpu.download(target)
    np.testing.assert_array_equal(made[1], wanted.astype(kind))
    assert not made[0].any()


def patterned(rng, kind):
    """Images to estimate the noise of."""
    if kind == "noisy":
        return noisy_picture(rng, (44, 34), np.float32)
    if kind == "cut off":
        return noisy_picture(rng, (36, 30), np.float64).clip(60, 150)
    if kind == "many ties":
        return np.tile(rng.integers(0, 2, (8, 8)), (4, 4)).astype(np.uint8)
    if kind == "hardly any patches":
        return noisy_picture(rng, (9, 10), np.uint16)
    return np.full((20, 24), 7.0)


@pytest.mark.parametrize(
    "kind", ["noisy", "cut off", "many ties", "hardly any patches", "constant"]
)
def test_the_noise_estimated_on_the_gpu_equals_that_of_the_processor(on_gpu, rng, kind):
    image = patterned(rng, kind)
    expected = kl.images.estimate_sigma(image)
    found = kl.images.estimate_sigma(on_gpu.upload(image))
    assert found == pytest.approx(expected, rel=1e-6)
