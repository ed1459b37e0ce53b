"""Inpainting: quality, known and missing pixels, masks, reproducibility, options and errors."""

import json
import warnings
from functools import cache
from unittest import mock

import numpy as np
import pytest
from skimage.data import astronaut, camera
from skimage.restoration import inpaint_biharmonic

import kronlearn as kl
import reference
from kronlearn.images import inpainter, masks, pyramid
from kronlearn.images.aggregation import Averager
from test_denoising import IMAGES, assert_interrupted, psnr, stages_reported

inpaint = kl.images.inpaint


@cache
def crop(size=48, share=0.5):
    """A clean part of a photograph, and a mask of missing pixels."""
    clean = camera()[100 : 100 + size, 180 : 180 + size].astype(np.float64)
    return clean, np.random.default_rng(2).random(clean.shape) < share


@cache
def colour_crop(size=40):
    """A clean part of a colour photograph, and masks that hide all, or single, channels."""
    rng = np.random.default_rng(3)
    clean = astronaut()[60 : 60 + size, 160 : 160 + size].astype(np.float64)
    return clean, rng.random(clean.shape[:2]) < 0.5, rng.random(clean.shape) < 0.5


def quick(image, mask=None, **options):
    """Inpaint with little learning and few steps."""
    with mock.patch.object(inpainter, "_STEPS", 3):
        return inpaint(image, mask, **({"max_iter": 2} | options))


# Quality


def test_half_of_the_pixels_are_filled_better_than_by_the_biharmonic_equation():
    clean, missing = crop(128)
    holes = np.where(missing, 0, clean)
    two, one = inpaint(holes, missing, n_jobs=2), inpaint(holes, missing, stages=1)
    assert psnr(two, clean) > psnr(inpaint_biharmonic(holes, missing), clean) + 2
    assert psnr(two, clean) > 31.5
    assert psnr(one, clean) > 28


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_few_and_many_missing_pixels_are_filled_well(share):
    clean, missing = crop(128, share)
    holes = np.where(missing, 0, clean)
    filled = inpaint(holes, missing, n_jobs=2)
    assert psnr(filled, clean) > psnr(inpaint_biharmonic(holes, missing), clean) + 1.5


@pytest.mark.slow
@pytest.mark.skipif(not IMAGES.is_dir(), reason="the images of the paper are not here")
def test_half_of_an_image_of_the_paper_is_restored():
    from skimage.io import imread

    clean = imread(IMAGES / "house.png").astype(np.float64)
    clean = clean if clean.ndim == 2 else clean[..., 0]
    missing = np.random.default_rng(0).random(clean.shape) < 0.5
    assert psnr(inpaint(np.where(missing, 0, clean), missing, n_jobs=2), clean) > 38


def test_colours_are_filled_better_than_by_the_biharmonic_equation():
    clean, missing, _ = colour_crop(80)
    holes = np.where(missing[..., None], 0, clean)
    filled = inpaint(holes, missing, channel_axis=-1, n_jobs=2)
    known = inpaint_biharmonic(holes, missing, channel_axis=-1)
    assert psnr(filled, clean) > psnr(known, clean) + 0.5


def test_volumes_are_filled_along_all_axes(rng):
    x = np.linspace(-1, 1, 20)
    clean = 100 * np.exp(-4 * (x[:, None, None] ** 2 + 2 * x[:, None] ** 2 + x**2))
    missing = rng.random(clean.shape) < 0.6
    filled = quick(np.where(missing, 0, clean), missing)
    assert np.abs(filled - clean).max() < 5


def test_a_signal_with_one_axis_is_filled(rng):
    clean = 100 * np.sin(np.linspace(0, 20, 500))
    missing = rng.random(500) < 0.5
    assert np.std(quick(np.where(missing, 0, clean), missing) - clean) < 2


# Boxes around missing pixels


