"""Cubes in files of every format, written by other libraries than kronlearn."""

import shutil
import warnings
from pathlib import Path

import h5py
import numpy as np
import rasterio
import spectral.io.envi
import tifffile
import zarr
from PIL import Image
from scipy.io import netcdf_file, savemat

#: The wavelengths of the first bands, in files that can hold them.
WAVELENGTHS = 400 + 10.5 * np.arange(64)
BANDS = "wavelength"
DIMENSIONS = {0: (BANDS, "y", "x"), 1: ("y", BANDS, "x"), 2: ("y", "x", BANDS)}


def _npy(byte_order="=", order="C"):
    def write(folder, array, axis):
        array = array.astype(array.dtype.newbyteorder(byte_order), order=order)
        np.save(folder / "cube.npy", array)
        return folder / "cube.npy"

    return write


def _envi(byte_order):
    def write(folder, array, axis):
        cube = np.moveaxis(array, axis, 2)
        metadata = {
            "description": "made for a test",
            "wavelength": [str(w) for w in WAVELENGTHS[: cube.shape[2]]],
            "wavelength units": "Nanometers",
            "map info": ["UTM", "1.0", "1.0", "500000", "5000000", "30", "30", "33", "North"],
            "band names": [f"band {i}" for i in range(cube.shape[2])],
            "data ignore value": -9999,
        }
        spectral.io.envi.save_image(
            str(folder / "cube.hdr"),
            cube,
            dtype=cube.dtype,
            interleave=("bsq", "bil", "bip")[axis],
            byteorder=byte_order,
            metadata=metadata,
            force=True,
        )
        return folder / "cube.hdr"

    return write


def _geotiff(**options):
    def write(folder, array, axis):
        bands = np.moveaxis(array, axis, 0)
        count, height, width = bands.shape
        profile = {"count": count, "height": height, "width": width, "dtype": bands.dtype.name}
        transform = rasterio.Affine(30, 0, 500000, 0, -30, 5000000)
        path = folder / "cube.tif"
        with rasterio.open(
            path, "w", driver="GTiff", crs="EPSG:32633", transform=transform, **profile, **options
        ) as file:
            file.write(bands)
            file.update_tags(MISSION="test")
            for band in range(1, count + 1):
                file.update_tags(band, wavelength=str(WAVELENGTHS[band - 1]))
                file.set_band_description(band, f"band {band}")
        return path

    return write


def _hdf5(**options):
    def write(folder, array, axis):
        with h5py.File(folder / "cube.h5", "w") as file:
            dataset = file.create_dataset("scene/radiance", data=array, **options)
            dataset.attrs["units"] = "W"
            file["scene/wavelengths"] = WAVELENGTHS[: array.shape[axis]]
            file["location/latitude"] = np.linspace(0, 1, 5)
            file.attrs["title"] = "a test"
        return folder / "cube.h5"

    return write


def _netcdf4(folder, array, axis):
    with h5py.File(folder / "cube.nc", "w", track_order=True) as file:
        dataset = file.create_dataset("radiance", data=array)
        dataset.attrs["units"] = "W"
        for i, name in enumerate(DIMENSIONS[axis]):
            values = WAVELENGTHS if name == BANDS else 0.5 * np.arange(1000)
            file[name] = values[: array.shape[i]]
            file[name].make_scale(name)
            dataset.dims[i].attach_scale(file[name])
    return folder / "cube.nc"


def _netcdf3(folder, array, axis):
    with netcdf_file(folder / "cube.nc", "w") as file:
        for i, name in enumerate(DIMENSIONS[axis]):
            file.createDimension(name, array.shape[i])
        for name, values in ((BANDS, WAVELENGTHS), ("y", 0.5 * np.arange(1000))):
            length = array.shape[DIMENSIONS[axis].index(name)]
            file.createVariable(name, "f8", (name,))[:] = values[:length]
        variable = file.createVariable("radiance", array.dtype, DIMENSIONS[axis])
        variable[:] = array
        variable.units = "W"
    return folder / "cube.nc"


def _mat5(compressed):
    def write(folder, array, axis):
        variables = {
            "ground_truth": np.ones((3, 4)),
            "radiance": array,
            "wavelength": WAVELENGTHS[: array.shape[axis]],
            "text": "a test",
            "record": {"a": 1.0, "b": "two"},
        }
        savemat(folder / "cube.mat", variables, do_compression=compressed)
        return folder / "cube.mat"

    return write


