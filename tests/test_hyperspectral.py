"""Hyperspectral cubes: the estimation of noise, and denoising."""

import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, gaussian_filter
from skimage.restoration import denoise_tv_chambolle, denoise_wavelet

from kronlearn.experiments.data import read_cube
from kronlearn.hyperspectral import blocks, compare, denoise, estimate_noise, slabs
from kronlearn.hyperspectral.statistics import gather
from kronlearn.io.cubes import open_cube

NODATA = -9999.0


def scene(rows=72, columns=60, bands=40, materials=5, seed=0):
    """A cube without noise: smooth mixtures of a few spectra, and a field with sharp edges."""
    rng = np.random.default_rng(seed)
    shares = rng.standard_normal((rows, columns, materials))
    shares = gaussian_filter(shares, (3, 3, 0)) * 6
    shares[rows // 3 : rows // 2, columns // 4 : columns // 2] += 1.5
    spectra = gaussian_filter(rng.standard_normal((materials, bands)), (0, bands / 12))
    return 1000 + 100 * shares @ (spectra / spectra.std())


def noisy_scene(sigma, dtype=np.float32, **options):
    clean = scene(**options)
    noise = np.random.default_rng(1).standard_normal(clean.shape)
    return clean, (clean + sigma * noise).astype(dtype)


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.mark.parametrize("unequal", [False, True])
def test_planted_noise_is_found_in_every_band(unequal):
    sigma = np.linspace(2, 60, 40) if unequal else np.full(40, 20.0)
    _, noisy = noisy_scene(sigma, rows=96, columns=96)
    found = estimate_noise(noisy)
    assert abs(np.median(found / sigma) - 1) < 0.02
    assert np.abs(found / sigma - 1).max() < 0.1


def test_noise_added_to_a_real_cube_is_found():
    cube = read_cube()
    noise = np.random.default_rng(0).standard_normal(cube.shape, np.float32)
    found = estimate_noise(cube + 200 * noise, band_axis=2)
    assert abs(np.median(found) / 200 - 1) < 0.02
    # The noise of the sensor is there, too, so less than the added noise is an error.
    assert found.min() > 0.94 * 200


def test_outliers_do_not_raise_the_noise():
    _, noisy = noisy_scene(10.0, rows=96, columns=96)
    outliers = np.random.default_rng(5).random(noisy.shape[:2]) < 0.005
    noisy[outliers] += 5000
    assert np.abs(estimate_noise(noisy) / 10 - 1).max() < 0.12


@pytest.mark.parametrize("shape", [(64, 64, 3), (9, 10, 30), (80, 1, 20), (1, 80, 20)])
def test_with_few_bands_or_pixels_each_band_is_estimated_alone(shape):
    noisy = np.random.default_rng(0).normal(50, 4, shape)
    found = estimate_noise(open_cube(noisy, band_axis=2))
    assert found.shape == shape[2:]
    assert 0.75 < np.median(found) / 4 < 1.25


def test_an_array_that_makes_a_new_base_at_every_access_is_like_any_other():
    class Loaded(np.ndarray):
        """The class of array that Spectral Python loads images as."""

        @property
        def base(self):
            return self.view(Loaded)

    cube = scene(30, 30, 12)
    cube += np.random.default_rng(1).normal(0, 0.05, cube.shape)
    np.testing.assert_array_equal(estimate_noise(cube.view(Loaded)), estimate_noise(cube))


def test_the_noise_of_a_constant_band_is_zero_and_that_of_an_empty_band_nan():
    _, noisy = noisy_scene(10.0)
    noisy[..., 3] = 7
    noisy[..., 8] = NODATA
    found = estimate_noise(open_cube(noisy, band_axis=2, nodata=NODATA))
    assert found[3] == 0
    assert math.isnan(found[8])
    assert np.isfinite(np.delete(found, 8)).all()


def test_the_covariance_of_many_blocks_is_that_of_all_pixels(rng):
    # A drift, so that blocks have different means.
    values = rng.standard_normal((400, 60, 5)) + np.linspace(0, 9, 400)[:, None, None]
    found = gather(open_cube(values, band_axis=2), np.ones(5, bool), with_differences=False)
    spectra = values.reshape(-1, 5)
    np.testing.assert_allclose(found.mean, spectra.mean(axis=0))
    np.testing.assert_allclose(found.scatter, np.cov(spectra.T, bias=True) * found.n_pixels)


def test_denoising_removes_most_of_the_noise_and_estimates_its_level():
    sigma = np.linspace(5, 40, 40)
    clean, noisy = noisy_scene(sigma)
    result = denoise(noisy, full=True)
    assert result.cube.dtype == noisy.dtype
    assert rms(result.cube - clean) < 0.25 * rms(noisy - clean)
    assert np.abs(result.sigma / sigma - 1).max() < 0.15
    assert 5 <= result.n_planes <= 8
    given = denoise(noisy, sigma)
    assert rms(given - clean) < 0.25 * rms(noisy - clean)


def test_a_real_cube_is_denoised_better_than_band_by_band():
    clean = read_cube()[40:120, 40:120]
    sigma = 100.0
    noisy = clean + sigma * np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    result = denoise(noisy, quality="fast")
    found = compare(clean, result, band_axis=2)
    bands = np.moveaxis(noisy, 2, 0)
    others = [
        np.stack([denoise_wavelet(band, sigma=sigma) for band in bands], 2),
        np.stack([denoise_tv_chambolle(band / sigma, 1.0) * sigma for band in bands], 2),
    ]
    for other in others:
        their = compare(clean, other, band_axis=2)
        assert found.mean_psnr > their.mean_psnr + 4
        assert found.mean_angle < their.mean_angle
        assert found.mean_ssim > their.mean_ssim + 0.1


def with_stripes_and_dead_pixels(noisy, height):
    """In four of ten bands, stripes in a tenth of the columns; 5 % of all values are zero."""
    rng = np.random.default_rng(2)
    _, columns, bands = noisy.shape
    striped = (rng.random((columns, bands)) < 0.1) & (rng.random(bands) < 0.4)
    spoilt = noisy + np.where(striped, rng.uniform(-1, 1, striped.shape) * height, 0)
    spoilt[rng.random(noisy.shape) < 0.05] = 0
    return spoilt.astype(noisy.dtype)


def test_stripes_and_dead_pixels_of_a_real_cube_are_repaired():
    clean = read_cube()[40:120, 40:120]
    rng = np.random.default_rng(0)
    sigma = rng.uniform(20, 300, clean.shape[2])
    noisy = (clean + sigma * rng.standard_normal(clean.shape)).astype(np.float32)
    spoilt = with_stripes_and_dead_pixels(noisy, clean.std(axis=(0, 1)))
    best, plain, found = (
        compare(clean, denoise(cube, quality="fast", artefacts=artefacts), band_axis=2)
        for cube, artefacts in ((noisy, False), (spoilt, False), (spoilt, True))
    )
    assert found.mean_psnr > plain.mean_psnr + 10
    assert found.mean_psnr > best.mean_psnr - 1
    assert found.mean_angle < 1.1 * best.mean_angle


@cache
def best_error():
    """The error of the denoised scene without artefacts."""
    clean, noisy = noisy_scene(20.0)
    return rms(denoise(noisy) - clean)


def spoil(cube, kind):
    rng = np.random.default_rng(3)
    rows, columns, bands = cube.shape
    if kind == "columns":
        cube += np.where(rng.random((columns, bands)) < 0.05, 60, 0)
    elif kind == "rows":
        cube += np.where(rng.random((rows, 1, bands)) < 0.05, -60, 0)
    elif kind == "dead lines":
        cube[:, 10, 5] = cube[40, :, 12] = 0
        cube[:, 33, 20] = 2000
    elif kind == "dead pixels":
        cube[rng.random((rows, columns)) < 0.02] = 0
        cube[:, 40] = 3000
    else:
        wrong = rng.random(cube.shape) < 0.02
        cube[wrong] = rng.uniform(0, 4000, np.count_nonzero(wrong))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("columns", "f4"), ("rows", "u2"), ("dead lines", "f4"), ("dead pixels", "u2")]
    + [("impulses", dtype) for dtype in ("f4", "u2")],
)
def test_artefacts_of_every_kind_are_repaired(kind, dtype):
    clean, noisy = noisy_scene(20.0)
    best = best_error()
    spoil(noisy, kind)
    spoilt = noisy.astype(dtype)
    assert rms(denoise(spoilt) - clean) > 2 * best
    result = denoise(spoilt, artefacts=True, full=True)
    assert result.cube.dtype == dtype
    assert rms(result.cube - clean) < 1.6 * best
    assert (result.n_filled > 0) == (kind not in ("columns", "rows"))