def test_only_the_surroundings_of_missing_pixels_are_processed(monkeypatch):
    clean = np.tile(camera()[100:400, 180:480], (2, 2)).astype(np.float64)
    missing = np.zeros(clean.shape, bool)
    missing[3, 590], missing[420:423, 90] = True, True
    sizes, code, filter_groups = [], Averager.code, Averager.filter_groups

    def counted(method):
        def count(self, image, *arguments, **options):
            sizes.append(image.size)
            return method(self, image, *arguments, **options)

        return count

    monkeypatch.setattr(Averager, "code", counted(code))
    monkeypatch.setattr(Averager, "filter_groups", counted(filter_groups))
    filled = quick(np.where(missing, 0, clean), missing)
    # In two boxes, the first stage codes twice, and the second codes and filters in three steps.
    assert len(sizes) == 2 * 2 + 2 * 2 * 3
    assert max(sizes[:4]) < 40**2
    assert max(sizes) < 0.06 * clean.size
    np.testing.assert_array_equal(filled[~missing], clean[~missing])


def test_processing_only_boxes_gives_the_result_of_the_whole_image(monkeypatch, rng):
    # A texture whose similar patches are nearly as far apart as the search window reaches.
    clean = np.tile(100 * rng.random((19, 19)), (9, 9))[:170, :170] + rng.normal(0, 5, (170, 170))
    missing = np.zeros(clean.shape, bool)
    missing[21:24, 30], missing[33, 17] = True, True
    holes = np.where(missing, 0, clean)
    # Without the first stage: the known pixels that it holds out depend on the boxes.
    monkeypatch.setattr(inpainter.Inpainter, "_fill", lambda *_: None)
    found = quick(holes, missing, dictionary=reference.dct_factors((8, 8), (9, 9)))
    monkeypatch.setattr(inpainter, "boxes_around", lambda gone, *_: [(slice(None),) * gone.ndim])
    whole = quick(holes, missing, dictionary=reference.dct_factors((8, 8), (9, 9)))
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shape", [(400,), (90, 70), (20, 24, 18)], ids=str)
def test_boxes_are_disjoint_and_contain_the_surroundings_of_all_missing_pixels(rng, shape):
    halo, step = (7,) * len(shape), (3,) * len(shape)
    for share in (0.0005, 0.005, 0.5):
        missing = rng.random(shape) < share
        count = np.zeros(shape, int)
        for box in masks.boxes_around(missing, halo, step):
            count[box] += 1
            assert all(part.start % 3 == 0 for part in box)
        assert count.max(initial=0) <= 1
        for pixel in np.argwhere(missing):
            assert count[tuple(slice(max(0, k - 7), k + 8) for k in pixel)].all()


# Known pixels


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    "dtype", ["u1", "i1", "i2", "u2", ">u2", "i4", "u4", "f2", "f4", ">f4", "f8", ">f8"]
)
def test_known_pixels_and_the_dtype_are_kept(dtype, stages):
    clean, missing = crop()
    image = (clean / 2 if dtype == "i1" else clean + 0.3).astype(dtype)
    holes = np.where(missing, image.max(), image).astype(dtype)
    filled = quick(holes, missing, stages=stages)
    assert filled.dtype == np.dtype(dtype)
    assert filled.shape == image.shape
    np.testing.assert_array_equal(filled[~missing], image[~missing])
    error = filled.astype(np.float64) - image.astype(np.float64)
    assert np.std(error[missing]) < 0.4 * np.std(image.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_known_integers_too_large_for_floats_are_kept(rng, dtype):
    image = rng.integers(2**60, 2**61, (20, 20)).astype(dtype) | dtype(1)
    missing = rng.random(image.shape) < 0.3
    filled = quick(np.where(missing, dtype(0), image), missing)
    assert filled.dtype == dtype
    np.testing.assert_array_equal(filled[~missing], image[~missing])
    assert filled[missing].min() > 2**59


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_an_image_without_missing_pixels_is_unchanged(dtype):
    image = crop()[0].astype(dtype)
    if dtype is np.int64:
        image += 2**53 + 1
    for mask in (None, np.zeros(image.shape, bool)):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = inpaint(image, mask, full=True)
        # Integers have no NaN, so a forgotten mask is likely.
        is_suspicious = mask is None and image.dtype.kind != "f"
        assert len(warned) == is_suspicious
        if is_suspicious:
            assert "has no NaN to mark missing pixels; pass a mask" in str(warned[0].message)
            assert warned[0].filename == __file__
        assert found.image.dtype == dtype
        np.testing.assert_array_equal(found.image, image)
        assert not np.shares_memory(found.image, image)
        assert found.dictionary is None
        assert found.history is None
        assert found.seconds == {}


def test_the_image_and_the_mask_are_not_modified():
    clean, missing = crop()
    holes, mask = np.where(missing, np.nan, clean), missing.copy()
    given = holes.copy()
    quick(given, mask)
    np.testing.assert_array_equal(given, holes)
    np.testing.assert_array_equal(mask, missing)


# Missing pixels


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [1e6, -3e38, 1e300, np.inf, -np.inf, np.nan])
def test_values_of_missing_pixels_do_not_matter(value, dtype, stages):
    clean, missing = crop()
    with np.errstate(over="ignore"):
        zeros, spoiled = (np.where(missing, v, clean).astype(dtype) for v in (0.0, value))
    expected = quick(zeros, missing, stages=stages)
    np.testing.assert_array_equal(quick(spoiled, missing, stages=stages), expected)
    if np.isnan(value):
        np.testing.assert_array_equal(quick(spoiled, stages=stages), expected)


