"""``kronlearn cube``: hyperspectral cubes in files of many formats."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn import options as opt
from kronlearn.cli.checks import check_outputs, one_or_each, use_device
from kronlearn.cli.fitting import learn_and_save
from kronlearn.cli.groups import Group, command_of
from kronlearn.cli.output import Output, counted, facts_table, times
from kronlearn.cli.report import Page, save_report
from kronlearn.hyperspectral.learning import default_atoms
from kronlearn.io.cubes import Cube, open_cube
from kronlearn.io.stored import StoredArrayError, open_array
from kronlearn.io.writers import target_files

__all__ = ["cube"]

_FORMATS = "ENVI (.hdr), GeoTIFF, NetCDF, HDF5, Zarr, .mat, .npy, or a folder of images"

File = Annotated[Path, typer.Argument(metavar="FILE", help=f"A cube: {_FORMATS}.")]


def info(
    path: File,
    noise: Annotated[
        bool, typer.Option("--noise", help="Also estimate the noise of every band.")
    ] = False,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Describe a cube file."""
    shown = Output(as_json, quiet)
    data = _open(path, band_axis, dataset, nodata, shown)
    record: dict[str, Any] = {
        "file": str(path),
        "dataset": data.stored.dataset,
        "shape": data.shape,
        "dtype": data.dtype.name,
        "band_axis": data.band_axis,
        "band_axis_reason": data.band_axis_reason,
        "chunks": data.chunks,
        # JSON has no NaN.
        "nodata": "nan" if data.nodata is not None and np.isnan(data.nodata) else data.nodata,
        "wavelengths": data.wavelengths,
        "wavelength_units": data.wavelength_units,
        "bad_bands": data.bad_bands,
        "crs": data.attributes.get("crs"),
        "bytes": math.prod(data.shape) * data.dtype.itemsize,
        "attributes": data.attributes,
    }
    facts = [
        ("file", path),
        ("dataset", data.stored.dataset),
        ("cube", _described(data)),
        ("band axis", f"{data.band_axis}, {data.band_axis_reason}"),
        ("wavelengths", _range(data.wavelengths, data.wavelength_units)),
        ("bad bands", _bad_bands(data)),
        ("coordinate system", record["crs"]),
        ("no data", data.nodata),
        ("scaling, not applied", _scaling(data)),
        ("chunks", data.chunks and times(data.chunks)),
        ("in memory", f"{record['bytes'] / 1e6:.3g} MB"),
    ]
    if noise:
        record["sigma"] = kl.hyperspectral.estimate_noise(data, n_jobs=n_jobs)
        facts.append(("noise level", _level(record["sigma"])))
    shown.say(facts_table(facts))
    shown.finish(record)


