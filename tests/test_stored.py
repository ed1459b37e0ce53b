"""Stored arrays: reading parts, damaged files, pickling, and metadata of every format."""

import logging
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import dask.array as da
import h5py
import numpy as np
import pytest
import spectral.io.envi
import tifffile
import xarray as xr
import zarr
from PIL import Image
from scipy.io import loadmat, netcdf_file, savemat

from cube_files import KINDS, cube_of, files_of, write_cube
from kronlearn.io.formats import mat
from kronlearn.io.stored import (
    StoredArrayError,
    StoredArrayNotFoundError,
    open_array,
)

#: A stand-in for Dask's tables, which need further libraries.
TABLE = {"__module__": "dask.dataframe.core", "to_dask_array": None, "shape": (None, 4)}
DASK_TABLE = type("DataFrame", (), TABLE)()


def random_key(rng, shape):
    return tuple(slice(*map(int, np.sort(rng.integers(0, n + 1, 2)))) for n in shape)


def whole(array):
    return array.read((slice(None),) * array.ndim)


def dtype_for(kind):
    return "f4" if kind == "netcdf 3" else "u2"


@pytest.fixture
def stored(request, tmp_path, rng):
    """A file of a kind as a stored array, and its values."""
    path, array = write_cube(request.param, tmp_path, cube_of(rng, dtype_for(request.param)), 1)
    return open_array(path), array


every_kind = pytest.mark.parametrize("stored", KINDS, indirect=True)


@every_kind
def test_a_part_equals_numpys(stored, rng):
    array, expected = stored
    assert array.shape == expected.shape
    assert array.dtype == expected.dtype
    for _ in range(20):
        key = random_key(rng, array.shape)
        part = array.read(key)
        assert type(part) is np.ndarray
        assert part.dtype.isnative
        np.testing.assert_array_equal(part, expected[key])


SHARED = ("npy", "geotiff", "hdf5, chunked", "netcdf 3", "mat 7.3", "zarr 3", "images, png")


@pytest.mark.parametrize("stored", SHARED, indirect=True)
def test_threads_read_the_same_values(stored, rng):
    array, expected = stored
    keys = [random_key(rng, array.shape) for _ in range(30)]
    with ThreadPoolExecutor(4) as pool:
        for key, part in zip(keys, pool.map(array.read, keys), strict=True):
            np.testing.assert_array_equal(part, expected[key])


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(300, 40, 90), (40, 300, 90), (7, 500, 300)])
def test_large_files_are_read_in_pieces(order, shape, tmp_path, rng):
    expected = rng.integers(0, 255, shape).astype("u1").astype(">u2", order=order)
    np.save(tmp_path / "large.npy", expected)
    array = open_array(tmp_path / "large.npy")
    for _ in range(10):
        key = random_key(rng, shape)
        np.testing.assert_array_equal(array.read(key), expected[key])
    for axis, length in enumerate(shape):
        key = [slice(None)] * 3
        key[axis] = slice(length // 2, length // 2 + 1)
        np.testing.assert_array_equal(array.read(tuple(key)), expected[tuple(key)])


def test_other_processes_reopen_the_file(tmp_path, rng, monkeypatch):
    arrays, sums = [], []
    for i, kind in enumerate(KINDS):
        folder = tmp_path / str(i)
        folder.mkdir()
        path, expected = write_cube(kind, folder, cube_of(rng, dtype_for(kind)))
        # The other process has another working directory.
        monkeypatch.chdir(folder)
        arrays.append(open_array(path.name))
        sums.append(int(expected.sum(dtype=np.int64)))
    content = pickle.dumps(arrays)
    assert len(content) < 400 * len(arrays)
    code = (
        "import pickle, sys\n"
        "for a in pickle.load(sys.stdin.buffer):\n"
        "    print(int(a.read((slice(None),) * a.ndim).sum(dtype='i8')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input=content, capture_output=True, check=True, cwd="/"
    )
    assert [int(line) for line in result.stdout.split()] == sums


def test_a_changed_file_is_not_reopened(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 5), "f4"))
    content = pickle.dumps(open_array(tmp_path / "a.npy"))
    np.save(tmp_path / "a.npy", np.zeros((4, 6), "f4"))
    with pytest.raises(StoredArrayError, match=r"a\.npy .*the file has changed"):
        pickle.loads(content)


# ---------------------------------------------------------------------------- objects