def test_values_of_missing_pixels_do_not_matter_in_colour():
    clean, missing, single = colour_crop()
    for mask in (missing, single):
        where = mask if mask.ndim == 3 else mask[..., None]
        expected = quick(np.where(where, 0.0, clean), mask, channel_axis=-1)
        for value in (1e30, np.nan):
            found = quick(np.where(where, value, clean), mask, channel_axis=-1)
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(quick(np.where(single, np.nan, clean), channel_axis=-1), expected)


def test_without_a_mask_pixels_that_are_not_finite_are_missing():
    image = np.stack([crop()[0]] * 3, axis=-1).astype(np.float32)
    for channel, value in enumerate((np.nan, np.inf, -np.inf)):
        image[5 + channel, 7, channel] = value
    filled = inpaint(image, channel_axis=-1)
    assert np.isfinite(filled).all()
    known = np.isfinite(image)
    assert np.array_equal(filled[known], image[known])


HOLES = {"large": (slice(20, 75), slice(15, 80)), "half": (slice(None), slice(48, None))}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_larger_than_patches_is_filled_plausibly(hole, stages):
    clean = crop(96)[0].astype(np.float32)
    missing = np.zeros(clean.shape, bool)
    missing[HOLES[hole]] = True
    filled = quick(np.where(missing, np.nan, clean), stages=stages)
    assert np.isfinite(filled).all()
    assert filled.min() >= clean.min()
    assert filled.max() <= clean.max()
    np.testing.assert_array_equal(filled[~missing], clean[~missing])


