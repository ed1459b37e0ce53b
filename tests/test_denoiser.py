"""A Denoiser learns once and denoises many images."""

import numpy as np
import pytest
from skimage.data import camera

import kronlearn as kl

CLEAN = camera()[100:164, 180:244].astype(np.float32)


def test_images_are_denoised_with_the_dictionary_of_the_first(rng):
    images = [CLEAN + sigma * rng.standard_normal(CLEAN.shape, np.float32) for sigma in (20, 10)]
    denoiser = kl.images.Denoiser(patch_size=6, n_atoms=9, max_iter=2, quality="fast")
    first = kl.images.denoise(
        images[0], 20, full=True, patch_size=6, n_atoms=9, max_iter=2, quality="fast"
    )
    assert denoiser.dictionary is None
    np.testing.assert_array_equal(denoiser(images[0], 20), first.image)
    assert denoiser.dictionary == first.dictionary
    second = kl.images.denoise(images[1], 10, dictionary=first.dictionary, quality="fast")
    np.testing.assert_array_equal(denoiser(images[1], 10), second)
    np.testing.assert_array_equal(denoiser(images[0], 20), first.image)


def test_no_dictionary_is_kept_if_none_was_learned(rng):
    denoiser = kl.images.Denoiser(max_iter=2)
    denoiser(CLEAN, 0)
    denoiser(CLEAN + rng.normal(0, 0.1, CLEAN.shape), 0.1)
    assert denoiser.dictionary is None
    denoiser(CLEAN + rng.normal(0, 20, CLEAN.shape))
    assert denoiser.dictionary is not None


def test_unknown_options_are_refused():
    with pytest.raises(
        TypeError, match="Denoiser has no option 'qualty'; it takes those of denoise: ch"
    ):
        kl.images.Denoiser(qualty="fast")
    with pytest.raises(TypeError, match=r"'sigma'.*with every image: denoiser\(image, sigma, mask"):
        kl.images.Denoiser(sigma=20)
    with pytest.raises(TypeError, match="no option 'full'"):
        kl.images.Denoiser(full=True)
    with pytest.raises(ValueError, match="quality='slow' does not exist"):
        kl.images.Denoiser(quality="slow")(CLEAN, 20)


def test_every_image_may_have_its_own_mask(rng):
    image = CLEAN[:32, :32] + 20 * rng.standard_normal((32, 32), np.float32)
    options = {"max_iter": 2, "quality": "fast"}
    denoiser = kl.images.Denoiser(**options)
    assert repr(denoiser) == "Denoiser(max_iter=2, quality='fast')"
    for missing in (rng.random(image.shape) < 0.05, np.eye(32, dtype=bool)):
        expected = kl.images.denoise(
            image, 20, mask=missing, dictionary=denoiser.dictionary, **options
        )
        holes = np.where(missing, np.nan, image)
        np.testing.assert_array_equal(denoiser(holes, 20, mask=missing), expected)