def learn(
    path: File,
    output: opt.Model = Path("model.safetensors"),
    patch: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_sizes,
            metavar="8x8",
            help="Shape of a patch in one band; a third size makes patches of several bands.",
        ),
    ] = "8x8",
    atoms: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_sizes,
            metavar="16x16",
            help="Number of atoms per mode.",
            show_default="twice the patch size; the patch size if orthonormal or with three modes",
        ),
    ] = None,
    sparsity: opt.Sparsity = None,
    tol: opt.Tol = None,
    remove_means: Annotated[
        bool, typer.Option("--remove-means", help="Subtract the mean of each patch.")
    ] = False,
    structure: opt.Structure = "general",
    method: opt.Method = "ols",
    max_iter: opt.MaxIter = 30,
    time_budget: opt.TimeBudget = None,
    checkpoint: opt.Checkpoint = None,
    seed: opt.Seed = None,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn a dictionary from all patches of a cube and save it.

    The dictionary is for sparse coding; cube denoise does not use one. The cube is read in blocks
    of rows and need not fit into memory. Ctrl-C or SIGTERM ends learning and saves the best
    dictionary so far.
    """
    options = locals()
    shown = Output(as_json, quiet)
    use_device(device, shown)
    outputs = [("--output", output), ("--checkpoint", checkpoint)]
    check_outputs(outputs, [path], overwrite)
    data = _open(path, band_axis, dataset, nodata, shown)
    shape = (patch, patch) if isinstance(patch, int) else patch
    patches = kl.hyperspectral.CubePatches(data, shape, remove_means=remove_means)
    origin = {"input": str(path), "cube": data.shape, "remove_means": remove_means}
    learn_and_save(options, atoms or default_atoms(shape, structure), patches, origin, shown)


def _levels(text: str) -> Any:
    """One noise level, or one per band, from the command line or a file."""
    path = Path(text)
    if not path.is_file():
        try:
            return opt.parse_levels(text)
        except typer.BadParameter as problem:
            reason = problem.message.rstrip(".")
            raise typer.BadParameter(f"{reason}, or an existing file.") from problem
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float64).reshape(-1)
        return np.loadtxt(path, delimiter=",", ndmin=1)
    except (ValueError, EOFError) as problem:
        raise typer.BadParameter(
            f"{path} cannot be read as one number per band: {problem}"
        ) from problem


def denoise(
    path: Annotated[Path, typer.Argument(metavar="IN", help=f"A cube: {_FORMATS}.")],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The file to write; its extension determines the format."
        ),
    ],
    sigma: Annotated[
        Any,
        typer.Option(
            parser=_levels,
            metavar="S",
            help="Standard deviation of the noise, in the cube's own units: one number, one per "
            "band as in 9,8,12, or a file with one number per band.",
            show_default="estimated for every band",
        ),
    ] = None,
    quality: Annotated[
        Literal["default", "fast"],
        typer.Option(
            metavar="NAME",
            help="default, or fast (a third of the time, up to 0.2 dB less accurate).",
        ),
    ] = "default",
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        typer.Option(
            metavar="NAME",
            help="Data type of the output: float32 or float64.",
            show_default="that of the input; integers are rounded",
        ),
    ] = None,
    artefacts: Annotated[
        bool,
        typer.Option(
            "--artefacts", help="Remove stripes and fill in impulses, dead pixels and dead lines."
        ),
    ] = False,
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Reference cube, to report PSNR, SSIM and spectral angle."
        ),
    ] = None,
    report: opt.Report = None,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Remove the noise from a cube.

    Denoises the principal components of the spectra; dictionaries from cube learn are not used. The
    output has the metadata and, without --dtype, the data type of the input. Bands that the file
    marks as bad (bbl in ENVI headers) are left unchanged. The cube is read in blocks of rows and
    need not fit into memory.
    """
    shown = Output(as_json, quiet)
    use_device(device, shown)
    data = _open(path, band_axis, dataset, nodata, shown)
    # An ENVI cube is two files.
    files = [output.parent / file.name for file in target_files(output, data.stored)]
    read = [*data.stored.files, path, *([clean] if clean else [])]
    check_outputs([("OUT", file) for file in files], read, overwrite, folders=True)
    check_outputs([("--report", report)], [*read, *files], overwrite)
    level = one_or_each(sigma, data.shape[2], "band")
    reference = None if clean is None else _read_reference(clean, path, data, band_axis)
    with shown.stages(path.name) as progress:
        result = kl.hyperspectral.denoise(
            data,
            level,
            out=output,
            dtype=dtype,
            quality=quality,
            artefacts=artefacts,
            n_jobs=n_jobs,
            device=device,
            progress=progress,
            full=True,
        )
    source = "estimated" if sigma is None else "as given"
    facts = [
        ("cube", _described(data)),
        ("noise level", f"{_level(result.sigma)}, {source}"),
        ("components kept", result.n_planes),
        ("bad bands, left unchanged", _bad_bands(data)),
        (("wrong or " if artefacts else "") + "missing values filled in", result.n_filled or None),
        ("pixels without data", result.n_skipped or None),
        ("time", f"{sum(result.seconds.values()):.3g} s"),
    ]
    after = _open_written(output, data)
    compared = {} if reference is None else {"before": data, "after": after}
    scores = {name: kl.hyperspectral.compare(reference, c) for name, c in compared.items()}
    facts += [(name, str(score)) for name, score in scores.items()]
    if report is not None:
        known = [(name, str(value)) for name, value in facts if value is not None]
        save_report(_page(f"Denoised: {path.name}", data, after, known, result), report, overwrite)
        files.append(report)
    shown.say(path)
    shown.say(facts_table([*facts, ("saved as", ", ".join(map(str, files)))]))
    shown.finish(
        {
            "input": str(path),
            "output": str(output),
            "shape": data.shape,
            "dtype": dtype or data.dtype.name,
            "band_axis": data.band_axis,
            "bad_bands": data.bad_bands,
            "sigma": result.sigma,
            "sigma_estimated": sigma is None,
            "components": result.n_planes,
            "filled": result.n_filled,
            "skipped": result.n_skipped,
            "scores": {
                name: {"psnr": s.mean_psnr, "ssim": s.mean_ssim, "angle": s.mean_angle}
                for name, s in scores.items()
            },
            "seconds": result.seconds,
            "files": [str(file) for file in files],
        }
    )