def _mat73(folder, array, axis):
    path = folder / "cube.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["radiance"] = array.T
        file["radiance"].attrs["MATLAB_class"] = np.bytes_(array.dtype.name)
        file["wavelength"] = WAVELENGTHS[: array.shape[axis], None]
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return path


def _zarr(version, **options):
    def write(folder, array, axis):
        path = folder / "cube.zarr"
        group = zarr.create_group(path, zarr_format=version, attributes={"title": "a test"})
        attributes, names = {"units": "W"}, {"dimension_names": DIMENSIONS[axis]}
        if version == 2:
            attributes, names = attributes | {"_ARRAY_DIMENSIONS": DIMENSIONS[axis]}, {}
        radiance = group.create_array(
            "radiance",
            shape=array.shape,
            dtype=array.dtype,
            attributes=attributes,
            fill_value=None if version == 2 else 0,
            **names,
            **options,
        )
        radiance[:] = array
        waves = WAVELENGTHS[: array.shape[axis]]
        group.create_array("wavelength", shape=waves.shape, dtype=waves.dtype)[:] = waves
        return path

    return write


def _zarr_zip(folder, array, axis):
    whole = _zarr(3, chunks=(4, 5, 6))(folder, array, axis)
    shutil.make_archive(str(folder / "cube"), "zip", whole)
    shutil.rmtree(whole)
    return folder / "cube.zip"


def _images(ending):
    def write(folder, array, axis):
        (folder / "bands").mkdir()
        for i, band in enumerate(np.moveaxis(array, axis, 0)):
            path = folder / "bands" / f"band{i + 1}{ending}"
            if ending == ".png":
                Image.fromarray(band).save(path)
            else:
                tifffile.imwrite(path, band)
        return folder / "bands"

    return write


def _pages(folder, array, axis):
    bands = np.ascontiguousarray(np.moveaxis(array, axis, 0))
    tifffile.imwrite(folder / "pages.tif", bands, photometric="minisblack")
    return folder / "pages.tif"


#: Functions (folder, array, axis of the bands) that write a file of a kind and return its path.
WRITERS = {
    "npy": _npy(),
    "npy, Fortran order": _npy(order="F"),
    "npy, big endian": _npy(byte_order=">"),
    "envi": _envi(0),
    "envi, big endian": _envi(1),
    "geotiff": _geotiff(),
    "geotiff, tiled": _geotiff(
        tiled=True, blockxsize=16, blockysize=16, compress="deflate", interleave="band"
    ),
    "hdf5": _hdf5(),
    "hdf5, chunked": _hdf5(chunks=(4, 5, 6), compression="gzip", shuffle=True),
    "netcdf 4": _netcdf4,
    "netcdf 3": _netcdf3,
    "mat 5": _mat5(False),
    "mat 5, compressed": _mat5(True),
    "mat 7.3": _mat73,
    "zarr 2": _zarr(2, chunks=(4, 5, 6)),
    "zarr 3": _zarr(3, chunks=(4, 5, 6)),
    "zarr, zip": _zarr_zip,
    "images, tif": _images(".tif"),
    "images, png": _images(".png"),
    "pages": _pages,
}
KINDS = list(WRITERS)
#: Kinds of files that always have their bands first.
BANDS_FIRST = {"geotiff", "geotiff, tiled", "images, tif", "images, png", "pages"}


def can_hold(kind, dtype):
    """Whether files of a kind, as written here, can hold a dtype."""
    dtype = np.dtype(dtype)
    if kind == "netcdf 3":
        return dtype in (np.int16, np.float32, np.float64)
    return kind != "images, png" or dtype == np.uint16


def write_cube(kind, folder, cube, axis=2):
    """Write a cube (rows, columns, bands) with its bands along an axis.

    Returns the path of the file, and the array that should be read from it.
    """
    folder = Path(folder)
    array = np.ascontiguousarray(np.moveaxis(cube, 2, axis))
    with warnings.catch_warnings():
        # The libraries announce changes of their own.
        warnings.simplefilter("ignore")
        path = WRITERS[kind](folder, array, axis)
    return path, np.moveaxis(cube, 2, 0) if kind in BANDS_FIRST else array


def files_of(path):
    """The files that hold a cube, the largest first."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
    elif path.suffix == ".hdr":
        files = [path, path.with_suffix(".img")]
    else:
        files = [path]
    return sorted(files, key=lambda file: (-file.stat().st_size, file.name))


def cube_of(rng, dtype, shape=(13, 11, 7)):
    """A cube of random numbers that every kind of file can hold."""
    return rng.integers(0, 3000, shape).astype(dtype)
