"""Measures of how close a hyperspectral cube is to a reference."""

import math

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from kronlearn import hyperspectral
from kronlearn.hyperspectral import compare
from kronlearn.io.cubes import open_cube

NODATA = -9999.0


def test_angles_satisfy_their_definition(rng):
    a, b = rng.random((6, 7, 9)), rng.random((6, 7, 9))
    cosines = (a * b).sum(2) / np.sqrt((a * a).sum(2) * (b * b).sum(2))
    expected = np.degrees(np.arccos(cosines))
    options = {"band_axis": 2}
    np.testing.assert_allclose(hyperspectral.spectral_angle_map(a, b, **options), expected)
    assert hyperspectral.spectral_angle(a, b, **options) == pytest.approx(expected.mean())
    # A scale does not matter, and equal spectra have no angle at all.
    assert hyperspectral.spectral_angle(a, 3 * a, **options) < 1e-5


def test_psnr_and_ssim_equal_those_of_scikit_image(rng):
    a = rng.integers(0, 4000, (20, 30, 4)).astype(np.uint16)
    b = (a + rng.normal(0, 50, a.shape)).astype(np.uint16)
    psnr = hyperspectral.psnr_per_band(a, b, band_axis=2)
    ssim = hyperspectral.ssim_per_band(a, b, band_axis=2)
    for k in range(4):
        wanted, found = a[..., k].astype(float), b[..., k].astype(float)
        span = np.ptp(wanted)
        assert psnr[k] == pytest.approx(peak_signal_noise_ratio(wanted, found, data_range=span))
        assert ssim[k] == pytest.approx(structural_similarity(wanted, found, data_range=span))
    given = hyperspectral.psnr_per_band(a, b, data_range=[4000, 1, 4000, 4000], band_axis=2)
    assert given[0] - psnr[0] == pytest.approx(
        20 * np.log10(4000 / np.ptp(a[..., 0].astype(float)))
    )
    assert hyperspectral.psnr_per_band(a, a, band_axis=2).tolist() == [math.inf] * 4


def test_pixels_without_data_count_in_no_measure(rng):
    a = rng.random((20, 30, 4))
    b = a + rng.normal(0, 0.1, a.shape)
    plain = compare(a[:, 8:], b[:, 8:], band_axis=2)
    a[:, :8], b[:, :4] = NODATA, 0
    options = {"band_axis": 2, "nodata": NODATA}
    found = compare(open_cube(a, **options), open_cube(b, **options))
    np.testing.assert_allclose(found.psnr, plain.psnr)
    np.testing.assert_allclose(found.angles[:, 8:], plain.angles)
    assert np.isnan(found.angles[:, :8]).all()
    assert found.mean_angle == pytest.approx(plain.mean_angle)
    np.testing.assert_allclose(found.ssim, plain.ssim, atol=0.05)


def test_bad_bands_count_in_no_measure(rng):
    a = rng.random((20, 30, 4))
    b = a + rng.normal(0, 0.1, a.shape)
    plain = compare(a[..., :3], b[..., :3], band_axis=2)
    a[..., 3], b[..., 3] = 1e6, rng.normal(0, 1e6, (20, 30))
    reference, estimate = (open_cube(cube, band_axis=2) for cube in (a, b))
    for cube in (reference, estimate):
        cube.bad_bands = np.arange(4) == 3
        found = compare(reference, estimate)
        np.testing.assert_array_equal(found.psnr, [*plain.psnr, np.nan])
        np.testing.assert_array_equal(found.ssim, [*plain.ssim, np.nan])
        np.testing.assert_allclose(found.angles, plain.angles)
        cube.bad_bands = None
    reference.bad_bands = np.ones(4, bool)
    assert np.isnan(compare(reference, estimate).mean_angle)


def test_small_cubes_have_no_ssim_and_unlike_cubes_are_refused():
    small = np.ones((5, 5, 2))
    assert np.isnan(compare(small, small, band_axis=2).ssim).all()
    assert np.isnan(hyperspectral.spectral_angle(0 * small, small, band_axis=2))
    with pytest.raises(ValueError, match="pass cubes of the same shape"):
        compare(small, small[:4], band_axis=2)
    with pytest.raises(ValueError, match="data_range=-1 is neither a positive number"):
        compare(small, small, data_range=-1, band_axis=2)


def test_measures_of_constant_and_extreme_bands():
    cube = np.ones((8, 8, 2))
    psnr = hyperspectral.psnr_per_band(cube, cube + np.array([0, 0.1]), band_axis=2)
    assert psnr[0] == np.inf
    assert np.isnan(psnr[1])
    for scale in (1e-320, 1e300):
        assert hyperspectral.spectral_angle(cube * scale, cube * scale, band_axis=2) == 0.0