_FUNCTIONS: dict[str, Callable[..., None]] = {"info": info, "learn": learn, "denoise": denoise}


cube = Group(
    {name: function.__doc__ or "" for name, function in _FUNCTIONS.items()},
    lambda name: command_of(name, _FUNCTIONS[name]),
    name="cube",
    help="Inspect, learn from and denoise hyperspectral cubes.",
)


def _open(
    path: Path, band_axis: int | None, dataset: str | None, nodata: float | None, shown: Output
) -> Cube:
    """Open a cube, and print a note if its band axis is a guess."""
    data = open_cube(path, band_axis, dataset, nodata)
    if data.band_axis_is_guess:
        shown.say(
            f"{path}: the bands are assumed to lie along axis {data.band_axis} "
            f"({data.band_axis_reason}); --band-axis sets another."
        )
    return data


def _open_written(output: Path, data: Cube) -> Cube:
    """Open the output, whose format may have no dataset names, and another order of axes."""
    try:
        stored = open_array(output, data.stored.dataset)
    except StoredArrayError:
        stored = open_array(output)
    written = open_cube(stored, nodata=data.nodata)
    if written.band_axis_is_guess:
        written = open_cube(stored, data.band_axis, nodata=data.nodata)
    written.bad_bands = data.bad_bands
    return written


def _read_reference(clean: Path, path: Path, data: Cube, band_axis: int | None) -> Cube:
    """The cube of ``--clean``; --band-axis applies unless its file says where the bands are."""
    stored = open_array(clean)
    reference = open_cube(stored, band_axis if stored.band_axis is None else None)
    if reference.shape != data.shape:
        raise ValueError(
            f"--clean {clean} is {_described(reference)}; it must match {path}, {_described(data)}."
        )
    return reference


def _page(title: str, before: Cube, after: Cube, facts: list[tuple[str, str]], result: Any) -> Page:
    """The content of the report, which shows the band with the median noise."""
    n_known = np.count_nonzero(np.isfinite(result.sigma))
    band = int(np.argsort(result.sigma)[n_known // 2])
    note = f"Band {band + 1} of {before.shape[2]} is shown, the one with the median noise."
    return Page(title, _band(before, band), _band(after, band), facts, result.seconds, notes=[note])


def _band(cube: Cube, band: int) -> NDArray[Any]:
    """A band as an image (rows, columns), with NaN for missing values."""
    values, valid = cube.read_checked(slice(0, cube.shape[0]), bands=slice(band, band + 1))
    return values[..., 0] if valid is None else np.where(valid, values, np.nan)[..., 0]


def _described(data: Cube) -> str:
    sizes = zip(data.shape, ("row", "column", "band"), strict=True)
    return " × ".join(counted(size, noun) for size, noun in sizes) + f", {data.dtype.name}"


def _range(values: NDArray[Any] | None, units: str | None) -> str | None:
    if values is None or not len(values):
        return None
    low, high = f"{np.min(values):g}", f"{np.max(values):g}"
    return f"{low if low == high else f'{low} to {high}'} {units or ''}".rstrip()


def _scaling(data: Cube) -> str | None:
    """What the file says would turn its numbers into physical values."""
    names = {"factor": "data gain values", "offset": "data offset values"}
    parts = {name: _range(data.per_band.get(key), None) for name, key in names.items()}
    # ENVI's divisor, as a text.
    name = "reflectance scale factor"
    parts[name] = data.attributes.get(name)
    return ", ".join(f"{name} {text}" for name, text in parts.items() if text) or None


def _bad_bands(data: Cube) -> str | None:
    """The number of bad bands, and which they are, counted from one: ``3 of 12: 1–2, 11``."""
    if data.bad_bands is None:
        return None
    edges = np.flatnonzero(np.diff(data.bad_bands, prepend=False, append=False)).reshape(-1, 2)
    runs = (f"{a + 1}" if b == a + 1 else f"{a + 1}–{b}" for a, b in edges.tolist())
    return f"{np.count_nonzero(data.bad_bands)} of {data.shape[2]}: {', '.join(runs)}"


def _level(sigma: NDArray[np.float64]) -> str:
    """A summary of the noise levels of all bands."""
    known = sigma[np.isfinite(sigma)]
    if not known.size:
        return "unknown"
    if known.min() == known.max():
        return f"σ = {known[0]:.4g}"
    return f"σ = {np.median(known):.4g} in the median band, {known.min():.4g} to {known.max():.4g}"