class Squares:
    shape = (5, 6)
    dtype = np.dtype("i4")

    def __getitem__(self, key):
        rows, columns = (np.arange(n)[part] for n, part in zip(self.shape, key, strict=True))
        return np.add.outer(rows, columns) ** 2


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda a: a, id="numpy"),
        pytest.param(lambda a: a[::-1, ::2].T, id="a view"),
        pytest.param(lambda a: a.astype(">f4"), id="big endian"),
        pytest.param(lambda a: da.from_array(a, chunks=(3, 4, 2)), id="dask"),
        pytest.param(lambda a: xr.DataArray(a, dims=("y", "x", "band")), id="xarray"),
        pytest.param(lambda a: zarr.array(a, chunks=(3, 4, 2)), id="zarr in memory"),
        pytest.param(lambda a: np.ma.MaskedArray(a), id="masked nowhere"),
        pytest.param(lambda a: a.tolist(), id="lists"),
        pytest.param(lambda a: Squares(), id="anything with shape, dtype and items"),
    ],
)
def test_array_like_objects_are_read(wrap, rng):
    thing = wrap(rng.standard_normal((9, 8, 6)).astype("f4"))
    array = pickle.loads(pickle.dumps(open_array(thing)))
    every = tuple(slice(0, n) for n in np.shape(thing))
    expected = thing[every] if isinstance(thing, Squares) else np.asarray(thing)
    key = random_key(rng, array.shape)
    np.testing.assert_array_equal(array.read(key), expected[key])
    assert open_array(array) is array


def test_arrays_of_open_files_are_reopened_by_path(tmp_path, rng):
    values = cube_of(rng, "i2")
    for kind in ("hdf5, chunked", "zarr 3"):
        path, expected = write_cube(kind, tmp_path, values)
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                array = pickle.loads(pickle.dumps(open_array(file["scene/radiance"])))
        else:
            group = zarr.open_group(path, mode="r")
            array = pickle.loads(pickle.dumps(open_array(group["radiance"])))
        assert array.path == path
        np.testing.assert_array_equal(whole(array), expected)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (np.zeros((3, 4), complex), "complex128 values"),
        (np.zeros((3, 4), object), "object values"),
        (np.zeros((3, 0, 4)), r"shape \(3, 0, 4\)"),
        (np.float32(3), r"shape \(\)"),
        (np.ma.masked_less(np.arange(6.0).reshape(2, 3), 2), "filled"),
        ({"a": 1}, "builtins.dict is not an array"),
        (xr.Dataset({"a": ("x", np.zeros(3))}), "xarray.Dataset is not an array"),
        (None, "is not an array"),
        (da.from_array(np.arange(20.0))[da.from_array(np.arange(20) > 3)], "compute_chunk_sizes"),
        (DASK_TABLE, r"dask\.DataFrame is a table.*to_dask_array\(lengths=True\)"),
    ],
)
def test_objects_that_are_not_numeric_arrays_are_refused(thing, words):
    with pytest.raises(StoredArrayError, match=words):
        open_array(thing)


def test_slices_mean_what_they_mean_in_numpy():
    values = np.arange(12).reshape(3, 4)
    array = open_array(values)
    np.testing.assert_array_equal(array.read((slice(-2, None), slice(1, 99))), values[-2:, 1:])
    assert array.read((slice(2, 1),)).shape == (0, 4)
    with pytest.raises(ValueError, match=r"numpy\.ndarray: .*give slices of step one"):
        array.read((slice(0, 3, 2), slice(None)))
    with pytest.raises(ValueError, match="has 2 dimensions, but 3 slices were given"):
        array.read((slice(None),) * 3)


# ---------------------------------------------------------------------------- several arrays