def test_the_search_for_artefacts_does_no_harm_where_there_are_none():
    clean, noisy = noisy_scene(20.0)
    found = denoise(noisy, artefacts=True, full=True)
    assert found.n_filled <= 2
    assert rms(found.cube - clean) < 1.01 * rms(denoise(noisy) - clean)
    # Here negative values were clipped: zeros are data.
    dark = np.clip(np.rint(noisy - 1000), 0, 255).astype(np.uint8)
    assert (dark == 0).mean() > 0.3
    found = denoise(dark, 20.0, artefacts=True, full=True)
    assert found.n_filled < 0.01 * dark.size


GAPS = ["cloud", "corners", "wedge", "most pixels", "band", "rows of band"]


@pytest.mark.parametrize("gap", GAPS)
def test_the_search_for_artefacts_leaves_values_next_to_missing_ones_alone(gap):
    clean, noisy = noisy_scene(20.0)
    down, across = np.indices(noisy.shape[:2])
    missing = np.zeros(noisy.shape, bool)
    if gap == "cloud":
        missing[np.hypot(down - 30, across - 25) < 15] = True
    elif gap == "corners":
        missing[np.abs(down - 36) + np.abs(across - 30) > 36] = True
    elif gap == "wedge":
        missing[across < 0.8 * down] = True
    elif gap == "most pixels":
        missing[np.hypot(down - 30, across - 25) > 20] = True
    elif gap == "band":
        missing[..., 7] = np.random.default_rng(1).random(down.shape) < 0.5
    else:
        missing[:30, :, 7] = True
    noisy[missing] = NODATA
    without = denoise(noisy, 20.0, nodata=NODATA, full=True)
    found = denoise(noisy, 20.0, nodata=NODATA, artefacts=True, full=True)
    assert found.n_skipped == without.n_skipped
    assert found.n_filled <= without.n_filled + 4
    assert rms((found.cube - clean)[~missing]) < 1.1 * rms((without.cube - clean)[~missing])


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("artefacts", [False, True])
def test_results_in_double_precision_have_the_same_bits_for_any_memory_order(gaps, artefacts):
    _, noisy = noisy_scene(20.0, np.float64)
    if gaps:
        noisy[50:54, 3:9] = noisy[3, :, 7] = NODATA
    options = {"nodata": NODATA, "artefacts": artefacts, "quality": "fast", "full": True}
    expected = denoise(noisy, band_axis=2, **options)
    for order in ((2, 0, 1), (0, 2, 1), (2, 1, 0)):
        stored = np.ascontiguousarray(noisy.transpose(order)).transpose(np.argsort(order))
        found = denoise(stored, band_axis=2, **options)
        np.testing.assert_array_equal(found.sigma, expected.sigma)
        np.testing.assert_array_equal(found.cube, expected.cube)


