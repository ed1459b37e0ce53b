"""A Denoiser learns once and denoises many images."""

import pickle

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


STACK = np.stack([np.roll(CLEAN[:24, :24], k, axis=0) for k in range(5)])
COLOURS = np.stack([CLEAN, CLEAN[::-1], CLEAN.T], axis=-1)


@pytest.mark.parametrize(
    ("clean", "options", "missing"),
    [
        (CLEAN, {"quality": "default"}, None),
        (CLEAN[:20], {"quality": "best"}, None),
        (CLEAN[:, :20], {}, None),
        (COLOURS, {"channel_axis": -1}, None),
        (STACK, {}, None),
        (CLEAN[:32, :32], {}, np.eye(32, dtype=bool)),
        (CLEAN / 20, {"noise": "poisson"}, None),
    ],
    ids=["grey", "wide", "high", "colours", "stack", "mask", "counts"],
)
def test_matches_are_reused_for_images_of_the_same_shape(rng, clean, options, missing):
    if options.get("noise") == "poisson":
        image, sigma = rng.poisson(clean).astype(float), None
    else:
        image, sigma = clean + 20 * rng.standard_normal(clean.shape), 20
    similar = image + 0.5 * image.std() * rng.random(image.shape)
    options = {"max_iter": 1, "quality": "fast"} | options

    def denoised(reuse_matches, n_jobs=1):
        denoiser = kl.images.Denoiser(reuse_matches=reuse_matches, n_jobs=n_jobs, **options)
        results = [denoiser(each, sigma, mask=missing) for each in (image, image, similar)]
        denoiser.forget_matches()
        return [*results, denoiser(similar, sigma, mask=missing)]

    first, again, reused, anew = denoised(True)
    expected = denoised(False)
    np.testing.assert_array_equal([first, again, anew], [expected[k] for k in (0, 1, 3)])
    assert not np.array_equal(reused, anew)
    assert np.std(reused - anew) < 0.3 * np.std(similar - anew)
    for n_jobs in (2, 5):
        np.testing.assert_array_equal(denoised(True, n_jobs), [first, again, reused, anew])


def test_matches_are_found_anew_for_other_shapes_and_after_a_failure(rng):
    images = [CLEAN + 20 * rng.standard_normal(CLEAN.shape) for _ in range(2)]
    calls = [(images[0], 20), (images[0][:40], 20), (images[1], 20)]

    def stop(stage, share):
        if stop.now and stage == "similar patches" and share > 0:
            raise InterruptedError

    stop.now = False
    plain, reusing = (
        kl.images.Denoiser(max_iter=1, quality="fast", progress=stop, reuse_matches=reuse)
        for reuse in (False, True)
    )
    for image, sigma in calls:
        np.testing.assert_array_equal(reusing(image, sigma), plain(image, sigma))
    stop.now = True
    with pytest.raises(InterruptedError):
        reusing(images[1], 20)
    stop.now = False
    np.testing.assert_array_equal(reusing(images[0], 20), plain(images[0], 20))


def test_kept_matches_take_no_more_memory_than_documented(rng):
    denoiser = kl.images.Denoiser(max_iter=1, reuse_matches=True)
    without = len(pickle.dumps(kl.images.Denoiser(max_iter=1)))
    for sigma in (30, 2, 30, 0.1, 12):
        denoiser(CLEAN + sigma * rng.standard_normal(CLEAN.shape), sigma)
    assert 30 < (len(pickle.dumps(denoiser)) - without) / CLEAN.size < 60
    assert repr(denoiser).startswith("Denoiser(reuse_matches=True, max_iter=1")
    denoiser.forget_matches()
    assert len(pickle.dumps(denoiser)) / CLEAN.size < 2
