"""Cubes: axes, missing data, and files that are written completely, with their metadata."""

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import warnings
from unittest import mock

import h5py
import numpy as np
import pytest
import rasterio
import rasterio.shutil
import spectral.io.envi
import tifffile
import xarray as xr
import zarr
from scipy.io import loadmat, netcdf_file

from cube_files import BANDS_FIRST, KINDS, WAVELENGTHS, can_hold, cube_of, write_cube
from kronlearn.io import writers
from kronlearn.io.cubes import open_cube
from kronlearn.io.stored import StoredArrayError

#: The ending of the files that cubes of a kind are copied to.
ENDINGS = {"npy": ".npy", "envi": ".hdr", "geotiff": ".tif", "hdf5": ".h5", "netcdf": ".nc"}
ENDINGS |= {"mat": ".mat", "zarr": ".zarr", "images": "", "pages": ".tif"}
WITHOUT_WAVELENGTHS = {"npy", "npy, Fortran order", "npy, big endian", "images, tif", "images, png"}
WITHOUT_WAVELENGTHS |= {"pages"}


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch):
    """Save time: files of tests need not survive a crash of the machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def target_for(kind, folder, name="out"):
    ending = ".zip" if kind == "zarr, zip" else ENDINGS[kind.split(",")[0].split()[0]]
    return folder / f"{name}{ending}"


def opened(path, kind, axis=2):
    """The cube in a file; .npy files alone do not say which axis has the bands."""
    return open_cube(path, band_axis=axis if kind.startswith("npy") else None)


def whole(thing, **options):
    return open_cube(thing, **options).read(slice(None))


def copy(cube, target, change=lambda values: values, step=4):
    """Write changed values of a cube to a file; returns its path.

    The rows are passed in one array that is reused, as denoising does.
    """
    buffer = None
    with cube.create(target) as out:
        for start in range(0, cube.shape[0], step):
            rows = slice(start, min(start + step, cube.shape[0]))
            values = change(cube.read(rows))
            buffer = np.empty((step, *cube.shape[1:]), values.dtype) if buffer is None else buffer
            part = buffer[: len(values)]
            part[:] = values
            out.write(rows, part)
            buffer[:] = 0
    return target


def left_over(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".kronlearn")]


# ---------------------------------------------------------------------------- reading


#: Every kind with every axis of the bands; formats of images always have them first.
AXES = [(kind, axis) for kind in KINDS for axis in range(3) if axis < 1 or kind not in BANDS_FIRST]


@pytest.mark.parametrize(("kind", "axis"), AXES)
def test_bands_come_last_for_every_format_and_axis(kind, axis, tmp_path, rng):
    expected = cube_of(rng, "f4" if kind == "netcdf 3" else "u2")
    path, _ = write_cube(kind, tmp_path, expected, axis)
    cube = pickle.loads(pickle.dumps(opened(path, kind, axis)))
    assert cube.shape == expected.shape
    assert cube.band_axis == (0 if kind in BANDS_FIRST else axis)
    assert not cube.band_axis_is_guess
    if kind in ("envi", "geotiff"):
        order = ("bsq", "bil", "bip")[axis] if kind == "envi" else "geotiff"
        assert cube.band_axis_reason == f"the file says so ({order})"
    np.testing.assert_array_equal(cube.read(slice(None)), expected)
    part = cube.read(slice(2, 9), slice(3, 10), slice(1, 6))
    np.testing.assert_array_equal(part, expected[2:9, 3:10, 1:6])
    np.testing.assert_array_equal(cube.read(slice(5, 6), bands=slice(0, 1)), expected[5:6, :, :1])
    if kind in WITHOUT_WAVELENGTHS:
        assert cube.wavelengths is None
    else:
        np.testing.assert_array_equal(cube.wavelengths, WAVELENGTHS[:7])


def named(*names):
    return xr.DataArray(np.zeros((4, 5, 6)), dims=names)


WITH_WAVELENGTHS = named("a", "b", "c").assign_coords(wavelength=("c", np.arange(6.0)))


@pytest.mark.parametrize(
    ("thing", "axis", "words", "is_guess"),
    [
        (named("band", "y", "x"), 0, "named 'band'", False),
        (named("y", "Wavelength", "x"), 1, "named 'Wavelength'", False),
        (named("lines", "samples", "feature"), 2, "named 'lines' and 'samples'", False),
        (WITH_WAVELENGTHS, 2, "the list of 6 wavelengths", False),
        (np.zeros((200, 145, 145), "u1"), 0, "guessed: the other two axes are equally long", True),
        (np.zeros((145, 200, 145), "u1"), 1, "guessed", True),
        (np.zeros((30, 31, 200), "u1"), 2, "guessed: the last axis", True),
        (np.zeros((22, 61, 184), "u1"), 0, "guessed: the axis is by far the shortest", True),
        (np.zeros((61, 184, 22), "u1"), 2, "by far the shortest", True),
        (np.zeros((50, 50, 50), "u1"), 2, "guessed: the last axis", True),
        (np.zeros((1, 9, 8), "u1"), 0, "shortest", True),
    ],
)
def test_the_band_axis_is_found_and_the_reason_given(thing, axis, words, is_guess):
    cube = open_cube(thing)
    assert cube.band_axis == axis
    assert words in cube.band_axis_reason
    assert cube.band_axis_is_guess == is_guess


def test_band_axis_overrides_what_the_file_says():
    cube = open_cube(named("band", "y", "x"), band_axis=-1)
    assert (cube.band_axis, cube.band_axis_reason, cube.shape) == (2, "given", (4, 5, 6))
    again = open_cube(cube, band_axis=1, nodata=7)
    assert (again.shape, again.nodata) == ((4, 6, 5), 7)
    assert open_cube(cube) is cube
    # Opening a cube anew changes only what is passed.
    again.bad_bands = np.arange(5) == 3
    last = open_cube(again, nodata=8)
    assert last.bad_bands is again.bad_bands
    assert (last.shape, last.nodata, last.band_axis_reason) == ((4, 6, 5), 8, "given")
    assert open_cube(again, band_axis=0).nodata == 7
    with pytest.raises(StoredArrayError, match="is a single array; leave out dataset='x'"):
        open_cube(cube, dataset="x")


def test_a_cube_closes_its_file(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 5)))
    with open_cube(tmp_path / "a.npy") as cube:
        cube.read(slice(None))
    with pytest.raises(StoredArrayError, match="is closed"):
        cube.read(slice(None))


def test_two_dimensions_are_one_band():
    cube = open_cube(np.arange(12.0).reshape(3, 4))
    assert cube.shape == (3, 4, 1)
    assert (cube.band_axis, cube.band_axis_is_guess) == (None, False)
    assert cube.read(slice(1, 2), slice(0, 2), slice(0, 1)).tolist() == [[[4], [5]]]
    assert cube.like(cube.read(slice(None))).shape == (3, 4)


def test_axes_of_length_one_beyond_three_are_left_out(tmp_path):
    values = np.arange(3 * 4 * 5.0).reshape(3, 1, 4, 5)
    np.save(tmp_path / "a.npy", values)
    cube = open_cube(tmp_path / "a.npy", band_axis=3)
    np.testing.assert_array_equal(cube.read(slice(None)), values[:, 0])
    np.testing.assert_array_equal(np.load(copy(cube, tmp_path / "b.npy")), values)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = values
    copy(open_cube(tmp_path / "a.h5", band_axis=3), tmp_path / "b.h5", lambda v: 2 * v)
    with h5py.File(tmp_path / "b.h5") as file:
        np.testing.assert_array_equal(file["a"][:], 2 * values)


@pytest.mark.parametrize(
    ("thing", "options", "words"),
    [
        (np.zeros(5), {}, r"shape \(5,\); a cube has two or three dimensions"),
        (np.zeros((2, 3, 4, 5)), {}, r"shape \(2, 3, 4, 5\)"),
        (np.zeros((2, 3, 4)), {"band_axis": 3}, r"band_axis=3 does not exist.*0 to 2"),
        (np.zeros((2, 3)), {"band_axis": 0}, "leave out band_axis=0"),
    ],
)
def test_arrays_that_are_not_cubes_are_refused(thing, options, words):
    with pytest.raises(StoredArrayError, match=words):
        open_cube(thing, **options)


# ---------------------------------------------------------------------------- missing data


@pytest.mark.parametrize("wrong", [[1, 3], [1, 0, 1, 1], [True, False], "1", True])
def test_bad_bands_are_one_bool_per_band(wrong):
    cube = open_cube(np.zeros((5, 6, 4)), 2)
    with pytest.raises(ValueError, match=r"bad_bands must be None or 4 bools.*np\.isin"):
        cube.bad_bands = wrong
    assert cube.bad_bands is None
    cube.bad_bands = [True, False, False, True]
    assert cube.bad_bands.nonzero()[0].tolist() == [0, 3]


@pytest.mark.parametrize("dtype", ["i2", "u1", "f4"])
def test_nodata_values_are_not_valid(dtype):
    values = np.ones((3, 4, 5), dtype)
    values[1, 2, 3] = 99
    cube = open_cube(values, nodata=99)
    read, valid = cube.read_checked(slice(None))
    np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(valid, values != 99)
    assert cube.read_checked(slice(0, 1))[1] is None
    assert open_cube(values).read_checked(slice(None))[1] is None
    if dtype == "f4":
        # With a nodata value, NaN and infinity are not valid either.
        values[0, 0, 0], values[2, 1, 0] = np.nan, np.inf
        for nodata in (99, np.nan):
            _, valid = open_cube(values, nodata=nodata).read_checked(slice(None))
            assert (~valid).sum() == (3 if nodata == 99 else 2)
        data = xr.DataArray(values, dims=("y", "x", "band"))
        assert not open_cube(data).read_checked(slice(None))[1][0, 0, 0]


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_the_error_for_nan_and_infinity_names_their_position(value, word, tmp_path):
    values = np.ones((9, 8, 7), "f4")
    values[5, 6, 3] = value
    np.save(tmp_path / "a.npy", values)
    cube = open_cube(tmp_path / "a.npy", band_axis=2)
    assert cube.read_checked(slice(0, 5))[1] is None
    words = rf"a\.npy contains {word} at row 5, column 6, band 3, .*nodata=float\('nan'\)"
    with pytest.raises(StoredArrayError, match=words):
        cube.read_checked(slice(4, 8), slice(2, 8), slice(-6, None))


@pytest.mark.parametrize("kind", ["envi", "geotiff", "netcdf 4", "zarr 2", "zarr 3"])
def test_nodata_is_read_from_files_and_written_to_copies(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "i2"))
    if kind == "geotiff":
        with rasterio.open(path, "r+") as file:
            file.nodata = -9999
    elif kind == "netcdf 4":
        with h5py.File(path, "r+") as file:
            file["radiance"].attrs["_FillValue"] = np.int16(-9999)
    elif kind.startswith("zarr"):
        zarr.open_array(path, path="radiance", mode="r+").attrs["_FillValue"] = -9999
    cube = open_cube(path)
    assert cube.nodata == -9999
    assert isinstance(cube.nodata, int)
    copied = open_cube(copy(cube, target_for(kind, tmp_path), step=5))
    assert copied.nodata == -9999


def test_a_nodata_value_outside_the_dtype_marks_nothing(tmp_path, rng):
    path, _ = write_cube("envi", tmp_path, cube_of(rng, "u2"))
    cube = open_cube(path)
    assert (cube.nodata, cube.read_checked(slice(None))[1]) == (-9999, None)
    assert open_cube(copy(cube, tmp_path / "b.hdr")).nodata == -9999


# ---------------------------------------------------------------------------- writing


DTYPES = [("i2", 0), ("u2", 1), ("f4", 2)]
#: Every kind with one dtype, and those with the most code of their own with all.
HELD = [
    (kind, *item)
    for i, kind in enumerate(KINDS)
    for j, item in enumerate(DTYPES)
    if kind in ("npy", "envi", "hdf5", "mat 7.3")
    or (can_hold(kind, item[0]) if kind in ("netcdf 3", "images, png") else i % 3 == j)
]


@pytest.mark.parametrize(("kind", "dtype", "axis"), HELD)
def test_written_cubes_are_read_back(kind, dtype, axis, tmp_path, rng):
    expected = cube_of(rng, dtype)
    path, array = write_cube(kind, tmp_path, expected, axis)
    cube = opened(path, kind, axis)
    target = copy(cube, target_for(kind, tmp_path), lambda values: values + 1)
    again = opened(target, kind, axis)
    np.testing.assert_array_equal(again.read(slice(None)), expected + 1)
    assert again.dtype == np.dtype(dtype)
    assert again.stored.shape == array.shape
    assert again.stored.dataset == cube.stored.dataset
    np.testing.assert_array_equal(again.wavelengths, cube.wavelengths)
    if kind not in ("pages", "netcdf 3"):
        assert again.attributes == cube.attributes
        assert again.chunks == cube.chunks
    assert left_over(tmp_path) == []


TARGETS = (".npy", ".hdr", ".img", ".tif", ".h5", ".nc", ".mat", ".zarr", ".zip")
#: Every target from ENVI, and HDF5 from the others.
CHANGES = [("envi", target) for target in TARGETS]
CHANGES += [(k, ".h5") for k in ("npy", "netcdf 3", "mat 5", "zarr 3", "images, tif")]
CHANGES += [("hdf5", ".mat"), ("mat 7.3", ".h5")]


@pytest.mark.parametrize(("kind", "target"), CHANGES)
def test_the_ending_of_the_target_determines_its_format(kind, target, tmp_path, rng):
    expected = cube_of(rng, "f4")
    path, _ = write_cube(kind, tmp_path, expected, 1)
    cube = opened(path, kind, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if target in (".npy", ".mat") else "error")
        again = copy(cube, tmp_path / f"out{target}")
    axis = cube.band_axis if target in (".npy", ".mat") else None
    np.testing.assert_array_equal(whole(again, band_axis=axis), expected)
    if target == ".mat":
        np.testing.assert_array_equal(open_cube(again, axis).wavelengths, WAVELENGTHS[:7])


def test_a_header_neither_names_folders_nor_other_arrays(tmp_path):
    array = xr.DataArray(np.ones((4, 5, 6), "f4"), dims=("band", "y", "x"), name="radiance")
    array.assign_coords(fwhm=("band", np.ones(4))).to_netcdf(tmp_path / "a.nc", engine="scipy")
    for target in ("a.hdr", "a.tif", "a.h5"):
        attributes = open_cube(copy(open_cube(tmp_path / "a.nc"), tmp_path / target)).attributes
        assert "coordinates" not in attributes
    assert open_cube(tmp_path / "a.hdr").attributes["description"] == "a.nc"


def test_the_tiles_of_a_small_geotiff_are_small(tmp_path):
    values = np.zeros((70, 40, 30), "u2")
    path = copy(open_cube(values, 2), tmp_path / "a.tif")
    assert path.stat().st_size < 1.5 * values.nbytes
    with tifffile.TiffFile(path) as file:
        assert file.pages[0].tile == (80, 48)


def test_integers_are_rounded_and_clipped(tmp_path):
    cube = open_cube(np.zeros((1, 2, 4), "u1"), band_axis=2)
    values = np.array([[[-3.0, 0.6, 254.5, 400], [1.5, 2.5, 3.49, np.inf]]])
    copy(cube, tmp_path / "a.npy", lambda _: values)
    assert np.load(tmp_path / "a.npy").tolist() == [[[0, 1, 254, 255], [2, 2, 3, 255]]]
    assert values[0, 0, 0] == -3
    wide = np.array([[[-(2**40), 300, 7, 2**40]] * 2])
    assert cube.like(wide).tolist() == [[[0, 255, 7, 255]] * 2]
    assert cube.like(np.full((1, 2, 4), 300, "i2")).max() == 255
    assert open_cube(np.zeros((1, 2, 4), "i1"), 2).like(np.full((1, 2, 4), 200, "u1")).max() == 127


def test_nan_becomes_nodata_in_files_of_integers(tmp_path):
    values = np.array([[[1.0, np.nan], [3, 4]]])
    copy(open_cube(np.zeros((1, 2, 2), "i2"), 2, nodata=-1), tmp_path / "a.npy", lambda _: values)
    assert np.load(tmp_path / "a.npy").tolist() == [[[1, -1], [3, 4]]]
    with pytest.raises(ValueError, match=r"b\.npy: the values contain NaN, which int16"):
        copy(open_cube(np.zeros((1, 2, 2), "i2"), 2), tmp_path / "b.npy", lambda _: values)
    assert not (tmp_path / "b.npy").exists()


def test_a_cube_can_replace_its_own_file(tmp_path, rng):
    for kind in ("npy", "envi", "hdf5, chunked", "zarr 2", "geotiff", "mat 5", "images, tif"):
        expected = cube_of(rng, "u2")
        path, _ = write_cube(kind, tmp_path, expected)
        copy(opened(path, kind), path, lambda v: v + 7)
        np.testing.assert_array_equal(opened(path, kind).read(slice(None)), expected + 7)
    assert left_over(tmp_path) == []


def test_like_returns_the_kind_of_array_that_was_given(rng):
    values = rng.standard_normal((4, 5, 6))
    cube = open_cube(values.transpose(2, 0, 1), band_axis=0)
    np.testing.assert_array_equal(cube.like(values), values.transpose(2, 0, 1))
    data = xr.DataArray(
        values,
        dims=("y", "x", "band"),
        coords={"band": np.arange(6.0), "label": ("y", list("abcd"))},
        attrs={"units": "W"},
        name="radiance",
    ).transpose("band", "y", "x")
    result = open_cube(data).like(2 * values)
    xr.testing.assert_identical(result, data.copy(data=2 * data.values))
    with pytest.raises(ValueError, match=r"\(4, 5, 5\); the cube has \(4, 5, 6\)"):
        cube.like(values[..., 1:])


# ---------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_envi_header_is_kept_except_for_changed_fields(axis, tmp_path, rng):
    path, _ = write_cube("envi, big endian", tmp_path, cube_of(rng, "i2"), axis)
    # A text with a comma is not a list.
    path.write_text(path.read_text().replace("made for a test", "one, two"))
    assert open_cube(path).attributes["description"] == "one, two"
    copy(open_cube(path), tmp_path / "b.hdr")
    changed = path.read_text().replace("byte order = 1", "byte order = 0")
    assert (tmp_path / "b.hdr").read_text() == changed
    copy(open_cube(path.with_suffix(".img")), tmp_path / "c.dat")
    assert (tmp_path / "c.hdr").read_text() == changed
    image = spectral.io.envi.open(str(tmp_path / "b.hdr"))
    np.testing.assert_array_equal(np.array(image.open_memmap()), whole(path))
    assert image.metadata["map info"][0] == "UTM"


def test_a_geotiff_keeps_its_georeference_and_tags(tmp_path, rng):
    path, _ = write_cube("geotiff, tiled", tmp_path, cube_of(rng, "f4"))
    with rasterio.open(path, "r+") as file:
        file.colorinterp = [*map(rasterio.enums.ColorInterp, (5, 4, 3)), *file.colorinterp[3:]]
    copy(open_cube(path), tmp_path / "b.tif", lambda v: 3 * v)
    with rasterio.open(path) as old, rasterio.open(tmp_path / "b.tif") as new:
        assert new.profile == old.profile
        assert new.tags() == old.tags()
        assert new.tags(3) == old.tags(3)
        assert new.descriptions == old.descriptions
        assert new.colorinterp == old.colorinterp
        np.testing.assert_array_equal(new.read(), 3 * old.read())


CORNERS = [(0, 0), (0, 11), (13, 0), (13, 11)]
#: Coordinate systems, and transforms from pixels to them.
NORTH_UP = rasterio.Affine(30, 0, 500000, 0, -30, 5000000)
GEOREFERENCES = {
    "utm": (32733, NORTH_UP),
    "degrees": (4326, rasterio.Affine(0.1, 0, 5, 0, -0.1, 50)),
    "laea": (3035, NORTH_UP),
    "rotated": (32633, rasterio.Affine(24, 18, 500000, 18, -24, 5000000)),
    "sheared": (32633, rasterio.Affine(30, 4, 500000, 0, -30, 5000000)),
}


def georeferenced(folder, name="utm", dtype="i2"):
    """The path of a GeoTIFF of 7 bands with all the metadata that GDAL has for bands."""
    epsg, transform = GEOREFERENCES[name]
    values = np.arange(13 * 11 * 7, dtype=dtype).reshape(7, 13, 11)
    profile = {"driver": "GTiff", "count": 7, "height": 13, "width": 11, "dtype": values.dtype}
    with rasterio.open(
        folder / "source.tif", "w", crs=f"EPSG:{epsg}", transform=transform, **profile
    ) as file:
        file.write(values)
        file.descriptions = tuple(f"band {i}" for i in range(7))
        file.scales, file.offsets, file.nodata = (0.5,) * 7, (3.0,) * 7, -1
        file.units = ["W"] * 7
        file.update_tags(MISSION="test")
        for band in range(1, 8):
            tags = {"wavelength": 400 + 10.5 * (band - 1), "wavelength_units": "Nanometers"}
            file.update_tags(band, **tags, fwhm=10.25, bbl=int(band != 3))
    return folder / "source.tif"


@pytest.mark.parametrize("ending", [".hdr", ".nc", ".h5", ".zarr", ".tif"])
@pytest.mark.parametrize("name", ["utm", "degrees", "laea", "rotated"])
def test_georeference_and_band_metadata_survive_conversion(name, ending, tmp_path):
    epsg, transform = GEOREFERENCES[name]
    first = copy(open_cube(georeferenced(tmp_path, name)), tmp_path / f"first{ending}")
    if ending in (".hdr", ".nc"):
        # GDAL reads the same georeference.
        with rasterio.open(first.with_suffix(".img") if ending == ".hdr" else first) as file:
            assert file.crs.to_epsg() == epsg
            assert file.transform.almost_equals(transform, 1e-6)
            np.testing.assert_array_equal(file.read(), np.arange(1001).reshape(7, 13, 11))
    for cube in (open_cube(first), open_cube(copy(open_cube(first), tmp_path / "again.tif"))):
        np.testing.assert_allclose(cube.attributes["transform"], transform[:6], atol=1e-9)
        assert rasterio.crs.CRS.from_string(cube.attributes["crs"]).to_epsg() == epsg
        assert {k.lower(): v for k, v in cube.attributes.items()}["mission"] == "test"
        assert cube.attributes["units"] == "W"
        np.testing.assert_array_equal(cube.wavelengths, WAVELENGTHS[:7])
        assert (cube.nodata, cube.wavelength_units) == (-1, "Nanometers")
        assert cube.bad_bands.nonzero()[0].tolist() == [2]
        expected = {"band names": [f"band {i}" for i in range(7)], "fwhm": [10.25] * 7}
        expected |= {"data gain values": [0.5] * 7, "data offset values": [3.0] * 7}
        assert expected.items() <= {k: v.tolist() for k, v in cube.per_band.items()}.items()


@pytest.mark.parametrize("ending", [".nc", ".zarr"])
def test_xarray_finds_coordinates_and_a_grid_mapping(ending, tmp_path):
    target = copy(open_cube(georeferenced(tmp_path)), tmp_path / f"a{ending}")
    options = {"engine": "netcdf4"}
    if ending == ".zarr":
        options = {"engine": "zarr", "consolidated": False}
    with xr.open_dataset(target, decode_coords="all", **options) as data:
        assert data.cube.encoding["grid_mapping"] == "spatial_ref"
        np.testing.assert_array_equal(data.x, 500015 + 30 * np.arange(11))
        assert data.y.attrs["standard_name"] == "projection_y_coordinate"
        # GeoTransform describes the whole; the coordinates count for a part of it.
        part = open_cube(data.cube[:, 2:, 3:])
        assert part.attributes["transform"] == [30, 0, 500090, 0, -30, 4999940]
        assert part.attributes["crs"] == "EPSG:32733"


@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore:Consolidated metadata")
def test_files_are_exchanged_with_rioxarray(kind, tmp_path):
    pytest.importorskip("rioxarray", reason="rioxarray is not installed")
    data = xr.DataArray(np.ones((2, 3, 4), "i2"), dims=("band", "y", "x"), name="a")
    data = data.assign_coords(y=[50.5, 49.5, 48.5], x=[5.5, 6.5, 7.5, 8.5]).rio.write_crs(3035)
    getattr(data, f"to_{kind}")(tmp_path / f"a.{kind[:4]}")
    cube = open_cube(tmp_path / f"a.{kind[:4]}", dataset="a")
    assert cube.attributes["transform"] == [1, 0, 5, 0, -1, 51]
    copy(cube, tmp_path / "b.tif")
    copy(open_cube(tmp_path / "b.tif"), tmp_path / "c.nc")
    with xr.open_dataset(tmp_path / "c.nc", engine="h5netcdf", decode_coords="all") as again:
        assert again.cube.rio.crs == data.rio.crs
        assert again.cube.rio.transform() == data.rio.transform()
    import rioxarray

    with rioxarray.open_rasterio(georeferenced(tmp_path)) as data:
        with pytest.warns(UserWarning, match="the scale_factor and add_offset of xarray"):
            cube = open_cube(copy(open_cube(data), tmp_path / "d.tif"))
        assert cube.attributes["crs"] == "EPSG:32733"
        assert cube.per_band["band names"].tolist() == [f"band {i}" for i in range(7)]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gdal_finds_rows_and_columns_in_netcdf_files(axis, tmp_path, rng):
    expected = cube_of(rng, "i2")
    path, _ = write_cube("envi", tmp_path, expected, axis)
    with rasterio.open(copy(open_cube(path), tmp_path / "a.nc")) as file:
        assert file.crs == rasterio.CRS.from_string(open_cube(path).attributes["crs"])
        assert file.transform.almost_equals(NORTH_UP)
        np.testing.assert_array_equal(file.read(), np.moveaxis(expected, 2, 0))


@pytest.mark.parametrize("version", ["NC", "NC4"])
@pytest.mark.parametrize("name", ["utm", "degrees", "rotated"])
def test_grid_mappings_written_by_gdal_are_read(name, version, tmp_path):
    epsg, transform = GEOREFERENCES[name]
    path = georeferenced(tmp_path, name)
    for bottom_up in ("NO", "YES"):
        target = tmp_path / f"{bottom_up}.nc"
        options = {"FORMAT": version, "WRITE_BOTTOMUP": bottom_up}
        rasterio.shutil.copy(path, target, driver="netCDF", **options)
        attributes = open_cube(target, dataset="Band1").attributes
        if bottom_up == "NO":
            expected = transform
        else:
            # The rows are in reverse order, for which GeoTransform is wrong.
            a, _, c, _, e, f = transform[:6]
            expected = (a, 0, c, 0, -e, f + 13 * e)
        if name == "rotated" and bottom_up == "YES":
            assert "crs" not in attributes
        else:
            assert attributes["crs"] == f"EPSG:{epsg}"
            np.testing.assert_allclose(attributes["transform"], expected[:6], atol=1e-9)


def test_the_mask_of_a_geotiff_marks_missing_pixels(tmp_path):
    path = georeferenced(tmp_path)
    valid = np.ones((13, 11), bool)
    valid[2:5, 3:] = False
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(valid)
    again = copy(open_cube(path), tmp_path / "again.tif")
    for file in (path, again):
        _, mask = open_cube(file).read_checked(slice(1, 9), slice(2, 11))
        np.testing.assert_array_equal(mask, np.repeat(valid[1:9, 2:, None], 7, 2))
        assert open_cube(file).read_checked(slice(6, 9))[1] is None
    with pytest.warns(UserWarning, match="the mask of valid pixels of .* cannot be kept"):
        copy(open_cube(path), tmp_path / "a.hdr")


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("utm", "a.npy", "wavelengths, georeferencing, nodata value, band names, fwhm, bbl, data"),
        ("utm", "a.mat", "georeferencing, nodata value, band names, fwhm"),
        ("sheared", "a.hdr", "georeferencing"),
    ],
)
def test_a_warning_names_metadata_that_the_format_cannot_hold(name, target, words, tmp_path):
    path = georeferenced(tmp_path, name)
    words = rf"{target}: the {words}.* of .*source\.tif cannot be kept"
    with pytest.warns(UserWarning, match=words):
        copy(open_cube(path), tmp_path / target)


@pytest.mark.parametrize("target", ["b.tif", "b.hdr"])
def test_a_warning_names_coordinates_without_a_coordinate_system(target, tmp_path):
    array = xr.DataArray(np.ones((4, 5, 6), "f4"), dims=("band", "lat", "lon"))
    numbered = array.assign_coords(lat=np.arange(5), lon=np.arange(6))
    copy(open_cube(numbered), tmp_path / target)
    placed = numbered.assign_coords(lat=50 - 0.1 * numbered.lat)
    with pytest.warns(UserWarning, match="the coordinates without a coordinate system of xarray"):
        copy(open_cube(placed), tmp_path / target)
    copy(open_cube(placed), tmp_path / "b.nc")


def test_lists_that_do_not_fit_the_bands_are_ignored_with_a_warning(tmp_path, rng):
    path, _ = write_cube("envi", tmp_path, cube_of(rng, "i2"))
    text = path.read_text().replace("wavelength = { 400.0 ,", "wavelength = {")
    path.write_text(text + "fwhm = {1, 2, x, 4, 5, 6, 7}\n")
    with pytest.warns(UserWarning, match="it is ignored") as caught:
        cube = open_cube(path)
    assert [str(warning.message).partition(": ")[2] for warning in caught] == [
        "wavelength has 6 entries for 7 bands; it is ignored.",
        "fwhm is not a list of numbers; it is ignored.",
    ]
    assert cube.wavelengths is None
    assert list(cube.per_band) == ["band names"]


def test_band_metadata_is_read_from_arrays(tmp_path):
    # As in files of EMIT.
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["radiance"] = np.ones((4, 5, 3))
        file["bands/fwhm"], file["bands/good_wavelengths"] = [8.0, 8.5, 9], [1, 0, 1]
    cube = open_cube(tmp_path / "a.nc", band_axis=2)
    assert cube.per_band["fwhm"].tolist() == [8, 8.5, 9]
    assert cube.bad_bands.tolist() == [False, True, False]


@pytest.mark.parametrize("crs", ["EPSG:32633", ""])
def test_a_geotiff_keeps_its_ground_control_points(crs, tmp_path, rng):
    path, _ = write_cube("geotiff", tmp_path, cube_of(rng, "i2"))
    points = [rasterio.control.GroundControlPoint(r, c, 30.0 * c, -30.0 * r) for r, c in CORNERS]
    with rasterio.open(path, "r+") as file:
        file.gcps = points, rasterio.CRS.from_string(crs) if crs else rasterio.CRS()
    with rasterio.open(copy(open_cube(path), tmp_path / "b.tif")) as file:
        assert [(p.row, p.col, p.x, p.y) for p in file.gcps[0]] == [
            (p.row, p.col, p.x, p.y) for p in points
        ]
    with pytest.warns(UserWarning, match="the ground control points of .* cannot be kept"):
        copy(open_cube(path), tmp_path / "b.nc")


@pytest.mark.parametrize("kind", ["envi", "geotiff, tiled", "netcdf 4", "zarr 2", "mat 7.3", "npy"])
def test_integers_become_floats_on_request(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "i2"))
    if kind == "netcdf 4":
        # Unpacked values are floats, which must not be packed again.
        with h5py.File(path, "r+") as file:
            file["radiance"].attrs.update(scale_factor=0.25, _FillValue=np.int16(-1))
    cube = opened(path, kind)
    values = cube.read(slice(None)) + np.float32(0.125)
    with cube.create(target_for(kind, tmp_path), dtype="float32") as out:
        out.write(slice(None), values)
    again = opened(target_for(kind, tmp_path), kind)
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again.read(slice(None)), values)
    assert cube.like(values, np.float64).dtype == np.float64
    for wrong in ("int16", "loud"):
        with pytest.raises(ValueError, match=f"dtype='{wrong}' is not a floating-point type"):
            cube.create(tmp_path / "b.npy", dtype=wrong)


def test_lossy_compression_is_not_copied(tmp_path, rng):
    image = rng.integers(0, 255, (3, 64, 64), dtype=np.uint8)
    profile = {"driver": "GTiff", "count": 3, "height": 64, "width": 64, "dtype": "uint8"}
    profile["transform"] = rasterio.Affine(30, 0, 500000, 0, -30, 5000000)
    with rasterio.open(
        tmp_path / "a.tif", "w", compress="jpeg", photometric="ycbcr", **profile
    ) as file:
        file.write(image)
    cube = open_cube(tmp_path / "a.tif")
    expected = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    copy(cube, tmp_path / "b.tif", lambda _: expected, step=64)
    np.testing.assert_array_equal(whole(tmp_path / "b.tif"), expected)


def test_hdf5_files_keep_their_other_content(tmp_path, rng):
    path, _ = write_cube("hdf5, chunked", tmp_path, cube_of(rng, "i2"))
    copy(open_cube(path), tmp_path / "b.h5")
    with h5py.File(path) as old, h5py.File(tmp_path / "b.h5") as new:
        assert dict(new.attrs) == dict(old.attrs)
        assert dict(new["scene/radiance"].attrs) == dict(old["scene/radiance"].attrs)
        assert new["scene/radiance"].compression == "gzip"
        np.testing.assert_array_equal(new["location/latitude"], old["location/latitude"])
        np.testing.assert_array_equal(new["scene/radiance"], old["scene/radiance"])


@pytest.mark.parametrize("kind", ["netcdf 3", "netcdf 4"])
def test_netcdf_files_keep_their_coordinates_and_packing(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "i2"))
    if kind == "netcdf 3":
        with netcdf_file(path, "a") as file:
            file.variables["radiance"].scale_factor = 0.25
            file.variables["radiance"].add_offset = 3.0
            file.variables["radiance"]._FillValue = np.int16(-1)
            file.variables["wavelength"].units = "nm"
    else:
        with h5py.File(path, "r+") as file:
            file["wavelength"].attrs["units"] = "nm"
            packing = {"scale_factor": 0.25, "add_offset": 3.0, "_FillValue": np.int16(-1)}
            file["radiance"].attrs.update(packing)
    cube = open_cube(path)
    expected = cube.read(slice(None)).copy()
    expected[3, 4, 5] = np.nan

    def change(values):
        values = values.copy()
        if len(values) == 13:
            values[3, 4, 5] = np.nan
        return values

    copy(cube, tmp_path / "b.nc", change, step=13)
    again = open_cube(tmp_path / "b.nc")
    np.testing.assert_array_equal(again.read(slice(None)), expected)
    np.testing.assert_array_equal(again.wavelengths, WAVELENGTHS[:7])
    assert (again.wavelength_units, again.attributes["units"]) == ("nm", "W")
    assert again.stored.axes == ("y", "x", "wavelength")
    with xr.open_dataset(tmp_path / "b.nc", engine="netcdf4") as data:
        np.testing.assert_array_equal(data.radiance, expected)
        np.testing.assert_array_equal(data.y, 0.5 * np.arange(13))
        # A classic file is not copied, so the new file holds unpacked values.
        packed = np.int16 if kind == "netcdf 4" else np.float32
        assert data.radiance.encoding["dtype"] == packed
    np.testing.assert_array_equal(whole(copy(again, tmp_path / "b.zarr", step=13)), expected)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_zarr_stores_keep_their_other_content(version, tmp_path, rng):
    path, _ = write_cube(f"zarr {version}", tmp_path, cube_of(rng, "i2"))
    zarr.consolidate_metadata(path)
    for target in ("b.zarr", "d.zip", "e.ZIP", "e.ZIP"):
        copy(open_cube(path), tmp_path / target, lambda v: v + 1)
        again = open_cube(tmp_path / target)
        assert (tmp_path / target).is_dir() == (target == "b.zarr")
        np.testing.assert_array_equal(again.read(slice(None)), whole(path) + 1)
        if target != "b.zarr":
            continue
        old, new = zarr.open_group(path, mode="r"), zarr.open_group(tmp_path / target, mode="r")
        assert new.attrs.asdict() == old.attrs.asdict()
        assert new["radiance"].attrs.asdict() == old["radiance"].attrs.asdict()
        assert new["radiance"].compressors == old["radiance"].compressors
        assert new["radiance"].metadata.zarr_format == version
        np.testing.assert_array_equal(new["wavelength"][:], WAVELENGTHS[:7])


@pytest.mark.parametrize("kind", ["mat 5", "mat 5, compressed"])
def test_matlab_files_keep_their_other_variables(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "u2"))
    copy(open_cube(path), tmp_path / "b.mat", lambda v: v + 1)
    old, new = loadmat(path), loadmat(tmp_path / "b.mat")
    assert list(new) == list(old)
    np.testing.assert_array_equal(new["radiance"], old["radiance"] + 1)
    np.testing.assert_array_equal(new["ground_truth"], old["ground_truth"])
    assert new["record"] == old["record"]
    assert new["text"] == old["text"]
    assert new["ground_truth"].dtype == np.float64


def test_folders_of_images_keep_their_names(tmp_path, rng):
    path, _ = write_cube("images, png", tmp_path, cube_of(rng, "u2", (5, 6, 11)))
    copy(open_cube(path), tmp_path / "b")
    assert sorted(os.listdir(tmp_path / "b")) == sorted(os.listdir(path))
    # PNG has no floats. New names must not be equal.
    for target, old, new in (
        ("c", ["a.png", "b.tiff"], ["a.tif", "b.tiff"]),
        ("d", ["a.png", "a.tif"], ["band_1.tif", "band_2.tif"]),
    ):
        floats = xr.DataArray(np.zeros((2, 5, 6), "f4"), dims=("band", "y", "x"))
        floats.attrs["files"] = old
        cube = open_cube(floats)
        cube.stored.format = "image_folder"
        copy(cube, tmp_path / target)
        assert sorted(os.listdir(tmp_path / target)) == new
        assert tifffile.imread(tmp_path / target / new[0]).dtype == np.float32


@pytest.mark.parametrize("ending", [".nc", ".zarr", ".h5"])
def test_coordinates_of_xarray_are_written(ending, tmp_path, rng):
    data = xr.DataArray(
        rng.standard_normal((4, 5, 6)),
        dims=("band", "lat", "lon"),
        coords={"band": [1.5, 2, 3, 4], "lat": ("lat", np.arange(5.0), {"units": "degrees"})},
        attrs={"units": "W"},
        name="radiance",
    )
    target = copy(open_cube(data), tmp_path / f"a{ending}", step=2)
    cube = open_cube(target)
    assert (cube.stored.dataset, cube.attributes["units"]) == ("radiance", "W")
    np.testing.assert_array_equal(cube.read(slice(None)), data.transpose("lat", "lon", "band"))
    if ending == ".nc":
        with xr.open_dataset(target, engine="netcdf4") as again:
            xr.testing.assert_equal(again.radiance, data)
            assert again.lat.attrs == data.lat.attrs
    elif ending == ".zarr":
        with xr.open_zarr(target, consolidated=False) as again:
            xr.testing.assert_equal(again.radiance, data)
            assert again.lat.attrs == data.lat.attrs


@pytest.mark.parametrize("ending", [".nc", ".h5"])
def test_axes_without_a_name_get_one(ending, tmp_path):
    names = {"dimension_names": (None, None, "band")}
    zarr.create_array(tmp_path / "a.zarr", data=np.full((3, 4, 5), 7.0), **names)
    cube = open_cube(copy(open_cube(tmp_path / "a.zarr"), tmp_path / f"b{ending}"))
    assert cube.stored.axes == ("axis_0", "axis_1", "band")
    assert cube.stored.coordinates == {}
    np.testing.assert_array_equal(cube.read(slice(None)), np.full((3, 4, 5), 7))


@pytest.mark.parametrize("ending", [".nc", ".h5", ".zarr"])
def test_no_axis_has_the_name_of_the_array_or_of_another_axis(ending, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(60, dtype="i2").reshape(3, 4, 5)
        for dim, name in zip(file["x"].dims, ("x", "y", "y"), strict=True):
            dim.label = name
    cube = open_cube(tmp_path / "a.h5", 2)
    with cube.create(tmp_path / f"b{ending}", dtype="float32") as out:
        out.write(slice(None), cube.read(slice(None)))
    again = open_cube(tmp_path / f"b{ending}", 2)
    assert (again.stored.dataset or "x", again.stored.axes) == ("x", ("axis_0", "y", "axis_2"))
    np.testing.assert_array_equal(again.read(slice(None)), cube.read(slice(None)))


def test_a_virtual_dataset_is_not_written_through(tmp_path, rng):
    path, expected = write_cube("hdf5", tmp_path, cube_of(rng, "i2"))
    layout = h5py.VirtualLayout(expected.shape, expected.dtype)
    layout[:] = h5py.VirtualSource(path, "scene/radiance", expected.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("radiance", layout)
    copy(open_cube(tmp_path / "virtual.h5", 2), tmp_path / "b.h5", lambda v: v + 1)
    np.testing.assert_array_equal(whole(path), expected)
    np.testing.assert_array_equal(whole(tmp_path / "b.h5", band_axis=2), expected + 1)


# ---------------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", ["npy", "envi", "zarr 3", "images, tif"])
def test_a_write_that_fails_half_way_leaves_the_old_file(kind, tmp_path, rng):
    expected = cube_of(rng, "u2")
    path, _ = write_cube(kind, tmp_path, expected)
    cube, target = opened(path, kind), target_for(kind, tmp_path)

    def fail():
        with cube.create(target) as out:
            out.write(slice(0, 8), cube.read(slice(0, 8)))
            raise KeyboardInterrupt

    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert sorted(tmp_path.rglob("*")) == before
    copy(cube, target)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert sorted(tmp_path.rglob("*")) == before
    np.testing.assert_array_equal(whole(target, band_axis=cube.band_axis), expected)


def test_files_are_replaced_only_with_overwrite(tmp_path):
    cube = open_cube(np.zeros((3, 4, 5)), band_axis=2)
    copy(cube, tmp_path / "a.npy")
    with pytest.raises(FileExistsError, match=r"a\.npy already exists"):
        cube.create(tmp_path / "a.npy", overwrite=False)

    def write():
        with cube.create(tmp_path / "b.npy", overwrite=False) as out:
            out.write(slice(None), cube.read(slice(None)))
            (tmp_path / "b.npy").write_text("came meanwhile")

    with pytest.raises(FileExistsError, match=r"b\.npy already exists"):
        write()
    assert (tmp_path / "b.npy").read_text() == "came meanwhile"
    assert left_over(tmp_path) == []


def test_all_rows_must_be_written_in_order(tmp_path):
    cube = open_cube(np.zeros((6, 4, 5), "f4"), band_axis=2)
    attempts = [
        ([(0, 2, 5)], r"a\.npy: only 2 of 6 rows were written"),
        ([(0, 2, 5), (3, 4, 5)], "rows 3 to 4 .*the next rows start at 2 and end at 6 at most"),
        ([(0, 2, 4)], r"\(2, 4, 4\)"),
        ([(0, 7, 5)], "rows 0 to 7 .*the next rows start at 0 and end at 6 at most"),
    ]

    def write(parts):
        with cube.create(tmp_path / "a.npy") as out:
            for start, stop, bands in parts:
                out.write(slice(start, stop), np.zeros((stop - start, 4, bands)))

    for parts, words in attempts:
        with pytest.raises(ValueError, match=words):
            write(parts)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("a.xyz", ValueError, "does not have the extension of a known format"),
        ("a", ValueError, "does not have the extension of a known format"),
        ("missing/a.npy", FileNotFoundError, "missing does not exist; create it first"),
        ("folder.npy", IsADirectoryError, "is a folder"),
        ("file.zarr", NotADirectoryError, "is a file"),
        ("full.zarr", FileExistsError, "not a Zarr store"),
        ("images to other", FileExistsError, "contains files other than images"),
        ("envi to cube.dat", ValueError, r"cube\.dat would replace .*cube\.hdr but not the"),
        ("a.tif", ValueError, r"a\.tif: .* files cannot hold float16 values"),
        ("a.mat", ValueError, r"a\.mat: .* files cannot hold float16 values"),
        ("a.hdr", ValueError, r"a\.hdr: .* files cannot hold float16 values"),
    ],
)
def test_impossible_targets_are_refused_before_the_work(name, error, words, tmp_path, rng):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "file.zarr").write_text("hello")
    for folder in ("full.zarr", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "precious.txt").write_text("hello")
    kind, _, name = name.rpartition(" to ")
    source = np.zeros((3, 4, 5), np.float16 if "float16" in words else np.float32)
    if kind:
        folder = tmp_path / "source" if kind == "images" else tmp_path
        folder.mkdir(exist_ok=True)
        source, _ = write_cube(kind.replace("images", "images, tif"), folder, cube_of(rng, "u2"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=words):
        open_cube(source).create(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before


FILL = """
import errno, json, os, resource, signal, sys
import numpy as np
from kronlearn.io.cubes import open_cube

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