def test_repairs_have_the_same_bits_for_any_number_of_threads_and_rows_read(monkeypatch):
    _, noisy = noisy_scene(20.0)
    spoilt = with_stripes_and_dead_pixels(noisy, 80)
    spoilt[50:54, 3:9] = NODATA
    options = {"nodata": NODATA, "artefacts": True}
    expected = denoise(spoilt, band_axis=2, **options)
    assert (expected[50:54, 3:9] == NODATA).all()
    for n_jobs in (2, 5):
        found = denoise(spoilt, band_axis=2, n_jobs=n_jobs, **options)
        np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(blocks, "_READ_BYTES", 1)
    moved = np.ascontiguousarray(np.moveaxis(spoilt, 2, 0))
    found = denoise(moved, band_axis=0, n_jobs=2, **options)
    np.testing.assert_array_equal(np.moveaxis(found, 0, 2), expected)


def matched_filter(cube, target):
    """The score of every pixel, in standard deviations of the scene's."""
    spectra = cube.reshape(-1, cube.shape[2]).astype(np.float64)
    spectra -= spectra.mean(axis=0)
    covariance = spectra.T @ spectra / len(spectra)
    covariance += 1e-3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    scores = spectra @ np.linalg.solve(covariance, target)
    return (scores / scores.std()).reshape(cube.shape[:2])