def test_the_array_with_the_most_dimensions_is_the_default(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["map"], file["cube"], file["text"] = np.ones((3, 4)), np.ones((3, 4, 5)), "hello"
    assert open_array(tmp_path / "a.h5").dataset == "cube"
    assert open_array(tmp_path / "a.h5", "map").shape == (3, 4)


def containers(folder):
    arrays = {"one": np.ones((3, 4, 5)), "two": np.ones((2, 2, 2)), "line": np.ones(7)}
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
    savemat(folder / "a.mat", arrays)
    group = zarr.create_group(folder / "a.zarr")
    for name, values in arrays.items():
        group.create_array(name, shape=values.shape, dtype="f8")[:] = values
    with netcdf_file(folder / "a.nc", "w") as file:
        for name, values in arrays.items():
            names = tuple(f"{name}{i}" for i in range(values.ndim))
            for dimension, length in zip(names, values.shape, strict=True):
                file.createDimension(dimension, length)
            file.createVariable(name, "f8", names)[:] = values
    return [folder / f"a.{ending}" for ending in ("h5", "mat", "zarr", "nc")]


@pytest.mark.parametrize("which", range(4))
def test_the_error_lists_the_arrays_that_could_be_meant(which, tmp_path):
    thing = containers(tmp_path)[which]
    with pytest.raises(StoredArrayError, match=r"one \(3, 4, 5\), .*two \(2, 2, 2\).*dataset="):
        open_array(thing)
    with pytest.raises(StoredArrayError, match=r"no array 'three'.*one \(3, 4, 5\)"):
        open_array(thing, "three")
    assert open_array(thing, "two").shape == (2, 2, 2)


@pytest.mark.parametrize("kind", ["npy", "envi", "geotiff", "images, tif", "zarr 3"])
def test_dataset_is_refused_for_single_arrays(kind, tmp_path, rng):
    path, expected = write_cube(kind, tmp_path, cube_of(rng, "u2"))
    if kind == "zarr 3":
        # The path of the array itself rather than of its group.
        path = path / "radiance"
    for thing, name in ((path, path.name), (expected, "ndarray")):
        with pytest.raises(StoredArrayError, match=f"{name} is a single array; .* dataset='x'"):
            open_array(thing, "x")


# ---------------------------------------------------------------------------- damage


def outcome(path):
    """The values in a file, or the message of the error."""
    try:
        array = open_array(path)
        # The values of a damaged shape may not fit into memory.
        return whole(array) if max(array.shape) < 100 else None
    except StoredArrayError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_for_a_truncated_file_names_it(kind, tmp_path, rng):
    path, expected = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    file = files_of(path)[0]
    content = file.read_bytes()
    for size in {0, 1, 3, len(content) // 3, len(content) // 2, len(content) - 1}:
        file.write_bytes(content[:size])
        found = outcome(path)
        if isinstance(found, str):
            assert str(tmp_path) in found
        else:
            # The last byte may be padding.
            assert size == len(content) - 1
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_raise_only_stored_array_errors(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    for file in files_of(path)[:2]:
        content = file.read_bytes()
        for _ in range(6):
            changed = bytearray(content)
            for offset in rng.integers(0, min(len(content), 2000), 2):
                changed[offset] = rng.integers(0, 256)
            file.write_bytes(changed)
            found = outcome(path)
            assert not isinstance(found, str) or str(tmp_path) in found
        file.write_bytes(content)


@pytest.mark.parametrize("kind", ["npy", "envi", "netcdf 3"])
def test_truncating_a_file_while_it_is_read_does_not_kill_the_process(kind, tmp_path, rng):
    path, expected = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    array = open_array(path)
    with open(files_of(path)[0], "r+b") as file:
        file.truncate(len(expected.tobytes()) // 2)
    with pytest.raises(StoredArrayError, match="truncated"):
        whole(array)


ENDINGS = ("npy", "h5", "hdf5", "he5", "nc", "nc4", "mat", "tif", "tiff", "zip", "hdr")


@pytest.mark.parametrize("ending", ENDINGS)
def test_text_files_with_other_endings_are_refused(ending, tmp_path):
    path = tmp_path / f"notes.{ending}"
    path.write_text("These are only words, and quite a few of them. " * 20)
    with pytest.raises(StoredArrayError, match=re.escape(str(path))):
        open_array(path)
    path.write_bytes(b"")
    with pytest.raises(StoredArrayError, match=rf"{re.escape(str(path))} is empty"):
        open_array(path)


KNOWN_BY_CONTENT = ("npy", "geotiff", "hdf5", "netcdf 3", "mat 5", "zarr, zip", "envi")


@pytest.mark.parametrize("ending", ["data", "tif"])
@pytest.mark.parametrize("kind", KNOWN_BY_CONTENT)
def test_content_takes_precedence_over_the_ending(kind, ending, tmp_path, rng):
    path, expected = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    if kind == "envi":
        # The binary file, which only its header identifies.
        path, ending = path.with_suffix(".img"), "data"
    moved = path.rename(tmp_path / f"cube.{ending}")
    array = pickle.loads(pickle.dumps(open_array(moved)))
    assert array.path == moved
    np.testing.assert_array_equal(whole(array), expected)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.npy", None, "does not exist"),
        ("missing.zarr", None, "does not exist"),
        ("folder", "folder", "is a folder without images"),
        ("folder.h5", "folder", "is a folder without images"),
        ("folder.zarr", "folder", "cannot be read as a Zarr store"),
        ("a.xyz", "12345678", r"is in no known format.*\.zarr.*ENVI"),
        ("a.npz", "PK", "is a NumPy archive.*save the array you need"),
    ],
)
def test_the_error_for_a_path_that_cannot_be_opened_names_it(name, content, words, tmp_path):
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_text(content)
    error = StoredArrayError if content else StoredArrayNotFoundError
    with pytest.raises(error, match=rf"{re.escape(name)}.* {words}"):
        open_array(tmp_path / name)


def test_an_envi_header_needs_a_data_file(tmp_path, rng):
    path, _ = write_cube("envi", tmp_path, cube_of(rng, "u2"))
    path.with_suffix(".img").unlink()
    with pytest.raises(StoredArrayError, match=r"cube\.hdr has no data file .* no cube, .*\.sli"):
        open_array(path)


def test_envi_files_may_have_upper_case_endings_and_a_header_offset(tmp_path, rng):
    path, expected = write_cube("envi", tmp_path, cube_of(rng, "u2"), 0)
    binary = path.with_suffix(".img").rename(tmp_path / "cube.IMG")
    binary.write_bytes(b"embedded" + binary.read_bytes())
    path.write_text(path.read_text().replace("header offset = 0", "header offset = 8"))
    for name in (binary, path.rename(tmp_path / "cube.HDR")):
        np.testing.assert_array_equal(whole(open_array(name)), expected)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("lines", "many", "lines = many is not a whole number"),
        ("lines", "-4", "lines = -4 is not a whole number"),
        ("lines", "0", "must not be empty"),
        ("lines", "12", "does not match its header: it has 2002 bytes"),
        ("samples", "20", "is truncated: it has 2002 bytes"),
        ("bands", "8", "is truncated: it has 2002 bytes"),
        ("bands", None, "has no field 'bands'"),
        ("data type", "6", "data type = 6 is not supported; supported are 1 (uint8), 2 (int16)"),
        ("interleave", "pqr", "interleave = pqr is not supported; supported are bsq (bands,"),
        ("byte order", "2", "byte order = 2 is not supported"),
        ("wavelength", "{1, two}", "wavelength holds 'two', which is not a number"),
        ("data ignore value", "none", "data ignore value holds 'none', which is not a number"),
        ("file compression", "1", "decompress the file"),
        ("description", "{not closed", "Failed to parse ENVI header"),
    ],
)
def test_invalid_envi_headers_are_refused(field, value, words, tmp_path, rng):
    path, _ = write_cube("envi", tmp_path, cube_of(rng, "u2"))
    text = re.sub(rf"^{field} = [^\n]*\n(  [^\n]*\n)*", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(text if value is None else f"{text}{field} = {value}\n")
    with pytest.raises(StoredArrayError, match=rf"cube\.(hdr|img).*{re.escape(words)}"):
        open_array(path)


def test_an_npy_header_with_another_shape_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((30, 40)))
    content = (tmp_path / "a.npy").read_bytes()
    for shape in (b"(30, 39)", b"(31, 40)"):
        (tmp_path / "a.npy").write_bytes(content.replace(b"(30, 40)", shape))
        with pytest.raises(StoredArrayError, match=r"a\.npy .*has 9728 bytes"):
            open_array(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(content[:-1])
    with pytest.raises(StoredArrayError, match=r"a\.npy is truncated: it has 9727 bytes"):
        open_array(tmp_path / "a.npy")


def test_images_of_a_folder_must_be_alike(tmp_path, rng):
    path, expected = write_cube("images, png", tmp_path, cube_of(rng, "u2", (13, 11, 12)))
    # In natural order.
    assert open_array(path).attributes["files"][-2:] == ["band11.png", "band12.png"]
    np.testing.assert_array_equal(whole(open_array(path)), expected)
    for image, words in (
        (np.zeros((13, 12), "u2"), r"band3\.png is 13 × 12 .*band1\.png is 13 × 11"),
        (np.zeros((13, 11), "u1"), r"band3\.png is 13 × 11 grey uint8"),
        (np.zeros((13, 11, 3), "u1"), r"band3\.png is not a grey image"),
    ):
        Image.fromarray(image).save(path / "band3.png")
        with pytest.raises(StoredArrayError, match=words):
            whole(open_array(path))


LIBRARIES = {"zarr 3": "zarr", "hdf5": "h5py", "geotiff": "rasterio", "envi": "spectral.io.envi"}


@pytest.mark.parametrize("kind", LIBRARIES)
def test_the_error_for_a_missing_library_says_how_to_install_it(kind, tmp_path, rng, monkeypatch):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "u2"))
    monkeypatch.setitem(sys.modules, LIBRARIES[kind], None)
    package = LIBRARIES[kind].partition(".")[0]
    with pytest.raises(ImportError, match=rf"{path.name} needs .*{package},.*\.\[io\]"):
        open_array(path)


