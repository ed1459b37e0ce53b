"""``DataArray.kron``: results have the labels of the array, and chunked arrays stay lazy."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from dask.callbacks import Callback

import kronlearn as kl
import kronlearn.hyperspectral.lazy
import kronlearn.xarray
from cluster import cluster_of

SIGMA = 4.0


@pytest.fixture(name="cube")
def noisy_cube(rng: np.random.Generator) -> xr.DataArray:
    """A noisy cube of (band, y, x), with an empty corner, as rioxarray labels one."""
    y, x = np.mgrid[:170, :180] / 16
    shares = np.stack([np.sin(x) ** 2, np.cos(y) ** 2, (x > 4) * (y > 3)])
    clean = np.einsum("kij,kb->bij", 100 * shares, rng.random((3, 12))) + 50
    values = rng.normal(clean, SIGMA).astype(np.float32)
    values[:, :20, :30] = np.nan
    values[3, 100, 100] = np.nan
    array = xr.DataArray(
        values,
        dims=("band", "y", "x"),
        coords={
            "band": np.arange(1, 13),
            "y": 6e6 - 30.0 * np.arange(170),
            "x": 5e5 + 30.0 * np.arange(180),
            "wavelength": ("band", np.linspace(400, 900, 12), {"units": "nm"}),
            "spatial_ref": 0,
        },
        attrs={"units": "W", "long_name": "radiance"},
        name="scene",
    )
    array.encoding = {"grid_mapping": "spatial_ref", "dtype": "int16", "scale_factor": 0.01}
    array.attrs["clean"] = "no"
    return array


@pytest.fixture(name="image")
def noisy_image(rng: np.random.Generator) -> xr.DataArray:
    y, x = np.mgrid[:64, :72] / 8
    noisy = rng.normal(100 + 40 * np.sin(x) * np.cos(y), SIGMA)
    return xr.DataArray(noisy, dims=("lat", "lon"), coords={"lat": np.arange(64.0)})


def assert_labelled_as(result: xr.DataArray, array: xr.DataArray) -> None:
    """Everything but the values is equal, and so are the missing values."""
    xr.testing.assert_identical(xr.zeros_like(result), xr.zeros_like(array))
    assert result.encoding == array.encoding
    assert result.dtype == array.dtype
    assert result.chunks == array.chunks
    np.testing.assert_array_equal(result.isnull(), array.isnull())


def test_a_cube_keeps_labels_and_missing_values(cube: xr.DataArray) -> None:
    result = cube.kron.denoise(quality="fast")
    assert_labelled_as(result, cube)
    values = np.moveaxis(cube.values, 0, -1)
    expected = kl.hyperspectral.denoise(values, band_axis=2, nodata=np.nan, quality="fast")
    known = cube.notnull().values
    np.testing.assert_array_equal(result.values[known], np.moveaxis(expected, -1, 0)[known])
    sigma = kl.hyperspectral.estimate_noise(values, band_axis=2, nodata=np.nan)
    np.testing.assert_array_equal(cube.kron.estimate_noise(), sigma)
    # The order of the dimensions does not matter.
    turned = cube.transpose("y", "band", "x")
    xr.testing.assert_identical(turned.kron.denoise(quality="fast").transpose(*cube.dims), result)


@pytest.mark.parametrize("as_attribute", [False, True])
def test_bad_bands_stay_as_they_are(cube: xr.DataArray, as_attribute: bool) -> None:
    good = np.arange(12) != 5
    cube[5] = np.random.default_rng(1).normal(0, 1e4, cube.shape[1:])
    if as_attribute:
        marked = cube.assign_attrs(bbl=good.astype(int).tolist())
    else:
        marked = cube.assign_coords(good_wavelengths=("band", good.astype(int)))
    expected = marked[good].kron.denoise(quality="fast")
    for array in (marked, marked.chunk(y=90)):
        result = array.kron.denoise(quality="fast")
        xr.testing.assert_identical(result[5].compute(), marked[5])
        np.testing.assert_allclose(result[good], expected, atol=1e-4)
        sigma = array.kron.estimate_noise().values
        np.testing.assert_array_equal(np.isnan(sigma), ~good)
    # Bands that are cut out have the attribute of all.
    assert_labelled_as(marked[:4].kron.denoise(quality="fast"), marked[:4])


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_the_reference_system_of_rioxarray_is_kept(cube: xr.DataArray) -> None:
    pytest.importorskip("rioxarray", reason="rioxarray is not installed")
    placed = cube.rio.write_crs("EPSG:32633").rio.write_nodata(np.nan, encoded=True)
    result = placed.kron.denoise(quality="fast")
    assert result.rio.crs == placed.rio.crs
    assert result.rio.transform() == placed.rio.transform()
    assert np.isnan(result.rio.encoded_nodata)


def test_a_declared_nodata_value_is_missing_in_images_of_any_dtype(image: xr.DataArray) -> None:
    holes = np.zeros(image.shape, bool)
    holes[:20, :30] = True
    for dtype, nodata in ((np.float32, -9999.0), (np.int16, -9999)):
        array = image.where(~holes, nodata).astype(dtype).assign_attrs(_FillValue=nodata)
        result = array.kron.denoise()
        assert_labelled_as(result, array)
        assert (result.values[holes] == nodata).all()
        # Far from the hole, the result is about the same as without it.
        alone = kl.images.denoise(image.values.astype(dtype), array.kron.estimate_noise().item())
        assert np.abs(result.values - alone.astype(float))[40:, 45:].mean() < 0.3
    assert abs(array.kron.estimate_noise() - SIGMA) < 0.5


def test_scattered_missing_pixels_are_not_taken_for_noise(
    image: xr.DataArray, rng: np.random.Generator
) -> None:
    y, x = np.mgrid[:64, :72] / 8
    # A slope makes a hole that is filled with the mean stand out.
    clean = 100 + 40 * np.sin(x) * np.cos(y) + 32 * x
    image = image + 32 * x
    holed = image.where(rng.random(image.shape) > 0.04)
    other = image * 0 + rng.normal(clean, SIGMA)
    colours = xr.concat([holed, image * np.nan, other], "rgb")
    np.testing.assert_allclose(colours.kron.estimate_noise(), [SIGMA, np.nan, SIGMA], rtol=0.15)
    result = colours.kron.denoise(quality="fast")
    assert_labelled_as(result, colours)
    for array in (holed.kron.denoise(quality="fast"), result[0], result[2]):
        assert float(np.sqrt(np.square(array - clean).mean())) < 0.35 * SIGMA
    # Here hardly any patch of 8 × 8 pixels is complete.
    rare = image.where(rng.random(image.shape) > 0.3)
    assert abs(rare.kron.estimate_noise() - SIGMA) < 0.2 * SIGMA
    assert float(np.sqrt(np.square(rare.kron.denoise(quality="fast") - clean).mean())) < SIGMA / 2
    with pytest.raises(TypeError, match="mask= cannot be chosen"):
        holed.kron.denoise(mask=np.isnan(holed.values))


def test_images_along_other_dimensions_are_denoised_independently(image: xr.DataArray) -> None:
    series = xr.concat([image, image + 50, image * np.nan], "time").transpose("lat", "time", "lon")
    result = series.kron.denoise(dims=("lat", "lon"))
    assert_labelled_as(result, series)
    np.testing.assert_array_equal(result.isel(time=0), kl.images.denoise(image.values))
    assert series.kron.estimate_noise(dims=("lat", "lon")).dims == ("time",)
    volume = series.isel(time=slice(2)).kron.denoise(SIGMA, dims=("time", "lat", "lon"))
    plain = series.isel(time=slice(2)).transpose("time", "lat", "lon").values
    np.testing.assert_array_equal(
        volume.transpose("time", "lat", "lon"), kl.images.denoise(plain, SIGMA)
    )


def test_channels_of_an_image_are_denoised_together(cube: xr.DataArray) -> None:
    rgb = cube[:3, 60:124, 60:124].drop_vars("wavelength").rename(band="rgb")
    values = np.moveaxis(rgb.values, 0, -1)
    expected = kl.images.denoise(values, SIGMA, channel_axis=-1)
    for array, options in ((rgb, {}), (rgb.rename(rgb="k"), {"channel_dim": "k"})):
        result = array.kron.denoise(SIGMA, **options)
        np.testing.assert_array_equal(result.transpose("y", "x", ...), expected)


@pytest.mark.parametrize(
    ("dims", "options", "message"),
    [
        (("z", "y", "x"), {}, r"dimensions 'z', 'y', 'x' .* pass dims=\('y', 'x'\)"),
        (("x",), {}, r"It is not clear which"),
        (("band", "wave", "x"), {}, "'band' or 'wave'; pass band_dim='band'"),
        (("a", "y", "x"), {"band_dim": "b"}, "no dimension 'b'; it has 'a', 'y', 'x'"),
        (("a", "y", "x"), {"band_dim": "a", "channel_dim": "y"}, "not both"),
        (("a", "y", "x"), {"band_dim": "a", "dims": ("a", "y")}, r"dims=\('a', 'y'\) are not"),
        (("a", "b", "y", "x"), {"band_dim": "a", "dims": ("b", "y", "x")}, "pass two that"),
    ],
)
def test_ambiguous_dimensions_are_refused(
    dims: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    array = xr.DataArray(np.zeros((4,) * len(dims)), dims=dims)
    with pytest.raises(ValueError, match=message):
        array.kron.denoise(**options)


def test_parameters_that_follow_from_the_array_are_refused(cube: xr.DataArray) -> None:
    with pytest.raises(TypeError, match="full= cannot be chosen for a DataArray"):
        cube.kron.denoise(full=True)
    with pytest.raises(TypeError, match=r"artefacts= .* only sigma= and quality= can"):
        cube.chunk().kron.denoise(artefacts=True)
    with pytest.raises(ValueError, match=r"sigma has shape \(3,\); the cube needs a number or 12"):
        cube.chunk().kron.denoise([1, 2, 3])
    with pytest.raises(ValueError, match=r"choose one along 'time' with isel"):
        xr.DataArray(np.zeros((2, 9, 9)), dims=("time", "y", "x")).kron.learn(dims=("y", "x"))


class Held(Callback):
    """Records the most bytes of pixels that Dask holds between tasks."""

    def __init__(self) -> None:
        super().__init__(posttask=self.look)
        self.most = 0

    def look(self, key: Any, value: Any, dsk: Any, state: dict[str, Any], worker: Any) -> None:
        held = [v for v in state["cache"].values() if isinstance(v, np.ndarray) and v.ndim == 3]
        owners = {id(v): v for v in (v if v.base is None else v.base for v in held)}
        self.most = max(self.most, sum(v.nbytes for v in owners.values()))


def test_a_chunked_cube_stays_lazy_and_is_denoised_in_tiles(cube: xr.DataArray) -> None:
    whole = cube.kron.denoise(quality="fast")
    chunked = cube.chunk(band=4, y=60, x=70)
    with dask.config.set({"array.chunk-size": "800 kB", "scheduler": "sync"}):
        with Held() as held:
            result = chunked.kron.denoise(quality="fast")
            sigma = chunked.kron.estimate_noise()
        assert held.most == 0
        assert_labelled_as(result, chunked)
        assert (sigma.dims, sigma.wavelength.units) == (("band",), "nm")
        np.testing.assert_allclose(sigma, SIGMA, rtol=0.1)
        error = (result - whole).compute()
        assert len(result.data.dask) > len(whole.chunk().data.dask)
        np.testing.assert_array_equal(chunked.kron.denoise(sigma, quality="fast"), whole + error)
    assert float(np.sqrt((error**2).mean())) < 0.1 * SIGMA


def test_the_noise_of_a_chunked_cube_is_estimated_from_tiles_all_over_it(
    rng: np.random.Generator,
) -> None:
    # Square tiles of the cube are 16 by 16.
    values = rng.normal(100, SIGMA, (2, 16 * 16, 16 * 16))
    values[..., :16] = np.nan
    chunked = xr.DataArray(values, dims=("band", "y", "x")).chunk(band=2, y=16, x=16)
    with dask.config.set({"array.chunk-size": "4 kB", "scheduler": "sync"}):
        np.testing.assert_allclose(chunked.kron.estimate_noise(), SIGMA, rtol=0.2)
    with dask.config.set({"array.chunk-size": "16 kB", "scheduler": "sync"}):
        # Of 5 rows and columns of tiles, the third are surveyed only if all others are empty.
        seen = chunked[:, :160, :160].where(False)
        seen[:, 64:96, 64:96] = values[:, 64:96, 64:96]
        np.testing.assert_allclose(seen.kron.estimate_noise(), SIGMA, rtol=0.2)


def test_a_chunked_cube_is_never_whole_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(window: Any, inside: tuple[slice, slice], *_: Any) -> Any:
        return window.cube().read(*inside).copy()

    monkeypatch.setattr(kl.hyperspectral.lazy, "_denoised", copied)
    lazy = dask.array.random.default_rng(0).normal(100, 5, (2, 2048, 256), (2, 256, 256))
    cube = xr.DataArray(lazy, dims=("band", "y", "x"))
    with dask.config.set({"array.chunk-size": "384 kB", "scheduler": "sync"}):
        total = cube.kron.denoise(1.0).data.sum()
        with Held() as held:
            assert float(total.compute()) == pytest.approx(float(lazy.sum()))
    # Dask breaks ties in the order of tasks by random keys: 0.2 to 0.5 were measured.
    assert held.most < 0.7 * cube.nbytes


@pytest.mark.slow
def test_workers_of_a_cluster_read_their_tiles(cube: xr.DataArray) -> None:
    chunked = cube.chunk(band=4, y=60, x=70)
    lazy = chunked.kron.denoise(quality="fast")
    here = lazy.compute()
    with cluster_of(1) as client:
        assert client.compute(lazy).result().identical(here)
        kept = client.persist(chunked)
        assert kept.kron.denoise(quality="fast").compute().identical(here)


def test_cubes_along_another_dimension_stay_lazy_even_if_empty(cube: xr.DataArray) -> None:
    series = xr.concat([cube[:, :60, :60], cube[:, :60, :60] * np.nan], "time")
    lazy = series.chunk(time=1).kron.denoise(quality="fast")
    assert_labelled_as(lazy, series.chunk(time=1))
    eager = series.kron.denoise(quality="fast")
    np.testing.assert_allclose(lazy, eager, atol=0.5)
    assert series.chunk().kron.estimate_noise().dims == ("time", "band")


def test_chunked_images_stay_lazy_and_are_denoised_independently(image: xr.DataArray) -> None:
    series = xr.concat([image, image + 50], "time").chunk(time=1, lat=32)
    options = {"dims": ("lat", "lon"), "quality": "fast"}
    result = series.kron.denoise(**options)
    assert_labelled_as(result, series)
    np.testing.assert_array_equal(result, series.compute().kron.denoise(**options))
    assert series.kron.estimate_noise(dims=("lat", "lon")).chunks is not None


def test_missing_values_are_inpainted(image: xr.DataArray) -> None:
    smooth = image * 0 + np.add.outer(np.arange(64.0), np.arange(72.0))
    smooth.attrs["units"] = "m"
    holes = smooth.where((smooth.lat % 8 != 3) | (smooth % 5 < 3))
    filled = holes.kron.inpaint(stages=1)
    assert float(np.abs(filled - smooth).max()) < 2
    assert filled.attrs == {"units": "m"}
    lazy = holes.chunk(lat=32).kron.inpaint(stages=1)
    assert lazy.chunks is not None
    np.testing.assert_array_equal(lazy, filled)


def test_patches_of_the_array_are_learned_from(cube: xr.DataArray) -> None:
    wanted = kl.hyperspectral.learn(
        np.moveaxis(cube.values, 0, -1), (8, 8, 4), band_axis=2, nodata=np.nan, max_iter=2,
        random_state=0,
    )  # fmt: skip
    for array in (cube, cube.chunk(y=40), cube.transpose("x", "y", "band").expand_dims("time")):
        options = {"dims": ("y", "x")} if "time" in array.dims else {}
        model = array.kron.learn((8, 8, 4), max_iter=2, random_state=0, **options)
        assert model.history_["rmse"] == wanted.history_["rmse"]