@pytest.mark.parametrize(("sigma", "artefacts"), [(100.0, False), (400.0, True)])
def test_a_rare_spectrum_in_one_pixel_is_kept(sigma, artefacts):
    clean = read_cube()[40:120, 40:120]
    rng = np.random.default_rng(0)
    target = rng.standard_normal(clean.shape[2]).cumsum()
    target = 2 * sigma * (target - target.mean()) / target.std()
    noisy = clean + sigma * rng.standard_normal(clean.shape, np.float32)
    noisy[30, 50] += target
    found = denoise(noisy, band_axis=2, artefacts=artefacts)
    before, after = (matched_filter(cube, target) for cube in (noisy, found))
    assert np.unravel_index(after.argmax(), after.shape) == (30, 50)
    assert after[30, 50] >= before[30, 50]
    assert rms((found - clean)[30, 50] - target) < sigma


def test_results_have_the_same_bits_for_any_number_of_threads_order_of_axes_and_rows_read(
    monkeypatch,
):
    _, noisy = noisy_scene(20.0)
    expected = denoise(noisy, band_axis=2)
    for n_jobs in (2, 5):
        np.testing.assert_array_equal(denoise(noisy, band_axis=2, n_jobs=n_jobs), expected)
    for axis in (0, 1):
        moved = np.ascontiguousarray(np.moveaxis(noisy, 2, axis))
        found = denoise(moved, band_axis=axis)
        np.testing.assert_array_equal(np.moveaxis(found, axis, 2), expected)
    for size in (1, 200_000):
        monkeypatch.setattr(blocks, "_READ_BYTES", size)
        np.testing.assert_array_equal(denoise(noisy, band_axis=2, n_jobs=3), expected)
        np.testing.assert_array_equal(estimate_noise(noisy, n_jobs=2), estimate_noise(noisy))


@pytest.mark.parametrize("gaps", [False, True])
def test_slabs_leave_no_seams(gaps, monkeypatch):
    _, noisy = noisy_scene(20.0, rows=200)
    if gaps:
        noisy[40:52, 10:30] = NODATA
    cube = open_cube(noisy, band_axis=2, nodata=NODATA if gaps else None)
    expected = denoise(cube, 20.0)
    monkeypatch.setattr(slabs, "_SLAB_BYTES", 1)
    # Rows beyond the halo of a slab hardly matter.
    np.testing.assert_allclose(denoise(cube, 20.0), expected, rtol=0, atol=0.02)


def test_pixels_without_data_are_unchanged_and_do_not_affect_their_neighbours():
    clean, noisy = noisy_scene(20.0, rows=96, columns=96)
    missing = np.zeros(noisy.shape[:2], bool)
    missing[:, :9] = missing[40:60, 50:70] = missing[80, 30] = True
    holed = noisy.copy()
    holed[missing] = NODATA
    # A pixel with data in fewer than half of the bands counts as one without.
    holed[10, 80, 5:26], missing[10, 80] = NODATA, True
    result = denoise(open_cube(holed, band_axis=2, nodata=NODATA), 20.0, full=True)
    assert (result.n_skipped, result.n_filled) == (missing.sum(), 0)
    found = result.cube
    np.testing.assert_array_equal(found[missing], holed[missing])
    whole = denoise(noisy, 20.0)
    around = binary_dilation(missing, iterations=3) & ~missing
    assert rms((found - clean)[around]) < 1.5 * rms((whole - clean)[around])
    far = ~binary_dilation(missing, iterations=20)
    np.testing.assert_allclose(found[far], whole[far], atol=3)