os.fsync = lambda descriptor: None
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for size, source, target in json.load(sys.stdin):
    with open_cube(source) as cube:
        try:
            with cube.create(target) as out:
                out.write(slice(None), cube.read(slice(None)))
                limit(size)
            print("written")
        except OSError as error:
            assert os.path.splitext(target)[0] in str(error), error
            print("refused", error.errno == errno.ENOSPC)
        limit(resource.RLIM_INFINITY)
"""


# Kinds whose files are written, at least partly, after the rows are complete.
WRITTEN_LATE = ("envi", "geotiff", "hdf5", "netcdf 4", "mat 5", "mat 7.3", "zarr 3", "zarr, zip")
WRITTEN_LATE += ("images, tif", "images, png")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 60 kB; None if it cannot be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(options, capture_output=True).returncode:
        yield None
        return
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_failed_writes_raise_and_leave_nothing_behind(small_disk, tmp_path, rng):
    targets = tmp_path / "targets"
    targets.mkdir()
    refused, full = [], []
    for i, kind in enumerate(WRITTEN_LATE):
        (tmp_path / str(i)).mkdir()
        # Noise hardly compresses.
        noise = rng.integers(0, 32000, (40, 30, 20)).astype("u2")
        path, _ = write_cube(kind, tmp_path / str(i), noise)
        # This limit on file sizes is below that of any chunk.
        refused.append((200, str(path), str(target_for(kind, targets, f"out{i}"))))
        # The rows, 48 kB, fit on the disk; ENVI writes nothing else.
        if small_disk is not None and kind != "envi":
            full.append((1 << 30, str(path), str(target_for(kind, small_disk, f"out{i}"))))
        if kind == "envi":
            # For another format no copy is made, which could fail before the library writes.
            refused.append((200, str(path), str(targets / "new.h5")))
            if small_disk is not None:
                full.append((1 << 30, str(path), str(small_disk / "new.h5")))
    result = subprocess.run(
        [sys.executable, "-c", FILL],
        input=json.dumps(refused + full),
        capture_output=True,
        text=True,
        check=False,
    )
    # HDF5 must not crash when the process ends.
    assert result.returncode == 0, result.stderr
    expected = ["refused False"] * len(refused) + ["refused True"] * len(full)
    assert result.stdout.splitlines() == expected
    assert os.listdir(targets) == []
    assert small_disk is None or os.listdir(small_disk) == []


def test_a_geotiff_that_lost_values_is_discarded(tmp_path):
    cube = open_cube(np.ones((3, 4, 5)), band_axis=2)
    # As if GDAL failed to close the file, which it does not report.
    lost = mock.patch.object(rasterio.io.DatasetWriter, "write")
    words = r"a\.tif could not be written: the values could not be read back"
    with lost, pytest.raises(OSError, match=words):
        copy(cube, tmp_path / "a.tif")
    assert os.listdir(tmp_path) == []


def test_the_error_for_a_damaged_source_that_cannot_be_copied_names_the_target(tmp_path, rng):
    path, expected = write_cube("zarr, zip", tmp_path, cube_of(rng, "u2"))
    content = path.read_bytes()
    # The list of files at the end of the archive names one that is not there.
    listed = content.rindex(b"radiance/c/1/1/1")
    path.write_bytes(content[:listed] + b"radiance/d" + content[listed + 10 :])
    with (
        open_cube(path) as cube,
        pytest.raises(StoredArrayError, match=r"b\.zip could not be written"),
        cube.create(tmp_path / "b.zip") as out,
    ):
        out.write(slice(None), expected)
    assert os.listdir(tmp_path) == ["cube.zip"]


def test_a_full_disk_is_reported_before_the_work(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(writers.shutil, "disk_usage", lambda path: usage)
    cube = open_cube(np.zeros((30, 40, 50)), band_axis=2)
    with pytest.raises(OSError, match=r"a\.npy could not be written: the disk is full") as caught:
        cube.create(tmp_path / "a.npy")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["a.h5", "a.nc", "a.zarr", "a.tif"])
def test_a_missing_library_is_reported_before_the_work(target, tmp_path, monkeypatch):
    for library in ("h5py", "zarr", "rasterio"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"To write .*{target} needs the package"):
        open_cube(np.zeros((3, 4, 5))).create(tmp_path / target)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["a.npy", "a.zarr"])
def test_only_written_files_are_synced(target, tmp_path, monkeypatch):
    synced = []

    def noted(descriptor):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "sync", lambda: pytest.fail("flushes the disks of the whole machine"))
    copy(open_cube(np.zeros((3, 4, 5))), tmp_path / target)
    assert synced[-1] == tmp_path.name
    assert synced[-2].startswith(".kronlearn")
    assert ("zarr.json" in synced) == (target == "a.zarr")


def test_memory_is_bounded_by_the_rows(tmp_path):
    shape = (400, 300, 200)
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", "u2", shape).flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cube = open_cube(tmp_path / "a.npy", band_axis=2)
    copy(cube, tmp_path / "b.hdr", step=10)
    copy(open_cube(tmp_path / "b.hdr"), tmp_path / "c.npy", step=10)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < np.prod(shape) * 2 / 3