@pytest.mark.parametrize("shape", [(64, 64), (500,), (1, 40), (40, 1), (9, 8, 7)], ids=str)
def test_one_known_pixel_fills_the_image(shape):
    image = np.full(shape, np.nan)
    image.flat[image.size // 3] = 7.3
    np.testing.assert_allclose(quick(image), 7.3, rtol=1e-6)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("value", [0.0, 7.3, -1e-5, 1e9])
def test_a_constant_image_is_filled_with_the_constant(value, stages):
    missing = crop()[1]
    filled = quick(np.where(missing, np.nan, value), stages=stages)
    np.testing.assert_allclose(filled, value, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "shape",
    [(2,), (5,), (200,), (1, 2), (2, 2), (1, 40), (40, 1), (3, 5), (30, 7), (2, 3, 4), (9, 8, 7)],
    ids=str,
)
def test_images_of_any_shape_keep_their_shape(rng, shape):
    image = 100 + rng.normal(0, 20, shape)
    missing = rng.random(shape) < 0.4
    missing.flat[0], missing.flat[-1] = False, True
    filled = quick(np.where(missing, np.nan, image))
    assert filled.shape == shape
    np.testing.assert_array_equal(filled[~missing], image[~missing])
    assert np.abs(filled - 100).max() < 200


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
def test_the_scale_of_an_image_does_not_matter(scale):
    clean, missing = crop()
    expected = quick(np.where(missing, np.nan, clean))
    found = quick(scale * np.where(missing, np.nan, clean)) / scale
    assert np.std(found - expected) < 0.02


# Masks


def test_a_mask_may_be_spatial_or_of_the_whole_image():
    clean, missing, _ = colour_crop()
    holes = np.where(missing[..., None], 0, clean)
    expected = quick(holes, missing, channel_axis=-1)
    whole = np.repeat(missing[..., None], 3, axis=-1)
    np.testing.assert_array_equal(quick(holes, whole, channel_axis=-1), expected)
    np.testing.assert_array_equal(expected[~missing], clean[~missing])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
def test_a_mask_may_contain_integers(dtype):
    clean, missing = crop()
    holes = np.where(missing, 0, clean)
    mask = missing.astype(dtype) * dtype(1 if dtype is bool else 100)
    np.testing.assert_array_equal(quick(holes, mask), quick(holes, missing))
    np.testing.assert_array_equal(quick(holes, mask.tolist()), quick(holes, missing))


def test_channels_that_miss_different_pixels_are_filled_one_by_one():
    clean, _, single = colour_crop()
    holes = np.where(single, 0, clean)
    filled = quick(holes, single, channel_axis=-1)
    for k in range(3):
        alone = quick(holes[..., k], single[..., k])
        np.testing.assert_array_equal(filled[..., k], alone)


def test_a_channel_with_nothing_missing_is_unchanged():
    clean, _, single = colour_crop()
    mask = single.copy()
    mask[..., 1] = False
    filled = quick(np.where(mask, 0, clean), mask, channel_axis=-1)
    np.testing.assert_array_equal(filled[..., 1], clean[..., 1])
    np.testing.assert_array_equal(filled[~mask], clean[~mask])


@pytest.mark.parametrize("channel_axis", [0, 1, -1, -3])
def test_the_position_of_the_channel_axis_does_not_matter(channel_axis):
    clean, missing, single = colour_crop()
    for mask in (missing, single):
        where = mask if mask.ndim == 3 else mask[..., None]
        holes = np.where(where, 0, clean)
        moved = mask if mask.ndim == 2 else np.moveaxis(mask, -1, channel_axis)
        filled = quick(np.moveaxis(holes, -1, channel_axis), moved, channel_axis=channel_axis)
        expected = quick(holes, mask, channel_axis=-1)
        np.testing.assert_array_equal(np.moveaxis(filled, channel_axis, -1), expected)


# Reproducibility


@pytest.mark.parametrize("stages", [1, 2])
def test_results_are_bit_identical_for_any_number_of_threads(stages):
    clean, missing = crop(72)
    holes = np.where(missing, np.nan, clean)
    first = quick(holes, stages=stages, n_jobs=1)
    for n_jobs in (2, 5, -1):
        np.testing.assert_array_equal(quick(holes, stages=stages, n_jobs=n_jobs), first)


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda a: np.repeat(a, 2, 1)[:, ::2]])
def test_the_memory_layout_of_an_image_does_not_matter(layout):
    clean, missing = crop()
    holes = np.where(missing, 0, clean)
    filled = quick(layout(holes), layout(missing))
    np.testing.assert_allclose(filled, quick(holes, missing), rtol=1e-9)


def test_the_random_state_determines_what_is_learned():
    clean, missing = crop(72)
    holes = np.where(missing, np.nan, clean)
    filled = quick(holes)
    np.testing.assert_array_equal(quick(holes, random_state=np.random.RandomState(0)), filled)
    assert np.any(quick(holes, random_state=1) != filled)


# Options, reports and interruptions


def dictionaries():
    """Dictionaries with orthonormal and overcomplete factors, and a sum of Kronecker products."""
    cosines = [reference.dct_factors((5, 4), n_atoms) for n_atoms in ((5, 4), (8, 7))]
    rng = np.random.default_rng(0)
    tilted = [0.3 * rng.standard_normal(factor.shape) for factor in cosines[1]]
    return {
        "complete": kl.KroneckerDictionary(cosines[0]),
        "overcomplete": kl.KroneckerDictionary(cosines[1]),
        "sum": kl.KroneckerSumDictionary([cosines[1], tilted]),
    }