@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_single_missing_values_are_filled_in(dtype, rng, monkeypatch):
    clean, noisy = noisy_scene(20.0)
    noisy = noisy.astype(dtype)
    missing = rng.random(noisy.shape) < 0.03
    missing[7, 9, :3] = missing[8, 9, -2:] = True
    missing[20:24] = False
    holed = np.where(missing, NODATA, noisy).astype(dtype)
    cube = open_cube(holed, band_axis=2, nodata=NODATA)
    result = denoise(cube, full=True)
    assert (result.n_skipped, result.n_filled) == (0, missing.sum())
    assert missing.any(axis=2).mean() > 0.6
    whole = denoise(noisy)
    assert rms(result.cube - clean) < 1.1 * rms(whole - clean)
    assert rms((result.cube - clean)[missing]) < 1.5 * rms((whole - clean)[missing])
    np.testing.assert_allclose(result.sigma, estimate_noise(noisy), rtol=0.1)
    np.testing.assert_array_equal(cube.read(slice(0, 9)), holed[:9])
    monkeypatch.setattr(blocks, "_READ_BYTES", 1)
    np.testing.assert_array_equal(denoise(cube, n_jobs=2), result.cube)


@pytest.mark.parametrize("nodata", [0, 255])
def test_data_never_become_the_value_that_marks_missing_data(nodata):
    dark = np.clip(noisy_scene(3.0)[1] - 1000, -20, 20)
    values = np.clip(np.abs(dark - nodata), 1, 254).astype(np.uint8)
    values[:5, :5] = nodata
    found = denoise(open_cube(values, band_axis=2, nodata=nodata), 30.0)
    np.testing.assert_array_equal(found == nodata, values == nodata)


def test_nan_that_marks_missing_data_is_unchanged():
    _, noisy = noisy_scene(20.0)
    noisy[5:9, 5:9] = np.nan
    found = denoise(open_cube(noisy, band_axis=2, nodata=math.nan))
    assert np.isnan(found[5:9, 5:9]).all()
    assert np.isnan(found).sum() == 16 * noisy.shape[2]


def test_undeclared_nan_is_refused_with_its_position():
    _, noisy = noisy_scene(20.0)
    noisy[3, 7, 12] = np.nan
    for work in (denoise, estimate_noise):
        with pytest.raises(ValueError, match="NaN at row 3, column 7, band 12"):
            work(noisy, band_axis=2)


def test_bands_without_noise_or_with_little_data_are_unchanged():
    _, noisy = noisy_scene(20.0)
    noisy[..., 3] = 7
    noisy[..., 8] = NODATA
    noisy[:60, :, 20] = NODATA
    sigma = np.full(40, 20.0)
    sigma[30] = 0
    found = denoise(open_cube(noisy, band_axis=2, nodata=NODATA), sigma)
    kept = [3, 8, 20, 30]
    np.testing.assert_array_equal(found[..., [8, 20, 30]], noisy[..., [8, 20, 30]])
    np.testing.assert_allclose(found[..., 3], 7, atol=1e-4)
    assert (np.delete(found, kept, 2) != np.delete(noisy, kept, 2)).mean() > 0.99


def test_integers_are_rounded_and_kept_in_range():
    _, noisy = noisy_scene(100.0)
    noisy = np.clip(noisy - 900, 0, 255).astype(np.uint8)
    found = denoise(noisy, 60.0)
    assert found.dtype == np.uint8
    close = denoise(noisy.astype(np.float32), 60.0)
    np.testing.assert_array_equal(found, np.clip(np.rint(close), 0, 255))
    np.testing.assert_array_equal(denoise(noisy, 60.0, dtype="float32"), close)


def test_floats_from_integers_keep_the_value_that_marks_missing_data(tmp_path):
    noisy = noisy_scene(20.0)[1].astype(np.int16)
    noisy[:5, :5] = NODATA
    cube = open_cube(noisy, band_axis=2, nodata=int(NODATA))
    found = denoise(cube, 20.0, dtype=np.float64, quality="fast")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found == NODATA, noisy == NODATA)
    denoise(cube, 20.0, dtype=np.float64, quality="fast", out=tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), found)
    with pytest.raises(ValueError, match="dtype='int8' is not a floating-point type"):
        denoise(cube, 20.0, dtype="int8")