def open_handles(path):
    """The number of times that this process has a file open."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link) == os.path.realpath(path) for link in links)


HELD_OPEN = ("npy", "envi", "geotiff", "hdf5", "netcdf 3", "netcdf 4", "mat 7.3", "zarr, zip")


@pytest.mark.parametrize("kind", HELD_OPEN)
def test_opened_files_are_closed(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    file = files_of(path)[0]
    with open_array(path) as array:
        assert open_handles(file) == 1
        whole(array)
    assert open_handles(file) == 0
    with pytest.raises(StoredArrayError, match="is closed; open it again"):
        whole(array)
    array.close()
    other = open_array(path)
    assert open_handles(file) == 1
    del other
    assert open_handles(file) == 0


@pytest.mark.parametrize("kind", ["hdf5", "netcdf 3", "mat 7.3", "zarr, zip"])
def test_files_are_closed_after_an_error(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, dtype_for(kind)))
    with pytest.raises(StoredArrayError, match="no array 'missing'") as caught:
        open_array(path, "missing")
    # The error still refers to the frames that opened the file.
    assert open_handles(path) == 0, caught


class Failing(Squares):
    def __init__(self, error):
        self.error = error

    def __getitem__(self, key):
        raise self.error


def test_only_errors_of_the_file_become_stored_array_errors(tmp_path):
    every = (slice(None), slice(None))
    with pytest.raises(MemoryError):
        open_array(Failing(MemoryError())).read(every)
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    too_little = mock.patch("numpy.lib.format.read_magic", side_effect=MemoryError)
    with too_little, pytest.raises(MemoryError):
        open_array(tmp_path / "a.npy")
    undecodable = UnicodeDecodeError("utf-8", b"x", 0, 1, "no text")
    with pytest.raises(StoredArrayError, match=r"Failing cannot be read at \[0:5, 0:6\].*no text"):
        open_array(Failing(undecodable)).read(every)


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
def test_images_of_spectral_python_are_read(interleave, tmp_path, rng):
    values = cube_of(rng, "i2")
    metadata = {"data ignore value": -1, "wavelength": list(range(values.shape[2]))}
    path, options = str(tmp_path / "a.hdr"), {"interleave": interleave, "dtype": "i2"}
    spectral.io.envi.save_image(path, values, metadata=metadata, **options)
    image = spectral.io.envi.open(path)
    array = pickle.loads(pickle.dumps(open_array(image)))
    np.testing.assert_array_equal(whole(array), whole(open_array(path)))
    assert array.nodata == -1
    assert array.wavelengths is not None
    loaded = image.load()
    np.testing.assert_array_equal(whole(open_array(loaded)), np.asarray(loaded))
    # SPy divides by this factor, but claims integers.
    spectral.io.envi.save_image(
        path, values, metadata={"reflectance scale factor": 100}, force=True, **options
    )
    with pytest.raises(StoredArrayError, match=r"divides by 100; pass the path .*a\.img"):
        open_array(spectral.io.envi.open(path))
    part = spectral.io.spyfile.SubImage(spectral.io.envi.open(path), (0, 5), (0, 5))
    with pytest.raises(StoredArrayError, match="SubImage returned float64 values, not"):
        whole(open_array(part))


def test_memory_mapped_arrays_are_read_from_their_file(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1200.0).reshape(30, 40))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    turned = mapped.reshape(5, 6, 40).transpose(1, 2, 0)
    for part in (mapped, mapped[3:, 5:].T, mapped[::2, 7:30:3][1:4], turned):
        array = pickle.loads(pickle.dumps(open_array(part)))
        assert array.path == tmp_path / "a.npy"
        np.testing.assert_array_equal(whole(array), part)
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    private[2:] = 7
    np.testing.assert_array_equal(whole(open_array(private)), private)
    backwards = mapped[::-1]
    np.testing.assert_array_equal(whole(open_array(backwards)), backwards)


def claim(path, length):
    """Change the number of rows and columns that the first page of a TIFF declares."""
    with tifffile.TiffFile(path, mode="r+") as file:
        for name in ("ImageWidth", "ImageLength"):
            file.pages[0].tags[name].overwrite(length)


@pytest.mark.parametrize("kind", ["geotiff, tiled", "images, tif", "pages"])
def test_a_tiff_with_fewer_tiles_than_it_claims_is_refused(kind, tmp_path, rng):
    path, _ = write_cube(kind, tmp_path, cube_of(rng, "u2", (40, 40, 3)))
    for file in files_of(path):
        claim(file, 20000)
    with pytest.raises(StoredArrayError, match="20000 × 20000 pixels need"):
        open_array(path)


def test_libraries_neither_warn_nor_log_about_damaged_tiffs(tmp_path, rng, capfd, recwarn, caplog):
    path, _ = write_cube("geotiff", tmp_path, cube_of(rng, "u2"))
    content = path.read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        for offset in rng.integers(0, 800, 2):
            changed[offset] = rng.integers(0, 256)
        path.write_bytes(changed)
        outcome(path)
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")
    # Afterwards, the libraries log as before.
    logging.getLogger("tifffile").warning("something else")
    assert "something else" in caplog.text


# ---------------------------------------------------------------------------- metadata


def packed_file(folder, version, **attributes):
    numbers = np.array([[0, 1, 2], [-5, -9999, 300]], "i2")
    if version == 3:
        with netcdf_file(folder / "a.nc", "w") as file:
            file.createDimension("y", 2)
            file.createDimension("x", 3)
            variable = file.createVariable("a", "i2", ("y", "x"))
            variable[:] = numbers
            for name, value in attributes.items():
                setattr(variable, name, value)
    else:
        with h5py.File(folder / "a.nc", "w") as file:
            file["a"] = numbers
            file["a"].attrs.update(attributes)
    return open_array(folder / "a.nc")


SCALED = {"scale_factor": np.float32(0.5), "add_offset": np.float32(10)}
FILL = {"_FillValue": np.int16(-9999)}
UNSIGNED = {"_Unsigned": "true", "scale_factor": 2.0}


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("attributes", "expected", "nodata"),
    [
        (SCALED | FILL, np.array([[10, 10.5, 11], [7.5, np.nan, 160]], "f4"), np.nan),
        (UNSIGNED | FILL, np.array([[0, 2, 4], [2 * 65531, np.nan, 600]], "f4"), np.nan),
        ({"missing_value": np.int16(-9999)}, np.array([[0, 1, 2], [-5, -9999, 300]], "i2"), -9999),
    ],
)
def test_netcdf_values_are_unpacked(version, attributes, expected, nodata, tmp_path):
    array = packed_file(tmp_path, version, **attributes)
    np.testing.assert_equal((array.dtype, array.nodata), (expected.dtype, nodata))
    for again in (array, pickle.loads(pickle.dumps(array))):
        np.testing.assert_array_equal(whole(again), expected)


@pytest.mark.parametrize("value", [0.0, "half"])
def test_invalid_packing_is_refused(value, tmp_path):
    with pytest.raises(StoredArrayError, match=r"a\.nc.*scale_factor"):
        packed_file(tmp_path, 4, scale_factor=value)


def test_attributes_that_h5py_cannot_read_are_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["cube"], file["wavelength"] = np.ones((3, 4, 5)), np.arange(5.0)
        scalar, time = h5py.h5s.create(h5py.h5s.SCALAR), h5py.h5t.UNIX_D32LE
        for dataset in (file["cube"], file["wavelength"]):
            h5py.h5a.create(dataset.id, b"acquired", time, scalar)
            dataset.attrs["units"] = "nm"
    array = open_array(tmp_path / "a.h5")
    assert (array.attributes, array.wavelength_units) == ({"units": "nm"}, "nm")


def test_plain_hdf5_is_not_unpacked(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.arange(6, dtype="i2").reshape(2, 3)
        file["a"].attrs.update(scale_factor=10000.0, Data_Ignore_Value=-9999.0)
    array = open_array(tmp_path / "a.h5")
    assert (array.dtype, array.nodata) == (np.int16, -9999)
    assert array.attributes["scale_factor"] == 10000


@pytest.mark.parametrize("version", [2, 3])
def test_xarrays_zarr_stores_are_unpacked(version, tmp_path, rng):
    values = cube_of(rng, "f8") / 4
    values[2, 3, 4] = np.nan
    data = xr.Dataset({"radiance": (("y", "x", "band"), values)})
    encoding = {"radiance": {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -9999}}
    data.to_zarr(tmp_path / "a.zarr", zarr_format=version, consolidated=False, encoding=encoding)
    array = open_array(tmp_path / "a.zarr")
    assert array.axes == ("y", "x", "band")
    np.testing.assert_array_equal(whole(array), values)


def test_complex_matlab_variables_are_not_read_as_real(tmp_path):
    cube = np.ones((3, 4, 5))
    for compressed in (False, True):
        savemat(tmp_path / "a.mat", {"z": cube * 1j, "cube": cube}, do_compression=compressed)
        assert open_array(tmp_path / "a.mat").dataset == "cube"
        with pytest.raises(StoredArrayError, match=r"a\.mat \(z\) holds complex128 values"):
            open_array(tmp_path / "a.mat", "z")


IN_CELLS = np.array([[np.ones((3, 4)), "text"]], object)


@pytest.mark.parametrize(
    ("variable", "start", "offset", "value"),
    [
        # Bytes for the type of the numbers, and for the flag of complex numbers.
        (np.ones((3, 4, 5)), b"cube", 4, 200),
        (np.ones((3, 4, 5)), b"cube", 4, 8),
        (np.ones((3, 4, 5)), b"cube", -35, 8),
        (np.ones((3, 4)) * 1j, b"cube", 4 + 8 + 96, 8),
        # The same inside a variable, where numbers and texts are no variables either.
        (IN_CELLS, np.ones((3, 4)).tobytes(), -8, 8),
        (IN_CELLS, np.ones((3, 4)).tobytes(), -8, 14),
        (IN_CELLS, b"text", -4, 14),
        # Two thousand million cells.
        (IN_CELLS, b"cube", -9, 100),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_damage_that_crashes_scipy_is_refused(variable, start, offset, value, compressed, tmp_path):
    savemat(tmp_path / "a.mat", {"other": np.ones((3, 4, 5)), "cube": variable})
    content = bytearray((tmp_path / "a.mat").read_bytes())
    content[content.index(start, content.index(b"cube")) + offset] = value
    if compressed:
        packed = zlib.compress(content[128:])
        content[128:] = struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "a.mat").write_bytes(content)
    with pytest.raises(StoredArrayError, match=r"a\.mat"):
        open_array(tmp_path / "a.mat", "other")


def test_damage_that_crashes_hdf5_does_no_harm(tmp_path, rng):
    path, expected = write_cube("netcdf 4", tmp_path, cube_of(rng, "i2"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"DIMENSION_SCALE", b"DIMENSION_SCALP"))
    np.testing.assert_array_equal(whole(open_array(path)), expected)


def test_matlab_doubles_stored_as_small_integers_are_read_as_doubles(tmp_path):
    mat5_header = b"MATLAB 5.0".ljust(124) + b"\x00\x01IM"
    parts = b"".join(
        [
            np.array([6, 8, 6, 0], "<u4").tobytes(),  # of class double
            np.array([5, 8, 2, 3], "<i4").tobytes(),
            np.array([1 | 1 << 16, ord("a")], "<u4").tobytes(),
            np.array([2, 6], "<u4").tobytes() + bytes([1, 2, 3, 4, 5, 250, 0, 0]),
        ]
    )
    content = mat5_header + np.array([14, len(parts)], "<u4").tobytes() + parts
    (tmp_path / "a.mat").write_bytes(content)
    array = open_array(tmp_path / "a.mat")
    assert array.dtype == np.float64
    np.testing.assert_array_equal(whole(array), [[1, 3, 5], [2, 4, 250]])
    np.testing.assert_array_equal(whole(array), loadmat(tmp_path / "a.mat")["a"])


def test_checking_a_compressed_matlab_variable_takes_little_memory(tmp_path):
    path = tmp_path / "zeros.mat"
    savemat(path, {"cube": np.zeros((200, 200, 100))}, do_compression=True)
    tracemalloc.start()
    mat._check_variables(path, "<")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # the variable has 32 million