@pytest.mark.parametrize("name", ["complete", "overcomplete", "sum"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_dictionary_can_be_given(name, stages):
    clean, missing = crop()
    d = dictionaries()[name]
    holes = np.where(missing, np.nan, clean)
    found = inpaint(holes, dictionary=d, stages=stages, full=True)
    assert found.dictionary == d
    assert found.history is None
    wanted = {"patch_size": (5, 4), "n_atoms": d.n_atoms, "n_terms": d.n_terms}
    assert wanted.items() <= found.settings.items()
    assert "learning" not in found.seconds
    assert psnr(found.image, clean) > 22
    given = d if name == "sum" else list(d.factors)
    again = inpaint(holes, dictionary=given, stages=stages, n_jobs=2)
    np.testing.assert_array_equal(again, found.image)


@pytest.mark.parametrize("shape", [(40,), (40, 30), (12, 10, 9)], ids=str)
def test_a_smooth_surface_follows_slopes_through_holes(shape):
    slope = sum(np.indices(shape)).astype(np.float32)
    known = np.ones(shape, bool)
    known[tuple(slice(5, 9) for _ in shape)] = False
    filled = pyramid.fill_smoothly(slope * known, known, steps=100)
    np.testing.assert_allclose(filled, slope, atol=0.3)
    np.testing.assert_array_equal(filled[known], slope[known])


def test_the_first_stage_prefers_the_estimate_that_fits_known_pixels():
    # A texture is coded; a slope is smooth.
    rows, columns = np.indices((64, 64))
    missing = np.random.default_rng(0).random((64, 64)) < 0.6
    texture = 100 * np.sin(1.9 * rows + 0.3 * columns)
    slope = (rows + columns).astype(float)
    for clean, least in ((texture, 20), (slope, 60)):
        filled = inpaint(np.where(missing, 0, clean), missing, stages=1)
        assert psnr(filled, clean) > least


def test_a_dictionary_with_a_mode_for_channels_fills_them_together():
    clean, missing = crop()
    colours = np.stack([clean, 0.8 * clean, 255 - clean], axis=-1)
    d = kl.KroneckerDictionary(reference.dct_factors((5, 4, 3), (8, 7, 3)))
    found = inpaint(colours, missing, channel_axis=-1, dictionary=d, stages=1, full=True)
    assert found.settings["patch_size"] == (5, 4, 3)
    np.testing.assert_array_equal(found.image[~missing], colours[~missing])
    assert psnr(found.image, colours) > 22
    moved = inpaint(np.moveaxis(colours, -1, 0), missing, channel_axis=0, dictionary=d, stages=1)
    np.testing.assert_array_equal(np.moveaxis(moved, 0, -1), found.image)


def test_a_sum_can_be_learned_from_the_image():
    clean, missing = crop()
    found = quick(np.where(missing, 0, clean), missing, n_terms=2, full=True)
    assert found.dictionary.n_terms == found.settings["n_terms"] == 2
    assert psnr(found.image, clean) > 24


def test_full_returns_what_was_done():
    clean, missing = crop()
    holes = np.where(missing, 0, clean)
    found = quick(holes, missing, patch_size=(6, 5), n_atoms=7, max_iter=np.int64(2), full=True)
    assert isinstance(found, kl.images.Inpainted)
    again = quick(holes, missing, patch_size=(6, 5), n_atoms=7)
    np.testing.assert_array_equal(found.image, again)
    assert found.dictionary.patch_shape == (6, 5)
    assert found.dictionary.n_atoms == (7, 7)
    assert len(found.history["rmse"]) == 3
    settings = json.loads(json.dumps(found.settings))
    assert settings["max_iter"] == 2
    assert settings["patch_size"] == [6, 5]
    assert settings["stages"] == 2
    assert list(found.seconds) == ["coding", "learning", "similar patches"]
    assert all(seconds >= 0 for seconds in found.seconds.values())


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["coding", "learning", "similar patches"]),
        ({"stages": 1}, ["coding"]),
        ({"dictionary": [np.eye(4), np.eye(4), np.eye(1)]}, ["coding", "similar patches"]),
        ({"channel_axis": -1}, ["coding", "learning", "similar patches"]),
    ],
    ids=["default", "one stage", "dictionary", "colour"],
)
def test_progress_reports_every_stage(options, names, n_jobs):
    clean, missing, _ = colour_crop()
    reports = []
    quick(
        np.where(missing[..., None], np.nan, clean)[..., :2],
        progress=lambda stage, share: reports.append((stage, share)),
        n_jobs=n_jobs,
        **options,
    )
    assert stages_reported(reports) == names


@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.parametrize("stage", ["coding", "learning", "similar patches"])
def test_an_exception_raised_by_progress_stops_inpainting(stage, n_jobs):
    clean, missing = crop()

    def progress(name, share):
        if name == stage:
            raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError, match=stage):
        quick(np.where(missing, 0, clean), missing, progress=progress, n_jobs=n_jobs)