def test_bad_bands_are_unchanged_unless_they_are_asked_for(tmp_path):
    _, noisy = noisy_scene(20.0)
    with open_cube(noisy, band_axis=2).create(tmp_path / "a.hdr") as writer:
        writer.write(slice(None), noisy)
    with open(tmp_path / "a.hdr", "a", encoding="utf-8") as header:
        header.write(f"bbl = {{{', '.join('0' if i in (3, 4, 9) else '1' for i in range(40))}}}")
    cube, bad = open_cube(tmp_path / "a.hdr"), [3, 4, 9]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(estimate_noise(cube))), bad)
    found = denoise(cube, quality="fast")
    np.testing.assert_array_equal(found[..., bad], noisy[..., bad])
    rest = np.delete(noisy, bad, 2)
    np.testing.assert_array_equal(np.delete(found, bad, 2), denoise(rest, quality="fast"))
    cube.bad_bands = np.ones(40, bool)
    with pytest.raises(ValueError, match="marks all of its bands as bad"):
        denoise(cube)
    cube.bad_bands = None
    assert np.array_equal(denoise(cube, quality="fast"), denoise(noisy, quality="fast"))


def test_large_offsets_lose_nothing_in_double_precision():
    _, noisy = noisy_scene(20.0, np.float64)
    found = denoise(noisy + 1e9, 20.0) - 1e9
    np.testing.assert_allclose(found, denoise(noisy, 20.0), atol=0.05)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 1, 5), (1, 50, 20), (50, 1, 20), (7, 7, 3), (3, 3, 60), (20, 20, 1)]
)
def test_cubes_of_any_shape_are_denoised(shape, rng):
    for values in (rng.standard_normal(shape), np.zeros(shape), np.full(shape, 3e7)):
        found = denoise(open_cube(values, band_axis=2))
        assert found.shape == shape
        assert np.isfinite(found).all()
        if values.min() < values.max():
            assert np.isfinite(denoise(values, band_axis=2, artefacts=True)).all()
        if values.min() == values.max():
            np.testing.assert_array_equal(found, values)


def test_read_only_and_foreign_byte_orders_give_the_same():
    _, noisy = noisy_scene(20.0)
    expected = denoise(noisy, 20.0)
    noisy.flags.writeable = False
    np.testing.assert_array_equal(denoise(noisy, 20.0), expected)
    np.testing.assert_array_equal(denoise(noisy.astype(">f4"), 20.0), expected)
    np.testing.assert_array_equal(denoise(noisy[::-1], 20.0).shape, expected.shape)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sigma": "much"}, "is not a number"),
        ({"sigma": -1.0}, "not a standard deviation"),
        ({"sigma": math.inf}, "not a standard deviation"),
        ({"sigma": math.nan}, "not a standard deviation"),
        ({"sigma": [1.0, 2.0]}, "needs a number or 40, one per band"),
        ({"quality": "best"}, "quality='best' does not exist; choose one of default, fast"),
    ],
)
def test_impossible_parameters_are_refused(options, problem):
    with pytest.raises((ValueError, TypeError), match=problem):
        denoise(scene(), band_axis=2, **options)


def test_a_fast_result_is_nearly_as_good():
    clean, noisy = noisy_scene(20.0)
    errors = [np.std(denoise(noisy, 20.0, band_axis=2, quality=q) - clean) for q in slabs.EFFORTS]
    assert errors[0] < errors[1] < 1.2 * errors[0] < 0.4 * 20


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_values_too_large_to_square_are_refused_without_warnings(n_jobs, rng):
    cube = 1e200 * rng.standard_normal((300, 40, 10))
    with pytest.raises(ValueError, match="holds values too large to be squared"):
        estimate_noise(cube, band_axis=2, n_jobs=n_jobs)


def test_a_cube_of_no_data_is_refused():
    with pytest.raises(ValueError, match="holds no data"):
        denoise(open_cube(np.zeros((9, 9, 9)), band_axis=2, nodata=0))


def test_the_progress_of_both_stages_increases_to_one():
    told = []
    denoise(scene(), progress=lambda stage, share: told.append((stage, share)))
    assert [stage for stage, share in told if share == 1][-1] == "denoising"
    assert {stage for stage, _ in told} == {"noise", "denoising"}
    shares = [share for stage, share in told if stage == "denoising"]
    assert shares == sorted(shares)