@pytest.mark.parametrize("stage", ["coding", "similar patches"])
def test_inpainting_can_be_interrupted(rng, stage):
    image = rng.normal(0, 20, (1500, 1500)).cumsum(axis=0).astype(np.float32)
    missing = rng.random(image.shape) < 0.5
    options = {"dictionary": [np.eye(4)] * 2, "n_jobs": 2}
    assert_interrupted(
        stage, lambda progress: inpaint(image, missing, progress=progress, **options)
    )


# Invalid input


def test_an_image_without_known_pixels_is_refused():
    clean, _, single = colour_crop()
    with pytest.raises(ValueError, match="missing"):
        inpaint(clean[..., 0], np.ones(clean.shape[:2], bool))
    with pytest.raises(ValueError, match="missing"):
        inpaint(np.full((9, 9), np.nan))
    mask = single.copy()
    mask[..., 2] = True
    with pytest.raises(ValueError, match="missing"):
        inpaint(clean, mask, channel_axis=-1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_known_pixels_that_are_not_finite_are_refused(value):
    clean, missing = crop()
    image = clean.copy()
    row, column = np.argwhere(~missing)[7]
    image[row, column] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        inpaint(image, missing)


def test_filled_pixels_stay_within_the_range_of_known_ones():
    image = (np.indices((40, 40)).sum(axis=0) % 7 < 3).astype(np.float32)
    filled = inpaint(image, np.random.default_rng(0).random(image.shape) < 0.6)
    assert filled.min() == 0
    assert filled.max() == 1


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros((48, 47), bool), r"mask.*\(48, 47\).*\(48, 48\)"),
        (np.zeros(48, bool), r"mask.*\(48,\)"),
        (np.zeros((48, 48, 1), bool), r"mask.*\(48, 48, 1\)"),
        (np.zeros((48, 48)), "mask.*float64.*bool"),
        (np.zeros((48, 48), object), "mask.*object"),
        ("holes", "mask"),
        (True, "mask"),
    ],
    ids=["size", "axes", "more axes", "floats", "objects", "string", "one value"],
)
def test_a_mask_that_does_not_fit_is_refused(mask, words):
    with pytest.raises(ValueError, match=words):
        inpaint(crop()[0], mask)


@pytest.mark.parametrize("value", [7e100, 7e-100, -1e300, 0.1])
def test_a_constant_image_of_any_magnitude_is_filled_with_the_constant(value):
    image, missing = np.full((40, 40), value), np.eye(40, dtype=bool)
    image[missing] = 0
    np.testing.assert_array_equal(inpaint(image, missing), np.full((40, 40), value))


def test_masked_arrays_are_refused_with_advice():
    with pytest.raises(ValueError, match="mask"):
        inpaint(np.ma.masked_array(*crop()))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"stages": 0}, ValueError, "stages=0"),
        ({"stages": 3}, ValueError, "stages=3"),
        ({"patch_size": 0}, ValueError, "patch_size=0"),
        ({"patch_size": 49}, ValueError, r"\(49, 49\).*\(48, 48\)"),
        ({"n_atoms": 0}, ValueError, "n_atoms=0"),
        ({"channel_axis": 2}, ValueError, "channel_axis=2"),
        ({"max_iter": 0}, ValueError, "max_iter=0"),
        ({"n_jobs": 0}, ValueError, "n_jobs=0"),
        ({"progress": 3}, TypeError, "progress=3"),
        ({"random_state": "dice"}, ValueError, "dice"),
        ({"dictionary": 3}, ValueError, "list"),
        ({"dictionary": [np.eye(64)] * 2}, ValueError, r"\(64, 64\).*\(48, 48\)"),
        ({"dictionary": [np.eye(8)]}, ValueError, r"\(8,\).*channel_axis"),
        ({"dictionary": [np.eye(8)] * 2, "patch_size": 8}, ValueError, "patch_size"),
        ({"dictionary": [np.eye(8)] * 2, "n_atoms": 8}, ValueError, "n_atoms"),
    ],
)
def test_invalid_options_are_refused(options, error, words):
    clean, missing = crop()
    with pytest.raises(error, match=words):
        quick(np.where(missing, 0, clean), missing, **options)