@pytest.mark.parametrize("name", ["cube.npy", "cube.zarr", "cube.hdr", "cube.tif", "cube.nc"])
def test_a_file_is_denoised_to_a_file_with_the_values_of_the_array(name, tmp_path):
    _, noisy = noisy_scene(20.0, np.uint16)
    with open_cube(noisy, band_axis=2).create(tmp_path / name) as writer:
        writer.write(slice(0, len(noisy)), noisy)
    source = open_cube(tmp_path / name)
    out = tmp_path / f"clean-{name}"
    assert denoise(tmp_path / name, out=out) == out
    result = open_cube(out)
    assert result.dtype == np.uint16
    assert result.band_axis == source.band_axis
    found = result.read(slice(0, len(noisy)))
    np.testing.assert_array_equal(found, denoise(noisy, band_axis=2))


def test_coordinates_of_xarray_are_kept():
    xarray = pytest.importorskip("xarray")
    _, noisy = noisy_scene(20.0)
    waves = np.linspace(400, 2500, 40)
    array = xarray.DataArray(
        np.moveaxis(noisy, 2, 0), dims=("band", "y", "x"), coords={"band": waves}, attrs={"a": 1}
    )
    found = denoise(array)
    assert found.dims == array.dims
    assert found.attrs == {"a": 1}
    np.testing.assert_array_equal(found["band"], waves)
    np.testing.assert_array_equal(found.values, np.moveaxis(denoise(noisy, band_axis=2), 2, 0))


def test_an_error_during_denoising_leaves_the_old_file(tmp_path):
    _, noisy = noisy_scene(20.0)
    np.save(tmp_path / "cube.npy", noisy)
    old = np.ones(3)
    np.save(tmp_path / "out.npy", old)

    def stop(stage, share):
        if stage == "denoising" and share > 0:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        denoise(tmp_path / "cube.npy", out=tmp_path / "out.npy", progress=stop, band_axis=2)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cube.npy", "out.npy"]


@pytest.mark.parametrize("nodata", [2**63 - 1, 2**62 + 1])
def test_integers_that_floats_cannot_hold_are_kept(rng, nodata):
    cube = rng.integers(0, 4000, (24, 24, 9))
    cube[3:5, 7] = nodata
    result = denoise(cube, nodata=nodata, band_axis=2)
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result == nodata, cube == nodata)
    large = cube + 2**60
    np.testing.assert_array_equal(denoise(large, sigma=0, band_axis=2), large)


@pytest.mark.parametrize("n_bands", [3, 9])
def test_noise_is_estimated_although_the_sampled_blocks_hold_no_data(rng, n_bands):
    cube = np.full((68, 4096, n_bands), -1, np.int16)
    cube[2:4] = rng.integers(900, 1100, (2, 4096, n_bands))
    sigma = estimate_noise(cube, nodata=-1, band_axis=2)
    assert np.isfinite(sigma).all()


def test_no_artefacts_are_found_if_the_sampled_tiles_hold_no_data(rng):
    cube = np.full((200, 40, 9), -1, np.int16)
    cube[18:34] = rng.integers(900, 1100, (16, 40, 9))
    found = denoise(cube, nodata=-1, band_axis=2, artefacts=True, full=True)
    np.testing.assert_array_equal(found.cube == -1, cube == -1)
    assert found.n_filled == 0


DENOISE_A_FILE = """
import sys
from kronlearn.experiments.timing import peak_above_start
from kronlearn.hyperspectral import denoise

small, large, out = sys.argv[1:]
denoise(small, out=out, band_axis=2)
print(peak_above_start(lambda: denoise(large, out=out, band_axis=2)))
"""


@pytest.mark.slow
def test_a_large_file_is_denoised_in_little_memory(tmp_path):
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    block = noisy_scene(20.0, np.uint16, rows=120, columns=300, bands=250)[1]
    np.save(tmp_path / "small.npy", block)
    large = np.lib.format.open_memmap(
        tmp_path / "large.npy", "w+", np.uint16, (2400, *block.shape[1:])
    )
    for start in range(0, len(large), len(block)):
        large[start : start + len(block)] = block
    large.flush()
    paths = [str(tmp_path / name) for name in ("small.npy", "large.npy", "out.npy")]
    done = subprocess.run(
        [sys.executable, "-c", DENOISE_A_FILE, *paths], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert large.nbytes > 350e6
    assert int(done.stdout) < 250e6
